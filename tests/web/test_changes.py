"""Changes of rows: of a CLIP as the node CLIP Difference lists them, and of schemes as chart and as markup."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import unescape
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.encoder.models.text_model import TextEncoder
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.web import difference as subject
from weighted_clip.web.difference import TowerDifference, difference, difference_report, draw_differences
from weighted_clip.web.lab.native import LoadSettings, random_model
from weighted_clip.web.lab.tabs.comparison import CUT, Comparison, compare, comparison_chart, comparison_title
from weighted_clip.web.lab.tabs.study import read
from weighted_clip.web.pictures import changes, style
from weighted_clip.web.pictures.changes import (
    CUT_LEGEND,
    Axes,
    RowChange,
    SchemeRow,
    angle_text,
    axes_of,
    draw_changes,
    ratio_text,
)
from weighted_clip.weighting.encoders import Encoders
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.pipeline import EncodedPrompt
from weighted_clip.weighting.reading.prompt_reader import ReadPrompt
from weighted_clip.weighting.towers import Reader

CONFIG = TextConfig(hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=128)
ENCODERS = Encoders({"clip_l": Reader(default_tokenizer())}, {"clip_l": TextEncoder(seeded_text_model(CONFIG))})


def encoded(text: str, syntax: str = "comfy") -> EncodedPrompt:
    """A prompt as the original encodes it."""
    return next(iter(ENCODERS.prepare([text], syntax=syntax, scheme="unweighted").run()[0].prompts.values()))


def changed(text: str, rows: torch.Tensor | float, pooled: float = 1.0, **options: str) -> TowerDifference:
    """The difference of an encoding from one with its rows and its pooled vector multiplied."""
    before = encoded(text, **options)
    return difference("clip_l", before, before._replace(hidden=before.hidden * rows, pooled=before.pooled * pooled))


def test_rows_are_listed_by_their_relative_change() -> None:
    factors = torch.ones(1, 77, 1)
    factors[0, [2, 3, 4]] = torch.tensor([[1.25], [0.5], [-1.0]])
    factors[0, 10] = 1.75
    lines = difference_report([changed("a red cat", factors, 0.75)]).splitlines()
    assert lines[0] == "clip_l: |changed - original| / |original| of each row, the largest first"
    assert " ".join(lines[1].split()) == "200 % 'EOS' chunk 1, position 4 angle 180°"
    assert " ".join(lines[2].split()) == "50 % 'cat' chunk 1, position 3 length ×0.50"
    assert " ".join(lines[3].split()) == "25 % 'red' chunk 1, position 2 length ×1.25"
    assert [line.split()[:3] for line in lines[4:6]] == [["0", "%", "'BOS'"], ["0", "%", "'a'"]]
    assert [line.strip() for line in lines[6:]] == [
        "55 %  mean of these 5 rows",
        f"{75 / 72:.4g} %  mean of 72 rows of padding, at most 75 %",
        "25 %  pooled vector",
    ]


def test_every_row_of_a_long_prompt_is_listed_and_the_chart_says_what_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = " ".join(["cat"] * 75 * 6)
    found = changed(text, torch.linspace(1, 2, 77 * 6).view(1, -1, 1))
    rows = re.findall(r"chunk (\d), position (\d+)", difference_report([found]))
    assert rows == [(str(chunk), str(place)) for chunk in range(6, 0, -1) for place in range(76, -1, -1)]
    assert "padding" not in difference_report([found])
    drawn: list[tuple[int, str]] = []

    def noted(rows, labels, *, title, **options) -> Image.Image:
        drawn.append((len(labels), title))
        return Image.new("RGB", (1, 1))

    monkeypatch.setattr(subject, "draw_changes", noted)
    draw_differences([found, changed("a", 1.0)])
    assert drawn == [(77 * 4, "chunks 1 to 4 of 6; the report has all"), (3, "")]


def test_blended_prompts_are_told() -> None:
    found = changed('("a cat", "a red dog").blend(1, 1)', 1.5, syntax="compel")
    assert "Prompts are blended here" in difference_report([found])
    assert [len(chunk) for chunk in found.relative] == [77, 77]


@pytest.mark.parametrize("width", [700, 1100])
def test_bars_that_are_cut_have_a_gap_and_their_value(
    width: int, written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gap is where the picture differs from one in which no bar counts as cut."""
    factors = torch.ones(1, 77, 1)
    factors[0, 1:4] = torch.tensor([[25.0], [0.02], [9.0]])
    found = changed("a red cat", factors)
    cut = np.asarray(draw_differences([found], width=width)).astype(int)
    assert {"×25", "×0.02", "×9.00"} <= set(written)
    assert CUT_LEGEND in " ".join(written)
    with monkeypatch.context() as patch:
        patch.setattr(Axes, "cuts", lambda axes, ratio: False)
        plain = np.asarray(draw_differences([found], width=width)).astype(int)
    differing = np.flatnonzero(np.abs(cut[: len(plain) - 60] - plain[:-60]).sum(axis=2).any(axis=0))
    # two bars, not the third that the axis holds
    columns = np.split(differing, np.flatnonzero(np.diff(differing) > 5) + 1)
    assert [len(column) > 8 for column in columns] == [True, True]
    written.clear()
    draw_differences([changed("a red cat", 9.0)], width=width)
    assert CUT_LEGEND not in " ".join(written)


def test_a_broken_encoder_is_told_first() -> None:
    factors = torch.ones(1, 77, 1)
    factors[0, 2] = math.nan
    found = changed("a red cat", factors)
    assert difference_report([found]).splitlines()[1].split()[:3] == ["no", "number", "'red'"]
    draw_differences([found])


def test_encoders_of_the_same_tokens_share_a_chart_and_others_do_not() -> None:
    one, same, other = changed("a cat", 1.5), changed("a cat", 1.2), changed("a red cat", 1.5)
    alone, together = draw_differences([one]), draw_differences([one, same])
    apart = draw_differences([one, other])
    assert alone.height < together.height < apart.height
    pieces = np.asarray(alone), np.asarray(draw_differences([other]))
    assert np.array_equal(np.asarray(apart), np.concatenate(pieces))


@pytest.mark.parametrize(("factor", "message"), [(1.0, "No row changes."), (1.0001, "All rows change by too little")])
def test_nothing_to_draw_is_told_in_words(factor: float, message: str, written: list[str]) -> None:
    image = draw_differences([changed("a cat", factor)])
    assert isinstance(image, Image.Image)
    assert any(text.startswith(message) for text in written)
    assert f"mean {'0' if factor == 1 else '0.01'} %" in written


A1111 = EncodeOptions(syntax="a1111")
SAME = RowChange(1.0, 0.0)


def prompt(text: str, options: EncodeOptions = A1111) -> ReadPrompt:
    return read(random_model(LoadSettings(), config=CONFIG), text, options)


def heights(markup: str, kind: str) -> list[int]:
    """Heights of the bars of a kind, in percent, by token."""
    found = re.findall(rf"<span class='weighted-clip-{kind}'>(.*?)</span>", markup)
    return [int(bar[1]) if (bar := re.search("height: ([0-9]+)%", one)) else 0 for one in found]


def of(*changes: RowChange | None) -> str:
    one = Comparison("comfy", (changes,), "", (), 3)
    return comparison_chart([one], prompt("a cat dog"[: 1 + 4 * (len(changes) - 3)]))


def test_bars_of_the_page_are_as_long_as_their_numbers() -> None:
    markup = of(SAME, RowChange(2.0, 45.0), RowChange(math.sqrt(2), 22.5), RowChange(0.5, 0.0), SAME)
    assert heights(markup, "length") == [0, 50, 25, 50, 0]
    assert re.findall("weighted-clip-(up|down)", markup) == ["up", "up", "down"]
    assert heights(markup, "angle") == [0, 100, 50, 0, 0]
    assert [unescape(one) for one in re.findall("length </span>(.*?)</em>", markup)] == [
        "·",
        "×2.00",
        "×1.41",
        "×0.50",
        "·",
    ]
    assert "3 encodings" in markup
    assert CUT not in markup


@pytest.mark.parametrize("ratio", [1e29, 10.5, 0.01, 0.0, math.inf, math.nan])
def test_bars_that_are_cut_are_marked(ratio: float) -> None:
    markup = of(SAME, RowChange(9.9, 1.0), RowChange(ratio, 1.0), SAME)
    cells = re.findall("<li>(.*?)</li>", markup)
    assert [CUT in cell for cell in cells] == [False, False, True, False]
    assert f"{CUT}: the bar is cut" in markup


def test_what_is_compared_is_said() -> None:
    told = unescape(
        comparison_title("a <b>cat</b>", EncodeOptions(syntax="compel", scheme="perp", padding="mask", bind="a\nb"))
    )
    assert "a <b>cat</b>" in told
    assert "<b>" not in comparison_title("a <b>cat</b>", A1111)
    for part in ("Syntax compel", "Padding mask", "Chunking as syntax", "Keep apart a / b"):
        assert part in told
    assert "perp" not in told
    assert "pooled" not in told
    assert "… (9,000 characters)" in comparison_title("a" * 9000, A1111)


def test_what_unweighted_leaves_out_is_no_problem_and_that_of_others_is() -> None:
    model = random_model(LoadSettings(), config=CONFIG)
    found = list(compare(model, "(a:1.5) cat", A1111, ["unweighted", "comfy"]))
    assert [one.issues for one in found] == [(), ()]
    markup = comparison_chart(found, prompt("(a:1.5) cat"))
    assert "problem" not in markup
    assert "No row changes." in markup
    assert not re.search(r"[0-9] m?s\b", markup)


def row(*found: RowChange | None, name: str = "comfy", message: str = "") -> SchemeRow:
    return SchemeRow(name, found, (), message)


def drawn(rows: Sequence[SchemeRow], labels: Sequence[str], title: str = "") -> Image.Image:
    """Chart with any heading and legend."""
    return draw_changes(rows, labels, heading="Changes", legend="No bar: no change.", title=title)


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
    assert len(text) <= 8
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
    image = drawn([row(SAME, RowChange(2.0, 45.0), RowChange(math.sqrt(2), 22.5), RowChange(0.5, 0.0))], "abcd")
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
    nothing = drawn([row(SAME, RowChange(1.001, 0.01))], "ab")
    assert bar_heights(nothing, style.LIGHT.up) == bar_heights(nothing, style.LIGHT.accent) == []
    assert nothing.height < drawn([row(SAME, RowChange(1.1, 0.0))], "ab").height
    told = drawn([row(message="These rows cannot be laid together. " * 20)], "ab")
    assert told.height > nothing.height


def test_many_tokens_go_into_blocks_below_one_another() -> None:
    one = drawn([row(*[RowChange(1.1, 1.0)] * 18)], ["cat"] * 18)
    two = drawn([row(*[RowChange(1.1, 1.0)] * 19)], ["cat"] * 19)
    whole = drawn([row(*[RowChange(1.1, 1.0)] * 77)], ["photorealistic"] * 77)
    assert one.width == two.width == whole.width == 1100
    assert one.height < two.height < whole.height
    assert changes._blocks(77) == [range(0, 16), range(16, 32), range(32, 48), range(48, 64), range(64, 77)]


@given(
    found=st.lists(
        st.none() | st.builds(RowChange, st.floats(0) | st.just(math.nan), st.none() | st.floats(0, 180)), max_size=20
    ),
    label=st.text(max_size=30),
)
@settings(max_examples=20)
def test_anything_can_be_drawn(found: list[RowChange | None], label: str) -> None:
    image = drawn([row(*found, name=label, message=label)], [label] * len(found), title=label)
    assert image.width == 1100


@pytest.mark.parametrize(("rows", "labels"), [([], "a"), ([row(SAME)], "ab")])
def test_charts_that_do_not_fit_are_refused(rows, labels) -> None:
    with pytest.raises(ValueError, match="as many changes"):
        drawn(rows, labels)
