"""Connectors of LTX-2: layers that read the encoder's rows, and rows of their own behind them, before the first step.

Each row reads all others there, so that a word's own row is not the only one that knows of it.

Source: behaviour of ComfyUI 0.29.0 (``comfy.ldm.lightricks.embeddings_connector``); docs/reference/attention.md.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

CONNECTORS = ("video_embeddings_connector", "audio_embeddings_connector")
"""The network's names of its connectors."""
UNCONNECTED = "unprocessed_ltxav_embeds"
"""Name of the value of an entry that says that its rows are the encoder's, which the model's connectors will read."""
MIN_ROWS, REGISTERS = 1024, 128
"""Minimum number of rows behind a connector, and the number of a connector's own rows, of which there are multiples."""

Connect = Callable[[Any, Tensor, Tensor], Tensor]
"""From a network, rows ``[1, rows, dim]`` and which of those behind the connectors are hidden, ``[rows]``, to these."""


def rows_of_connectors(num_rows: int) -> int:
    """Number of rows behind the connectors, the encoder's being the first."""
    return -(-max(num_rows, MIN_ROWS) // REGISTERS) * REGISTERS


def without_rows(network: Any, rows: Tensor, hidden: Tensor) -> Tensor:
    """Rows as a network's connectors make them if no row reads the hidden ones; the network stays as it is.

    Args:
        network: The host's network.
        rows: The encoder's rows, ``[1, rows, dim]``, in the network's type and on its device.
        hidden: Whether each row behind the connectors is hidden, ``[rows behind them]``.
    """
    mask = torch.zeros(hidden.shape, dtype=rows.dtype).masked_fill_(hidden, torch.finfo(rows.dtype).min / 2)
    mask = mask.to(rows.device)[None, None, None]
    masked = copy.copy(network)
    for name in CONNECTORS:
        connector = copy.copy(getattr(network, name))
        blocks = [partial(_masked, block, mask) for block in connector.transformer_1d_blocks]
        vars(connector)["transformer_1d_blocks"] = blocks
        vars(masked)[name] = connector
    return masked.preprocess_text_embeds(rows, unprocessed=True)


def _masked(block: Callable[..., Tensor], mask: Tensor, rows: Tensor, **named: Any) -> Tensor:
    return block(rows, **{**named, "attention_mask": mask})
