"""Timed prompts: entries by the A1111/Forge Prompt node on a fake host, and changes between a sampler's steps.

The times are ComfyUI's, by its rules and Stable Diffusion's noise levels.
"""

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from weighted_clip.hosts.comfy.attention.marker import regions_of
from weighted_clip.hosts.comfy.attention.words import WORDS
from weighted_clip.hosts.comfy.clip.timed_prompts import stable_diffusion_sigma, timing_of, uniform_timing
from weighted_clip.weighting.timed.schedule import COUNTERS

from .fake_comfy import FakeClip, Tower, encode

AS_WRITTEN = {"counter": COUNTERS[1]}


def timed(text: str, clip=None, **inputs) -> dict:
    return encode("A1111Encode", clip, text, **inputs)


def entries(text: str, **inputs) -> list:
    return timed(text, **inputs)["result"][0]


def test_a_prompt_without_times_is_one_plain_entry() -> None:
    ((_, values),) = entries("a (red:1.2) [cat]")
    assert values.keys() == {"pooled_output", WORDS}


def test_an_edit_becomes_two_entries_that_meet_at_its_step() -> None:
    first, second = entries("a [cat:dog:10]", steps=20, **AS_WRITTEN)
    timing = uniform_timing(20)
    assert first[1].items() >= timing.entry_times(0, 10).items()
    assert second[1].items() >= timing.entry_times(10, 20).items()
    assert torch.equal(first[0], entries("a cat")[0][0])
    assert torch.equal(second[0], entries("a dog")[0][0])
    later = entries("a [cat:dog:10]", steps=20)
    assert later[0][1].items() >= timing.entry_times(0, 11).items()


def test_branches_of_and_carry_their_weight_as_strength() -> None:
    conditioning = entries("a cat:0.5 AND [a|b] dog", steps=4, **AS_WRITTEN)
    assert [values["strength"] for _, values in conditioning] == [0.5, 1.0, 1.0, 1.0, 1.0]
    assert "start_percent" not in conditioning[0][1]
    assert torch.equal(conditioning[1][0], conditioning[3][0])
    assert torch.equal(conditioning[1][0], entries(" a dog")[0][0])


def test_places_in_the_text_are_the_hosts_keys() -> None:
    text = "a cat MASK(0 0.5, 0 1, 0.7) MASKW(0.9) :0.5 AND a [dog:bird:2] AREA(0.5 1, 0 0.25, 1.3) AND fog :0"
    cat, dog, bird, fog = entries(text, steps=4, regions="prompt-control", **AS_WRITTEN)
    mask = torch.zeros(1, 512, 512)
    mask[:, :, :256] = 0.7
    assert torch.equal(cat[1]["mask"], mask)
    assert (cat[1]["mask_strength"], cat[1]["strength"], "area" in cat[1]) == (0.9, 0.5, False)
    for _, values in (dog, bird):
        assert (values["area"], values["strength"], "mask" in values) == (
            ("percentage", 0.25, 1.0, 0.0, 0.5),
            1.3,
            False,
        )
    assert torch.equal(cat[0], entries("a cat")[0][0])
    assert (fog[1]["strength"], {"area", "mask"} & fog[1].keys()) == (0.0, set())
    assert len(entries("a MASK() AND b MASK() :0", regions="prompt-control")) == 1
    assert "mask" not in entries("a cat MASK(0 0.5)")[0][1]


def test_prompts_joined_by_couple_are_regions() -> None:
    text = "a cat FILL() AREA(0 1, 0 0.5) COUPLE(0 0.5) a [dog:bird:2] AND fog"
    (base, values), fog = entries(text, steps=4, regions="prompt-control", **AS_WRITTEN)
    assert torch.equal(base, entries("a cat")[0][0])
    assert values["area"] == ("percentage", 0.5, 1.0, 0.0, 0.0) and "mask" not in values
    dog, bird = regions_of(values)
    assert torch.equal(dog.text, entries("a dog")[0][0]) and torch.equal(bird.text, entries("a bird")[0][0])
    assert (dog.strength, dog.where is bird.where, dog.times[1] <= bird.times[0]) == (1.0, True, True)
    left = torch.zeros(1, 512, 512)
    left[:, :, :256] = 1
    assert torch.equal(dog.where.mask, left)
    assert not regions_of(fog[1])
    both = entries("a cat COUPLE a dog", regions="prompt-control")[0][1]
    assert torch.equal(regions_of(both)[0].where.mask, torch.full((1, 512, 512), 0.5))
    (alone,) = entries("a cat :0 COUPLE(0 0.5) a dog", regions="prompt-control")
    assert torch.equal(alone[1]["mask"], left) and not regions_of(alone[1])


def test_what_cannot_be_read_of_places_is_refused() -> None:
    for text, message in (
        ("a FEATHER(8)", "FEATHER"),
        ("a MASK() :0", "has the weight 0"),
        ("a COUPLE(0 0.5) b :0.5", "“COUPLE(0 0.5)” has the weight 0.5"),
        ("a COUPLE b AREA(0 0.5)", "AREA after COUPLE has no effect"),
        ("a MASK(0 0.5) COUPLE(0 0.4) b", "no prompt joined by COUPLE is read: write FILL()"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            entries(text, regions="prompt-control")
    with pytest.raises(ValueError, match="regions must be one of: off, prompt-control; got 'on'"):
        entries("a", regions="on")


def test_equal_texts_are_encoded_once(monkeypatch) -> None:
    calls = []
    inner = Tower.encode
    monkeypatch.setattr(Tower, "encode", lambda self, tokens: calls.append(len(tokens)) or inner(self, tokens))
    assert len(entries("[a|b|a|c] cat AND a cat", steps=40)) > 20
    assert len(calls) == 4  # "a cat", "b cat", "c cat", " a cat"


def test_a_part_of_weight_0_is_left_to_the_host() -> None:
    assert [values["strength"] for _, values in entries("a AND b:0")] == [1.0, 0.0]


@pytest.mark.parametrize("text", ["a:1 AND b:-1", "a:0 AND b:0", "a:-2 AND b"])
def test_weights_that_comfyui_cannot_divide_by_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"sum to -?\d.*ComfyUI divides by this sum"):
        timed(text)


def test_what_became_of_each_text_reaches_the_front_end() -> None:
    result = timed("a [cat:(dog:10] AND b:0.5", **AS_WRITTEN)
    views = result["ui"]["weighted_clip"]
    assert [(view["branch"], view["weight"], view["steps"]) for view in views] == [
        (0, 1.0, [[1, 20]]),
        (1, 0.5, [[1, 20]]),
    ]
    views = timed("x [cat:dog:10] y", steps=20, **AS_WRITTEN)["ui"]["weighted_clip"]
    assert [view["steps"] for view in views] == [[[1, 10]], [[11, 20]]]
    assert {view["text"] for view in views} == {"x [cat:dog:10] y"}
    shown = [[(chip["text"], chip["start"]) for chip in view["chunks"][0]["chips"]] for view in views]
    assert shown == [[("x", 0), ("cat", 3), ("y", 15)], [("x", 0), ("dog", 7), ("y", 15)]]


def test_problems_stand_at_their_place_in_the_whole_prompt_and_once() -> None:
    text = "[cat:dog:10] and a (bird"
    result = timed(text, **AS_WRITTEN)
    issues = [issue for view in result["ui"]["weighted_clip"] for issue in view["issues"]]
    assert sorted(issue["code"] for issue in issues) == ["unclosed-bracket", "uniform-steps"]
    (unclosed,) = (issue for issue in issues if issue["code"] == "unclosed-bracket")
    assert text[unclosed["start"]] == "("
    assert len(result["ui"]["text"]) == 2


def test_the_report_says_which_text_stands_when() -> None:
    report = timed("a [cat|dog] AND b:2", steps=3, **AS_WRITTEN)["result"][1]
    assert "3 steps, assumed to be of equal length" in report
    assert "steps 1, 3, AND weight 1: “a cat”" in report
    assert "steps 1 to 3, AND weight 2: “ b”" in report
    coupled = timed("a COUPLE(0 0.5) b", steps=3, regions="prompt-control")["result"][1]
    assert "steps 1 to 3, COUPLE: “ b”" in coupled


def test_sigmas_say_how_many_steps_there_are() -> None:
    sigmas = torch.tensor([14.6, 7.0, 3.0, 1.0, 0.0])
    result = timed("[cat:dog:0.5]", steps=50, sigmas=sigmas, **AS_WRITTEN)
    assert [view["steps"] for view in result["ui"]["weighted_clip"]] == [[[1, 2]], [[3, 4]]]
    assert result["ui"]["text"] == []
    assert "4 steps, timed by sigmas and Stable Diffusion's noise levels" in result["result"][1]


def test_the_time_is_not_assumed_where_nothing_depends_on_it() -> None:
    assert timed("a cat AND a dog")["ui"]["text"] == []


def test_entries_of_a_scheduled_hook_are_no_times() -> None:
    class Hooked(FakeClip):
        def clone(self):
            return Hooked(self.cond_stage_model, self.patcher.object_patches, self.towers)

        def encode_from_tokens_scheduled(self, tokens, add_dict=None):
            return super().encode_from_tokens_scheduled(tokens, add_dict) * 3

    result = timed("a cat", clip=Hooked())
    assert len(result["result"][0]) == 3
    assert result["ui"]["text"] == []
    assert "equal length" not in result["result"][1]


def test_without_emphasis_times_are_read_all_the_same() -> None:
    result = timed("[(cat):dog:5]", emphasis="None", **AS_WRITTEN)
    texts = [[chip["text"] for chip in view["chunks"][0]["chips"]] for view in result["ui"]["weighted_clip"]]
    assert texts == [["(", "cat", ")"], ["dog"]]


def test_a_prompt_is_cleaned_as_in_the_webui_unless_told_otherwise() -> None:
    typed = "a “red” cat # [on a mat::5]\nin a bowl"
    assert [len(entries(typed)), len(entries(typed, cleaning="none"))] == [1, 2]
    assert torch.equal(entries(typed)[0][0], entries('a "red" cat \nin a bowl')[0][0])
    assert not torch.equal(entries("“a”")[0][0], entries("“a”", cleaning="none")[0][0])


# ---- times of steps


def levels_in_float32() -> torch.Tensor:
    """Stable Diffusion's 1000 noise levels as its release computes them."""
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2
    alphas = torch.cumprod(1 - betas, dim=0)
    return ((1 - alphas) / alphas).sqrt().float()


LEVELS = levels_in_float32()


def percent_to_sigma(percent: float) -> float:
    """ComfyUI's conversion of a percentage for Stable Diffusion, by the rule in hosts.md and its documentation."""
    if percent <= 0:
        return 999999999.9
    if percent >= 1:
        return 0.0
    place = (torch.tensor((1 - percent) * 999.0)).float()
    low, high, part = place.floor().long(), place.ceil().long(), place.frac()
    return float(((1 - part) * LEVELS[low].log() + part * LEVELS[high].log()).exp())


def is_active(entry: dict[str, float], sigma: float) -> bool:
    """ComfyUI uses an entry between its two levels, both included."""
    if not entry:
        return True
    return percent_to_sigma(entry["end_percent"]) <= sigma <= percent_to_sigma(entry["start_percent"])


def karras(steps: int) -> list[float]:
    low, high = 0.0292 ** (1 / 7), 14.6146 ** (1 / 7)
    return [(high + (low - high) * step / (steps - 1)) ** 7 for step in range(steps)] + [0.0]


def even(steps: int, last: float = 0.0) -> list[float]:
    """The schedule ``normal``, or with another last level a part of one."""
    places = np.linspace(999, 0, steps)
    return [float(LEVELS[round(place)]) for place in places] + [last]


def exponential(steps: int) -> list[float]:
    return [*np.exp(np.linspace(math.log(14.6146), math.log(0.0292), steps)), 0.0]


SCHEDULES = {"karras": karras, "normal": even, "exponential": exponential}


def test_the_levels_are_stable_diffusions() -> None:
    for place in (0, 1, 17, 500, 998, 999):
        assert stable_diffusion_sigma(1 - place / 999) == pytest.approx(float(LEVELS[place]), rel=1e-5)
    assert stable_diffusion_sigma(1.0) == pytest.approx(0.0292, abs=1e-4)
    assert stable_diffusion_sigma(0.0) == pytest.approx(14.6146, abs=1e-4)


@pytest.mark.parametrize("steps", [1, 2, 20, 50, 150])
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("with_model", [False, True])
def test_each_step_has_exactly_its_own_entry(name: str, steps: int, with_model: bool) -> None:
    sigmas = [14.6146, 0.0] if steps == 1 else torch.tensor(SCHEDULES[name](steps)).tolist()
    sampling = SimpleNamespace(percent_to_sigma=percent_to_sigma)
    model = SimpleNamespace(get_model_object={"model_sampling": sampling}.get) if with_model else None
    timing = timing_of(sigmas, model, is_stable_diffusion=True)
    assert not timing.issues
    assert timing.steps == steps
    entries = [timing.entry_times(step, step + 1) for step in range(steps)]
    for step, sigma in enumerate(sigmas[:-1]):
        assert [is_active(entry, sigma) for entry in entries] == [other == step for other in range(steps)]


@given(st.lists(st.integers(0, 999), min_size=2, max_size=30, unique=True))
def test_any_falling_levels_of_the_model(places: list[int]) -> None:
    sigmas = [float(LEVELS[place]) for place in sorted(places, reverse=True)]
    timing = timing_of(sigmas, None, is_stable_diffusion=True)
    entries = [timing.entry_times(step, step + 1) for step in range(timing.steps)]
    for step, sigma in enumerate(sigmas[:-1]):
        assert [is_active(entry, sigma) for entry in entries] == [other == step for other in range(timing.steps)]


def test_what_samplers_of_second_order_ask_for_in_between_belongs_to_the_step_before() -> None:
    sigmas = even(20)
    timing = timing_of(sigmas, None, is_stable_diffusion=True)
    entries = [timing.entry_times(step, step + 1) for step in range(20)]
    for step in range(19):
        middle = math.exp((math.log(sigmas[step]) + math.log(sigmas[step + 1])) / 2)
        assert [is_active(entry, middle) for entry in entries] == [other == step for other in range(20)]


def test_neighbours_do_not_overlap_and_leave_no_room() -> None:
    timing = timing_of(karras(30), None, is_stable_diffusion=True)
    for step in range(1, 30):
        before, after = timing.entry_times(0, step), timing.entry_times(step, 30)
        assert before["start_percent"] == 0.0
        assert after["end_percent"] == 1.0
        assert 0 < after["start_percent"] - before["end_percent"] < 2e-6
        assert percent_to_sigma(before["end_percent"]) > percent_to_sigma(after["start_percent"])


def test_an_entry_for_all_steps_has_no_times() -> None:
    assert uniform_timing(20).entry_times(0, 20) == {}


@pytest.mark.parametrize("steps", [1, 2, 20, 150])
def test_steps_of_equal_length_change_in_the_middle(steps: int) -> None:
    timing = uniform_timing(steps)
    assert timing.borders == (0.0, *((step - 0.5) / steps for step in range(1, steps)), 1.0)
    assert "equal length" in timing.issues[0].message


@pytest.mark.parametrize(
    ("sigmas", "is_stable_diffusion", "message"),
    [
        ([1.0, 0.8, 0.5, 0.0], False, "not Stable Diffusion's noise levels: connect the model"),
        ([120.0, 5.0, 0.0], True, "not Stable Diffusion's noise levels: connect the model"),
        ([14.6, 5.0, 5.0, 1.0, 0.0], True, "steps 2 and 3, 5 and 5, leave no room"),
        ([0.03, 1.0, 14.6], True, "steps 1 and 2, 0.03 and 1, leave no room"),
        ([14.6, 0.001, 0.0], True, "connect the model"),
    ],
)
def test_levels_that_cannot_be_timed(sigmas: list[float], is_stable_diffusion: bool, message: str) -> None:
    timing = timing_of(sigmas, None, is_stable_diffusion=is_stable_diffusion)
    assert message in timing.issues[0].message
    assert timing.borders == uniform_timing(len(sigmas) - 1).borders


@pytest.mark.parametrize("sigmas", [[], [1.0]])
def test_no_step_at_all_is_refused(sigmas: list[float]) -> None:
    with pytest.raises(ValueError, match=f"at least two noise levels, which make one step; got {len(sigmas)}"):
        timing_of(sigmas, None, is_stable_diffusion=True)
