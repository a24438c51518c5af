r"""Forms that are read otherwise than their writers mostly mean, and what to write instead.

They are of no other syntax, unlike `record.Foreign`. Each pattern matches in time linear in the length of the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..infotext import read_infotext
from ..infotext.text import begin_of_data
from ..text.prompt import Issue, Prompt, Span, quoted, shortened
from ..text.weights import FAR, MAX_WEIGHT, far_issue
from .record import Syntax

GENERATION_DATA = "generation-data"
"""Code of the issue about a negative prompt, and settings, after a prompt."""

_PLAIN_SIGNS = str.maketrans("（）：．。", "():..")
_FULL_WIDTH = re.compile(r"([(（])([^()（）]*)([:：])(\s*[+-]?(?:\d+(?:[.．。]\d+)?|[.．。]\d+)\s*)([)）])")
_NO_BRACKETS = re.compile(r"(?<![\w:-])(?:embedding:)?[^\W\d][\w-]*:\d*\.\d+(?![\w.:])(?!\s*[)\]>])")
_NAME = re.compile(r"(?<![^\s,()])[^\s,()\\]*_\([^()\\:]*\)")
_WILDCARD = re.compile(r"(?<!\w)__(?:[^\W_]|[/*.-]|_(?!_))+__(?!\w)")
_NUMBER_BEHIND = re.compile(r"\s*:\s*\+?([1-9]\d+)\s*\)")


def slip_issues(prompt: Prompt, syntax: Syntax) -> Iterator[Issue]:
    """Issues for each such form in a prompt.

    >>> from . import parse
    >>> [(issue.code, issue.fix) for issue in parse("（dog：1.3） (cat:13) fox:1.2", "comfy").issues]
    [('full-width-weight', '(dog:1.3)'), ('far-weight', '1.3'), ('weight-without-brackets', '(fox:1.2)')]
    """
    source = prompt.source
    data = read_infotext(source)
    if data.is_generation_data and (data.prompt or data.negative or data.settings):  # not damaged
        start = 0 if data.writer else begin_of_data(source)
        message = f"“{quoted(source, Span(start, len(source)), 40)}” begins generation data, which is not a prompt."
        yield Issue(GENERATION_DATA, message, Span(start, len(source)))
    elif data.problems:
        yield Issue("unread-generation-data", data.problems[0], Span(0, len(source)))
    if syntax.foreign:
        for match in _WILDCARD.finditer(source):
            message = f"“{shortened(match[0])}” is text: wildcards are not filled in here."
            yield Issue("wildcard", message, Span(*match.span()))
    if syntax.has_groups:
        for match in _FULL_WIDTH.finditer(source):
            opening, inside, *rest = match.groups()
            fix = opening.translate(_PLAIN_SIGNS) + inside + "".join(rest).translate(_PLAIN_SIGNS)
            if fix != match[0]:
                message = f"“{shortened(match[0])}” is not read as a weight: its signs are full-width."
                yield Issue("full-width-weight", message, Span(*match.span()), fix=fix)
        for match in _NO_BRACKETS.finditer(source):
            message = f"“{shortened(match[0])}” is text: a weight needs brackets."
            yield Issue("weight-without-brackets", message, Span(*match.span()), fix=f"({match[0]})")
        for match in _NAME.finditer(source):
            message = f"“{shortened(match[0])}” has brackets that are a weight, and no text."
            name, bracket, inside = match[0].rpartition("(")
            yield Issue("name-with-brackets", message, Span(*match.span()), fix=f"{name}\\{bracket}{inside[:-1]}\\)")
    yield from _far_weights(prompt)


def _far_weights(prompt: Prompt) -> Iterator[Issue]:
    """Issues for weights beyond `FAR`; clamped weights are named for being clamped."""
    for fragment in prompt.fragments:
        if FAR < abs(fragment.weight) <= MAX_WEIGHT:
            number = _NUMBER_BEHIND.match(prompt.source, fragment.span.end)
            is_written = number is not None and float(number[1]) == fragment.weight
            digits = Span(*number.span(1)) if number is not None and is_written else None
            yield far_issue(fragment.text, fragment.weight, fragment.span, digits)
