"""The table of weighting schemes that every menu and page uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..chunks import TokenChunk
from .api import SchemeOptions, Weighted
from .blend import compel, masked_blend
from .negpip import negpip, negpip_apart
from .plan import Plan
from .repeat import repeat
from .replace import adv_compel, comfy_plus_plus, down_weight
from .rows import a1111, a1111_global_norm, a1111_no_norm, comfy, lerp_last, lpw, perp, unweighted

SchemeFn = Callable[[Sequence[TokenChunk], SchemeOptions], Plan[Weighted]]


@dataclass(frozen=True)
class Scheme:
    """A row of the table: a weighting scheme as users choose it."""

    plan: SchemeFn
    """Function from ``(chunks, options)`` to the plan of a `Weighted`."""
    summary: str
    """Effect of a weight, in one sentence for menus."""
    equals: str
    """Program whose numbers it reproduces."""
    is_padded: bool = True
    """Whether its chunks are filled with padding. If not, the result has no rows after the EOS that closes a chunk."""


SCHEMES: dict[str, Scheme] = {
    "comfy": Scheme(comfy, "Moves a word's rows away from, or towards, the empty prompt.", "ComfyUI"),
    "a1111": Scheme(a1111, "Scales a word's rows, then restores each chunk's mean.", "A1111, Forge: Original"),
    "compel": Scheme(compel, "As comfy; below 1 also blends in encodings that cannot see the word.", "compel"),
    "masked_blend": Scheme(masked_blend, "Above 1 as comfy; below, blends in encodings without the word.", "ours"),
    "down_weight": Scheme(
        down_weight, "Raises a word by fading all others, never beyond the plain prompt.", "ADV_CLIP_emb"
    ),
    "adv_compel": Scheme(
        adv_compel, "As comfy; below 1 blends in encodings with + for the word.", "ADV_CLIP_emb: compel"
    ),
    "comfy++": Scheme(comfy_plus_plus, "Adds what a word changes; below 1 as adv_compel.", "ADV_CLIP_emb"),
    "a1111_no_norm": Scheme(a1111_no_norm, "Scales a word's rows and nothing else.", "A1111, Forge: No norm"),
    "a1111_global_norm": Scheme(a1111_global_norm, "As a1111, with one mean over all chunks.", "ADV_CLIP_emb: A1111"),
    "perp": Scheme(perp, "Moves a row by what it shares with the empty prompt.", "prompt-control"),
    "lerp_last": Scheme(
        lerp_last,
        "Moves a word's rows away from its chunk's end token; no padding.",
        "diffusers lpw, SDXL",
        is_padded=False,
    ),
    "lpw": Scheme(lpw, "As a1111_global_norm, without the rows between chunks.", "diffusers lpw, SD 1.x"),
    "unweighted": Scheme(unweighted, "Reads the weights and applies none.", "A1111, Forge: Ignore"),
    "repeat": Scheme(repeat, "Repeats a word's rows, so that the image attends them by the word's weight.", "ours"),
    "negpip": Scheme(
        negpip, "As comfy; below 0 the image sees the word, and what it reads is taken away.", "ComfyUI-ppm: NegPip"
    ),
    "negpip_apart": Scheme(
        negpip_apart,
        "As a1111; each (text:-number) is encoded on its own, and what is read of it taken away.",
        "sd-webui-negpip",
    ),
}
"""Schemes by their permanent names, in the order of menus. A name never changes its meaning."""
