"""Markers of entries of a CONDITIONING, and the wrappers of ComfyUI's sampler that come with them.

A marker is among an entry's inputs of the model (``model_conds``), which no node that sets a strength, a mask or a time
replaces. Hooks of the entry bring wrappers to whatever samples it; one of them takes the markers away, as the host
cannot give them to a model.

Source: behaviour of ComfyUI 0.29.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from .contract import PATCHER, checked_object, host
from .types import Conditioning, ModelPatcher


@dataclass(eq=False)
class MarkerKind:
    """A kind of marker with its wrappers."""

    name: str
    """Name of the marker among an entry's inputs of the model, and of the wrappers."""
    wrappers: Mapping[str, Callable[..., Any]]
    """Wrappers by the host's names of what they wrap (``comfy.patcher_extension.WrappersMP``)."""
    lost: str = ""
    """Message for a model that is called with a marker."""

    @cached_property
    def hooks(self) -> Any:
        """The one group of hooks that all marked entries share: with others each would be sampled by itself."""
        hooks = host("comfy.hooks")
        wrappers = {kind: {self.name: [wrapper]} for kind, wrapper in self.wrappers.items()}
        group = hooks.HookGroup()
        scope = hooks.EnumHookScope.AllConditioning
        group.add(hooks.TransformerOptionsHook({"wrappers": wrappers}, hook_scope=scope))
        return group

    def has_only_ours(self, hooks: Any) -> bool:
        """Whether the hooks of an entry, or None, are those of this kind."""
        return all(hook in self.hooks.hooks for hook in getattr(hooks, "hooks", ()))

    def with_hooks(self, conditioning: Conditioning) -> Conditioning:
        """Copy of a conditioning whose entries bring the wrappers."""
        return host("comfy.hooks").set_hooks_for_conditioning(conditioning, self.hooks)

    def with_wrappers(self, model: ModelPatcher) -> ModelPatcher:
        """A clone of a MODEL with the wrappers, attached once."""
        work = model.clone()
        checked_object(work, PATCHER, "add_wrapper_with_key", "remove_wrappers_with_key")
        for kind, wrapper in self.wrappers.items():
            work.remove_wrappers_with_key(kind, self.name)
            work.add_wrapper_with_key(kind, self.name, wrapper)
        return work

    def marked(self, conditioning: Conditioning, values: Sequence[Any]) -> Conditioning:
        """Copy of a conditioning with a marker for each entry, which holds its value."""
        markers = (_marker_class()(value, self.lost) for value in values)
        return [
            [rows, {**options, "model_conds": {**options.get("model_conds", {}), self.name: marker}}]
            for (rows, options), marker in zip(conditioning, markers, strict=True)
        ]

    def values_of(self, entries: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Values of the marked ones of the sampler's entries."""
        return [entry["model_conds"][self.name].value for entry in entries if self.name in entry["model_conds"]]

    def taken(self, entry: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """A copy of a sampler's entry without its marker, and the value of that; the entry and None if it has none."""
        inputs = dict(entry["model_conds"])
        marker = inputs.pop(self.name, None)
        if marker is None:
            return entry, None
        copy = {**entry, "model_conds": inputs}
        if self.has_only_ours(entry.get("hooks")):
            copy.pop("hooks", None)  # no longer needed, and entries with different hooks never share a batch
        return copy, marker.value


@cache
def _marker_class() -> Any:
    class Marker(host("comfy.conds").CONDRegular):
        def __init__(self, value: Any, lost: str) -> None:
            super().__init__(torch.zeros(1, 1))
            self.value, self.lost = value, lost

        def _copy_with(self, cond: Tensor) -> Marker:
            return Marker(self.value, self.lost)

        def process_cond(self, *_: Any, **__: Any) -> Any:
            raise ValueError(self.lost)

    return Marker
