"""The conditioning of many prompts as a folder of safetensors files, each written atomically.

A shard holds the prompts of consecutive lines, with everything they were made from in the metadata. It is named after
its first line, because a name with its last line or the number of shards would change when lines are added. Lines count
from 0. ``studio/commands/bulk.py`` decides when a shard is rewritten.

Source: docs/command-line.md, "Shards".
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import SafetensorError

from ...encoder.files.safetensors_file import opened
from ...encoder.quoting import quote
from .export import save_tensors
from .files import written_whole

if TYPE_CHECKING:
    from torch import Tensor

    from ...encoder.encoding import Encoding

FORMAT_NAME = "weighted-clip shard"
FORMAT = f"{FORMAT_NAME} 1"
"""Version of the format, changed when an older reader would fail."""
MAX_HEADER_BYTES = 100_000_000
"""Maximum header size; safetensors writes files with longer headers, but does not read them."""

_NAME = re.compile(r"prompts-(\d{8,})\.safetensors")


class ShardError(ValueError):
    """Raised for a shard that cannot be read, or is missing; the message names the file."""


@dataclass(frozen=True)
class ShardHead:
    """Description of a shard."""

    first: int
    """Line of its first prompt."""
    texts: tuple[str, ...]
    """Its prompts, at least one."""
    about: Mapping[str, str]
    """Origin of the shard: options, weights, ..."""

    def differences(self, other: ShardHead, informative: Sequence[str] = ()) -> list[str]:
        """Differences that keep this shard from being the beginning of another.

        >>> ShardHead(8, ("a", "b"), {"scheme": "comfy"}).differences(ShardHead(8, ("a", "c"), {"scheme": "lpw"}))
        ["scheme: 'comfy' there, 'lpw' now", "line 10: 'b' there, 'c' now"]
        """
        keys = dict.fromkeys([*self.about, *other.about])
        by_key = {key: _difference(key, self.about.get(key), other.about.get(key)) for key in keys}
        found = [difference for key, difference in by_key.items() if difference and key not in informative]
        pairs = enumerate(zip(self.texts, other.texts, strict=False), self.first + 1)
        found += [_difference(f"line {number}", *pair) for number, pair in pairs if pair[0] != pair[1]][:1]
        if len(self.texts) > len(other.texts):
            found.append(f"{len(self.texts)} lines there, {len(other.texts)} now")
        return found and found + [by_key[key] for key in informative if by_key.get(key)]


class EncodedLine(NamedTuple):
    """A prompt of a shard."""

    line: int
    """Its line, counted from 0."""
    text: str
    """The prompt."""
    hidden: Tensor
    """``[rows, dim]``, float in the chosen type."""
    pooled: Tensor
    """``[pooled_dim]``, the same type."""


def shard_path(folder: Path, first: int) -> Path:
    """Path of the shard that begins with a line.

    >>> shard_path(Path("out"), 256).name
    'prompts-00000256.safetensors'
    """
    return folder / f"prompts-{first:08d}.safetensors"


def shard_files(folder: Path) -> Iterator[tuple[int, Path]]:
    """First line and path of every shard in an existing folder, in no particular order."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if match := _NAME.fullmatch(entry.name):
                yield int(match[1]), Path(entry.path)


def write_shard(path: Path, head: ShardHead, rows: Sequence[Encoding]) -> None:
    """Write a shard atomically.

    Args:
        path: Output file; an existing one is replaced.
        head: Description of the shard.
        rows: For each text its hidden states, ``[rows, dim]``, and pooled vector, ``[pooled_dim]``, on the CPU.

    Raises:
        OSError: If the file cannot be written. No part of it remains, and an existing file is left as it was.
        ShardError: If the texts are too long to be read again.
    """
    metadata = {"format": FORMAT, **head.about}
    metadata |= {"first_line": str(head.first), "last_line": str(head.first + len(head.texts) - 1)}
    tensors: dict[str, Tensor] = {}
    for line, (text, one) in enumerate(zip(head.texts, rows, strict=True), head.first):
        metadata[f"{line:08d}.text"] = text
        tensors |= {f"{line:08d}.hidden": one.hidden, f"{line:08d}.pooled": one.pooled}
    with written_whole(path) as place:
        save_tensors(tensors, place, metadata)
        with place.open("rb") as file:
            if int.from_bytes(file.read(8), "little") > MAX_HEADER_BYTES:
                raise ShardError(f"{path}: its texts are too long for one file; choose smaller shards")


def read_head(path: Path) -> ShardHead:
    """Read the description of a shard, without its tensors.

    Args:
        path: The file.

    Returns:
        Texts and entries.

    Raises:
        ShardError: If it is incomplete, or not a shard.
    """
    try:
        with opened(path, MAX_HEADER_BYTES) as file:
            metadata = dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise ShardError(f"{path}: no whole safetensors file: {error}") from error
    kind = metadata.pop("format", "")
    if kind != FORMAT and kind.startswith(FORMAT_NAME):  # checked first, as other versions may have other entries
        raise ShardError(f"{path}: made by another version, as {quote(kind)}; this one reads {FORMAT!r}")
    try:
        first, last = int(metadata.pop("first_line")), int(metadata.pop("last_line"))
        texts = tuple(metadata.pop(f"{line:08d}.text") for line in range(first, last + 1))
    except (KeyError, ValueError) as error:
        raise ShardError(f"{path}: no shard of encoded prompts") from error
    if not texts or kind != FORMAT:
        raise ShardError(f"{path}: no shard of encoded prompts")
    return ShardHead(first, texts, metadata)


def read_shards(folder: str | Path) -> Iterator[EncodedLine]:
    """Read encoded prompts back one by one.

    Args:
        folder: Folder of the shards.

    Returns:
        The prompts in line order, from line 0 on. Only one is in memory at a time.

    Raises:
        ShardError: If a shard is incomplete, or one is missing between others.
        OSError: If there is no such folder.
    """
    expected = 0
    for first, path in sorted(shard_files(Path(folder))):
        head = read_head(path)
        if first != expected or head.first != first:
            raise ShardError(f"{folder}: line {expected + 1} is not encoded yet; {path.name} comes next")
        try:
            with opened(path, MAX_HEADER_BYTES) as file:
                for line, text in enumerate(head.texts, first):
                    hidden, pooled = _tensor(file, f"{line:08d}.hidden", 2), _tensor(file, f"{line:08d}.pooled", 1)
                    yield EncodedLine(line, text, hidden, pooled)
        except SafetensorError as error:
            raise ShardError(f"{path}: a tensor of its prompts cannot be read: {error}") from error
        expected = first + len(head.texts)


def _tensor(file: Any, key: str, num_axes: int) -> Tensor:
    """A tensor of an open file; SafetensorError if it is missing or has another shape."""
    shape = file.get_slice(key).get_shape()
    if len(shape) != num_axes or 0 in shape:
        raise SafetensorError(f"{quote(key)} has shape {quote(shape)}, expected {num_axes} axes that are not empty")
    # a copy: safetensors' tensors map the file, which then cannot be replaced on Windows
    return file.get_tensor(key).clone()


def _difference(name: str, there: str | None, now: str | None) -> str:
    if there == now:
        return ""
    return f"{name}: {_short(there)} there, {_short(now)} now"


def _short(value: str | None) -> str:
    """A value in quotes, shortened if long."""
    return "nothing" if value is None else quote(value, 60)
