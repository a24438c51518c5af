"""Record of a prompt syntax: how it is read, written and by default cut into chunks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from ..prompt import Lora, Prompt


class Foreign(NamedTuple):
    """A form that is plain text in this syntax, though its writer may mean more: mostly of another syntax."""

    form: re.Pattern[str]
    """Pattern of the form, which matches in time linear in the length of the prompt."""
    syntax: str
    """Name of the syntax it belongs to; empty for a mistake that belongs to none."""
    meaning: str
    """Its meaning there, or the mistake, as the end of a sentence that begins with the quoted form."""
    part: str = "it"
    """The part of it that is text, as the beginning of a sentence."""


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
