"""What an encoder remembers: encodings of chunks, and states to go on from, the last used, up to a number of bytes.

An entry is found by all that its numbers depend on: the chunk's tokens, by vector where they are vectors, its mask, the
layers chosen, and the weights. So nothing has to be forgotten when something changes; what is not asked for any more
makes room for what is.

Source: docs/performance.md, "What is remembered".
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from hashlib import blake2b
from itertools import chain
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from .encoding import EncodeFn, Encoding
from .masks import check_mask

MEBIBYTE = 2**20
VARIABLE = "WEIGHTED_CLIP_MEMORY_MB"
DEFAULT_MEBIBYTES = 64
"""Room for 140 chunks of CLIP-L and the states of five; for 84 of bigG and the states of one."""
NUM_SAMPLES = 16
"""Numbers of each tensor that are looked at to see whether it is still the same."""


Key = TypeVar("Key", bound=Hashable)


class Memory(Generic[Key]):
    """Tensors by key; the ones not used for longest go when there are too many bytes. Safe between threads."""

    def __init__(self, max_bytes: int) -> None:
        """Start empty.

        Args:
            max_bytes: Bound of the sum of all entries; 0 remembers nothing.

        Raises:
            ValueError: If it is negative.
        """
        if max_bytes < 0:
            raise ValueError(f"a memory cannot have {max_bytes} bytes: 0 is none")
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._entries: OrderedDict[Key, tuple[Tensor, ...]] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> tuple[Tensor, ...] | None:
        """An entry, which is now the last used; or None. Its tensors are not to be written to."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def put(self, key: Key, entry: tuple[Tensor, ...]) -> None:
        """Remember tensors. They must share no memory with larger ones, as their bytes are counted alone."""
        size = num_bytes(entry)
        if size > self.max_bytes:
            return
        with self._lock:
            try:
                self._drop(key)
                while self.num_bytes + size > self.max_bytes:
                    self._drop(next(iter(self._entries)))
                self._entries[key] = entry
                self.num_bytes += size
            except BaseException:
                self._count()
                raise

    def forget(self, keys: Iterable[Key]) -> None:
        """Forget some entries, those that are there."""
        with self._lock:
            try:
                for key in keys:
                    self._drop(key)
            except BaseException:
                self._count()
                raise

    def keys(self) -> list[Key]:
        """Of all entries, the last used last."""
        with self._lock:
            return list(self._entries)

    def _count(self) -> None:
        """Count all bytes anew: Ctrl-C may have ended a change between any two of its steps."""
        self.num_bytes = sum(map(num_bytes, self._entries.values()))

    def _drop(self, key: Key) -> None:
        self.num_bytes -= num_bytes(self._entries.pop(key, ()))


class Attempt:
    """What a call remembers on its way; forgotten if the call fails.

    So what failed, for lack of memory or by an interrupt, leaves nothing of its own: done again, it gives the same to
    the bit. What had to make room for it is gone all the same.
    """

    def __init__(self, scope: Hashable) -> None:
        self.scope = scope
        """What the call's numbers depend on beside the chunks; part of every key."""
        self._puts: list[tuple[Memory[Any], Hashable]] = []

    def put(self, memory: Memory[Any], key: Hashable, entry: tuple[Tensor, ...]) -> None:
        """Remember, for now."""
        self._puts.append((memory, (self.scope, key)))
        memory.put((self.scope, key), entry)

    def undo(self) -> None:
        """Forget what was put."""
        for memory, key in self._puts:
            memory.forget([key])

    def __enter__(self) -> Attempt:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.undo()


def remembering(
    encode: Callable[[Sequence[Sequence[Any]], Tensor | None, bool, Attempt], Encoding],
    memory: Memory[tuple[Hashable, ChunkKey]],
    scope: Callable[[], Hashable],
) -> EncodeFn:
    """An encode function that asks another one only for chunks that it does not remember.

    Args:
        encode: Encodes chunks by ids, mask ``[chunks, s, s]`` and causality, no two of them equal. Whatever it
            remembers itself goes into the attempt.
        memory: Where encodings are remembered.
        scope: What encodings depend on beside the chunks, asked before and after. If it changes meanwhile nothing is
            remembered, as another thread has moved the weights or changed them, and nobody knows which of them were
            used. None: that cannot be told, so all chunks are encoded as they are given, and nothing is remembered.

    Returns:
        The function, which raises MaskError for a mask that does not fit.
    """

    def recalling(ids: Sequence[Sequence[Any]], mask: Tensor | None = None, *, is_causal: bool = True) -> Encoding:
        with Attempt(scope()) as attempt:
            if attempt.scope is None:
                return encode(ids, mask, is_causal, attempt)
            length = len(ids[0])
            if mask is not None:
                mask = check_mask(mask, len(ids), length).expand(len(ids), length, length)
            keys = chunk_keys(ids, mask, is_causal=is_causal)
            found = {key: memory.get((attempt.scope, key)) for key in keys}
            missing = {key: row for row, key in reversed(list(enumerate(keys))) if found[key] is None}
            rows = sorted(missing.values())
            if rows:
                made = encode([ids[row] for row in rows], None if mask is None else mask[rows], is_causal, attempt)
                new = dict(zip([keys[row] for row in rows], zip(*made, strict=True), strict=True))
                found |= new
                if memory.max_bytes and scope() != attempt.scope:
                    attempt.undo()
                elif memory.max_bytes:
                    for key, entry in new.items():
                        attempt.put(memory, key, tuple(one.clone() for one in entry))
        entries = [entry for entry in map(found.get, keys) if entry is not None]
        return Encoding(*(torch.stack(rows) for rows in zip(*entries, strict=True)))

    return recalling


def num_bytes(tensors: Iterable[Tensor]) -> int:
    """Size of some tensors."""
    return sum(tensor.nbytes for tensor in tensors)


def default_bytes() -> int:
    """Bytes that an encoder of ours may remember: as the environment variable says, or 64 MiB.

    Raises:
        ValueError: If the variable is not a number of mebibytes.
    """
    written = os.environ.get(VARIABLE, "").strip() or str(DEFAULT_MEBIBYTES)
    if not written.isdecimal():
        raise ValueError(f"{VARIABLE}={written} is not a number of mebibytes; 0 switches the memory off")
    return int(written) * MEBIBYTE


class ChunkKey(NamedTuple):
    """All that the states of a chunk's positions depend on, beside the model."""

    positions: tuple[Hashable, ...]
    """For each position what stands there and what of the earlier ones it may not see."""
    is_causal: bool


def chunk_keys(ids: Sequence[Sequence[Any]], mask: Tensor | None, *, is_causal: bool) -> list[ChunkKey]:
    """Keys of some chunks.

    Args:
        ids: Token ids, or anything with ``vector`` and ``placeholder``, for each chunk.
        mask: Bool ``[chunks or 1, s or 1, s]``, True = may be attended, or None.
        is_causal: Whether later positions are hidden anyhow.

    Returns:
        For each chunk its key. If causal, positions from the first to the last whose keys agree have the same states.

    >>> one, other = chunk_keys([[1, 5, 6], [1, 5, 7]], None, is_causal=True)
    >>> one.positions[:2] == other.positions[:2], one == other
    (True, False)
    """
    plain = [[_token_key(token) for token in chunk] for chunk in ids]
    if mask is None:
        return [ChunkKey(tuple(chunk), is_causal) for chunk in plain]
    length = len(plain[0])
    hidden = ~mask.cpu().expand(len(plain), length, length)
    if is_causal:
        hidden = hidden.tril()
    hides, rows = hidden.any(-1).tolist(), hidden.numpy()
    return [
        ChunkKey(
            tuple(
                (token, rows[row, place, : place + 1 if is_causal else length].tobytes())
                if hides[row][place]
                else token
                for place, token in enumerate(chunk)
            ),
            is_causal,
        )
        for row, chunk in enumerate(plain)
    ]


def _token_key(token: Any) -> Hashable:
    if not hasattr(token, "vector"):
        return int(token)
    return token.placeholder, str(token.vector.dtype), blake2b(_bytes(token.vector.detach())).digest()


def state_of(module: nn.Module) -> bytes:
    """What changes whenever a module's weights do.

    It is made of where they are in memory, their shapes, and how often each was written to as PyTorch counts; and of a
    few numbers of each, as writing through ``.data`` is not counted. A write through ``.data`` to nothing but single
    numbers between them goes unseen.

    Args:
        module: Any module with dense weights.

    Returns:
        A digest, equal for the same weights in the same place.
    """
    tensors = [tensor.detach() for tensor in chain(module.parameters(), module.buffers())]
    places = [
        (tensor.data_ptr(), None if tensor.is_inference() else tensor._version, tensor.shape, tensor.stride())
        for tensor in tensors
    ]
    digest = blake2b(repr(places).encode())
    by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        by_kind.setdefault((tensor.device, tensor.dtype), []).append(_sample(tensor))
    for kind, samples in by_kind.items():
        digest.update(repr(kind).encode() + _bytes(torch.cat(samples)))
    return digest.digest()


def _sample(tensor: Tensor) -> Tensor:
    flat = tensor.flatten()
    return flat[:: max(1, len(flat) // NUM_SAMPLES)]


def _bytes(tensor: Tensor) -> bytes:
    return tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()
