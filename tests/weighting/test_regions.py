"""Places that a prompt gives to its parts, against prompt-control's, and what is refused."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from weighted_clip.weighting.placing.fields import means
from weighted_clip.weighting.timed.regions import UNREAD, RegionError, RegionPlace, cut_at_places, shares_of
from weighted_clip.weighting.timed.schedule import TimedPrompt, read_timed

SOUP = st.lists(
    st.sampled_from(["MASK(", "AREA(", "COUPLE", "AND", "0 0.5", ",", ")", "[", "]", '"', " cat ", ":0.5", "FILL()"])
)


def read(text: str) -> TimedPrompt:
    return read_timed(text, 1, regions="prompt-control")


def coupled_of(branches: Any) -> dict[str, Any]:
    """Prompts joined by COUPLE as in the case file."""
    shares = shares_of([branch.place or RegionPlace("") for branch in branches])
    texts = [" ".join(branch.texts[0].text.split()) for branch in branches]
    return {"texts": texts, "shares": [cells_of(share) for share in shares]}


def cells_of(mask: torch.Tensor) -> list[list[float]]:
    return [[round(cell, 6) for cell in row] for row in means(mask, (8, 8)).tolist()]


def entry_of(branch: Any) -> dict[str, Any]:
    """A part of a prompt as in the case file."""
    place, mask = branch.place, None
    tensor = place and place.mask()
    if tensor is not None:
        mask = {"size": list(tensor.shape), "strength": place.mask_weight, "cells": cells_of(tensor[0])}
    area = None
    if place is not None and place.has_area:
        area = ["percentage", *place.percentages] if place.percentages else list(place.pixels)
    (text,) = branch.texts
    return {"text": " ".join(text.text.split()), "strength": branch.weight, "area": area, "mask": mask}


@pytest.mark.cases("prompt_control_places")
def test_places_equal_the_reference(case: dict[str, Any]) -> None:
    branches = read(case["prompt"]).branches
    if coupled := case["expected"][0].get("coupled"):
        assert coupled_of(branches) == coupled
        return
    found = [entry_of(branch) for branch in branches]
    assert [entry for entry in found if entry["strength"] != 0] == json.loads(json.dumps(case["expected"]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a MASK(0.5", "“MASK(0.5” at 2: its bracket is never closed"),
        ("MASK(1 0, 0 1)", "this mask is empty"),
        ("MASK(0 0.0001)", "smaller than a pixel"),
        ("MASK(0 0.5, 0 512)", "all be parts of the picture"),
        ("MASK(-0.5 0.5)", "all be parts of the picture"),
        ("MASK(0 600, 0 512)", "pixel 600 is outside of the mask, which is 512 wide"),
        ("MASK(0 1e309)", "“1e309” is no number, or too large"),
        ("MASK(0 nan)", "“nan” is no number"),
        ("MASK(0 1, 0 1, inf)", "“inf” is no number"),
        ("MASK(left half)", "“left” is no number"),
        ("MASK(0 0.5 1)", "are more than two numbers"),
        ("MASK(0 1, 0 1, -1)", "a weight is 0 to 1e+30"),
        ("MASK(0 1, 0 1, 1e300)", "a weight is 0 to 1e+30"),
        ("MASK(0 1, 0 1, 1, add)", "“add” is not read"),
        ("MASK(0 1, 0 1, 1, multiply, 7)", "at most 4 arguments"),
        ("AREA(0 0)", "this area is empty"),
        ("AREA(1 1)", "outside of the picture"),
        ("AREA(0 4, 0 512)", "smaller than the 8 pixels"),
        ("AREA(0 1) AREA(0 0.5)", "one AREA at most"),
        ("MASKW(0.5)", "this part has no MASK"),
        ("MASK_SIZE(0, 512)", "whole numbers from 1 to 8192"),
        ("MASK_SIZE(8, 8) a MASK_SIZE(8, 8)", "one MASK_SIZE at most"),
        ("a FILL() AND b", "belongs to a prompt before COUPLE"),
        ("a [MASK(0 0.5):MASK(0.5 1):0.5]", "within [ ], are not read"),
        ("a [b|c COUPLE d]", "within [ ], are not read"),
        ("MASK_SIZE(8192, 8192)" + " AND MASK(0 0.5)" * 5, "335,544,320 pixels together"),
        (" AND ".join(["a MASK()"] * 10_000), "10000 parts have places; 100 are allowed"),
    ],
)
def test_what_is_not_understood_is_quoted(text: str, message: str) -> None:
    with pytest.raises(RegionError) as caught:
        read(text)
    assert message in str(caught.value)


def test_a_hundred_parts_may_have_places() -> None:
    assert len(read(" AND ".join(["a MASK()"] * 100)).branches) == 100
    with pytest.raises(RegionError, match="101 parts have places; 100 are allowed"):
        read(" AND ".join(["a MASK()"] * 101))


@pytest.mark.parametrize("name", UNREAD)
def test_no_function_is_dropped_in_silence(name: str) -> None:
    call = name if name in ("CAT", "AVG") else f"{name}(x)"
    with pytest.raises(RegionError) as caught:
        read(f"a cat {call} b")
    assert f"“{call}” at 6: this function of prompt-control is not read here" in str(caught.value)
    assert read(f'a "cat {call} b"').branches[0].texts[0].text == f'a "cat {call} b"'
    assert read_timed(f"a cat {call} b", 1).branches[0].place is None


def test_coupled_parts_know_it() -> None:
    branches = read("base FILL() COUPLE(0 0.5, 0 1, 0.8) cat COUPLE MASK(0.5 1) dog AND bird").branches
    places = [branch.place for branch in branches]
    assert [branch.texts[0].text.strip() for branch in branches] == ["base", "cat", "dog", "bird"]
    assert [bool(place and place.is_coupled) for place in places] == [False, True, True, False]
    assert [bool(place and place.fills) for place in places] == [True, False, False, False]
    cat, dog = places[1].rectangles + places[2].rectangles
    assert (cat, dog) == ((0, 256, 0, 512, 0.8), (256, 512, 0, 512, 1.0))


def test_a_picture_shows_the_place() -> None:
    left, top = ([[1.0] * 8 + [0.0] * 8] * 16, [[1.0] * 16] * 4 + [[0.0] * 16] * 12)
    pictures = [
        branch.place.picture() for branch in read("MASK(0 0.5) AND AREA(0 1, 0 0.25) AND AREA(0 64, 0 64)").branches
    ]
    assert pictures == [left, top, None]
    corner = read("AREA(0.5 1) MASK(0 1, 0 0.5, 0.5)").branches[0].place.picture()
    assert corner == [[0.0] * 8 + [0.5] * 8] * 8 + [[0.0] * 16] * 8


def test_an_area_whose_second_number_looks_like_an_end_is_explained() -> None:
    text = "a <lora:x:1> AREA(0.5 1, 0.25 0.5) AND AREA(64 256)"
    with pytest.raises(RegionError, match="all be parts"):
        read(text)
    (issue,) = [one for one in read(text[:34]).issues if one.code == "area-size"]
    assert (issue.span, text[slice(*issue.span)]) == ((13, 34), "AREA(0.5 1, 0.25 0.5)")
    assert "from y 0.25 to 0.75" in issue.message
    assert not read("AREA(0.5 1, 0 0.5) AND b").issues


@given(SOUP)
def test_any_prompt_is_read_or_refused_and_no_text_is_lost(parts: list[str]) -> None:
    text = " ".join(parts)
    try:
        cut = cut_at_places(text)
    except RegionError as error:
        assert "“" in str(error)
        return
    assert all(text[slice(*piece.span)] == piece.text for piece in cut.fragment.pieces)
    assert sum(part == " cat " for part in parts) == cut.fragment.text.count("cat")
    assert len(cut.spans) == len(cut.places)


def test_positions_are_those_of_the_whole_prompt() -> None:
    text = "a <lora:x:1> cat MASK(0 0.5) sits AND dog"
    prompt = read(text)
    assert all(text[slice(*piece.span)] == piece.text for piece in prompt.branches[0].texts[0].fragment.pieces)
    assert prompt.branches[0].texts[0].text == "a  cat  sits"
    assert torch.equal(prompt.branches[0].place.mask()[0, 0, 255:257], torch.tensor([1.0, 0.0]))
