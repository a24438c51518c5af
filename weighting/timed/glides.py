r"""Prompts that glide: texts that are mixed over the steps, and weights that follow a line. Notation and arithmetic.

A glide has a share for each of its texts in each step; the encodings of whole prompts, one for each text, are summed by
them. Steps are counted as the WebUI counts calls of the denoiser, from 0::

    [a:b:0.2,0.8]             all of a up to 0.2 of the steps, all of b from 0.8, on a straight line in between
    [a:b:c:, 5, 15:catmull]   on a curve through all, also ``bezier``: a curve that b pulls; an empty step is the
                              beginning, the end, or halfway between its neighbours
    [a:b:3,1:mean]            all the time 3 parts of a and 1 of b; ``[a:b::mean]`` equal parts
    [a|b:0.5]                 from one text to the next and back to the first, half a text a step
    (a:0.5,1.5)               a weight that goes from 0.5 in the first step to 1.5 in the last
    (a:0.2@0,1.2@0.5)         a weight on a line through points, as strengths of LoRAs at steps

Source: behaviour of prompt-fusion-extension 1d86996 (2023-12) with its slerp scale at 0; the last form is ours.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import pairwise
from math import comb, fmod, isfinite
from typing import Literal, NamedTuple, get_args

from ..text.prompt import Span
from ..text.tags import Points
from ..text.weights import clamped

Glides = Literal["off", "prompt-fusion"]
GLIDES: tuple[Glides, ...] = get_args(Glides)
"""Whether forms that glide are read, default first: in A1111 they are brackets and text."""

Curve = Literal["linear", "catmull", "bezier", "mean", "loop"]
CURVES: tuple[Curve, ...] = get_args(Curve)
"""Ways from text to text, default first."""

_NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_GLIDE_END = re.compile(
    rf"\s*(?P<steps>(?:{_NUMBER}\s*)?(?:,\s*(?:{_NUMBER}\s*)?)*)(?::\s*(?P<curve>linear|catmull|bezier|mean)\s*)?\]",
    re.ASCII,
)
_SPEED_END = re.compile(rf"\s*(?P<speed>{_NUMBER})\s*\]", re.ASCII)
_RANGE_END = re.compile(rf"\s*(?P<first>{_NUMBER})\s*,\s*(?P<last>{_NUMBER})\s*(?=\))", re.ASCII)
_POINT = rf"{_NUMBER}\s*@\s*{_NUMBER}\s*"
_LINE_END = re.compile(rf"\s*(?P<points>{_POINT}(?:[,;]\s*{_NUMBER}\s*(?:@\s*{_NUMBER}\s*)?)*)(?=\))", re.ASCII)


class GlideEnd(NamedTuple):
    """End of a glide, after the colon behind its last text."""

    steps: tuple[str, ...]
    """Numbers as written, empty where there is none: steps, or weights of a ``mean``, or the speed of a ``loop``."""
    curve: Curve
    """The way from text to text."""
    end: int
    """Position after its bracket."""


class LineEnd(NamedTuple):
    """The numbers of a weight that follows a line."""

    points: Points
    """Weights with their steps, or shares of the steps, ascending; two of them without steps are `is_range`."""
    is_range: bool
    """Whether it goes from the first step to the last, without points in between."""
    end: int
    """Position of the closing bracket."""


def glide_end(source: str, position: int, num_texts: int) -> GlideEnd | None:
    """The end of a glide of some texts, from after a colon; None if it is none.

    >>> glide_end("[a:b:0.2, 0.8]", 5, 2)
    GlideEnd(steps=('0.2', '0.8'), curve='linear', end=14)
    """
    match = _GLIDE_END.match(source, position)
    if match is None or num_texts < 2:
        return None
    steps = tuple(step.strip() for step in match["steps"].split(","))
    curve = next((name for name in CURVES if name == match["curve"]), CURVES[0])
    is_glide = len(steps) <= num_texts if curve == "mean" else len(steps) > 1
    return GlideEnd(steps, curve, match.end()) if is_glide else None


def loop_end(source: str, position: int) -> GlideEnd | None:
    """The end of an alternation with a speed, from after its colon; None if it is none."""
    match = _SPEED_END.match(source, position)
    return None if match is None else GlideEnd((match["speed"],), "loop", match.end())


def line_end(source: str, position: int) -> LineEnd | None:
    """The numbers of a weight that follows a line, from after the colon; None if it is none.

    >>> line_end("(a:0.2@0, 1.2@0.5)", 3)
    LineEnd(points=((0.2, 0.0), (1.2, 0.5)), is_range=False, end=17)
    """
    if match := _RANGE_END.match(source, position):
        return LineEnd(((_number(match["first"]), 0.0), (_number(match["last"]), 1.0)), True, match.end())
    match = _LINE_END.match(source, position)
    if match is None:
        return None
    pairs = [item.split("@") for item in re.split("[,;]", match["points"])]
    points = [(_number(pair[0]), _number(pair[1]) if pair[1:] else 1.0) for pair in pairs]
    return LineEnd(tuple(sorted(points, key=lambda point: point[1])), False, match.end())


def _number(written: str) -> float:
    return clamped(float(written))


class Clock(NamedTuple):
    """Way of counting the steps that glides are written in."""

    steps: int
    """Steps of the pass."""
    is_hires: bool = False
    """Whether it is a second pass, in which shares go from 1.0 to 2.0."""
    old_rule: bool = False
    """Whether numbers below 1 are shares, and all others steps."""
    lags: bool = True
    """Whether steps are calls as the WebUI counts them, the first of which is 0."""

    def step_of(self, written: str) -> int:
        """The step that a number stands for, one later if it is no share."""
        number = _number(written)
        if self.old_rule and 0 < number < 1:
            return int(number * self.steps)
        if not self.old_rule and "." in written:
            return int((number - self.is_hires) * self.steps)
        return int(number + 1)


def steps_of(written: Sequence[str], first: int, last: int, clock: Clock) -> list[float]:
    """Steps of a glide that stands from the step ``first`` to ``last``, with those that are not written.

    >>> steps_of(["", "", "0.5", ""], 0, 20, Clock(20))
    [0, 5.0, 10, 20]
    """
    ends = {0: first, len(written) - 1: last}
    steps = [clock.step_of(step) if step else ends.get(index) for index, step in enumerate(written)]
    known = [(index, step) for index, step in enumerate(steps) if step is not None]
    filled: list[float] = [known[0][1]]
    for (index, step), (next_index, next_step) in pairwise(known):
        gap = next_index - index
        filled += [step + (next_step - step) * number / gap for number in range(1, gap)]
        filled.append(next_step)
    return filled


def shares_at(
    end: GlideEnd,
    num_texts: int,
    step: int,
    first: int,  # the steps in which it stands
    last: int,
    clock: Clock,
) -> list[float]:
    """Share of each text of a glide in a step; their sum is 1.

    Raises:
        ValueError: If the weights of a ``mean`` have no sum.

    >>> shares_at(GlideEnd(("0.2", "0.8"), "linear", 0), 2, 7, 0, 20, Clock(20))
    [0.75, 0.25]
    """
    if end.curve == "mean":
        return _mean(end.steps, num_texts)
    if end.curve == "loop":
        turn = fmod((step - first) / num_texts * _number(end.steps[0]), 1.0)
        *shares, again = _linear((turn + 1 if turn < 0 else turn) * num_texts, num_texts + 1)
        return [shares[0] + again, *shares[1:]]
    count = min(num_texts, len(end.steps))
    steps = steps_of(end.steps[:count], first, last, clock)
    position = _position(step, steps)
    curve = {"linear": _linear, "catmull": _catmull, "bezier": _bezier}[end.curve]
    return [*curve(position, count), *[0.0] * (num_texts - count)]


def _position(step: int, steps: Sequence[float]) -> float:
    """Where a step lies among the steps of a glide: 0 at its first, 1 at its second, and so on.

    As in prompt-fusion, if they go backwards, it follows the first one that is not yet reached.
    """
    length = max(1, steps[-1] - steps[0])
    if step <= steps[0]:
        return 0.0
    if step - steps[0] >= length:
        return len(steps) - 1.0
    before = next(number for number, border in enumerate(steps) if number and step <= border) - 1
    return before + (step - steps[before]) / (steps[before + 1] - steps[before])


def _linear(position: float, count: int) -> list[float]:
    shares = [0.0] * count
    before = min(int(position), count - 1)
    shares[before] = 1.0 - (position - before)
    if position > before:
        shares[before + 1] = position - before
    return shares


def _bezier(position: float, count: int) -> list[float]:
    """Shares of the control points of a Bézier curve: Bernstein's polynomials."""
    share, degree = position / (count - 1), count - 1
    return [comb(degree, index) * share**index * (1 - share) ** (degree - index) for index in range(count)]


def _catmull(position: float, count: int) -> list[float]:
    """Shares of the points of a Catmull-Rom curve, which continues straight beyond both ends."""
    before = min(int(position), count - 2)
    share = position - before
    start, first, second, end = _bezier(share * 3, 4)
    shares = [0.0] * (count + 2)  # with a point before the first and one after the last
    shares[before + 1] = start + first + second / 6
    shares[before + 2] = end + second + first / 6
    shares[before] -= first / 6
    shares[before + 3] -= second / 6
    inner = shares[1:-1]
    for outer, near, far in ((shares[0], 0, 1), (shares[-1], -1, -2)):
        inner[near] += 2 * outer
        inner[far] -= outer
    return inner


def _mean(weights: Sequence[str], num_texts: int) -> list[float]:
    """Shares of a ``mean``; a text without a weight has an equal part of the whole."""
    written = [_number(weight) if weight else None for weight in weights]
    explicit = [weight for weight in written if weight is not None]
    total = sum(explicit)
    if explicit and not (total and isfinite(total)):
        raise ValueError(f"the weights of a mean, {', '.join(f'{weight:g}' for weight in explicit[:5])}, have no sum")
    equal = 1 / num_texts
    shares = [equal if weight is None else weight / total * len(explicit) / num_texts for weight in written]
    return [*shares, *[equal] * (num_texts - len(shares))]


def weight_at(line: LineEnd, step: int, first: int, last: int, clock: Clock) -> float:
    """Weight of a line in a step; ``first`` and ``last`` as in `shares_at`.

    >>> weight_at(LineEnd(((0.2, 0.0), (1.2, 0.5)), False, 0), 20, 0, 20, Clock(20))
    1.2
    """
    if line.is_range:
        (start, _), (end, _) = line.points
        length = max(last - first - 1, 0)
        # the WebUI has no step 0: its first call has the text of step 1
        share = min(max(step, 1) - first, length) / max(length, 1)
        return start + (end - start) * share
    call = step if clock.lags else step - 1
    return on_line(line.points, position_of(call, clock.steps, lags=clock.lags, is_share=line.points[-1][1] <= 1))


def position_of(call: int, steps: int, *, lags: bool, is_share: bool) -> float:
    """Position of a call of the denoiser, counted from 0, as sd-webui-loractl counts: a share of the steps, or a step.

    The last step is the share 1. The WebUI's count ``lags`` by one, so the first two calls are its beginning.
    """
    if lags:
        return max(call - 1, 0) / max(steps - 2, 1) if is_share else max(call - 1, 0)
    return call / max(steps - 1, 1) if is_share else call + 1


def on_line(points: Points, position: float) -> float:
    """Value of a line through points, which stays before the first and after the last."""
    after = bisect_right(points, position, key=lambda point: point[1])
    if after in (0, len(points)):
        return points[max(after - 1, 0)][0]
    (first, start), (second, end) = points[after - 1 : after + 1]
    scale = 1.0 if isfinite(end - start) else 0.5  # half of what is tiny may be 0
    share = (position * scale - start * scale) / (end * scale - start * scale)
    return first * (1 - share) + second * share


def written(weight: float) -> str:
    """A weight with all its digits and no exponent, as every syntax reads it.

    >>> written(0.1 + 0.2), written(1e-07)
    ('0.30000000000000004', '0.0000001')
    """
    return format(Decimal(repr(weight)), "f")


def glide_problems(ending: GlideEnd, num_texts: int, first: int, last: int, clock: Clock) -> Iterator[tuple[str, str]]:
    """Codes and messages about a glide; the message follows the quoted glide."""
    if ending.curve in ("mean", "loop"):
        return
    count = min(num_texts, len(ending.steps))
    if num_texts != len(ending.steps):
        yield (
            "uneven-glide",
            f"has {num_texts} texts and {len(ending.steps)} steps: the first {count} of both count, as in "
            "prompt-fusion.",
        )
    steps = steps_of(ending.steps[:count], first, last, clock)
    if any(before > after for before, after in pairwise(steps)):
        yield "backward-glide", "has steps that go backwards: it jumps there, as in prompt-fusion."
    elif steps[-1] <= 0 or steps[0] >= clock.steps:
        place = "last" if steps[-1] <= 0 else "first"
        yield "glide-without-change", f"lies outside the {clock.steps} steps: its {place} text stands in all of them."


_INNERMOST = re.compile(r"\[(?P<glide>[^\[\]]*)\]|\((?P<line>[^()]*)\)")
_WORD = re.compile(r"[^\W\d_]{4}")


def unread_glides(text: str, read: Sequence[Span]) -> Iterator[Span]:
    """Brackets of a text that look like glides and lines, but are none; ``read`` are those that are.

    >>> list(unread_glides("[a:b:0.2,nan] (c:1@)", []))
    [Span(start=0, end=13), Span(start=14, end=20)]
    """
    starts = sorted(span.start for span in read)
    for match in _INNERMOST.finditer(text):
        head, _, tail = (match["glide"] or match["line"] or "").rpartition(":")
        if match["glide"]:
            is_like = ":" in head and "," in tail and any(map(str.isdigit, tail)) and not _WORD.search(tail)
        else:
            is_like = bool(head) and "@" in tail and not _WORD.search(tail)
        if is_like and bisect_left(starts, match.start()) == bisect_left(starts, match.end()):
            yield Span(*match.span())
