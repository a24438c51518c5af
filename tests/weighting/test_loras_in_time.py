"""LoRAs that change with the steps: their tags stand where a word in their place would, their strengths are linear."""

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from weighted_clip.web.inspection import RequestError, inspect
from weighted_clip.weighting.text.tags import read_loras, take_tags
from weighted_clip.weighting.timed.loras import LORAS, lora_times, once, with_times
from weighted_clip.weighting.timed.schedule import COUNTERS, read_timed

AS_WEBUI, AS_WRITTEN = COUNTERS
SOUP = st.text(alphabet="ab :|[]().0123", max_size=24)


def strengths(text: str, steps: int, counter: str = AS_WRITTEN) -> list[list[float]]:
    return [list(one.model) for one in lora_times(text, steps, counter)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a <lora:x:0.8>", ["0.8 0.8 0.8 0.8"]),
        ("[<lora:x:0.8>:<lora:y:1>:0.5]", ["0.8 0.8 0 0", "0 0 1 1"]),
        ("[<lora:x:1>:1] [<lora:y:1>::3]", ["0 1 1 1", "1 1 1 0"]),
        ("[<lora:x:1>|<lora:y:1>|]", ["1 0 0 1", "0 1 0 0"]),
        ("[a<lora:x:1>b:c:2]", ["1 1 0 0"]),
        ("[a:([b|<lora:x:-1>:]c):1]", ["-1 -1 -1 -1"]),  # a bracket that does not fit
        ("[a:([b|<lora:x:-1>]c):1]", ["0 -1 0 -1"]),
        ("[[<lora:x:1>:<lora:y:2>:1]:<lora:z:3>:2]<lora:w:4>", ["1 0 0 0", "0 2 0 0", "0 0 3 3", "4 4 4 4"]),
        ("a AND [b:<lora:x:1>:3] c AND d", ["0 0 0 1"]),
        ("<lora:x:1> a <lora:x:0.5> [<lora:x:2>:2]", ["1 1 1 1", "0.5 0.5 0.5 0.5", "0 0 2 2"]),
        ("a | [<lora:x:1>:2]", ["1 1 1 1"]),  # nothing is edited
        ("# [<lora:x:1>:2]\n<lora:y:1>", ["1 1 1 1"]),
        ("<hypernet:x:1> [<lora:y:0@1,1@3>::3]", ["0 0.5 1 0"]),
    ],
)
def test_a_lora_acts_while_its_tag_stands(text: str, expected: list[str]) -> None:
    assert strengths(text, 4) == [[float(one) for one in each.split()] for each in expected]


def test_the_webuis_count_is_one_call_late() -> None:
    assert strengths("[<lora:x:1>|<lora:y:1>] [<lora:z:1>::2]", 4, AS_WEBUI) == [
        [1, 1, 0, 1],
        [0, 0, 1, 0],
        [1, 1, 1, 0],
    ]


@given(SOUP, SOUP, st.integers(1, 9), st.sampled_from(COUNTERS))
def test_a_tag_stands_at_the_steps_of_a_word_in_its_place(before: str, after: str, steps: int, counter: str) -> None:
    text = f"{before}<lora:x:1>{after}"
    tagged, marked = (read_timed(one, steps).branches[0] for one in (text, f"{before}%{after}"))
    texts = [[branch.at(call, counter).text for call in range(steps)] for branch in (tagged, marked)]
    assume(texts[0] == [one.replace("%", "") for one in texts[1]])  # it does not disturb what is around it
    assert strengths(text, steps, counter) == [[float("%" in one) for one in texts[1]]]


NUMBERS = st.floats(-10, 10, allow_nan=False) | st.integers(-3, 30)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=300), st.integers(1, 40), st.sampled_from(COUNTERS))
@example([(0.0, 0.0), (1.0, 5e-324)], 4, AS_WEBUI)
def test_strengths_are_linear_between_points(points: list, steps: int, counter: str) -> None:
    written = ",".join(f"{one!r}@{step!r}" for one, step in points)
    places = sorted(points, key=lambda point: point[1])
    is_share = places[-1][1] <= 1
    for call, found in enumerate(strengths(f"<lora:x:{written}>", steps, counter)[0]):
        if counter == AS_WRITTEN:  # the first step is 1, and as a share 0
            step = call / max(steps - 1, 1) if is_share else call + 1
        else:  # as sd-webui-loractl counts: the number of the call before, of all but two
            step = max(call - 1, 0) / max(steps - 2, 1) if is_share else max(call - 1, 0)
        expected = np.interp(step, [place for _, place in places], [one for one, _ in places])
        assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("strength", "points"),
    [
        ("0.2@0.2,1@0.5", ((0.2, 0.2), (1.0, 0.5))),
        ("1@6;0.5@3;1@0", ((1.0, 0.0), (0.5, 3.0), (1.0, 6.0))),
        (" 1 @ 0 , 2", ((1.0, 0.0), (2.0, 1.0))),
        ("1e308@-1e308,-1e308@1e308", ((1e308, -1e308), (-1e308, 1e308))),
        *((bad, None) for bad in ("nan@0,1@1", "1@inf", "1@", "@1", "1@2@3", "1,2@1", "@", ",@", "1@0,", "1@0,x@1")),
    ],
)
def test_strengths_at_steps_are_numbers_or_a_problem(strength: str, points: tuple | None) -> None:
    (lora,), issues = read_loras(take_tags(f"<lora:x:{strength}>")[1])
    assert lora.clip_points == lora.model_points == (points or ())
    assert [issue.code for issue in issues] == ["timed-strength" if points else "unreadable-strength"]
    assert all(np.isfinite(strengths(f"<lora:x:{strength}>", 50)[0]))


def test_text_encoder_and_model_have_strengths_of_their_own() -> None:
    one, other = lora_times("<lora:x:1:0@1,1@3><lora:y:te=0@1,1@3:unet=0.5>", 3, AS_WRITTEN)
    assert (one.clip, one.model) == ((1.0, 1.0, 1.0), (0.0, 0.5, 1.0))
    assert (other.clip, other.model) == ((0.0, 0.5, 1.0), (0.5, 0.5, 0.5))
    assert one.text == "1: 0 (CLIP 1), 2: 0.5 (CLIP 1), 3: 1"


def forges_strengths(start: int | None, stop: int | None, steps: int) -> list[float]:
    """Strength on the diffusion model in each call, as sd-webui-lora-block-weight sets it in Forge.

    It sets the strength to 0 at first if there is a start, and has a look whenever the denoiser is called: at the step
    that is the start the strength comes back, at that of the stop it goes. The step is counted up after each call but
    the first.
    """
    strength = 1.0 if not start else 0.0
    found = []
    for call in range(steps):
        step = max(call - 1, 0)
        if step == start:
            strength = 1.0
        if step == stop:
            strength = 0.0
        found.append(strength)
    return found


@pytest.mark.parametrize("start", [None, 0, 1, 3, 9])
@pytest.mark.parametrize("stop", [None, 0, 1, 3, 5, 9])
def test_steps_bound_a_lora_as_in_the_extension(start: int | None, stop: int | None) -> None:
    options = "".join(f":{key}={value}" for key, value in (("start", start), ("stop", stop)) if value is not None)
    (webui,) = lora_times(f"<lora:x:1{options}>", 8, AS_WEBUI)
    assert list(webui.model) == forges_strengths(start, stop, 8)
    assert set(webui.clip) == {float(not start)}  # the text is encoded before the first call
    (written,) = lora_times(f"<lora:x:1{options}>", 8, AS_WRITTEN)
    first, end = start or 0, 99 if stop is None or stop < (start or 0) else stop
    assert list(written.model) == [float(first <= step < end) for step in range(1, 9)]


def test_a_range_of_steps_is_both_ends() -> None:
    for text in ("<lora:x:1:step=3-5>", "<lora:x:1:lbw=ALL:start=9:stop=2:step=3-5>"):
        assert strengths(text, 6) == [[0, 0, 1, 1, 0, 0]]


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("<lora:x:1:start=5:stop=3>", ["backward-steps"]),
        ("<lora:x:1:step=5-3>", ["backward-steps"]),
        ("<lora:x:1:start=5:stop=5>", ["lora-without-step"]),
        ("<lora:x:1:start=30>", ["lora-without-step"]),
        ("[[<lora:x:1>:7]::4]", ["lora-without-step"]),
        ("<lora:x:1:start=0.5>", ["unreadable-steps"]),
        ("<lora:x:1:step=7>", ["unreadable-steps"]),
        ("<lora:x:1:stop=10>", []),
        ("<lora:x:0>", []),
        ("<lora:x:1> <lora:x:1>", ["repeated-lora"]),
        ("<lora:x:1> <lora:x:0.5> <lora:X:1>", []),
        ("[<lora:x:1>:<lora:x:1>:5]", []),
        ("<lora:x:1> [a<lora:x:1>:5]", ["repeated-lora"]),
        ("<lora:x:0@0,1@1> <lora:x:0@0,1@1>", []),
        ("<lora:x:1:start=3> <lora:x:0.5:start=5>", ["other-times"]),
        ("<lora:x:0@0,1@1> <lora:y:1@0,0@1> <lora:x:0@0,1@0.5>", ["other-times"]),
        ("<lora:x:1:lbw=INS> <lora:x:1:lbw=OUTS>", []),
        ("<lora:x:1:lbw=INS> <lora:x:1:lbw=INS>", ["repeated-lora"]),
        ("<lora:x:1:lbw=1,2>", ["unreadable-blocks"]),
    ],
)
def test_times_without_sense_and_repetitions_are_said_while_typing(text: str, codes: list[str]) -> None:
    request = {"text": text, "syntax": "a1111", "steps": 20, "counter": AS_WRITTEN, "loras": "in time"}
    (timed, *_) = inspect(request)["views"]
    assert [issue["code"] for issue in timed["issues"]] == codes
    if not text.startswith("["):
        assert timed["chunks"][0]["chips"][0]["text"].startswith("<lora:")


def test_a_lora_acts_once_at_each_strength_as_in_forge() -> None:
    """Forge keeps the patches of each of the two models by file and strength: 0.8, 0.8 and 0.5 act as 1.3."""
    text = "<lora:x:0.8> <lora:x:0.8:0.5> <lora:x:0.5:0.8> <lora:y:0.8> <lora:x:0@0,1@1> <lora:x:0@0,1@1>"
    times = lora_times(text, 3, AS_WRITTEN)
    names = [one.tag.name for one in times]
    found, issues = once(times, names)
    patches: dict[tuple[str, str, float], float] = {}
    for one in times[:4]:
        patches[one.tag.name, "clip", one.tag.clip_strength] = one.tag.clip_strength
        patches[one.tag.name, "model", one.tag.model_strength] = one.tag.model_strength
    for name in "xy":
        own = [one for one in found[:4] if one.tag.name == name]
        assert sum(one.clip[0] for one in own) == sum(v for key, v in patches.items() if key[:2] == (name, "clip"))
        assert sum(one.model[0] for one in own) == sum(v for key, v in patches.items() if key[:2] == (name, "model"))
    assert found[4:] == times[4:]
    repeated = [issue for issue in issues if issue.code == "repeated-lora"]
    assert [text[slice(*issue.span)] for issue in repeated] == ["<lora:x:0.8:0.5>", "<lora:x:0.5:0.8>"]


def test_too_much_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="change 1001 times in 1002 steps; 1000 are allowed"):
        lora_times("[<lora:x:1>|a]", 1002, AS_WRITTEN)
    with pytest.raises(ValueError, match="are too many"):
        lora_times("<lora:x:1>" * 1100, 1000, AS_WRITTEN)
    with pytest.raises(ValueError, match="steps must be 1 to 10000"):
        lora_times("<lora:x:1>", 0, AS_WRITTEN)
    assert len(lora_times("<lora:x:1>[b:5]" * 4000, 20, AS_WRITTEN)) == 4000
    assert len(lora_times("[" * 5000 + "<lora:x:1>" + ":0.5]" * 5000, 100, AS_WRITTEN)) == 1


TEXT = "😀 a [<lora:a:0.8>:<lora:b:0@0,1@1>:0.5] (cat:1.2)"


def test_the_ruler_says_when_they_act() -> None:
    for extra in ({"regions": "off"}, {}):  # of an encode node, and of one that only loads them
        request = {"text": TEXT, "syntax": "a1111", "steps": 4, "counter": AS_WRITTEN, **extra}
        (plain,), (timed,) = (inspect({**request, "loras": one})["views"] for one in LORAS[:2])
        tags = [chip for chip in timed["chunks"][0]["chips"] if not chip["ids"]]
        assert [(tag["text"], tag["note"], tag["hidden"], tag["problems"]) for tag in tags] == [
            ("<lora:a:0.8>", "1–2: 0.8", False, []),
            ("<lora:b:0@0,1@1>", "3: 0.666667, 4: 1", False, []),
        ]
        assert {issue["code"] for issue in timed["issues"]}.isdisjoint({"lora"})
        assert [issue["code"] for issue in plain["issues"] if issue["code"] == "lora"] == ["lora", "lora"]
    with pytest.raises(RequestError, match="loras must be one of: as A1111, in time, in time, by part; got 'never'"):
        inspect({**request, "loras": "never"})


def test_the_report_says_when_they_act() -> None:
    prompt = with_times(read_timed(TEXT, 4), lora_times(TEXT, 4, AS_WRITTEN))
    assert [issue.message for issue in prompt.issues] == [
        "The LoRA “a” acts in steps 1–2: 0.8.",
        "The LoRA “b” acts in steps 3: 0.666667, 4: 1.",
    ]
