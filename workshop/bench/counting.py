"""What a piece of work asks of a device, counted without one: operators, waits, copies, and bytes of attention masks.

The device is pretended: tensors on it say that they are on ``meta``. Those with few numbers keep them, all others have
none, so that whole models of any size run in a second. Operators that only look at memory in another way are not
counted; PyTorch's fused attention is one operator, as on a GPU. A wait is what makes the processor wait for the device:
reading a number, asking which are not 0, copying from the device, and, as PyTorch does it, copying from memory that is
not pinned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")
"""The pretended device."""
MOST_KEPT = 10_000
"""Most numbers of a tensor on the device that are kept."""
ATTENTION = "scaled_dot_product_attention"
aten = torch.ops.aten
_READS = {aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default}
_FINDS = {aten.nonzero.default, aten.masked_select.default, aten._unique2.default, aten.unique_dim.default}
_LOOKS = {*(f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"))}
_LOOKS |= {"aten::lift_fresh", "aten::_unsafe_view", "aten::_reshape_alias", "aten::detach", "aten::alias"}
_OF_NUMBERS = (torch.tensor, torch.as_tensor)
_INDEXING = (Tensor.__getitem__, Tensor.__setitem__)
_MADE = ("new_zeros", "new_ones", "new_full", "new_empty", "zeros", "ones", "full", "empty", "arange", "linspace")
_MADE = {*_MADE, "scalar_tensor", *(f"{name}_like" for name in ("zeros", "ones", "full", "empty"))}


@dataclass
class Counts:
    """What was asked of the device."""

    operators: Counter[str] = field(default_factory=Counter)
    """Operators that compute, by name."""
    waits: Counter[str] = field(default_factory=Counter)
    """Waits for the device, by what waits."""
    num_copies: int = 0
    """Number of copies to the device and from it."""
    copied: int = 0
    """Bytes of these copies."""
    masks: dict[int, int] = field(default_factory=dict)
    """Bytes of each mask of an attention, by its place in memory."""

    def note_copy(self, num_bytes: int) -> None:
        """Count a copy."""
        self.num_copies += 1
        self.copied += num_bytes

    @property
    def num_operators(self) -> int:
        """Number of operators on the device."""
        return self.operators.total()

    @property
    def num_waits(self) -> int:
        """Number of waits for the device."""
        return self.waits.total()

    @property
    def mask_bytes(self) -> int:
        """Bytes of all masks."""
        return sum(self.masks.values())


class OnDevice(Tensor):
    """A tensor on the pretended device whose numbers are known."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> OnDevice:
        """Put numbers on the device."""
        made: Any = torch.Tensor._make_wrapper_subclass(
            cls,
            numbers.shape,
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=DEVICE,
        )
        made.numbers = numbers
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, function: Any, _: Any, inputs: Any = (), named: Any = None) -> Any:
        """Outside of `counting` nothing is counted."""
        return _carried_out(function, inputs, named or {})


def to_device(tensor: Tensor) -> Tensor:
    """A tensor of the processor on the pretended device."""
    return OnDevice(tensor.clone()) if tensor.numel() <= MOST_KEPT else torch.empty_like(tensor, device=DEVICE)


def _is_there(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device == DEVICE


def _has_numbers(value: Any) -> bool:
    return isinstance(value, OnDevice) or not _is_there(value)


def _name(function: Any) -> str:
    return function._schema.name


def _carried_out(function: Any, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Result of an operator that has a part on the device."""
    flat = [value for value in tree_flatten((inputs, named))[0] if isinstance(value, Tensor)]
    short = _name(function).removeprefix("aten::")
    if short in _MADE and (torch.device(named.get("device") or "cpu") == DEVICE or any(map(_is_there, flat))):
        sizes = tree_map(lambda value: _without_numbers(value) if isinstance(value, Tensor) else value, (inputs, named))
        made = function(*sizes[0], **{**sizes[1], "device": DEVICE})
        if made.numel() > MOST_KEPT:
            return made
        if short.startswith("new_") or short.endswith("_like"):  # from a tensor that may have none
            shape = flat[0].shape if short.endswith("_like") else 0
            inputs = [torch.empty(shape, dtype=flat[0].dtype), *inputs[1:]]
        return OnDevice(function(*inputs, **{**named, "device": "cpu"}))
    keeps = all(map(_has_numbers, flat))
    wrappers: dict[int, Tensor] = {}

    def taken(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return torch.device("cpu") if keeps and isinstance(value, torch.device) and value == DEVICE else value
        if isinstance(value, OnDevice):
            numbers = value.numbers if keeps else _without_numbers(value)
            wrappers[id(numbers)] = value
            return numbers
        if keeps or _is_there(value) or value.dim() == 0:
            return value
        return _without_numbers(value)

    args, choices = tree_map(taken, (tuple(inputs), dict(named)))
    result = function(*args, **choices)

    def given(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) in wrappers:
            return wrappers[id(value)]
        if keeps and any(map(_is_there, flat)):
            return OnDevice(value) if value.numel() <= MOST_KEPT else torch.empty_like(value, device=DEVICE)
        return value

    return tree_map(given, result)


def _without_numbers(value: Tensor) -> Tensor:
    if value.device == DEVICE and not isinstance(value, OnDevice):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=DEVICE)


class _Operators(TorchDispatchMode):
    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, function: Any, _: Any, inputs: Any = (), named: Any = None) -> Any:
        named = named or {}
        counts = self.counts
        flat = [value for value in tree_flatten((inputs, named))[0] if isinstance(value, Tensor)]
        target = named.get("device")
        is_from = any(map(_is_there, flat))
        name = _name(function)
        if function in (aten._to_copy.default, aten.copy_.default) and flat:
            copied = self._copied(function, inputs, named, flat)
            if copied is not None:
                return copied
        goes = target is not None and torch.device(target) == DEVICE
        if not is_from and not goes:
            return function(*inputs, **named)
        if function in _READS:
            counts.waits[name] += 1
            counts.operators[name] += 1
            if not all(map(_has_numbers, flat)):
                return True if function is not aten._local_scalar_dense.default else _one(flat[0].dtype)
            return function(*(value.numbers if isinstance(value, OnDevice) else value for value in flat))
        if function in _FINDS or _is_by_mask(function, inputs):
            counts.waits[name] += 1
            if not all(map(_has_numbers, flat)):
                inputs, named = tree_map(
                    lambda value: torch.zeros(value.shape, dtype=value.dtype) if isinstance(value, Tensor) else value,
                    (inputs, named),
                )
                counts.operators[name] += 1
                return tree_map(
                    lambda value: to_device(value) if isinstance(value, Tensor) else value, function(*inputs, **named)
                )
        if name == "aten::lift_fresh":  # made of Python's numbers
            counts.waits["copy to it"] += 1
            counts.note_copy(flat[0].nbytes)
        elif not function.is_view and name not in _LOOKS:
            counts.operators[name] += 1
            indices = [value for value in flat if not _is_there(value) and value.dim()]
            if name in ("aten::index.Tensor", "aten::index", "aten::index_put_", "aten::index_put") and indices:
                counts.waits["copy of an index"] += 1
                counts.note_copy(sum(value.nbytes for value in indices))
        return _carried_out(function, inputs, named)

    def _copied(self, function: Any, inputs: Any, named: Any, flat: Sequence[Tensor]) -> Any:
        """Result of a copy between processor and device; None for others."""
        counts = self.counts
        if function is aten.copy_.default:
            target, source = flat[:2]
            if _is_there(target) == _is_there(source):
                return None
            goes, waits = _is_there(target), not (len(inputs) > 2 and inputs[2])
            counts.note_copy(source.nbytes)
            counts.waits["copy to it" if goes else "copy from it"] += waits
            if goes and isinstance(target, OnDevice):
                target.numbers.copy_(source)
            elif not goes and isinstance(source, OnDevice):
                target.copy_(source.numbers)
            return target
        (source,) = flat[:1]
        device = named.get("device")
        goes = device is not None and torch.device(device) == DEVICE
        if device is None or goes == _is_there(source):
            return None
        waits = not named.get("non_blocking", False)
        dtype = named.get("dtype") or source.dtype
        counts.note_copy(source.nbytes)
        counts.waits["copy to it" if goes else "copy from it"] += waits
        if goes:
            return to_device(source.to(dtype))
        if isinstance(source, OnDevice):
            return source.numbers.to(dtype, copy=True)
        return torch.zeros(source.shape, dtype=dtype)


def _is_by_mask(function: Any, inputs: Sequence[Any]) -> bool:
    if function is not aten.index.Tensor or len(inputs) < 2:
        return False
    return any(isinstance(index, Tensor) and index.dtype == torch.bool for index in inputs[1])


def _one(dtype: torch.dtype) -> Any:
    return True if dtype == torch.bool else 1.0 if dtype.is_floating_point else 1


class _Functions(TorchFunctionMode):
    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.counts = counts

    def __torch_function__(self, function: Any, _: Any, inputs: Any = (), named: Any = None) -> Any:
        named = named or {}
        if function in _OF_NUMBERS and torch.device(named.get("device") or "cpu") == DEVICE:
            made = function(*inputs, **{**named, "device": "cpu"})
            return made.to(DEVICE)
        if function is Tensor.new_tensor and _is_there(inputs[0]):
            return torch.tensor(inputs[1], dtype=named.get("dtype", inputs[0].dtype)).to(DEVICE)
        if function in (Tensor.tolist, Tensor.numpy) and _is_there(inputs[0]):
            return function(inputs[0].cpu())
        if function in _INDEXING and _is_there(inputs[0]):
            self._note_lists(inputs[1])
        if function is not functional.scaled_dot_product_attention or not _is_there(inputs[0]):
            return function(*inputs, **named)
        query, _, value, *rest = inputs
        mask = named.get("attn_mask", rest[0] if rest else None)
        self.counts.operators[ATTENTION] += 1
        if mask is not None:
            storage = mask.untyped_storage()
            self.counts.masks[storage._cdata] = storage.nbytes() if not isinstance(mask, OnDevice) else mask.nbytes
        shape = query.shape[0], query.shape[2], query.shape[1], value.shape[-1]
        return torch.empty(shape, dtype=query.dtype, device=DEVICE).transpose(1, 2)  # in the order of fused kernels

    def _note_lists(self, index: Any) -> None:
        """Note numbers among an index, which PyTorch copies to the device."""
        for part in index if isinstance(index, tuple) else (index,):
            if isinstance(part, (list, range)):
                self.counts.waits["copy of an index"] += 1
                self.counts.note_copy(torch.int64.itemsize * len(part))


@contextmanager
def counting() -> Iterator[Counts]:
    """Count what is asked of the device within the context, without gradients."""
    counts = Counts()
    with torch.no_grad(), _Operators(counts), _Functions(counts):
        yield counts
