"""Seeded textual-inversion embeddings for the prompts that name them, as files for us and for the references."""

from __future__ import annotations

from pathlib import Path

import torch

from ...encoder.config import CLIP_L
from ...weighting.embedding_folder import EmbeddingFolder

SIZES = {"zqone": 1, "zqeight": 8, "zqeight long": 2}
"""Number of vectors of each. These words occur only in the prompts meant to use them."""


def write_embeddings(ours: Path, theirs: Path) -> EmbeddingFolder:
    """Write the embeddings in the file formats of both sides.

    Args:
        ours: A new folder, for safetensors files.
        theirs: A new folder, for one safetensors file in diffusers' format, that with a single vector, and the others
            pickled as by the WebUI's trainer.

    Returns:
        The embeddings in ``ours``.
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
