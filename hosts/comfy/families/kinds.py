"""Classes of the host that an object is of, and what a subclass has changed of them.

A subclass of another pack reads text where the class that it inherits from does, if none of its methods and layers is
another one.
"""

from __future__ import annotations

import sys
from collections.abc import Container
from typing import Any

from torch import nn

NETWORKS = "comfy.ldm."
"""Modules of the host with its diffusion models and their layers."""


def name_of(kind: type) -> str:
    """Name of a class, with its module."""
    return f"{kind.__module__}.{kind.__qualname__}"


def class_of(thing: object) -> str:
    """Class of an object, with its module."""
    return name_of(type(thing))


def known_class(thing: object, names: Container[str]) -> type | None:
    """The nearest of an object's class and the classes it inherits from that is among some names."""
    return next((kind for kind in type(thing).__mro__ if name_of(kind) in names), None)


def overridden(kind: type, known: type) -> list[str]:
    """Methods of a class, but for how it is made, that a subclass has others for."""
    own = [base for base in known.__mro__ if base not in nn.Module.__mro__]
    theirs = {name for base in own for name in vars(base)} | {"forward", "__call__"}
    before = kind.__mro__[: kind.__mro__.index(known)]
    found = {name for base in before for name, value in vars(base).items() if _is_method(value)}
    return sorted((found & theirs) - {"__init__", "__init_subclass__"})


def _is_method(value: object) -> bool:
    return callable(value) or isinstance(value, (property, classmethod, staticmethod))


def changes(network: Any, known: type) -> str:
    """Parts of a known class that a network of a subclass has changed, in words; empty if none."""
    kind = type(network)
    if kind is known:
        return ""
    if methods := overridden(kind, known):
        return f"another {' and '.join(methods)}"
    theirs = vars(sys.modules[known.__module__])
    for blocks in network.children():
        for block in blocks if isinstance(blocks, nn.ModuleList) else ():
            made = type(getattr(block, "_orig_mod", block))  # compiled by torch.compile
            is_theirs = any(theirs.get(base.__name__) is base for base in made.__mro__)
            if next(block.children(), None) is not None and not is_theirs:
                return f"other blocks, {made.__name__}"
    for layer in network.modules():
        made = type(layer)
        base = next((base for base in made.__mro__ if base.__module__.startswith(NETWORKS)), None)
        if layer is not network and base is not None and (methods := overridden(made, base)):
            return f"layers {made.__name__} with another {' and '.join(methods)}"
    return ""
