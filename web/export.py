"""The conditioning of a prompt as a safetensors file, with everything that made it in the metadata."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import save_file

if TYPE_CHECKING:
    from ..weighting.options import EncodeOptions
    from ..weighting.scheme_api import Rows


def write_conditioning(path: Path, rows: Rows, text: str, options: EncodeOptions, about: Mapping[str, str]) -> None:
    """Write hidden states and pooled vector.

    Args:
        path: Of the file; one that is there is replaced.
        rows: The prompt's conditioning, as `weighting.towers.joined` gives it.
        text: The prompt.
        options: How it was read and weighted; each field becomes an entry of the metadata.
        about: Further entries, such as where the weights come from.

    Raises:
        OSError: If the file cannot be written.
        SafetensorError: The same, on some systems.
        UnicodeEncodeError: If the text holds half of a character.
    """
    metadata = {name: str(value) for name, value in vars(options).items()} | {"prompt": text, **about}
    tensors = {"hidden": rows.hidden.cpu().contiguous(), "pooled": rows.pooled.cpu().contiguous()}
    save_file(tensors, path, metadata=metadata)
