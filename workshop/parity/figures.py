"""Host runs as small data: one number per row of hidden states, so that a test can check them without the host.

The number is the row times a fixed vector of random signs, divided by its length. An error of size e in every component
of a row moves it by about e, if the components err independently.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from .prompts import PROMPTS

DATA = Path(__file__).resolve().parents[2] / "tests" / "parity_data" / "host_figures.safetensors"


def row_figures(hidden: Tensor) -> Tensor:
    """Reduce hidden states.

    Args:
        hidden: ``[1, rows, dim]``, float.

    Returns:
        ``[rows]``, float32.
    """
    dim = hidden.shape[-1]
    signs = torch.randint(0, 2, (dim,), generator=torch.Generator().manual_seed(0)).double() * 2 - 1
    return (hidden[0].double() @ signs / dim**0.5).float()


def digest_of_prompts() -> str:
    """Digest of all prompts of all lists."""
    return hashlib.sha256(json.dumps(PROMPTS).encode()).hexdigest()[:16]


def write_figures(hidden: Mapping[str, Tensor], versions: Mapping[str, str]) -> None:
    """Store the figures of host runs.

    Args:
        hidden: Hidden states by ``subject key/number of the prompt``.
        versions: Versions by reference, in words.
    """
    from ...output.export import save_tensors
    from ...output.files import written_whole

    DATA.parent.mkdir(parents=True, exist_ok=True)
    metadata = {**versions, "prompts": digest_of_prompts()}
    with written_whole(DATA) as place:
        save_tensors({key: row_figures(tensor) for key, tensor in hidden.items()}, place, metadata)
