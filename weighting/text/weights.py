"""Bounds of weights, for words and for the parts of a prompt: what is clamped, and what is named."""

from __future__ import annotations

import math

from .prompt import Issue, Span, shortened

MAX_WEIGHT = 1e30
"""Larger weights are clamped to this, so that their product with a hidden state fits a float32."""
FAR = 10.0
"""Weights beyond plus and minus this are named."""


def clamped(weight: float) -> float:
    """The nearest weight that can be used; 1 in place of what is no number.

    >>> clamped(float("inf")), clamped(-1e40), clamped(float("nan")), clamped(1.2)
    (1e+30, -1e+30, 1.0, 1.2)
    """
    return 1.0 if math.isnan(weight) else max(-MAX_WEIGHT, min(weight, MAX_WEIGHT))


def clamped_issue(weight: float, span: Span) -> Issue:
    """Issue saying which weight is used in place of one that cannot be."""
    return Issue("clamped-weight", f"The weight {weight:g} cannot be used: {clamped(weight):g} is.", span)


def far_issue(text: str, weight: float, span: Span, digits: Span | None = None) -> Issue:
    """Issue about a weight beyond `FAR`; for one written in ``digits`` that may lack its point, with that."""
    text = shortened(text.strip())
    number = f"{weight:.0f}"
    if digits is None:
        return Issue("far-weight", f"“{text}” has the weight {weight:g}, beyond -10 to 10.", span)
    fix = f"{float(f'{number[0]}.{number[1:]}'):g}"
    return Issue("far-weight", f"“{text}” has the weight {weight:g}: is {fix} meant?", digits, fix=fix)
