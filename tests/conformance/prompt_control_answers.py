"""Answers of comfyui-prompt-control in ComfyUI's own Python: its prompt editing, and its styles of weighting."""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import os
import re
import sys
from types import ModuleType
from typing import Any

import torch
from conformance import toy

sys.argv[1:] = []
pack = sys.modules["prompt_control"] = ModuleType("prompt_control")
pack.__path__ = [f"{os.environ['PROMPT_CONTROL']}/prompt_control"]
from comfy.cli_args import args  # noqa: E402

args.cpu = True
from comfy import sd1_clip  # noqa: E402

schedules = importlib.import_module("prompt_control.parser").parse_prompt_schedules
AdvancedEncoder = importlib.import_module("prompt_control.adv_encode").AdvancedEncoder
TOKENIZER = sd1_clip.SDTokenizer()
STYLES = {"adv_comfy": "comfy", "adv_A1111": "A1111", "adv_compel": "compel", "adv_comfy++": "comfy++"}
STYLES |= {"adv_down_weight": "down_weight", "perp": "perp"}
NORMALIZATIONS = {"none", "length", "mean", "length+mean"}


def parse(name: str, case: dict[str, Any]) -> Any:
    """Texts of the first pass by their last step."""
    if name != "a1111_schedule" or case["hires_steps"] or case["use_old_scheduling"]:
        raise NotImplementedError
    counts = re.search(r":\s*[1-9]\d*\s*\]", case["prompt"])  # its own number of steps is for times in steps
    found = schedules(case["prompt"], num_steps=case["steps"] if counts else 0)
    return [[round(end * case["steps"]) if end <= 1 else end, one["prompt"]] for end, one in found]


class Toy(sd1_clip.ClipTokenWeightEncoder):
    """The toy encoder in place of ComfyUI's text model, below its own weighting."""

    def gen_empty_tokens(self, *rest: Any) -> list[int]:
        """Token ids of an empty prompt."""
        return [49406, *[49407] * 76]

    def encode(self, tokens: Any) -> Any:
        """Rows ``[batch, 77, 3]`` and pooled."""
        ids = [[token[0] if isinstance(token, tuple) else token for token in chunk] for chunk in tokens]
        rows = torch.tensor([toy(chunk) for chunk in ids], dtype=torch.float64)
        pooled = torch.stack([row[chunk.index(49407)] for row, chunk in zip(rows, ids, strict=True)])
        return rows, pooled


def encode(name: str, case: dict[str, Any]) -> Any:
    """Rows of its styles."""
    style, normalization = STYLES.get(case.get("scheme", "")), case.get("normalization", "none")
    if style is None or normalization not in NORMALIZATIONS:
        raise NotImplementedError
    model = Toy()
    sd1_clip.gen_empty_tokens = lambda special, length: model.gen_empty_tokens()
    model.special_tokens = {"start": 49406, "end": 49407, "pad": 49407}  # type: ignore[attr-defined]

    def encode_fn(tokens: Any) -> Any:
        weighed = [
            [(token[0], token[1]) if isinstance(token, tuple) else (token, 1.0) for token in chunk] for chunk in tokens
        ]
        return model.encode_token_weights(weighed)

    tokens = [
        list(zip(*rows, strict=True)) for rows in zip(case["tokens"], case["weights"], case["word_ids"], strict=True)
    ]
    found = AdvancedEncoder(encode_fn, style, normalization, TOKENIZER)(tokens)
    return found[0][0].tolist()
