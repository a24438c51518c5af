"""The chart and the report comparing two text encoders: their numbers, and the text about them."""

import math
import re

import numpy as np
import pytest
import torch
from PIL import Image
from weighted_clip.encoder.config import TextConfig
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.text_model import TextEncoder
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.web import difference as subject
from weighted_clip.web.difference import TowerDifference, difference, difference_report, draw_differences
from weighted_clip.web.pictures.canvas import Canvas
from weighted_clip.web.pictures.changes import CUT_LEGEND, Axes
from weighted_clip.weighting.encoders import Encoders
from weighted_clip.weighting.pipeline import EncodedPrompt
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

    def noted(rows, labels, weights, *, title, **options) -> Image.Image:
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
def test_bars_that_are_cut_have_a_gap_and_their_value(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gap is where the picture differs from one in which no bar counts as cut."""
    written: list[str] = []
    text = Canvas.text
    lines = Canvas.lines

    def noted(self, x, y, shown, *args, **options) -> float:
        written.append(shown)
        return text(self, x, y, shown, *args, **options)

    def noted_lines(self, x, y, texts, *args, **options) -> None:
        written.extend(texts)
        lines(self, x, y, texts, *args, **options)

    monkeypatch.setattr(Canvas, "text", noted)
    monkeypatch.setattr(Canvas, "lines", noted_lines)
    factors = torch.ones(1, 77, 1)
    factors[0, 1:4] = torch.tensor([[25.0], [0.02], [9.0]])
    found = changed("a red cat", factors)
    cut = np.asarray(draw_differences([found], width=width)).astype(int)
    assert {"×25", "×0.02", "×9.00"} <= set(written)
    assert CUT_LEGEND in " ".join(written)

    monkeypatch.setattr(Axes, "cuts", lambda axes, ratio: False)
    plain = np.asarray(draw_differences([found], width=width)).astype(int)
    differing = np.flatnonzero(np.abs(cut[: len(plain) - 60] - plain[:-60]).sum(axis=2).any(axis=0))
    # two bars, not the third that the axis holds
    columns = np.split(differing, np.flatnonzero(np.diff(differing) > 5) + 1)
    assert [len(column) > 8 for column in columns] == [True, True]
    written.clear()
    monkeypatch.undo()
    monkeypatch.setattr(Canvas, "lines", noted_lines)
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
def test_nothing_to_draw_is_told_in_words(factor: float, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from weighted_clip.web.pictures.canvas import Canvas

    written: list[str] = []
    lines = Canvas.lines

    def noted(self, x, y, texts, *args, **options) -> None:
        written.extend(texts)
        lines(self, x, y, texts, *args, **options)

    monkeypatch.setattr(Canvas, "lines", noted)
    image = draw_differences([changed("a cat", factor)])
    assert isinstance(image, Image.Image)
    assert any(text.startswith(message) for text in written)
    assert f"mean {'0' if factor == 1 else '0.01'} %" in written
