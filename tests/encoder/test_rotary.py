"""Rotary positions against transformers' Llama and the paper's form; every pass of the encoder; files, and refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from weighted_clip.encoder.files.checkpoint import (
    hugging_face_tensors,
    load_text_models,
    position_metadata,
    seeded_text_model,
)
from weighted_clip.encoder.files.tensor_file import CheckpointError
from weighted_clip.encoder.masks import causal_mask
from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.encoder.models.layers import rotation
from weighted_clip.encoder.models.prefix import PrefixTextEncoder
from weighted_clip.encoder.models.text_model import TextEncoder, TextModel
from weighted_clip.studio.training.scaling.grad_cache import pack, projected

from ..libraries import library
from .conftest import TINY, random_ids

ROTARY = replace(TINY, positions="rotary")
HEAD_DIM = 8
LENGTH = 77
POSITION_KEY = "text_model.embeddings.position_embedding.weight"


@pytest.fixture(scope="module")
def rotary() -> TextModel:
    return seeded_text_model(ROTARY)


def heads(seed: int, length: int = LENGTH, head_dim: int = HEAD_DIM) -> Tensor:
    """``[2, 3, length, head_dim]``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 3, length, head_dim, generator=generator, dtype=torch.float64)


def thetas(head_dim: int) -> list[float]:
    return [10000 ** (-2 * (i - 1) / head_dim) for i in range(1, head_dim // 2 + 1)]


# ---- the rotation


def test_equals_llamas() -> None:
    library("transformers")
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    q, k, positions = heads(0), heads(1), torch.arange(LENGTH)
    angles = positions.double()[:, None] * torch.tensor(thetas(HEAD_DIM) * 2, dtype=torch.float64)
    expected = apply_rotary_pos_emb(q, k, angles.cos()[None], angles.sin()[None])
    rotate = rotation(positions, HEAD_DIM)
    for ours, theirs in zip((rotate(q), rotate(k)), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
        assert (ours - heads(0)).abs().max() > 0.1
    # and its own angles, which it has in float32
    config = LlamaConfig(hidden_size=HEAD_DIM, num_attention_heads=1, num_key_value_heads=1)
    cos, sin = LlamaRotaryEmbedding(config)(q, positions[None])
    expected = apply_rotary_pos_emb(q, k, cos, sin)
    torch.testing.assert_close(rotate(q), expected[0], atol=3e-5, rtol=0)


def adjacent(y: Tensor, position: int) -> Tensor:
    """``R y`` of the paper for one vector, by its matrix: channels 2i - 1 and 2i make a pair."""
    d = len(y)
    matrix = torch.zeros(d, d, dtype=torch.float64)
    for i, theta in enumerate(thetas(d)):
        sine, cosine = math.sin(position * theta), math.cos(position * theta)
        matrix[2 * i, 2 * i] = matrix[2 * i + 1, 2 * i + 1] = cosine
        matrix[2 * i, 2 * i + 1], matrix[2 * i + 1, 2 * i] = -sine, sine
    return matrix @ y


def test_equals_adjacent_pairs_when_the_rows_of_queries_and_keys_are_permuted() -> None:
    """The weights' rows are put into another order: first all first channels of pairs, then all second ones."""
    generator = torch.Generator().manual_seed(0)
    of_q, of_k, x = (torch.randn(HEAD_DIM, HEAD_DIM, generator=generator, dtype=torch.float64) for _ in range(3))
    order = [*range(0, HEAD_DIM, 2), *range(1, HEAD_DIM, 2)]
    positions = torch.tensor([0, 1, 5, 9, 30, 76, 200, 246])
    rotate = rotation(positions, HEAD_DIM)
    ours_q, ours_k = (rotate((x @ weight[order].T)[None]).squeeze(0) for weight in (of_q, of_k))
    for t, m in enumerate(positions.tolist()):
        for j, n in enumerate(positions.tolist()):
            expected = adjacent(of_q @ x[t], m) @ adjacent(of_k @ x[j], n)
            assert abs(ours_q[t] @ ours_k[j] - expected) <= 1e-12
    unpermuted = rotate((x @ of_q.T)[None]).squeeze(0) @ rotate((x @ of_k.T)[None]).squeeze(0).T
    assert (unpermuted - ours_q @ ours_k.T).abs().max() > 0.1


@pytest.mark.parametrize("shift", [1, 40, 171])
def test_scores_depend_on_distance_alone(shift: int) -> None:
    q, k = heads(0), heads(1)
    scores = [
        rotate(q) @ rotate(k).transpose(-1, -2)
        for rotate in (rotation(torch.arange(LENGTH) + more, HEAD_DIM) for more in (0, shift))
    ]
    torch.testing.assert_close(*scores, atol=1e-12, rtol=0)
    moved = rotation(torch.arange(LENGTH) + shift, HEAD_DIM)(q) @ rotation(torch.arange(LENGTH), HEAD_DIM)(k).mT
    assert (moved - scores[0]).abs().max() > 0.1


def test_each_row_of_a_batch_may_have_its_own_positions() -> None:
    q = heads(0)
    positions = torch.stack([torch.arange(LENGTH), torch.arange(LENGTH).flip(0)])
    both = rotation(positions, HEAD_DIM)(q)
    for row in (0, 1):
        torch.testing.assert_close(both[row], rotation(positions[row], HEAD_DIM)(q[row]), atol=0, rtol=0)


# ---- the encoder


def reference(model: TextModel, ids: Tensor, keep: Tensor) -> Tensor:
    """Last hidden states by transformers' rotation of Llama and our weights, written out for one head after another."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    config, length = model.config, ids.shape[1]
    turns = torch.tensor(thetas(config.head_dim) * 2, dtype=torch.float64)
    angles = (torch.arange(length).double()[:, None] * turns)[None]  # [1, s, e]
    hidden = model.embeddings.token_embedding(ids)
    for layer in model.encoder.layers:
        attention, normed = layer.self_attn, layer.layer_norm1(hidden)
        parts = [project(normed).split(config.head_dim, -1) for project in (attention.q_proj, attention.k_proj)]
        mixed = []
        for q, k, v in zip(*parts, attention.v_proj(normed).split(config.head_dim, -1), strict=True):
            q, k = (one[:, 0] for one in apply_rotary_pos_emb(q[:, None], k[:, None], angles.cos(), angles.sin()))
            scores = (q @ k.mT / math.sqrt(config.head_dim)).masked_fill(~keep, -math.inf)
            mixed.append(scores.softmax(-1) @ v)
        hidden = hidden + attention.out_proj(torch.cat(mixed, -1))
        hidden = hidden + layer.mlp(layer.layer_norm2(hidden))
    return model.final_layer_norm(hidden)


@pytest.mark.parametrize("is_causal", [True, False])
def test_the_tower_turns_queries_and_keys_of_every_layer(rotary: TextModel, is_causal: bool) -> None:
    library("transformers")
    model, ids = seeded_text_model(ROTARY, dtype=torch.float64), random_ids(3)
    keep = causal_mask(LENGTH) if is_causal else torch.ones(1, LENGTH, LENGTH, dtype=torch.bool)
    found = model(ids, is_causal=is_causal).hidden
    torch.testing.assert_close(found, reference(model, ids, keep), atol=1e-12, rtol=0)
    assert model.embeddings.position_embedding is None
    keep = keep.clone()
    keep[..., 4:9] = keep[..., 4:9] & torch.eye(LENGTH, dtype=torch.bool)[:, 4:9]
    masked = model(ids, keep, is_causal=is_causal).hidden
    torch.testing.assert_close(masked, reference(model, ids, keep), atol=1e-12, rtol=0)


@pytest.mark.parametrize("max_bytes", [0, 2**20])
def test_the_fast_pass_equals_the_plain_one(rotary: TextModel, max_bytes: int) -> None:
    plain, fast = TextEncoder(rotary, projected=True), PrefixTextEncoder(rotary, projected=True, max_bytes=max_bytes)
    chunk = [49406, *range(300, 360), *[49407] * 16]
    edited = [[*chunk[:place], 9, *chunk[place + 1 :]] for place in (70, 40, 10, 41)]
    mask = torch.ones(4, 1, LENGTH, dtype=torch.bool)
    for row, start in enumerate((3, 30, 50, 50)):
        mask[row, 0, start : start + 4] = False
    for _ in range(2):  # the second time much of it is remembered
        for ids, keep, is_causal in (
            (edited, None, True),
            ([chunk] * 4, mask, True),
            (edited[:2], None, False),
            (edited[::-1], mask, True),
            (random_ids(3).tolist(), None, True),
        ):
            expected, found = (encode(ids, keep, is_causal=is_causal) for encode in (plain, fast))
            torch.testing.assert_close(found.hidden, expected.hidden, atol=1e-5, rtol=0)
            torch.testing.assert_close(found.pooled, expected.pooled, atol=1e-5, rtol=0)
    changed = plain([[chunk[0], *chunk[1:30][::-1], *chunk[30:]]]).hidden
    assert (changed[0, 60] - plain([chunk]).hidden[0, 60]).abs().max() > 1e-3  # order counts


def test_captions_that_share_rows_are_turned_by_their_own_positions() -> None:
    model = seeded_text_model(ROTARY, dtype=torch.float64)
    lengths = (31, 8, 9, 12, 5, 9)
    ids = torch.full((len(lengths), 31), ROTARY.pad_id)
    for row, length in zip(ids, lengths, strict=True):
        row[:length] = torch.tensor([ROTARY.bos_id, *range(500, 498 + length), ROTARY.eos_id])
    packed = pack(ids, ROTARY)
    assert packed.captions is not None
    torch.testing.assert_close(projected(model, packed), model(ids).projected, atol=1e-12, rtol=0)
    moved = packed._replace(positions=packed.positions.flip(1))
    assert (projected(model, moved) - model(ids).projected).abs().max() > 1e-3


def test_a_longer_text_than_77_can_be_read() -> None:
    config = replace(ROTARY, context_length=248)
    model = seeded_text_model(config)
    assert model(torch.full((1, 248), 5)).hidden.shape == (1, 248, 16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": "alibi"}, "positions must be 'learned' or 'rotary', got 'alibi'"),
        ({"positions": "rotary", "hidden_dim": 6, "num_heads": 2}, "even width, and these are 3 wide"),
    ],
)
def test_positions_that_cannot_be_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **changes)


# ---- files

WIDE = TextConfig(hidden_dim=64, num_heads=1, num_layers=1, mlp_dim=64, projection_dim=32)


def saved(path: Path, model: TextModel, metadata: dict[str, str] | None = None) -> Path:
    about = position_metadata(model.config) if metadata is None else metadata
    save_file(hugging_face_tensors(model), path, metadata=about)
    return path


def test_a_file_says_that_its_positions_are_rotary(tmp_path: Path) -> None:
    model = seeded_text_model(replace(WIDE, positions="rotary", context_length=100))
    path = saved(tmp_path / "rotary.safetensors", model)
    [again], report = load_text_models(path)[0].values(), load_text_models(path)[1]
    assert again.config == model.config
    ids = random_ids(2)
    assert again(ids).projected.equal(model(ids).projected)
    assert "rotary positions" in str(report)
    assert report.ignored == ()
    assert position_metadata(WIDE) == {}


def in_learned(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**tensors, POSITION_KEY: torch.randn(77, 64)}


def missing(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: tensor for key, tensor in tensors.items() if key != POSITION_KEY}


def as_they_are(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return tensors


@pytest.mark.parametrize(
    ("change", "metadata", "message"),
    [
        (in_learned, {"positions": "rotary"}, r"positions='rotary', and key '.*weight' has shape \[77, 64\]"),
        (as_they_are, {}, r"positions='learned', and key '.*weight' has shape \[77, 0\]"),
        (as_they_are, {"positions": "alibi"}, "positions='alibi', and key"),
        (as_they_are, {"positions": "rotary", "rotary": "base 5"}, "rotary='base 5'; the rotary positions that are"),
        (as_they_are, {"positions": "rotary"}, "rotary=None;"),
        (missing, {"positions": "rotary"}, r"has shape \[\]"),
        (missing, {}, "position_embedding.weight' is missing; the file looks incomplete"),
    ],
)
def test_learned_and_rotary_are_never_taken_for_each_other(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]], metadata: dict[str, str], message: str
) -> None:
    tensors = hugging_face_tensors(seeded_text_model(replace(WIDE, positions="rotary")))
    path = tmp_path / "odd.safetensors"
    save_file(change(tensors), path, metadata=metadata)
    with pytest.raises(CheckpointError, match=message):
        load_text_models(path)


def test_what_another_program_calls_positions_is_no_reason_to_refuse_a_file(tmp_path: Path) -> None:
    path = saved(tmp_path / "other.safetensors", seeded_text_model(WIDE), {"positions": "77 of them"})
    [model] = load_text_models(path)[0].values()
    assert model.config == WIDE


def test_transformers_refuses_such_a_file(tmp_path: Path) -> None:
    """As ComfyUI and Forge do, by the same `load_state_dict`: a table that is 0 wide fits nowhere."""
    library("transformers")
    from transformers import CLIPTextConfig, CLIPTextModel

    tensors = hugging_face_tensors(seeded_text_model(replace(WIDE, positions="rotary")))
    sizes = {"hidden_size": 64, "num_attention_heads": 1, "num_hidden_layers": 1, "intermediate_size": 64}
    theirs = CLIPTextModel(CLIPTextConfig(**sizes))
    own = theirs.state_dict()
    prefix = "" if POSITION_KEY in own else "text_model."
    with pytest.raises(RuntimeError, match=r"size mismatch .*position_embedding.weight.*\[77, 0\]"):
        theirs.load_state_dict({key.removeprefix(prefix): one for key, one in tensors.items()}, strict=False)
