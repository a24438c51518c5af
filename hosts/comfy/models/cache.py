"""Cache of encodings for a ComfyUI CLIP, if its user requested one with the node Remember Encodings.

The cache is shared by the CLIP and its clones, as an attachment of the host's ModelPatcher, and freed with them. Its
keys include everything that the encoding depends on in the host; under hooks, which change weights while an image is
sampled, nothing is cached.

Source: behaviour of ComfyUI 0.3.64 and 0.29.0; docs/performance.md, "What is remembered".
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ....encoder.cache import MEBIBYTE, Attempt, ChunkKey, Memory, remembering, state_of
from ....encoder.encoding import EncodeFn, Encoding
from ....encoder.masks import causal_mask
from ....weighting.text.embeddings import TokenId
from ..contract import PATCHER, checked_object

logger = logging.getLogger(__name__)

KEY = "weighted_clip.memory"
CHOICES = ("layer", "layer_idx", "layer_norm_hidden_state", "return_projected_pooled", "execution_device")
"""Dependencies of a tower's output besides its weights, by the host's names."""
OUT_OF_MEMORY = (torch.cuda.OutOfMemoryError, getattr(torch, "AcceleratorError", torch.cuda.OutOfMemoryError))
"""Exceptions that the host may treat as a lack of memory."""


class _Same:
    """Key that equals only one holding the same object, which it keeps alive so that its id is not reused."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.thing is self.thing

    def __hash__(self) -> int:
        return id(self.thing)


def with_memory(clip: Any, mebibytes: int) -> Any:
    """A CLIP whose encodings by our nodes are cached; those by the host's are not.

    Args:
        clip: ComfyUI's CLIP object.
        mebibytes: Cache size for it and all its clones together; 0 for no cache, as with any other CLIP.

    Returns:
        A clone of the CLIP.
    """
    work = clip.clone()
    checked_object(work.patcher, PATCHER, "set_attachments")
    work.patcher.set_attachments(KEY, Memory(mebibytes * MEBIBYTE) if mebibytes else None)
    return work


def memory_of(clip: Any) -> Memory[tuple[Hashable, ChunkKey]] | None:
    """Cache of a CLIP, or None."""
    return None if _has_hooks(clip.patcher) else _attached(clip.patcher)


def _attached(patcher: Any) -> Memory[tuple[Hashable, ChunkKey]] | None:
    get = getattr(patcher, "get_attachment", None)  # another pack's patcher, or an old host's, may lack it
    return None if get is None else get(KEY)


def _has_hooks(patcher: Any) -> bool:
    return any(getattr(patcher, name, None) is not None for name in ("forced_hooks", "current_hooks"))


def with_recall(encode: EncodeFn, tower: Any, patcher: Any) -> EncodeFn:
    """Add caching to the encode function of a host's tower, if the ModelPatcher of the encoding clone has one."""
    memory = _attached(patcher)
    if memory is None:
        return encode

    def visible(ids: Sequence[Sequence[TokenId]], mask: Tensor | None, is_causal: bool, attempt: Attempt) -> Encoding:
        mask = mask if attempt.scope is None else _hiding(mask, is_causal)
        return encode(ids, mask, is_causal=is_causal)

    return remembering(visible, memory, partial(_scope, tower, patcher))


def _hiding(mask: Tensor | None, is_causal: bool) -> Tensor | None:
    """The mask, or None if it hides nothing: the host has another path for that."""
    if mask is None:
        return None
    hidden = ~mask & causal_mask(mask.shape[-1]).to(mask.device) if is_causal else ~mask
    return mask if bool(hidden.any()) else None


def _scope(tower: Any, patcher: Any) -> Hashable | None:
    """Everything a tower's output depends on besides the chunks; None if that cannot be determined."""
    if _has_hooks(patcher):
        return None
    others = {
        path: _Same(thing)
        for path, thing in patcher.object_patches.items()
        if not path.endswith(".encode_token_weights")
    }
    try:
        weights = state_of(tower)
    except OUT_OF_MEMORY:  # the host then unloads models
        raise
    except (RuntimeError, TypeError) as error:  # weights of a kind that PyTorch cannot read number by number
        logger.warning("encodings of this CLIP are not remembered, as its weights cannot be compared: %s", error)
        return None
    choices = tuple(str(getattr(tower, name, None)) for name in CHOICES)
    return weights, choices, patcher.patches_uuid, frozenset(others.items()), _injected(patcher), changed_calls(tower)


def _injected(patcher: Any) -> Hashable:
    """Injections of the host, such as bypassed LoRAs."""
    injections = getattr(patcher, "injections", {})
    return tuple((name, _Same(injection)) for name, several in injections.items() for injection in several)


def changed_calls(tower: Any) -> tuple[Hashable, ...]:
    """Everything that acts on calls of a tower's modules, such as bypassed LoRAs that the host has injected."""
    return tuple(
        (name, _Same(function))
        for name, module in tower.named_modules()
        for function in (
            *module._forward_pre_hooks.values(),
            *module._forward_hooks.values(),
            *(value for key, value in vars(module).items() if key == "forward"),
        )
    )
