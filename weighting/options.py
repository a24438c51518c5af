"""All options for encoding a prompt."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from .chunking import CHUNKINGS
from .normalize import NORMALIZATIONS
from .padding import PADDINGS
from .scheme import LAWS, MASK_METHODS, POOLED, Law, MaskMethod, Pooled
from .schemes import SCHEMES
from .schemes.repeat import FINEST_STEPS
from .syntax import SYNTAXES, syntax_of

EosRows = Literal["own", "first", "mean"]
EOS_ROWS: tuple[EosRows, ...] = get_args(EosRows)
"""Sources of the row of each chunk's first EOS, default first: its own state, the first chunk's, the mean of all. The
last two are compel's COPY_FIRST_CLS_TOKEN and MERGE_CLS_TOKENS."""

HiddenFrom = Literal["everything", "the phrases below", "padding rows only"]
HIDDEN_FROM: tuple[HiddenFrom, ...] = get_args(HiddenFrom)
"""Tokens that a phrase is hidden from, default first: all tokens, including itself; other phrases; everything after the
prompt, which the U-Net reads too."""

BindRest = Literal["full", "alone"]
BIND_RESTS: tuple[BindRest, ...] = get_args(BindRest)
"""Sources of the rows of tokens outside bound phrases, default first: the plain pass, or one that hides in all phrases
what they hide from each other."""

BindHide = Literal["whole phrases", "these words", "cutoff"]
BIND_HIDES: tuple[BindHide, ...] = get_args(BindHide)
"""Parts that bound phrases hide from each other, default first: all of their words; some of their words; or as in
Cutoff, whose phrases are the parts between commas, and whose words are replaced by ``_``."""

CLEANINGS = ("as Forge", "none")
"""Cleaning of text in the A1111 syntax before it is tokenized, default first."""

CHUNKING_CHOICES = ("as syntax", *CHUNKINGS)
"""Chunk rules in menus, default first."""


@dataclass(frozen=True)
class EncodeOptions:
    """All options for encoding a prompt.

    Raises:
        ValueError: If a choice is not allowed (the message lists the choices), or a number is out of range.
    """

    syntax: str = "comfy"
    """Syntax of weights, a key of `SYNTAXES`."""
    scheme: str = "comfy"
    """Effect of weights, a key of `SCHEMES`."""
    normalization: str = "none"
    """Normalisation of weights, one of `NORMALIZATIONS`."""
    chunking: str = "as syntax"
    """Rule for cutting long prompts, one of `CHUNKING_CHOICES`."""
    padding: str = "attend"
    """Treatment of padding, one of `PADDINGS`."""
    pooled: Pooled = "unweighted"
    """Pooled vector. ``unweighted``: from the first chunk, under lerp_last from the last; ``weighted``: masked_blend
    and similar schemes blend pooled vectors too; ``raw text``: from the text as typed, including weights and brackets,
    cut to one chunk, as in the compel library."""
    law: Law = "nested"
    """masked_blend: how several faded words share the result."""
    mask_method: MaskMethod = "attention"
    """masked_blend: how words are made absent."""
    filler: str = "+"
    """masked_blend, method ``token``: the text that replaces an absent token; exactly one token long."""
    comma_backtrack: int = 20
    """Chunk rule a1111: maximum distance, in tokens, of a comma to cut at; 0 to 74."""
    eos_rows: EosRows = "own"
    """Prompts of several chunks: source of their EOS rows, one of `EOS_ROWS`."""
    quirks: bool = False
    """Chunk rule a1111: whether to follow the program even where that loses an embedding's vectors."""
    hide: str = ""
    """Phrases hidden from other tokens, one per line."""
    hidden_from: HiddenFrom = "everything"
    """Tokens that they are hidden from, one of `HIDDEN_FROM`."""
    from_phrases: str = ""
    """With ``hidden_from`` at ``the phrases below``: phrases that do not see them, one per line."""
    is_causal: bool = True
    """Whether tokens see only earlier ones, as in CLIP's training."""
    bind: str = ""
    """Phrases that cannot see each other, one per line."""
    bind_rest: BindRest = "full"
    """Source of the rows of all other tokens, one of `BIND_RESTS`."""
    bind_strength: float = 1.0
    """Share of the bound encoding, 0 to 1."""
    bind_hide: BindHide = "whole phrases"
    """Parts they hide from each other, one of `BIND_HIDES`."""
    bind_words: str = ""
    """With ``bind_hide`` at ``these words`` or ``cutoff``: the words, one per line or separated by commas."""
    binds_some: bool = False
    """Whether to bind the phrases that occur in the text and report the missing ones, instead of refusing the
    prompt."""
    cleaning: str = "as Forge"
    """Syntax a1111: whether to remove comments and repair text as in Forge, one of `CLEANINGS`."""
    has_tags: bool = True
    """Syntaxes with tags such as ``<lora:name:0.8>``: whether to remove the tags; if not, they are text."""
    finest_step: str = "auto"
    """repeat: maximum number of steps from weight 0 to 1, one of `FINEST_STEPS`."""
    strength: float = 1.0
    """negpip: scale of weights, each of which becomes ``1 + strength (weight - 1)``."""
    strict: bool = False
    """Whether to raise where the program of that syntax raises, instead of reporting an issue."""

    @property
    def binds(self) -> bool:
        """Whether phrases are bound."""
        what = self.bind_words if self.bind_hide == "cutoff" else self.bind
        return bool(what.strip()) and self.bind_strength > 0

    @property
    def drops_padding(self) -> bool:
        """Whether rows of padding are left out of the result."""
        return self.padding == "drop" or not SCHEMES[self.scheme].is_padded

    def __post_init__(self) -> None:
        for name, allowed in (
            ("syntax", SYNTAXES),
            ("scheme", SCHEMES),
            ("normalization", NORMALIZATIONS),
            ("chunking", CHUNKING_CHOICES),
            ("padding", PADDINGS),
            ("pooled", POOLED),
            ("law", LAWS),
            ("mask_method", MASK_METHODS),
            ("eos_rows", EOS_ROWS),
            ("hidden_from", HIDDEN_FROM),
            ("cleaning", CLEANINGS),
            ("bind_rest", BIND_RESTS),
            ("bind_hide", BIND_HIDES),
            ("finest_step", FINEST_STEPS),
        ):
            if getattr(self, name) not in tuple(allowed):  # a tuple, because a caller's value may not be hashable
                raise ValueError(f"{name} must be one of: {', '.join(allowed)}; got {getattr(self, name)!r:.80}")
        for name in ("hide", "from_phrases", "bind", "bind_words"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be a text, got {getattr(self, name)!r:.80}")
        for name in ("strength", "bind_strength"):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ValueError(f"{name} must be a number, got {value!r:.80}")
        if not math.isfinite(self.strength):
            raise ValueError(f"strength must be a finite number, got {self.strength!r}")
        if not 0 <= self.bind_strength <= 1:
            raise ValueError(f"bind_strength must be 0 to 1, got {self.bind_strength!r:.80}")

    @property
    def is_cleaned(self) -> bool:
        """Whether comments are removed and text is repaired, including where the WebUI reads brackets as text."""
        is_webui = syntax_of(self.syntax).is_cleaned or (self.syntax, self.chunking) == ("none", "a1111")
        return is_webui and self.cleaning == "as Forge"
