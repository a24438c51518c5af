"""Loader of our native encoder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..encoder.remember import DEFAULT_MEBIBYTES, MEBIBYTE
from ..hosts.comfy.contract import host
from ..hosts.comfy.native import NativeClip, load_native
from . import common

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
DEVICES = ("auto", "cpu")
PACKING = ("auto", "off")
FOLDERS = ("text_encoders", "checkpoints")
"""The host's folders with files that may hold a text encoder."""


def files_in(folders: Iterable[str]) -> list[str]:
    """The host's current files in some of its folders, as ``folder/name``."""
    folder_paths = host("folder_paths")

    return [f"{folder}/{name}" for folder in folders for name in folder_paths.get_filename_list(folder)]


def path_of(file: str) -> str:
    """Path of a file from `files_in`."""
    folder_paths = host("folder_paths")

    folder, _, name = file.partition("/")
    return folder_paths.get_full_path_or_raise(folder, name)


class WeightedCLIPLoad:
    """Load our own CLIP text encoder from a file."""

    DESCRIPTION = (
        "Loads the CLIP text encoders of Stable Diffusion 1.x, 2.x, SDXL or its refiner as Weighted CLIP's own "
        "modules, from a text encoder file or out of a checkpoint. They take every mask; the host's LoRA and hooks do "
        "not apply to them."
    )
    SEARCH_ALIASES = ["load clip", "text encoder", "native", "clip loader", "clip skip"]  # noqa: RUF012
    RETURN_TYPES = (common.NATIVE_TYPE,)
    RETURN_NAMES = ("clip",)
    OUTPUT_TOOLTIPS = ("The encoder, for the clip input of our nodes.",)
    FUNCTION = "load"
    CATEGORY = common.CATEGORY

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """ComfyUI's description of the inputs, with the current files."""
        return {
            "required": {
                "file": common.make_input(
                    files_in(FOLDERS), "A .safetensors file from the text_encoders (clip) or checkpoints folder."
                ),
                "clip_skip": common.make_input(
                    "INT",
                    "1: last layer. 2: the one before it, as many anime models want. As in the WebUI. For SD 2.x and "
                    "SDXL, 1 means 2.",
                    {"default": 1, "min": 1, "max": 24},
                ),
                "dtype": common.menu(DTYPES, "Type of the weights and the arithmetic. fp32 equals the host's numbers."),
                "device": common.menu(DEVICES, "auto: where the host runs text encoders."),
            },
            "optional": {
                **common.inputs("remember"),
                "pack_weights": common.menu(
                    PACKING,
                    "For fp32 on a CPU. auto: keep a second copy of the weights, in the order in which the processor "
                    "multiplies fastest, where that gains time and there is memory for it. off: no copy.",
                ),
            },
        }

    def load(
        self,
        file: str,
        clip_skip: int,
        dtype: str,
        device: str,
        remember: int = DEFAULT_MEBIBYTES,
        pack_weights: str = PACKING[0],
    ) -> tuple[NativeClip]:
        """Read the file."""
        return (
            load_native(
                path_of(file),
                clip_skip=clip_skip,
                dtype=DTYPES[common.checked("dtype", dtype, DTYPES)],
                device=common.checked("device", device, DEVICES),
                max_bytes=remember * MEBIBYTE,
                is_packed=common.checked("pack_weights", pack_weights, PACKING) == "auto",
            ),
        )
