"""Interface of an encoder: token ids and masks in, hidden states and pooled vectors out. No PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class EncoderError(RuntimeError):
    """Raised for an encoder that is missing or cannot do the task; the message tells users what to do."""


class Encoding(NamedTuple):
    """Result of an encoder for some chunks."""

    hidden: Tensor
    """``[chunks, 77, dim]``, float: hidden states of the chosen layer."""
    pooled: Tensor
    """``[chunks, pooled_dim]``, float: pooled vectors, projected if the encoder does so."""


class EncodeFn(Protocol):
    """Interface of a model, as used by weighting."""

    def __call__(self, ids: Sequence[Sequence[Any]], mask: Tensor | None = None, *, is_causal: bool = True) -> Encoding:
        """Encode chunks.

        Args:
            ids: 77 ids per chunk.
            mask: Bool ``[chunks, 1 or 77, 77]``, True = may be attended, on top of causality; None hides nothing.
            is_causal: Whether positions see only earlier ones.

        Returns:
            One row per chunk, in order.
        """
        ...
