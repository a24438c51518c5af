"""The table of weighting schemes that every menu and page uses."""

from __future__ import annotations

from functools import partial

from ..chunking.t5 import T5Rule
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
from .scheme import Scheme

SCHEMES: dict[str, Scheme] = {
    "comfy": Scheme(
        comfy,
        "Moves a word's rows away from, or towards, the empty prompt.",
        "ComfyUI",
        "strengthens and weakens words as ComfyUI",
        "Weights as in ComfyUI: (dog:1.3) makes the dog stronger, (dog:0.7) weaker. For prompts written there.",
        choose="the picture was made in ComfyUI; the default in its nodes",
        formula=r"$`E_j + (C_j - E_j)\,w_j`$",
        cost="n, and 1 more if any weight is not 1",
        by_host=True,
        bound_as_cutoff=True,
    ),
    "a1111": Scheme(
        a1111,
        "Scales a word's rows, then restores each chunk's mean.",
        "A1111, Forge: Original",
        "weights as the WebUI itself",
        "The WebUI itself does the same with Emphasis mode Original: nothing changes there.",
        choose="the prompt or picture comes from A1111 or Forge",
        formula=r"$`w_j C_j \cdot \overline{C} / \overline{wC}`$, means over its chunk",
        cost="n",
        in_columns=a1111_global_norm,  # the mean over a column is the mean over all given chunks
        t5=T5Rule("Forge", ("Flux 1", "Stable Diffusion 3"), "a1111", 256),
    ),
    "compel": Scheme(
        compel,
        "As comfy; below 1 also blends in encodings that cannot see the word.",
        "compel",
        "weights as InvokeAI and compel",
        "Weights as in InvokeAI and compel. Below 1, what other words took from the word fades with it.",
        choose="it comes from InvokeAI or from diffusers with compel; take syntax `compel` with it",
        formula="`masked_blend` with law `compel` and method `attention`",
        cost="n (k + 1) + 1, for k fragments below 1",
        t5=T5Rule("compel", ("Flux 1",), "compel", 512, is_cut=True),
    ),
    "masked_blend": Scheme(
        masked_blend,
        "Above 1 as comfy; below, blends in encodings without the word.",
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
        "Raises a word by fading all others, never beyond the plain prompt.",
        "ADV_CLIP_emb",
        "raises a word by fading all others",
        "(dog:1.5) fades everything but the dog, so that nothing gets stronger than in the prompt without weights.",
        choose="a word should stand out with no row beyond what the encoder gives, and all others may fade",
        formula="`adv_compel` with the weights w / t, where t is the largest weight, at least 1",
        cost="n (k + 1), for k distinct weights below t",
    ),
    "adv_compel": Scheme(
        adv_compel,
        "As comfy; below 1 blends in encodings with + for the word.",
        "ADV_CLIP_emb: compel",
        "fades words towards a plus sign",
        "(dog:0.3) fades the dog as if a + stood in its place; above 1 as ComfyUI. The style compel of ADV_CLIP_emb.",
        choose="the workflow used that style of ADV_CLIP_emb or prompt-control",
        formula="`masked_blend` with law `nested` and method `token`; negative weights count as they are",
        cost="n (k + 1), for k distinct weights below 1, and 1 more if one is above 1",
    ),
    "comfy++": Scheme(
        comfy_plus_plus,
        "Adds what a word changes; below 1 as adv_compel.",
        "ADV_CLIP_emb",
        "adds what a word changes once more",
        "(dog:1.5) adds half again of what the dog changes; below 1 it fades as towards a +. A style of ADV_CLIP_emb.",
        choose="the workflow used that style of ADV_CLIP_emb or prompt-control",
        formula=(
            "R as `adv_compel` without the weights above 1; a word above 1 adds $`(w_j - 1)(C_j - D_j)`$ to its "
            "own rows, D being C with the filler for that word"
        ),
        cost="n (k + u + 1), for u words above 1",
    ),
    "a1111_no_norm": Scheme(
        a1111_no_norm,
        "Scales a word's rows and nothing else.",
        "A1111, Forge: No norm",
        "strengthens and weakens words, evens out nothing",
        "The WebUI itself does the same with Emphasis mode No norm: no other word changes.",
        choose="`a1111` reports a mean near zero, or the other rows should stay as they are",
        formula="$`w_j C_j`$",
        cost="n",
        bound_as_cutoff=True,
        in_columns=a1111_no_norm,
    ),
    "a1111_global_norm": Scheme(
        a1111_global_norm,
        "As a1111, with one mean over all chunks.",
        "ADV_CLIP_emb: A1111",
        "as a1111, a long prompt evened out as a whole",
        "As the WebUI, but a prompt of more than 75 tokens is evened out as a whole. The style A1111 of ADV_CLIP_emb.",
        choose="the workflow used that style of ADV_CLIP_emb or prompt-control",
        formula="as `a1111`, means over all chunks",
        cost="n",
    ),
    "perp": Scheme(
        perp,
        "Moves a row by what it shares with the empty prompt.",
        "prompt-control",
        "changes only what a word shares with an empty prompt",
        "(dog:1.3), (dog:0.7) change what the dog shares with an empty prompt. The style perp of prompt-control.",
        choose="the workflow used that style of ADV_CLIP_emb or prompt-control",
        formula=(
            r"$`C_j + w_j P_j`$ if $`\lvert w_j \rvert > 1`$; $`E_j`$ if $`w_j = 0`$; else $`C_j - (1 - w_j) "
            r"P_j`$; with $`P_j = (E_j \cdot C_j) / \lvert C_j \rvert^2 \; C_j`$"
        ),
        cost="n, and 1 more if any weight is not 1",
    ),
    "lerp_last": Scheme(
        lerp_last,
        "Moves a word's rows away from its chunk's end token; no padding.",
        "diffusers lpw, SDXL",
        "weights as diffusers' long prompts for SDXL",
        "Weights as in diffusers' pipeline lpw_stable_diffusion_xl. For pictures that were made with it.",
        choose="the picture was made with diffusers' pipeline lpw_stable_diffusion_xl",
        formula=(
            r"$`L + (C_j - L)\,w_j`$, L being the row of the EOS that closes the chunk; no padding, and w in "
            r'float16: see "The lpw pipelines"'
        ),
        cost="n",
        is_padded=False,
        issues=partial(lpw_issues, is_xl=True),
        left_out_issues=left_out_issues,
    ),
    "lpw": Scheme(
        lpw,
        "As a1111_global_norm, without the rows between chunks.",
        "diffusers lpw, SD 1.x",
        "weights as diffusers' long prompts for SD 1",
        "Weights as in diffusers' pipeline lpw_stable_diffusion without the tokens between chunks.",
        choose=(
            "the rows were made by lpw_stable_diffusion's function with `no_boseos_middle`; for that pipeline "
            "itself, take `a1111_global_norm`"
        ),
        formula="BOS and EOS rows between chunks are left out; as `a1111_global_norm`: 75 n + 2 rows; see there",
        cost="n",
        issues=lpw_issues,
        left_out_issues=left_out_issues,
        t5=T5Rule("sd_embed", ("Flux 1",), "a1111_no_norm", ends_fragments=True),
    ),
    "unweighted": Scheme(
        unweighted,
        "Reads the weights and applies none.",
        "A1111, Forge: Ignore",
        "ignores all weights",
        "Weights are read and do nothing, as with the WebUI's Emphasis mode Ignore.",
        choose="to see what the weights do at all",
        formula="$`C_j`$",
        cost="n",
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
        "The picture reads (dog:2) twice as strongly and (dog:0) not at all; the word itself stays as it is.",
        choose=(
            "a word should get more or less attention from the image, and its row should stay as it is; Stable "
            "Diffusion 1, 2, XL. In ComfyUI the node [Weigh "
            "Attention](reference/attention.md#weights-in-the-attention) does it without rounding"
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
        "As comfy; below 0 the image sees the word, and what it reads is taken away.",
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
        "As a1111; each (text:-number) is encoded on its own, and what is read of it taken away.",
        "sd-webui-negpip",
        "below 0 takes a word away as the extension NegPiP",
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
        has_signs=has_terms,
    ),
}
"""Schemes by their permanent names, in the order of menus. A name never changes its meaning."""
