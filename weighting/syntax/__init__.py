"""Prompt syntaxes: one grammar per file, all parsing into `Prompt`; each file ends with the record of its syntax."""

from __future__ import annotations

from dataclasses import replace

from ...encoder.quoting import quote
from ..text.prompt import Fragment, Piece, Prompt, Span
from . import a1111, comfy, compel
from .mends import mend_issues, mended, told_once
from .record import Syntax, foreign_issues
from .slips import GENERATION_DATA, slip_issues

__all__ = ["SYNTAXES", "Syntax", "parse", "parse_plain", "syntax_of"]


def parse_plain(source: str, *, strict: bool = False) -> Prompt:
    """Read a prompt as one fragment of plain text, including brackets, backslashes and BREAK."""
    del strict  # nothing is refused
    return Prompt(source, "none", (Fragment((Piece(source, Span(0, len(source))),)),))


SYNTAXES: dict[str, Syntax] = {
    "comfy": comfy.SYNTAX,
    "a1111": a1111.SYNTAX,
    "compel": compel.SYNTAX,
    "none": Syntax(parse_plain, "brackets are text.", chunking="comfy segment"),
}
"""Syntaxes by the name used in menus, options and case files, in the order of menus."""


def syntax_of(name: str) -> Syntax:
    """Record of a syntax.

    Raises:
        ValueError: If the syntax is unknown.
    """
    if name not in SYNTAXES:
        raise ValueError(f"unknown syntax {quote(name)}; allowed: {', '.join(SYNTAXES)}")
    return SYNTAXES[name]


def parse(source: str, syntax: str, *, strict: bool = False) -> Prompt:
    """Read a prompt, any string, in a named syntax.

    Raises:
        ValueError: If the syntax is unknown.
        PromptError: In strict mode, if the reference raises.
    """
    record = syntax_of(syntax)
    prompt = mended(record.parse(source, strict=strict))
    found = [*foreign_issues(prompt, record), *slip_issues(prompt, record), *mend_issues(prompt, record)]
    if not found:
        return prompt
    data = next((issue.span for issue in found if issue.code == GENERATION_DATA), None)
    if data is not None:  # nothing in it is taken for a prompt
        found = [issue for issue in found if issue.code == GENERATION_DATA or issue.span.start < data.start]
    issues = told_once([*prompt.issues, *found])
    return replace(prompt, issues=tuple(sorted(issues, key=lambda issue: issue.span)))
