"""The lab's comparison as markup: bars as long as their numbers, cut ones marked, and the prompt it belongs to."""

from __future__ import annotations

import math
import re
from html import unescape

import pytest
from weighted_clip.encoder.config import TextConfig
from weighted_clip.web.lab.comparing import CUT, Comparison, compare, comparison_chart, told_of
from weighted_clip.web.lab.native import Settings, random_model
from weighted_clip.web.lab.study import read
from weighted_clip.web.pictures.changes import RowChange
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading import ReadPrompt

CONFIG = TextConfig(hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=128)
A1111 = EncodeOptions(syntax="a1111")
SAME = RowChange(1.0, 0.0)


def prompt(text: str, options: EncodeOptions = A1111) -> ReadPrompt:
    return read(random_model(Settings(), config=CONFIG), text, options)


def heights(markup: str, kind: str) -> list[int]:
    """Heights of the bars of a kind, in percent, by token."""
    found = re.findall(rf"<span class='weighted-clip-{kind}'>(.*?)</span>", markup)
    return [int(bar[1]) if (bar := re.search("height: ([0-9]+)%", one)) else 0 for one in found]


def of(*changes: RowChange | None) -> str:
    one = Comparison("comfy", (changes,), "", (), 3)
    return comparison_chart([one], prompt("a cat dog"[: 1 + 4 * (len(changes) - 3)]))


def test_bars_are_as_long_as_their_numbers() -> None:
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
    told = unescape(told_of("a <b>cat</b>", EncodeOptions(syntax="compel", scheme="perp", padding="mask", bind="a\nb")))
    assert "a <b>cat</b>" in told
    assert "<b>" not in told_of("a <b>cat</b>", A1111)
    for part in ("syntax compel", "padding mask", "chunking as syntax", "bind a / b"):
        assert part in told
    assert "perp" not in told
    assert "pooled" not in told
    assert "… (9,000 characters)" in told_of("a" * 9000, A1111)


def test_what_unweighted_leaves_out_is_no_problem_and_that_of_others_is() -> None:
    model = random_model(Settings(), config=CONFIG)
    found = list(compare(model, "(a:1.5) cat", A1111, ["unweighted", "comfy"]))
    assert [one.issues for one in found] == [(), ()]
    markup = comparison_chart(found, prompt("(a:1.5) cat"))
    assert "problem" not in markup
    assert "No row changes." in markup
    assert not re.search(r"[0-9] m?s\b", markup)
