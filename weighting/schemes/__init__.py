"""The table of weighting schemes that every menu and page uses."""

from __future__ import annotations

from functools import partial

from ..chunking.t5 import T5Rule
from . import rows
from .blend import adv_compel, comfy_plus_plus, compel, down_weight, masked_blend
from .negpip import (
    check_terms,
    cut_terms,
    finish_signed,
    finish_with_terms,
    has_weights_below_zero,
    negpip,
    negpip_apart,
)
from .repeat import check_rows, finish_repeated, repeat, repeat_issues
from .scheme import Scheme

SCHEMES: dict[str, Scheme] = {
    "comfy": Scheme(
        rows.comfy,
        "ComfyUI",
        "strengthens and weakens words as ComfyUI does",
        "Weights as in ComfyUI: (dog:1.3) makes the dog stronger, (dog:0.7) weaker. For prompts written there.",
        choose="the picture was made in ComfyUI; the default in its nodes",
        formula=r"$`E_j + (C_j - E_j)\,w_j`$",
        cost="n, and 1 more if any weight is not 1",
        by_host=True,
        bound_as_cutoff=True,
    ),
    "a1111": Scheme(
        rows.a1111,
        "A1111, Forge: Original",
        "same weights as the WebUI",
        "Same as the WebUI with Emphasis mode Original: nothing changes there.",
        choose="the prompt or picture comes from A1111 or Forge",
        formula=r"$`w_j C_j \cdot \overline{C} / \overline{wC}`$, means over its chunk",
        cost="n",
        in_columns=rows.a1111_global_norm,  # the mean over a column is the mean over all given chunks
        t5=T5Rule("Forge", ("Flux 1", "Stable Diffusion 3"), "a1111", 256),
    ),
    "compel": Scheme(
        compel,
        "compel",
        "same weights as InvokeAI and compel",
        "Same weights as InvokeAI and compel. Below 1, what other words took from the word fades with it.",
        choose="it comes from InvokeAI or from diffusers with compel; take syntax `compel` with it",
        formula="`masked_blend` with law `compel` and method `attention`",
        cost="n (k + 1) + 1, for k fragments below 1",
        t5=T5Rule("compel", ("Flux 1",), "compel", 512, is_cut=True),
    ),
    "masked_blend": Scheme(
        masked_blend,
        "ours",
        "fades or removes words",
        "Write (dog:0.3) to fade the dog, (dog:0) to remove it. What other words took from it goes with it.",
        choose="a word should fade or go, and so should what other words took from it",
        formula="see the next section",
        cost="see the next section",
        options=("law", "mask_method", "above_one"),
    ),
    "down_weight": Scheme(
        down_weight,
        "ADV_CLIP_emb",
        "strengthens a word by fading all others",
        "(dog:1.5) fades everything but the dog, so that nothing gets stronger than in the prompt without weights.",
        choose="a word should stand out with no row beyond what the encoder gives, and all others may fade",
        formula="`adv_compel` with the weights w / t, where t is the largest weight, at least 1",
        cost="n (k + 1), for k distinct weights below t",
    ),
    "adv_compel": Scheme(
        adv_compel,
        "ADV_CLIP_emb: compel",
        "fades words towards a plus sign",
        "(dog:0.3) fades the dog as if a + stood in its place; above 1 as ComfyUI. The style compel of ADV_CLIP_emb.",
        choose="the workflow used that style of ADV_CLIP_emb or prompt-control",
        formula="`masked_blend` with law `nested` and method `token`; negative weights count as they are",
        cost="n (k + 1), for k distinct weights below 1, and 1 more if one is above 1",
    ),
    "comfy++": Scheme(
        comfy_plus_plus,
        "ADV_CLIP_emb",
        "strengthens what a word changes",
        "(dog:1.5) strengthens what the word changes by half; below 1 it fades towards a +. A style of ADV_CLIP_emb.",
        choose="the workflow used that style of ADV_CLIP_emb or prompt-control",
        formula=(
            "R as `adv_compel` without the weights above 1; a word above 1 adds $`(w_j - 1)(C_j - D_j)`$ to its "
            "own rows, D being C with the filler for that word"
        ),
        cost="n (k + u + 1), for u words above 1",
    ),
    "a1111_no_norm": Scheme(
        rows.a1111_no_norm,
        "A1111, Forge: No norm",
        "scales words without rescaling the rest",
        "Same as the WebUI with Emphasis mode No norm: no other word changes.",
        choose="`a1111` reports a mean near zero, or the other rows should stay as they are",
        formula="$`w_j C_j`$",
        cost="n",
        bound_as_cutoff=True,
        in_columns=rows.a1111_no_norm,
    ),
    "a1111_global_norm": Scheme(
        rows.a1111_global_norm,
        "ADV_CLIP_emb: A1111",
        "as a1111, but rescales a long prompt as a whole",
        "As the WebUI, but a prompt of more than 75 tokens is rescaled as a whole. The style A1111 of ADV_CLIP_emb.",
        choose="the workflow used that style of ADV_CLIP_emb or prompt-control",
        formula="as `a1111`, means over all chunks",
        cost="n",
    ),
    "perp": Scheme(
        rows.perp,
        "prompt-control",
        "changes only what a word shares with an empty prompt",
        "(dog:1.3) and (dog:0.7) change what the dog shares with an empty prompt. The style perp of prompt-control.",
        choose="the workflow used that style of ADV_CLIP_emb or prompt-control",
        formula=(
            r"$`C_j + w_j P_j`$ if $`\lvert w_j \rvert > 1`$; $`E_j`$ if $`w_j = 0`$; else $`C_j - (1 - w_j) "
            r"P_j`$; with $`P_j = (E_j \cdot C_j) / \lvert C_j \rvert^2 \; C_j`$"
        ),
        cost="n, and 1 more if any weight is not 1",
    ),
    "lerp_last": Scheme(
        rows.lerp_last,
        "diffusers lpw, SDXL",
        "same weights as diffusers' long prompts for SDXL",
        "Same weights as diffusers' pipeline lpw_stable_diffusion_xl, for pictures that were made with it.",
        choose="the picture was made with diffusers' pipeline lpw_stable_diffusion_xl",
        formula=(
            r"$`L + (C_j - L)\,w_j`$, L being the row of the EOS that closes the chunk; no padding, and w in "
            r'float16: see "The lpw pipelines"'
        ),
        cost="n",
        is_padded=False,
        issues=partial(rows.lpw_issues, is_xl=True),
        left_out_issues=rows.left_out_issues,
    ),
    "lpw": Scheme(
        rows.lpw,
        "diffusers lpw, SD 1.x",
        "same weights as diffusers' long prompts for SD 1",
        "Same weights as diffusers' pipeline lpw_stable_diffusion, without the tokens between chunks.",
        choose=(
            "the rows were made by lpw_stable_diffusion's function with `no_boseos_middle`; for that pipeline "
            "itself, take `a1111_global_norm`"
        ),
        formula="BOS and EOS rows between chunks are left out; as `a1111_global_norm`: 75 n + 2 rows; see there",
        cost="n",
        issues=rows.lpw_issues,
        left_out_issues=rows.left_out_issues,
        t5=T5Rule("sd_embed", ("Flux 1",), "a1111_no_norm", ends_fragments=True),
    ),
    "unweighted": Scheme(
        rows.unweighted,
        "A1111, Forge: Ignore",
        "ignores all weights",
        "Weights are read and do nothing, as with the WebUI's Emphasis mode Ignore.",
        choose="to see what the weights do at all",
        formula="$`C_j`$",
        cost="n",
        is_weighing=False,
        by_host=True,
        bound_as_cutoff=True,
        in_columns=rows.unweighted,
    ),
    "repeat": Scheme(
        repeat,
        "ours",
        "a word counts several times",
        "The picture reads (dog:2) twice as strongly and (dog:0) not at all; the word itself stays as it is.",
        choose=(
            "a word should get more or less attention from the image, and its row should stay as it is; Stable "
            "Diffusion 1, 2, XL. In ComfyUI the node [Attention "
            "Weights](reference/attention.md#weights-in-the-attention) does it without rounding"
        ),
        formula="$`C_j`$, several times or not at all: see [repeat](#repeat)",
        cost="n",
        options=("finest_step",),
        is_compared=False,
        is_repeating=True,
        bound_as_cutoff=True,
        issues=repeat_issues,
        check=check_rows,
        finish=finish_repeated,
    ),
    "negpip": Scheme(
        negpip,
        "ComfyUI-ppm: NegPip",
        "below 0 takes a word away",
        "(dog:-1) takes the dog out of the picture; above 0 as ComfyUI.",
        choose=(
            "a word should be taken away from the picture, in the prompt itself; or the workflow used CLIP NegPip"
            " of ComfyUI-ppm"
        ),
        formula=(
            r"$`E_j + (C_j - E_j)\,\lvert w_j \rvert`$; below 0 its value is taken away in the model's attention: "
            r"see [NegPip](#negpip)"
        ),
        cost="as `comfy`",
        options=("strength",),
        finish=finish_signed,
        has_signs=has_weights_below_zero,
    ),
    "negpip_apart": Scheme(
        negpip_apart,
        "sd-webui-negpip",
        "below 0 takes a word away, as the extension NegPiP",
        "(dog:-1) takes the dog out of the picture as the extension NegPiP does; above 0 as the WebUI.",
        choose="the picture was made in the WebUI with the extension sd-webui-negpip",
        formula=(
            "as `a1111`, without the terms `(text:-number)`; their rows, encoded apart, are appended and their "
            "values taken away: see [NegPip](#negpip)"
        ),
        cost="n, and those of each term",
        is_compared=False,
        cut=cut_terms,
        check=check_terms,
        finish=finish_with_terms,
        has_signs=lambda parsed: bool(parsed.terms),
    ),
}
"""Schemes by their permanent names, in the order of menus. A name never changes its meaning."""
