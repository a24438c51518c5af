"""What an encoder is to everybody else: token ids and masks in, hidden states and pooled vectors out. No PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class EncoderError(RuntimeError):
    """An encoder that cannot do what it is asked, or is not there; the message tells its user what to do."""


class Encoding(NamedTuple):
    """What an encoder answers for some chunks."""

    hidden: Tensor
    """``[chunks, 77, dim]``, float: hidden states of the chosen layer."""
    pooled: Tensor
    """``[chunks, pooled_dim]``, float: pooled vectors, projected if the encoder was asked to."""


class EncodeFn(Protocol):
    """All that weighting knows of a model."""

    def __call__(self, ids: Sequence[Sequence[Any]], mask: Tensor | None = None, *, is_causal: bool = True) -> Encoding:
        """Encode chunks.

        Args:
            ids: 77 ids for each chunk.
            mask: Bool ``[chunks, 1 or 77, 77]``, True = may be attended, on top of causality; None: nothing hidden.
            is_causal: Whether a position is kept from seeing later ones.

        Returns:
            One row for each chunk, in order.
        """
        ...
