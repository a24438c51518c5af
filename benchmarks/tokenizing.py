"""How long a prompt takes to become tokens, beside transformers' fast tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..parity.transformers_reference import transformers_tokenizer
from .page import NOT_FOUND, table
from .texts import text_of
from .timing import compare, times_in_turn

HEAD = ("Text", "Ours", "Peer", "Ours, µs", "Peer, µs", "Ours / peer", "Middle half", "Same ids")
TEXT = "300 characters"
PEER = "transformers CLIPTokenizer"


def token_block(*, repetitions: int, inner: int) -> str:
    """Measure and make the table.

    Args:
        repetitions: Rounds.
        inner: Calls in each round.

    Returns:
        Markdown: how long ids with their places in the text take, and one whole reading from text to chunks.
    """
    from ..encoder.tokenizer import default_tokenizer
    from ..weighting.encode import EncodeOptions, read_prompt

    text, weighted = text_of("normal", "none", 300), text_of("normal", "comfy", 300)
    ours = default_tokenizer()
    options = EncodeOptions()
    contestants: dict[str, Callable[[], Any]] = {
        "ids with places": lambda: ours(text),
        "text to weighted chunks": lambda: read_prompt(weighted, options, ours),
    }
    try:
        theirs = transformers_tokenizer()
    except ImportError:
        times = times_in_turn(contestants, repetitions=repetitions, inner=inner)
        peer, ids = None, []
    else:
        contestants[PEER] = lambda: theirs(text)
        times = times_in_turn(contestants, repetitions=repetitions, inner=inner)
        peer, ids = times.pop(PEER), theirs(text)["input_ids"][1:-1]
    rows: list[list[str]] = []
    for name, taken in times.items():
        ratio = compare(taken, peer or taken)
        microseconds = f"{ratio.ours * 1e6:.0f}"
        if peer is None:
            rows.append([TEXT, name, PEER, microseconds, *["-"] * 3, NOT_FOUND])
            continue
        same = "yes" if ids == [token.id for token in ours(text)] else "no"
        rows.append(
            [
                TEXT,
                name,
                PEER,
                microseconds,
                f"{ratio.peer * 1e6:.0f}",
                f"{ratio.ratio:.2f}",
                f"{ratio.low:.2f} to {ratio.high:.2f}",
                same,
            ]
        )
    return table(HEAD, rows, num_left=3)
