"""Choices, numbers and texts out of bytes, so that a coverage-guided fuzzer and hypothesis drive the same targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class Draw:
    """Reads bytes from the front; after their end everything is 0 or empty."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        part = self._data[self._at : self._at + count]
        self._at += count
        return part

    def number(self, most: int) -> int:
        """0 to ``most``."""
        size = (most.bit_length() + 7) // 8
        return int.from_bytes(self.take(size), "little") % (most + 1)

    def flag(self) -> bool:
        return bool(self.number(1))

    def pick(self, some: Sequence[T]) -> T:
        return some[self.number(len(some) - 1)] if len(some) > 1 else some[0]

    def text(self, most: int = 255) -> str:
        return as_text(self.take(self.number(most)))

    def rest(self) -> str:
        return as_text(self.take(len(self._data)))

    def value(self) -> Any:
        """Values that JSON can hold, and numbers that it should not."""
        kind = self.number(11)
        if kind == 0:
            return [self.value() for _ in range(self.number(3))]
        if kind == 1:
            return {self.text(12): self.value() for _ in range(self.number(3))}
        odd = (None, True, False, -1, 2**70, 0.5, float("nan"), float("inf"), "")
        return odd[kind - 2] if kind < 11 else self.text(40)


def as_text(data: bytes) -> str:
    """Any bytes as text; what is no UTF-8 becomes lone surrogates."""
    return data.decode("utf-8", "surrogateescape")
