"""A CLIP as folders that other libraries load: transformers, open_clip and diffusers, with tokenizer and preprocessing.

Source: files as written by ``save_pretrained`` of transformers 5.23 and ``push_to_hf_hub.py`` of open_clip 3.3.0, and
those in the folders ``text_encoder`` and ``tokenizer`` of Stable Diffusion 1.5 and SDXL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..images import MEAN, STD
from ..models.config import Crop, Library, TextConfig, VisionConfig, sizes_of
from ..models.text_model import TextModel
from ..models.vision_model import VisionModel
from ..tokenizer import BOS_TEXT, EOS_TEXT, default_tokenizer, read_merges
from .checkpoint import clip_config, hugging_face_tensors, text_config
from .layouts import OPENCLIP, OPENCLIP_VISION, FoundTower, Place

Files = dict[str, Mapping[str, Any] | str]
"""Contents by path within a folder: tensors of a ``.safetensors`` file, an object of a ``.json`` file, or text."""

_WEIGHTS, _CONFIG = "model.safetensors", "config.json"
_BICUBIC = 3
"""Pillow's number of the filter."""


@dataclass(frozen=True)
class Parts:
    """A CLIP that is written: its towers, and their parameters by our names."""

    text: TextModel
    text_parameters: Mapping[str, Tensor]
    vision: VisionModel
    vision_parameters: Mapping[str, Tensor]
    numbers: Mapping[str, Tensor]
    """The logarithm of the factor of cosines, ``logit_scale``; and what SigLIP's loss adds then, ``logit_bias``."""
    crop: Crop
    """Way of making pictures square."""


def check_expressible(library: Library, text: TextConfig, vision: VisionConfig, crop: Crop) -> None:
    """Raise ValueError for a CLIP that a library has no class or setting for."""
    why = ""
    if text.positions == "rotary":
        why = "its text encoder has rotary positions"
    elif library == "open_clip" and text.activation != vision.activation:
        why = f"its activations differ: {text.activation} in the text encoder, {vision.activation} in the image encoder"
    elif library != "diffusers" and crop == "letterbox":
        why = "--crop letterbox adds bars of the mean colour to pictures"
    if why:
        raise ValueError(
            f"--write-for {library}: {library} cannot load this CLIP as it is trained: {why}. Leave it out"
        )


def files_for(library: Library, clip: Parts) -> Files:
    """Files of the folder for a library, checked by `check_expressible`."""
    return _FILES[library](clip)


def _for_transformers(clip: Parts) -> Files:
    size = clip.vision.config.image_size
    side = {"height": size, "width": size}
    return {
        _WEIGHTS: {
            **hugging_face_tensors(clip.text, clip.text_parameters),
            **hugging_face_tensors(clip.vision, clip.vision_parameters),
            "logit_scale": clip.numbers["logit_scale"],
        },
        _CONFIG: clip_config(clip.text.config, clip.vision.config),
        "preprocessor_config.json": {
            "image_processor_type": "CLIPImageProcessor",
            "processor_class": "CLIPProcessor",
            "do_convert_rgb": True,
            "do_resize": True,
            "size": {"shortest_edge": size} if clip.crop == "center" else side,
            "resample": _BICUBIC,
            "do_center_crop": True,
            "crop_size": side,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(MEAN),
            "image_std": list(STD),
        },
        **_tokenizer(clip.text.config, EOS_TEXT),  # whatever follows it changes no feature
    }


def _for_open_clip(clip: Parts) -> Files:
    text, vision = clip.text.config, clip.vision.config
    model: dict[str, Any] = {
        "embed_dim": text.projection_dim,
        "quick_gelu": text.activation == "quick_gelu",
        "vision_cfg": {
            **_open_clip_sizes(vision),
            "image_size": vision.image_size,
            "patch_size": vision.patch_size,
            "head_width": vision.hidden_dim // vision.num_heads,
        },
        "text_cfg": {
            **_open_clip_sizes(text),
            "context_length": text.context_length,
            "vocab_size": text.vocab_size,
            "heads": text.num_heads,
        },
    }
    if bias := [tensor.item() for name, tensor in clip.numbers.items() if name == "logit_bias"]:
        model["init_logit_bias"] = bias[0]
    preprocessing = {
        "size": [vision.image_size] * 2,
        "mode": "RGB",
        "mean": list(MEAN),
        "std": list(STD),
        "interpolation": "bicubic",
        "resize_mode": "shortest" if clip.crop == "center" else "squash",
    }
    tensors = {
        **_open_clip_tensors(FoundTower("", Place("", OPENCLIP, ""), ()), clip.text_parameters),
        **_open_clip_tensors(FoundTower("", Place("", OPENCLIP_VISION, ""), ()), clip.vision_parameters),
        **clip.numbers,
    }
    config = {"model_cfg": model, "preprocess_cfg": preprocessing}
    return {"open_clip_model.safetensors": tensors, "open_clip_config.json": config}


def _for_diffusers(clip: Parts) -> Files:
    config = clip.text.config
    pad = default_tokenizer().symbol(config.pad_id)
    architecture = "CLIPTextModel" if config.projection_dim is None else "CLIPTextModelWithProjection"
    return {
        f"text_encoder/{_WEIGHTS}": hugging_face_tensors(clip.text, clip.text_parameters),
        f"text_encoder/{_CONFIG}": {"architectures": [architecture], **text_config(config)},
        **{f"tokenizer/{name}": content for name, content in _tokenizer(config, pad).items()},
    }


_FILES: Mapping[Library, Callable[[Parts], Files]] = {
    "transformers": _for_transformers,
    "open_clip": _for_open_clip,
    "diffusers": _for_diffusers,
}


def _tokenizer(config: TextConfig, pad: str) -> Files:
    """Files of transformers' CLIPTokenizer, with its token after EOS."""
    tokenizer = default_tokenizer()
    symbols = [tokenizer.symbol(index) for index in range(tokenizer.vocab_size)]
    special = {"bos_token": BOS_TEXT, "eos_token": EOS_TEXT, "unk_token": EOS_TEXT, "pad_token": pad}
    return {
        "vocab.json": {symbol: index for index, symbol in enumerate(symbols)},
        "merges.txt": "\n".join(["#version: 0.2", *(" ".join(pair) for pair in read_merges())]) + "\n",
        "special_tokens_map.json": special,
        "tokenizer_config.json": {
            "tokenizer_class": "CLIPTokenizer",
            "do_lower_case": True,
            "errors": "replace",
            "model_max_length": config.context_length,
            **special,
        },
    }


def _open_clip_sizes(config: TextConfig | VisionConfig) -> dict[str, Any]:
    """Sizes by open_clip's names."""
    width, inner = config.hidden_dim, sizes_of(config)["intermediate_size"]
    ratio = inner / width
    return {
        "width": width,
        "layers": config.num_layers,
        "mlp_ratio": ratio if int(width * ratio) == inner else (inner + 0.5) / width,
        **({} if config.layer_norm_eps == 1e-5 else {"norm_kwargs": {"eps": config.layer_norm_eps}}),
    }


def _open_clip_tensors(tower: FoundTower, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters under open_clip's keys, query, key and value stacked."""
    parts: dict[str, dict[int, Tensor]] = {}
    for name, parameter in parameters.items():
        source = tower.source(name, {"text_projection": ()})
        tensor = parameter.detach().cpu()
        parts.setdefault(source.key, {})[source.third or 0] = tensor.T if source.is_transposed else tensor
    return {key: torch.cat([found[third] for third in sorted(found)]).contiguous() for key, found in parts.items()}
