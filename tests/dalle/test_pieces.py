"""Captions as pieces: CLIP's ids, learned merges compared with the library's own encoder, BPE dropout."""

from __future__ import annotations

import ast
import random
from collections import Counter

import pytest
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.studio.dalle.pieces import Pieces, clip_pieces, learned_pieces, piece_lines
from weighted_clip.studio.world.shapes import combinations

TEXTS = ["A photo of a Crème brûlée, 3 cats & dogs' house!!", "日本 😀 don't", "", " \n ", "\ud800x", "ab" * 60]
CAPTIONS = [shape.caption for shape in combinations()]


@pytest.mark.parametrize("text", TEXTS)
def test_clips_merges_give_clips_ids(text: str) -> None:
    assert clip_pieces()(text) == [token.id for token in default_tokenizer()(text)]


def test_learned_merges_make_whole_words_of_what_is_frequent() -> None:
    pieces = learned_pieces(CAPTIONS, 16384)
    for caption in CAPTIONS:
        assert [pieces.symbol(piece) for piece in pieces(caption)] == [f"{word}</w>" for word in caption.split()]
    assert pieces.vocab_size < 620
    few = learned_pieces(CAPTIONS, 530)
    assert few.vocab_size == 530
    assert few.merges == pieces.merges[:18]
    assert "".join(few.symbol(piece) for piece in few(CAPTIONS[0])).split("</w>")[:-1] == CAPTIONS[0].split()


def test_pieces_are_those_of_the_library() -> None:
    from tokenizers import Tokenizer, models

    pieces = learned_pieces(CAPTIONS, 540)
    vocabulary = {pieces.symbol(index): index for index in range(pieces.vocab_size)}
    library = Tokenizer(models.BPE(vocabulary, list(pieces.merges), end_of_word_suffix="</w>"))
    for word in ["large", "triangles", "greenbelt", "o", "ring"]:
        assert pieces(word) == library.encode(word).ids


def test_dropped_merges_leave_the_text_as_it_is_and_follow_from_the_generator() -> None:
    pieces, caption = learned_pieces(CAPTIONS, 16384), "a large purple triangle at the bottom right"
    rng = random.Random(0)
    drawn = [tuple(pieces(caption, 0.1, rng)) for _ in range(200)]
    rng = random.Random(0)
    assert [tuple(pieces(caption, 0.1, rng)) for _ in range(200)] == drawn
    for found in drawn:
        assert "".join(pieces.symbol(piece) for piece in found) == "".join(f"{word}</w>" for word in caption.split())
    assert len(set(drawn)) > 50
    assert Counter(drawn)[tuple(pieces(caption))] > 2


def test_a_merge_is_dropped_as_often_as_asked() -> None:
    """One merge of one word: it is left out where chance says so."""
    pieces, rng = Pieces([("a", "b</w>")]), random.Random(0)
    left_out = sum(len(pieces("ab", 0.1, rng)) == 2 for _ in range(5000)) / 5000
    assert abs(left_out - 0.1) < 4 * (0.1 * 0.9 / 5000) ** 0.5


def test_merges_that_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"merge \('ab', 'c'\) joins symbols that no merge before it makes"):
        Pieces([("ab", "c")])
    with pytest.raises(ValueError, match="the number of pieces must be at least 512, one for each byte, got 100"):
        learned_pieces(["a"], 100)


# ---- as lines


@pytest.mark.parametrize("text", ["a Large red disc", "photorealistic, 8k!", "naïve café", "", "dogs' 猫"])
def test_pieces_stand_in_their_order_with_the_text_that_they_are_of(text: str) -> None:
    lines = [line.split(maxsplit=2) for line in piece_lines(clip_pieces(), text)]
    spans = default_tokenizer()(text)
    assert [(int(place), int(number)) for place, number, _ in lines] == [
        (place, span.id) for place, span in enumerate(spans, 1)
    ]
    for (*_, told), span in zip(lines, spans, strict=True):
        quoted, _, goes_on = told.partition(" ")
        if not quoted.startswith("b'"):  # of a character of several pieces
            assert ast.literal_eval(quoted) == text[span.start : span.end].lower()
        assert goes_on == ("" if default_tokenizer().symbol(span.id).endswith("</w>") else "+")


def test_every_byte_is_told_apart() -> None:
    """Characters of one byte and of two, divided into pieces of one byte each."""
    pieces = Pieces([])
    for number in range(0x21, 0x100):
        character = chr(number).lower()
        if not pieces(character):
            continue  # a space
        told = [
            ast.literal_eval(line.split(maxsplit=2)[2].removesuffix(" +")) for line in piece_lines(pieces, character)
        ]
        assert b"".join(part if isinstance(part, bytes) else part.encode() for part in told).decode() == character
