"""Pieces of captions as lines, compared with transformers' reading of CLIP's own pieces."""

import ast

import pytest
from weighted_clip.dalle.pieces import Pieces, clip_pieces, piece_lines
from weighted_clip.encoder.tokenizer import default_tokenizer


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
