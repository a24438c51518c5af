"""A prior alone as a safetensors file: parameters by name, sizes in the metadata.

``dalle train`` writes a complete DALL·E instead, with a discrete VAE and merges (``dalle.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch

from .config import PriorConfig
from .files import DVAEFileError, load_model, read_sizes, save_model
from .prior import Prior

FORMAT = "dalle-prior"
"""Value of the metadata entry ``format``."""
CONVERT = "python run.py convert-rudalle IN OUT"
"""Command that converts ru-DALL-E's weights."""


def save_prior(prior: Prior, path: Path, about: Mapping[str, str] | None = None, *, may_replace: bool = True) -> None:
    """Write a prior atomically.

    Args:
        prior: Model to write.
        path: Output file.
        about: Further metadata entries, such as the origin of the model.
        may_replace: Whether an existing file may be replaced; otherwise it is an error.

    Raises:
        OSError: If it cannot be written; an existing file is left as it was.
    """
    metadata = {**(about or {}), "format": FORMAT, "prior": json.dumps(asdict(prior.config))}
    save_model(prior, path, metadata, may_replace=may_replace)


def load_prior(path: str | Path, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Prior:
    """Read a prior.

    Args:
        path: A file of `save_prior`, or of the command ``convert-rudalle``.
        dtype: Type of the weights and of the arithmetic.
        device: Device of the model.

    Returns:
        The model, in evaluation mode without gradients.

    Raises:
        DVAEFileError: If the file cannot be used.
    """
    path, advice = Path(path), f". Convert ru-DALL-E's first: {CONVERT}"
    return load_model(path, lambda metadata: _built(path, metadata), "a prior", dtype, device, advice)


def _built(path: Path, metadata: Mapping[str, str]) -> Prior:
    """Build the model described by the metadata, without its weights."""
    if metadata.get("format") != FORMAT or "prior" not in metadata:
        raise DVAEFileError(
            f"{path}: this is no prior of ours: its metadata has no sizes of one. ru-DALL-E's are converted by "
            f"{CONVERT}"
        )
    return Prior(read_sizes(path, metadata["prior"], PriorConfig))
