"""How long prompts take from text to hidden states, beside transformers and the compel library, on the same weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .page import COMPARISON_HEAD, comparison, missing, table
from .texts import PROMPTS, written
from .timing import compare, times_in_turn
from .tokenizing import peer_tokenizer

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
        tokenizer, encoder = peer_tokenizer(), peer_encoder(model)
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


def peer_encoder(model: TextModel) -> Any:
    """The text model of transformers in the same size, on the same tensors.

    Args:
        model: Ours.

    Returns:
        A ``CLIPTextModel``, in evaluation mode.

    Raises:
        ImportError: If there is no transformers.
    """
    from transformers import CLIPTextConfig, CLIPTextModel

    config = model.config
    theirs = CLIPTextModel(
        CLIPTextConfig(
            hidden_size=config.hidden_dim,
            intermediate_size=config.mlp_dim,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            bos_token_id=config.bos_id,
            eos_token_id=config.eos_id,
            pad_token_id=config.pad_id,
        )
    )
    ours = model.state_dict()
    shared = {name: ours[name.removeprefix("text_model.")] for name in theirs.state_dict()}
    theirs.load_state_dict(shared, assign=True)
    return theirs.eval().requires_grad_(False)
