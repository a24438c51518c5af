"""The prompt syntaxes: one grammar a file, all parsing into `Prompt`."""

from __future__ import annotations

from collections.abc import Callable

from ..prompt import Fragment, Piece, Prompt, Span
from . import a1111, comfy, compel

__all__ = ["SYNTAXES", "parse", "parse_plain"]


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


SYNTAXES: dict[str, Callable[..., Prompt]] = {
    "comfy": comfy.parse,
    "a1111": a1111.parse,
    "compel": compel.parse,
    "none": parse_plain,
}
"""Every syntax by the name that menus, options and case files use. Each takes ``(source, *, strict)``."""


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
    if syntax not in SYNTAXES:
        raise ValueError(f"unknown syntax {syntax!r}; allowed: {', '.join(SYNTAXES)}")
    return SYNTAXES[syntax](source, strict=strict)
