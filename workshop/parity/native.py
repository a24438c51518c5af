"""Our side: the seeded model and embeddings, and the native encoder's results."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...encoder.files.checkpoint import seeded_text_model
from ...encoder.models.config import CLIP_L
from ...encoder.models.text_model import TextEncoder, TextModel
from ...weighting.encoders import Encoders
from ...weighting.options import EncodeOptions
from ...weighting.schemes import SCHEMES
from ...weighting.schemes.negpip import paired
from ...weighting.text.embedding_folder import EmbeddingFolder
from ...weighting.text.embeddings import Embeddings
from ...weighting.towers import native_readers

SEED = 0
SIZES = {"zqone": 1, "zqeight": 8, "zqeight long": 2}
"""Number of vectors of each. These words occur only in the prompts meant to use them."""


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
    """Encode one prompt in several ways, given by fields of `EncodeOptions`, each chunk separately and none twice.

    Hidden states are ``[1, rows, dim]`` each; for the scheme ``negpip`` ``[1, 2 rows, dim]``, as keys and values.
    """
    readers = native_readers({"clip_l": model.config}, lambda tower, config: embeddings)
    encoders = Encoders(readers, {"clip_l": TextEncoder(model)}, max_chunks=1)
    reads = [encoders.read(prompt, EncodeOptions(**fields)) for fields in choices]
    prompts = [encoded.prompts["clip_l"] for encoded in encoders.plan(reads).run()]
    return [
        paired(one.hidden, one.signs) if SCHEMES[one.read.options.scheme].is_signed else one.hidden for one in prompts
    ]


# ---- embeddings


def write_embeddings(ours: Path, theirs: Path) -> EmbeddingFolder:
    """Write seeded textual-inversion embeddings into two new folders, in the formats of both sides; return ours.

    Theirs are one safetensors file in diffusers' format, that with a single vector, and the others pickled as by the
    WebUI's trainer.
    """
    from safetensors.torch import save_file

    for folder in (ours, theirs):
        folder.mkdir(parents=True)
    for seed, (name, num_vectors) in enumerate(SIZES.items()):
        # same standard deviation as the seeded model's token embeddings
        vectors = 0.05 * torch.randn((num_vectors, CLIP_L.hidden_dim), generator=torch.Generator().manual_seed(seed))
        save_file({"emb_params": vectors}, ours / f"{name}.safetensors")
        if num_vectors == 1:
            save_file({f"<{name}>": vectors[0]}, theirs / f"{name}.safetensors")
        else:
            trained = {"string_to_token": {"*": 265}, "string_to_param": {"*": vectors}, "name": name, "step": 100}
            torch.save(trained, theirs / f"{name}.pt")
    return EmbeddingFolder([ours], "clip_l", CLIP_L.hidden_dim)
