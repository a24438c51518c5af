"""Models that ComfyUI's templates load: which text encoder and which diffusion model of the host a pair of files is.

A text encoder is known by its loader, with the files and the type that it is set to, a diffusion model by its file. The
classes are those that ComfyUI 0.29 makes of them (``load_text_encoder_state_dicts``, ``model_base``).
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).with_suffix(".csv")
"""An `Entry` a row."""
CLIP = ""
"""In place of a tokenizer: CLIP text towers alone."""


class Entry(NamedTuple):
    """A text encoder with a diffusion model."""

    title: str
    """Name of the model."""
    text_encoder: str
    """Pattern of the loader's class, files and type; empty: a checkpoint, whose file is the diffusion model's."""
    file: str
    """Pattern of the beginning of the diffusion model's file, without capitals."""
    tokenizer: str = ""
    """Class of the text encoder's tokenizer, below ``comfy.text_encoders``; `CLIP` for CLIP text towers alone."""
    network: str = ""
    """Class of the diffusion model, below ``comfy.ldm``."""
    never: str = ""
    """Reason why no weight can act, whatever families are known."""


MODELS = tuple(map(Entry._make, csv.reader(TABLE.read_text(encoding="utf-8").splitlines()[1:])))
"""All that are known; the first that fits counts."""


def model_of(text_encoder: str, file: str) -> Entry | None:
    """The model that a text encoder and a diffusion model's file make, or None if they are not known.

    >>> model_of("CLIPLoader umt5_xxl_fp16.safetensors wan", "wan2.1_vace_14B_fp16.safetensors").title
    'Wan VACE'
    >>> model_of("CheckpointLoaderSimple sd_xl_base_1.0.safetensors", "sd_xl_base_1.0.safetensors").title
    'SDXL'
    """
    for model in MODELS:
        expected = model.text_encoder or f"checkpointloader.* {re.escape(file.lower())}"
        if re.match(model.file, file.lower()) and re.fullmatch(expected, text_encoder.lower()):
            return model
    return None
