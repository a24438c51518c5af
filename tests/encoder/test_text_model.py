"""The text tower against transformers and the lecture's equations, what must hold for any mask, and gradients."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from weighted_clip.encoder.files.checkpoint import seeded_text_model, seeded_vision_model
from weighted_clip.encoder.masks import MaskError, causal_mask, combine, hide_from, padding_mask, span_mask
from weighted_clip.encoder.models.config import CLIP_L, TextConfig, VisionConfig
from weighted_clip.encoder.models.text_model import TextEncoder, TextModel, first_eos
from weighted_clip.encoder.models.vision_model import VisionModel
from weighted_clip.workshop.peers.transformers import transformers_projected_model, transformers_text_model

from ..libraries import library, needs_half, needs_masked_kernel
from .conftest import TINY, random_ids


def some_masks(ids: Tensor, config: TextConfig, number: int) -> list[Tensor | None]:
    """No mask, key masks that keep BOS, and that of the padding."""
    generator = torch.Generator().manual_seed(1)
    masks = [torch.rand(len(ids), 77, generator=generator) > 0.4 for _ in range(number)]
    for mask in masks:
        mask[:, 0] = True
    return [None, *masks, padding_mask(ids, eos_id=config.eos_id, pad_id=config.pad_id)[:, 0]]


def assert_equals_transformers(model: TextModel, batch: int, num_masks: int) -> None:
    """All outputs equal those of transformers' sdpa bit for bit."""
    library("transformers", "4.46")
    config = model.config
    make = transformers_text_model if config.projection_dim is None else transformers_projected_model
    reference = make(model)
    ids = random_ids(batch, pad_id=config.pad_id)
    for mask in some_masks(ids, config, num_masks):
        with torch.no_grad():
            expected = reference(ids, None if mask is None else mask.long(), output_hidden_states=True)
        found = model(ids, mask)
        assert torch.equal(found.hidden, expected.last_hidden_state)
        if config.projection_dim is None:
            assert torch.equal(found.pooled, expected.pooler_output)
        else:
            assert found.projected.shape == (batch, config.projection_dim)
            assert torch.equal(found.projected, expected.text_embeds)
        assert len(found.hidden_states) == len(expected.hidden_states) == config.num_layers + 1
        assert all(map(torch.equal, found.hidden_states, expected.hidden_states))


@pytest.mark.parametrize("batch", [1, 4])
def test_equals_transformers_sdpa_bit_for_bit(wide: TextModel, batch: int) -> None:
    assert_equals_transformers(wide, batch, 2)


def test_equals_transformers_sdpa_bit_for_bit_for_many_masks(tiny: TextModel) -> None:
    assert_equals_transformers(tiny, 4, 20)


def test_equals_transformers_sdpa_bit_for_bit_at_full_size(clip_l: TextModel) -> None:
    assert_equals_transformers(clip_l, 2, 1)


def test_is_close_to_transformers_eager(shallow: TextModel) -> None:
    library("transformers")
    reference = transformers_text_model(shallow, "eager")
    ids = random_ids(4, seed=2)
    mask = torch.rand(4, 77, generator=torch.Generator().manual_seed(3)) > 0.4
    mask[:, 0] = True
    for key_mask in (None, mask):
        with torch.no_grad():
            expected = reference(ids, None if key_mask is None else key_mask.long()).last_hidden_state
            found = shallow(ids, key_mask).hidden
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def lecture_encoder(w: dict[str, Tensor], config: TextConfig, ids: Tensor, mask: Tensor) -> Tensor:
    """Equations (24) to (63) one by one, head by head, and biases in attention. ids [L], mask [L, L] of 0 and 1."""

    def layer_norm(x: Tensor, name: str) -> Tensor:
        mean = x.mean(dim=1, keepdim=True)  # (28)
        variance = ((x - mean) ** 2).mean(dim=1, keepdim=True)  # (29)
        gamma, beta = w[f"{name}.weight"], w[f"{name}.bias"]
        return gamma * (x - mean) / torch.sqrt(variance + config.layer_norm_eps) + beta  # (30)

    def attention(x: Tensor, name: str) -> Tensor:
        heads = []
        for head in range(config.num_heads):
            columns = slice(head * config.head_dim, (head + 1) * config.head_dim)
            q, k, v = (
                x @ w[f"{name}.{part}_proj.weight"].T[:, columns] + w[f"{name}.{part}_proj.bias"][columns]
                for part in "qkv"
            )  # (35)
            scores = q @ k.T / math.sqrt(config.head_dim)  # (36)
            scores = torch.where(mask == 1, scores, -torch.inf)  # (37)
            weights = scores.exp() / scores.exp().sum(dim=1, keepdim=True)  # (33)
            heads.append(weights @ v)  # (38)
        return torch.cat(heads, dim=1) @ w[f"{name}.out_proj.weight"].T + w[f"{name}.out_proj.bias"]  # (39)

    def mlp(x: Tensor, name: str) -> Tensor:
        h1 = x @ w[f"{name}.fc1.weight"].T + w[f"{name}.fc1.bias"]  # (41)
        h2 = h1 * (1 / (1 + torch.exp(-1.702 * h1)))  # (31), (42)
        return h2 @ w[f"{name}.fc2.weight"].T + w[f"{name}.fc2.bias"]  # (43)

    tokens = w["embeddings.token_embedding.weight"][ids]  # (26), (53)
    positions = w["embeddings.position_embedding.weight"][torch.arange(len(ids))]  # (54)
    x = tokens + positions  # (55), (58)
    for layer in range(config.num_layers):
        name = f"encoder.layers.{layer}"
        y = x + attention(layer_norm(x, f"{name}.layer_norm1"), f"{name}.self_attn")  # (45) to (47)
        x = y + mlp(layer_norm(y, f"{name}.layer_norm2"), f"{name}.mlp")  # (47), (48)
    return layer_norm(x, "final_layer_norm")  # (52), (62), (63)


@pytest.mark.parametrize(
    ("num_layers", "convention", "has_biases"),
    [(CLIP_L.num_layers, "tokenizer", False), (2, "lecture", False), (2, "tokenizer", True), (2, "lecture", True)],
)
def test_equals_the_lectures_equations_in_float64(num_layers: int, convention: str, has_biases: bool) -> None:
    config = replace(CLIP_L, num_layers=num_layers)
    model = seeded_text_model(config, dtype=torch.float64)
    weights = dict(model.state_dict())
    for key, weight in weights.items():
        if "self_attn" in key and key.endswith("bias") and not has_biases:  # the lecture has none
            weight.zero_()
    ids = random_ids(1, seed=4)
    pad = padding_mask(ids, eos_id=CLIP_L.eos_id, pad_id=CLIP_L.pad_id, convention=convention)
    product = (causal_mask(77) & pad)[0].long()  # (59) to (61)
    expected = lecture_encoder(weights, config, ids[0], product)
    torch.testing.assert_close(model(ids, pad).hidden[0], expected, rtol=0, atol=1e-10)


TINY_MODEL = seeded_text_model(TINY)  # hypothesis wants no fixtures that live longer than an example

key_masks = st.lists(st.booleans(), min_size=77, max_size=77).map(lambda flags: torch.tensor([[True, *flags[1:]]]))


@given(mask=key_masks)
def test_no_mask_that_keeps_bos_gives_nan(mask: Tensor) -> None:
    for is_causal in (True, False):
        output = TINY_MODEL(random_ids(1), mask, is_causal=is_causal)
        assert torch.isfinite(output.hidden).all()
        assert torch.isfinite(output.pooled).all()


def assert_hiding_changes_no_earlier_position(model: TextModel, position: int, seed: int) -> None:
    needs_masked_kernel()
    ids = random_ids(1, seed)
    plain, masked = model(ids).hidden, model(ids, span_mask(77, [(position, position + 1)])).hidden
    assert torch.equal(plain[:, :position], masked[:, :position])
    assert not torch.equal(plain[:, position:], masked[:, position:])


@given(position=st.integers(1, 76), seed=st.integers(0, 99))
def test_hiding_a_token_leaves_earlier_positions_bit_identical(position: int, seed: int) -> None:
    assert_hiding_changes_no_earlier_position(TINY_MODEL, position, seed)


@pytest.mark.parametrize("position", [1, 2, 40, 76])
def test_hiding_a_token_leaves_earlier_positions_bit_identical_at_full_size(clip_l: TextModel, position: int) -> None:
    assert_hiding_changes_no_earlier_position(clip_l, position, seed=position)


def test_a_mask_of_all_true_equals_no_mask(shallow: TextModel) -> None:
    needs_masked_kernel()
    ids = random_ids(3)
    plain = shallow(ids)
    for shape in ((3, 77), (1, 1, 77), (3, 1, 77), (1, 77, 77), (3, 77, 77)):
        assert torch.equal(shallow(ids, torch.ones(shape, dtype=torch.bool)).hidden, plain.hidden)
    # and one whose batch holds a real mask in another row
    mixed = torch.ones(3, 77, dtype=torch.bool)
    mixed[1, 5] = False
    assert torch.equal(shallow(ids, mixed).hidden[[0, 2]], plain.hidden[[0, 2]])


def test_key_masks_and_the_same_per_query_are_equal(tiny: TextModel) -> None:
    ids = random_ids(2)
    keys = torch.ones(2, 1, 77, dtype=torch.bool)
    keys[0, 0, 3:6] = False
    assert torch.equal(tiny(ids, keys).hidden, tiny(ids, keys.expand(2, 77, 77)).hidden)
    assert torch.equal(tiny(ids, keys).hidden, tiny(ids, keys.squeeze(1)).hidden)


def test_hiding_from_some_queries_changes_only_what_depends_on_them() -> None:
    needs_masked_kernel()
    model = seeded_text_model(replace(TINY, num_layers=1))
    ids = random_ids(1)
    plain, masked = model(ids).hidden, model(ids, hide_from(77, keys=[2], queries=[5])).hidden
    changed = (plain != masked).any(-1)[0].nonzero().flatten().tolist()
    assert changed == [5]


def test_masks_add_to_causality_unless_told_otherwise(tiny: TextModel) -> None:
    ids = random_ids(1)
    later = ids.clone()
    later[0, 76] = 5
    mask = span_mask(77, [(2, 3)])
    assert torch.equal(tiny(ids, mask).hidden[:, :76], tiny(later, mask).hidden[:, :76])
    assert not torch.equal(
        tiny(ids, mask, is_causal=False).hidden[:, :76], tiny(later, mask, is_causal=False).hidden[:, :76]
    )


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (span_mask(77, [(0, 1)]), "BOS"),
        (hide_from(77, keys=[0], queries=[76]), "BOS"),
        (torch.ones(1, 77), "bool"),
        (torch.ones(1, 76, dtype=torch.bool), r"\[1, 76\]|\[1, 1, 76\]"),
        (torch.ones(3, 77, dtype=torch.bool), "does not fit 1 chunks of 77"),
        (torch.ones(1, 1, 77, 77, dtype=torch.bool), "does not fit"),
    ],
)
def test_masks_that_cannot_be_used_are_refused(tiny: TextModel, mask: Tensor, message: str) -> None:
    with pytest.raises(MaskError, match=message):
        tiny(random_ids(1), mask)


def test_clip_skip_chooses_the_layer_and_not_the_pooled_vector(tiny: TextModel) -> None:
    ids = random_ids(2)
    states = tiny(ids).hidden_states
    for skip in range(1, TINY.num_layers + 2):
        raw, normed = tiny(ids, clip_skip=skip, final_norm=False), tiny(ids, clip_skip=skip)
        assert torch.equal(raw.hidden, states[-skip])
        assert torch.equal(normed.hidden, tiny.final_layer_norm(states[-skip]))
        assert torch.equal(raw.pooled, tiny(ids).pooled)
    for skip in (0, TINY.num_layers + 2):
        with pytest.raises(ValueError, match=f"clip_skip {skip}"):
            tiny(ids, clip_skip=skip)


def test_pooled_is_the_last_state_at_the_first_eos_and_projected_its_projection(tiny: TextModel) -> None:
    ids = random_ids(3)
    output = tiny(ids)
    for row in range(3):
        position = ids[row].tolist().index(CLIP_L.eos_id)
        assert torch.equal(output.pooled[row], output.hidden[row, position])
    assert output.projected is not None
    torch.testing.assert_close(output.projected, output.pooled @ tiny.text_projection.weight.T)


def test_first_eos_ignores_larger_ids_and_falls_back_to_the_end() -> None:
    assert first_eos(torch.tensor([[9, 60000, 49407, 49407], [9, 1, 2, 3]]), 49407).tolist() == [2, 3]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_near_float32(dtype: torch.dtype) -> None:
    needs_half(dtype)
    config = replace(CLIP_L, hidden_dim=256, num_heads=4, mlp_dim=1024)
    ids = random_ids(1)
    half = seeded_text_model(config, dtype=dtype)
    exact, rounded = seeded_text_model(config)(ids).hidden, half(ids, span_mask(77, [])).hidden
    assert rounded.dtype == dtype
    # relative error of a whole tensor: a few units of the type's own precision after 12 layers
    error = (rounded.float() - exact).norm() / exact.norm()
    assert error < 12 * torch.finfo(dtype).eps


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_is_close_to_cpu(clip_l: TextModel) -> None:
    ids = random_ids(4)
    mask = combine(span_mask(77, [(3, 6)]), hide_from(77, keys=[8], queries=[9]))
    device_model = seeded_text_model(CLIP_L).cuda()
    found = device_model(ids.cuda(), mask).hidden.cpu()
    torch.testing.assert_close(found, clip_l(ids, mask).hidden, rtol=0, atol=1e-3)


def test_text_encoder_gives_float32_and_the_chosen_layer(tiny: TextModel) -> None:
    ids = random_ids(2).tolist()
    encoding = TextEncoder(seeded_text_model(TINY, dtype=torch.bfloat16), clip_skip=2, final_norm=False)(ids)
    assert encoding.hidden.dtype == encoding.pooled.dtype == torch.float32
    assert torch.equal(
        TextEncoder(tiny, clip_skip=2, final_norm=False)(ids).hidden, tiny(torch.tensor(ids)).hidden_states[-2]
    )
    projected = TextEncoder(tiny, projected=True)(ids).pooled
    assert torch.equal(projected, tiny(torch.tensor(ids)).projected)


def test_projection_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="no text projection"):
        TextEncoder(seeded_text_model(replace(TINY, projection_dim=None)), projected=True)


def test_ids_longer_than_the_context_are_refused(tiny: TextModel) -> None:
    with pytest.raises(ValueError, match=r"\[1, 78\]"):
        tiny(torch.zeros(1, 78, dtype=torch.long))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_dim": 0}, "hidden_dim"),
        ({"num_heads": 7}, "multiple"),
        ({"activation": "relu"}, "relu"),
        ({"context_length": 1}, "context_length"),
    ],
)
def test_impossible_sizes_are_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TextConfig(**change)


# --- gradients


TEXT = TextConfig(hidden_dim=64, num_heads=1, num_layers=3, mlp_dim=64, projection_dim=32)
VISION = VisionConfig(
    image_size=28, patch_size=14, hidden_dim=64, num_heads=1, num_layers=3, mlp_dim=64, projection_dim=32
)


def gradients(model: TextModel | VisionModel, given: torch.Tensor, *masks: torch.Tensor) -> dict[str, torch.Tensor]:
    model.requires_grad_(True).zero_grad()
    output = model(given, *masks)
    output.projected.square().sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("tower", ["text", "vision", "masked text", "rotary text"])
def test_layers_that_are_computed_again_give_the_same_gradients_and_keep_less(tower: str) -> None:
    generator = torch.Generator().manual_seed(0)
    masks = [torch.rand(2, 20, generator=generator) < 0.5] if tower == "masked text" else []
    for mask in masks:
        mask[:, 0] = True
    if tower == "vision":
        model, given = seeded_vision_model(VISION), torch.randn(2, 3, 28, 28, generator=generator)
    else:
        config = replace(TEXT, positions="rotary") if tower == "rotary text" else TEXT
        model, given = seeded_text_model(config), torch.randint(49406, (2, 20), generator=generator)
    found: list[dict[str, torch.Tensor]] = []
    kept: list[int] = []
    for is_checkpointed in (False, True):
        model.encoder.is_checkpointed = is_checkpointed
        found.append(gradients(model, given, *masks))
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda saved, sizes=sizes: sizes.append(saved.numel()) or saved, lambda saved: saved
        ):
            model(given, *masks)
        kept.append(sum(sizes))
    plain, again = found
    assert plain.keys() == again.keys()
    for name, gradient in plain.items():
        assert torch.equal(gradient, again[name]), name
    assert kept[1] < kept[0] / 2


def test_a_shorter_batch_has_the_gradients_of_the_full_length() -> None:
    """Nothing after EOS affects what is before it, so training computes no padding."""
    model = seeded_text_model(TEXT).double()
    ids = torch.full((3, 77), 49407)
    ids[:, 0] = 49406
    ids[:, 1:9] = torch.randint(49406, (3, 8), generator=torch.Generator().manual_seed(1))
    ids[1, 5:] = 49407
    full, short = gradients(model, ids), gradients(model, ids[:, :10])
    for name, gradient in full.items():
        assert (gradient - short[name]).abs().max() <= 1e-12 * max(1.0, gradient.abs().max().item()), name
