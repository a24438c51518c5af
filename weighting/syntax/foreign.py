r"""Forms of one syntax that are text in another, or in all, and the issues that say so. Prompts are read without them.

Text that people write for other reasons, such as ``C++``, ``red-haired`` and ``\\[``, is not included.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..prompt import Issue, Prompt, Span, quoted
from .record import Foreign, Syntax

_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"

NUMBER_IN_BRACKETS = Foreign(
    re.compile(rf"(?:\([^()]*)?:\s*[+-]?{_NUMBER}\s*\)"), "comfy", "is a weight as ComfyUI and A1111 write it"
)
"""``(cat:1.1)``."""

DECIMAL_COMMA = Foreign(
    re.compile(r"(?:\([^()]*)?:\s*[+-]?\d*,\d+\s*\)"), "", "would be a weight if its number had a point, as in 0.5"
)
"""``(cat:0,5)``."""

OF_A1111 = (
    Foreign(re.compile(r"(?<!\\)\[[^\[\]]*[^\[\]\\]\]"), "a1111", "is a weight, or changes with the steps, in A1111"),
    Foreign(re.compile(r"\bBREAK\b"), "a1111", "ends a chunk in A1111"),
    Foreign(re.compile(r"<(?:lora|lyco|hypernet):[^<>]*>"), "a1111", "is a tag of A1111"),
)
"""``[cat]``, ``BREAK`` and ``<lora:name:0.8>``."""

OF_COMPEL = (
    Foreign(
        re.compile(rf"(?:\([^()]*)?(?<!\\)\)(?:\++|-+|{_NUMBER})(?!\w|\.\d)"),
        "compel",
        "is a weight as compel writes it",
        "what comes after the bracket",
    ),
    Foreign(
        re.compile(r"(?<![^\W\d_])[^\W\d_]{2,}(?:\+{2,}|-{2,})(?![\w+-])"), "compel", "is a weight as compel writes it"
    ),
    Foreign(re.compile(r"\)\s*\.(?:blend|and)\("), "compel", "is a call of compel's"),
    Foreign(re.compile(r"\.swap\("), "compel", "is a call of compel's"),
    Foreign(re.compile(r"\b(?:withLora|useLora)\("), "compel", "names a LoRA in compel"),
)
"""``(cat)1.2``, ``(cat)++``, ``cat++``, ``.blend(``, ``.and(``, ``.swap(`` and ``withLora(``."""


def foreign_issues(prompt: Prompt, syntax: Syntax) -> Iterator[Issue]:
    """Issues for each form of another syntax in a prompt.

    >>> from . import parse
    >>> [issue.message for issue in parse("a [red] cat", "comfy").issues]
    ['“[red]” is a weight, or changes with the steps, in A1111. With syntax comfy it is text.']
    """
    for foreign in syntax.foreign:
        for found in foreign.form.finditer(prompt.source):
            span = Span(*found.span())
            form = quoted(prompt.source, span)
            message = f"“{form}” {foreign.meaning}. With syntax {prompt.syntax} {foreign.part} is text."
            yield Issue("foreign-syntax" if foreign.syntax else "decimal-comma", message, span, foreign.syntax)
