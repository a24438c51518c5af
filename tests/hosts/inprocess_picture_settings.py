"""Checks of pictures of our WebUI script: what its code writes into them gives its own encoder's rows in ComfyUI.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from inprocess import compares, difference, main, make_clip, pack_module, refusal, run_ours

NODE = "WeightedCLIPA1111Encode"
PROMPT = "a (red cat:1.3) and a (blue dog:0.3) on a [mat], “old” house"
EDITED = "a [red:very blue:0.5] (cat:1.4) on a [mat|(sofa:0.7)]"
NUMBERS = "Steps: 8, Sampler: Euler, CFG scale: 7, Seed: 1, Size: 64x64, RNG: CPU"
SCRIPTS: tuple[dict[str, Any], ...] = (
    {"scheme": "masked_blend", "above_one": "as the WebUI"},
    {"scheme": "masked_blend", "law": "compel", "mask_method": "remove", "padding": "mask"},
    {"scheme": "comfy", "normalization": "length+mean", "padding": "drop"},
    {"scheme": "comfy", "syntax": "comfy"},
    {"scheme": "compel", "syntax": "compel"},
    {"scheme": "repeat", "finest_step": "10"},
    {"scheme": "a1111", "bind": "red cat\nblue dog", "bind_strength": 0.5, "bind_rest": "alone"},
    {"scheme": "perp"},
)


def read(prompt: str, settings: Any, mode: str) -> Any:
    """Parameters in the data of a picture with these settings of the script."""
    entries = {**settings.infotext(), **({} if mode == "Original" else {"Emphasis": mode})}
    more = "".join(f", {name}: {json.dumps(str(value), ensure_ascii=False)}" for name, value in entries.items())
    infotext = pack_module("weighting.infotext").read_infotext(
        f"{prompt}\nNegative prompt: (ugly:1.4)\n{NUMBERS}{more}"
    )
    found = pack_module("hosts.comfy.a1111.parameters").read_parameters(infotext, "CPU")
    assert not [row for row in found.rows if row.advice], found.rows
    return found


def rows_of(clip: Any, texts: list[str], options: Any) -> list[Any]:
    """Rows of texts that the WebUI asks for together, by our encoders alone."""
    towers = pack_module("hosts.comfy.clip.clip").readers_of(clip)
    encode = {
        name: pack_module("hosts.comfy.clip.towers").encode_fn(getattr(clip.cond_stage_model, name)) for name in towers
    }
    encoders = pack_module("weighting.encoders").Encoders(towers, encode, max_chunks=4)
    return [one.hidden for one in encoders.prepare_together(texts, options).run()]


@compares()
def check_rows_are_the_scripts() -> None:
    for family in ("SD1", "SDXL"):
        clip = make_clip(family)
        for mode in ("Original", "No norm", "None"):
            for script in SCRIPTS:
                settings = pack_module("hosts.webui.settings").Settings(True, **script)
                found = read(PROMPT, settings, mode)
                result = run_ours(NODE, clip=clip, text=PROMPT, settings=found.settings)["result"][0]
                options = pack_module("weighting.script_settings").as_emphasized(settings.options(), mode)
                [expected] = rows_of(clip, [PROMPT], replace(options, cleaning="as Forge"))
                assert difference(result[0][0], expected) == 0, (family, mode, script)


@compares()
def check_texts_of_an_edited_prompt_are_evened_out_together() -> None:
    """Those of a picture without the script too; the node's own way, by its menus, evens out each alone."""
    clip = make_clip("SD1")
    timed = pack_module("weighting.timed.schedule").read_timed(EDITED, 8).branches[0].texts
    texts = [one.text for one in timed]
    for script in ({"scheme": "masked_blend", "above_one": "as the WebUI"}, {"scheme": "a1111"}):
        settings = pack_module("hosts.webui.settings").Settings(True, **script)
        found = read(EDITED, settings, "Original")
        rows = dict(zip(texts, rows_of(clip, texts, replace(settings.options(), cleaning="as Forge")), strict=True))
        result = run_ours(NODE, clip=clip, text=EDITED, steps=8, settings=found.settings)
        read_texts = [view["text"] for view in result["ui"]["weighted_clip"]]
        assert len(result["result"][0]) > 3, read_texts
        for hidden, _ in result["result"][0]:
            assert min(float((hidden - own).abs().max()) for own in rows.values()) == 0, script
    alone = run_ours(NODE, clip=clip, text=EDITED, steps=8)["result"][0]
    assert all(float((alone[0][0] - own).abs().max()) > 1e-4 for own in rows.values())


def check_sdxl_without_a_negative_prompt_has_zeros() -> None:
    """As Forge gives them; a negative prompt of spaces is one."""
    found = read(PROMPT, pack_module("hosts.webui.settings").Settings(True), "Original")
    for family in ("SD1", "SDXL"):
        clip = make_clip(family)
        for text in ("", " "):
            [[rows, values]] = run_ours(NODE, clip=clip, text=text, settings=found.negative_settings)["result"][0]
            is_zero = family == "SDXL" and not text
            assert bool((rows == 0).all()) == is_zero, (family, text)
            assert bool((values["pooled_output"] == 0).all()) == is_zero, (family, text)
        [[rows, _]] = run_ours(NODE, clip=clip, text="", settings=found.settings)["result"][0]
        assert rows.abs().max() > 0, family


@compares()
def check_without_clip_skip_the_last_layer_is_the_familys_own() -> None:
    import nodes

    last_layer = pack_module("hosts.comfy.a1111.parameters").last_layer
    towers = {"SD1": {"clip_l"}, "SD2": {"clip_h"}, "SDXL": {"clip_l", "clip_g"}}
    for family, names in towers.items():
        clip = make_clip(family)
        layer = last_layer(1, names)
        (other,) = nodes.CLIPSetLastLayer().set_last_layer(clip, layer)
        own, found = (run_ours(NODE, clip=one, text=PROMPT)["result"][0] for one in (clip, other))
        assert difference(found, own) == 0, family


def check_other_objects_are_refused() -> None:
    clip = make_clip("SD1")
    for settings in ("masked_blend", {}, object()):
        told = refusal(lambda settings=settings: run_ours(NODE, clip=clip, text="a cat", settings=settings))
        assert "must come from Read Generation Data" in told, told


if __name__ == "__main__":
    main(globals())
