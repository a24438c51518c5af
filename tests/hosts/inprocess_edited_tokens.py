"""Checks of a Weighted CLIP whose tokens or towers are handled otherwise than by the host's nodes, without other packs.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py. Only NegPip's check needs ComfyUI-ppm.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from inprocess import (
    WIDTHS,
    compares,
    difference,
    main,
    make_clip,
    make_lora,
    ours,
    refusal,
    run_ours,
    stock,
    with_lora,
)
from inprocess_negpip import theirs
from inprocess_other_packs import alike, served
from inprocess_traces import LORA, hooked
from safetensors.torch import save_file
from toys import make_model

A1111 = {"syntax": "a1111", "scheme": "a1111"}
BLEND = {"syntax": "a1111", "scheme": "masked_blend"}
TEXT = "a (red:1.3) cat on a (mat:0.4), oil painting"
EDITS: dict[str, Callable[[Any], Any]] = {
    "tuples": lambda entry: tuple(entry),
    "computed weights": lambda entry: (entry[0], entry[1] * 1.0),
    "plain ids": lambda entry: (int(entry[0]) if isinstance(entry[0], int) else entry[0], entry[1]),
    "plain": lambda entry: (int(entry[0]) if isinstance(entry[0], int) else entry[0], float(entry[1])),
}
"""Ways in which packs make tokens anew."""


def remade(tokens: Any, edit: Callable[[Any], Any]) -> dict[str, Any]:
    return {key: [[edit(entry) for entry in chunk] for chunk in chunks] for key, chunks in tokens.items()}


@compares("Embeddings in tokens that another node has made anew on a Weighted CLIP, small, with our own node")
def check_embeddings_in_lists_made_anew() -> None:
    with tempfile.TemporaryDirectory() as folder:
        generator = torch.Generator().manual_seed(2)
        file = {f"clip_{tower}": torch.randn(3, WIDTHS[tower], generator=generator) for tower in "lg"}
        save_file(file, Path(folder, "both.safetensors"))
        for family in ("SD1", "SDXL"):
            clip = make_clip(family, embeddings=Path(folder))
            text = "a (embedding:both:0.6) cat on a (mat:1.3), embedding:both"
            for choices in (A1111, BLEND, {"scheme": "down_weight"}):
                expected = ours(clip, text, **choices)
                assert alike_not(expected, ours(clip, text.replace("embedding:both", "both"), **choices))
                for name, edit in EDITS.items():
                    lines: list[str] = []
                    work = served(clip, lines, **choices)
                    found = work.encode_from_tokens_scheduled(remade(work.tokenize(text), edit))
                    assert not (far := alike(found, expected)), (family, choices, name, far)
                    assert any("put the tokens" in line for line in lines)
            lines = []
            work = served(clip, lines)
            alike(work.encode_from_tokens_scheduled(remade(work.tokenize(text), EDITS["plain"])), stock(clip, text))
            assert not lines  # nothing differs from the host's


def alike_not(one: Any, other: Any) -> bool:
    return not torch.equal(one[0][0], other[0][0])


def check_every_scheme_takes_weights_of_begin_end_and_padding() -> None:
    import nodes

    schemes = nodes.NODE_CLASS_MAPPINGS["WeightedCLIPTextEncode"].INPUT_TYPES()["required"]["scheme"][0]
    clip = make_clip("SD1")
    for scheme in schemes:
        work = served(clip, syntax="a1111", scheme=scheme)
        for factor in (0.5, 1.3):
            tokens = remade(work.tokenize(TEXT), lambda entry, factor=factor: (entry[0], entry[1] * factor))
            rows = work.encode_from_tokens(tokens)
            assert rows.isfinite().all(), scheme
            assert alike_not([[rows]], stock(clip, TEXT)) or scheme == "unweighted", scheme


def check_blends_made_anew_are_refused() -> None:
    for family in ("SD1", "SDXL"):
        work = served(make_clip(family), syntax="compel", scheme="compel")
        for text in ('("a cat", "a dog").blend(0.7, 0.3)', '("a cat", "a dog").and()'):
            for edit in EDITS.values():
                tokens = remade(work.tokenize(text), edit)
                if edit is EDITS["plain"]:  # nobody knows them any more
                    continue
                assert ".blend" in refusal(partial(work.encode_from_tokens_scheduled, tokens))


def check_what_rows_alone_cannot_carry_is_refused_or_told() -> None:
    clip = make_clip("SDXL")
    work = served(clip, scheme="negpip")
    text = "a cat, (dog:-1)"
    stock(work, text)  # as the host has chosen layers
    assert "rows alone" in refusal(lambda: work.encode_from_tokens(work.tokenize(text), return_pooled=True))
    for tower in "lg":
        encode = getattr(work.cond_stage_model, f"clip_{tower}").encode_token_weights
        assert "past the CLIP" in refusal(partial(encode, work.tokenize(text)[tower]))
        encode(work.tokenize("a (cat:1.2)")[tower])
    lines: list[str] = []
    weighed = served(clip, lines, scheme="attention: bias")
    weighed.encode_from_tokens(weighed.tokenize("a (cat:1.2)"), return_pooled=True)
    assert any("rows alone" in line for line in lines), lines
    lines.clear()
    weighed.encode_from_tokens(weighed.tokenize("a cat"), return_pooled=True)
    assert not lines


def check_another_rule_is_told_and_tokens_of_its_own_are_left_alone() -> None:
    """SmZNodes puts functions on towers, and makes tokens that are no pairs."""
    for choices in ({}, A1111, {"scheme": "attention: bias"}):
        clip = make_clip("SD1")
        lines: list[str] = []
        work = served(clip, lines, **choices)
        answer = torch.ones(1, 77, WIDTHS["l"]), torch.ones(1, WIDTHS["l"])
        seen: list[Any] = []

        def rule(pairs: Any, answer: Any = answer, seen: list[Any] = seen) -> Any:
            seen.append(pairs)
            return answer

        tokens = {"l": [[["a cat"]]]}
        work.cond_stage_model.clip_l.encode_token_weights = rule
        try:
            rows, _ = work.encode_from_tokens(tokens, return_pooled=True)
        finally:
            del work.cond_stage_model.clip_l.encode_token_weights
        assert torch.equal(rows, answer[0]) and seen == [tokens["l"]]
        assert any("has replaced how this CLIP" in line for line in lines), lines


@compares("Weighted CLIP before and behind CLIP NegPip of ComfyUI-ppm, small, with that pack's rule and with ours")
def check_before_and_behind_negpip_beside_ppm() -> None:
    text = "a (red:-0.5) cat on a (mat:1.3)"
    for family in ("SD1", "SDXL"):
        clip, model = make_clip(family), make_model(family)
        _, patched = theirs(model, clip)
        expected = stock(patched, text)
        for choices in ({}, {"scheme": "a1111"}):
            lines: list[str] = []
            _, behind = theirs(model, served(clip, lines, **choices))
            wanted = ours(patched, text, **choices) if choices else expected
            assert wanted[0][0].shape[1] == 154 and (not choices or alike_not(wanted, expected))
            alike(stock(behind, text), wanted)
            alike(stock(served(patched, **choices), text), wanted)
            assert choices or any("has replaced how this CLIP" in line for line in lines), lines
        alike(stock(patched, text), expected)
        alike(stock(clip, text), stock(make_clip(family), text))


@compares("Tokens made anew on a Weighted CLIP with a schedule of hooks, small, with our own node")
def check_hook_schedules_with_tokens_made_anew() -> None:
    for family in ("SD1", "SDXL"):
        clip = make_clip(family)
        for is_scheduled in (False, True):
            for choices in (A1111, BLEND):
                work = hooked(served(clip, **choices), is_scheduled)
                found = work.encode_from_tokens_scheduled(remade(work.tokenize(TEXT), EDITS["plain"]))
                expected = ours(hooked(clip, is_scheduled), TEXT, **choices)
                assert len(found) == len(expected) == 1 + is_scheduled
                for (one, _), (other, _) in zip(found, expected, strict=True):
                    difference(one, other)
        lora = make_lora(clip.cond_stage_model, LORA)
        work = with_lora(served(clip, **A1111), lora, 0.7)
        tokens = remade(work.tokenize(TEXT), EDITS["computed weights"])
        difference(work.encode_from_tokens(tokens), ours(with_lora(clip, lora, 0.7), TEXT, **A1111)[0][0])


@compares("Flux and SD 3 on a Weighted CLIP with CLIP's tokens made anew, small, with our own node")
def check_encoders_beside_t5_with_tokens_made_anew() -> None:
    for family in ("Flux", "SD3", "SD3 without T5"):
        clip = make_clip(family)
        for choices in (A1111, BLEND):
            work = served(clip, **choices)
            tokens = work.tokenize(TEXT)
            for edit in EDITS.values():
                found = work.encode_from_tokens_scheduled(remade(tokens, edit))
                expected = run_ours("WeightedCLIPTextEncode", clip=clip, text=TEXT, **choices)["result"][0]
                alike(found, expected)
        for text in ("", "a red cat on a mat"):
            tokens = remade(served(clip).tokenize(text), EDITS["plain"])
            alike(served(clip).encode_from_tokens_scheduled(tokens), stock(clip, text))


if __name__ == "__main__":
    main(globals())
