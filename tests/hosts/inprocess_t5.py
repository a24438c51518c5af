"""Checks of T5's rows under the schemes of programs that weigh them, with these programs' own code on the same T5.

The programs' code is given ComfyUI's T5 in the form of transformers'. Run by test_comfyui_inprocess.py in ComfyUI's own
Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import SkipTest
from unittest.mock import patch

import t5_programs
import torch
from inprocess import (
    apart,
    compares,
    difference,
    issues_in,
    main,
    make_clip,
    note,
    ours,
    pack_of,
    refusal,
    run_ours,
    stock,
)
from pack_code import package
from served_clip import served
from t5_programs import A1111, COMPEL

RELATIVE = 1e-6
"""Largest difference, as a share of the largest number."""

# ---- the programs


class Rows(torch.nn.Module):
    """A CLIP's T5, which returns rows alone."""

    def __init__(self, clip: Any) -> None:
        super().__init__()
        self.network = clip.cond_stage_model.t5xxl.transformer
        self.shared = self.network.shared

    def forward(self, input_ids: Any, attention_mask: Any = None) -> torch.Tensor:
        return self.network(input_ids, attention_mask, dtype=torch.float32)[0]


def by_forge(clip: Any, text: str) -> torch.Tensor:
    """Rows by Forge's engine."""
    engines = [one for one in Path.cwd().parent.glob("*/backend/text_processing/t5_engine.py") if one.is_file()]
    if not engines:
        raise SkipTest("there is no Forge next to this ComfyUI")
    parts = {name: ModuleType(name) for name in ("backend", "modules", "modules.shared", "backend.memory_management")}
    vars(parts["modules.shared"])["opts"] = SimpleNamespace(emphasis="Original")
    vars(parts["backend.memory_management"])["text_encoder_device"] = lambda: torch.device("cpu")
    with patch.dict(sys.modules, parts):
        package("backend", engines[0].parents[1])
        vars(sys.modules["backend"])["memory_management"] = parts["backend.memory_management"]
        engine_class = importlib.import_module("backend.text_processing.t5_engine").T5TextProcessingEngine

    return engine_class(SimpleNamespace(transformer=Rows(clip)), clip.tokenizer.t5xxl.tokenizer)([text])


def by_compel(clip: Any, text: str) -> torch.Tensor:
    """Rows by compel."""
    try:
        return t5_programs.by_compel(clip.tokenizer.t5xxl.tokenizer, Rows(clip), text)
    except ImportError as error:
        raise SkipTest(f"no compel in ComfyUI's environment: {error}") from error


def by_sd_embed(clip: Any, text: str) -> torch.Tensor:
    """Rows by sd_embed."""
    tokenizers = clip.tokenizer.clip_l.tokenizer, clip.tokenizer.t5xxl.tokenizer
    return t5_programs.by_sd_embed(pack_of("sd_embed"), *tokenizers, Rows(clip), text)


# ---- checks


def compare(family: str, scheme: str, syntax: str, texts: tuple[str, ...], peer: Callable[..., torch.Tensor]) -> None:
    """Compare T5's rows of our node, and of stock boxes on a Weighted CLIP, with a program's."""
    clip = make_clip(family)
    before = 77 if family == "SD3" else 0  # CLIP's rows
    for text in texts:
        expected = peer(clip, text)
        conditioning = ours(clip, text, syntax=syntax, scheme=scheme)
        found = conditioning[0][0][:, before:]
        assert found.shape == expected.shape, (family, scheme, text, found.shape, expected.shape)
        note(float((found - expected).abs().max() / expected.abs().max()))
        by_box = stock(served(clip, syntax=syntax, scheme=scheme), text)
        assert apart(by_box, conditioning) == 0.0, (family, scheme, text)
    plain = peer(clip, "a red cat on a mat")[:, :4]
    assert float((plain - peer(clip, texts[3])[:, :4]).abs().max()) > 1e-3


@compares("T5's rows under a1111 in Flux and SD 3, small, relative to the largest, with Forge's engine", limit=RELATIVE)
def check_a1111_equals_forge() -> None:
    compare("Flux", "a1111", "a1111", A1111, by_forge)
    compare("SD3", "a1111", "a1111", A1111[:4], by_forge)  # their words are among the first of T5


@compares("T5's rows under compel in Flux, small, relative to the largest, with compel", limit=RELATIVE)
def check_compel_equals_compel() -> None:
    compare("Flux", "compel", "compel", COMPEL, by_compel)


@compares("T5's rows under lpw in Flux, small, relative to the largest, with sd_embed", limit=RELATIVE)
def check_lpw_equals_sd_embed() -> None:
    texts = tuple(text for text in A1111 if text != "  ")  # on which it fails
    compare("Flux", "lpw", "a1111", texts, by_sd_embed)


def others() -> Iterator[tuple[str, str]]:
    """Families and schemes whose program does not weigh their T5."""
    import nodes

    schemes = nodes.NODE_CLASS_MAPPINGS["WeightedCLIPTextEncode"].INPUT_TYPES()["required"]["scheme"][0]
    known = {"Flux": ("a1111", "compel", "lpw"), "SD3": ("a1111",)}
    for family, some in known.items():
        for scheme in schemes:
            if scheme not in (*some, "repeat", "negpip", "negpip_apart"):
                yield family, scheme


@compares("T5's rows under all other schemes in Flux and SD 3, small, with stock")
def check_other_schemes_leave_t5_to_the_host_and_say_so() -> None:
    clips = {family: make_clip(family) for family in ("Flux", "SD3")}
    for family, scheme in others():
        result = run_ours("WeightedCLIPTextEncode", clip=clips[family], text=A1111[3], scheme=scheme)
        size = {"Flux": 256, "SD3": 77}[family]
        difference(result["result"][0][0][0][:, -size:], stock(clips[family], A1111[3])[0][0][:, -size:])
        assert "without our weights: t5xxl" in result["result"][1], (family, scheme)


def check_reports_words_and_refusals() -> None:
    import nodes

    clip = make_clip("Flux")
    result = run_ours("WeightedCLIPTextEncode", clip=clip, text="a (red:1.3) cat", syntax="a1111", scheme="a1111")
    assert "t5xxl: a1111, 1 encoding -> 256 rows of 64" in result["result"][1], result["result"][1]
    assert "without our weights" not in result["result"][1]
    broken = run_ours("WeightedCLIPTextEncode", clip=clip, text="a cat BREAK a dog", syntax="a1111", scheme="a1111")
    assert "break-is-a-space" in {issue["code"] for issue in issues_in(broken)}
    long = "cat " * 512
    assert "at most 511 tokens" in refusal(lambda: ours(clip, long, syntax="compel", scheme="compel"))
    place = nodes.NODE_CLASS_MAPPINGS["WeightedCLIPPlace"]
    for conditioning in (
        stock(served(clip, syntax="a1111", scheme="a1111"), "a (red:1.3) cat"),
        ours(clip, "a (red:1.3) cat", syntax="a1111", scheme="lpw"),
    ):
        defaults = {
            name: options["default"]
            for name, (_, options) in place.INPUT_TYPES()["required"].items()
            if "default" in options
        }
        given = {**defaults, "conditioning": conditioning, "phrase": "cat", "area": "left half"}
        ((_, values),) = place().place(**given)["result"][0]
        placed = next(value for name, value in values["model_conds"].items() if "weighted_clip" in name)
        # lpw has an end token behind each stretch of one weight
        assert tuple(placed.fields[0].rows) == ((3,) if conditioning[0][0].shape[1] == 256 else (5,)), placed.fields


@compares("T5's tokens that another node has made anew, small, with Weighted Prompt and with stock")
def check_tokens_made_anew_are_weighed_as_they_stand() -> None:
    clip = make_clip("Flux")
    text = "a (red:1.3) cat, (dog:0.5)"
    for scheme in ("a1111", "lpw", "compel"):
        work = served(clip, syntax="a1111", scheme=scheme)
        tokens = work.tokenize(text)
        tokens["t5xxl"] = [[(int(one[0]), float(one[1])) for one in chunk] for chunk in tokens["t5xxl"]]
        difference(
            work.encode_from_tokens_scheduled(tokens)[0][0], ours(clip, text, syntax="a1111", scheme=scheme)[0][0]
        )
    work = served(clip, syntax="a1111", scheme="compel")
    tokens = work.tokenize("a red cat")
    tokens["t5xxl"] = [chunk[:256] for chunk in tokens["t5xxl"]]  # as many as compel never has
    difference(work.encode_from_tokens_scheduled(tokens)[0][0], stock(clip, "a red cat")[0][0])


if __name__ == "__main__":
    main(globals())
