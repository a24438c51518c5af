"""Lines that place phrases: what they say, and what is said of those that are not understood."""

import math
from typing import Any

import pytest
from weighted_clip.weighting.placing.areas import read_area
from weighted_clip.weighting.placing.places import MAX_PLACES, PlacedPhrase, PlaceError, read_place, read_places


@pytest.mark.parametrize(
    ("line", "phrase", "area", "others"),
    [
        ("red cat: left half", "red cat", "left half", {}),
        ("  red cat :left half ~0.1 , 0-0.4 ", "red cat", "left half ~0.1", {"end": 0.4}),
        ("red cat: 0.1 0.5, 0 1", "red cat", "0.1 0.5, 0 1", {}),
        ("a: outside .3, 0.1 0.5, 0 1 ~0.2, 2 - 5 Steps, inside 2", "a", "0.1 0.5, 0 1 ~0.2", {
            **{"inside": 2.0, "outside": 0.3, "start": 2.0, "end": 5.0, "in_steps": True}
        }),
        ("cat: 0.25–1, Inside 0", "cat", "", {"start": 0.25, "inside": 0.0}),
        ("ratio 16:9, wide: top", "ratio 16:9, wide", "top", {}),
        ("inside out: center, inside 1e1", "inside out", "center", {"inside": 10.0}),
        ("a: 0-1 step", "a", "", {"in_steps": True}),
    ],
)  # fmt: skip
def test_a_line_says_where_when_and_how_much(line: str, phrase: str, area: str, others: dict[str, Any]) -> None:
    assert read_place(line) == PlacedPhrase(phrase, read_area(area), **others, line=line.strip())


def test_a_weight_of_1_everywhere_is_neutral() -> None:
    for line, is_neutral in (
        ("a: left, outside 1", True),
        ("a: 0-0.5", True),
        ("a: 0-0.5, outside 3", True),
        ("a: left", False),
        ("a: inside 2", False),
        ("a: left, inside 2, outside 1", False),
    ):
        assert read_place(line).is_neutral is is_neutral, line


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("red cat", "no colon"),
        (": left half", "no phrase"),
        ("red cat:", "nothing stands behind the colon"),
        ("red cat: upstairs", "“upstairs” is not understood"),
        ("red cat: left half,", "nothing stands between two commas"),
        ("red cat: left half, , 0-1", "nothing stands between two commas"),
        ("red cat: left half, 0.6-0.4", "start must be before end, got 0.6 and 0.4"),
        ("red cat: 0.4-0.4", "start must be before end"),
        ("red cat: 0-3", "for steps write “0-3 steps”"),
        ("red cat: 0.5-3 steps", "whole steps"),
        ("red cat: 0-3 steps, 0-0.4", "two times"),
        ("red cat: inside -1", "inside must be 0 or a number above, got -1"),
        ("red cat: inside nan", "inside must be 0 or a number above, got nan"),
        ("red cat: outside inf", "outside must be 0 or a number above, got inf"),
        ("red cat: outside", "outside must be 0 or a number above, got “”"),
        ("red cat: inside much", "got “much”"),
        ("red cat: inside 1, inside 2", "inside stands there twice"),
        (f"red cat: 0-{'9' * 400} steps", "got 0 and inf"),
        ("red cat: 0.4-", "“0.4-” is not understood"),
    ],
)
def test_what_is_not_understood_is_quoted_with_what_is_allowed(line: str, words: str) -> None:
    with pytest.raises(PlaceError) as raised:
        read_places(f"blue dog: left\n{line}")
    message = str(raised.value)
    assert f"“{line[:80]}" in message and words in message and "such as inside 2, outside 0.3" in message


def test_long_texts_are_refused_in_short() -> None:
    for text in ("a: left\n" * 10_000, "a" * 10**6, f"a: {'left ' * 10**5}", f"a: inside {'9' * 10**6}x"):
        with pytest.raises(PlaceError) as raised:
            read_places(text)
        assert len(str(raised.value)) < 1000
    with pytest.raises(PlaceError, match=r"10,000 lines, and at most 100 are allowed: “a: left” is"):
        read_places("a: left\n" * 10_000)


def test_empty_lines_are_left_out_and_a_phrase_may_come_twice() -> None:
    assert read_places("") == read_places(" \n\n") == ()
    places = read_places("a: left\n\n a: top, outside 0.5\r\n")
    assert [place.line for place in places] == ["a: left", "a: top, outside 0.5"]
    assert len(read_places("a: left\n" * MAX_PLACES)) == MAX_PLACES
    assert all(math.isfinite(place.inside) for place in places)
