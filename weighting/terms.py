"""Terms that the scheme ``negpip_apart`` cuts out of a prompt: ``(text:-1.2)``, to be encoded separately.

Source: docs/reference/schemes.md, "NegPip"; behaviour of sd-webui-negpip dc75fd2c (2025-11).
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from .prompt import Fragment, Piece, Span, pieces_of

_TERM = re.compile(r"\((?P<text>[^():]*):\s*-(?P<weight>\d+(?:\.\d+)?)\s*\)")


class CutTerm(NamedTuple):
    """A term as it is encoded. All spans are positions in the whole prompt."""

    fragment: Fragment
    """``(text:1.2)``: the text with the absolute weight."""
    text: Fragment
    """The text alone."""
    span: Span
    """The stretch cut out."""


def cut_terms(prompt: Fragment) -> tuple[Fragment, tuple[CutTerm, ...]]:
    """Cut the terms out of a prompt: groups with a weight below 0 that contain no bracket and no colon.

    As in the program, a backslash before the bracket does not protect it, and ``(BREAK:-1)`` is cut out and dropped.

    Args:
        prompt: The prompt.

    Returns:
        The rest, and the terms in order.

    >>> left, terms = cut_terms(Fragment((Piece("a cat (oil, ink:-1.5) here", Span(0, 26)),)))
    >>> left.text, [term.fragment.text for term in terms]
    ('a cat  here', ['(oil, ink:1.5)'])
    """
    matches = list(_TERM.finditer(prompt.text))
    borders = [0, *(border for match in matches for border in match.span()), len(prompt.text)]
    left = [_part(prompt, start, end) for start, end in list(pairwise(borders))[::2]]
    terms: list[CutTerm] = []
    for match in matches:
        start, end = match.span("text")
        span = prompt.span_of(Span(*match.span()))
        if match["text"] == "BREAK":
            continue
        text = _part(prompt, start, end)
        number = Piece(f":{float(match['weight'])})", Span(span.end, span.end))
        pieces = (*_part(prompt, start - 1, end).pieces, number)
        terms.append(CutTerm(Fragment(pieces), text, span))
    return Fragment(tuple(piece for part in left for piece in part.pieces)), tuple(terms)


def _part(prompt: Fragment, start: int, end: int) -> Fragment:
    """A stretch of a prompt's text."""
    return Fragment(tuple(pieces_of(prompt.text[start:end], prompt.positions[start:end])))
