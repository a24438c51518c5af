"""A gradient scale for each resblock, so that a transformer trains in float16 without losing small gradients.

In float16 most gradients of a deep stack underflow to 0. One scale for the whole loss cannot fix that, as gradients of
early and late blocks differ too much. So each resblock, i.e. each attention and each MLP, multiplies the gradient that
enters it by its own scale and divides it again when it leaves; the stream between the blocks is in float32.

Source: A. Ramesh et al., "Zero-Shot Text-to-Image Generation", 2021, section 2.4, Figure 4 and appendix D.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from ....encoder.models.layers import EncoderBlock

FIRST, LEAST, MOST = 2.0**13, 2.0**7, 2.0**24
"""Initial, minimum and maximum scale, each times the number of data-parallel replicas."""
GROWTH = 2 ** (1 / 1000)
"""Factor of a scale after each update."""
DIVISOR = 2**0.5
"""Divisor of a scale if a gradient is not finite."""
WINDOW = 125
"""Updates after a division without another one."""


@dataclass
class Resblock:
    """A residual branch: a norm, and attention or an MLP."""

    name: str
    parameters: list[nn.Parameter]
    scale: float
    divided: int | None = None
    """Update of the last division of its scale."""


class GradientScales:
    """Gradient scales of all resblocks of a model.

    It hooks into the blocks of the model it is made for. From then on they multiply matrices in float16 (norms,
    embeddings and everything outside the blocks stay as they are), and a backward pass leaves scaled gradients in their
    parameters, so `unscale` has to follow.
    """

    def __init__(self, model: nn.Module, replicas: int = 1, dtype: torch.dtype = torch.float16) -> None:
        """Hook into a model."""
        self._least, self._most = replicas * LEAST, replicas * MOST
        self.blocks: list[Resblock] = []
        """Resblocks in the order of the forward pass."""
        self.step = 0
        self.is_skipped = False
        """Whether the last update had to be skipped."""
        for name, block in model.named_modules():
            if isinstance(block, EncoderBlock):
                for norm, branch, kind in (
                    (block.layer_norm1, block.self_attn, "attention"),
                    (block.layer_norm2, block.mlp, "mlp"),
                ):
                    parameters = [*norm.parameters(), *branch.parameters()]
                    resblock = Resblock(f"{name}.{kind}", parameters, replicas * FIRST)
                    self.blocks.append(resblock)
                    norm.register_forward_pre_hook(partial(_leave, resblock))
                    context = _Half(dtype)
                    branch.register_forward_pre_hook(context.begin)
                    branch.register_forward_hook(context.end, always_call=True)
                    branch.register_forward_hook(partial(_enter, resblock))
        if not self.blocks:
            raise ValueError("there is no block in this model to scale the gradients of")

    def unscale(self) -> bool:
        """Unscale the gradients after a backward pass, and adjust the scales.

        A scale grows if all gradients of its resblock are finite. Otherwise it is divided, but not twice within
        `WINDOW` updates. Returns False if a gradient is not finite; skip the whole update then.
        """
        is_whole = True
        for block in self.blocks:
            gradients = [parameter.grad for parameter in block.parameters if parameter.grad is not None]
            if all(bool(gradient.isfinite().all()) for gradient in gradients):
                for gradient in gradients:
                    gradient.div_(block.scale)
                block.scale *= GROWTH
            else:
                is_whole = False
                if block.divided is None or self.step - block.divided >= WINDOW:
                    block.scale, block.divided = block.scale / DIVISOR, self.step
            block.scale = min(self._most, max(self._least, block.scale))
        self.step += 1
        self.is_skipped = not is_whole
        return is_whole

    def levels(self) -> dict[str, float]:
        """Log values: base-2 logarithms of the lowest and highest scale, and whether the last update was skipped."""
        scales = [block.scale for block in self.blocks]
        return {
            "lowest scale": math.log2(min(scales)),
            "highest scale": math.log2(max(scales)),
            "skipped": float(self.is_skipped),
        }

    def state_dict(self) -> dict[str, Any]:
        """State that a resumed run needs."""
        return {
            "step": self.step,
            "scales": [block.scale for block in self.blocks],
            "divided": [block.divided for block in self.blocks],
        }

    def check_state_dict(self, state: Any, num_steps: int) -> None:
        """Check the result of `state_dict` from a file."""
        lists = [state.get(name) for name in ("scales", "divided")] if isinstance(state, dict) else []
        if [type(values) for values in lists] != [list, list] or state.keys() != self.state_dict().keys():
            raise ValueError("scales are not those of a run in float16")
        scales, divided = cast("list[list[Any]]", lists)
        updates = [state["step"], *(update for update in divided if update is not None)]
        if not len(scales) == len(divided) == len(self.blocks):
            raise ValueError(f"there are {len(scales)} scales, and this run has {len(self.blocks)}")
        if not all(type(scale) is float and self._least <= scale <= self._most for scale in scales):
            raise ValueError(f"scales must be numbers from {self._least:g} to {self._most:g}, and not all are")
        if not all(type(update) is int and 0 <= update <= num_steps for update in updates):
            raise ValueError(f"updates of scales must be numbers from 0 to {num_steps:,}, and not all are")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of `state_dict`."""
        self.step = state["step"]
        for block, scale, divided in zip(self.blocks, state["scales"], state["divided"], strict=True):
            block.scale, block.divided = scale, divided


class _Half:
    """Hooks that change the dtype of the computation within a branch."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._contexts: list[torch.autocast] = []

    def begin(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        context = torch.autocast(inputs[0].device.type, self.dtype, enabled=self.dtype != torch.float32)
        context.__enter__()
        self._contexts.append(context)

    def end(self, module: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
        self._contexts.pop().__exit__(None, None, None)


def _leave(block: Resblock, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Hook at the beginning of a branch, where its gradient returns to the stream: divide and filter it."""
    return (cast("Tensor", _Unscaled.apply(inputs[0], block)), *inputs[1:])


def _enter(block: Resblock, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    """Hook at the end of a branch, where the gradient of the stream enters: multiply it."""
    return cast("Tensor", _Scaled.apply(output, block))


class _Unscaled(torch.autograd.Function):
    """Identity forwards; backwards divides by the scale, with non-finite values as 0."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, block: Resblock) -> Tensor:
        ctx.block = block
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        gradient = grad_outputs[0].float() / ctx.block.scale
        return gradient.masked_fill(~gradient.isfinite(), 0.0), None


class _Scaled(torch.autograd.Function):
    """Cast to float32 forwards; backwards multiplies by the scale, in the original type."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, block: Resblock) -> Tensor:
        ctx.block, ctx.dtype = block, output.dtype
        return output.float()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return (grad_outputs[0].float() * ctx.block.scale).to(ctx.dtype), None
