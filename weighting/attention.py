"""What a word's weight does in the attention in which an image reads the text: to a row's logit, and to its value.

Pure arithmetic on floats; who applies it to tensors is in ``hosts/comfy/attention.py``.

Source: docs/reference/attention.md, "Weights in the attention"; for ``krea2`` the node Krea2PromptWeight of
ComfyUI-KJNodes, revision 3f20054.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

How = Literal["bias", "value", "negpip", "krea2"]
HOWS: tuple[How, ...] = get_args(How)
"""Every way of weighing a row, default first."""


class RowEffect(NamedTuple):
    """What happens to one text row wherever it is read."""

    bias: float = 0.0
    """Added to every query's logit for this row, before the softmax; ``-inf`` where nothing reads it."""
    factor: float = 1.0
    """What its value is multiplied by."""


PLAIN = RowEffect()
"""Of a row that is left as it is."""


def effect_of(weight: float, how: How = "bias", strength: float = 1.0) -> RowEffect:
    """What a weight does to a row.

    ``bias``: every query gives the row ``weight`` times the share, before shares are normalised; below zero the share
    of the absolute weight, and the value with the other sign. ``value``: shares stay as they are, and what is read is
    multiplied by the weight. ``negpip``: nothing above zero, where the scheme ``negpip`` has weighed the row; below,
    the value has the other sign. ``krea2``: as ``value`` up to 1; above, ``2 * strength * (weight - 1)`` is added to
    the logit.

    Args:
        weight: 1.0 is neutral.
        how: One of `HOWS`.
        strength: How far the weight is taken: ``1 + strength * (weight - 1)`` takes its place.

    Returns:
        Bias and factor; those of `PLAIN` for weight 1.

    Raises:
        ValueError: If ``how`` is unknown, or a number is not finite.

    >>> effect_of(1.0), effect_of(0.0)
    (RowEffect(bias=0.0, factor=1.0), RowEffect(bias=-inf, factor=1.0))
    >>> effect_of(-1.0), effect_of(1.5, "value", 0.5)
    (RowEffect(bias=0.0, factor=-1.0), RowEffect(bias=0.0, factor=1.25))
    """
    if how not in HOWS:
        raise ValueError(f"how must be one of: {', '.join(HOWS)}; got {how!r}")
    if not (math.isfinite(weight) and math.isfinite(strength)):
        raise ValueError(f"weight and strength must be finite numbers, got {weight} and {strength}")
    if weight == 1.0:
        return PLAIN
    taken = 1.0 + strength * (weight - 1.0)
    if how == "negpip":
        return RowEffect(0.0, -1.0 if taken < 0 else 1.0)
    if how == "krea2" and weight > 1.0:
        return RowEffect(2.0 * strength * (weight - 1.0), 1.0)
    if how in ("value", "krea2"):
        return RowEffect(0.0, taken)
    return RowEffect(math.log(abs(taken)) if taken else -math.inf, -1.0 if taken < 0 else 1.0)
