"""Checks of LoRA tags and of CLIP Difference: model, CLIP and rows are those of the stock LoRA loader.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from typing import Any

import torch
from inprocess import (
    WIDTHS,
    compares,
    difference,
    lora_folder,
    main,
    make_clip,
    make_lora,
    ours,
    refusal,
    stock,
    with_lora,
)
from inprocess_padding import differs, sampled
from toys import make_unet

LAYERS = r"layers\.\d+\.mlp\.fc1\.weight"
ATTENTION = r"attn\d\.to_(v|out\.0)\.weight"
CASES: dict[str, tuple[tuple[str, float, float], ...]] = {
    "<lora:both:0.8>": (("both", 0.8, 0.8),),
    "<lora:both:0.5:-0.7>": (("both", -0.7, 0.5),),
    "<lora:both:0.8><lora:model:0.6>": (("both", 0.8, 0.8), ("model", 0.6, 0.6)),
    "<lora:model:1><lora:gone:1><lora:both:te=0.4:unet=0.9>": (("model", 1.0, 1.0), ("both", 0.9, 0.4)),
}
"""Tags, and the stock loaders in a row that do the same: file, strength for the model, strength for CLIP."""


def lora_files(model: Any, clip: Any) -> AbstractContextManager[None]:
    """The files ``both`` and ``model`` in the host's loras folders."""
    of_model = make_lora(model.model, ATTENTION)
    return lora_folder({"model": of_model, "both": of_model | make_lora(clip.cond_stage_model, LAYERS)})


@compares("LoRA tags: CLIP and model, small, with stock loaders")
def check_lora_tags_equal_stock_loaders_on_model_and_clip() -> None:
    import nodes

    for family in ("SD1", "SDXL"):
        clip, model = make_clip(family), make_unet()
        positive, negative = (ours(make_clip("SD1"), text) for text in ("a cat", ""))
        plain, _ = sampled(model, positive, negative)
        with lora_files(model, clip):
            for tags, loaders in CASES.items():
                text = f"a {tags} (red:1.3) cat"
                loaded = nodes.NODE_CLASS_MAPPINGS["WeightedCLIPLoadPromptLoras"]().load(model, clip, text)
                our_model, our_clip, bare, _ = loaded["result"]
                assert bare == "a  (red:1.3) cat"
                stock_model, stock_clip = model, clip
                for name, *strengths in loaders:
                    loader = nodes.LoraLoader()
                    stock_model, stock_clip = loader.load_lora(
                        stock_model, stock_clip, f"{name}.safetensors", *strengths
                    )
                expected, (drawn, _) = stock(stock_clip, bare), sampled(stock_model, positive, negative)
                assert not torch.isclose(expected[0][0], stock(clip, bare)[0][0]).all()
                assert differs(drawn, plain)
                difference(stock(our_clip, bare), expected)
                measured, _ = sampled(our_model, positive, negative)
                difference(measured, drawn)


TEXT = "a photo of a red cat and a blue dog"
NUM_ROWS = 12
"""From BOS to EOS."""


def compared(clip: Any, clip_changed: Any, text: str = TEXT) -> Any:
    """Picture and report of the node."""
    import nodes

    node = nodes.NODE_CLASS_MAPPINGS["WeightedCLIPDifference"]()
    return node.compare(clip=clip, clip_changed=clip_changed, text=text, syntax="comfy")["result"]


def listed(report: str) -> dict[tuple[str, int], str]:
    """The relative changes of a report as they are written there, by encoder and row; -1 is the pooled vector."""
    found: dict[tuple[str, int], str] = {}
    tower = ""
    for line in report.splitlines():
        tower = line.partition(":")[0] if line.startswith("clip_") else tower
        if match := re.match(r" *(\S+) %  '.*' +chunk (\d+), position (\d+)", line):
            found[tower, 77 * (int(match[2]) - 1) + int(match[3])] = match[1]
        elif match := re.match(r" *(\S+) %  pooled vector", line):
            found[tower, -1] = match[1]
    return found


def changes(before: torch.Tensor, after: torch.Tensor) -> list[str]:
    """The relative change of each row in percent, to four digits."""
    one, other = before.double(), after.double()
    return [f"{100 * float((b - a).norm() / a.norm()):.4g}" for a, b in zip(one, other, strict=True)]


def check_differences_are_those_of_the_stock_nodes_rows() -> None:
    for family, towers in {"SD1": "l", "SD2": "h", "SDXL": "lg", "SDXL refiner": "g"}.items():
        clip = make_clip(family)
        changed = with_lora(clip, make_lora(clip.cond_stage_model, LAYERS), 0.8)
        for layer in (None, -2):
            for one in (clip, changed):
                one.clip_layer(layer)
            for text, ends in ((TEXT, [NUM_ROWS]), ("cat " * 90, [77, 17])):
                ((before, values),), ((after, values_after),) = stock(clip, text), stock(changed, text)
                assert before.shape[1] == 77 * len(ends)
                expected: dict[tuple[str, int], str] = {}
                first = 0
                for tower in towers:
                    columns = slice(first, first + WIDTHS[tower])
                    first = columns.stop
                    found = changes(before[0, :, columns], after[0, :, columns])
                    assert len(set(found)) > 5 and "0" not in found
                    for chunk, end in enumerate(ends):
                        for row in range(77 * chunk, 77 * chunk + end):
                            expected[f"clip_{tower}", row] = found[row]
                assert first == before.shape[2]
                last = changes(values["pooled_output"], values_after["pooled_output"])  # of SDXL it is CLIP-G's
                expected[f"clip_{towers[-1]}", -1] = last[0]
                shown = listed(compared(clip, changed, text)[1])
                assert {key: shown[key] for key in expected} == expected, (family, layer, text)
                assert len(shown) == (sum(ends) + 1) * len(towers), (family, len(shown), list(shown))


def check_a_clip_beside_itself_does_not_differ_and_stays_as_it_was() -> None:
    clip = make_clip("SDXL")
    changed = with_lora(clip, make_lora(clip.cond_stage_model, LAYERS), 0.8)
    reference = stock(clip, TEXT), stock(changed, TEXT)
    assert set(listed(compared(clip, clip.clone())[1]).values()) == {"0"}
    picture, report = compared(clip, changed)
    assert picture.shape[0] == 1 and picture.shape[2:] == (1100, 3) and float(picture.std()) > 0.01
    assert set(listed(report).values()) != {"0"}
    for one, expected in zip((clip, changed), reference, strict=True):
        assert torch.equal(stock(one, TEXT)[0][0], expected[0][0])


def check_clip_beside_t5_is_compared_and_t5_is_named() -> None:
    for family in ("SD3", "Flux"):
        clip = make_clip(family)
        changed = with_lora(clip, make_lora(clip.cond_stage_model, rf"clip_l.*{LAYERS}"), 0.8)
        report = compared(clip, changed)[1]
        assert report.endswith("not compared: t5xxl"), report
        found = listed(report)
        assert {row for tower, row in found if tower == "clip_l"} == {-1, *range(NUM_ROWS)}
        assert all((value == "0") == (tower == "clip_g") for (tower, _), value in found.items()), found


def check_other_families_are_refused_by_name() -> None:
    clip = make_clip("SD1")
    message = refusal(lambda: compared(clip, make_clip("SDXL")))
    assert "clip holds clip_l (SD1ClipModel), and clip_changed clip_l, clip_g (SDXLClipModel)" in message, message
    message = refusal(lambda: compared(clip, make_clip("SD3 with T5 alone")))
    assert "clip_changed (SD3ClipModel_) holds no CLIP text encoder" in message, message
    message = refusal(lambda: compared(make_clip("SDXL refiner"), make_clip("Stable Cascade")))
    assert "SDXLRefinerClipModel" in message and "StableCascadeClipModel" in message, message
    message = refusal(lambda: compared(clip, make_clip("SD1", long_l=248)))
    assert "clip_l of clip has 77 rows of 128 for a chunk, and that of clip_changed 248 rows of 128" in message, message


if __name__ == "__main__":
    main(globals())
