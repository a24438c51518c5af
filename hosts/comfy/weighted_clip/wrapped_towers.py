"""Text encoders of a host's CLIP that follow a scheme of ours: shallow copies, with the host's modules and weights.

Nothing is written on what the host or another pack holds. A function that another pack has put on a tower of the host
goes first; without a scheme the host's own method encodes.

Source: behaviour of ComfyUI 0.29.0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ..clip.towers import ENCODE, choices_of, copied, replaced_rule

if TYPE_CHECKING:
    from .encoder_call import Session

PART = "weighted_clip_part"
"""Attribute of a copy with its `Part`."""


class Part(NamedTuple):
    """Origin of a copy."""

    name: str
    """Its name in the CLIP's model; empty for the model itself."""
    original: Any
    """The module of the host that it is a copy of."""
    session: Session
    """The calls that the CLIP gets."""


class _Encoder:
    """Mixin of the copies, also of the whole model: encodes by another pack's rule, by ours, or by the host's."""

    def encode_token_weights(self, pairs: Any, *rest: Any, **choices: Any) -> Any:
        part: Part = vars(self)[PART]
        rule = replaced_rule(part.original)
        by_host: Callable[..., Any] = super().encode_token_weights  # type: ignore[misc]
        if rule is not None and not (part.session.pairs_rows and not part.session.method.is_stock):
            part.session.note_rule(rule)
            with choices_of(self, part.original):
                return rule(pairs, *rest, **choices)
        if rest or choices or not part.name:
            return by_host(pairs, *rest, **choices)
        return part.session.encode(part.name, self, pairs, by_host)


class _Tower(_Encoder):
    """Mixin of the copy of a text encoder: also tells how many rows pictures take."""

    def process_tokens(self, tokens: Sequence[Any], device: Any) -> Any:
        result = super().process_tokens(tokens, device)  # type: ignore[misc]
        vars(self)[PART].session.note_sizes(vars(self)[PART].name, result[3])
        return result


def copied_model(model: Any, names: Sequence[str], session: Session) -> Any:
    """A copy of a host's model of text encoders, with copies of some of them, by name, that ask a session."""
    whole = _copy(model, Part("", model, session))
    modules = {name: _copy(getattr(model, name), Part(name, getattr(model, name), session)) for name in names}
    vars(whole)["_modules"] = {**vars(model)["_modules"], **modules}
    return whole


def _copy(module: Any, part: Part) -> Any:
    found = copied(module)
    vars(found).pop(ENCODE, None)  # the original's counts, whenever it is asked
    found.__class__ = _class_of(type(module), hasattr(module, "process_tokens"))
    vars(found)[PART] = part
    return found


@cache
def _class_of(base: type, is_tower: bool) -> type:
    """A class of the host's with our mixin; it has the same name, as some nodes look at that."""
    mixin = _Tower if is_tower else _Encoder
    return type(base.__name__, (mixin, base), {"__module__": base.__module__, "__qualname__": base.__qualname__})
