"""Shares of the attention by word: equal to a softmax written out, from any queries and keys."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import interpolate
from weighted_clip.weighting.placing.word_maps import (
    daam_maps,
    on_latent,
    one_hot_values,
    place_in,
    shares_by_head,
    word_shares,
)

WORDS = [(1, 2), (4,), ()]


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def probabilities(query: torch.Tensor, key: torch.Tensor, bias: torch.Tensor | float = 0.0) -> torch.Tensor:
    logits = query.double() @ key.double().transpose(-1, -2) / query.shape[-1] ** 0.5 + bias
    shares = torch.exp(logits - logits.amax(-1, keepdim=True))
    return shares / shares.sum(-1, keepdim=True)  # [batch, heads, queries, keys]


@pytest.mark.parametrize("is_masked", [False, True])
def test_shares_are_probabilities(is_masked: bool) -> None:
    query, key = drawn(2, 3, 20, 8), drawn(2, 3, 7, 8, seed=1)
    mask = drawn(2, 1, 20, 7, seed=2) if is_masked else None
    expected = probabilities(query, key, 0.0 if mask is None else mask.double()).mean(1)
    found = word_shares(query, key, WORDS, mask=mask)
    assert found.shape == (2, 3, 20)
    for index, keys in enumerate(WORDS):
        assert (found[:, index] - expected[..., list(keys)].sum(-1)).abs().max() < 1e-6
    assert (word_shares(query, key, [range(7)], mask=mask) - 1).abs().max() < 1e-6


@pytest.mark.parametrize("number", [1, 8, 9, 30])
def test_more_words_than_a_head_has_numbers(number: int) -> None:
    query, key = drawn(1, 2, 5, 8), drawn(1, 2, 30, 8, seed=1)
    expected = probabilities(query, key).mean(1)[0, :, :number].T
    assert (word_shares(query, key, [[index] for index in range(number)])[0] - expected).abs().max() < 1e-6


@pytest.mark.parametrize("form", ["by head", "flat", "by row"])
def test_values_in_every_form(form: str) -> None:
    query, key = drawn(2, 3, 5, 8), drawn(2, 3, 7, 8, seed=1)
    words = torch.zeros(2, 2, 7)
    words[0, 0, 1] = words[0, 1, 2:4] = words[1, 0, 6] = 1

    def read(value: torch.Tensor) -> torch.Tensor:
        if form == "flat":
            value = value.unflatten(-1, (3, 8))
        by_head = value if form == "by head" else value.transpose(1, 2)
        found = probabilities(query, key).float() @ by_head
        return found if form == "by head" else found.transpose(1, 2).flatten(2)

    forms = {"by head": key, "flat": key.transpose(1, 2).flatten(2), "by row": key.transpose(1, 2)}
    values = one_hot_values(words, forms[form], 8, is_by_row=form == "by row")
    found = shares_by_head(read, values, 2, 8)
    expected = torch.einsum("bhqk,bwk->bhwq", probabilities(query, key), words.double())
    assert found.shape == (2, 3, 2, 5)
    assert (found - expected).abs().max() < 1e-6


def test_a_key_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="keys of words must be 0 to 6, got 7"):
        word_shares(drawn(1, 1, 2, 4), drawn(1, 1, 7, 4), [[7]])


@pytest.mark.parametrize(
    ("cells", "size"), [((7, 11), (13, 21)), ((4, 4), (8, 8)), ((2, 3), (9, 21)), ((8, 8), (8, 8))]
)
def test_maps_that_add_up_to_1_still_do_on_the_latent(cells: tuple[int, int], size: tuple[int, int]) -> None:
    shares = drawn(2, 5, *cells).softmax(1)
    found = on_latent(shares, size)
    assert found.shape == (2, 5, *size)
    assert (found.sum(1) - 1).abs().max() < 1e-6 and found.min() > 0
    same = on_latent(torch.full((1, *cells), 0.3), size)
    assert (same - 0.3).abs().max() < 1e-6


def test_a_words_place_is_where_its_share_is_large() -> None:
    shares = torch.zeros(2, 5, 6)
    shares[0, 1, 1], shares[0, 4, 5], shares[0, 0, 5] = 0.1, 0.041, 0.039
    found = place_in(shares)
    assert found[0, 1, 1] == found[0, 2, 2] == pytest.approx(1 / 9)
    assert found[0, 0, 0] == found[0, 4, 5] == pytest.approx(1 / 4)
    assert not bool(found[0, :2, 3:].any()) and not bool(found[1].any())
    assert bool((place_in(torch.full((1, 4, 4), 0.02)) == 1).all())


def test_daam_cuts_off_each_head_before_the_mean() -> None:
    layers = [drawn(2, 3, 4, 4).softmax(1), drawn(2, 3, 8, 8, seed=1).softmax(1)]
    heads = [head for layer in layers for head in layer]
    by_hand = [interpolate(head[None], (16, 16), mode="bicubic")[0] for head in heads]
    assert min(float(one.min()) for one in by_hand) < 0
    expected = sum(one.clamp(min=0) for one in by_hand) / len(by_hand)
    assert (daam_maps(layers, (16, 16)) - expected).abs().max() < 1e-6


def test_the_attention_of_diffusers() -> None:
    """A processor of diffusers gives its queries and keys to `word_shares`, as docs/reference/attention.md says."""
    attention_of = pytest.importorskip("diffusers.models.attention_processor")
    layer = attention_of.Attention(query_dim=32, cross_attention_dim=24, heads=4, dim_head=8)
    found = []

    class Watching(attention_of.AttnProcessor2_0):
        def __call__(self, attn, hidden_states, encoder_hidden_states=None, *rest, **named):  # type: ignore[no-untyped-def]
            if encoder_hidden_states is not None:
                parts = attn.to_q(hidden_states), attn.to_k(encoder_hidden_states)
                query, key = (part.unflatten(-1, (attn.heads, -1)).transpose(1, 2) for part in parts)
                found.append(word_shares(query, key, WORDS, scale=attn.scale))
            return super().__call__(attn, hidden_states, encoder_hidden_states, *rest, **named)

    picture, text = drawn(2, 16, 32), drawn(2, 7, 24, seed=1)
    with torch.no_grad():
        before = layer(picture, text)
        layer.set_processor(Watching())
        assert torch.equal(layer(picture, text), before)
        query, key = layer.head_to_batch_dim(layer.to_q(picture)), layer.head_to_batch_dim(layer.to_k(text))
        theirs = layer.get_attention_scores(query, key).unflatten(0, (2, 4)).mean(1)
    for index, keys in enumerate(WORDS):
        assert (found[0][:, index] - theirs[..., list(keys)].sum(-1)).abs().max() < 1e-6
