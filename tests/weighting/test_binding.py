"""Bound phrases, and the way of Cutoff, against passes of transformers that the test puts together itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from weighted_clip.encoder.encoding import EncodeFn
from weighted_clip.encoder.models.prefix import PrefixTextEncoder
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.pipeline import EncodedPrompt
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.schemes import SCHEMES
from weighted_clip.workshop.peers.transformers import transformers_text_model

from .tiny import MODEL, TINY, KnownEmbeddings, encode, read

TEXT = "a red cat and a blue dog"
PHRASES = "red cat\nblue dog"
CAT, DOG = [2, 3], [6, 7]
"""Positions of the phrases in `TEXT`; BOS is 0."""


def encoded(text: str = TEXT, encoder: EncodeFn = TINY, **options) -> EncodedPrompt:
    return encode(text, encoder, **{"scheme": "unweighted", **options})


def theirs(hidden: list[int], text: str = TEXT) -> torch.Tensor:
    """transformers' result for the text with some positions hidden from all others, ``[77, dim]``."""
    ids = list(read(text).chunks[0].ids)
    mask = torch.ones(1, 77, dtype=torch.long)
    mask[0, hidden] = 0
    return transformers_text_model(MODEL)(torch.tensor([ids]), attention_mask=mask).last_hidden_state[0]


@pytest.mark.parametrize(("rest", "hidden_from_rest"), [("full", []), ("alone", CAT + DOG)])
@pytest.mark.parametrize("strength", [1.0, 0.3])
def test_each_phrase_has_the_rows_of_a_pass_that_hides_the_others(
    rest: str, hidden_from_rest: list[int], strength: float
) -> None:
    expected = theirs(hidden_from_rest).clone()
    expected[CAT] = theirs(DOG)[CAT]
    expected[DOG] = theirs(CAT)[DOG]
    expected = (1 - strength) * theirs([]) + strength * expected
    found = encoded(bind=PHRASES, bind_rest=rest, bind_strength=strength)
    torch.testing.assert_close(found.hidden[0], expected, rtol=0, atol=2e-6)
    assert torch.equal(found.pooled, encoded().pooled)


@pytest.mark.parametrize("scheme", ["comfy", "masked_blend", "compel", "comfy++", "down_weight", "perp"])
def test_a_phrase_knows_nothing_of_those_before_it_in_any_scheme(scheme: str) -> None:
    """Also where a scheme encodes more versions. Not in those that mix all rows in a mean, such as ``a1111``."""

    def rows(other: str, **options) -> torch.Tensor:
        return encoded(f"a {other} and a (red:0.5) cat", scheme=scheme, **options).hidden[0][DOG]

    bound = [rows(other, bind=f"red cat\n{other}") for other in ("blue dog", "green bird")]
    assert torch.equal(*bound)
    assert not torch.equal(rows("blue dog"), rows("green bird"))


def test_on_the_shared_prefix_path_a_phrase_knows_as_little() -> None:
    encoder = PrefixTextEncoder(MODEL)
    one = encoded(encoder=encoder, bind=PHRASES).hidden[0]
    two = encoded("a red cat and a green dog", encoder=encoder, bind="red cat\ngreen dog").hidden[0]
    torch.testing.assert_close(one[CAT], two[CAT], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_strength_0_is_the_encoding_without_it(scheme: str) -> None:
    text = "a (red:0.5) cat and a (blue:1.3) dog"
    found, plain = encoded(text, scheme=scheme, bind=PHRASES, bind_strength=0.0), encoded(text, scheme=scheme)
    assert torch.equal(found.hidden, plain.hidden)
    assert found.num_encodings == plain.num_encodings


@pytest.mark.parametrize(("rest", "passes"), [("full", 3), ("alone", 4)])
def test_every_version_is_encoded_once_more_for_each_phrase(rest: str, passes: int) -> None:
    text = "(a:0.5) red cat and a blue dog"
    plain, bound = (encoded(text, scheme="masked_blend", bind=bind, bind_rest=rest) for bind in ("", PHRASES))
    assert (plain.num_encodings, bound.num_encodings) == (2, 2 * passes)
    assert encoded(bind=PHRASES, bind_rest=rest).num_encodings == passes


def test_a_phrase_takes_all_its_places_in_any_case() -> None:
    (chunk,) = read("a Red cat, a dog, a red CAT", bind="red cat\ndog").chunks
    assert [token.phrase for token in chunk.content] == [0, 1, 1, 0, 0, 2, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("phrases", "words"),
    [
        ("red cat\na bird", "“a bird” is not in the prompt"),
        ("red cat\ncat and", "“red cat” and “cat and” overlap"),
    ],
)
def test_what_cannot_be_bound_is_named_and_refused(phrases: str, words: str) -> None:
    assert any(words in issue.message for issue in read(TEXT, bind=phrases).issues)
    with pytest.raises(ValueError, match=words):
        encoded(bind=phrases)


@pytest.mark.parametrize("syntax", ["comfy", "a1111"])
@pytest.mark.parametrize("phrase", ["red zqone hat,", "red embedding:zqone hat"])
def test_a_phrase_may_have_an_embedding_in_it(syntax: str, phrase: str) -> None:
    text = f"a red {'embedding:' if syntax == 'comfy' else ''}zqone hat and a blue dog"
    chunking = "a1111" if syntax == "a1111" else "comfy segment"
    options = EncodeOptions(syntax=syntax, chunking=chunking, bind=f"{phrase}\nblue dog,")
    found = read_prompt(text, options, default_tokenizer(), embeddings=KnownEmbeddings({"zqone": 2}))
    assert not found.issues
    assert [token.phrase for token in found.chunks[0].content] == [0, 1, 1, 1, 1, 0, 0, 2, 2]


@pytest.mark.parametrize("hide", ["whole phrases", "cutoff"])
def test_more_phrases_than_anybody_keeps_apart_are_refused(hide: str) -> None:
    """Each is an encoding of the prompt more."""
    words = [f"cat {number}" for number in range(100, 201)]
    options = {"bind": "\n".join(words), "bind_words": "cat", "bind_hide": hide, "chunking": "a1111"}
    with pytest.raises(ValueError, match="At most 100 phrases can be kept apart"):
        encoded(" , ".join(words), **options)
    for count in (3, 100):
        few = {**options, "bind": "\n".join(words[:count])}
        assert encoded(" , ".join(words[:count]), **few).num_encodings > 1


def slow_phrases(content: list[int], phrases: list[list[int]]) -> list[int]:
    """Number of the phrase of each token, compared at every place; -1 if there are several."""
    numbers: list[set[int]] = [set() for _ in content]
    for number, phrase in enumerate(phrases, 1):
        for start in range(len(content)):
            if content[start : start + len(phrase)] == phrase:
                for place in range(start, start + len(phrase)):
                    numbers[place].add(number)
    return [-1 if len(some) > 1 else max(some, default=0) for some in numbers]


@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.text("abc", min_size=1, max_size=3), max_size=4))
def test_phrases_are_those_of_a_comparison_at_every_place(words: list[str], phrases: list[str]) -> None:
    typed = list(dict.fromkeys(" ".join(phrase) for phrase in phrases))
    found = read(" ".join(words), bind="\n".join(typed))
    expected = slow_phrases(words, [phrase.split() for phrase in typed])
    codes = [issue.code for issue in found.issues]
    absent = [phrase for number, phrase in enumerate(typed, 1) if f" {phrase} " not in f" {' '.join(words)} "]
    assert codes.count("absent-phrase") == len(absent)
    assert ("unbound-phrase" in codes) == (-1 in expected)
    if -1 not in expected:
        assert [token.phrase for token in found.chunks[0].content] == expected


def test_a_phrase_that_the_end_of_a_chunk_cuts_is_refused() -> None:
    with pytest.raises(ValueError, match="cut by the end of a chunk"):
        encoded("word " * 74 + "red cat", syntax="a1111", comma_backtrack=0, bind="red cat")


def test_phrases_of_several_chunks_are_bound_in_each() -> None:
    text = f"{TEXT} BREAK {TEXT}"
    found = encoded(text, syntax="a1111", bind=PHRASES)
    torch.testing.assert_close(found.hidden[:, :77], found.hidden[:, 77:], rtol=0, atol=1e-6)
    assert found.num_encodings == 3


def test_padding_can_be_clean_besides() -> None:
    found, plain = encoded(bind=PHRASES, padding="clean").hidden[0], encoded(bind=PHRASES).hidden[0]
    assert torch.equal(found[:9], plain[:9])
    torch.testing.assert_close(found[9:], encoded("").hidden[0, 9:], rtol=0, atol=1e-6)


def test_a_strength_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"bind_strength must be 0 to 1, got 1\.5"):
        EncodeOptions(bind_strength=1.5)


# --- some words alone, and Cutoff


RED, BLUE = [2], [6]
"""Positions of the colours in `TEXT`."""


@pytest.mark.parametrize(("rest", "hidden_from_rest"), [("full", []), ("alone", RED + BLUE)])
def test_only_these_words_are_hidden_from_the_others(rest: str, hidden_from_rest: list[int]) -> None:
    expected = theirs(hidden_from_rest).clone()
    expected[CAT] = theirs(BLUE)[CAT]
    expected[DOG] = theirs(RED)[DOG]
    found = encoded(bind=PHRASES, bind_rest=rest, bind_hide="these words", bind_words="red\nBlue")
    torch.testing.assert_close(found.hidden[0], expected, rtol=0, atol=2e-6)


def test_words_outside_of_phrases_are_seen() -> None:
    text = "red, a red cat and a blue dog"
    found = encoded(text, bind=PHRASES, bind_hide="these words", bind_words="red, blue").hidden[0]
    assert encoded(text, bind=PHRASES).num_encodings == 3
    torch.testing.assert_close(found[[8, 9]], theirs([4], text)[[8, 9]], rtol=0, atol=2e-6)


def test_a_word_hidden_in_one_phrase_changes_no_other_row_of_another() -> None:
    """Other words of the first phrase are seen, and hidden ones are not: green for red changes nothing."""
    texts = ("a red cat and a blue dog", "a green cat and a blue dog", "a red bird and a blue dog")
    red, green, bird = (
        encoded(text, bind=f"{text[2:].split(' and')[0]}\nblue dog", bind_hide="these words", bind_words=word).hidden[0]
        for text, word in zip(texts, ("red", "green", "red"), strict=True)
    )
    assert torch.equal(red[DOG], green[DOG])
    assert not torch.allclose(red[DOG], bird[DOG], atol=1e-3)


GIRL = "a cute girl, pink hair, red shoes"


def rows_of(text: str) -> torch.Tensor:
    """transformers' result for a text, ``[77, dim]``."""
    ids = list(read(text, syntax="none").chunks[0].ids)
    return transformers_text_model(MODEL)(torch.tensor([ids])).last_hidden_state[0]


@pytest.mark.parametrize(("rest", "of_rest"), [("full", GIRL), ("alone", "a cute girl, _ hair, _ shoes")])
@pytest.mark.parametrize("strength", [1.0, 0.5])
def test_cutoff_takes_each_part_from_a_text_with_underscores_in_the_others(
    rest: str, of_rest: str, strength: float
) -> None:
    """As the extension's README describes it."""
    expected = rows_of(of_rest).clone()
    expected[[5, 6]] = rows_of("a cute girl, pink hair, _ shoes")[[5, 6]]
    expected[[8, 9]] = rows_of("a cute girl, _ hair, red shoes")[[8, 9]]
    expected = (1 - strength) * rows_of(GIRL) + strength * expected
    found = encoded(GIRL, bind_hide="cutoff", bind_words="pink, red", bind_rest=rest, bind_strength=strength)
    torch.testing.assert_close(found.hidden[0], expected, rtol=0, atol=2e-6)
    assert torch.equal(found.pooled, encoded(GIRL).pooled)


def test_cutoff_finds_whole_words_as_they_are_written() -> None:
    text = "Red hair, reddish red-haired, red"
    tokens = read(text, bind_hide="cutoff", bind_words="red").chunks[0].content
    assert [text[token.at.start : token.at.end] for token in tokens if token.apart is not None] == ["red", "red"]
    assert {token.phrase for token in tokens} == {0, 2, 3}
    text = "polkadot dot dot, dot dot"  # the first of the three is no whole word, and the others are one
    tokens = read(text, bind_hide="cutoff", bind_words="dot dot").chunks[0].content
    assert [token.at.start for token in tokens if token.apart is not None] == [9, 13, 18, 22]


@pytest.mark.parametrize("scheme", ["comfy", "a1111_no_norm", "unweighted"])
def test_with_weights_cutoff_goes_with_schemes_that_work_row_by_row(scheme: str) -> None:
    """The extension mixes the rows of encodings that are weighted already; under these schemes that is the same."""
    texts = ["a (red:1.5) cat, a (blue:0.5) dog", "a (_:1.5) cat, a (blue:0.5) dog", "a (red:1.5) cat, a (_:0.5) dog"]
    full, without_red, without_blue = (encoded(text, scheme=scheme).hidden[0] for text in texts)
    expected = full.clone()
    expected[[1, 2, 3]] = 0.5 * (full + without_blue)[[1, 2, 3]]
    expected[[5, 6, 7]] = 0.5 * (full + without_red)[[5, 6, 7]]
    found = encoded(texts[0], scheme=scheme, bind_hide="cutoff", bind_words="red\nblue", bind_strength=0.5).hidden[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-6)


def test_a_word_within_a_longer_one_is_hidden_with_it() -> None:
    both, one = (
        encoded("a light blue cat, a dog", bind_hide="cutoff", bind_words=words)
        for words in ("light blue, blue", "light blue")
    )
    assert torch.equal(both.hidden, one.hidden)
    assert not both.read.issues


@pytest.mark.parametrize("scheme", ["a1111", "masked_blend", "perp", "compel"])
def test_with_weights_cutoff_refuses_other_schemes(scheme: str) -> None:
    cutoff = {"scheme": scheme, "bind_hide": "cutoff", "bind_words": "red"}
    with pytest.raises(ValueError, match=f"With weights, cutoff goes with the schemes comfy, .*under {scheme}"):
        encoded("a (red:1.2) cat, a dog", **cutoff)
    torch.testing.assert_close(
        encoded("a red cat, a dog", **cutoff).hidden,
        encoded("a red cat, a dog", **{**cutoff, "scheme": "unweighted"}).hidden,
        rtol=0,
        atol=1e-5,
    )


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (TEXT, {"bind": PHRASES, "bind_hide": "these words"}, "No words are given"),
        (TEXT, {"bind": PHRASES, "bind_hide": "these words", "bind_words": "and"}, "“and” is in none of the phrases"),
        (
            "red cat blue dog",
            {"bind": PHRASES, "bind_hide": "these words", "bind_words": "red, cat blue"},
            "“cat blue” is in none of the phrases",
        ),
        (TEXT, {"bind_hide": "cutoff", "bind_words": "Red"}, "“Red” is not in the prompt"),
        ("a light blue cat", {"bind_hide": "cutoff", "bind_words": "blue, light blue"}, "“light blue” overlaps words"),
        (
            "a dog's bed, s",
            {"bind_hide": "cutoff", "bind_words": "s"},
            "“s” is not the same tokens in “dog's” as alone",
        ),
        ("a (red:1.2) cat", {"bind_hide": "cutoff", "bind_words": "1"}, "“1” is not the same tokens in"),
    ],
)
def test_what_cannot_be_done_is_named_and_refused(text: str, options: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match="These phrases cannot be bound") as caught:
        encoded(text, **options)
    assert words in str(caught.value)


def test_parts_are_miscounted_as_cutoff_does_it_and_that_is_said() -> None:
    text = "a red cat,, a blue dog"
    found = encoded(text, bind_hide="cutoff", bind_words="red\nblue")
    assert [issue.message for issue in found.read.issues] == [
        "In “red cat,, a” a comma is not a token of its own: from there Cutoff mistakes one part for another. Put "
        "spaces around commas."
    ]
    expected = rows_of(text).clone()
    expected[1:8] = rows_of("a red cat,, a _ dog")[1:8]  # by the tokens all words are in the first part
    torch.testing.assert_close(found.hidden[0], expected, rtol=0, atol=2e-6)


@pytest.mark.cases("cutoff")
def test_each_row_comes_from_the_text_from_which_cutoff_takes_it(case: dict[str, Any]) -> None:
    """Among the prompts are such with commas inside of tokens, and with parts that Cutoff finds in no row."""
    plain = {"syntax": "a1111", "cleaning": "none"}
    rest = "alone" if case["strong"] else "full"
    words = ", ".join(case["words"])
    found = encoded(case["prompt"], bind_hide="cutoff", bind_words=words, bind_rest=rest, **plain).hidden[0]
    expected = torch.full_like(found, torch.nan)
    for text, stretches in case["rows"].items():
        rows = torch.cat([torch.arange(*stretch) for stretch in stretches])
        expected[rows] = encoded(text, **plain).hidden[0, rows]
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("text", "word"), [("a red!_cat, a dog", "_cat"), ("cat_! red, a dog", "cat_"), ("a cat, BREAK, dog", "BREAK")]
)
def test_words_that_cutoff_would_tear_from_their_neighbours_are_refused(text: str, word: str) -> None:
    with pytest.raises(ValueError, match=f"“{word}” is not the same tokens"):
        encoded(text, syntax="a1111", bind_hide="cutoff", bind_words=word)


def test_a_refusal_is_not_lost_among_other_problems() -> None:
    with pytest.raises(ValueError, match="“1” is not the same tokens"):
        encoded("a ) " * 200 + "(red:1.2)", syntax="a1111", scheme="comfy", bind_hide="cutoff", bind_words="1")


def test_those_that_are_there_can_be_bound_alone() -> None:
    found = encoded(bind=f"{PHRASES}\na bird", binds_some=True)
    assert torch.equal(found.hidden, encoded(bind=PHRASES).hidden)
    (issue,) = found.read.issues
    assert issue.message.startswith("“a bird” is not in the prompt")
    with pytest.raises(ValueError, match="overlap"):
        encoded(bind="red cat\ncat and", binds_some=True)


def test_a_chunk_is_encoded_for_its_own_phrases_only() -> None:
    text = "a red cat BREAK a blue dog BREAK a bird"
    found = encoded(text, syntax="a1111", bind=PHRASES)
    assert found.num_encodings == 3  # each chunk has one phrase at most, and nothing is hidden from it
    assert torch.equal(found.hidden, encoded(text, syntax="a1111").hidden)


@pytest.mark.parametrize("choices", [{"bind": PHRASES}, {"bind_hide": "cutoff", "bind_words": "red\nblue"}])
def test_all_passes_go_to_the_encoder_in_one_call(choices: dict[str, str]) -> None:
    calls: list[int] = []

    def counting(ids, mask=None, *, is_causal=True):
        calls.append(len(ids))
        return TINY(ids, mask, is_causal=is_causal)

    encoded("a red cat, a blue dog", counting, **choices)
    assert calls == [3]


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(ValueError, match="bind_hide must be one of: whole phrases, these words, cutoff; got 'words'"):
        EncodeOptions(bind_hide="words")  # pyright: ignore[reportArgumentType]
