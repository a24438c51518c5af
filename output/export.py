"""The conditioning of a prompt as a safetensors file, with everything that made it in the metadata."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import save_file

from .files import written_whole

if TYPE_CHECKING:
    from torch import Tensor

    from ..encoder.encoding import Encoding


def write_conditioning(path: Path, rows: Encoding, text: str, options: object, about: Mapping[str, str]) -> None:
    """Write hidden states and pooled vector, whole or not at all.

    Args:
        path: Output file; an existing one is replaced.
        rows: The prompt's conditioning, ``[1, rows, dim]`` and ``[1, pooled_dim]``.
        text: The prompt.
        options: How it was read and weighted, a dataclass; each field becomes an entry of the metadata.
        about: Further entries, such as where the weights come from.

    Raises:
        OSError: If the file cannot be written. Nothing of it is left, and what was there before is.
        UnicodeEncodeError: If the text holds half of a character.
    """
    metadata = {name: str(value) for name, value in vars(options).items()} | {"prompt": text, **about}
    tensors = {"hidden": rows.hidden.cpu().contiguous(), "pooled": rows.pooled.cpu().contiguous()}
    with written_whole(path) as place:
        save_tensors(tensors, place, metadata)


def save_tensors(tensors: Mapping[str, Tensor], place: Path, metadata: Mapping[str, str]) -> None:
    """Write a safetensors file.

    Args:
        tensors: On the CPU and contiguous.
        place: Where, as `written_whole` gives it.
        metadata: Entries of its header.

    Raises:
        OSError: If it cannot be written, also where safetensors raises an error of its own for that.
        UnicodeEncodeError: If an entry holds half of a character.
    """
    try:
        save_file(dict(tensors), place, metadata=dict(metadata))
    except SafetensorError as error:  # a full disk, for example
        raise OSError(str(error)) from error
    place.chmod(place.parent.stat().st_mode & 0o666)  # as any new file; safetensors' own are for their owner alone
