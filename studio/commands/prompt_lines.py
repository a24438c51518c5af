"""Files with one prompt per line, of any length: read line by line, divided into shards."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import BinaryIO

MAX_LINE_BYTES = 64 * 1024
"""Maximum size of a prompt, as in the Prompt Lab. Without a limit one line could take all memory."""


class PromptLines:
    """The prompts of a file, in order, read on demand."""

    def __init__(self, file: str, option: str = "--batch") -> None:
        """Examine the file."""
        self.path = None if file == "-" else Path(file)
        self.name = "standard input" if self.path is None else file
        self.num_read = 0
        self.num_lines: int | None = None
        """None for a pipe, which can be read only once."""
        if self.path is not None and not self.path.exists():
            raise ValueError(f"{option} {file}: there is no such file")
        if self.path is not None and self.path.is_dir():
            raise ValueError(f"{option} {file}: this is a folder; give a file with a prompt in each line")
        if self.path is not None and self.path.is_file():
            self.num_lines = sum(1 for _ in self)  # an unreadable line is better found now than after hours
            if not self.num_lines:
                raise ValueError(f"{option} {file}: the file is empty")

    def __iter__(self) -> Iterator[str]:
        self.num_read = 0
        if self.path is None:
            yield from self._read(sys.stdin.buffer)
        else:
            with self.path.open("rb") as file:
                yield from self._read(file)

    def _read(self, file: BinaryIO) -> Iterator[str]:
        for number in count(1):
            line = file.readline(MAX_LINE_BYTES + len(codecs.BOM_UTF8) + len(b"\r\n"))
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if not line:
                return
            line = line.removesuffix(b"\n").removesuffix(b"\r")
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(f"{self.where(number)}: this line is longer than {MAX_LINE_BYTES} bytes")
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                found = f"byte {error.start + 1} of this line, {line[error.start]:#04x}, is not UTF-8"
                raise ValueError(f"{self.where(number)}: {found}; save the file as UTF-8") from error
            self.num_read = number
            yield text

    def where(self, number: int) -> str:
        """Position of a line as in editors, counted from 1."""
        return f"{self.name}:{number}"


def shards(lines: Iterable[str], size: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    """First line and texts of each shard."""
    left = iter(lines)
    for first in count(0, size):
        texts = tuple(islice(left, size))
        if not texts:
            return
        yield first, texts
        del texts
