"""Our side: the seeded model and embeddings, the native encoder's results, and small figures of a host's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...encoder.config import CLIP_L
from ...encoder.files.checkpoint import seeded_text_model
from ...encoder.text_model import TextEncoder, TextModel
from ...weighting.embedding_folder import EmbeddingFolder
from ...weighting.embeddings import Embeddings
from ...weighting.encoders import Encoders
from ...weighting.options import EncodeOptions
from ...weighting.schemes import SCHEMES
from ...weighting.schemes.negpip import paired
from ...weighting.towers import native_readers
from .prompts import PROMPTS

SEED = 0
DATA = Path(__file__).resolve().parents[2] / "tests" / "parity_data" / "host_figures.safetensors"
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


# ---- figures of hosts


def row_figures(hidden: Tensor) -> Tensor:
    """One number per row of hidden states ``[1, rows, dim]``, so that a test can check them without the host.

    It is the row times a fixed vector of random signs, divided by its length: an error of size e in every component of
    a row moves it by about e, if the components err independently.
    """
    dim = hidden.shape[-1]
    signs = torch.randint(0, 2, (dim,), generator=torch.Generator().manual_seed(0)).double() * 2 - 1
    return (hidden[0].double() @ signs / dim**0.5).float()


def digest_of_prompts() -> str:
    """Digest of all prompts of all lists."""
    return hashlib.sha256(json.dumps(PROMPTS).encode()).hexdigest()[:16]


def write_figures(hidden: Mapping[str, Tensor], versions: Mapping[str, str]) -> None:
    """Store the figures of host runs, by ``subject key/number of the prompt``, and versions by reference, in words."""
    from ...output.export import save_tensors
    from ...output.files import written_whole

    DATA.parent.mkdir(parents=True, exist_ok=True)
    metadata = {**versions, "prompts": digest_of_prompts()}
    with written_whole(DATA) as place:
        save_tensors({key: row_figures(tensor) for key, tensor in hidden.items()}, place, metadata)
