"""Checks that nodes in the place of other packs' give what those give, with the packs' own code.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from inprocess import compares, difference, main, make_clip, pack_of, run_ours
from inprocess_traces import smz_node, tensors_of
from pack_code import package

TEXTS = (
    "a (red:1.3) cat on a (mat:0.4), oil painting",
    "((deep)) [thin] (low:0.2) (high:1.8), " + "word " * 80 + "(end:1.4)",
    "a BREAK b (c:1.2), (minus:-0.5) (zero:0), lighthousekeeping:1.2)",
    "a \\(cosplay\\) (b\\):1.2) cat++ (mat)1.4 tree-",
)
NORMALIZATIONS = ("none", "mean", "length", "length+mean")
INTERPRETATIONS = ("comfy", "A1111", "compel", "comfy++", "down_weight")
PARSERS = ("comfy", "comfy++", "A1111", "compel", "fixed attention")
SIZES = {"width": 64, "height": 64, "crop_w": 0, "crop_h": 0, "target_width": 64, "target_height": 64}


def rows_of(conditioning: Any) -> Any:
    """Rows and pooled vectors, but of Stable Diffusion 1, for which ADV_CLIP_emb gives no pooled vector."""
    rows = tensors_of(conditioning)
    return [[one, values if values["pooled_output"] is not None else {}] for one, values in rows]


@contextmanager
def numpy_1() -> Iterator[None]:
    """NumPy's ``unique`` as in NumPy 1, for which ADV_CLIP_emb was written: flat places, whatever the shape."""
    unique = np.unique

    def flat(*given: Any, **options: Any) -> Any:
        found = unique(*given, **options)
        return (found[0], found[1].reshape(-1), *found[2:]) if options.get("return_inverse") else found

    with patch.object(np, "unique", flat):
        yield


def adv_nodes() -> Any:
    """ADV_CLIP_emb's nodes."""
    package("adv_clip_emb", pack_of("ComfyUI_ADV_CLIP_emb"))
    return importlib.import_module("adv_clip_emb.nodes")


@compares("ADV_CLIP_emb Prompt, small CLIPs, every style and normalization, with ADV_CLIP_emb", limit=1e-6)
def check_adv_clip_emb_is_equal() -> None:
    theirs = adv_nodes().AdvancedCLIPTextEncode()
    for family in ("SD1", "SDXL", "SDXL refiner"):
        clip = make_clip(family)
        for menus in [
            {"token_normalization": n, "weight_interpretation": i} for n in NORMALIZATIONS for i in INTERPRETATIONS
        ]:
            for text in TEXTS:
                with numpy_1():
                    expected = rows_of(theirs.encode(clip, text, *menus.values())[0])
                found = rows_of(run_ours("WeightedCLIPAdvEncode", clip=clip, text=text, **menus)["result"][0])
                if not expected[0][1]:
                    found[0][1] = {}
                difference(found, expected)


@compares("ADV_CLIP_emb Prompt (SDXL), small CLIP, two texts and balances, with ADV_CLIP_emb", limit=1e-6)
def check_adv_clip_emb_sdxl_is_equal() -> None:
    theirs, clip = adv_nodes().AdvancedCLIPTextEncodeSDXL(), make_clip("SDXL")
    for interpretation in INTERPRETATIONS:
        for balance in (0.0, 0.2, 0.5, 0.75, 1.0):
            given = {"text_l": TEXTS[0], "text_g": TEXTS[3], "balance": balance}
            menus = {"token_normalization": "length", "weight_interpretation": interpretation}
            with numpy_1():
                expected = theirs.encode(clip=clip, **given, **menus)[0]
            found = run_ours("WeightedCLIPAdvEncodeSDXL", clip=clip, **given, **menus)["result"][0]
            difference(rows_of(found), rows_of(expected))


@compares("smZNodes Prompt, small CLIPs, every parser but full, with smZNodes", limit=1e-6)
def check_smz_is_equal() -> None:
    theirs = smz_node()()
    for family in ("SD1", "SDXL"):
        for parser in PARSERS:
            for has_mean in (True, False):
                for text in TEXTS:
                    flags = {
                        "mean_normalization": has_mean,
                        "use_old_emphasis_implementation": False,
                        "with_SDXL": False,
                    }
                    given = {"text": text, "parser": parser, **flags}
                    expected = theirs.encode(
                        make_clip(family), **given, multi_conditioning=True, ascore=6.0, **SIZES, text_g="", text_l=""
                    )[0]
                    found = run_ours("WeightedCLIPSmzEncode", clip=make_clip(family), **given)["result"][0]
                    difference(tensors_of(found), tensors_of(expected))


if __name__ == "__main__":
    main(globals())
