"""The token strip as data: which chips and chunk borders stand in it, in which order and where.

Reads the JSON view that ``weighting/view.py`` makes; draws nothing. All offsets are the view's, in UTF-16 units.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise
from typing import Any

from .canvas import shorten
from .fonts import text_width
from .style import CHIP_GAP, CHIP_HEIGHT, CHIP_PADDING, FONT_SIZE, MAX_CHIP_TEXT, ROW_GAP, SEAM_PADDING, SMALL_SIZE

BORDER_LINE = 12
"""Room for the line of a chunk border, in pixels."""
NOTE_GAP = 5
"""Between a token's text and the small digits behind it, in pixels."""

_CONTRACTION = re.compile(r"['’]\w")


@dataclass(frozen=True)
class Chip:
    """One or several tokens of the same text."""

    text: str
    """The text as typed, maybe cut."""
    weight: float = 1.0
    """Its weight."""
    count: int = 1
    """How many tokens share the text."""
    is_hidden: bool = False
    """Whether it is masked."""
    has_problem: bool = False
    """Whether a problem is about this place."""
    continues_word: bool = False
    """Whether it follows the chip before it without a gap."""
    is_continued: bool = False
    """Whether the next chip follows it without a gap."""
    shows_weight: bool = True
    """False where the next chip of the same word says the same."""

    @property
    def note(self) -> str:
        """Small text behind the token's text: how many tokens, and the weight unless it is 1."""
        count = f"×{self.count}" if self.count > 1 else ""
        weight = weight_text(self.weight) if self.shows_weight and self.weight != 1.0 else ""
        return f"{count} {weight}".strip()

    @property
    def paddings(self) -> tuple[float, float]:
        """Free pixels left and right of its text: fewer where the word goes on."""
        return (
            SEAM_PADDING if self.continues_word else CHIP_PADDING,
            SEAM_PADDING if self.is_continued else CHIP_PADDING,
        )

    @property
    def note_width(self) -> float:
        """Pixels that the note takes, the gap before it included."""
        return NOTE_GAP + text_width(self.note, SMALL_SIZE) if self.note else 0

    @property
    def width(self) -> float:
        """Pixels."""
        return sum(self.paddings) + text_width(self.text, FONT_SIZE) + self.note_width


@dataclass(frozen=True)
class Border:
    """The end of a chunk."""

    text: str
    """How full the chunk is, and BREAK where one ended it."""

    @property
    def width(self) -> float:
        """Pixels."""
        return BORDER_LINE + text_width(self.text, SMALL_SIZE) + 8


@dataclass(frozen=True)
class Placed:
    """An item of the strip and where it stands."""

    item: Chip | Border
    """What."""
    left: float
    """Pixels from the strip's left end."""
    top: float
    """Pixels from the strip's top."""
    width: float
    """Pixels."""
    is_first: bool = True
    """Whether its word starts with it, or the row does."""
    is_last: bool = True
    """Whether its word ends with it, or the row does."""


def strip_items(view: Mapping[str, Any]) -> list[Chip | Border]:
    """Chips and chunk borders of a prompt in reading order.

    Args:
        view: As `weighting.view.view` makes it. A token may have the key ``hidden``.

    Returns:
        The items. The last chunk ends without a border, unless with a BREAK.
    """
    tokens = [token for chunk in view["chunks"] for token in chunk["tokens"]]
    problems = problem_tokens(tokens, view["issues"])
    breaks = deque(view["breaks"])
    items: list[Chip | Border] = []
    index = 0  # of the next token
    for number, chunk in enumerate(view["chunks"], 1):
        items += _joined(list(_chips(chunk["tokens"], problems, index)))
        index += len(chunk["tokens"])
        # a break ends this chunk if it stands before the next token; each break ends one chunk
        next_start = tokens[index]["start"] if index < len(tokens) else float("inf")
        has_break = bool(breaks) and breaks[0][0] < next_start
        if has_break:
            breaks.popleft()
        if has_break or number < len(view["chunks"]):
            text = f"{chunk['num_tokens']} / {chunk['capacity']}"
            items.append(Border(f"{text}  BREAK" if has_break else text))
    return items


def problem_tokens(tokens: Sequence[Mapping[str, Any]], issues: Sequence[Mapping[str, Any]]) -> set[int]:
    """Which tokens a problem is about.

    Args:
        tokens: All tokens of a prompt.
        issues: Its issues.

    Returns:
        Indices of the tokens that an issue overlaps. Of an issue about syntax, which has no token, the next token,
        or else the last one.
    """
    # spans never go backwards; a token without a place, which says 0, is taken to stand where the one before it does
    starts = list(accumulate((token["start"] for token in tokens), max))
    ends = list(accumulate((token["end"] for token in tokens), max))
    marked: set[int] = set()
    for issue in issues if tokens else ():
        first, behind = bisect_right(ends, issue["start"]), bisect_left(starts, issue["end"])
        marked.update(range(first, behind) if first < behind else [min(first, len(tokens) - 1)])
    return marked


def place(items: Sequence[Chip | Border], width: float) -> list[Placed]:
    """Break the strip into rows.

    Args:
        items: The strip.
        width: Of a row, in pixels.

    Returns:
        The items with their places. A word that fits a row is not broken.
    """
    placed: list[Placed] = []
    left, top = 0.0, 0.0
    for word in _words(items):
        widths = [min(item.width, width) for item in word]
        if left + CHIP_GAP + sum(widths) > width and left > 0:
            left, top = 0.0, top + CHIP_HEIGHT + ROW_GAP
        left += CHIP_GAP if left > 0 else 0
        for number, (item, item_width) in enumerate(zip(word, widths, strict=True)):
            if number and left + item_width > width:
                left, top = 0.0, top + CHIP_HEIGHT + ROW_GAP
                placed[-1] = replace(placed[-1], is_last=True)
            is_first = number == 0 or left == 0
            placed.append(Placed(item, left, top, item_width, is_first, is_last=number == len(word) - 1))
            left += item_width
    return placed


def weight_text(weight: float) -> str:
    """A weight in as few digits as say enough.

    >>> [weight_text(weight) for weight in (1.4, 1 / 1.1, 1.0004, -0.5, 0.0, 1e30)]
    ['1.4', '0.91', '1.0004', '-0.5', '0', '1e30']
    """
    if abs(weight) >= 1000 or 0 < abs(weight) < 0.01:
        return f"{weight:.2g}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
    short = f"{weight:.2f}".rstrip("0").rstrip(".")
    return f"{weight:.6g}" if short == "1" else short


def _chips(tokens: Sequence[Mapping[str, Any]], problems: set[int], first_index: int) -> Iterator[Chip]:
    """Chips of one chunk; ``first_index`` is the index of its first token in the prompt."""

    def place_of(numbered: tuple[int, Mapping[str, Any]]) -> tuple[object, ...]:
        index, token = numbered
        if token["end"] <= token["start"]:
            return (index,)  # tokens without a place are not the same
        return token["start"], token["end"], token["weight"], bool(token.get("hidden"))

    previous: Mapping[str, Any] | None = None
    for _, group in groupby(enumerate(tokens, first_index), place_of):
        indices, same = zip(*group, strict=True)
        token = same[0]
        text = " ".join(token["text"].split()) or (f"#{token['id']}" if token["id"] is not None else "?")
        yield Chip(
            text=shorten(text, MAX_CHIP_TEXT, FONT_SIZE),
            weight=token["weight"],
            count=len(same),
            is_hidden=bool(token.get("hidden")),
            has_problem=not problems.isdisjoint(indices),
            continues_word=previous is not None and _is_one_word(previous, token),
        )
        previous = token


def _joined(chips: list[Chip]) -> list[Chip]:
    """The same chips, each knowing whether the next one goes on with its word."""
    for index, (chip, following) in enumerate(pairwise(chips)):
        if following.continues_word:
            chips[index] = replace(chip, is_continued=True, shows_weight=chip.weight != following.weight)
    return chips


def _is_one_word(previous: Mapping[str, Any], token: Mapping[str, Any]) -> bool:
    """Whether nothing stands between two tokens, and both are letters, digits or other characters; so is ``don't``."""
    if previous["end"] != token["start"] or not previous["text"] or not token["text"]:
        return False
    before, after = _kind(previous["text"][-1]), _kind(token["text"][0])
    return before == after or (before == "letter" and _CONTRACTION.match(token["text"]) is not None)


def _kind(character: str) -> str:
    return {"L": "letter", "M": "letter", "N": "digit"}.get(unicodedata.category(character)[0], "other")


def _words(items: Sequence[Chip | Border]) -> Iterator[list[Chip | Border]]:
    word: list[Chip | Border] = []
    for item in items:
        if word and not (isinstance(item, Chip) and item.continues_word):
            yield word
            word = []
        word.append(item)
    if word:
        yield word
