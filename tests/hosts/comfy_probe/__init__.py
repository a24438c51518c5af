"""A node pack for the tests of Weighted CLIP: it shows what links of a running ComfyUI hold, and lets a CLIP fail."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

ASLEEP = "WeightedCLIPTestFaultyClip sleeps"
"""Line in the server's log at that time."""


class TestNode:
    """A node whose inputs are named where its class is made."""

    RETURN_TYPES: tuple[str, ...] = ()
    FUNCTION = "run"
    CATEGORY = "Weighted CLIP tests"
    inputs: Mapping[str, Any]

    def __init_subclass__(cls, **inputs: Any) -> None:
        cls.inputs = inputs

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": cls.inputs}


class WeightedCLIPTestSaveConditioning(
    TestNode, conditioning=("CONDITIONING",), file=("STRING", {"default": "conditioning"})
):
    """Writes every tensor of a CONDITIONING to a file; all else about it goes to the file's metadata."""

    OUTPUT_NODE = True

    def run(self, conditioning: list[list[Any]], file: str) -> dict[str, Any]:
        import folder_paths  # pyright: ignore[reportMissingImports]
        from safetensors.torch import save_file

        tensors: dict[str, torch.Tensor] = {}
        others: list[dict[str, Any]] = []
        for index, (hidden, values) in enumerate(conditioning):
            tensors[f"{index}.hidden"] = hidden.clone().contiguous()  # entries may share theirs
            others.append({})
            for key, value in values.items():
                if isinstance(value, torch.Tensor):
                    tensors[f"{index}.{key}"] = value.clone().contiguous()
                else:
                    others[index][key] = value if isinstance(value, (int, float, str)) else type(value).__name__
        path = Path(folder_paths.get_output_directory(), f"{file}.safetensors")
        save_file(tensors, path, metadata={"entries": json.dumps(others)})
        return {"ui": {"conditioning": [str(path)]}}


class WeightedCLIPTestLoadConditioning(TestNode, conditioning=("CONDITIONING",), file=("STRING", {"default": ""})):
    """Hidden states of a file in place of a CONDITIONING's own, entry by entry; their times and strengths stay."""

    RETURN_TYPES = ("CONDITIONING",)

    def run(self, conditioning: list[list[Any]], file: str) -> tuple[list[list[Any]]]:
        from safetensors.torch import load_file

        found = load_file(file)
        if len(found) != len(conditioning):
            raise ValueError(f"{len(found)} hidden states for {len(conditioning)} entries")
        return ([[found[str(index)], values] for index, (_, values) in enumerate(conditioning)],)


class WeightedCLIPTestShowText(TestNode, text=("STRING", {"forceInput": True})):
    """Sends a STRING to the history."""

    OUTPUT_NODE = True

    def run(self, text: str) -> dict[str, Any]:
        return {"ui": {"shown": [text]}}


class WeightedCLIPTestLines(TestNode, file=("STRING", {"default": ""})):
    """The lines of a file as a list of texts, for each of which ComfyUI runs what follows."""

    RETURN_TYPES = ("STRING",)
    OUTPUT_IS_LIST = (True,)

    @classmethod
    def IS_CHANGED(cls, file: str) -> str:
        return Path(file).read_text()

    def run(self, file: str) -> tuple[list[str]]:
        return (Path(file).read_text().splitlines(),)


class WeightedCLIPTestSameClip(TestNode, clip=("CLIP",), number=("INT", {"default": 0})):
    """Hands on the very same CLIP; another number makes ComfyUI run again what comes after it."""

    RETURN_TYPES = ("CLIP",)

    def run(self, clip: Any, number: int) -> tuple[Any]:
        return (clip,)


class WeightedCLIPTestTinySDXL(TestNode):
    """A model and CLIP of SDXL's classes, with few, narrow layers and random weights."""

    RETURN_TYPES = ("MODEL", "CLIP")

    def run(self) -> tuple[Any, Any]:
        import comfy.sd  # pyright: ignore[reportMissingImports]
        from comfy import (  # pyright: ignore[reportMissingImports]
            model_patcher,
            sdxl_clip,
            supported_models,
        )

        sizes = {
            f"clip_{tower}_model_config": {
                "num_hidden_layers": 3,
                "hidden_size": width,
                "num_attention_heads": width // 64,
                "intermediate_size": 2 * width,
            }
            for tower, width in (("l", 128), ("g", 192))
        }
        target = SimpleNamespace(params={}, clip=sdxl_clip.SDXLClipModel, tokenizer=sdxl_clip.SDXLTokenizer)
        clip = comfy.sd.CLIP(target=target, model_options={**sizes, "dtype": torch.float32})
        config = supported_models.SDXL(
            {
                **{"image_size": 32, "in_channels": 4, "out_channels": 4, "model_channels": 64},
                **{"num_res_blocks": [1, 1], "channel_mult": [1, 2], "context_dim": 128 + 192},
                **{"transformer_depth": [1, 1], "transformer_depth_middle": 1, "transformer_depth_output": [1] * 4},
                **{"use_spatial_transformer": True, "use_linear_in_transformer": True, "legacy": False},
                # the pooled vector of the large tower and six sizes
                **{"num_classes": "sequential", "adm_in_channels": 192 + 6 * 256, "dtype": torch.float32},
            }
        )
        config.set_inference_dtype(torch.float32, None)
        model = config.get_model({}, device=torch.device("cpu"))
        for module in (clip.cond_stage_model, model.diffusion_model):
            _draw(module)
        cpu = torch.device("cpu")
        return model_patcher.ModelPatcher(model, load_device=cpu, offload_device=cpu), clip


def _draw(module: torch.nn.Module) -> None:
    """Give a module random weights from a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in sorted(module.named_parameters()):
        values = torch.randn(parameter.shape, generator=generator)
        scale = 0.2 if parameter.dim() < 2 or "embedding" in name else parameter.shape[1:].numel() ** -0.5
        gain = 1 if parameter.dim() == 1 and name.endswith(".weight") else 0
        parameter.data.copy_(gain + scale * values)


class WeightedCLIPTestFaultyClip(TestNode, clip=("CLIP",), seconds=("FLOAT", {"default": 0.0}), error=("STRING", {})):
    """A clone of a CLIP whose third layer sleeps each time it is used, or raises; the CLIP itself stays as it is."""

    RETURN_TYPES = ("CLIP",)

    def run(self, clip: Any, seconds: float, error: str) -> tuple[Any]:
        clone = clip.clone()
        path = "clip_l.transformer.text_model.encoder.layers.2.forward"
        forward = clone.patcher.get_model_object(path)

        def faulty(*arguments: Any, **options: Any) -> Any:
            if seconds:
                logging.info(ASLEEP)
                time.sleep(seconds)
            if error:
                raise RuntimeError(error)
            return forward(*arguments, **options)

        clone.patcher.add_object_patch(path, faulty)
        return (clone,)


NODE_CLASS_MAPPINGS = {node.__name__: node for node in TestNode.__subclasses__()}
