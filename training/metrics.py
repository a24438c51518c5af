"""Retrieval between texts and images: recall at 1, 5 and 10; and the change of a prompt's token states."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..encoder.similarity import similarity
from ..encoder.text_model import TextModel
from ..encoder.tokenizer import default_tokenizer
from .captions import token_ids

AT = (1, 5, 10)
"""Numbers of top results considered."""


def recalls(texts: Tensor, images: Tensor) -> dict[str, float]:
    """Recall in both directions, shares from 0 to 1; among equal scores the own one counts as last.

    Recall at 5 or 10 is left out if there are no more pairs than that.
    """
    scores = similarity(texts, images)
    informative = [at for at in AT if at == 1 or at < len(texts)]
    found: dict[str, float] = {}
    for name, matrix in (("text to image", scores), ("image to text", scores.T)):
        own = matrix.diagonal().unsqueeze(1)
        ranks = (matrix >= own).sum(1)  # including its own row
        found |= {f"{name} @{at}": ((ranks <= at) & (ranks > 0)).double().mean().item() for at in informative}
    return found


@torch.no_grad()
def rows_of(text: TextModel, prompts: Sequence[str]) -> list[Tensor]:
    """Token states of prompts as a diffusion model reads them: last hidden states of the tokens and of EOS.

    They are ``[tokens + 1, d]``, on the CPU; the row of BOS, the same for all, is left out.
    """
    device = text.final_layer_norm.weight.device
    rows: list[Tensor] = []
    for prompt in prompts:
        ids = token_ids([prompt], default_tokenizer(), text.config)
        rows.append(text(ids.to(device)).hidden[0, 1:].float().cpu())
    return rows


def moved(before: Tensor, after: Tensor) -> float:
    """Relative change of rows: the mean of each row's change divided by its length.

    >>> moved(torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.5]]))
    0.25
    """
    return ((after - before).norm(dim=-1) / before.norm(dim=-1)).mean().item()
