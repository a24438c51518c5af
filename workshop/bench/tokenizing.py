"""Times of tokenizing a prompt, compared with transformers' fast tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from ..peers.transformers import transformers_tokenizer
from .page import NOT_FOUND, table, times
from .scale import Scale
from .texts import text_of
from .timing import compare, times_in_turn

HEAD = ("Text", "Ours", "Peer", "Ours, µs", "Peer, µs", "Ours / peer", "Middle half", "Same ids")
TEXT = "300 characters"
PEER = "transformers CLIPTokenizer"


def token_block(scale: Scale) -> str:
    """Section in Markdown: times of ids with their positions in the text, and of reading from text to chunks."""
    from ...encoder.tokenizer import default_tokenizer
    from ...weighting.options import EncodeOptions
    from ...weighting.reading import read_prompt

    text, weighted = text_of("normal", "none", 300), text_of("normal", "comfy", 300)
    tokenize = default_tokenizer()
    options = EncodeOptions()
    contestants: dict[str, Callable[[], Any]] = {
        "ids with places": lambda: tokenize(text),
        "text to weighted chunks": lambda: read_prompt(weighted, options, tokenize),
    }
    theirs = transformers_tokenizer() if find_spec("transformers") else None
    if theirs is not None:
        contestants[PEER] = lambda: theirs(text)
    taken = times_in_turn(contestants, repetitions=scale.token_repetitions, inner=scale.token_inner)
    peer = taken.pop(PEER, None)
    rows: list[list[str]] = []
    for name, ours in taken.items():
        cells = times(compare(ours, peer or ours), lambda seconds: f"{seconds * 1e6:.0f}")
        if theirs is None:
            rows.append([TEXT, name, PEER, cells[0], *["-"] * 3, NOT_FOUND])
            continue
        same = theirs(text)["input_ids"][1:-1] == [token.id for token in tokenize(text)]
        rows.append([TEXT, name, PEER, *cells, "yes" if same else "no"])
    return table(HEAD, rows, num_left=3)
