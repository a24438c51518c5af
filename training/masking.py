"""Masking of tokens for masked language modelling, by BERT's rule.

Each token is chosen with a probability of 15 %. Of the chosen ones 80 % are replaced by a mask, 10 % by a random token,
and 10 % stay as they are; all of them are to be predicted. BOS, EOS and padding are never chosen. The caller passes the
random generators.

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
"""Shares: chosen of all tokens, masked and replaced of the chosen ones."""
IGNORED = -100
"""Label of tokens not to be predicted, as in PyTorch's cross-entropy."""


class Masked(NamedTuple):
    """Captions with masked tokens; each tensor is ``[captions, s]``."""

    ids: Tensor
    """int64; ids at masks are ignored."""
    is_mask: Tensor
    """bool: True at masks."""
    labels: Tensor
    """int64: the token to be predicted, or `IGNORED`."""
    is_caption: Tensor
    """bool: True for BOS, tokens and EOS, False for padding."""


def masked(ids: Tensor, config: TextConfig, rngs: Sequence[random.Random]) -> Masked:
    """Mask tokens ``[captions, s]``; the result depends only on the generators, one per caption, not on the padding."""
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
