"""Everything a user can choose about one prompt."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from .chunking import CHUNKINGS
from .normalize import NORMALIZATIONS
from .padding import PADDINGS
from .schemes.api import LAWS, MASK_METHODS, POOLED, Law, MaskMethod, Pooled
from .schemes.repeat import FINEST_STEPS
from .schemes.table import SCHEMES
from .syntax import SYNTAXES, syntax_of

EosRows = Literal["own", "first", "mean"]
EOS_ROWS: tuple[EosRows, ...] = get_args(EosRows)
"""What stands in the row of each chunk's first EOS, default first: its own state, the first chunk's, the mean of all.
The others are compel's COPY_FIRST_CLS_TOKEN and MERGE_CLS_TOKENS."""

HiddenFrom = Literal["everything", "the phrases below", "padding rows only"]
HIDDEN_FROM: tuple[HiddenFrom, ...] = get_args(HiddenFrom)
"""Who shall not see a hidden phrase, default first: all tokens, itself included; other phrases; what stands behind the
prompt, which the U-Net reads too."""

BindRest = Literal["full", "alone"]
BIND_RESTS: tuple[BindRest, ...] = get_args(BindRest)
"""Where the rows of tokens in no bound phrase come from, default first: the plain pass, or one that hides of all
phrases what they hide from each other."""

BindHide = Literal["whole phrases", "these words", "cutoff"]
BIND_HIDES: tuple[BindHide, ...] = get_args(BindHide)
"""What bound phrases hide from each other, default first: all of their words; some words of theirs; or as Cutoff does,
whose phrases are the parts between commas, and whose words have ``_`` in their places."""

CLEANINGS = ("as Forge", "none")
"""Whether text in the A1111 syntax is cleaned before it is tokenized, default first."""

CHUNKING_CHOICES = ("as syntax", *CHUNKINGS)
"""Chunk rules as menus show them, default first."""


@dataclass(frozen=True)
class EncodeOptions:
    """Everything a user can choose about one prompt.

    Raises:
        ValueError: If a choice is not one of those allowed, which the message lists, or a number is out of range.
    """

    syntax: str = "comfy"
    """How weights are written; a key of `SYNTAXES`."""
    scheme: str = "comfy"
    """What a weight does; a key of `SCHEMES`."""
    normalization: str = "none"
    """What happens to the weights before; one of `NORMALIZATIONS`."""
    chunking: str = "as syntax"
    """Where long prompts are cut; one of `CHUNKING_CHOICES`."""
    padding: str = "attend"
    """What becomes of padding; one of `PADDINGS`."""
    pooled: Pooled = "unweighted"
    """``unweighted``: of the first chunk, under lerp_last of the last; ``weighted``: masked_blend and its like blend
    pooled vectors too; ``raw text``: of the text as typed, weights and brackets included, cut to one chunk, as the
    compel library does."""
    law: Law = "nested"
    """masked_blend: how several faded words share the result."""
    mask_method: MaskMethod = "attention"
    """masked_blend: what absent means."""
    filler: str = "+"
    """masked_blend, method ``token``: the text that stands in for an absent token; exactly one token long."""
    comma_backtrack: int = 20
    """Chunk rule a1111: how many tokens back a comma may be to be cut at; 0 to 74."""
    eos_rows: EosRows = "own"
    """Prompts of several chunks: what stands in their EOS rows; one of `EOS_ROWS`."""
    quirks: bool = False
    """Chunk rule a1111: do as the program does also where that loses an embedding's vectors."""
    hide: str = ""
    """Phrases that tokens shall not see, one per line."""
    hidden_from: HiddenFrom = "everything"
    """Who shall not see them; one of `HIDDEN_FROM`."""
    from_phrases: str = ""
    """With ``hidden_from`` at ``the phrases below``: these phrases shall not, one per line."""
    is_causal: bool = True
    """Whether a token is kept from seeing later ones, as CLIP was trained."""
    bind: str = ""
    """Phrases that cannot see each other, one per line."""
    bind_rest: BindRest = "full"
    """Where the rows of all other tokens come from; one of `BIND_RESTS`."""
    bind_strength: float = 1.0
    """How much of the bound encoding there is, 0 to 1."""
    bind_hide: BindHide = "whole phrases"
    """What they hide from each other; one of `BIND_HIDES`."""
    bind_words: str = ""
    """With ``bind_hide`` at ``these words`` or ``cutoff``: the words, one per line or between commas."""
    binds_some: bool = False
    """Bind those phrases that are in the text, and say which are not, instead of refusing it."""
    cleaning: str = "as Forge"
    """Syntax a1111: whether comments are taken out and text is repaired as in Forge; one of `CLEANINGS`."""
    finest_step: str = "auto"
    """repeat: in how many steps a weight may go from 0 to 1; one of `FINEST_STEPS`."""
    strength: float = 1.0
    """negpip: how far weights are taken; ``1 + strength (weight - 1)`` takes the place of each."""
    strict: bool = False
    """Raise where the program of that syntax raises, instead of reporting an issue."""

    @property
    def binds(self) -> bool:
        """Whether phrases are bound."""
        what = self.bind_words if self.bind_hide == "cutoff" else self.bind
        return bool(what.strip()) and self.bind_strength > 0

    @property
    def drops_padding(self) -> bool:
        """Whether the rows of padding are left out of the result."""
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
            if getattr(self, name) not in tuple(allowed):  # a tuple, because what a caller gives may have no hash
                raise ValueError(f"{name} must be one of: {', '.join(allowed)}; got {getattr(self, name)!r}")
        if not math.isfinite(self.strength):
            raise ValueError(f"strength must be a finite number, got {self.strength!r}")
        if not 0 <= self.bind_strength <= 1:
            raise ValueError(f"bind_strength must be 0 to 1, got {self.bind_strength!r}")

    @property
    def is_cleaned(self) -> bool:
        """Whether comments are taken out and text is repaired; also where the WebUI reads brackets as text."""
        is_webui = syntax_of(self.syntax).is_cleaned or (self.syntax, self.chunking) == ("none", "a1111")
        return is_webui and self.cleaning == "as Forge"
