"""ru-DALL-E's layout of the prior, compared with its own model; and its weights as a file of ours."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from weighted_clip.encoder.models.config import MaskVariant
from weighted_clip.encoder.sparse_masks import (
    transposed_column_mask,
    transposed_order,
)
from weighted_clip.studio.dalle.config import PriorConfig
from weighted_clip.studio.dalle.prior import Prior
from weighted_clip.studio.dalle.published import VARIANTS, prior_of

from .rudalle import SIZES, formula_ids, formula_state
from .test_prior import seeded

RECORDED = Path(__file__).resolve().parents[1] / "data" / "rudalle_logits.json"
TEXT, TEXTS, HEADS = SIZES["text_seq_length"], SIZES["vocab_size"], SIZES["num_attention_heads"]


def ours(variant: MaskVariant, state: dict[str, Tensor]) -> Prior:
    return prior_of(state, variant, HEADS)


def read(prior: Prior, ids: Tensor) -> Tensor:
    """A caption as we write it: ids without the padding, padded by the model."""
    return prior.padded([[piece for piece in row if piece] for row in ids[:, :TEXT].tolist()])


def both(prior: Prior, ids: Tensor) -> tuple[Tensor, Tensor]:
    return prior(read(prior, ids), ids[:, TEXT:])


# ---- compared with its own model


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_rudalle_gave_once_comes_out_again(variant: MaskVariant) -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))[variant]
    text, image = both(ours(variant, formula_state()), formula_ids())
    assert text.flatten()[::11].tolist() == pytest.approx(recorded["text"], abs=2e-5)
    assert image.flatten()[::37].tolist() == pytest.approx(recorded["image"], abs=2e-5)


def test_the_variants_give_other_numbers() -> None:
    """So that a test which mixes them up fails."""
    found = [both(ours(variant, formula_state(dtype=torch.float64)), formula_ids()) for variant in VARIANTS]
    prior = ours("rudalle-v3", formula_state(dtype=torch.float64))
    plain = Prior(replace(prior.config, variant="dalle")).double()
    plain.load_state_dict(prior.state_dict(), strict=False)
    plain_text, plain_image = both(plain, formula_ids())
    for one, other in zip(found[0], found[1], strict=True):
        assert (one - other).abs().max() > 1e-2
    for one, other in zip((plain_text, plain_image), found[1], strict=True):
        assert (one - other).abs().max() > 1e-2


# ---- layers and masks


@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_a_column_layer_on_the_transposed_image_equals_one_under_the_plain_mask(
    dtype: torch.dtype, allowed: float
) -> None:
    """The whole layer, relative to its largest number."""
    prior = ours("rudalle-v3", formula_state(dtype=dtype))
    layer, grid = prior.layers[1], prior.config.grid
    hidden = torch.randn(2, prior.config.length, 32, dtype=dtype, generator=torch.Generator().manual_seed(0))
    order, back = transposed_order(TEXT, grid), transposed_order(TEXT, grid[::-1])
    plain = layer(hidden, prior.mask(1), is_causal=False)
    transposed = layer(hidden[:, order], transposed_column_mask(TEXT, grid).unsqueeze(1), is_causal=False)
    assert (transposed[:, back] - plain).abs().max() <= allowed * plain.abs().max()


@pytest.mark.parametrize("variant", [*VARIANTS, "dalle"])
def test_a_position_changes_what_the_mask_says_in_each_layer_alone(variant: MaskVariant) -> None:
    prior = seeded() if variant == "dalle" else ours(variant, formula_state(dtype=torch.float64))
    generator, width = torch.Generator().manual_seed(0), prior.config.hidden_dim
    hidden = torch.randn(1, prior.config.length, width, dtype=torch.float64, generator=generator)
    for index, layer in enumerate(prior.layers):
        mask = prior.mask(index)
        before = layer(hidden, mask, is_causal=False)
        for place in range(prior.config.length):
            other = hidden.clone()
            other[0, place] += torch.randn(width, dtype=torch.float64, generator=generator)
            changed = (layer(other, mask, is_causal=False) != before).any(-1)[0]
            assert torch.equal(changed, mask[0, 0, :, place])


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_token_changes_nothing_that_it_cannot_have_reached(variant: MaskVariant) -> None:
    """In the whole model, after each layer: by steps that the masks so far permit."""
    prior = ours(variant, formula_state(dtype=torch.float64))
    ids = formula_ids()[:1]
    text, image = read(prior, ids), ids[:, TEXT:]
    states = all_states(prior, text, image)
    start = prior.config.has_start
    length = prior.config.length - (not start)
    assert [state.shape[1] for state in states] == [length] * 8
    for place in range(start, length):
        others = text.clone(), image.clone()
        which, number = (0, place - start) if place - start < TEXT else (1, place - start - TEXT)
        others[which][0, number] = (others[which][0, number] + 1) % 13
        reached = torch.zeros(length, dtype=torch.bool)
        reached[place] = True
        for index, (before, after) in enumerate(zip(states, all_states(prior, *others), strict=True)):
            if index:
                reached = (prior.mask(index - 1)[0, 0, :length, :length] & reached).any(1)
            changed = (before != after).any(-1)[0]
            assert changed[place]
            assert not changed[~reached].any()


def all_states(prior: Prior, text: Tensor, image: Tensor) -> list[Tensor]:
    """The embeddings, and what each layer gives."""
    states: list[Tensor] = []
    hooks = [prior.layers[0].register_forward_pre_hook(lambda _, given: states.append(given[0]))]
    hooks += [layer.register_forward_hook(lambda _, __, given: states.append(given)) for layer in prior.layers]
    prior(text, image)
    for hook in hooks:
        hook.remove()
    return states


def test_version_2_begins_with_a_piece_of_its_own() -> None:
    prior = ours("rudalle-v2", formula_state())
    text = read(prior, formula_ids())
    assert prior.embedded_text(text).shape == (2, TEXT + 1, 32)
    assert torch.equal(
        prior.embedded_text(text)[0, 0], prior.text_embedding.weight[2] + prior.text_position_embedding.weight[0]
    )
    assert ours("rudalle-v3", formula_state()).embedded_text(text).shape == (2, TEXT, 32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variant": "rudalle"}, "variant must be one of dalle, rudalle-v2, rudalle-v3, got 'rudalle'"),
        ({"variant": "rudalle-v2", "text_vocab_size": 2}, "rudalle-v2 needs a text_vocab_size above 2, got 2"),
        ({"activation": "gelu_jit"}, "activation must be one of quick_gelu, gelu, gelu_tanh, got 'gelu_jit'"),
    ],
)
def test_layouts_that_cannot_be(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PriorConfig(**change)  # pyright: ignore[reportArgumentType]
