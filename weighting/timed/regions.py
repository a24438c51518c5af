"""Places that a prompt gives to its parts in the syntax of comfyui-prompt-control: ``AREA()``, ``MASK()``, ``COUPLE``.

Source: behaviour of comfyui-prompt-control 3.0.0-beta.9 (b24d93b); docs/reference/syntaxes.md, "Places".
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from ..placing.areas import Area, Extent, area_mask
from ..text.prompt import Fragment, Issue, Span, pieces_of, shortened
from ..text.weights import MAX_WEIGHT

if TYPE_CHECKING:
    from torch import Tensor

Regions = Literal["off", "prompt-control"]
REGIONS: tuple[Regions, ...] = get_args(Regions)
"""Ways of reading places in a prompt, default first."""

READ = ("AREA", "MASK", "MASKW", "MASK_SIZE", "COUPLE", "FILL")
"""Functions that are read."""
UNREAD = (
    *("IMASK", "FEATHER", "ATTN", "STYLE", "TE", "TE_WEIGHT", "CLIP_L", "SDXL", "NOISE", "AVG", "CAT", "SHIFT"),
    *("SHUFFLE", "DEF", "SEG", "NODE", "NOSTRIP", "OLDBREAK"),
)
"""Other functions of prompt-control, which are refused; CAT and AVG need no brackets."""
MASK_SIZE = (512, 512)
"""Width and height of masks in pixels, unless the prompt gives another."""
MAX_SIZE = 8192
"""Largest width and height of masks."""
MAX_PIXELS = 2**28
"""Largest number of pixels of all masks of a prompt, which take 4 bytes each."""
MAX_PLACES = 100
"""Largest number of parts with a place."""

_CALL = re.compile(rf"\b(?:(?:{'|'.join((*READ, *UNREAD))})\(|(?:COUPLE|CAT|AVG)\b)")
_AND = re.compile(r"\bAND\b")
_QUOTED = re.compile(r'".+?"')
_COMMA = re.compile(r"(?<!\\),")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_ROUND = re.compile(r"[()]")
_SQUARE = re.compile(r"\\.|[\[\]]", re.DOTALL)


class RegionError(ValueError):
    """Raised for a place that is not understood or not read; the message quotes it."""


class Rectangle(NamedTuple):
    """Rectangle of a mask, in its pixels."""

    left: int
    right: int
    top: int
    bottom: int
    weight: float
    """Value of the mask in it; 0 outside."""


class Place(NamedTuple):
    """Place of a part of a prompt."""

    text: str
    """Its functions as typed."""
    percentages: tuple[float, float, float, float] | None = None
    """Height, width, y and x of its area, in parts of the picture."""
    pixels: tuple[int, int, int, int] | None = None
    """The same in eighths of pixels of the picture."""
    area_weight: float = 1.0
    """Weight of the part in place of the number at its end, if it has an area."""
    rectangles: tuple[Rectangle, ...] = ()
    """Masks, which are multiplied."""
    mask_weight: float = 1.0
    """Weight of all masks together."""
    size: tuple[int, int] = MASK_SIZE
    """Width and height of the masks."""
    is_coupled: bool = False
    """Whether COUPLE joins the part to the one before."""
    fills: bool = False
    """Whether the part has what those that are coupled to it leave."""

    @property
    def has_area(self) -> bool:
        """Whether it has an area."""
        return self.percentages is not None or self.pixels is not None

    def mask(self) -> Tensor | None:
        """Product of its masks, ``[1, height, width]``, float32; None without any."""
        import torch  # the command line reads prompts without it

        found: Tensor | None = None
        for left, right, top, bottom, weight in self.rectangles:
            mask = torch.zeros(1, self.size[1], self.size[0])
            mask[:, top:bottom, left:right] = weight
            found = mask if found is None else (found * mask).clamp(0, 1)
        return found

    def picture(self) -> list[list[float]] | None:
        """Its place in few cells, from 0 to 1; None if it depends on the picture's size."""
        if self.pixels is not None:
            return None
        import torch

        from ..placing.fields import MAX_CELLS, small_picture

        shares = torch.ones(MAX_CELLS, MAX_CELLS)
        if self.percentages is not None:
            height, width, y, x = self.percentages
            shares = shares * _shares(x, x + width, y, y + height)
        width, height = self.size
        for left, right, top, bottom, weight in self.rectangles:
            shares = shares * weight * _shares(left / width, right / width, top / height, bottom / height)
        return small_picture(shares.clamp(0, 1))


def shares_of(places: Sequence[Place]) -> Tensor:
    """Share that each of some prompts joined by COUPLE has of each place.

    Args:
        places: Their places, that of the base first. Without a mask it is the whole picture, or with FILL what the
            others leave.

    Returns:
        ``[prompts, height, width]``, float32; they add up to 1 everywhere.

    Raises:
        RegionError: If no prompt has a part of the picture.
    """
    import torch

    base, *others = places
    width, height = others[0].size
    whole = torch.ones(1, height, width)
    masks = [whole if (mask := place.mask()) is None else mask * place.mask_weight for place in others]
    own = base.mask()
    if own is None:
        own = (sum(masks[1:], masks[0]) <= 0).float() if base.fills else whole
    all_masks = torch.cat([own, *masks])
    total = all_masks.sum(0)
    if not bool((total > 0).all()):
        raise RegionError("In a part of the picture no prompt joined by COUPLE is read: write FILL() before COUPLE.")
    return all_masks / total


def _shares(left: float, right: float, top: float, bottom: float) -> Tensor:
    """Share of each cell that lies in a rectangle, given in parts of the picture."""
    from ..placing.fields import MAX_CELLS

    area = Area(Extent(left, min(right, 1.0)), Extent(top, min(bottom, 1.0)))
    return area_mask(area, (MAX_CELLS, MAX_CELLS), (MAX_CELLS, MAX_CELLS))


class PlacedParts(NamedTuple):
    """A prompt cut into parts with places."""

    fragment: Fragment
    """The text without functions, in pieces that know their positions."""
    spans: tuple[Span, ...]
    """Each part in that text, with the number at its end."""
    places: tuple[Place | None, ...]
    """Place of each part; None for the whole picture."""
    issues: tuple[Issue, ...]
    """Issues about them, in positions of the text with functions."""


class _Call(NamedTuple):
    name: str
    arguments: str
    span: Span
    text: str

    def refused(self, why: str) -> RegionError:
        return RegionError(f"“{shortened(self.text)}” at {self.span.start}: {why}")


def cut_at_places(text: str) -> PlacedParts:
    """Cut a prompt at AND and COUPLE, and read the places of its parts.

    What stands between double quotes is text, as in prompt-control.

    Args:
        text: A prompt without comments and tags.

    Returns:
        Its parts.

    Raises:
        RegionError: If a function is not understood, not read, or stands in an edit or alternation.

    >>> cut = cut_at_places("cat MASK(0 0.5) AND dog AREA(0.5 1)")
    >>> [cut.fragment.text[slice(*span)].strip() for span in cut.spans]
    ['cat', 'dog']
    >>> cut.places[0].rectangles, cut.places[1].percentages
    ((Rectangle(left=0, right=256, top=0, bottom=512, weight=1.0),), (1.0, 1.0, 0.0, 0.5))
    """
    quoted = [Span(*match.span()) for match in _QUOTED.finditer(text)]
    brackets = _brackets(text)
    calls: list[_Call] = []
    for call in _calls(text):
        if _is_within(quoted, call.span):
            continue
        if _is_within(brackets, call.span):
            raise call.refused("places that change with the steps, within [ ], are not read here.")
        calls.append(call)
    size = _size([call for call in calls if call.name == "MASK_SIZE"])
    called = [call.span for call in calls]
    ands = [Span(*match.span()) for match in _AND.finditer(text)]
    ands = [span for span in ands if not _is_within(quoted, span) and not _is_within(called, span)]
    couples = {call.span: call for call in calls if call.name == "COUPLE"}
    borders = sorted([*ands, *couples])
    taken = [call.span for call in calls if call.name != "COUPLE"]
    kept = [place for start, end in _outside(taken, len(text)) for place in range(start, end)]
    fragment = Fragment(tuple(pieces_of("".join(text[place] for place in kept), kept)))
    starts, ends = [0, *(border.end for border in borders)], [*(border.start for border in borders), len(text)]
    spans = tuple(
        Span(bisect_left(kept, start), bisect_left(kept, end)) for start, end in zip(starts, ends, strict=True)
    )
    own: list[list[_Call]] = [[] for _ in starts]
    for call in calls:
        if call.name not in ("COUPLE", "MASK_SIZE"):
            own[bisect_left(ends, call.span.start)].append(call)
    joined = [None, *(couples.get(border) for border in borders)]
    places = tuple(_place(*pair, size) for pair in zip(own, joined, strict=True))
    _check(places, own)
    return PlacedParts(fragment, spans, places, tuple(_issues(calls)))


def _calls(text: str) -> Iterator[_Call]:
    """Functions in a text, those that are not read too."""
    position = 0
    while match := _CALL.search(text, position):
        has_arguments = match[0].endswith("(") or text[match.end() : match.end() + 1] == "("
        name, end = match[0].rstrip("("), match.end()
        opening = match.start() + len(name)
        if has_arguments:
            end = _closing(text, opening)
            if end is None:
                raise RegionError(
                    f"“{shortened(text[match.start() :])}” at {match.start()}: its bracket is never closed."
                )
        yield _Call(name, text[opening + 1 : end - 1], Span(match.start(), end), text[match.start() : end])
        position = end


def _closing(text: str, opening: int) -> int | None:
    """Position behind the bracket that closes the one at ``opening``."""
    depth = 0
    for match in _ROUND.finditer(text, opening):
        depth += 1 if match[0] == "(" else -1
        if not depth:
            return match.end()
    return None


def _brackets(text: str) -> list[Span]:
    """Outermost pairs of square brackets, in order."""
    opened: list[int] = []
    found: list[Span] = []
    for match in _SQUARE.finditer(text):
        if match[0] == "[":
            opened.append(match.start())
        elif match[0] == "]" and opened:
            pair = Span(opened.pop(), match.end())
            while found and pair.start < found[-1].start:
                found.pop()
            found.append(pair)
    return found


def _is_within(spans: Sequence[Span], inner: Span) -> bool:
    """Whether a span lies within one of others, which are in order and do not overlap, and touches neither end."""
    number = bisect_left(spans, inner.start, key=lambda span: span.start) - 1
    return number >= 0 and inner.end < spans[number].end


def _outside(taken: Sequence[Span], length: int) -> Iterator[tuple[int, int]]:
    """Stretches of a text between some spans."""
    position = 0
    for start, end in taken:
        yield position, start
        position = end
    yield position, length


def _place(calls: Sequence[_Call], couple: _Call | None, size: tuple[int, int]) -> Place | None:
    """Place of a part with these functions, joined by a COUPLE or not."""
    if not calls and couple is None:
        return None
    typed = [*([couple] if couple else []), *calls]
    place = Place(" ".join(call.text for call in typed), size=size, is_coupled=couple is not None)
    masks = [call for call in typed if call.name == "MASK" or (call.name == "COUPLE" and call.arguments.strip())]
    place = place._replace(rectangles=tuple(_rectangle(call, size) for call in masks))
    seen: set[str] = set()
    for call in calls:
        if call.name in UNREAD:
            raise call.refused(f"this function of prompt-control is not read here. Read are {', '.join(READ)}.")
        if call.name == "MASK":
            continue
        if call.name in seen:
            raise call.refused(f"a part has one {call.name} at most.")
        seen.add(call.name)
        if call.name == "AREA":
            place = _with_area(place, call)
        elif call.name == "MASKW":
            if not masks:
                raise call.refused("it is the weight of masks, and this part has no MASK.")
            place = place._replace(mask_weight=_weight(call, _arguments(call, 1)[0]))
        elif call.arguments.strip():
            raise call.refused("FILL has no numbers.")
        else:
            place = place._replace(fills=True)
    return place


def _issues(calls: Sequence[_Call]) -> Iterator[Issue]:
    """Issues about areas that are not where their numbers seem to say."""
    for call in calls:
        if call.name != "AREA":
            continue
        for axis, text in zip(("x", "y"), _arguments(call, 3)[:2], strict=True):
            start, size = _pair(call, text)
            if start > 0 and size != 1:
                end = min(start + size, 1) if start < 1 else start + size
                message = (
                    f"“{shortened(call.text)}” goes from {axis} {start:g} to {end:g}: the second number of AREA is a "
                    "size in prompt-control, not an end."
                )
                yield Issue("area-size", message, call.span)


def _with_area(place: Place, call: _Call) -> Place:
    across, down, weight = _arguments(call, 3)
    (x, width), (y, height) = _pair(call, across), _pair(call, down)
    if not (width > 0 and height > 0):
        raise call.refused("this area is empty. Its numbers are x and width, y and height.")
    weighted = place._replace(area_weight=_weight(call, weight, least=-math.inf))
    sides = height, width, y, x
    if _are_parts(call, sides):
        if x == 1 or y == 1:
            raise call.refused("this area lies outside of the picture.")
        return weighted._replace(percentages=sides)
    in_cells = tuple(int(side) // 8 for side in sides)
    if not all(in_cells[:2]):
        raise call.refused("this area is smaller than the 8 pixels of a place of the latent picture.")
    return weighted._replace(pixels=in_cells)


def _rectangle(call: _Call, size: tuple[int, int]) -> Rectangle:
    across, down, weight, *operations = _arguments(call, 4)
    if operations[0].strip() not in ("", "multiply"):
        raise call.refused(f"masks are multiplied here; “{shortened(operations[0].strip(), 40)}” is not read.")
    bounds = _pair(call, across), _pair(call, down)
    if not all(start < end for start, end in bounds):
        raise call.refused("this mask is empty: its numbers go from less to more, x1 x2, y1 y2.")
    is_parts = _are_parts(call, [side for pair in bounds for side in pair])
    pixels: list[int] = []
    for (start, end), whole, axis in zip(bounds, size, ("wide", "high"), strict=True):
        if not is_parts and end > whole:
            sizes = "MASK_SIZE(width, height)"
            raise call.refused(f"pixel {end:g} is outside of the mask, which is {whole} {axis}. {sizes} changes that.")
        pixels += [int(side * whole) if is_parts else int(side) for side in (start, end)]
    if pixels[0] == pixels[1] or pixels[2] == pixels[3]:
        raise call.refused("this mask is smaller than a pixel.")
    left, right, top, bottom = pixels
    return Rectangle(left, right, top, bottom, _weight(call, weight))


def _size(calls: Sequence[_Call]) -> tuple[int, int]:
    if not calls:
        return MASK_SIZE
    call, *others = calls
    if others:
        raise others[0].refused("a prompt has one MASK_SIZE at most.")
    width, height = (
        _number(call, argument) if argument.strip() else float(usual)
        for argument, usual in zip(_arguments(call, 2), MASK_SIZE, strict=True)
    )
    if not all(side == int(side) and 1 <= side <= MAX_SIZE for side in (width, height)):
        raise call.refused(f"sizes are whole numbers from 1 to {MAX_SIZE}.")
    return int(width), int(height)


def _arguments(call: _Call, number: int) -> list[str]:
    """Arguments of a function between commas; those that are left out are empty."""
    found = _COMMA.split(call.arguments)
    if len(found) > number:
        raise call.refused(f"at most {number} arguments are allowed, and there are {len(found)}.")
    return [*found, *[""] * (number - len(found))]


def _pair(call: _Call, text: str) -> tuple[float, float]:
    """Two numbers between spaces, by default 0 and 1."""
    numbers = [_number(call, one) for one in text.split()]
    if len(numbers) > 2:
        raise call.refused(f"“{shortened(text.strip())}” are more than two numbers.")
    first, second, *_ = [*numbers, *(0.0, 1.0)[len(numbers) :]]
    return first, second


def _weight(call: _Call, text: str, least: float = 0.0) -> float:
    """A weight, by default 1, with two decimals as prompt-control rounds it."""
    weight = round(_number(call, text.strip()), 2) if text.strip() else 1.0
    if not least <= weight <= MAX_WEIGHT:
        raise call.refused(f"a weight is {least:g} to {MAX_WEIGHT:g}.")
    return weight


def _number(call: _Call, text: str) -> float:
    number = float(text) if _NUMBER.fullmatch(text.strip()) else math.nan
    if not math.isfinite(number):
        raise call.refused(f"“{shortened(text.strip())}” is no number, or too large.")
    return number


def _are_parts(call: _Call, numbers: Sequence[float]) -> bool:
    """Whether numbers are parts of the picture; else they are pixels."""
    if all(0 <= number <= 1 for number in numbers):
        return True
    if all(number == 0 or number > 1 for number in numbers):
        return False
    raise call.refused(
        "its numbers, with those left out, must all be parts of the picture, 0 to 1, or all pixels, 0 or above 1."
    )


def _check(places: Sequence[Place | None], calls: Sequence[Sequence[_Call]]) -> None:
    """Refuse what has no meaning between parts, and too many or too large masks."""
    placed = [place for place in places if place is not None]
    if len(placed) > MAX_PLACES:
        raise RegionError(f"{len(placed)} parts have places; {MAX_PLACES} are allowed at most.")
    pixels = sum(place.size[0] * place.size[1] for place in placed if place.rectangles)
    if pixels > MAX_PIXELS:
        raise RegionError(
            f"the masks have {pixels:,} pixels together; {MAX_PIXELS:,} are allowed. Make MASK_SIZE smaller."
        )
    for number, (place, own) in enumerate(zip(places, calls, strict=True)):
        following = places[number + 1] if number + 1 < len(places) else None
        if place is not None and place.fills and (place.is_coupled or following is None or not following.is_coupled):
            fill = next(call for call in own if call.name == "FILL")
            raise fill.refused("it belongs to a prompt before COUPLE.")
