"""The prompt syntaxes: one grammar a file, all parsing into `Prompt`; each file ends in the record of its syntax."""

from __future__ import annotations

from ..prompt import Fragment, Piece, Prompt, Span
from . import a1111, comfy, compel
from .record import Syntax

__all__ = ["SYNTAXES", "Syntax", "parse", "parse_plain", "syntax_of"]


def parse_plain(source: str, *, strict: bool = False) -> Prompt:
    """Read a prompt as nothing but text: brackets, backslashes and BREAK stand for themselves.

    Args:
        source: Any string.
        strict: Accepted for symmetry; nothing is refused.

    Returns:
        A prompt of one fragment.
    """
    del strict
    return Prompt(source, "none", (Fragment((Piece(source, Span(0, len(source))),)),))


SYNTAXES: dict[str, Syntax] = {
    "comfy": comfy.SYNTAX,
    "a1111": a1111.SYNTAX,
    "compel": compel.SYNTAX,
    "none": Syntax(parse_plain, "brackets are text.", chunking="comfy segment"),
}
"""Every syntax by the name that menus, options and case files use, in the order of menus."""


def syntax_of(name: str) -> Syntax:
    """The record of a syntax.

    Args:
        name: A key of `SYNTAXES`.

    Returns:
        The record.

    Raises:
        ValueError: If the syntax is unknown.
    """
    if name not in SYNTAXES:
        raise ValueError(f"unknown syntax {name!r}; allowed: {', '.join(SYNTAXES)}")
    return SYNTAXES[name]


def parse(source: str, syntax: str, *, strict: bool = False) -> Prompt:
    """Read a prompt in a named syntax.

    Args:
        source: Any string.
        syntax: A key of `SYNTAXES`.
        strict: Raise where the program of that name raises.

    Returns:
        The prompt.

    Raises:
        ValueError: If the syntax is unknown.
        PromptError: In strict mode, where the reference raises.
    """
    return syntax_of(syntax).parse(source, strict=strict)
