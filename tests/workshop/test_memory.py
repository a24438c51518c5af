"""Computed memory of training beside real towers, tensors saved by autograd, and torch's rule of what is sent."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from weighted_clip.encoder.config import TextConfig, VisionConfig
from weighted_clip.encoder.files.checkpoint import seeded_text_model, seeded_vision_model
from weighted_clip.training.optimizer import adamw, groups_of
from weighted_clip.training.options import Rates
from weighted_clip.workshop import memory
from weighted_clip.workshop.bench.page import in_process

from ..libraries import library
from ..training.models import pairs, towers

SIZES = {"hidden_dim": 32, "num_heads": 2, "num_layers": 3, "mlp_dim": 80, "projection_dim": 20}


def bytes_of(tensors: Any) -> int:
    return sum(one.numel() * one.element_size() for one in tensors)


def test_weights_gradients_and_moments_are_those_of_real_towers() -> None:
    for is_both in (True, False):
        model = towers(torch.float32, is_both=is_both)
        optimizer = adamw(groups_of(model, Rates()))
        found = model(pairs(4, dtype=torch.float32, is_both=is_both))
        model.loss(found.texts, found.images).backward()
        optimizer.step()
        needs = memory.needs_of(model, pairs=4)
        parameters = list(model.parameters())
        assert needs.weights == bytes_of(parameters)
        assert needs.gradients == bytes_of(one.grad for one in parameters)
        moments = [one for state in optimizer.state.values() for name, one in state.items() if name != "step"]
        assert needs.optimizer == bytes_of(moments)


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
def test_activations_are_what_autograd_saves_of_the_blocks(activation: str) -> None:
    """Each storage once, without the weights."""
    text = seeded_text_model(TextConfig(**SIZES, activation=activation))  # pyright: ignore[reportArgumentType]
    vision = seeded_vision_model(VisionConfig(28, 7, **SIZES, activation=activation))  # pyright: ignore[reportArgumentType]
    for model, positions, is_causal in ((text, 77, True), (vision, 17, False)):
        model.requires_grad_(True)
        own = {one.untyped_storage().data_ptr() for one in model.parameters()}
        saved: dict[int, Tensor] = {}

        def keep(tensor: Tensor, own: set[int] = own, saved: dict[int, Tensor] = saved) -> Tensor:
            if tensor.untyped_storage().data_ptr() not in own:
                saved[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        hidden = torch.randn(3, positions, 32, requires_grad=True)
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            states = model.encoder(hidden, None, is_causal=is_causal)
        assert len(states) == 4
        found = sum(one.untyped_storage().nbytes() for one in saved.values())
        assert memory.activation_bytes(model.config, positions, 3) == found


def test_what_is_sent_is_what_the_hook_of_compression_would_send() -> None:
    """By torch's own rule of which matrices it compresses, and to how many numbers."""
    hook: Any = import_module("torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook")
    model = towers(torch.float32)
    whole = narrow = 0
    for name, one in model.named_parameters():
        is_matrix = ".layers." in name and one.ndim == 2
        is_compressed, before, after = hook._should_compress(*one.shape, 4, 1.0) if is_matrix else (False, 0, 0)
        assert before in (0, one.numel())
        whole, narrow = whole + one.numel(), narrow + (after if is_compressed else one.numel())
    assert narrow < whole
    for rank, numbers in ((0, whole), (4, narrow)):
        assert memory.needs_of(model, 4, 8, compress=rank).sent == memory.FLOAT * (2 * numbers * 7 // 8)


def test_a_share_and_what_is_gathered() -> None:
    model = towers(torch.float32)
    total = sum(one.numel() for one in model.parameters())
    block = max(sum(one.numel() for one in layer.parameters()) for layer in model.text.encoder.layers)
    outside = total - sum(one.numel() for name, one in model.named_parameters() if ".layers." in name)
    alone, divided = memory.needs_of(model, 4, 8), memory.needs_of(model, 4, 8, is_sharded=True)
    assert divided.weights == memory.FLOAT * (-(-total // 8) + outside + block)
    assert divided.optimizer == pytest.approx(alone.optimizer / 8, abs=8)
    assert divided.activations == alone.activations
    assert divided.sent == pytest.approx(1.5 * alone.sent, abs=16)


def test_steps_are_measured_in_two_processes(tmp_path: Path) -> None:
    library("accelerate")
    size = tmp_path / "small.json"
    vision = {"image_size": 28, "patch_size": 14, "width": 64, "layers": 2}
    sizes = {"embed_dim": 32, "vision_cfg": vision, "text_cfg": {"width": 64, "heads": 1, "layers": 2}}
    size.write_text(json.dumps(sizes))
    job = {"size": str(size), "is_both": True, "processes": 2, "is_sharded": True}
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    found = in_process("steps", memory.step, job, launcher=launcher, OMP_NUM_THREADS="1", seconds=200)
    assert found["bytes"] > memory.needs_of(memory.empty_towers(str(size)), memory.BATCH).weights / 2
    assert found["seconds"] > 0
