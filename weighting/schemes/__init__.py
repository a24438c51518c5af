"""The table of weighting schemes that every menu and page uses."""

from __future__ import annotations

from functools import partial

from ..scheme import Scheme
from .blend import adv_compel, comfy_plus_plus, compel, down_weight, masked_blend
from .negpip import (
    check_terms,
    cut_terms,
    finish_signed,
    finish_with_terms,
    has_terms,
    has_weights_below_zero,
    negpip,
    negpip_apart,
)
from .repeat import check_rows, finish_repeated, repeat, repeat_issues
from .rows import (
    a1111,
    a1111_global_norm,
    a1111_no_norm,
    comfy,
    left_out_issues,
    lerp_last,
    lpw,
    lpw_issues,
    perp,
    unweighted,
)

SCHEMES: dict[str, Scheme] = {
    "comfy": Scheme(
        comfy,
        "Moves a word's rows away from, or towards, the empty prompt.",
        "ComfyUI",
        "weights as in ComfyUI",
        by_host=True,
        bound_as_cutoff=True,
    ),
    "a1111": Scheme(
        a1111,
        "Scales a word's rows, then restores each chunk's mean.",
        "A1111, Forge: Original",
        "as the WebUI itself, no change",
        advice="The WebUI itself does the same with Emphasis mode Original, so nothing changes.",
        in_columns=a1111_global_norm,  # the mean over a column is the mean over all given chunks
    ),
    "compel": Scheme(
        compel,
        "As comfy; below 1 also blends in encodings that cannot see the word.",
        "compel",
        "weights as in compel",
    ),
    "masked_blend": Scheme(
        masked_blend,
        "Above 1 as comfy; below, blends in encodings without the word.",
        "ours",
        "fade or remove words",
        advice="Write (dog:0.3) to fade the dog, (dog:0) to remove it.",
        options=("law", "mask_method"),
    ),
    "down_weight": Scheme(
        down_weight,
        "Raises a word by fading all others, never beyond the plain prompt.",
        "ADV_CLIP_emb",
        "raise words by fading all others",
    ),
    "adv_compel": Scheme(
        adv_compel,
        "As comfy; below 1 blends in encodings with + for the word.",
        "ADV_CLIP_emb: compel",
        "fade words towards +",
    ),
    "comfy++": Scheme(
        comfy_plus_plus,
        "Adds what a word changes; below 1 as adv_compel.",
        "ADV_CLIP_emb",
        "add what a word changes",
    ),
    "a1111_no_norm": Scheme(
        a1111_no_norm,
        "Scales a word's rows and nothing else.",
        "A1111, Forge: No norm",
        "as Emphasis mode No norm",
        bound_as_cutoff=True,
        in_columns=a1111_no_norm,
    ),
    "a1111_global_norm": Scheme(
        a1111_global_norm,
        "As a1111, with one mean over all chunks.",
        "ADV_CLIP_emb: A1111",
        "as a1111, one mean for all chunks",
    ),
    "perp": Scheme(
        perp,
        "Moves a row by what it shares with the empty prompt.",
        "prompt-control",
        "along the empty prompt",
    ),
    "lerp_last": Scheme(
        lerp_last,
        "Moves a word's rows away from its chunk's end token; no padding.",
        "diffusers lpw, SDXL",
        "weights as in diffusers, SDXL",
        is_padded=False,
        issues=partial(lpw_issues, is_xl=True),
        left_out_issues=left_out_issues,
    ),
    "lpw": Scheme(
        lpw,
        "As a1111_global_norm, without the rows between chunks.",
        "diffusers lpw, SD 1.x",
        "weights as in diffusers, SD 1",
        issues=lpw_issues,
        left_out_issues=left_out_issues,
    ),
    "unweighted": Scheme(
        unweighted,
        "Reads the weights and applies none.",
        "A1111, Forge: Ignore",
        "ignore all weights",
        is_weighing=False,
        by_host=True,
        bound_as_cutoff=True,
        in_columns=unweighted,
    ),
    "repeat": Scheme(
        repeat,
        "Repeats a word's rows, so that the image attends them by the word's weight.",
        "ours",
        "a word counts several times",
        options=("finest_step",),
        is_repeating=True,
        bound_as_cutoff=True,
        issues=repeat_issues,
        check=check_rows,
        finish=finish_repeated,
    ),
    "negpip": Scheme(
        negpip,
        "As comfy; below 0 the image sees the word, and what it reads is taken away.",
        "ComfyUI-ppm: NegPip",
        "below 0 takes a word away",
        options=("strength",),
        finish=finish_signed,
        has_signs=has_weights_below_zero,
    ),
    "negpip_apart": Scheme(
        negpip_apart,
        "As a1111; each (text:-number) is encoded on its own, and what is read of it taken away.",
        "sd-webui-negpip",
        "below 0 as the extension NegPiP",
        cut=cut_terms,
        check=check_terms,
        finish=finish_with_terms,
        has_signs=has_terms,
    ),
}
"""Schemes by their permanent names, in the order of menus. A name never changes its meaning."""
