"""Cache of an encoder: encodings of chunks, and reusable states, least recently used dropped, up to a number of bytes.

The key of an entry includes everything its numbers depend on: the chunk's tokens, or their vectors, its mask, the
chosen layers, and the weights. So nothing needs to be invalidated when something changes; unused entries are simply
dropped in time.

Source: docs/performance.md, "What is remembered".
"""

from __future__ import annotations

import os
from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from hashlib import blake2b
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
"""Number of values per tensor that are compared to detect changes."""


Key = TypeVar("Key", bound=Hashable)


class Memory(Generic[Key]):
    """Cache of tensors by key; the least recently used are dropped when there are too many bytes. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        """Create an empty cache."""
        if max_bytes < 0:
            raise ValueError(f"a memory cannot have {max_bytes} bytes: 0 is none")
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._entries: OrderedDict[Key, tuple[Tensor, ...]] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> tuple[Tensor, ...] | None:
        """An entry, which becomes the most recently used; or None. Its tensors must not be written to."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def put(self, key: Key, entry: tuple[Tensor, ...]) -> None:
        """Store tensors. They must not share memory with larger ones, as only their own bytes are counted."""
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
        """Remove entries, ignoring missing ones."""
        with self._lock:
            try:
                for key in keys:
                    self._drop(key)
            except BaseException:
                self._count()
                raise

    def keys(self) -> list[Key]:
        """Keys of all entries, most recently used last."""
        with self._lock:
            return list(self._entries)

    def _count(self) -> None:
        """Recount all bytes: Ctrl-C may have interrupted a change between any two of its steps."""
        self.num_bytes = sum(map(num_bytes, self._entries.values()))

    def _drop(self, key: Key) -> None:
        self.num_bytes -= num_bytes(self._entries.pop(key, ()))


class Attempt:
    """Entries stored during a call, removed if the call fails.

    So a call that failed, for lack of memory or by an interrupt, leaves nothing behind: repeated, it gives
    bit-identical results. Entries it displaced remain lost.
    """

    def __init__(self, scope: Hashable) -> None:
        self.scope = scope
        """Dependencies of the call's numbers besides the chunks; part of every key."""
        self._puts: list[tuple[Memory[Any], Hashable]] = []

    def put(self, memory: Memory[Any], key: Hashable, entry: tuple[Tensor, ...]) -> None:
        """Store an entry provisionally."""
        self._puts.append((memory, (self.scope, key)))
        memory.put((self.scope, key), entry)

    def undo(self) -> None:
        """Remove the stored entries."""
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
    """Wrap an encode function so that only chunks missing in the cache are encoded.

    Args:
        encode: Function that encodes distinct chunks by ids, mask ``[chunks, s, s]`` and causality. Anything it stores
            itself goes into the attempt.
        memory: Cache of encodings.
        scope: Dependencies of encodings besides the chunks, queried before and after. If they change in between,
            nothing is stored, as another thread has moved or changed the weights, and it is unknown which were used.
            None: they cannot be determined, so all chunks are encoded as given, and nothing is stored.

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
            entry_by_key = {key: memory.get((attempt.scope, key)) for key in keys}
            missing = {key: row for row, key in reversed(list(enumerate(keys))) if entry_by_key[key] is None}
            rows = sorted(missing.values())
            if rows:
                encoding = encode([ids[row] for row in rows], None if mask is None else mask[rows], is_causal, attempt)
                new = dict(zip([keys[row] for row in rows], zip(*encoding, strict=True), strict=True))
                entry_by_key |= new
                if memory.max_bytes and scope() != attempt.scope:
                    attempt.undo()
                elif memory.max_bytes:
                    for key, entry in new.items():
                        attempt.put(memory, key, tuple(tensor.clone() for tensor in entry))
        entries = [entry for entry in map(entry_by_key.get, keys) if entry is not None]
        return Encoding(*(torch.stack(rows) for rows in zip(*entries, strict=True)))

    return recalling


def num_bytes(tensors: Iterable[Tensor]) -> int:
    """Total size of some tensors."""
    return sum(tensor.nbytes for tensor in tensors)


def default_bytes() -> int:
    """Default cache size of our encoders: from the environment variable, or 64 MiB."""
    written = os.environ.get(VARIABLE, "").strip() or str(DEFAULT_MEBIBYTES)
    if not written.isdecimal():
        raise ValueError(f"{VARIABLE}={written} is not a number of mebibytes; 0 switches the memory off")
    return int(written) * MEBIBYTE


class ChunkKey(NamedTuple):
    """Everything the states of a chunk's positions depend on, besides the model."""

    positions: tuple[Hashable, ...]
    """For each position its token, and the earlier positions it may not see."""
    is_causal: bool


def chunk_keys(ids: Sequence[Sequence[Any]], mask: Tensor | None, *, is_causal: bool) -> list[ChunkKey]:
    """Compute keys of chunks.

    Args:
        ids: Token ids, or anything with ``vector`` and ``placeholder``, for each chunk.
        mask: Bool ``[chunks or 1, s or 1, s]``, True = may be attended, or None.
        is_causal: Whether later positions are hidden in any case.

    Returns:
        The key of each chunk. If causal, positions up to the first whose keys differ have the same states.

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
    """Fingerprint that changes whenever a module's weights do.

    It consists of their memory addresses, shapes, and PyTorch's version counters; and of a few numbers of each, as
    writes through ``.data`` are not counted. A write through ``.data`` to single other numbers goes undetected.
    """
    tensors = list(_tensors(module))
    places: list[int] = []
    for tensor in tensors:
        version = -1 if tensor.is_inference() else tensor._version
        places += (tensor.data_ptr(), version, tensor.ndim, *tensor.shape, *tensor.stride())
    digest = blake2b(array("q", places))
    by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    with torch.no_grad():
        for tensor in tensors:
            by_kind.setdefault((tensor.device, tensor.dtype), []).append(_sample(tensor))
        for kind, samples in by_kind.items():
            digest.update(repr(kind).encode() + _bytes(torch.cat(samples)))
    return digest.digest()


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    """Yield parameters and buffers; shared ones more than once. Like `parameters`, in a fraction of the time."""
    rest = [module]
    while rest:
        submodule = rest.pop()
        for owned in (submodule._parameters, submodule._buffers):  # pyright: ignore[reportPrivateUsage]
            yield from (tensor for tensor in owned.values() if tensor is not None)
        rest += [child for child in submodule._modules.values() if child is not None]  # pyright: ignore[reportPrivateUsage]


def _sample(tensor: Tensor) -> Tensor:
    size = tensor.numel()
    step = max(1, size // NUM_SAMPLES)
    if not tensor.is_contiguous():
        return tensor.flatten()[::step]
    return tensor.as_strided((-(-size // step),), (step,))


def _bytes(tensor: Tensor) -> bytes:
    return tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()
