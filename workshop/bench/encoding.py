"""Times of prompts from text to hidden states, compared with transformers and compel on the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .page import COMPARISON_HEAD, comparison, missing, table
from .runs import TRANSFORMERS, Transformers, native, ours, transformers_of
from .scale import Scale
from .texts import PROMPTS, fresh
from .timing import compare, times_in_turn

if TYPE_CHECKING:
    from torch import Tensor

    from ...encoder.text_model import TextModel

COMPEL = "compel"
EXACT = "comfy, bit for bit"
"""Our slow encoder, bit-identical to transformers."""

WAYS: dict[str, dict[str, dict[str, str]]] = {
    "plain": {
        "comfy": {"syntax": "comfy", "scheme": "comfy"},
        EXACT: {"syntax": "comfy", "scheme": "comfy"},
    },
    "one word up": {"comfy": {"syntax": "comfy", "scheme": "comfy"}},
    "four words down": {
        "compel": {"syntax": "compel", "scheme": "compel"},
        "masked_blend, law compel": {"syntax": "compel", "scheme": "masked_blend", "law": "compel"},
        "masked_blend, law nested": {"syntax": "compel", "scheme": "masked_blend", "law": "nested"},
    },
}
"""Our ways of encoding each prompt, with their options."""

PAIRS = (
    ("plain", "comfy", TRANSFORMERS, True),
    ("plain", EXACT, TRANSFORMERS, True),
    ("plain", "comfy", COMPEL, True),
    ("one word up", "comfy", COMPEL, True),
    ("four words down", "compel", COMPEL, True),
    ("four words down", "masked_blend, law compel", COMPEL, True),
    ("four words down", "masked_blend, law nested", COMPEL, False),
)
"""Prompt, our way, the peer, and whether both compute the same."""


def encode_block(scale: Scale) -> str:
    """Section in Markdown: a row for each of `PAIRS`."""
    import torch

    model = scale.model()
    others = peers(model)
    rows: list[list[str]] = []
    with torch.no_grad():
        for prompt, ways in WAYS.items():
            runs = {way: _ours(model, prompt, way, options) for way, options in ways.items()}
            pairs = [pair for pair in PAIRS if pair[0] == prompt]
            runs |= {f"peer {name}": others[name](prompt) for _, _, name, _ in pairs if name in others}
            results = {name: run() for name, run in runs.items()}  # all for the first text in the sequence
            times = times_in_turn(runs, repetitions=scale.repetitions)
            for _, way, name, is_same in pairs:
                if name not in others:
                    rows.append(missing(prompt, way, name))
                    continue
                difference = float((results[way] - results[f"peer {name}"]).abs().max()) if is_same else None
                rows.append(comparison(prompt, way, name, compare(times[way], times[f"peer {name}"]), difference))
    return table(COMPARISON_HEAD, rows, num_left=3)


def _ours(model: TextModel, prompt: str, way: str, choices: dict[str, str]) -> Callable[[], Tensor]:
    """One of our ways, with its own cache and its own sequence of texts."""
    from ...encoder.text_model import TextEncoder

    encoder = TextEncoder(model) if way == EXACT else native(model)
    return ours(encoder, fresh(PROMPTS[prompt], choices["syntax"]), **choices)


def peers(model: TextModel) -> dict[str, Callable[[str], Callable[[], Any]]]:
    """For each installed peer, a function from the name of a prompt to one that encodes its next text."""
    theirs = transformers_of(model)
    if theirs is None:
        return {}
    found: dict[str, Callable[[str], Callable[[], Any]]] = {
        TRANSFORMERS: lambda prompt: theirs.one(fresh(PROMPTS[prompt], "none"))
    }
    return found | _compel(theirs)


def _compel(theirs: Transformers) -> dict[str, Callable[[str], Callable[[], Any]]]:
    if find_spec("compel") is None:
        return {}
    from compel import Compel

    compel = Compel(*theirs)

    def with_compel(prompt: str) -> Callable[[], Any]:
        texts: Iterator[str] = fresh(PROMPTS[prompt], "compel")
        return lambda: compel(next(texts))

    return {COMPEL: with_compel}
