"""A look at the opcodes of a pickle before PyTorch reads it: tensors and plain values, as ``torch.save`` writes them.

PyTorch's ``weights_only`` unpickler runs no code of a file, but hashes what the file puts into dictionaries and sets,
and loses itself there: the hash of nested tuples that share their parts takes as many steps as they would have without
sharing, ``2 ** 60`` in 1 KB, and none of them can be interrupted; and thousands of whole numbers can have one hash. So
here keys are texts and small numbers alone. No value may be larger, with what it shares counted each time, than
`MAX_PARTS`, or changed once it is part of another.

Source: ``pickletools`` of Python, and PyTorch 2.13's ``_weights_only_unpickler.py``, for what each opcode does.
"""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Container, Iterable
from typing import Any, BinaryIO

PROTOCOL = 2
MAX_PARTS = 2_000_000
"""Largest size of a value: itself and its parts, each counted as often as it is reached. A large model's state has some
hundred thousand."""
MAX_DEPTH = 32
"""Deepest nesting; modules of modules, each with its dictionaries, reach some 20."""
MAX_TUPLE_PARTS = 10_000
"""Largest size of a tuple, which may be hashed; the state of Python's random numbers has some 630 values."""

_SET, _ORDERED = "__builtin__.set", "collections.OrderedDict"
_KEYS = frozenset({"BINUNICODE", "SHORT_BINSTRING", "BININT", "BININT1", "BININT2"})
_SCALARS = frozenset({"NONE", "NEWTRUE", "NEWFALSE", "BINFLOAT", "LONG1"})
_EMPTY = {"EMPTY_TUPLE": "tuple", "EMPTY_LIST": "list", "EMPTY_DICT": "dict"}
_COUNTS = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPEND": 1, "SETITEM": 2, "REDUCE": 2, "NEWOBJ": 2, "BUILD": 1}
"""Number of values that an opcode takes; others take the values after the last mark."""
_GROWING = ("list", "dict", "object")


class _Value:
    """A value as far as it is known: its size, and not its content."""

    __slots__ = ("depth", "first", "has_keys_alone", "is_part", "kind", "size")

    def __init__(self, kind: str, parts: Iterable[_Value] = ()) -> None:
        self.kind, self.size, self.depth = kind, 1, 0
        self.has_keys_alone = True
        """Whether all its parts can be keys."""
        self.is_part = False
        """Whether it is part of another, or used again, and may not change any more."""
        self.first: _Value | None = None
        """Its first part."""
        self.add(parts)

    def add(self, parts: Iterable[_Value]) -> None:
        """Take in parts."""
        for part in parts:
            part.is_part = True
            self.first = self.first or part
            self.size += part.size
            self.depth = max(self.depth, part.depth + 1)
            self.has_keys_alone = self.has_keys_alone and part.kind == "key"
        if self.size > (MAX_TUPLE_PARTS if self.kind == "tuple" else MAX_PARTS) or self.depth > MAX_DEPTH:
            raise ValueError("its pickle holds values nested and shared as PyTorch nests and shares none")


def check_pickle(data: bytes | BinaryIO, allowed: Container[str], max_bytes: int) -> None:
    """Check one pickle; in a file, the one at the current position, which is moved to its end.

    Args:
        data: The pickle.
        allowed: Names of the classes and functions that it may have, with their modules.
        max_bytes: Bytes that are looked at.

    Raises:
        UnpicklingError: If it names any other class or function.
        ValueError: If it is broken, too long, or not as ``torch.save`` writes it.
    """
    machine, start = _Machine(allowed), 0 if isinstance(data, bytes) else data.tell()
    try:
        for opcode, argument, place in pickletools.genops(data):
            if (place or 0) - start > max_bytes:
                raise ValueError(f"its pickle has more than {max_bytes:,} bytes")
            machine.do(opcode.name, argument)
    except (IndexError, KeyError) as error:
        raise ValueError("its pickle is broken: it takes more values than it has") from error


class _Machine:
    """The unpickler's stack, marks and memo."""

    def __init__(self, allowed: Container[str]) -> None:
        self._allowed = allowed
        self._stack: list[_Value] = []
        self._marks: list[int] = []
        self._memo: dict[int, _Value] = {}
        self._key, self._scalar = _Value("key"), _Value("scalar")

    def do(self, name: str, argument: Any) -> None:
        """Follow an opcode."""
        if name in _KEYS:
            self._stack.append(self._key)
        elif name in _SCALARS:
            self._stack.append(self._scalar)
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = self._stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            value = self._memo[argument]
            value.is_part = True
            self._stack.append(value)
        elif name == "MARK":
            self._marks.append(len(self._stack))
        elif name in _EMPTY:
            self._stack.append(_Value(_EMPTY[name]))
        elif name == "GLOBAL":
            self._name(str(argument).replace(" ", ".", 1))
        elif name == "BINPERSID":
            self._stack.append(_Value("storage", self._popped(1)))
        elif name.startswith("TUPLE"):
            self._stack.append(_Value("tuple", self._popped(_COUNTS.get(name))))
        elif name in ("APPEND", "APPENDS"):
            self._extend(self._popped(_COUNTS.get(name)), "list")
        elif name in ("SETITEM", "SETITEMS"):
            parts = self._popped(_COUNTS.get(name))
            if any(part.kind != "key" for part in parts[::2]):
                raise ValueError("a dictionary in its pickle has a key that is neither a text nor a small number")
            self._extend(parts, "dict")
        elif name == "BUILD":
            self._extend(self._popped(_COUNTS[name]))
        elif name in ("REDUCE", "NEWOBJ"):
            self._call(*self._popped(_COUNTS[name]))
        elif name == "PROTO":
            if argument != PROTOCOL:
                raise ValueError(f"its pickle has protocol {argument}, expected {PROTOCOL}")
        elif name != "STOP":
            raise ValueError(f"its pickle has the opcode {name}, which PyTorch writes none of")

    def _popped(self, count: int | None) -> list[_Value]:
        """Pop the last values of the stack, or all after the last mark."""
        place = self._marks.pop() if count is None else len(self._stack) - count
        if place < (self._marks[-1] if self._marks else 0):
            raise IndexError
        parts = self._stack[place:]
        del self._stack[place:]
        return parts

    def _name(self, name: str) -> None:
        if name not in self._allowed:
            raise pickle.UnpicklingError(f"Unsupported global: {name:.200}")
        self._stack.append(_Value(name))

    def _extend(self, parts: list[_Value], kind: str = "") -> None:
        value = self._stack[-1]
        if value.kind not in _GROWING or value.is_part or kind not in ("", value.kind):
            raise ValueError("its pickle changes a value that is whole, or of another kind")
        value.add(parts)

    def _call(self, called: _Value, arguments: _Value) -> None:
        """Make an object; sets are made of keys alone, and dictionaries of nothing."""
        argument = arguments.first
        if arguments.kind != "tuple":
            raise ValueError("its pickle calls a function without arguments")
        is_set_of_keys = called.kind == _SET and argument and argument.kind == "list" and argument.has_keys_alone
        if called.kind in (_SET, _ORDERED) and argument and not is_set_of_keys:
            raise ValueError("a set or dictionary in its pickle is not made of texts and small numbers")
        self._stack.append(_Value("dict" if called.kind == _ORDERED else "object", [arguments]))
