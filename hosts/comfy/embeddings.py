"""ComfyUI's textual-inversion embeddings, by the host's own loader and from its own folders.

Source: behaviour of ComfyUI 0.3.64 and 0.29.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

import torch
from torch import Tensor

from ...weighting.embeddings import EmbeddingError
from .contract import host


@dataclass(frozen=True)
class HostEmbeddings:
    """The embeddings that fit one text tower."""

    folders: str | list[str]
    """Folders in the form of the host's tokenizer."""
    dim: int
    """Width of the tower's token embedding."""
    tower: str
    """Name of the tower, to select vectors from files for several towers."""

    def names(self) -> list[str]:
        """All names; files in sub-folders also by their bare name, as in the WebUI."""
        return sorted({PurePath(name).stem for name in host("folder_paths").get_filename_list("embeddings")})

    def find(self, name: str) -> list[Tensor] | None:
        """Load by name, with or without suffix, from the folders or their sub-folders.

        Args:
            name: Name as written in the prompt. It cannot lead out of the folders.

        Returns:
            Its vectors, each ``[dim]``, or None if there is no such embedding.

        Raises:
            EmbeddingError: If it was made for another model.
        """
        found = host("comfy.sd1_clip").load_embed(name, self.folders, self.dim, self.tower)
        if found is None:
            return None
        vectors = torch.atleast_2d(found)
        if vectors.shape[-1] != self.dim:
            raise EmbeddingError(
                f"The embedding “{name}” is for another model: its vectors are {vectors.shape[-1]} wide, {self.tower} "
                f"takes {self.dim}."
            )
        return list(vectors)
