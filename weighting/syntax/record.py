r"""Record of a prompt syntax: how it is read, written and by default cut into chunks; and forms of other syntaxes.

Such forms are text in a prompt, and issues name them. Text that people write for other reasons, such as ``C++``,
``red-haired`` and ``\\[``, is not included.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from ..text.prompt import Issue, Lora, Prompt, Span, quoted


class Foreign(NamedTuple):
    """A form that is plain text in this syntax, though its writer may mean more: mostly of another syntax."""

    form: re.Pattern[str]
    """Pattern of the form, which matches in time linear in the length of the prompt."""
    syntax: str
    """Name of the syntax it belongs to; empty for a mistake, and for a form that none of ours reads."""
    meaning: str
    """Its meaning there, or the mistake, as the end of a sentence that begins with the quoted form."""
    part: str = "it"
    """The part of it that is text, as the beginning of a sentence."""
    code: str = "foreign-syntax"
    """Code of its issues."""


@dataclass(frozen=True)
class Syntax:
    """A prompt syntax."""

    parse: Callable[..., Prompt]
    """Parser, called with ``(source, *, strict)``."""
    summary: str
    """Form of its weights, for menus."""
    chunking: str
    """Chunk rule selected by ``as syntax``."""
    write: Callable[[str, float], Iterator[str]] | None = None
    """Writer of text with a weight, which yields forms, the most readable first, and none for a weight it cannot
    express. Its output is read back before use. None: no prompt can be written in this syntax."""
    finish: Callable[[str], str] = str
    """Final step for a whole written prompt."""
    is_spaced: bool = False
    """Whether a space is implied between any two fragments."""
    break_word: str | None = None
    """Word that ends a chunk, or None."""
    write_lora: Callable[[Lora], str] | None = None
    """Writer of a LoRA, or None if the syntax has no form for it."""
    by_comfyui: bool = False
    """Whether it is what ComfyUI's own nodes read."""
    by_webui: bool = False
    """Whether it is what the WebUI reads, with its AND and its prompt editing."""
    has_groups: bool = False
    """Whether ``(text:-1.2)`` is a weighted group, which the scheme ``negpip_apart`` can cut out."""
    has_leading_weights: bool = False
    """Whether a weight is a number before its text, which must not follow a letter, digit, point or colon."""
    has_tags: bool = False
    """Whether tags of extra networks, ``<lora:name:0.8>``, are removed before reading."""
    foreign: tuple[Foreign, ...] = ()
    """Forms of other syntaxes that are text in this one, which users should know."""
    is_cleaned: bool = False
    """Whether comments are removed and text is repaired, as in Forge, unless the user disables it."""


def decimal(weight: float) -> str:
    """Format with eight digits and no exponent, which neither A1111 nor compel reads.

    >>> decimal(1e-05), decimal(1.2100000000001)
    ('0.00001', '1.21')
    """
    return format(Decimal(f"{weight:.8g}"), "f")


_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"

NUMBER_IN_BRACKETS = Foreign(
    re.compile(rf"(?:\([^()]*)?:\s*[+-]?{_NUMBER}\s*\)"), "comfy", "is a weight as ComfyUI and A1111 write it"
)
"""``(cat:1.1)``."""

DECIMAL_COMMA = Foreign(
    re.compile(r"(\([^()]*)?(:\s*[+-]?\d*,\d+\s*\))"),
    "",
    "would be a weight if its number had a point, as in 0.5",
    code="decimal-comma",
)
"""``(cat:0,5)``."""

COMMA_BEFORE_COLONS = Foreign(
    re.compile(r"(?<![\w.:])-?\d+,\d+::"),
    "",
    "would be one weight if its number had a point, as in 1.5::word::",
    "what is before the comma",
    "decimal-comma",
)
"""``1,5::``."""

OF_A1111 = (
    Foreign(
        re.compile(r"(?<!\\)\[(?!(?:SEQ|INT|CUT):)[^\[\]]*[^\[\]\\]\]"),
        "a1111",
        "is a weight, or changes with the steps, in A1111",
    ),
    Foreign(re.compile(r"\bBREAK\b"), "a1111", "ends a chunk in A1111"),
    Foreign(
        re.compile(r"<(?:lora|lyco):[^<>]*>"),
        "a1111",
        "is a LoRA in A1111, which ComfyUI's node LoRA Tag Loader loads",
    ),
    Foreign(re.compile(r"<hypernet:[^<>]*>"), "a1111", "is a tag of A1111"),
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

OF_EXTENSIONS = (
    Foreign(re.compile(r"\bAND_[A-Z]+\b"), "", "combines prompts in the extension Neutral Prompt"),
    Foreign(re.compile(r"\bADD(?:BASE|COL|COMM|ROW)\b"), "", "divides the picture in the extension Regional Prompter"),
    Foreign(re.compile(r"(?<!\\)\[(?:CUT|INT|SEQ):[^\[\]]*\]?"), "", "is comfyui-prompt-control's", "its first word"),
    Foreign(
        re.compile(
            r"\b(?:AREA|ATTN|AVG|CLIP_L|COUPLE|DEF|FEATHER|FILL|I?MASKW?|MASK_SIZE|NODE|NOISE|NOSTRIP|OLDBREAK|SDXL|SEG"
            r"|SHIFT|SHUFFLE|STYLE|TE|TE_WEIGHT)\((?:[^()]*\))?"
        ),
        "",
        "is a function of comfyui-prompt-control",
    ),
)
"""``AND_PERP``, ``ADDCOL``, ``[CUT:white cat:white]`` and ``STYLE(A1111)``. Nothing of ours reads them, except
*A1111/Forge Prompt* with ``regions``, which takes ``MASK(`` and its like out before."""

OF_GLIDES = tuple(
    Foreign(re.compile(form), "", f"{meaning} over the steps where glides are on")
    for form, meaning in (
        (
            rf"(?<!\\)\[[^\[\]:]*:[^\[\]]*:(?!\s*\d+,\d+\s*\])\s*(?:{_NUMBER}\s*)?(?:,\s*(?:{_NUMBER}\s*)?)+"
            r"(?::\s*(?:linear|catmull|bezier|mean)\s*)?\]",
            "goes from text to text",
        ),
        (rf"(?<!\\)\([^()@]*:\s*[+-]?{_NUMBER}\s*@[^()]*\)", "is a weight that follows a line"),
    )
)
"""``[cat:dog:0.2,0.8]`` and ``(cat:0.2@0,1.2@0.5)``; ``[cat:dog:0,5]`` is more likely a slip."""

OF_SWARM = Foreign(
    re.compile(r"<(?:alternate|fromto|object|preset|random|region|repeat|segment|setvar|wildcard)\b[^<>]*>"),
    "",
    "is a tag of SwarmUI",
)
"""``<segment:face>``."""


def foreign_issues(prompt: Prompt, syntax: Syntax) -> Iterator[Issue]:
    """Issues for each form of another syntax in a prompt.

    >>> from . import parse
    >>> [issue.message for issue in parse("a [red] cat", "comfy").issues]
    ['“[red]” is a weight, or changes with the steps, in A1111. With syntax comfy it is text.']
    """
    for foreign in syntax.foreign:
        for match in foreign.form.finditer(prompt.source):
            span = Span(*match.span())
            form = quoted(prompt.source, span)
            message = f"“{form}” {foreign.meaning}. With syntax {prompt.syntax} {foreign.part} is text."
            # of a decimal comma, the two groups are what stands before the number, and the number
            fix = "" if foreign is not DECIMAL_COMMA else f"{match[1] or ''}{match[2].replace(',', '.')}"
            yield Issue(foreign.code, message, span, foreign.syntax, fix)
