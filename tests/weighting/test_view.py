"""Views of prompts: parts in places of the whole, chips of tags, and tokens that are a part of a character."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from weighted_clip.encoder.tokenizer import bytes_of, default_tokenizer
from weighted_clip.web.pictures.tokens import Chip, strip_items
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading.prompt_reader import ReadPrompt, read_prompt, relocated
from weighted_clip.weighting.reading.view import min_size, token_bytes, view
from weighted_clip.weighting.text.chunks import Token
from weighted_clip.weighting.text.embeddings import EmbeddingVector
from weighted_clip.weighting.text.prompt import Break
from weighted_clip.weighting.timed.schedule import read_timed

from .tiny import KnownEmbeddings, read


def placed_reads(source: str, steps: int = 4) -> list[ReadPrompt]:
    """Each text of a timed prompt, in places of the whole."""
    prompt = read_timed(source, steps)
    fragments = [text.fragment for branch in prompt.branches for text in branch.texts]
    return [relocated(read(fragment.text, syntax="a1111"), source, fragment) for fragment in fragments]


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
    assert 90 * num_chips <= min_size(found) <= size


@pytest.mark.parametrize("length", [299, 300, 301])
def test_a_text_of_up_to_300_characters_is_shown_whole(length: int) -> None:
    name = "x" * length
    options = EncodeOptions(syntax="a1111")
    shown = view(read_prompt(name, options, default_tokenizer(), embeddings=KnownEmbeddings({name: 1})))
    assert [chip["text"] for chip in shown["chunks"][0]["chips"]] == [name if length <= 300 else f"{name[:300]}…"]


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
    assert relocated(found, source, text.fragment) is found


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


# --- tags


def chips_of(text: str, syntax: str = "a1111") -> list[dict[str, Any]]:
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
    shown = chips_of(text, syntax)
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


def test_a_problem_is_of_the_chips_it_is_in_and_of_none_beside_them() -> None:
    for text, told in {
        "a cat) dog": {"a": [], "cat": [], ")": [0], "dog": []},
        "a [cat dog": {"a": [], "cat": [0], "dog": []},  # of a bracket, which is no token, the next has it
        "a cat(": {"a": [], "cat": [0]},  # or the last
    }.items():
        assert {chip["text"]: chip["problems"] for chip in chips_of(text)} == told


def test_the_picture_has_no_token_more() -> None:
    shown = view(read("a <lora:ink:0.8> cat", syntax="a1111"))
    items = [item for item in strip_items(shown) if isinstance(item, Chip)]
    assert [(item.is_hidden, item.num_tokens) for item in items] == [(False, 1), (True, 0), (False, 1)]
    assert shown["num_tokens"] == 2


# --- tokens that are a part of a character


TOKENIZER = default_tokenizer()


def found_in(text: str):
    return token_bytes([Token(one.id) for one in TOKENIZER(text)], TOKENIZER.symbol)


def test_whole_characters_are_no_parts() -> None:
    assert found_in("a café of Ünal, 12 cats!") == [None] * len(TOKENIZER("a café of Ünal, 12 cats!"))


def test_characters_of_several_tokens_are_divided_into_bytes() -> None:
    told = [str(one) for one in found_in("a 狐 🦊") if one]
    assert told == [
        *("e7: byte 1 of 3 of 狐", "8b: byte 2 of 3 of 狐", "90: byte 3 of 3 of 狐"),
        *("f0 9f a6: bytes 1 to 3 of 4 of 🦊", "8a: byte 4 of 4 of 🦊"),
    ]


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=30))
def test_bytes_of_a_character_put_together_are_it(text: str) -> None:
    tokens = TOKENIZER(text)
    parts = found_in(text)
    assert len(parts) == len(tokens)
    waiting = b""
    for token, part in zip(tokens, parts, strict=True):
        own = bytes_of(TOKENIZER.symbol(token.id))
        if part is None:
            assert not waiting
            own.decode()  # whole
            continue
        assert part.content == own
        assert part.first == len(waiting) + 1
        waiting += own
        if len(waiting) == len(part.text.encode()):
            assert waiting.decode() == part.text
            waiting = b""
    assert not waiting


def test_vectors_of_embeddings_are_none_and_end_what_was_begun() -> None:
    fox = [Token(one.id) for one in TOKENIZER("🦊")]
    vector = Token(EmbeddingVector("style", 0, torch.zeros(4), 49407))
    assert [part is None for part in token_bytes([fox[0], vector, *fox], TOKENIZER.symbol)] == [
        True,
        True,
        False,
        False,
    ]


def test_chips_of_bound_phrases_have_their_numbers() -> None:
    shown = view(read("a red cat, a blue dog, red cat", bind="red cat\nblue dog"))
    numbers = [(chip["text"], chip["phrase"]) for chip in chips(shown) if "phrase" in chip]
    assert numbers == [*(("red", 1), ("cat", 1), ("blue", 2), ("dog", 2)), ("red", 1), ("cat", 1)]
    assert shown["bound"] == "2 phrases kept apart in 3 passes"
    assert view(read("a red cat"))["bound"] == ""
