"""Rows of phrases, against rows counted by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.phrases.words import Words, names_in, words_of
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.schemes.scheme import all_places
from weighted_clip.weighting.syntax import parse

from .tiny import KnownEmbeddings


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


NAMES = KnownEmbeddings({"seeded-embedding": 2, "red": 1})


@pytest.mark.parametrize(
    ("text", "syntax", "names", "phrases"),
    [
        (
            "a embedding:seeded-embedding cat",
            "comfy",
            ("a", "seeded-embedding", "cat"),
            {"seeded-embedding": (2, 3), "embedding:seeded-embedding": (2, 3), "a seeded-EMBEDDING cat": (1, 2, 3, 4)},
        ),
        (
            "a (seeded-embedding:1.2), red hat",
            "a1111",
            ("a", "seeded-embedding", "red", "hat"),
            {"seeded-embedding": (2, 3), "red hat": (5, 6), "embedding": (), "a seeded": (), "seeded": ()},
        ),
    ],
)
def test_an_embedding_is_one_word_under_its_name(text, syntax, names, phrases) -> None:
    options = EncodeOptions(syntax=syntax, chunking="a1111" if syntax == "a1111" else "comfy segment")
    prompt = read_prompt(text, options, default_tokenizer(), embeddings=NAMES)
    words = words_of(prompt.prompt.parts, prompt.chunks, all_places(len(prompt.chunks), 77))
    assert names_in([words]) == names
    assert {phrase: words.rows_of(phrase) for phrase in phrases} == phrases


@pytest.mark.parametrize("phrase", ["red cat,", ", red cat ,", " red cat ,,"])
def test_commas_that_were_copied_along_do_not_count(phrase) -> None:
    assert rows("a red cat on a red mat", phrase) == (2, 3)
    assert rows("a, cat", ",") == (2,)


def slow_numbers(words: Words, phrase: str) -> set[int]:
    """Numbers of a phrase's words, compared at every place."""
    texts, wanted = [word and word.text for word in words.words], phrase.split()
    places = (place for place in range(len(texts)) if texts[place : place + len(wanted)] == wanted)
    return {number for place in places for number in range(place, place + len(wanted))}


@given(st.text("ab ", min_size=1, max_size=40), st.text("ab ", max_size=9))
def test_phrases_are_found_wherever_they_stand(text: str, phrase: str) -> None:
    words = words_of(parse(text, "a1111").parts)
    assert words.numbers_of(phrase) == (slow_numbers(words, phrase) if phrase.strip() else set())
