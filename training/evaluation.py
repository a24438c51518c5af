"""How often a text finds its own image among all, and an image its own text: recall at 1, 5 and 10."""

from __future__ import annotations

from torch import Tensor

from ..encoder.contrastive import similarity

AT = (1, 5, 10)
"""How many of the best may be looked through."""


def recalls(texts: Tensor, images: Tensor) -> dict[str, float]:
    """Recall both ways.

    Args:
        texts: ``[pairs, p]``, features.
        images: ``[pairs, p]``, row i that of text i.

    Returns:
        Shares from 0 to 1 by names such as ``text to image @1``. Of equal scores the own one counts as last.
    """
    scores = similarity(texts, images)
    found: dict[str, float] = {}
    for name, matrix in (("text to image", scores), ("image to text", scores.T)):
        own = matrix.diagonal().unsqueeze(1)
        ranks = (matrix >= own).sum(1)  # its own row among them
        found |= {f"{name} @{at}": ((ranks <= at) & (ranks > 0)).double().mean().item() for at in AT}
    return found
