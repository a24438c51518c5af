"""A gradient scale for each resblock: its rules step by step, and gradients in float16 compared with float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.encoder.models.layers import EncoderBlock
from weighted_clip.studio.training.objectives import contrastive
from weighted_clip.studio.training.scaling.grad_scaling import GradientScales

from .objectives import stopping_after
from .runs import Start, log_of, tensors_of

CONFIG = TextConfig(hidden_dim=64, num_heads=2, num_layers=6, mlp_dim=128, activation="gelu")


class Stack(nn.Module):
    def __init__(self, num_layers: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderBlock(CONFIG) for _ in range(num_layers))

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


def backward(model: Stack, factor: float = 1.0, *, is_half: bool = False) -> None:
    with torch.autocast("cpu", torch.float16, enabled=is_half):
        output = model(hidden(0))
    ((output.float() * hidden(100)).mean() * factor).backward()


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
    backward(exact, factor)
    backward(plain, factor, is_half=True)
    scales = GradientScales(ours)
    for block in scales.blocks:
        block.scale = 2.0**24
    backward(ours, factor)
    assert scales.unscale()
    lost, total = 0, 0
    for (name, one), other, scaled in zip(exact.named_parameters(), plain.parameters(), ours.parameters(), strict=True):
        if "k_proj.bias" in name:  # 0 up to rounding
            continue
        exactly, plainly, found = (gradient(parameter) for parameter in (one, other, scaled))
        lost, total = lost + int(((plainly == 0) & (exactly != 0)).sum()), total + one.numel()
        assert (found - exactly).norm() <= 2e-3 * exactly.norm(), name
    assert lost > total / 2


def test_without_float16_only_rounding_changes() -> None:
    exact, ours = stack(), stack()
    backward(exact)
    scales = GradientScales(ours, dtype=torch.float32)
    backward(ours)
    assert scales.unscale()
    for one, scaled in zip(exact.parameters(), ours.parameters(), strict=True):
        exactly = gradient(one)
        assert (gradient(scaled) - exactly).abs().max() <= 1e-6 * exactly.abs().max() + 1e-12


def test_what_is_not_finite_in_a_resblock_does_not_reach_those_before_it() -> None:
    """Filtered: the first block's gradients stay finite, and lack only what came through that resblock."""
    model = stack(2)
    scales = GradientScales(model)
    scales.blocks[3].scale = 2.0**200  # beyond float16 and float32
    backward(model)
    assert not scales.unscale()
    is_finite = [
        all(bool(gradient(parameter).isfinite().all()) for parameter in block.parameters) for block in scales.blocks
    ]
    assert is_finite == [True, True, True, False]
    assert all(gradient(parameter).abs().max() > 0 for parameter in scales.blocks[0].parameters[:1])


def test_arithmetic_is_as_before_outside_of_branches_and_after_an_error() -> None:
    model = stack(1)
    GradientScales(model)
    found: list[torch.dtype] = []
    linear = model.layers[0].mlp.fc1
    linear.register_forward_hook(lambda module, inputs, output: found.append(output.dtype))
    output = model(hidden(0))
    assert found == [torch.float16]
    assert output.dtype == torch.float32

    def fail(*_: object) -> None:
        raise RuntimeError

    linear.register_forward_hook(fail)
    with pytest.raises(RuntimeError):
        model(hidden(0))
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_scales_go_on_where_they_were() -> None:
    scales, again = GradientScales(stack(1)), GradientScales(stack(1))
    for update in range(5):
        set_gradients(scales, lambda index, update=update: update != 2)
        scales.unscale()
    again.load_state_dict(scales.state_dict())
    assert again.state_dict() == scales.state_dict()
    assert again.blocks[0].divided == 2
    assert again.step == 5


@pytest.mark.parametrize("options", [["--towers", "both"], ["--lora", "4"]], ids=["both towers", "LoRA"])
def test_a_clip_trains_in_float16_as_in_float32(start: Start, tmp_path: Path, options: list[str]) -> None:
    options = ["--steps", "6", "--held-out", "4", "--seed", "1", *options]
    assert start(*options, out="fp32") == 0
    assert start(*options, "--precision", "fp16", out="fp16") == 0
    plain, half = ([one for one in log_of(tmp_path / name) if "loss" in one] for name in ("fp32", "fp16"))
    assert [one["loss"] for one in half] == pytest.approx([one["loss"] for one in plain], rel=2e-3)
    assert [one["loss"] for one in half] != [one["loss"] for one in plain]
    assert [one["skipped"] for one in half] == [0] * 6
    assert half[-1]["lowest scale"] == pytest.approx(13 + 6 / 1000)
    written = (tensors_of(tmp_path / name / "text_encoder.safetensors") for name in ("fp32", "fp16"))
    one, other = written
    assert {tensor.dtype for tensor in other.values()} == {torch.float32}
    assert max(float((one[key] - other[key]).abs().max()) for key in one) < 0.02


def test_a_clips_run_in_float16_goes_on_with_its_scales(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update of which a gradient is not finite is skipped; stopped after it and resumed, the bits are the same."""
    options = ["--steps", "5", "--held-out", "4", "--towers", "both", "--precision", "fp16"]
    real = contrastive.backward

    def broken(accelerator: object, model: nn.Module, *more: object) -> object:
        found = real(accelerator, model, *more)
        if calls.pop(0):
            gradient(model.text.encoder.layers[0].mlp.fc1.weight)[0, 0] = math.nan
        return found

    calls = [False, True, False, False, False]
    monkeypatch.setattr(contrastive, "backward", broken)
    assert start(*options, out="whole") == 0
    assert [one["skipped"] for one in log_of(tmp_path / "whole") if "loss" in one] == [0, 1, 0, 0, 0]
    calls = [False, True, False, False, False]
    with stopping_after(3):
        assert start(*options) == 130
    assert start(*options, "--resume") == 0
    assert log_of(tmp_path / "whole") == log_of(tmp_path / "out")
    whole, resumed = (tensors_of(tmp_path / name / "clip.safetensors") for name in ("whole", "out"))
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no block in this model"):
        GradientScales(nn.Linear(2, 2))
