"""The host's own CLIP under one that serves every prompt box."""

from __future__ import annotations

from copy import copy
from typing import TypeVar

from ..types import Clip

SESSION = "weighted_clip_session"
"""Attribute of the CLIPs of the node Weighted CLIP (weighted_clip/clip.py)."""
AnyClip = TypeVar("AnyClip")


def base_of(clip: Clip) -> type:
    """Class of the host under one of ours: ours, its mixin, the host's."""
    return type(clip).__mro__[2]


def host_clip(clip: AnyClip) -> AnyClip:
    """A CLIP of the host's own class, to be asked for what the host itself would do; any other is returned as it is."""
    if SESSION not in getattr(clip, "__dict__", ()):
        return clip
    plain = copy(clip)
    plain.__class__ = base_of(clip)  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
    del vars(plain)[SESSION]
    plain.cond_stage_model = clip.patcher.model  # pyright: ignore[reportAttributeAccessIssue]
    return plain
