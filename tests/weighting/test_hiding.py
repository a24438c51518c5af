"""Phrases hidden from others: finding them, the masks, and what cannot have an effect."""

import pytest
import torch
from weighted_clip.encoder.masks import causal_mask, hide_from, span_mask
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.pipeline import visible_fn
from weighted_clip.weighting.plan import mask_tensor
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.reading.view import view
from weighted_clip.workshop.peers.transformers import transformers_text_model

from ..libraries import library, needs_masked_kernel
from .tiny import MODEL, TINY, KnownEmbeddings, encode


def read(text: str, **options):
    return read_prompt(text, EncodeOptions(**options), default_tokenizer(), embeddings=KnownEmbeddings({"zqone": 2}))


def hidden_places(text: str, hide: str, **options) -> list[list[int]]:
    chunks = read(text, hide=hide, **options).chunks
    return [[place for place, token in enumerate(chunk.tokens) if token.is_hidden] for chunk in chunks]


@pytest.mark.parametrize(
    ("text", "hide", "places"),
    [
        ("a red cat and a dog", "red cat", [[2, 3]]),
        ("a red cat and a red dog", "red", [[2, 6]]),
        ("a (red:1.2) cat", "red cat", [[2, 3]]),
        ("a RED cat", "Red\n\n cat ", [[2, 3]]),
        ("a photorealistic cat", "photo", [[]]),  # another token
        ("a cat", "", [[]]),
        ("a red cat and a red dog", "red\nred cat", [[2, 3, 6]]),
        ("a red cat and a red dog", "red cat\nred", [[2, 3, 6]]),
        ("a embedding:zqone cat", "zqone", [[2, 3]]),
        ("a embedding:zqone cat", "embedding:zqone", [[2, 3]]),
        ("a embedding:zqone cat", "a zqone cat", [[1, 2, 3, 4]]),
        ("a embedding:zqone cat", "a embedding:zqone", [[1, 2, 3]]),
        ("a red cat and a dog", "red cat,", [[2, 3]]),
        ("cat " * 80, "cat", [list(range(1, 76)), list(range(1, 6))]),
    ],
)
def test_phrases_are_found_by_their_tokens(text: str, hide: str, places: list[list[int]]) -> None:
    assert hidden_places(text, hide) == places


def mask_of(text: str, **options):
    prompt = read(text, **options)
    return mask_tensor([*map(visible_fn(prompt.options, prompt.layout), prompt.chunks)], 77)


def test_masks_are_those_of_the_encoder() -> None:
    text = "a red cat and a dog"
    assert torch.equal(mask_of(text, hide="red cat"), span_mask(77, [(2, 4)]))
    only_dog = mask_of(text, hide="red", hidden_from="the phrases below", from_phrases="dog")
    assert torch.equal(only_dog, hide_from(77, keys=[2], queries=[6]))
    only_padding = mask_of(text, hide="red", hidden_from="padding rows only")
    assert torch.equal(only_padding, hide_from(77, keys=[2], queries=range(8, 77)))
    both = mask_of(text, hide="red", padding="mask")
    assert torch.equal(both, span_mask(77, [(2, 3), (8, 77)]))
    assert mask_of(text) is None


def encoded(text: str, **options) -> torch.Tensor:
    return encode(text, **options).hidden[0]


def test_hiding_from_everything_equals_transformers() -> None:
    library("transformers", "4.46")
    reference = transformers_text_model(MODEL)
    ids = torch.tensor([read("a red cat and a dog").chunks[0].ids])
    with torch.no_grad():
        expected = reference(ids, span_mask(77, [(2, 4)])[:, 0].long()).last_hidden_state[0]
    assert torch.equal(encoded("a red cat and a dog", hide="red cat"), expected)


def test_only_rows_that_can_see_a_phrase_change() -> None:
    needs_masked_kernel()
    text = "a red cat and a dog"
    plain = encoded(text)

    def changed(**options) -> list[int]:
        rows = (encoded(text, hide="red", **options) != plain).any(-1)
        return rows.nonzero().flatten().tolist()

    assert changed() == list(range(2, 77))
    assert changed(hidden_from="the phrases below", from_phrases="dog") == list(range(6, 77))
    assert changed(hidden_from="padding rows only") == list(range(8, 77))


def test_without_causality_every_row_sees_every_other() -> None:
    text = "a red cat and a dog"
    free = encoded(text, is_causal=False)
    assert (free != encoded(text)).any(-1)[1:].all()
    other = encoded("a red cat and a fox", is_causal=False)
    assert (free[1] - other[1]).abs().max() > 1e-3
    # as a causal mask on top gives the trained encoder back
    ids = [read(text).chunks[0].ids]
    again = TINY(ids, causal_mask(77), is_causal=False).hidden[0]
    torch.testing.assert_close(again, encoded(text), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "codes"),
    [
        ({"hide": "bird"}, ["no-such-phrase"]),
        ({"hide": "red\nbird"}, ["no-such-phrase"]),
        ({"hide": "red", "hidden_from": "the phrases below", "from_phrases": "bird"}, ["no-such-phrase"]),
        ({"hide": "red", "hidden_from": "the phrases below"}, ["no-phrases"]),
        ({"hide": "dog", "hidden_from": "the phrases below", "from_phrases": "red"}, ["already-unseen"]),
        ({"hide": "dog", "hidden_from": "the phrases below", "from_phrases": "red", "is_causal": False}, []),
        ({"hide": "red", "hidden_from": "the phrases below", "from_phrases": "dog"}, []),
        ({"hide": "red", "from_phrases": "bird"}, []),
        ({"from_phrases": "bird"}, []),
    ],
)
def test_what_cannot_have_an_effect_is_said(options: dict, codes: list[str]) -> None:
    assert [issue.code for issue in read("a red cat and a dog", **options).issues] == codes


def test_the_view_strikes_out_what_is_hidden_from_everything() -> None:
    def hidden(**options) -> list[str]:
        chips = view(read("a red cat", **options))["chunks"][0]["chips"]
        return [chip["text"] for chip in chips if chip["hidden"]]

    assert hidden(hide="red") == ["red"]
    assert hidden(hide="red", hidden_from="padding rows only") == []
    assert hidden() == []


def test_hidden_tokens_stay_hidden_when_words_fade() -> None:
    """masked_blend encodes the prompt several times; the phrase is hidden in all of them."""
    options = {"scheme": "masked_blend", "mask_method": "remove", "hide": "red"}
    assert torch.equal(encoded("a red (big:0) cat", **options), encoded("a red cat", hide="red"))


def test_many_phrases_and_many_tokens_take_one_look_at_each() -> None:
    text = "a b c d " * 2_000
    hide = "\n".join(f"a {letter} {number}" for number in range(1_000) for letter in "bcd") + "\nb c"
    hidden = read(text, hide=hide).chunks
    assert sum(token.is_hidden for chunk in hidden for token in chunk.tokens) > 3_000


def test_a_tokenizer_without_a_hash_will_do() -> None:
    class Unhashable:
        __hash__ = None  # pyright: ignore[reportAssignmentType]

        def __call__(self, text):
            return default_tokenizer()(text)

    options = EncodeOptions(hide="cat")
    reads = [read_prompt("a cat", options, tokenize) for tokenize in (Unhashable(), default_tokenizer())]
    assert reads[0].chunks == reads[1].chunks
    assert any(token.is_hidden for token in reads[0].chunks[0].tokens)
