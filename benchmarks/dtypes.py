"""Costs and savings of 16-bit weights on this processor, compared with float32 of the same encoder."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from .page import table, times
from .runs import native, ours
from .scale import Scale
from .texts import PROMPTS, fresh
from .timing import compare, times_in_turn

if TYPE_CHECKING:
    import torch

    from ..encoder.text_model import TextEncoder, TextModel

NATIVE, EXACT = "native encoder", "bit for bit"
CASES = ((NATIVE, "bfloat16"), (NATIVE, "float16"), (EXACT, "bfloat16"))
"""Encoder and type of the weights."""
HEAD = (
    *("Encoder", "Weights", "Beside", "Ours, ms", "Peer, ms", "Ours / peer", "Middle half"),
    *("Largest difference", "Rms difference"),
)


def type_block(scale: Scale) -> str:
    """Section in Markdown: a row for each of `CASES`, and the types this processor supports in hardware."""
    import torch

    model = scale.model()
    models = {"float32": model} | {
        name: copy.deepcopy(model).to(getattr(torch, name)) for name in dict.fromkeys(name for _, name in CASES)
    }
    every = dict.fromkeys([*((encoder, "float32") for encoder, _ in CASES), *CASES])
    prompt = PROMPTS["plain"]
    runs = {
        f"{encoder} {name}": ours(_encoder(encoder, models[name]), fresh(prompt, "comfy")) for encoder, name in every
    }
    results = {name: run() for name, run in runs.items()}
    taken = times_in_turn(runs, repetitions=scale.repetitions)
    rows: list[list[str]] = []
    for encoder, name in CASES:
        this, peer = f"{encoder} {name}", f"{encoder} float32"
        difference = results[this] - results[peer]
        figures = (difference.abs().max(), difference.square().mean().sqrt())
        cells = [f"{float(figure):.2g}" for figure in figures]
        rows.append([encoder, name, "float32", *times(compare(taken[this], taken[peer])), *cells])
    return f"{table(HEAD, rows, num_left=3)}\n\n{arithmetic(torch.bfloat16)} {arithmetic(torch.float16)}"


def _encoder(name: str, model: TextModel) -> TextEncoder:
    from ..encoder.text_model import TextEncoder

    return native(model) if name == NATIVE else TextEncoder(model)


def arithmetic(dtype: torch.dtype) -> str:
    """Whether this processor has instructions for a type, according to oneDNN, in one sentence."""
    import torch

    name = {torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    test = getattr(torch.ops.mkldnn, f"_is_mkldnn_{name}_supported", None)
    if test is None:
        return f"This torch cannot tell whether this processor has {name} arithmetic."
    return f"This processor has {'' if test() else 'no '}{name} arithmetic."
