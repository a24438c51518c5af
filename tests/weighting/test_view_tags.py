"""Tags of LoRAs in the view of a prompt: chips of their own, without tokens, that have their problems."""

from __future__ import annotations

from typing import Any

import pytest
from weighted_clip.web.pictures.tokens import Chip, strip_items
from weighted_clip.weighting.view import view

from .tiny import read


def chips(text: str, syntax: str = "a1111") -> list[dict[str, Any]]:
    shown = view(read(text, syntax=syntax))
    return [chip for chunk in shown["chunks"] for chip in chunk["chips"]]


@pytest.mark.parametrize(
    ("text", "syntax", "expected"),
    [
        ("a <lora:ink:0.8> cat", "a1111", ["a", "<lora:ink:0.8>", "cat"]),
        ("<lora:ink:0.8> a cat", "a1111", ["<lora:ink:0.8>", "a", "cat"]),
        ("a cat <lora:ink:0.8>", "a1111", ["a", "cat", "<lora:ink:0.8>"]),
        ("<lora:ink:0.8>", "a1111", ["<lora:ink:0.8>"]),
        ("a <hypernet:x> cat", "a1111", ["a", "<hypernet:x>", "cat"]),
        ("a withLora(ink, 0.5) cat", "compel", ["a", "withLora(ink, 0.5)", "cat"]),
    ],
)
def test_a_tag_is_a_hidden_chip_with_its_problem(text: str, syntax: str, expected: list[str]) -> None:
    shown = chips(text, syntax)
    assert [chip["text"] for chip in shown] == expected
    for chip in shown:
        is_tag = len(chip["text"]) > 5
        assert (chip["ids"] == [], chip["hidden"], bool(chip["problems"])) == (is_tag, is_tag, is_tag)
        assert text[chip["start"] : chip["end"]] == chip["text"]


def test_a_tag_stands_in_the_chunk_that_it_is_typed_in() -> None:
    text = "a 🦊 BREAK b <lora:ink:1> c BREAK <lora:oil:1> d"
    shown = view(read(text, syntax="a1111"))
    words = [[chip["text"] for chip in chunk["chips"]] for chunk in shown["chunks"]]
    assert words == [["a", "🦊"], ["b", "<lora:ink:1>", "c"], ["<lora:oil:1>", "d"]]
    assert [chunk["has_break"] for chunk in shown["chunks"]] == [True, True, False]
    assert [chunk["num_tokens"] for chunk in shown["chunks"]][1:] == [2, 1]
    (tag, *_) = shown["chunks"][2]["chips"]
    assert text.encode("utf-16-le")[2 * tag["start"] : 2 * tag["end"]].decode("utf-16-le") == "<lora:oil:1>"


def test_the_picture_has_no_token_more() -> None:
    shown = view(read("a <lora:ink:0.8> cat", syntax="a1111"))
    items = [item for item in strip_items(shown) if isinstance(item, Chip)]
    assert [(item.is_hidden, item.num_tokens) for item in items] == [(False, 1), (True, 0), (False, 1)]
    assert shown["num_tokens"] == 2
