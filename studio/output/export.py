"""The conditioning of a prompt as a safetensors file, with everything it was made from in the metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import save_file

from .files import written_whole

if TYPE_CHECKING:
    from torch import Tensor

    from ...encoder.encoding import Encoding


def write_conditioning(path: Path, rows: Encoding, text: str, options: object, more: Mapping[str, str]) -> None:
    """Write hidden states and pooled vector atomically.

    Args:
        path: Output file; an existing one is replaced.
        rows: The prompt's conditioning, ``[1, rows, dim]`` and ``[1, pooled_dim]``.
        text: The prompt.
        options: Dataclass of the options it was read and weighted with; each field becomes a metadata entry.
        more: Further entries, such as the origin of the weights.

    Raises:
        OSError: If the file cannot be written. No part of it remains, and an existing file is left as it was.
        UnicodeEncodeError: If the text contains a lone surrogate.
    """
    metadata = {name: str(value) for name, value in vars(options).items()} | {"prompt": text, **more}
    tensors = {"hidden": rows.hidden.cpu().contiguous(), "pooled": rows.pooled.cpu().contiguous()}
    write_tensors(path, tensors, metadata)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file whole, see `save_tensors`."""
    with written_whole(path) as place:
        save_tensors(tensors, place, metadata)


def save_tensors(tensors: Mapping[str, Tensor], place: Path, metadata: Mapping[str, str]) -> None:
    """Write a safetensors file: the same bytes for the same tensors and metadata."""
    try:
        save_file(dict(tensors), place, metadata=dict(metadata))
    except SafetensorError as error:  # a full disk, for example
        raise OSError(str(error)) from error
    _sort_metadata(place)
    place.chmod(place.parent.stat().st_mode & 0o666)  # as any new file; safetensors' own are private to their owner


def _sort_metadata(place: Path) -> None:
    """Sort the metadata of a new file by name; safetensors writes them in an order that differs each time."""
    with place.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        if "__metadata__" in header:
            header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(size)
        assert len(text) == size  # or else it would run into the tensors
        file.seek(8)
        file.write(text)
