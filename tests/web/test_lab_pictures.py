"""The chart of a comparison: numbers, axes, and positions of its bars."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from weighted_clip.web.pictures import RowChange, SchemeRow, changes, draw_changes, style
from weighted_clip.web.pictures.changes import Axes, angle_text, axes_of, ratio_text

SAME = RowChange(1.0, 0.0)


def row(*found: RowChange | None, name: str = "comfy", message: str = "") -> SchemeRow:
    return SchemeRow(name, found, (), message)


def is_color(image: Image.Image, color: style.Color) -> np.ndarray:
    """Pixels of a colour, ``[height, width]``."""
    return (np.asarray(image) == color).all(-1)


@pytest.mark.parametrize(
    ("ratios", "angles", "axes"),
    [
        ([1.0], [0.0], (1.05, 1.0)),
        ([1.2, 0.9], [12.0], (1.25, 20.0)),
        ([0.5, 1.4], [45.2], (2.0, 45.0)),
        ([1.0, 0.0], [180.0], (1.05, 180.0)),
        ([50.0, math.inf, math.nan], [0.3, None], (10.0, 1.0)),
    ],
)
def test_axes_are_as_short_as_they_can_be(ratios: list[float], angles: list[float], axes: tuple[float, float]) -> None:
    found = [RowChange(ratio, 0.0) for ratio in ratios] + [RowChange(1.0, angle) for angle in angles]
    assert axes_of([row(*found, None)]) == Axes(*axes)


def test_lengths_stand_on_a_logarithmic_axis() -> None:
    axes = Axes(4.0, 90.0)
    assert [axes.length_share(ratio) for ratio in (4, 2, 1, 0.5, 0.25)] == pytest.approx([1, 0.5, 0, -0.5, -1])
    assert [axes.length_share(ratio) for ratio in (0.0, 100, math.inf, math.nan)] == [-1, 1, 1, 0]
    assert [axes.angle_share(angle) for angle in (0, 45, 180)] == [0, 0.5, 1]


@given(ratio=st.floats(0, 1e30), angle=st.floats(0, 180))
def test_numbers_are_short_and_near(ratio: float, angle: float) -> None:
    text = ratio_text(ratio)
    assert len(text) <= 7
    shown = 0.0 if text == "≈0" else float(text.removeprefix("×") or 1)
    assert shown == pytest.approx(ratio, rel=0.06, abs=0.005)
    assert (text == "") == (abs(ratio - 1) < 0.005)
    text = angle_text(angle)
    assert float(text.removesuffix("°") or 0) == pytest.approx(angle, abs=0.51 if angle >= 9.95 else 0.051)
    assert angle_text(None) == "none"


def bar_heights(image: Image.Image, color: style.Color) -> list[int]:
    """Heights of the bars of a colour, from left to right."""
    columns = [0, *is_color(image, color)[:, 230:].sum(0).tolist()]
    return [height for before, height in pairwise(columns) if height and not before]


def test_bars_are_as_long_as_their_numbers() -> None:
    image = draw_changes(
        [row(SAME, RowChange(2.0, 45.0), RowChange(math.sqrt(2), 22.5), RowChange(0.5, 0.0))], "abcd", [1, 1, 1, 1]
    )
    assert image.size[0] == 1100
    assert image.mode == "RGB"
    long, short = bar_heights(image, style.LIGHT.up)
    assert long == pytest.approx(changes.HALF_LENGTH, abs=1.5)
    assert short == pytest.approx(changes.HALF_LENGTH / 2, abs=1.5)
    assert bar_heights(image, style.LIGHT.down) == pytest.approx([changes.HALF_LENGTH], abs=1.5)
    assert bar_heights(image, style.LIGHT.accent) == pytest.approx(
        [changes.FULL_ANGLE, changes.FULL_ANGLE / 2], abs=1.5
    )


def test_what_does_not_change_has_no_bars() -> None:
    nothing = draw_changes([row(SAME, RowChange(1.001, 0.01))], "ab", [1, 1])
    assert bar_heights(nothing, style.LIGHT.up) == bar_heights(nothing, style.LIGHT.accent) == []
    assert nothing.height < draw_changes([row(SAME, RowChange(1.1, 0.0))], "ab", [1, 1]).height
    told = draw_changes([row(message="These rows cannot be laid together. " * 20)], "ab", [1, 1])
    assert told.height > nothing.height


def test_weights_have_the_colours_of_the_token_strip() -> None:
    image = draw_changes([row(RowChange(1.3, 3.0), SAME)], "ab", [1.4, 1.0])
    assert is_color(image, style.weight_color(1.4, style.LIGHT)).sum() > 100


def test_many_tokens_go_into_blocks_below_one_another() -> None:
    one = draw_changes([row(*[RowChange(1.1, 1.0)] * 18)], ["cat"] * 18, [1.0] * 18)
    two = draw_changes([row(*[RowChange(1.1, 1.0)] * 19)], ["cat"] * 19, [1.0] * 19)
    whole = draw_changes([row(*[RowChange(1.1, 1.0)] * 77)], ["photorealistic"] * 77, [1.0] * 77)
    assert one.width == two.width == whole.width == 1100
    assert one.height < two.height < whole.height
    assert changes._blocks(77) == [range(0, 16), range(16, 32), range(32, 48), range(48, 64), range(64, 77)]


def test_a_warning_is_drawn_in() -> None:
    rows = [row(SAME)]
    plain, warned = draw_changes(rows, "a", [1.0]), draw_changes(rows, "a", [1.0], warning="The numbers mean nothing.")
    assert warned.height > plain.height
    tint = style.mix(style.LIGHT.background, style.LIGHT.problem, 0.1)
    assert is_color(warned, tint).sum() > 10_000
    assert not is_color(plain, tint).any()
    assert draw_changes(rows, "a", [1.0], warning="word " * 100).height > warned.height


@given(
    found=st.lists(
        st.none() | st.builds(RowChange, st.floats(0) | st.just(math.nan), st.none() | st.floats(0, 180)), max_size=20
    ),
    label=st.text(max_size=30),
)
@settings(max_examples=20)
def test_anything_can_be_drawn(found: list[RowChange | None], label: str) -> None:
    image = draw_changes(
        [row(*found, name=label, message=label)], [label] * len(found), [1.5] * len(found), title=label
    )
    assert image.width == 1100


@pytest.mark.parametrize(
    ("rows", "labels", "weights", "theme"),
    [
        ([], "a", [1.0], "light"),
        ([row(SAME)], "ab", [1.0, 1.0], "light"),
        ([row(SAME)], "a", [], "light"),
        ([row(SAME)], "a", [1.0], "blue"),
    ],
)
def test_charts_that_do_not_fit_are_refused(rows, labels, weights, theme) -> None:
    with pytest.raises(ValueError, match=r"as many weights|theme"):
        draw_changes(rows, labels, weights, theme=theme)
