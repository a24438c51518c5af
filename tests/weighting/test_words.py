"""Rows of phrases, against rows counted by hand."""

import pytest
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading import read_prompt
from weighted_clip.weighting.scheme import all_places
from weighted_clip.weighting.words import words_of


def rows(text: str, phrase: str, **options) -> tuple[int, ...]:
    read = read_prompt(text, EncodeOptions(**options), default_tokenizer())
    return words_of(read.prompt.parts, read.chunks, all_places(len(read.chunks), 77)).rows_of(phrase)


@pytest.mark.parametrize(
    ("text", "phrase", "expected"),
    [
        ("a red cat on a mat", "red cat", (2, 3)),
        ("a (Red:1.3) cat on a mat", " RED   cat ", (2, 3)),
        ("a red cat, a red cat", "red cat", (2, 3, 6, 7)),
        ("a red cat, a red cat", "cat, a", (3, 4, 5)),
        ("red,cat,dog", "cat", (3,)),
        ("a red cats", "cat", ()),
        ("a red cat", "blue", ()),
        ("a red cat", "", ()),
        ("photorealistic dog", "photorealistic", (1, 2)),
        ("red BREAK cat", "red", (1,)),
    ],
)
def test_rows_of_a_phrase(text, phrase, expected) -> None:
    if "BREAK" in text:
        assert rows(text, "red cat", syntax="a1111") == ()
        assert rows(text, "cat", syntax="a1111") == (78,)
    assert rows(text, phrase, syntax="a1111") == expected


def test_words_between_weights_of_compel_are_found() -> None:
    assert rows("a (red)1.5 cat++ on a mat", "red cat", syntax="compel") == (2, 3)


def test_words_without_spaces_are_found_by_their_signs() -> None:
    text = "一只红猫"
    assert rows(text, "红猫") == rows(text, "猫") or set(rows(text, "猫")) < set(rows(text, "红猫"))
    assert rows(text, "猫") and not rows(text, "狗")
