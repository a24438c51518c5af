"""The conditioning of many prompts as a folder of safetensors files, each written whole or not at all.

A shard holds the prompts of some lines that follow one another, with everything that made them in the metadata. It is
named after its first line, because a name with its last line or with the number of shards would change as lines are
added. Lines count from 0. Who encodes what, and when a shard is written anew, ``commands/bulk.py`` says.

Source: docs/bulk.md, "Shards".
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import SafetensorError

from ..encoder.files.safetensors_file import opened
from .export import save_tensors
from .files import written_whole

if TYPE_CHECKING:
    from torch import Tensor

    from ..encoder.encoding import Encoding

FORMAT_NAME = "weighted-clip shard"
FORMAT = f"{FORMAT_NAME} 1"
"""Changes with whatever would make a reader of today wrong."""
MAX_HEADER_BYTES = 100_000_000
"""Files with a longer header are written by safetensors, and then not read."""

_NAME = re.compile(r"prompts-(\d{8,})\.safetensors")


class ShardError(ValueError):
    """A shard that cannot be read, or is missing; the message names the file."""


@dataclass(frozen=True)
class ShardHead:
    """What a shard says of itself."""

    first: int
    """Line of its first prompt."""
    texts: tuple[str, ...]
    """Its prompts, at least one."""
    about: Mapping[str, str]
    """What made it: options, weights, ..."""

    def differences(self, other: ShardHead, informative: Sequence[str] = ()) -> list[str]:
        """What keeps this shard from being the beginning of another.

        Args:
            other: What is wanted.
            informative: Entries of ``about`` that may differ; told only beside others.

        Returns:
            A few words on each difference; of the texts, on the first.

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
    """Its line, from 0."""
    text: str
    """The prompt."""
    hidden: Tensor
    """``[rows, dim]``, float in the type that was chosen."""
    pooled: Tensor
    """``[pooled_dim]``, the same type."""


def shard_path(folder: Path, first: int) -> Path:
    """Where the shard of these lines is.

    >>> shard_path(Path("out"), 256).name
    'prompts-00000256.safetensors'
    """
    return folder / f"prompts-{first:08d}.safetensors"


def shard_files(folder: Path, suffix: str = "") -> Iterator[tuple[int, Path]]:
    """First line and path of every shard in a folder, in no order.

    Args:
        folder: That is there.
        suffix: What stands behind the names.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            match = _NAME.fullmatch(entry.name.removesuffix(suffix)) if entry.name.endswith(suffix) else None
            if match:
                yield int(match[1]), Path(entry.path)


def write_shard(path: Path, head: ShardHead, rows: Sequence[Encoding]) -> None:
    """Write a shard beside its place and, when it is whole and on the disk, put it there.

    Args:
        path: Output file; an existing one is replaced.
        head: What it shall say of itself.
        rows: For each text hidden states, ``[rows, dim]``, and pooled vector, ``[pooled_dim]``; on the CPU.

    Raises:
        OSError: If the file cannot be written. Nothing of it is left, and what was there before is.
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
    """Read what a shard says of itself, and none of its tensors.

    Args:
        path: Of the file.

    Returns:
        Texts and entries.

    Raises:
        ShardError: If it is not whole, or not a shard.
    """
    try:
        with opened(path, MAX_HEADER_BYTES) as file:
            metadata = dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise ShardError(f"{path}: no whole safetensors file: {error}") from error
    kind = metadata.pop("format", "")
    if kind != FORMAT and kind.startswith(FORMAT_NAME):  # before all else, as others may have other entries
        raise ShardError(f"{path}: made by another version, as {kind!r}; this one reads {FORMAT!r}")
    try:
        first, last = int(metadata.pop("first_line")), int(metadata.pop("last_line"))
        texts = tuple(metadata.pop(f"{line:08d}.text") for line in range(first, last + 1))
    except (KeyError, ValueError) as error:
        raise ShardError(f"{path}: no shard of encoded prompts") from error
    if not texts or kind != FORMAT:
        raise ShardError(f"{path}: no shard of encoded prompts")
    return ShardHead(first, texts, metadata)


def read_shards(folder: str | Path) -> Iterator[EncodedLine]:
    """Read encoded prompts back, one after the other.

    Args:
        folder: Where the shards are.

    Returns:
        The prompts in the order of their lines, the first of which is 0. Only one is held at a time.

    Raises:
        ShardError: If a shard is not whole, or one is missing between others.
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
    """A tensor of an open file; SafetensorError where it is missing or of another form."""
    shape = file.get_slice(key).get_shape()
    if len(shape) != num_axes or 0 in shape:
        raise SafetensorError(f"{key!r} has shape {shape!s:.80}, expected {num_axes} axes that are not empty")
    # a copy: safetensors' tensors are the file itself, which Windows then lets nobody replace
    return file.get_tensor(key).clone()


def _difference(name: str, there: str | None, now: str | None) -> str:
    if there == now:
        return ""
    return f"{name}: {_short(there)} there, {_short(now)} now"


def _short(value: str | None) -> str:
    """A value in quotes, the end of a long one left out."""
    if value is None:
        return "nothing"
    return repr(value) if len(value) <= 60 else f"{value[:60]!r}…"
