"""Our side: the seeded model, and the native encoder's results."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from ...encoder.config import CLIP_L
from ...encoder.files.checkpoint import seeded_text_model
from ...encoder.text_model import TextEncoder, TextModel
from ...weighting.embeddings import Embeddings
from ...weighting.encoders import Encoders
from ...weighting.options import EncodeOptions
from ...weighting.schemes import SCHEMES
from ...weighting.schemes.negpip import paired
from ...weighting.towers import native_readers

SEED = 0


def seeded_model() -> TextModel:
    """The model of all comparisons: CLIP-L in full size, random weights with spread norms."""
    return seeded_text_model(CLIP_L, seed=SEED)


def save_model(model: TextModel, path: Path) -> None:
    """Write the weights in Hugging Face's layout, which every host reads."""
    from safetensors.torch import save_file

    save_file({f"text_model.{name}": tensor for name, tensor in model.state_dict().items()}, path)


def encode_natively(
    model: TextModel, prompt: str, choices: Iterable[dict[str, Any]], embeddings: Embeddings | None = None
) -> list[Tensor]:
    """Encode one prompt in several ways, each chunk separately and none twice.

    Args:
        model: The tower.
        prompt: The text.
        choices: Fields of `EncodeOptions` for each way.
        embeddings: Embeddings the prompt can name.

    Returns:
        Hidden states, ``[1, rows, dim]`` each; for the scheme ``negpip`` ``[1, 2 rows, dim]``, as keys and values.
    """
    readers = native_readers({"clip_l": model.config}, lambda tower, config: embeddings)
    encoders = Encoders(readers, {"clip_l": TextEncoder(model)}, max_chunks=1)
    reads = [encoders.read(prompt, EncodeOptions(**fields)) for fields in choices]
    prompts = [encoded.prompts["clip_l"] for encoded in encoders.plan(reads).run()]
    return [
        paired(one.hidden, one.signs) if SCHEMES[one.read.options.scheme].is_signed else one.hidden for one in prompts
    ]
