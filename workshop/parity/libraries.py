"""References that are Python libraries, run in this process: transformers, compel, open_clip."""

# pyright: reportMissingImports=false, reportPrivateImportUsage=false

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...encoder.text_model import TextModel
from ...encoder.tokenizer import default_tokenizer
from ...training.torchvision_operators import declare_missing_operators
from ...weighting.options import EncodeOptions
from ...weighting.reading import read_prompt
from ..peers.transformers import transformers_text_model, transformers_tokenizer

Encode = Callable[[dict[str, Any], str], Tensor]
"""From settings and a prompt to hidden states, ``[1, rows, dim]``."""

PACKAGES = {
    "transformers": "transformers",
    "compel": "compel",
    "diffusers": "diffusers",
    "open_clip": "open_clip_torch",
}


def version_of(reference: str) -> str | None:
    """Version of a library, or None if it is not installed.

    Raises:
        Exception: If it is installed but its import fails; the original exception.
    """
    if importlib.util.find_spec(reference) is None:
        return None
    declare_missing_operators()
    importlib.import_module(reference)
    return importlib.metadata.version(PACKAGES[reference])


def open_transformers(model: TextModel) -> Encode:
    """CLIPTextModel on our chunks, with either attention kernel."""
    from transformers import CLIPTextModel

    towers: dict[str, CLIPTextModel] = {}

    def encode(settings: dict[str, Any], prompt: str) -> Tensor:
        attention = settings["attention"]
        if attention not in towers:
            towers[attention] = transformers_text_model(model, attention)
        chunks = read_prompt(prompt, EncodeOptions(), default_tokenizer()).chunks
        ids = torch.tensor([chunk.ids for chunk in chunks])
        with torch.inference_mode():
            return towers[attention](ids).last_hidden_state.flatten(0, 1).unsqueeze(0)

    return encode


def open_compel(model: TextModel) -> Encode:
    """The Compel class, given the prompt as by its users."""
    from compel import Compel, DownweightMode, SplitLongTextMode

    tower, tokenizer = transformers_text_model(model, "sdpa"), transformers_tokenizer()

    def encode(settings: dict[str, Any], prompt: str) -> Tensor:
        given = dict(settings)
        if "split" in given:
            flags = [SplitLongTextMode[flag] for flag in given.pop("split")]
            given["split_long_text_mode"] = flags[0] if len(flags) == 1 else flags[0] | flags[1]
            given["truncate_long_prompts"] = False
        if "downweight_mode" in given:
            given["downweight_mode"] = DownweightMode[given["downweight_mode"]]
        with torch.inference_mode():
            hidden: Any = Compel(tokenizer, tower, **given).build_conditioning_tensor(prompt)
            return hidden

    return encode


def ids_of_transformers() -> Callable[[str], list[int]]:
    """The tokenizer of transformers."""
    tokenizer = transformers_tokenizer()
    return lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]


def ids_of_open_clip() -> Callable[[str], list[int]]:
    """The tokenizer of open_clip."""
    return importlib.import_module("open_clip.tokenizer").SimpleTokenizer().encode
