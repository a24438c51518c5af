"""Replacement of some tensors of a safetensors file: all others are copied byte for byte, whatever their type.

It takes only the memory of the new tensors, however large the file is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK = 1 << 22
"""Bytes copied at a time."""
_METADATA = "__metadata__"


def rewrite(source: Path, place: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a copy of a safetensors file with new tensors, in the original order.

    Args:
        source: The file, whose header safetensors has read.
        place: Path from `written_whole`.
        tensors: Replacements by key: of the same type, of any shape, on the CPU.
        metadata: Entries added to the header's.

    Raises:
        OSError: If one of the files cannot be read or written, or ``source`` has become shorter.
    """
    import torch

    with source.open("rb") as file, place.open("wb") as out:
        header: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.tell()
        all_metadata = {**header.pop(_METADATA, {}), **metadata}
        entries = sorted(header.items(), key=lambda entry: entry[1]["data_offsets"])
        written: dict[str, Any] = {_METADATA: all_metadata}
        end = 0
        for key, entry in entries:
            begin, tensor = end, tensors.get(key)
            old_begin, old_end = entry["data_offsets"]
            shape, size = (entry["shape"], old_end - old_begin) if tensor is None else (tensor.shape, tensor.nbytes)
            end = begin + size
            written[key] = {"dtype": entry["dtype"], "shape": list(shape), "data_offsets": [begin, end]}
        text = json.dumps(written, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # so that the data begin at a multiple of 8, as in safetensors
        out.write(len(text).to_bytes(8, "little") + text)
        for key, entry in entries:
            begin, end = entry["data_offsets"]
            if key in tensors:
                out.write(tensors[key].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
            else:
                file.seek(data + begin)
                _copy(file, out, end - begin)


def _copy(file: BinaryIO, out: BinaryIO, size: int) -> None:
    while size:
        block = file.read(min(size, _BLOCK))
        if not block:
            raise OSError(f"{file.name}: it has become shorter while it was read")
        out.write(block)
        size -= len(block)
