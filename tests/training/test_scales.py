"""A gradient scale for each resblock: its rules step by step, and gradients in float16 beside those in float32."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from weighted_clip.encoder.config import TextConfig
from weighted_clip.encoder.layers import Block
from weighted_clip.training.scales import GradientScales

CONFIG = TextConfig(hidden_dim=64, num_heads=2, num_layers=6, mlp_dim=128, activation="gelu")


class Stack(nn.Module):
    def __init__(self, num_layers: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(CONFIG) for _ in range(num_layers))

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = layer(hidden, None, is_causal=True)
        return hidden


def stack(num_layers: int = 6) -> Stack:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Stack(num_layers)


def hidden(seed: int = 0) -> Tensor:
    return torch.randn(4, 12, 64, generator=torch.Generator().manual_seed(seed))


def backward(model: Stack, *, is_half: bool, factor: float = 1.0, seed: int = 0) -> float:
    with torch.autocast("cpu", torch.float16, enabled=is_half):
        output = model(hidden(seed))
    loss = (output.float() * hidden(seed + 100)).mean()
    (loss * factor).backward()
    return loss.item()


def gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def set_gradients(scales: GradientScales, is_finite: Callable[[int], bool]) -> None:
    for index, block in enumerate(scales.blocks):
        for parameter in block.parameters:
            parameter.grad = torch.full_like(parameter, block.scale if is_finite(index) else math.inf)


@pytest.mark.parametrize("replicas", [1, 8])
def test_the_rules_of_appendix_d_step_by_step(replicas: int) -> None:
    """Two resblocks; the gradients of the second one are not finite at updates 3, 4, 127 and 128."""
    scales = GradientScales(stack(1), replicas)
    assert [block.name for block in scales.blocks] == ["layers.0.attention", "layers.0.mlp"]
    first, last = scales.blocks
    expected = replicas * 2.0**13
    for update in range(140):
        assert last.scale == pytest.approx(expected, rel=1e-9)
        assert first.scale == pytest.approx(replicas * 2 ** (13 + update / 1000), rel=1e-9)
        is_bad = update in (3, 4, 127, 128)
        set_gradients(scales, lambda index, is_bad=is_bad: not is_bad or index == 0)
        assert scales.unscale() is not is_bad
        assert all(torch.allclose(gradient(one), torch.ones_like(one)) for one in first.parameters)
        if not is_bad:
            expected *= 2 ** (1 / 1000)
        elif update in (3, 128):  # 4 and 127 lie within 125 updates of the division at 3
            expected /= math.sqrt(2)
    assert last.divided == 128


@pytest.mark.parametrize("replicas", [1, 4])
def test_scales_are_clamped(replicas: int) -> None:
    scales = GradientScales(stack(1), replicas)
    block = scales.blocks[0]
    block.scale = replicas * 2.0**24
    set_gradients(scales, lambda index: True)
    assert scales.unscale()
    assert block.scale == replicas * 2.0**24
    block.scale = replicas * 2.0**7
    set_gradients(scales, lambda index: False)
    assert not scales.unscale()
    assert block.scale == replicas * 2.0**7


def test_gradients_in_float16_are_those_of_float32_where_plain_ones_are_lost() -> None:
    """A loss so small that most plain float16 gradients become 0."""
    factor = 2.0**-14
    exact, plain, ours = stack(), stack(), stack()
    backward(exact, is_half=False, factor=factor)
    backward(plain, is_half=True, factor=factor)
    scales = GradientScales(ours)
    for block in scales.blocks:
        block.scale = 2.0**24
    backward(ours, is_half=True, factor=factor)
    assert scales.unscale()
    lost, total = 0, 0
    for (name, one), other, scaled in zip(exact.named_parameters(), plain.parameters(), ours.parameters(), strict=True):
        if "k_proj.bias" in name:  # 0 but for rounding
            continue
        exactly, plainly, found = (gradient(parameter) for parameter in (one, other, scaled))
        lost, total = lost + int(((plainly == 0) & (exactly != 0)).sum()), total + one.numel()
        assert (found - exactly).norm() <= 2e-3 * exactly.norm(), name
    assert lost > total / 2


def test_without_float16_only_rounding_changes() -> None:
    exact, ours = stack(), stack()
    backward(exact, is_half=False)
    scales = GradientScales(ours)
    backward(ours, is_half=False)
    assert scales.unscale()
    for one, scaled in zip(exact.parameters(), ours.parameters(), strict=True):
        exactly = gradient(one)
        assert (gradient(scaled) - exactly).abs().max() <= 1e-6 * exactly.abs().max() + 1e-12


def test_what_is_not_finite_in_a_resblock_does_not_reach_those_before_it() -> None:
    """Filtered: the first block's gradients stay finite, and lack only what came through that resblock."""
    model = stack(2)
    scales = GradientScales(model)
    scales.blocks[3].scale = 2.0**200  # beyond float16 and float32
    backward(model, is_half=True)
    assert not scales.unscale()
    is_finite = [
        all(bool(gradient(parameter).isfinite().all()) for parameter in block.parameters) for block in scales.blocks
    ]
    assert is_finite == [True, True, True, False]
    assert all(gradient(parameter).abs().max() > 0 for parameter in scales.blocks[0].parameters[:1])


def test_scales_go_on_where_they_were() -> None:
    scales, again = GradientScales(stack(1)), GradientScales(stack(1))
    for update in range(5):
        set_gradients(scales, lambda index, update=update: update != 2)
        scales.unscale()
    again.load_state_dict(scales.state_dict())
    assert again.state_dict() == scales.state_dict()
    assert again.blocks[0].divided == 2
    assert again.step == 5


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no block in this model"):
        GradientScales(nn.Linear(2, 2))
