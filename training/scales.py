"""A gradient scale for each resblock, so that a transformer trains in float16 without losing small gradients.

In float16 most gradients of a deep stack are too small for its exponents and become 0. One scale for the whole loss
cannot mend that, as those of early and late blocks differ too much. So each resblock, attention and MLP being one each,
multiplies the gradient that enters it by a scale of its own and divides what leaves it; the stream between the blocks
is in float32.

Source: A. Ramesh et al., "Zero-Shot Text-to-Image Generation", 2021, section 2.4, Figure 4 and appendix D.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..encoder.layers import Block

FIRST, LEAST, MOST = 2.0**13, 2.0**7, 2.0**24
"""Scales at the start, and what they are clamped to, each times the number of data-parallel replicas."""
GROWTH = 2 ** (1 / 1000)
"""What a scale is multiplied by after each update."""
DIVISOR = 2**0.5
"""What a scale is divided by where a gradient is not finite."""
WINDOW = 125
"""Updates after a division within which there is no second one."""


@dataclass
class Resblock:
    """A branch of the stream: a norm, and attention or an MLP."""

    name: str
    parameters: list[nn.Parameter]
    scale: float
    divided: int | None = None
    """The update at which its scale was divided last."""


class GradientScales:
    """The scales of all resblocks of a model, and what becomes of them.

    Made for a model, it hooks into its blocks. From then on they multiply matrices in float16 (norms, embeddings and
    whatever is not in a block stay as they are), and a backward pass leaves gradients in their parameters that are
    multiplied by their scales: `unscale` has to follow.
    """

    def __init__(self, model: nn.Module, replicas: int = 1, dtype: torch.dtype = torch.float16) -> None:
        """Hook into a model.

        Args:
            model: In float32, with `Block` s in it.
            replicas: M, processes that train it.
            dtype: Of the products of matrices in attention and MLP.

        Raises:
            ValueError: If it has no block.
        """
        self._least, self._most = replicas * LEAST, replicas * MOST
        self.blocks: list[Resblock] = []
        """In the order of the forward pass."""
        self.step = 0
        self.is_skipped = False
        """Whether the last update was to be skipped."""
        for name, block in model.named_modules():
            if isinstance(block, Block):
                for norm, branch, kind in (
                    (block.layer_norm1, block.self_attn, "attention"),
                    (block.layer_norm2, block.mlp, "mlp"),
                ):
                    own = [*norm.parameters(), *branch.parameters()]
                    resblock = Resblock(f"{name}.{kind}", own, replicas * FIRST)
                    self.blocks.append(resblock)
                    norm.register_forward_pre_hook(_Leave(resblock))
                    context = _Half(dtype)
                    branch.register_forward_pre_hook(context.begin)
                    branch.register_forward_hook(context.end, always_call=True)
                    branch.register_forward_hook(_Enter(resblock))
        if not self.blocks:
            raise ValueError("there is no block in this model to scale the gradients of")

    def unscale(self) -> bool:
        """Divide the gradients by their scales after a backward pass, and move the scales on.

        A scale grows where all gradients of its resblock are finite. Otherwise it is divided, but not twice within
        `WINDOW` updates.

        Returns:
            Whether all gradients are finite. If not, the whole update is to be skipped.
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
        """For a log: base-2 logarithms of the lowest and the highest scale, and whether the last update was skipped."""
        scales = [block.scale for block in self.blocks]
        return {
            "lowest scale": math.log2(min(scales)),
            "highest scale": math.log2(max(scales)),
            "skipped": float(self.is_skipped),
        }

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {
            "step": self.step,
            "scales": [block.scale for block in self.blocks],
            "divided": [block.divided for block in self.blocks],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what `state_dict` gave."""
        self.step = state["step"]
        for block, scale, divided in zip(self.blocks, state["scales"], state["divided"], strict=True):
            block.scale, block.divided = scale, divided


class _Half:
    """Another type of arithmetic as long as a branch is computed."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._contexts: list[torch.autocast] = []

    def begin(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        context = torch.autocast(inputs[0].device.type, self.dtype, enabled=self.dtype != torch.float32)
        context.__enter__()
        self._contexts.append(context)

    def end(self, module: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
        self._contexts.pop().__exit__(None, None, None)


class _Leave:
    """At the beginning of a branch, where its gradient goes back to the stream: divided, and filtered."""

    def __init__(self, block: Resblock) -> None:
        self.block = block

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (cast("Tensor", _Unscaled.apply(inputs[0], self.block)), *inputs[1:])


class _Enter:
    """At the end of a branch, where the gradient of the stream comes in: multiplied."""

    def __init__(self, block: Resblock) -> None:
        self.block = block

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        return cast("Tensor", _Scaled.apply(output, self.block))


class _Unscaled(torch.autograd.Function):
    """The same forwards; backwards divided by the scale, values that are not finite as 0."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, block: Resblock) -> Tensor:
        ctx.block = block
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        gradient = grad_outputs[0].float() / ctx.block.scale
        return gradient.masked_fill(~gradient.isfinite(), 0.0), None


class _Scaled(torch.autograd.Function):
    """To float32 forwards; backwards multiplied by the scale, in the type that came in."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, block: Resblock) -> Tensor:
        ctx.block, ctx.dtype = block, output.dtype
        return output.float()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return (grad_outputs[0].float() * ctx.block.scale).to(ctx.dtype), None
