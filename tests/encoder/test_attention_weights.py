"""Attention weights against transformers' ``output_attentions``, and what must hold for any mask."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.masks import MaskError, causal_mask, hide_from, padding_mask
from weighted_clip.encoder.models.attention_weights import allowed_keys, attention_weights
from weighted_clip.encoder.models.config import CLIP_L
from weighted_clip.encoder.models.text_model import TextModel
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.pipeline import plan_prompt
from weighted_clip.weighting.plan import mask_tensor
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.workshop.peers.transformers import transformers_text_model

from ..libraries import library
from .conftest import TINY, random_ids


def all_layers(model: TextModel, ids: Tensor, mask: Tensor | None = None, **others: bool) -> Tensor:
    """``[layers, batch, heads, 77, 77]``."""
    layers = range(1, model.config.num_layers + 1)
    return torch.stack([attention_weights(model, ids, mask, layer=layer, **others) for layer in layers])


def theirs(reference, ids: Tensor, key_mask: Tensor | None) -> Tensor:
    """The same by transformers, which takes masks of keys alone."""
    mask = None if key_mask is None else key_mask.long()
    with torch.no_grad():
        return torch.stack(reference(ids, mask, output_attentions=True).attentions)


def test_equals_transformers_in_every_layer_and_head(wide: TextModel) -> None:
    library("transformers", "4.46")
    config = wide.config
    reference = transformers_text_model(wide, "eager")
    ids = random_ids(2, pad_id=config.pad_id)
    some = torch.rand(2, 77, generator=torch.Generator().manual_seed(1)) > 0.4
    some[:, 0] = True
    for mask in (None, padding_mask(ids, eos_id=config.eos_id, pad_id=config.pad_id)[:, 0], some):
        expected, found = theirs(reference, ids, mask), all_layers(wide, ids, mask)
        assert expected.shape == found.shape == (config.num_layers, 2, config.num_heads, 77, 77)
        assert (found - expected).abs().max() <= 1e-6
        assert found[..., 40, :41].std() > 1e-3, "weights that are all alike would show nothing"


def test_equals_transformers_for_the_masks_of_masked_blend(shallow: TextModel) -> None:
    library("transformers", "4.46")
    reference = transformers_text_model(shallow, "eager")
    text = "a (red:1.4) cat and a (dog:0.5) in a (bowl:0.2)"
    read = read_prompt(text, EncodeOptions(syntax="a1111", scheme="masked_blend"), default_tokenizer())
    asks = [variant.asks()[0] for variant in plan_prompt(read, default_tokenizer()).variants() if not variant.is_aside]
    masks = [mask_tensor([ask.visible], 77) for ask in asks]
    assert [mask is None for mask in masks] == [True, False, False]
    for ask, mask in zip(asks, masks, strict=True):
        ids = torch.tensor([ask.ids])
        keys = None if mask is None else mask[:, 0]  # what masked_blend hides is hidden from all alike
        assert mask is None or mask.shape[1] == 1
        assert (all_layers(shallow, ids, mask) - theirs(reference, ids, keys)).abs().max() <= 1e-6


def test_what_hides_words_from_some_only_and_what_is_not_causal(tiny: TextModel) -> None:
    """By an encoding worked out with these weights: they are those that the pass has, whatever the mask."""
    ids = random_ids(2)
    hidden = hide_from(77, keys=[2, 3], queries=[5, 6, 7])
    for mask, is_causal in ((hidden, True), (hidden, False), (None, False), (None, True)):
        states = tiny(ids, mask, is_causal=is_causal).hidden_states
        for layer, block in enumerate(tiny.encoder.layers):
            weights = attention_weights(tiny, ids, mask, layer=layer + 1, is_causal=is_causal)
            normed = block.layer_norm1(states[layer])
            values = block.self_attn.v_proj(normed).unflatten(-1, (tiny.config.num_heads, -1)).transpose(1, 2)
            after = states[layer] + block.self_attn.out_proj((weights @ values).transpose(1, 2).flatten(2))
            after = after + block.mlp(block.layer_norm2(after))
            torch.testing.assert_close(after, states[layer + 1], rtol=0, atol=2e-6)
            allowed = allowed_keys(2, 77, mask, is_causal=is_causal)
            assert torch.equal(weights > 0, allowed.unsqueeze(1).expand_as(weights))
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]), rtol=0, atol=1e-6)


def test_rotary_positions_and_vectors_count() -> None:
    config = replace(TINY, positions="rotary")
    model, ids = seeded_text_model(config), random_ids(1)
    weights = attention_weights(model, ids, layer=1)
    states = model(ids).hidden_states
    block = model.encoder.layers[0]
    q, k, v = (
        layer(block.layer_norm1(states[0])).unflatten(-1, (2, -1)).transpose(1, 2)
        for layer in (block.self_attn.q_proj, block.self_attn.k_proj, block.self_attn.v_proj)
    )
    rotate = model.rotation(torch.arange(77))
    assert rotate is not None
    mixed = torch.nn.functional.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
    torch.testing.assert_close(weights @ v, mixed, rtol=0, atol=1e-6)
    vectors = {(0, 1): torch.full((TINY.hidden_dim,), 3.0)}
    assert not torch.equal(attention_weights(model, ids, layer=1, vectors=vectors), weights)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_half_precision_are_float32_and_those_of_float64_as_exact(dtype: torch.dtype) -> None:
    model, ids = seeded_text_model(TINY), random_ids(1)
    exact = all_layers(model.double(), ids)
    found = all_layers(seeded_text_model(TINY, dtype=dtype), ids)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert (found - exact).abs().max() <= {torch.float64: 1e-7, torch.float16: 0.01, torch.bfloat16: 0.05}[dtype]


@pytest.mark.parametrize("layer", [0, 4, -1])
def test_a_layer_that_is_not_there_is_refused(tiny: TextModel, layer: int) -> None:
    with pytest.raises(ValueError, match=f"layer {layer} is out of range: this encoder has layers 1 to 3"):
        attention_weights(tiny, random_ids(1), layer=layer)


def test_masks_are_checked_as_when_it_encodes(tiny: TextModel) -> None:
    mask = torch.ones(1, 77, dtype=torch.bool)
    mask[0, 0] = False
    with pytest.raises(MaskError, match="BOS"):
        attention_weights(tiny, random_ids(1), mask, layer=1)
    with pytest.raises(MaskError, match="bool"):
        allowed_keys(1, 77, mask.long(), is_causal=True)
    assert torch.equal(allowed_keys(3, 77, None, is_causal=True), causal_mask(77).expand(3, -1, -1))
    assert bool(allowed_keys(1, CLIP_L.context_length, None, is_causal=False).all())
