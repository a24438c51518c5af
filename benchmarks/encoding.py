"""How long prompts take from text to hidden states, beside transformers and the compel library, on the same weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..parity.transformers_reference import transformers_text_model, transformers_tokenizer
from .page import COMPARISON_HEAD, comparison, missing, table
from .texts import PROMPTS, written
from .timing import compare, times_in_turn

if TYPE_CHECKING:
    from ..encoder.text_model import TextModel

TRANSFORMERS, COMPEL = "transformers", "compel"

WAYS: dict[str, dict[str, dict[str, str]]] = {
    "plain": {"comfy": {"syntax": "comfy", "scheme": "comfy"}},
    "one word up": {"comfy": {"syntax": "comfy", "scheme": "comfy"}},
    "four words down": {
        "compel": {"syntax": "compel", "scheme": "compel"},
        "masked_blend, law compel": {"syntax": "compel", "scheme": "masked_blend", "law": "compel"},
        "masked_blend, law nested": {"syntax": "compel", "scheme": "masked_blend", "law": "nested"},
    },
}
"""For each prompt, our ways of encoding it, with their options."""

PAIRS = (
    ("plain", "comfy", TRANSFORMERS, True),
    ("plain", "comfy", COMPEL, True),
    ("one word up", "comfy", COMPEL, True),
    ("four words down", "compel", COMPEL, True),
    ("four words down", "masked_blend, law compel", COMPEL, True),
    ("four words down", "masked_blend, law nested", COMPEL, False),
)
"""Prompt, our way, the peer, and whether both compute the same."""


def encode_block(model: TextModel, *, repetitions: int) -> str:
    """Measure and make the table.

    Args:
        model: Our text tower; the peers get its very tensors.
        repetitions: Rounds.

    Returns:
        Markdown: a row for each of `PAIRS`.
    """
    import torch

    peers = _peers(model)
    rows: list[list[str]] = []
    with torch.no_grad():
        for prompt, ways in WAYS.items():
            runs = {name: _ours(model, prompt, options) for name, options in ways.items()}
            pairs = [pair for pair in PAIRS if pair[0] == prompt]
            runs |= {f"peer {name}": peers[name](prompt) for _, _, name, _ in pairs if name in peers}
            results = {name: run() for name, run in runs.items()}
            times = times_in_turn(runs, repetitions=repetitions)
            for _, way, name, is_same in pairs:
                if name not in peers:
                    rows.append(missing(prompt, way, name))
                    continue
                difference = float((results[way] - results[f"peer {name}"]).abs().max()) if is_same else None
                rows.append(comparison(prompt, way, name, compare(times[way], times[f"peer {name}"]), difference))
    return table(COMPARISON_HEAD, rows, num_left=3)


def _ours(model: TextModel, prompt: str, choices: dict[str, str]) -> Callable[[], Any]:
    from ..encoder.text_model import TextEncoder
    from ..encoder.tokenizer import default_tokenizer
    from ..weighting.encode import EncodeOptions, encode_prompt, read_prompt

    options = EncodeOptions(**choices)  # pyright: ignore[reportArgumentType]
    text = written(PROMPTS[prompt], options.syntax)
    tokenize, encoder = default_tokenizer(), TextEncoder(model)
    return lambda: encode_prompt(read_prompt(text, options, tokenize), encoder, tokenize).hidden


def _peers(model: TextModel) -> dict[str, Callable[[str], Callable[[], Any]]]:
    """For each peer that is installed, a function from the name of a prompt to a function that encodes it."""
    try:
        tokenizer, encoder = transformers_tokenizer(), transformers_text_model(model)
    except ImportError:
        return {}

    def with_transformers(prompt: str) -> Callable[[], Any]:
        text = written(PROMPTS[prompt], "none")

        def run() -> Any:
            tokens = tokenizer(text, padding="max_length", truncation=True, return_tensors="pt")
            return encoder(tokens["input_ids"]).last_hidden_state

        return run

    found: dict[str, Callable[[str], Callable[[], Any]]] = {TRANSFORMERS: with_transformers}
    try:
        from compel import Compel
    except ImportError:
        return found
    compel = Compel(tokenizer, encoder)

    def with_compel(prompt: str) -> Callable[[], Any]:
        text = written(PROMPTS[prompt], "compel")
        return lambda: compel(text)

    return {**found, COMPEL: with_compel}
