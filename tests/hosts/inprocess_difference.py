"""Checks of CLIP Difference: its numbers are those of the stock node's rows, of a CLIP with a LoRA and one without.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import re
from typing import Any

import torch
from inprocess import WIDTHS, main, make_clip, make_lora, refusal, stock, with_lora

LAYERS = r"layers\.\d+\.mlp\.fc1\.weight"
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
