"""Cleaning as in Forge: the cleaned text, and the origin of its characters."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weighted_clip.encoder.tokenizer import CleaningTokenize, clean, default_tokenizer, may_change

TRICKY = st.lists(
    st.sampled_from([*"a1 ,;&<>|“”’ﬁＡé猫\u0301\u200b\ufeff\x07\n", "&amp;", "&lt;", "Ã©", "â€™", "<|endoftext|>"])
    | st.characters(exclude_categories=["Cs"]),
    max_size=60,
).map("".join)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("“red”", '"red"'),
        ("woman’s", "woman's"),
        ("rock &amp; roll", "rock & roll"),
        ("a <b> &amp; c", "a <b> &amp; c"),
        ("oﬃce ＡＢＣ", "office ABC"),
        ("cafÃ©", "café"),
        ("<|EndOfText|>", "<|endoftext|>"),
        (",<|EndOfText|>", ",<|EndOfText|>"),
        ("a\x00b\ufeff", "ab"),
    ],
)
def test_repairs(text: str, expected: str) -> None:
    cleaned = clean(text)
    assert (text if cleaned is None else cleaned.text) == expected


def test_plain_text_needs_no_repair() -> None:
    assert clean("a (red:1.2) cat's bowl, 35mm <b>") is None
    assert clean("café 猫") is None


@pytest.mark.parametrize(
    ("text", "word", "original"),
    [
        ("a “red” hat", '"', "“"),
        ("rock &amp; roll", "&", "&amp;"),
        ("an oﬃce, ok", "ffi", "ﬃ"),
        ("a cafÃ© ok", "é", "Ã©"),
        ("a <|endoftext|> ‘b’", "b", "b"),
    ],
)
def test_a_repaired_word_knows_its_place(text: str, word: str, original: str) -> None:
    cleaned = clean(text)
    assert cleaned is not None
    at = cleaned.text.index(word)
    spans = cleaned.spans[at : at + len(word)]
    assert text[spans[0][0] : spans[-1][1]] == original


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a “red” hat", ["a", "“", "red", "”", "hat"]),
        ("rock &amp; roll", ["rock", "&amp;", "roll"]),
        ("cafÃ© ok", ["cafÃ©", "ok"]),
        ("ab\ufeffc", ["ab\ufeffc"]),
    ],
)
def test_tokens_stand_where_they_were_typed(text: str, words: list[str]) -> None:
    tokens = CleaningTokenize(default_tokenizer())(text)
    assert [text[start:end] for _, start, end in tokens] == words


def test_without_ftfy_a_text_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenize = CleaningTokenize(default_tokenizer())
    assert tokenize("“red”") != default_tokenizer()("“red”")
    monkeypatch.setitem(sys.modules, "ftfy", None)
    assert tokenize("“red”") == default_tokenizer()("“red”")


def test_equal_tokenizers_are_equal_when_they_clean() -> None:
    assert len({CleaningTokenize(default_tokenizer()), CleaningTokenize(default_tokenizer())}) == 1


@given(TRICKY)
def test_what_needs_no_look_would_stay_the_same(text: str) -> None:
    import ftfy

    assert may_change(text) or ftfy.fix_text(text) == text


@given(TRICKY)
def test_places_are_in_order_and_in_the_text(text: str) -> None:
    cleaned = clean(text)
    if cleaned is not None:
        assert len(cleaned.spans) == len(cleaned.text)
        assert all(0 <= start <= end <= len(text) for start, end in cleaned.spans)
        assert cleaned.spans == sorted(cleaned.spans)
