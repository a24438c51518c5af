"""Checks of places in the text of A1111/Forge Prompt: the entries that comfyui-prompt-control makes of the same prompt.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py. With WEIGHTED_CLIP_WRITE_CASES=1 in the
environment the check of the case file writes it.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from inprocess import CLOSE, compares, difference, main, make_clip, pack_of, refusal, run_ours, stock
from inprocess_attention import is_close
from pack_code import package
from toys import LATENT, NEGATIVE, make_model, sampled

CASES = Path(__file__).parents[1] / "cases" / "prompt_control_places.json"
PROMPTS = (
    "a cat",
    "a cat MASK()",
    "a cat MASK(0 0.5)",
    "a cat MASK(0 0.5, 0.25 1) AND a dog MASK(0.5 1, 0 0.25, 0.7)",
    "MASK(0.25 1, 0.5) a cat on a mat AND a dog",
    "a cat MASK(0 256, 64 512)",
    "a cat MASK(0 0.337, 0 1, 0.333)",
    "a cat MASK(0 0.5, 0 1, 2) AND a dog MASK(, 0 0.5)",
    "a cat MASK(0 0.75) MASK(0.25 1, 0 1, 0.5) MASKW(0.4)",
    "a cat MASK(0 0.5) :0.5 AND a dog :1.5 MASK(0.5 1)",
    "MASK_SIZE(256, 128) a cat MASK(0 128, 64 128) AND a dog MASK(0 0.3, 0.1 0.9)",
    "a cat AREA(0 0.5) AND a dog AREA(0.5 1, 0 1, 1.3)",
    "a cat AREA(0.25 0.5, 0.1 0.2) AND a dog",
    "a cat AREA(64 256, 128 512, 0.8) AND a dog :0.3",
    "a cat AREA(0 0.5) :0.7 AND a dog",
    "a cat AREA(0 0.75, 0 0.5) MASK(0 0.5, 0 1, 0.9)",
    "a cat MASK(0 0.5) :0 AND a dog AREA(0 1, 0 1, 0.5) AND a bird",
    'a sign "no MASK(0 0.5) AND no dog" MASK(0.5 1) AND a dog',
    "a cat MASK (0 0.5), imMASK(0 1), mask(0 1)",
    "a cat MASK(1e-1 5e-1, .5 1.)",
    "a catMASK(0 1) AND (a dog MASK(0 0.5))",
)
"""Prompts with places."""
COUPLED = (
    "a cat COUPLE a dog",
    "a cat FILL() COUPLE(0 0.5) a dog",
    "a cat COUPLE(0 0.5, 0.25 1) a dog COUPLE MASK(0.25 1, 0 1, 0.5) MASKW(0.8) a bird",
    "a cat MASK(0.25 1) COUPLE(0 0.5) a dog",
    "a cat FILL() COUPLE(0 0.5, 0 1, 0.3) a dog COUPLE(0.5 0.75) a bird",
)
"""Prompts joined by COUPLE."""
CELLS = 8
"""Cells along a side of a mask in the case file."""


def peer() -> Any:
    """prompt-control's module that encodes."""
    package("prompt_control_regions", pack_of("comfyui-prompt-control") / "prompt_control")
    return importlib.import_module("prompt_control_regions.prompts")


def entries_of_peer(clip: Any, prompt: str) -> Any:
    return peer().encode_prompt(clip, prompt, 0.0, 1.0, {}, None)


class Spy:
    """A CLIP as far as prompt-control needs one; an encoding is its text."""

    tokenizer = SimpleNamespace()

    def tokenize(self, text: str, **_: Any) -> dict[str, Any]:
        return {"l": [[(text, 1.0)]]}

    def encode_from_tokens_scheduled(self, tokens: Mapping[str, Any], add_dict: Mapping[str, Any]) -> Any:
        (((text, _),),) = tokens["l"]
        return [[torch.zeros(1), {**add_dict, "text": text}]]


def cells_of(mask: torch.Tensor) -> list[list[float]]:
    """Means of a mask ``[1, height, width]`` over cells."""
    cells = torch.nn.functional.adaptive_avg_pool2d(mask.double(), CELLS)
    return [[round(cell, 6) for cell in row] for row in cells[0].tolist()]


def case_of(prompt: str) -> dict[str, Any]:
    """A prompt and what prompt-control makes of it."""
    expected: list[dict[str, Any]] = []
    for _, values in entries_of_peer(Spy(), prompt):
        if "hooks" in values:
            (hook,) = values["hooks"].hooks
            texts = [" ".join(cond[1]["text"].split()) for cond in hook.comfy_conds]
            expected.append({"coupled": {"texts": texts, "shares": [cells_of(mask) for mask in hook.mask]}})
            continue
        entry = {"text": " ".join(values["text"].split()), "strength": values.get("strength", 1.0)}
        entry["area"] = list(values["area"]) if "area" in values else None
        entry["mask"] = None
        if "mask" in values:
            size, cells = list(values["mask"].shape), cells_of(values["mask"])
            entry["mask"] = {"size": size, "strength": values["mask_strength"], "cells": cells}
        expected.append(entry)
    return {"prompt": prompt, "expected": expected}


def check_the_case_file_is_what_prompt_control_makes() -> None:
    cases = [case_of(prompt) for prompt in (*PROMPTS, *COUPLED)]
    if os.environ.get("WEIGHTED_CLIP_WRITE_CASES") == "1":
        about = {
            "source": "asagi4/comfyui-prompt-control 3.0.0-beta.9 (b24d93b) in ComfyUI 0.29.0",
            "format": "expected = an entry for each text: text, without regard to white space; strength; area as in "
            "ComfyUI's conditioning; mask: its size, strength, and means over 8 x 8 cells; coupled: texts joined by "
            "COUPLE, and the share of each",
        }
        lines = ",\n".join(f"  {json.dumps(case)}" for case in cases)
        head = ",\n ".join(f"{json.dumps(name)}: {json.dumps(text)}" for name, text in about.items())
        CASES.write_text(f'{{\n {head},\n "cases": [\n{lines}\n ]\n}}\n', encoding="utf-8")
    assert json.loads(CASES.read_text(encoding="utf-8"))["cases"] == json.loads(json.dumps(cases))


@compares("A1111/Forge Prompt with places in the text, with prompt-control's entries")
def check_entries_are_those_of_prompt_control() -> None:
    clip = make_clip("SD1")
    usual = {"strength": 1.0, "area": None, "mask_strength": None, "set_area_to_bounds": False}
    for prompt in PROMPTS:
        found = run_ours("WeightedCLIPA1111Encode", clip=clip, text=prompt, regions="prompt-control")["result"][0]
        expected = entries_of_peer(clip, prompt)
        texts = [entry["text"] for entry in case_of(prompt)["expected"]]
        for (rows, values), (own_rows, own_values), text in zip(found, expected, texts, strict=True):
            if "(" not in text:  # A1111's weights are not ComfyUI's
                difference(rows, own_rows)
                difference(values["pooled_output"], own_values["pooled_output"])
            for name, value in usual.items():
                assert values.get(name, value) == own_values.get(name, value), (prompt, name)
            assert ("mask" in values) == ("mask" in own_values), prompt
            if "mask" in values:
                difference(values["mask"], own_values["mask"])


@compares("A1111/Forge Prompt with COUPLE on SD1, small, with prompt-control, relative to the largest", limit=CLOSE)
def check_couple_draws_what_prompt_control_draws() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    negative = stock(clip, NEGATIVE)
    height, width = (8 * side for side in LATENT)
    left = 96  # 12 places of the latent picture and 6 of the deepest layer; 48 are 6 and 3
    for text in (
        f"a cat FILL() COUPLE(0 {left}, 0 {height}) a dog",
        f"a cat COUPLE(0 {left}, 0 {height}, 0.5) a dog on a mat COUPLE({left} {width}, 0 48) a bird",
    ):
        prompt = f"MASK_SIZE({width}, {height}) {text}"
        found = run_ours("WeightedCLIPA1111Encode", clip=clip, text=prompt, regions="prompt-control")["result"][0]
        without = sampled(model, stock(clip, "a cat"), negative)
        theirs = sampled(model, entries_of_peer(clip, prompt), negative)
        is_close(sampled(model, found, negative), theirs, without, text)


def check_off_all_is_text() -> None:
    clip = make_clip("SD1")
    for prompt in ("a cat MASK(0 0.5) AND a dog AREA(0 0.5)", "a cat COUPLE a dog", "MASK(0.5"):
        for _, values in run_ours("WeightedCLIPA1111Encode", clip=clip, text=prompt)["result"][0]:
            assert not {"mask", "area"} & values.keys()


def check_what_is_not_read_is_refused_in_words() -> None:
    clip = make_clip("SD1")

    def encode(text: str) -> Any:
        return run_ours("WeightedCLIPA1111Encode", clip=clip, text=text, regions="prompt-control")

    assert "“FEATHER(10)”" in refusal(lambda: encode("a cat FEATHER(10)"))
    assert "never closed" in refusal(lambda: encode("a cat MASK(0.5"))


if __name__ == "__main__":
    main(globals())
