"""How often texts and images find each other: recall at 1, 5 and 10; and how far the rows of a prompt have moved."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..encoder.contrastive import similarity
from ..encoder.text_model import TextModel
from ..encoder.tokenizer import default_tokenizer
from .captions import token_ids

AT = (1, 5, 10)
"""How many of the best may be looked through."""


def recalls(texts: Tensor, images: Tensor) -> dict[str, float]:
    """Recall both ways.

    Args:
        texts: ``[pairs, p]``, features.
        images: ``[pairs, p]``, row i that of text i.

    Returns:
        Shares from 0 to 1 by names such as ``text to image @1``. Of equal scores the own one counts as last. Where the
        best 5 or 10 would be all there are, they are left out.
    """
    scores = similarity(texts, images)
    informative = [at for at in AT if at == 1 or at < len(texts)]
    found: dict[str, float] = {}
    for name, matrix in (("text to image", scores), ("image to text", scores.T)):
        own = matrix.diagonal().unsqueeze(1)
        ranks = (matrix >= own).sum(1)  # its own row among them
        found |= {f"{name} @{at}": ((ranks <= at) & (ranks > 0)).double().mean().item() for at in informative}
    return found


@torch.no_grad()
def rows_of(text: TextModel, prompts: Sequence[str]) -> list[Tensor]:
    """What a diffusion model reads of prompts: the last hidden states of their tokens and of EOS.

    Args:
        text: The tower.
        prompts: Any texts; long ones are cut.

    Returns:
        For each prompt ``[tokens + 1, d]``, on the CPU. The row of BOS, which is the same for all, is left out.
    """
    device = text.final_layer_norm.weight.device
    rows: list[Tensor] = []
    for prompt in prompts:
        ids = token_ids([prompt], default_tokenizer(), text.config)
        rows.append(text(ids.to(device)).hidden[0, 1:].float().cpu())
    return rows


def moved(before: Tensor, after: Tensor) -> float:
    """How far rows have moved: the mean of each row's change divided by its length.

    Args:
        before: ``[rows, d]``.
        after: The same rows later.

    >>> moved(torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.5]]))
    0.25
    """
    return ((after - before).norm(dim=-1) / before.norm(dim=-1)).mean().item()
