"""What the pack knows of a prompt syntax, as one record: how it is read, written and cut into chunks by default."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from ..prompt import Lora, Prompt


class Foreign(NamedTuple):
    """A form of another syntax, which is nothing but text in the one that it is foreign to."""

    form: re.Pattern[str]
    """Finds it in a prompt, in time that is linear in the length of the prompt."""
    syntax: str
    """The name of the syntax that it is a form of."""
    meaning: str
    """What it is there, as the end of a sentence that begins with the quoted form."""
    part: str = "it"
    """What of it is text, as the beginning of a sentence."""


@dataclass(frozen=True)
class Syntax:
    """A prompt syntax."""

    parse: Callable[..., Prompt]
    """Reads a prompt; takes ``(source, *, strict)``."""
    summary: str
    """How its weights look, for menus."""
    chunking: str
    """The chunk rule that ``as syntax`` means."""
    write: Callable[[str, float], Iterator[str]] | None = None
    """Ways of writing text with a weight, the most readable first; none for a weight it has no words for. What comes
    out is read back before it is taken. None: no prompt can be written in it."""
    finish: Callable[[str], str] = str
    """Last touch to a whole written prompt."""
    is_spaced: bool = False
    """Whether a space stands between any two fragments, as if it were typed."""
    break_word: str | None = None
    """What ends a chunk; None: nothing does."""
    write_lora: Callable[[Lora], str] | None = None
    """How a LoRA is named in the text; None: not at all."""
    has_tags: bool = False
    """Whether tags of extra networks, ``<lora:name:0.8>``, are taken out before it is read."""
    foreign: tuple[Foreign, ...] = ()
    """Forms of other syntaxes that are text in this one, of which its users should know."""
    is_cleaned: bool = False
    """Whether comments are taken out and text is repaired, as Forge does, unless its user does without."""


def decimal(weight: float) -> str:
    """Eight digits without exponent: neither A1111 nor compel reads one.

    >>> decimal(1e-05), decimal(1.2100000000001)
    ('0.00001', '1.21')
    """
    return format(Decimal(f"{weight:.8g}"), "f")
