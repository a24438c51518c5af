"""Our own encoder on a file, for comparison with hosts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from weighted_clip.encoder.files.checkpoint import load_text_models
from weighted_clip.encoder.text_model import TextEncoder
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading import read_prompt

from ..door import encode_prompt


def native_encoder(file: Path) -> Callable[..., torch.Tensor]:
    """A function from a text and options to hidden states, ``[positions, dim]``; the syntax is A1111's by default.

    Args:
        file: A checkpoint of Stable Diffusion 1.x, or a text encoder of it.
    """
    models, _ = load_text_models(file)
    encoder, tokenize = TextEncoder(models["clip_l"]), default_tokenizer()

    def encode(text: str, **choices: Any) -> torch.Tensor:
        read = read_prompt(text, EncodeOptions(**{"syntax": "a1111", **choices}), tokenize)
        with torch.no_grad():
            return encode_prompt(read, encoder, tokenize).hidden[0]

    return encode
