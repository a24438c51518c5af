"""Answers of the library compel."""

# pyright: reportMissingImports=false, reportPrivateImportUsage=false

from __future__ import annotations

import importlib
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from compel import Compel, DownweightMode, SplitLongTextMode
from compel.prompt_parser import Blend, PromptParser
from conformance import toy

runpy.run_path(str(Path(__file__).resolve().parents[2] / "__main__.py"))["load_package"]()
TOKENIZER = importlib.import_module("weighted_clip.workshop.peers.transformers").transformers_tokenizer()
"""That of transformers, from the vocabulary in this repository."""


def part(fragment: Any) -> Any:
    """A fragment, or one that replaces another in cross attention."""
    if hasattr(fragment, "original"):
        sides = {side: [part(one) for one in getattr(fragment, side)] for side in ("original", "edited")}
        return {"swap": {**sides, "options": dict(fragment.options or {})}}
    return [fragment.text, float(fragment.weight)]


def prompt_of(found: Any) -> Any:
    """A prompt or blend in the form of the case file."""
    if isinstance(found, Blend):
        shares = {"weights": list(found.weights), "normalize": found.normalize_weights}
        return {"type": "blend", **shares, "prompts": [prompt_of(one) for one in found.prompts]}
    return {"type": "prompt", "fragments": [part(one) for one in found.children]}


def parse(name: str, case: dict[str, Any]) -> Any:
    """Its own syntax. Brackets of the others', ten deep, take it longer than anyone waits."""
    if name != "compel_syntax":
        raise NotImplementedError
    found = PromptParser().parse_conjunction(case["prompt"])
    prompts = [prompt_of(one) for one in found.prompts]
    loras = [[lora.model, lora.weight] for lora in found.lora_weights]
    return {"weights": [float(weight) for weight in found.weights], "prompts": prompts, "loras": loras}


class Toy:
    """The toy encoder as a text model of transformers."""

    device, dtype = torch.device("cpu"), torch.float64
    config = SimpleNamespace(max_position_embeddings=77)

    def __call__(self, ids: Any, mask: Any = None, **rest: Any) -> Any:
        """Rows of token ids ``[batch, 77]``."""
        masks = [[1] * 77] * len(ids) if mask is None else mask.tolist()
        rows = [toy(*pair) for pair in zip(ids.tolist(), masks, strict=True)]
        return SimpleNamespace(last_hidden_state=torch.tensor(rows, dtype=torch.float64))


def encode(name: str, case: dict[str, Any]) -> Any:
    """The cases that were made with it, from the text on."""
    if case.get("scheme") != "compel_real":
        raise NotImplementedError
    given = dict(case["options"])
    if "split" in given:
        flags = [SplitLongTextMode[flag] for flag in given.pop("split").split("|")]
        given["split_long_text_mode"] = flags[0] if len(flags) == 1 else flags[0] | flags[1]
    if "downweight_mode" in given:
        given["downweight_mode"] = DownweightMode[given["downweight_mode"]]
    is_bypassed = not given.pop("no_bypass", False)
    made = Compel(TOKENIZER, Toy(), dtype_for_device_getter=lambda _: torch.float64, **given)
    if not is_bypassed:
        made.disable_no_weights_bypass()
    return made.build_conditioning_tensor(case["prompt"])[0].tolist()
