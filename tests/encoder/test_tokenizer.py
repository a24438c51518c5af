"""Ids against transformers' tokenizer, spans against the text, and cleaning as in Forge."""

import gzip
import hashlib
import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from weighted_clip.encoder.tokenizer import (
    VOCABULARY_FILE,
    CleaningTokenize,
    Tokenizer,
    clean,
    default_tokenizer,
    may_change,
)
from weighted_clip.workshop.peers.transformers import transformers_tokenizer

from ..libraries import library

CASES = Path(__file__).parents[1] / "cases"


@pytest.fixture(scope="module")
def reference():
    library("transformers")
    return transformers_tokenizer()


def ids(text: str) -> list[int]:
    return [token.id for token in default_tokenizer()(text)]


def test_the_vocabulary_is_the_released_one() -> None:
    merges = gzip.decompress(VOCABULARY_FILE.read_bytes())
    assert hashlib.sha256(merges).hexdigest() == "685491abbdad36159d094ecdc23bebc0dd53f8d1df35c4d74ef6036db2ba7572"
    assert merges.count(b"\n") == 48895
    assert default_tokenizer().vocab_size == 49408


def test_the_vocabulary_is_the_beginning_of_the_file_that_openai_published() -> None:
    published = (Path(library("open_clip").__file__).parent / "bpe_simple_vocab_16e6.txt.gz").read_bytes()
    assert hashlib.sha256(published).hexdigest() == "924691ac288e54409236115652ad4aa250f48203de50a9e4722a6ecd48d6804a"
    merges = gzip.decompress(VOCABULARY_FILE.read_bytes())
    assert gzip.decompress(published).startswith(merges)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a red cat", [320, 736, 2368]),
        ("+", [266]),
        ("a, b", [320, 267, 321]),
        ("<|startoftext|><|endoftext|>", [49406, 49407]),
        ("!", [256]),
        ("", []),
        ("   ", []),
    ],
)
def test_known_ids(text: str, expected: list[int]) -> None:
    assert ids(text) == expected


def test_ids_equal_transformers_on_every_prompt_of_the_case_files(reference) -> None:
    prompts = {
        case["prompt"]
        for path in CASES.glob("*.json")
        for case in json.loads(path.read_text(encoding="utf-8"))["cases"]
        if "prompt" in case
    }
    assert len(prompts) > 500
    for prompt in prompts:
        assert ids(prompt) == reference(prompt, add_special_tokens=False)["input_ids"], prompt


@pytest.mark.parametrize(
    "text", ["<|STARTOFTEXT|>", "a<|EndOfText|>!!", "!<|EndOfText|>'s", "startoftext|>", "<|endoftext|>x"]
)
def test_only_bos_and_eos_in_small_letters_are_single_tokens(reference, text: str) -> None:
    library("transformers", "5")  # 4 takes them in capitals, too
    assert ids(text) == reference(text, add_special_tokens=False)["input_ids"]
    assert (49407 in ids(text)) == ("<|endoftext|>" in text)


special = st.sampled_from(
    ["<|endoftext|>", "<|EndOfText|>", "'s", "don't", " ", "\n", "e\u0301", "ﬁ", "İ", "½", "²", "Ⅷ", "👩‍👩‍👧"]
)


@settings(max_examples=500)
@given(text=st.lists(st.one_of(special, st.text(st.characters(exclude_categories=["Cs"]), max_size=8))).map("".join))
def test_ids_equal_transformers_on_any_text(reference, text: str) -> None:
    library("transformers", "5")  # 4 takes them in capitals, too
    assert ids(text) == reference(text, add_special_tokens=False)["input_ids"]


@given(text=st.lists(st.one_of(special, st.text())).map("".join))
def test_spans_go_forward_and_lie_within_any_text(text: str) -> None:
    tokens = default_tokenizer()(text)
    assert all(0 <= token.start < token.end <= len(text) for token in tokens)
    # neighbours may share a character, as where lower-casing makes two of one
    assert all(a.start <= b.start and a.end <= b.end for a, b in pairwise(tokens))


def test_each_word_of_plain_text_is_covered_by_its_tokens() -> None:
    text = "Electroencephalographically  café e\u0301clair, 猫と犬\t🦊!"
    covered = {position for token in default_tokenizer()(text) for position in range(token.start, token.end)}
    assert covered == {position for position, character in enumerate(text) if not character.isspace()}


def test_lone_surrogates_count_as_replacement_characters() -> None:
    assert default_tokenizer()("a \ud800 cat") == default_tokenizer()("a \ufffd cat")


def test_a_new_tokenizer_is_the_same() -> None:
    assert Tokenizer()("a red cat") == default_tokenizer()("a red cat")


# --- cleaning as in Forge


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
