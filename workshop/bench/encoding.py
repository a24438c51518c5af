"""Times from text to hidden states: reading normal and hostile texts, tokenizing, encoding beside other programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..peers.transformers import transformers_of, transformers_tokenizer
from .page import (
    COMPARISON_HEAD,
    NOT_FOUND,
    Goal,
    Request,
    Section,
    in_turn,
    milliseconds,
    rows_of,
    table,
    times,
)
from .scale import Scale
from .texts import PROMPTS, TEXTS, fresh, text_of
from .timing import TRANSFORMERS, Run, best_time, compare, growth, native, ours, times_in_turn, without_collector

if TYPE_CHECKING:
    from torch import Tensor

    from ...encoder.text_model import TextModel

# ---- reading

SYNTAXES = ("a1111", "comfy", "compel")
NUM_SLOWEST = 2
"""Hostile texts that are shown of each syntax: the slowest of the first length."""


def parse_block(request: Request) -> str:
    """Section in Markdown: of each syntax the normal text and the slowest others, and the largest growth of all."""
    scale = request.scale
    rows: list[list[str]] = []
    growths: dict[str, tuple[float, float]] = {}
    lengths = scale.parse_lengths
    factor = lengths[2] / lengths[1]
    for syntax in SYNTAXES:
        of_syntax: list[tuple[float, list[str]]] = []
        for name in TEXTS:
            texts = [text_of(name, syntax, length) for length in lengths]
            times = [_parse_time(syntax, text, scale) for text in texts]
            with without_collector():
                middle, long = (_parse_time(syntax, text, scale) for text in texts[1:])
            found = growths[f"{syntax}, {name}"] = (growth(middle, long, factor), growth(times[1], times[2], factor))
            cells = [syntax, name, *map(milliseconds, times), *(f"{exponent:.2f}" for exponent in found)]
            of_syntax.append((times[0], cells))
        normal, *hostile = of_syntax
        slowest = sorted(hostile, key=lambda timed: -timed[0])[:NUM_SLOWEST]
        rows += [cells for _, cells in (normal, *slowest)]
    head = ["Syntax", "Text", *(f"{length:,} characters, ms" for length in lengths), "Growth", "With collector"]
    (alone, at), (together, there) = (max((pair[i], name) for name, pair in growths.items()) for i in (0, 1))
    return (
        f"{table(head, rows, num_left=2)}\n\n"
        f"The largest growth is {alone:.2f} ({at}); with the collector, {together:.2f} ({there})."
    )


def _parse_time(syntax: str, text: str, scale: Scale) -> float:
    from ...weighting.syntax import parse

    return best_time(lambda: parse(text, syntax), seconds=scale.parse_seconds, repetitions=scale.parse_repetitions)


PARSE = Section(
    "parse",
    parse_block,
    "Reading a prompt",
    (
        Goal(
            "Reading 300 characters",
            "-",
            {"Syntax": ("a1111", "comfy"), "Text": ("normal",)},
            0.2,
            "300 characters, ms",
        ),
    ),
)

# ---- tokenizing

TOKENS_HEAD = ("Text", "Ours", "Peer", "Ours, µs", "Peer, µs", "Ours / peer", "Middle half", "Same ids")
TOKENIZER = "transformers CLIPTokenizer"


def token_block(request: Request) -> str:
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
        contestants[TOKENIZER] = lambda: theirs(text)
    taken = times_in_turn(contestants, repetitions=request.scale.token_repetitions, inner=request.scale.token_inner)
    peer = taken.pop(TOKENIZER, None)
    rows: list[list[str]] = []
    for name, own in taken.items():
        cells = times(compare(own, peer or own), lambda seconds: f"{seconds * 1e6:.0f}")
        if theirs is None:
            rows.append(["300 characters", name, TOKENIZER, cells[0], *["-"] * 3, NOT_FOUND])
            continue
        same = theirs(text)["input_ids"][1:-1] == [token.id for token in tokenize(text)]
        rows.append(["300 characters", name, TOKENIZER, *cells, "yes" if same else "no"])
    return table(TOKENS_HEAD, rows, num_left=3)


TOKENS = Section(
    "tokens",
    token_block,
    "From text to tokens",
    (Goal("Tokenizing", "transformers' fast tokenizer", {"Ours": ("ids with places",)}, 1.0),),
)

# ---- encoding

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


def encode_block(request: Request) -> str:
    """Section in Markdown: a row for each of `PAIRS`."""
    import torch

    scale = request.scale
    model = scale.model()
    peer_of = open_peers(model)
    rows: list[list[str]] = []
    with torch.no_grad():
        for prompt, ways in WAYS.items():
            pairs = [(way, name, is_same) for of, way, name, is_same in PAIRS if of == prompt]
            runs = {way: _ours(model, prompt, way, options) for way, options in ways.items()}
            peers = {name: peer_of(name, prompt) for _, name, _ in pairs}
            rows += in_turn(prompt, runs, peers, scale.repetitions, pairs)
    return table(COMPARISON_HEAD, rows, num_left=3)


def _ours(model: TextModel, prompt: str, way: str, choices: dict[str, str]) -> Run:
    """One of our ways, with its own cache and its own sequence of texts."""
    from ...encoder.text_model import TextEncoder

    encoder = TextEncoder(model) if way == EXACT else native(model)
    return ours(encoder, fresh(PROMPTS[prompt], choices["syntax"]), **choices)


def open_peers(model: TextModel) -> Callable[[str, str], Run | None]:
    """From the names of a peer and a prompt to a function that encodes its next text; None if it is not installed."""
    theirs, compel = transformers_of(model), None
    if theirs is not None and find_spec("compel") is not None:
        from ..peers.compel import open_peer

        compel = open_peer(model)

    def peer_of(name: str, prompt: str) -> Run | None:
        if name == TRANSFORMERS:
            return theirs and theirs.one(fresh(PROMPTS[prompt], "none"))
        return compel and partial(_next, compel, fresh(PROMPTS[prompt], "compel"))

    return peer_of


def _next(encode: Callable[[dict[str, Any], str], Tensor], prompts: Iterator[str]) -> Tensor:
    return encode({}, next(prompts))


ENCODE = Section(
    "encode",
    encode_block,
    "Beside transformers and compel",
    (
        Goal("A plain prompt", "transformers", rows_of("plain", "comfy", TRANSFORMERS), 0.97),
        Goal("Four words down in 60 tokens", "compel", rows_of("four words down", "compel", COMPEL), 2.0),
    ),
)
