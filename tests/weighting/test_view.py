"""A part of a prompt, read on its own, in places of the whole prompt."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weighted_clip.weighting.prompt import Break
from weighted_clip.weighting.reading import ReadPrompt, placed
from weighted_clip.weighting.timed.schedule import read_timed
from weighted_clip.weighting.view import least_size, view

from .tiny import read


def placed_reads(source: str, steps: int = 4) -> list[ReadPrompt]:
    """Each text of a timed prompt, in places of the whole."""
    prompt = read_timed(source, steps)
    fragments = [text.fragment for branch in prompt.branches for text in branch.texts]
    return [placed(read(fragment.text, syntax="a1111"), source, fragment) for fragment in fragments]


def views(source: str, steps: int = 4) -> list[dict]:
    """Their views."""
    return [view(one) for one in placed_reads(source, steps)]


def chips(one: dict) -> list[dict]:
    return [chip for chunk in one["chunks"] for chip in chunk["chips"]]


def tokens(one: dict) -> list[tuple[str, float]]:
    return [(chip["text"], chip["weight"]) for chip in chips(one)]


@given(st.text(alphabet="a1 (:.5),<lora>[]!é森😀\n", max_size=200), st.sampled_from(["comfy", "a1111", "compel"]))
def test_a_view_is_no_smaller_than_its_least_size(text: str, syntax: str) -> None:
    found = read(text, syntax=syntax)
    shown = view(found)
    size = len(json.dumps(shown, separators=(",", ":")))
    num_chips = sum(bool(chip["ids"]) for chip in chips(shown))
    assert 90 * num_chips <= least_size(found) <= size


def test_tokens_stand_where_they_were_typed() -> None:
    assert [tokens(one) for one in views("a [(red:1.2):blue:2] cat")] == [
        [("a", 1.0), ("red", 1.2), ("cat", 1.0)],
        [("a", 1.0), ("blue", 1.0), ("cat", 1.0)],
    ]


def test_a_token_over_a_gap_takes_it_in() -> None:
    first, second, *_ = views("[fe|]male")
    assert tokens(first) == [("fe|]male", 1.0)]
    assert tokens(second) == [("male", 1.0)]


def test_breaks_marks_and_issues_move_too() -> None:
    source = "x AND 猫😀 [a:b:2] BREAK (c"
    prompt = placed_reads(source)[2].prompt
    breaks = [part.span for part in prompt.parts if isinstance(part, Break)]
    assert [source[slice(*span)] for span in breaks] == ["BREAK"]
    assert "(" in [source[slice(*span)] for span in prompt.marks]
    one = views(source)[2]
    utf16 = source.encode("utf-16-le")

    def text(start: int, end: int) -> str:
        return utf16[2 * start : 2 * end].decode("utf-16-le")

    assert [chunk["has_break"] for chunk in one["chunks"]] == [True, False]
    assert [text(issue["start"], issue["end"]) for issue in one["issues"]] == ["("]
    assert [chip["text"] for chip in one["chunks"][1]["chips"]] == ["c"]


@pytest.mark.parametrize("source", ["a (cat:1.2) BREAK b", "", "[x"])
def test_a_part_that_is_the_whole_is_left_alone(source: str) -> None:
    found = read(source, syntax="a1111")
    (text,) = read_timed(source, 3).branches[0].texts
    assert placed(found, source, text.fragment) is found


@given(st.text(alphabet="ab é😀猫:|[]()\\\n.01", max_size=30))
def test_places_are_in_the_prompt_for_any_text(source: str) -> None:
    for found in placed_reads(source):
        spans = [*found.prompt.marks, *(part.span for part in found.prompt.parts)]
        assert all(0 <= start <= stop <= len(source) for start, stop in spans)
        one = view(found)
        end = len(source.encode("utf-16-le")) // 2
        places = [(chip["start"], chip["end"]) for chip in chips(one)]
        places += [(issue["start"], issue["end"]) for issue in one["issues"]]
        assert all(0 <= start <= stop <= end for start, stop in places)
