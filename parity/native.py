"""Our side: the seeded model, and what the native encoder makes of the prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..encoder.config import CLIP_L
from ..encoder.encoding import Encoding
from ..encoder.files.checkpoint import seeded_text_model
from ..encoder.text_model import TextEncoder, TextModel
from ..weighting.embeddings import Embeddings
from ..weighting.encoders import Encoders
from ..weighting.towers import native_readers

SEED = 0


def seeded_model() -> TextModel:
    """The one model of all comparisons: CLIP-L in full size, random weights with spread norms."""
    return seeded_text_model(CLIP_L, seed=SEED)


def save_model(model: TextModel, path: Path) -> None:
    """Write the weights in the layout of Hugging Face, which every host reads."""
    from safetensors.torch import save_file

    save_file({f"text_model.{name}": tensor for name, tensor in model.state_dict().items()}, path)


class RememberingEncoder:
    """An encode function that encodes no chunk twice, for one prompt under many schemes."""

    def __init__(self, encoder: TextEncoder) -> None:
        self.encoder = encoder
        self._seen: dict[Any, Encoding] = {}

    def __call__(self, ids: Sequence[Sequence[Any]], mask: Tensor | None = None, *, is_causal: bool = True) -> Encoding:
        """Encode chunks, one at a time."""
        assert is_causal, "no program here encodes otherwise"
        rows = [self._row(chunk, None if mask is None else mask[index : index + 1]) for index, chunk in enumerate(ids)]
        return Encoding(torch.cat([row.hidden for row in rows]), torch.cat([row.pooled for row in rows]))

    def _row(self, chunk: Sequence[Any], mask: Tensor | None) -> Encoding:
        if mask is not None and bool(mask.all()):
            mask = None
        key = tuple(chunk), None if mask is None else (tuple(mask.shape), mask.numpy().tobytes())
        if key not in self._seen:
            self._seen[key] = self.encoder([chunk], mask)
        return self._seen[key]


def encode_natively(
    model: TextModel, prompt: str, choices: Iterable[dict[str, Any]], embeddings: Embeddings | None = None
) -> list[Tensor]:
    """Encode one prompt in several ways.

    Args:
        model: The tower.
        prompt: The text.
        choices: Fields of `EncodeOptions`, once for each way.
        embeddings: What the prompt can name.

    Returns:
        Hidden states, ``[1, rows, dim]`` each.
    """
    readers = native_readers({"clip_l": model.config}, lambda tower, config: embeddings)
    encoders = Encoders(readers, {"clip_l": RememberingEncoder(TextEncoder(model))})
    return [encoders(prompt, **fields).hidden for fields in choices]
