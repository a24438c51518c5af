"""Weights by guidance: predictions of the model for a prompt and for the prompt without its weighted words, mixed.

A word of weight w between 0 and 1 has ``s * v(with) + (1 - s) * v(without)``, where s is its share: w, bent by one
curve, as what a picture has of a word grows slowly at first. Above 1 and below 0 s is w. It needs no attention.

Source: docs/powers.md, "Dial".
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from .attention import WAYS, way_of
from .options import EncodeOptions
from .reading.characters import Character, stripped
from .syntax import syntax_of
from .text.prompt import Span

GUIDANCE = "guidance"
"""Name of this way of weighing in menus."""
HOWS = (*WAYS, GUIDANCE)
"""All ways of weighing beside schemes."""
BEND = 0.6
"""Exponent of the curve from weights to shares, by which amounts in the small world follow weights best."""
_SEPARATOR = re.compile(r"\s*(?:[,;，、；]|\band\b)\s*")
_LAST_SEPARATOR = re.compile(r"(?:[,;，、；]|(?<=\s)and)\s*$")


def scheme_of_rows(how: str) -> str:
    """Scheme of the rows of a text whose weights act by one of `HOWS`."""
    return "unweighted" if how == GUIDANCE else way_of(how).scheme


class Prediction(NamedTuple):
    """A prediction of the model for one form of a prompt."""

    text: str
    """The prompt without some words, in its syntax; as typed if none is left out."""
    share: float
    """Share in the sum; all shares of a prompt add up to 1."""
    left_out: tuple[str, ...] = ()
    """Words that are left out, as typed."""


def share_of(weight: float, strength: float = 1.0) -> float:
    """Share of a word of this weight.

    >>> [round(share_of(weight), 2) for weight in (-1.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5)]
    [-1.0, 0.0, 0.44, 0.66, 0.84, 1.0, 1.5]
    """
    if not (math.isfinite(weight) and math.isfinite(strength)):
        raise ValueError(f"weight and strength must be finite numbers, got {weight} and {strength}")
    scaled = 1.0 + strength * (weight - 1.0)
    return scaled**BEND if 0.0 < scaled < 1.0 else scaled


def mixture(shares: Collection[float]) -> dict[frozenset[float], float]:
    """Share of each prediction, by the words' shares that are left out in it; without predictions of share 0.

    Faded words are left out one after the other, the weakest first, and so are those above 1, the strongest first. So
    words of equal weight take one prediction together, and several at 0 are all gone.

    >>> mixture([0.25]), mixture([0.0, 0.5])
    ({frozenset(): 0.25, frozenset({0.25}): 0.75}, {frozenset({0.0}): 0.5, frozenset({0.0, 0.5}): 0.5})
    >>> mixture([1.5])
    {frozenset(): 1.5, frozenset({1.5}): -0.5}
    """
    faded = sorted({share for share in shares if share < 1})
    raised = sorted({share for share in shares if share > 1}, reverse=True)
    mixed: dict[frozenset[float], float] = {frozenset(): 1.0}
    for side in (faded, raised):
        for number, (share, following) in enumerate(pairwise([*side, 1.0]), 1):
            mixed[frozenset()] -= following - share
            mixed[frozenset(side[:number])] = following - share
    return {left_out: share for left_out, share in mixed.items() if share}


def predictions(text: str, options: EncodeOptions, strength: float = 1.0) -> tuple[Prediction, ...]:
    """Predictions for a prompt; the prompt alone if no weight acts.

    Raises:
        ValueError: If the prompt has sections or another weight than finite ones.

    >>> predictions("a red circle and (a blue square:-1)", EncodeOptions())  # doctest: +NORMALIZE_WHITESPACE
    (Prediction(text='a red circle and (a blue square:-1)', share=-1.0, left_out=()),
     Prediction(text='a red circle', share=2.0, left_out=('a blue square',)))
    """
    _, characters = stripped(text, options)
    shares = {character.weight: share_of(character.weight, strength) for character in characters}
    forms: list[Prediction] = []
    for left_out, share in mixture(shares.values()).items():
        gone = {weight for weight, bent in shares.items() if bent in left_out}
        written = _written(_without(characters, gone), options.syntax) if gone else text
        forms.append(Prediction(written, share, _words(text, characters, gone)))
    return tuple(forms)


def without_weights(text: str, options: EncodeOptions) -> str:
    """A prompt in its syntax without its weights."""
    return _written(_without(stripped(text, options)[1], ()), options.syntax)


def _without(characters: Sequence[Character], weights: Collection[float]) -> list[str]:
    """Stretches between BREAKs without the words of some weights, nor separators that separate nothing any more."""
    stretches: list[str] = []
    for is_break, stretch in groupby(characters, lambda character: character.is_break):
        if is_break:
            continue
        line, is_first, is_gone = "", True, False
        for is_gone, run in groupby(stretch, lambda character: character.weight in weights):
            if not is_gone:
                words = "".join(character.text for character in run)
                line = words if is_first else _joined(line, words)
            elif is_first:
                line = " "
            is_first = False
        stretches.append(_LAST_SEPARATOR.sub("", line).rstrip() if is_gone else line)
    return [stretch for stretch in stretches if stretch.strip()]


def _joined(before: str, behind: str) -> str:
    """Texts on both sides of words that are gone.

    >>> _joined("a cat and ", " and a dog"), _joined("a ", " cat"), _joined(" ", ", a cat"), _joined("a cat, ", " ")
    ('a cat and a dog', 'a cat', 'a cat', 'a cat, ')
    >>> _joined("a cat ", ", a dog")
    'a cat, a dog'
    """
    separator = _SEPARATOR.match(behind)
    if separator and (not before.strip() or _LAST_SEPARATOR.search(before)):
        behind, separator = behind[separator.end() :], None
    if not before.strip():
        return behind.lstrip()
    if separator and not separator[0].lstrip().startswith("and"):
        return before.rstrip() + behind.lstrip()
    return before + (behind.lstrip() if before[-1].isspace() else behind)


def _written(stretches: Sequence[str], syntax: str) -> str:
    """Text in a syntax, BREAK between its stretches."""
    record = syntax_of(syntax)
    texts = [next(record.write(stretch, 1.0)) if record.write else stretch for stretch in stretches]
    return record.finish(f" {record.break_word or ''} ".join(texts))


def _words(text: str, characters: Sequence[Character], weights: Collection[float]) -> tuple[str, ...]:
    """Words of some weights as typed."""
    spans: dict[int, Span] = {}
    for character in characters:
        if character.weight in weights:
            first = spans.get(character.fragment, Span(character.place, 0)).start
            spans[character.fragment] = Span(first, character.place + 1)
    return tuple(text[slice(*span)] for span in spans.values())
