"""Which tokens of a caption masked language modelling hides, by BERT's rule, and what stands there in their place.

Each token is chosen with a probability of 15 %. Of the chosen ones 80 % are replaced by a mask, 10 % by a random token,
and 10 % stay as they are; all of them are to be found. BOS, EOS and padding are never chosen. The choice follows from a
random generator of the caller's.

Source: J. Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", 2019,
section 3.1; the probabilities are independent for each token, as in transformers' DataCollatorForLanguageModeling.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..encoder.config import TextConfig
from ..encoder.text_model import first_eos

CHOSEN, MASKED, REPLACED = 0.15, 0.8, 0.1
"""Shares: of all tokens, and of the chosen ones."""
IGNORED = -100
"""Label of what is not to be found, as PyTorch's cross-entropy has it."""


class Masked(NamedTuple):
    """Captions with hidden tokens; each tensor is ``[captions, s]``."""

    ids: Tensor
    """int64; where a mask stands, the id counts for nothing."""
    is_mask: Tensor
    """bool: where a mask stands."""
    labels: Tensor
    """int64: the token that is to be found; `IGNORED` where none is."""
    is_caption: Tensor
    """bool: BOS, tokens and EOS, and not the padding."""


def masked(ids: Tensor, config: TextConfig, rngs: Sequence[random.Random]) -> Masked:
    """Hide tokens.

    Args:
        ids: ``[captions, s]``, int64: BOS, tokens, EOS, padding.
        config: Of the tower.
        rngs: One for each caption.

    Returns:
        The captions; the same ones for generators in the same state, however far they are padded.
    """
    ids, num_words = ids.clone(), min(config.bos_id, config.eos_id)
    is_mask, labels = torch.zeros_like(ids, dtype=torch.bool), torch.full_like(ids, IGNORED)
    ends = first_eos(ids, config.eos_id)
    for row, (end, rng) in enumerate(zip(ends.tolist(), rngs, strict=True)):
        for place in range(1, end):
            if rng.random() >= CHOSEN:
                continue
            labels[row, place] = ids[row, place]
            kind = rng.random()
            if kind < MASKED:
                is_mask[row, place] = True
            elif kind < MASKED + REPLACED:
                ids[row, place] = rng.randrange(num_words)
    return Masked(ids, is_mask, labels, torch.arange(ids.shape[1]) <= ends.unsqueeze(1))
