"""Changes of a timed prompt between a sampler's steps, by ComfyUI's rules and Stable Diffusion's noise levels."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from weighted_clip.hosts.comfy.timed import stable_diffusion_sigma, timing_of, uniform_timing


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
