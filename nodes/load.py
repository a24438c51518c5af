"""Base of the nodes that load a file, and the loader of our native encoder."""

from __future__ import annotations

from typing import Any

import torch

from ..encoder.cache import DEFAULT_MEBIBYTES, MEBIBYTE
from ..hosts.comfy.contract import host
from ..hosts.comfy.models import NativeClip, load_native
from . import common
from .common import Node, Out

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
DEVICES = ("auto", "cpu")
PACKING = ("auto", "off")


class Loader(Node):
    """Base of the nodes that load a model from a file in some of the host's folders."""

    folders: tuple[str, ...]
    suffix = ""
    """End of the names of the files listed."""
    file_tooltip: str
    dtype_tooltip: str
    device_tooltip: str
    FUNCTION = "load"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """ComfyUI's description of the inputs, with the current files, as ``folder/name``."""
        list_of = host("folder_paths").get_filename_list
        files = [f"{folder}/{name}" for folder in cls.folders for name in list_of(folder)]
        return {
            "required": {
                "file": common.make_input(
                    [file for file in files if file.lower().endswith(cls.suffix)], cls.file_tooltip
                ),
                "dtype": common.menu(DTYPES, cls.dtype_tooltip),
                "device": common.menu(DEVICES, cls.device_tooltip),
            }
        }

    @staticmethod
    def checked(file: str, dtype: str, device: str) -> dict[str, Any]:
        """Path, type and device from the inputs."""
        common.checked("device", device, DEVICES)
        kind = DTYPES[common.checked("dtype", dtype, DTYPES)]
        folder, _, name = file.partition("/")
        return {"path": host("folder_paths").get_full_path_or_raise(folder, name), "dtype": kind, "device": device}


class WeightedCLIPLoad(Loader):
    """Loads the CLIP text encoders of Stable Diffusion 1.x, 2.x, SDXL or its refiner as Weighted CLIP's own modules,
    from a text encoder file or out of a checkpoint. They take every mask; the host's LoRA and hooks do not apply to
    them.
    """

    title = "Load CLIP Encoder (native)"
    aliases = "load clip, text encoder, native, clip loader, clip skip"
    outputs = (Out(common.NATIVE_TYPE, "clip", "The encoder, for the clip input of our nodes."),)
    folders = ("text_encoders", "checkpoints")
    file_tooltip = "A .safetensors file from the text_encoders (clip) or checkpoints folder."
    dtype_tooltip = "Type of the weights and the arithmetic. fp32 equals the host's numbers."
    device_tooltip = "auto: where the host runs text encoders."

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """ComfyUI's description of the inputs, with the current files."""
        shared = super().INPUT_TYPES()["required"]
        return {
            "required": {
                "file": shared.pop("file"),
                "clip_skip": common.make_input(
                    "INT",
                    "1: last layer. 2: the one before it, as many anime models want. As in the WebUI. For SD 2.x and "
                    "SDXL, 1 means 2.",
                    {"default": 1, "min": 1, "max": 24},
                ),
                **shared,
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
                **self.checked(file, dtype, device),
                clip_skip=clip_skip,
                max_bytes=remember * MEBIBYTE,
                is_packed=common.checked("pack_weights", pack_weights, PACKING) == "auto",
            ),
        )
