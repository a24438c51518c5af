"""Options of extensions in a LoRA's tag, against these extensions' own answers in tests/cases/."""

from __future__ import annotations

import math
from typing import Any

import pytest
from weighted_clip.weighting.text.lora_blocks import LISTED, PRESETS, BlockStrengths, read_blocks
from weighted_clip.weighting.text.tags import LoraTag, read_loras, take_tags
from weighted_clip.weighting.timed.loras import lora_times


def lora(tag: str) -> LoraTag:
    return read_loras(take_tags(tag)[1])[0][0]


def strengths(tag: str, weights: list[str]) -> list[float]:
    found = lora(tag)
    factors = [1.0 if found.blocks is None else found.blocks.of(weight) for weight in weights]
    is_model = [weight.startswith("diffusion_model") for weight in weights]
    return [
        factor * (found.model_strength if of_model else found.clip_strength)
        for factor, of_model in zip(factors, is_model, strict=True)
    ]


@pytest.mark.cases("lora_blocks")
def test_strengths_are_those_of_the_extension(case: dict[str, Any]) -> None:
    assert len(case["tags"]) > 15 and len({str(row) for row in case["expected"]}) > 12
    for tag, expected in zip(case["tags"], case["expected"], strict=True):
        assert strengths(tag, case["weights"]) == pytest.approx(expected, rel=0, abs=1e-12), tag


def test_each_block_of_a_list_has_its_number() -> None:
    for count, blocks in LISTED.items():
        read = read_blocks(",".join(str(number / 8) for number in range(count)))
        assert isinstance(read, BlockStrengths)
        assert [read.by_block[block] for block in blocks] == [number / 8 for number in range(count)]
    assert {len(row) for row in PRESETS.values()} == {17, 61}


@pytest.mark.parametrize(
    ("written", "part"),
    [
        ("1,0,1", "“1,0,1” has 3 numbers"),
        ("1," * 99, "has 100 numbers"),
        ("inall", "did you mean INALL?"),
        ("IN02", "“IN02” is the name of one block"),
        ("D07", "“D07” is the name of one block"),
        ("IN99", "“IN99” is no preset"),
        ("", "“” is no preset"),
        ("1,nan" + ",1" * 15, "“nan” among the blocks is no number"),
        ("1,1e999" + ",1" * 15, "“1e999” among the blocks is no number"),
        ("1,R" + ",1" * 15, "“R” among the blocks is no number"),
        ("," * 16, "“” among the blocks is no number"),
        ("x" * 90_000, "is no preset"),
    ],
)
def test_what_cannot_be_read_is_said_and_counts_1(written: str, part: str) -> None:
    (found,), issues = read_loras(take_tags(f"<lora:ink:0.5:lbw={written}>")[1])
    assert found.blocks is None and (found.clip_strength, found.model_strength) == (0.5, 0.5)
    (issue,) = issues
    assert issue.code == "unreadable-blocks" and part in issue.message and "LoRA “ink”" in issue.message
    assert len(issue.message) < 600


def test_long_lists_are_read_in_time_that_grows_with_them() -> None:
    text = "<lora:a:1:lbw=" + "1," * 500_000 + "1>"
    (_,), issues = read_loras(take_tags(text)[1])
    assert [issue.code for issue in issues] == ["unreadable-blocks"]


@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        ("0.5:hr=1", (0.5, 0.5), (1, 1)),
        ("0.5:0.7", (0.5, 0.7), (0.5, 0.7)),
        ("0.5:0.7:hrte=0.1", (0.5, 0.7), (0.1, 0.7)),
        ("0.5:0.7:hrunet=0.1", (0.5, 0.7), (0.5, 0.1)),
        ("0.5:hr=0.2:hrte=0.1", (0.5, 0.5), (0.1, 0.2)),
        ("te=0.5:unet=0.3:hr=0.2:hrunet=0.9", (0.5, 0.3), (0.2, 0.9)),
        ("1:hr=0", (1, 1), (0, 0)),
    ],
)
def test_a_second_pass_has_strengths_of_its_own_as_in_loractl(
    options: str, first: tuple[float, float], second: tuple[float, float]
) -> None:
    for second_pass, expected in ((False, first), (True, second)):
        (found,), issues = read_loras(take_tags(f"<lora:x:{options}>")[1], second_pass=second_pass)
        assert (found.clip_strength, found.model_strength) == expected and not issues
    (found,), _ = read_loras(take_tags("<lora:x:0@0,1@1:hr=1@0,0@1>")[1], second_pass=True)
    assert found.model_points == found.clip_points == ((1.0, 0.0), (0.0, 1.0))


def test_a_strength_of_the_second_pass_that_is_none_is_said() -> None:
    (found,), issues = read_loras(take_tags("<lora:x:0.5:hr=inf>")[1], second_pass=True)
    assert [issue.code for issue in issues] == ["unreadable-strength", "unreadable-strength"][: len(issues)]
    assert issues and found.model_strength == 0.5 and math.isfinite(found.clip_strength)


@pytest.mark.cases("lora_times")
def test_strengths_in_each_call_are_those_of_the_extensions(case: dict[str, Any]) -> None:
    (found,) = lora_times(case["tag"], case["steps"], "as the WebUI counts", second_pass=case["second_pass"])
    block = 1.0 if found.tag.blocks is None else found.tag.blocks.by_block["IN01"]
    assert found.clip == pytest.approx(case["expected"]["clip"], rel=0, abs=1e-9)
    assert [block * strength for strength in found.model] == pytest.approx(case["expected"]["model"], rel=0, abs=1e-9)
