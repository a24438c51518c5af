"""Checks of prompts that glide: at each call of the denoiser the rows that prompt-fusion's own code would have mixed.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from inprocess import apart, compares, main, make_clip, note, refusal, stock
from inprocess_timed import Bench, encode_timed, sample, sigmas_of
from served_clip import effects, served
from toys import make_text_encoder

CASES = Path(__file__).resolve().parent.parent / "cases" / "glide.json"
GLIDES = {"glides": "prompt-fusion"}


def cases() -> list[dict[str, Any]]:
    """Cases of one pass by the current rule."""
    found = json.loads(CASES.read_text(encoding="utf-8"))["cases"]
    return [case for case in found if case["hires_steps"] is None and not case["use_old_scheduling"]]


@compares("Glides, 100 with prompt-fusion's own shares: each denoiser call, with its texts mixed", limit=1e-5)
def check_each_call_has_the_mixture_of_prompt_fusion() -> None:
    bench = Bench()
    assert len(cases()) > 100
    for case in cases():
        sigmas = sigmas_of(bench.model, "karras", case["steps"])
        positive = encode_timed(bench.clip, case["prompt"], sigmas=sigmas, **GLIDES)
        calls = sample(bench.model, positive, bench.negative, sigmas)
        assert len(calls) == case["steps"]
        for call, mixture in zip(calls, case["expected"], strict=True):
            (rows,) = call.positives
            expected = sum(bench.encodings.of(text).double() * share for share, text in mixture)
            note(apart(rows.double(), expected))


@compares("Glides by Weighted CLIP and CLIP Text Encode, with A1111/Forge Prompt", limit=1e-6)
def check_weighted_clip_glides_as_the_encode_node_does() -> None:
    for family in ("SD1", "SDXL"):
        clip = make_clip(family)
        for text in ("a [cat:dog:0.2,0.8] in a bowl", "a (dog:0.2@0,1.2@0.5) [red|blue:0.5] hat", "a [cat:dog:5]"):
            choices = {"syntax": "a1111", "scheme": "a1111", "chunking": "a1111", "timed": True, "steps": 10, **GLIDES}
            by_clip = stock(served(clip, **choices), text)
            by_node = encode_timed(clip, text, steps=10, **GLIDES)
            assert len(by_clip) == len(by_node) > 1
            for (rows, values), (other, others) in zip(by_clip, by_node, strict=True):
                note(apart(rows, other))
                note(apart(values["pooled_output"], others["pooled_output"]))
                assert values["start_percent"] == others["start_percent"]


@compares("Glides in Flux by Weighted CLIP: rows, with the two texts mixed", limit=1e-6)
def check_texts_of_other_encoders_are_mixed_and_keep_weights_in_the_attention() -> None:
    clip = make_text_encoder("Flux")
    by_clip = served(clip, timed=True, steps=4, counter="as written", syntax="a1111", **GLIDES)
    plain = served(clip, syntax="a1111")
    conditioning = stock(by_clip, "a (red:1.5) [cat:dog:0.0,1.0]")
    whole = [stock(plain, f"a (red:1.5) {animal}") for animal in ("cat", "dog")]
    assert len(conditioning) == 4
    for number, entry in enumerate(conditioning, 1):
        shares = (1 - number / 4, number / 4)
        note(apart(entry[0], sum(share * text[0][0] for share, text in zip(shares, whole, strict=True))))
        assert torch.equal(effects([entry]), effects(whole[0]))
    line = stock(by_clip, "a (cat:0.5@0,1.5@1) dog")
    weights = [effects([entry]).view(2, -1) for entry in line]
    assert len(line) == 4 and len({tuple(weight.flatten().tolist()) for weight in weights}) == 4
    message = refusal(lambda: stock(by_clip, "a [(cat:1.5):a (dog:1.2):0.0,1.0]"))
    assert "weights in the attention on different rows" in message


if __name__ == "__main__":
    main(globals())
