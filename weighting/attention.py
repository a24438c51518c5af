"""Effect of a word's weight in the attention by which an image reads the text: on a row's logit, and on its value.

Pure arithmetic on floats; ``hosts/comfy/attention/attention.py`` applies it to tensors.

Source: docs/reference/attention.md, "Weights in the attention"; for ``krea2`` the node Krea2PromptWeight of
ComfyUI-KJNodes, revision 3f20054.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from ..encoder.quoting import checked


class RowEffect(NamedTuple):
    """Effect on one text row wherever it is read."""

    bias: float = 0.0
    """Added to every query's logit for this row, before the softmax; ``-inf`` hides the row."""
    factor: float = 1.0
    """Factor of its value."""


PLAIN = RowEffect()
"""Effect on a row that is left unchanged."""


class RowRule(NamedTuple):
    """A way of weighing a row."""

    effect: Callable[[float, float], RowEffect]
    """Effect of a weight other than 1 at a strength."""
    scheme: str = "unweighted"
    """Scheme by which the rows are encoded first."""


def _effective(weight: float, strength: float) -> float:
    return 1.0 + strength * (weight - 1.0)


def _bias(weight: float, strength: float) -> RowEffect:
    effective = _effective(weight, strength)
    return RowEffect(math.log(abs(effective)) if effective else -math.inf, -1.0 if effective < 0 else 1.0)


def _value(weight: float, strength: float) -> RowEffect:
    return RowEffect(0.0, _effective(weight, strength))


def _negpip(weight: float, strength: float) -> RowEffect:
    return RowEffect(0.0, -1.0 if _effective(weight, strength) < 0 else 1.0)


def _krea2(weight: float, strength: float) -> RowEffect:
    return RowEffect(2.0 * strength * (weight - 1.0)) if weight > 1.0 else _value(weight, strength)


WAYS: dict[str, RowRule] = {
    "bias": RowRule(_bias),
    "value": RowRule(_value),
    "negpip": RowRule(_negpip, scheme="negpip"),
    "krea2": RowRule(_krea2),
}
"""Ways of weighing a row by name, default first."""


def effect_of(weight: float, how: str = "bias", strength: float = 1.0) -> RowEffect:
    """Effect of a weight on a row.

    ``bias``: every query attends to the row ``weight`` times as much, before normalisation; below zero, by the absolute
    weight, with the value negated. ``value``: attention stays as it is, and the value is multiplied by the weight.
    ``negpip``: no effect above zero, where the scheme ``negpip`` has weighted the row; below, the value is negated.
    ``krea2``: as ``value`` up to 1; above, ``2 * strength * (weight - 1)`` is added to the logit.

    Args:
        weight: 1.0 is neutral.
        how: One of `WAYS`.
        strength: Scale of the weight, which becomes ``1 + strength * (weight - 1)``.

    Returns:
        Bias and factor; `PLAIN` for weight 1.

    Raises:
        ValueError: If ``how`` is unknown, or a number is not finite.

    >>> effect_of(1.0), effect_of(0.0)
    (RowEffect(bias=0.0, factor=1.0), RowEffect(bias=-inf, factor=1.0))
    >>> effect_of(-1.0), effect_of(1.5, "value", 0.5)
    (RowEffect(bias=0.0, factor=-1.0), RowEffect(bias=0.0, factor=1.25))
    """
    way = way_of(how)
    if not (math.isfinite(weight) and math.isfinite(strength)):
        raise ValueError(f"weight and strength must be finite numbers, got {weight} and {strength}")
    if weight == 1.0:
        return PLAIN
    return way.effect(weight, strength)


def way_of(how: str) -> RowRule:
    """Record of a way of weighing."""
    return WAYS[checked("how", how, WAYS)]
