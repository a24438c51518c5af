"""Checks of our native encoder against ComfyUI's CLIP, from checkpoints that ComfyUI's own converters wrote.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from inprocess import (
    CLOSE,
    OURS,
    TEXTS,
    WIDTHS,
    compares,
    difference,
    issues_in,
    main,
    make_clip,
    refusal,
    run_ours,
    stock,
)
from safetensors.torch import save_file

FAMILIES = {"SD1": "SD15", "SD2": "SD20", "SDXL": "SDXL", "SDXL refiner": "SDXLRefiner"}
"""Families to ComfyUI's names for the models that are saved with such text encoders."""
SDXL_OURS = "WeightedCLIPSDXLEncode"


@contextmanager
def checkpoint(family: str, clip: Any) -> Iterator[str]:
    """A checkpoint with a CLIP's weights in the layout of its family, as our loader lists it."""
    import folder_paths
    from comfy import supported_models

    saved_as = getattr(supported_models, FAMILIES[family])
    state = dict(clip.cond_stage_model.state_dict())
    state = saved_as.process_clip_state_dict_for_saving(None, state)  # it uses nothing of its class
    with tempfile.TemporaryDirectory() as folder:
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, Path(folder, "small.safetensors"))
        folder_paths.add_model_folder_path("checkpoints", folder, is_default=True)
        try:
            yield "checkpoints/small.safetensors"
        finally:
            folder_paths.folder_names_and_paths["checkpoints"][0].remove(folder)


def load(file: str, clip_skip: int = 1) -> Any:
    """The native encoder in a file."""
    import nodes

    return nodes.NODE_CLASS_MAPPINGS["WeightedCLIPLoad"]().load(file, clip_skip, "fp32", "auto")[0]


def conditioning(clip: Any, node: str = OURS, **inputs: Any) -> Any:
    """Result of one of our nodes on either CLIP."""
    return run_ours(node, clip=clip, **inputs)["result"][0]


def compare_with_stock(family: str) -> None:
    """The native encoder of a family against stock, at the clip skips that it allows."""
    clip = make_clip(family)
    with checkpoint(family, clip) as file:
        for clip_skip in (1, 2, 3):
            native = load(file, clip_skip)
            # families that were trained on the penultimate layer count from there, as in the WebUI
            clip.clip_layer(-clip_skip if family == "SD1" else -max(clip_skip, 2))
            for text in TEXTS:
                expected = stock(clip, text)
                assert expected[0][0].abs().mean() > 0.1
                difference(conditioning(native, text=text), expected)


@compares("Native encoder, SD1, small, clip skip 1 to 3, with stock", limit=CLOSE)
def check_the_native_encoder_of_sd1_equals_stock() -> None:
    compare_with_stock("SD1")


@compares("Native encoder, SD2, small, clip skip 1 to 3, with stock", limit=CLOSE)
def check_the_native_encoder_of_sd2_equals_stock() -> None:
    compare_with_stock("SD2")


@compares("Native encoder, SDXL, small, clip skip 1 to 3, with stock", limit=CLOSE)
def check_the_native_encoder_of_sdxl_equals_stock() -> None:
    compare_with_stock("SDXL")


@compares("Native encoder, SDXL's refiner, small, with stock", limit=CLOSE)
def check_the_native_encoder_of_the_refiner_equals_stock() -> None:
    compare_with_stock("SDXL refiner")


@compares("Native encoder in the SDXL node, with the host's", limit=CLOSE)
def check_the_native_encoder_in_the_sdxl_node_equals_the_hosts() -> None:
    clip = make_clip("SDXL")
    with checkpoint("SDXL", clip) as file:
        native = load(file)
    assert tuple(native.encoders) == ("clip_l", "clip_g")
    for text_g in TEXTS:
        for text_l in TEXTS:
            for choices in ({}, {"scheme": "masked_blend", "padding": "mask", "pooled": "weighted"}):
                inputs = {"text_g": text_g, "text_l": text_l, "width": 640, **choices}
                expected, measured = (conditioning(either, SDXL_OURS, **inputs) for either in (clip, native))
                assert measured[0][1]["width"] == 640
                difference(measured, expected)


@compares("Native encoder, refiner, with the host's", limit=CLOSE)
def check_the_native_encoder_in_the_refiners_node_equals_the_hosts() -> None:
    clip = make_clip("SDXL refiner")
    with checkpoint("SDXL refiner", clip) as file:
        native = load(file)
    inputs = {"text_g": TEXTS[1], "text_l": "", "aesthetic_score": 2.5}
    expected, measured = (conditioning(either, SDXL_OURS, **inputs) for either in (clip, native))
    difference(measured, expected)
    assert measured[0][1]["aesthetic_score"] == 2.5


@compares("Native encoder, SDXL, small, embedding, with stock", limit=CLOSE)
def check_the_native_encoder_takes_the_hosts_embeddings() -> None:
    import folder_paths

    with tempfile.TemporaryDirectory() as folder:
        generator = torch.Generator().manual_seed(3)
        file = {f"clip_{tower}": torch.randn(2, WIDTHS[tower], generator=generator) for tower in "lg"}
        save_file(file, Path(folder, "both.safetensors"))
        folder_paths.add_model_folder_path("embeddings", folder, is_default=True)
        clip = make_clip("SDXL", embeddings=Path(folder))
        text = "a (embedding:both:1.2) cat"
        with checkpoint("SDXL", clip) as path:
            result = run_ours(OURS, clip=load(path), text=text)
        assert not issues_in(result)
        difference(result["result"][0], stock(clip, text))
        folder_paths.folder_names_and_paths["embeddings"][0].remove(folder)


def check_the_sdxl_node_refuses_a_native_encoder_without_clip_g() -> None:
    with checkpoint("SD1", make_clip("SD1")) as file:
        native = load(file)
    message = refusal(lambda: conditioning(native, SDXL_OURS, text_g="a", text_l="a"))
    assert "holds clip_l, no clip_g" in message, message


if __name__ == "__main__":
    main(globals())
