"""Reading textual-inversion embeddings from safetensors files: tensors only, without prompts.

Supported layouts: one tensor under any name (diffusers, and ``emb_params`` of kohya's trainer), A1111's
``string_to_param``, SDXL's ``clip_l`` with ``clip_g``, and ComfyUI's ``bundle_emb``. Pickled files are refused: loading
one can run code.

Source: files as read by stable-diffusion-webui-forge dfdcbab6, diffusers, kohya's sd-scripts and ComfyUI 0.29.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from ..quoting import quote
from .safetensors_file import FLOATS, opened, why_unread

MAX_HEADER_BYTES = 2**20
"""Maximum header size. A trainer's notes in it take some tens of thousands of bytes."""
MAX_VECTORS = 1000
"""Maximum number of vectors in an embedding or a bundle; a token embedding table has 49408."""
MAX_WIDTH = 4096
"""Maximum width of vectors: CLIP's have at most 1280, T5's 4096."""

SUFFIX = ".safetensors"
_PICKLED = "it is pickled, and loading such a file can run code. Convert it to .safetensors, or get that version of it"
_PICTURE = "embeddings inside pictures are not read. Convert it to .safetensors, or get that version of it"
UNREADABLE_SUFFIXES = {".pt": _PICKLED, ".bin": _PICKLED, ".png": _PICTURE}
"""Other suffixes of embeddings, and why such files are refused."""

_LAYOUTS = (
    re.compile(r"(?P<tower>clip_[lgh])"),
    re.compile(r"bundle_emb\..+\.string_to_param\.\*"),
    re.compile(r"bundle_emb\..+\.(?P<tower>clip_[lgh])"),
    re.compile(r"string_to_param\..+"),
    re.compile(r"emb_params"),
    re.compile(r".*", re.DOTALL),
)
"""Keys of the tensors of an embedding, most common layout first; other tensors in such a file are ignored."""


class EmbeddingFileError(ValueError):
    """Raised for a file without a readable embedding; the message gives the file's name, not its folder, and why."""


def read_embedding_file(path: str | Path) -> dict[str, Tensor]:
    """Read the vectors of an embedding.

    Args:
        path: A safetensors file.

    Returns:
        Vectors ``[vectors, dim]``, float32, at least one, by text tower (``clip_l``, ``clip_g``, ``clip_h``), or under
        the empty string if the file does not name one.

    Raises:
        EmbeddingFileError: If the file is missing, pickled, a picture, truncated or not a file, has a header longer
            than `MAX_HEADER_BYTES`, or holds several unknown tensors, too many or too wide vectors, or invalid values.
    """
    path = Path(path)
    try:
        if reason := UNREADABLE_SUFFIXES.get(path.suffix.lower()):
            raise EmbeddingFileError(reason)
        with opened(path, MAX_HEADER_BYTES) as file:
            keys_of = _keys_of_towers(file.keys())
            for keys in keys_of.values():
                count = sum(_count(key, file.get_slice(key)) for key in keys)
                if count > MAX_VECTORS:
                    raise EmbeddingFileError(f"{count} vectors, at most {MAX_VECTORS} are read")
            tensors = {tower: [file.get_tensor(key) for key in keys] for tower, keys in keys_of.items()}
        return {tower: _vectors(parts) for tower, parts in tensors.items()}
    except (SafetensorError, OSError) as error:
        raise EmbeddingFileError(f"{path.name}: {why_unread(error)}") from error
    except EmbeddingFileError as error:
        error.args = (f"{path.name}: {error}",)
        raise


def _keys_of_towers(keys: Iterable[str]) -> dict[str, list[str]]:
    """Keys of the vectors of each text tower: one, or one for each member of a bundle."""
    keys = list(keys)
    for layout in _LAYOUTS:
        tower_keys: dict[str, list[str]] = {}
        for match in filter(None, map(layout.fullmatch, keys)):
            tower_keys.setdefault(match.groupdict().get("tower", ""), []).append(match[0])
        if tower_keys:
            bundle = next((group for group in tower_keys.values() if len(group) > 1), None)
            if bundle and not bundle[0].startswith("bundle_emb."):
                raise EmbeddingFileError(
                    f"{len(bundle)} tensors, and none is known to be the embedding. First keys: "
                    f"{', '.join(map(quote, bundle[:3]))}"
                )
            return tower_keys
    raise EmbeddingFileError("there is no tensor in it")


def _count(key: str, stored: Any) -> int:
    """Number of vectors in a tensor, according to its header."""
    shape, dtype = stored.get_shape(), stored.get_dtype()
    if len(shape) not in (1, 2) or 0 in shape:
        raise EmbeddingFileError(f"{quote(key, 200)} has shape {quote(shape, 200)}, expected [vectors, width]")
    if shape[-1] > MAX_WIDTH:
        raise EmbeddingFileError(f"{quote(key, 200)} has shape {shape}, at most {MAX_WIDTH} wide ones are read")
    if dtype not in FLOATS:
        raise EmbeddingFileError(f"it holds {dtype}, expected floating point numbers: {', '.join(FLOATS)}")
    return shape[0] if len(shape) == 2 else 1


def _vectors(parts: list[Tensor]) -> Tensor:
    """Tensors of one tower as ``[vectors, dim]``, float32."""
    rows = [torch.atleast_2d(part.float()) for part in parts]  # [dim] or [vectors, dim] -> [vectors, dim]
    if len({row.shape[1] for row in rows}) > 1:
        raise EmbeddingFileError("its vectors are of several widths")
    vectors = torch.cat(rows)
    if not bool(vectors.isfinite().all()):
        raise EmbeddingFileError("it holds values that are NaN, infinite or beyond float32")
    return vectors
