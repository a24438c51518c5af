"""Bound phrases against passes of transformers that the test hides words in and puts together itself."""

from __future__ import annotations

import pytest
import torch
from weighted_clip.encoder.encoding import EncodeFn
from weighted_clip.encoder.prefix import PrefixTextEncoder
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.pipeline import EncodedPrompt
from weighted_clip.weighting.schemes import SCHEMES
from weighted_clip.workshop.peers.transformers import transformers_text_model

from .tiny import MODEL, TINY, encode, read

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
