"""References that are Python libraries, run in this process: transformers, compel, open_clip."""

# pyright: reportMissingImports=false, reportPrivateImportUsage=false

from __future__ import annotations

import gzip
import importlib
import importlib.metadata
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..encoder.text_model import TextModel
from ..encoder.tokenizer import VOCABULARY_FILE, default_tokenizer
from ..weighting.encode import EncodeOptions, read_prompt

Encode = Callable[[dict[str, Any], str], Tensor]
"""Settings and a prompt to hidden states, ``[1, rows, dim]``."""

PACKAGES = {"transformers": "transformers", "compel": "compel", "open_clip": "open_clip_torch"}


def version_of(reference: str) -> str | None:
    """Version of an installed library; None if it is not there."""
    try:
        importlib.import_module(reference)
        return importlib.metadata.version(PACKAGES[reference])
    except ImportError:
        return None


def open_transformers(model: TextModel) -> Encode:
    """CLIPTextModel on our chunks, with one kernel of attention or another."""
    from transformers import CLIPTextModel

    towers: dict[str, CLIPTextModel] = {}

    def encode(settings: dict[str, Any], prompt: str) -> Tensor:
        attention = settings["attention"]
        if attention not in towers:
            towers[attention] = _tower(model, attention)
        chunks = read_prompt(prompt, EncodeOptions(), default_tokenizer()).chunks
        ids = torch.tensor([chunk.ids for chunk in chunks])
        with torch.inference_mode():
            return towers[attention](ids).last_hidden_state.flatten(0, 1).unsqueeze(0)

    return encode


def open_compel(model: TextModel) -> Encode:
    """The Compel class, given the prompt as its user gives it."""
    from compel import Compel, DownweightMode, SplitLongTextMode

    tower, tokenizer = _tower(model, "sdpa"), _tokenizer()

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
    tokenizer = _tokenizer()
    return lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]


def ids_of_open_clip() -> Callable[[str], list[int]]:
    """The tokenizer of open_clip."""
    return importlib.import_module("open_clip.tokenizer").SimpleTokenizer().encode


def _tower(model: TextModel, attention: str) -> Any:
    """The model's weights in a CLIPTextModel."""
    from transformers import CLIPTextConfig, CLIPTextModel

    config = model.config
    make_config: Any = CLIPTextConfig  # its keywords differ between versions
    tower = CLIPTextModel(
        make_config(
            hidden_size=config.hidden_dim,
            intermediate_size=config.mlp_dim,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            eos_token_id=config.eos_id,
            attn_implementation=attention,
        )
    ).eval()
    ours = model.state_dict()
    tower.load_state_dict({key: ours[key.removeprefix("text_model.")] for key in tower.state_dict()})
    return tower


def _tokenizer() -> Any:
    """CLIPTokenizer, read from files as of a downloaded model, made of our vocabulary file."""
    from transformers import CLIPTokenizer

    ours = default_tokenizer()
    with gzip.open(VOCABULARY_FILE, "rt", encoding="utf-8") as file:
        merges = file.read().split("\n")[1 : 48894 + 1]
    vocabulary = {ours.symbol(token_id): token_id for token_id in range(ours.vocab_size)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
        special = {"bos_token": ours.symbol(49406), "eos_token": ours.symbol(49407)}
        special |= {"unk_token": special["eos_token"], "pad_token": special["eos_token"]}
        kind = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77, "do_lower_case": True}
        (folder / "tokenizer_config.json").write_text(json.dumps({**kind, **special}), encoding="utf-8")
        return CLIPTokenizer.from_pretrained(folder)
