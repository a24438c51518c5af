"""A prior alone as a safetensors file: its parameters by their names, its sizes in the metadata.

What ``dalle train`` writes is a whole DALL·E instead, with a discrete VAE and merges (``dalle.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch

from .files import DVAEFileError, load_model, read_sizes, save_model
from .prior import Prior
from .prior_config import PriorConfig

FORMAT = "dalle-prior"
"""What the entry ``format`` of the metadata says."""
CONVERT = "python run.py convert-rudalle IN OUT"
"""The command that makes a file of ru-DALL-E's weights."""


def save_prior(prior: Prior, path: Path, about: Mapping[str, str] | None = None) -> None:
    """Write a prior, whole or not at all.

    Args:
        prior: What to write.
        path: Of the file; one that is there is replaced.
        about: Further entries of the metadata, such as where it comes from.

    Raises:
        OSError: If it cannot be written; what was there before still is.
    """
    save_model(prior, path, {**(about or {}), "format": FORMAT, "prior": json.dumps(asdict(prior.config))})


def load_prior(path: str | Path, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Prior:
    """Read a prior.

    Args:
        path: A file of `save_prior`, or of the command ``convert-rudalle``.
        dtype: Type of the weights and of the arithmetic.
        device: Where the model shall be.

    Returns:
        The model, in evaluation mode without gradients.

    Raises:
        DVAEFileError: If the file cannot be used.
    """
    path, advice = Path(path), f". Convert ru-DALL-E's first: {CONVERT}"
    return load_model(path, lambda metadata: _built(path, metadata), "a prior", dtype, device, advice)


def _built(path: Path, metadata: Mapping[str, str]) -> Prior:
    """The model that the metadata names, without its weights."""
    if metadata.get("format") != FORMAT or "prior" not in metadata:
        raise DVAEFileError(
            f"{path}: this is no prior of ours: its metadata has no sizes of one. ru-DALL-E's are converted by "
            f"{CONVERT}"
        )
    return Prior(read_sizes(path, metadata["prior"], PriorConfig))
