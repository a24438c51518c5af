"""Tokens that are a part of a character: their bytes put together are the text, and each knows its place in it."""

from hypothesis import given
from hypothesis import strategies as st
from weighted_clip.encoder.tokenizer import bytes_of, default_tokenizer
from weighted_clip.weighting.chunks import Token
from weighted_clip.weighting.embeddings import EmbeddingVector
from weighted_clip.weighting.view import token_bytes

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
        assert part.own == own
        assert part.first == len(waiting) + 1
        waiting += own
        if len(waiting) == len(part.text.encode()):
            assert waiting.decode() == part.text
            waiting = b""
    assert not waiting


def test_vectors_of_embeddings_are_none_and_end_what_was_begun() -> None:
    import torch

    fox = [Token(one.id) for one in TOKENIZER("🦊")]
    vector = Token(EmbeddingVector("style", 0, torch.zeros(4), 49407))
    assert [part is None for part in token_bytes([fox[0], vector, *fox], TOKENIZER.symbol)] == [
        True,
        True,
        False,
        False,
    ]
