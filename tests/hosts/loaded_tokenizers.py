"""Print as JSON which tokenizers ComfyUI's own loader chooses for text encoders, and which classes it has not.

Run by test_coverage.py in ComfyUI's Python, with a JSON file: loaders with what they are set to, and names of classes.
Files are not read: which network is in one is told by its name, as the host tells it by its tensors.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path.cwd()))
from comfy.cli_args import args

args.cpu = True
import comfy.sd  # noqa: E402

NETWORKS = {
    "umt5_xxl": "T5_XXL",
    "t5xxl": "T5_XXL",
    "t5-base": "T5_BASE",
    "t5gemma": "T5_GEMMA",
    "qwen_2.5_vl_7b": "QWEN25_7B",
    "qwen_2.5_vl_fp16": "QWEN25_3B",
    "qwen_3_06b": "QWEN3_06B",
    "qwen_3_4b": "QWEN3_4B",
    "qwen_3_8b": "QWEN3_8B",
    "qwen3vl_4b": "QWEN3VL_4B",
    "qwen3vl_8b": "QWEN3VL_8B",
    "ovis": "QWEN3_2B",
    "gemma_2_2b": "GEMMA_2_2B",
    "gemma_3_4b": "GEMMA_3_4B",
    "gemma_3_12b": "GEMMA_3_12B",
    "gpt_oss_20b": "GPT_OSS_20B",
    "ministral-3-3b": "MINISTRAL_3_3B",
    "mistral_3_small": "MISTRAL3_24B",
    "llama_3.1_8b": "LLAMA3_8",
    "llava_llama3": "LLAMA3_8",
    "clip_l": "CLIP_L",
    "clip_g": "CLIP_G",
    "jina": "JINA_CLIP_2",
}
"""Networks of text encoders (``comfy.sd.TEModel``) by the beginning of their files' names; any other is taken for
CLIP's."""


def tokenizer_of(loader: str) -> str:
    """The tokenizer's class for a loader with its files and its type."""
    kind, *values = loader.split()
    files = [value for value in values if value.endswith(".safetensors")]
    type_name = (
        "ltxv" if kind.startswith("LTXAV") else ([value for value in values if value not in files] or ["wan"])[0]
    )
    networks = [next((te for name, te in NETWORKS.items() if file.lower().startswith(name)), "") for file in files]
    chosen: list[Any] = []

    class Chosen:
        def __init__(self, target: Any, **_: Any) -> None:
            chosen.append(target.tokenizer)

    kinds = iter([getattr(comfy.sd.TEModel, network, None) for network in networks])
    with patch.multiple(comfy.sd, detect_te_model=lambda _: next(kinds), CLIP=Chosen):
        comfy.sd.load_text_encoder_state_dicts(
            [{} for _ in files], clip_type=getattr(comfy.sd.CLIPType, type_name.upper())
        )
    return f"{chosen[0].__module__}.{chosen[0].__qualname__}"


def has(name: str) -> bool:
    """Whether the host has a class."""
    module, _, cls = name.rpartition(".")
    try:
        return isinstance(getattr(importlib.import_module(module), cls, None), type)
    except ImportError:
        return False


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    tokenizers = {loader: tokenizer_of(loader) for loader in given["loaders"]}
    missing = [name for name in given["classes"] if not has(name)]
    sys.stdout.write("\n" + json.dumps({"tokenizers": tokenizers, "missing": missing}))
