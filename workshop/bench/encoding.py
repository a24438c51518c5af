"""Times from text to hidden states: reading normal and hostile texts, tokenizing, encoding beside other programs.

And shared computation: a prompt while it is typed, common beginnings of prompts, faded words, texts encoded together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ...weighting.reading.convert import TARGETS
from ..peers.transformers import Transformers, transformers_of, transformers_tokenizer
from .page import (
    COMPARISON_HEAD,
    NOT_FOUND,
    Goal,
    PageSection,
    Request,
    in_turn,
    milliseconds,
    missing,
    rows_of,
    table,
    times,
)
from .scale import BenchScale
from .texts import FOUR_DOWN, NEGATIVE, ONE_UP, PROMPTS, TEXTS, TIMED, fresh, grids, text_of, typed
from .timing import (
    TRANSFORMERS,
    Run,
    best_batch,
    best_time,
    compare,
    growth,
    in_order,
    native,
    ours,
    ours_together,
    times_in_turn,
    without_collector,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ...encoder.cache import ChunkKey
    from ...encoder.encoding import EncodeFn
    from ...encoder.models.text_model import TextModel

# ---- reading

SYNTAXES = sorted(TARGETS)


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
            exponents = growths[f"{syntax}, {name}"] = growth(middle, long, factor), growth(times[1], times[2], factor)
            cells = [syntax, name, *map(milliseconds, times), *(f"{exponent:.2f}" for exponent in exponents)]
            of_syntax.append((times[0], cells))
        normal, *hostile = of_syntax
        slowest = max(hostile, key=lambda timed: timed[0])  # of the first length
        rows += [cells for _, cells in (normal, slowest)]
    head = ["Syntax", "Text", *(f"{length:,} characters, ms" for length in lengths), "Growth", "With collector"]
    (alone, at), (together, together_at) = (max((pair[i], name) for name, pair in growths.items()) for i in (0, 1))
    return (
        f"{table(head, rows, num_left=2)}\n\n"
        f"The largest growth is {alone:.2f} ({at}); with the collector, {together:.2f} ({together_at})."
    )


def _parse_time(syntax: str, text: str, scale: BenchScale) -> float:
    from ...weighting.syntax import parse

    return best_time(lambda: parse(text, syntax), seconds=scale.parse_seconds, repetitions=scale.parse_repetitions)


PARSE = PageSection(
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
    from ...weighting.reading.prompt_reader import read_prompt

    text, weighted = text_of("normal", "none", 300), text_of("normal", "comfy", 300)
    tokenize = default_tokenizer()
    options = EncodeOptions()
    contestants: dict[str, Callable[[], Any]] = {
        "ids with places": lambda: tokenize(text),
        "text to weighted chunks": lambda: read_prompt(weighted, options, tokenize),
    }
    peer_tokenizer = transformers_tokenizer() if find_spec("transformers") else None
    if peer_tokenizer is not None:
        contestants[TOKENIZER] = lambda: peer_tokenizer(text)
    durations = times_in_turn(contestants, repetitions=request.scale.token_repetitions, inner=request.scale.token_inner)
    peer = durations.pop(TOKENIZER, None)
    rows: list[list[str]] = []
    for name, run_times in durations.items():
        cells = times(compare(run_times, peer or run_times), lambda seconds: f"{seconds * 1e6:.0f}")
        if peer_tokenizer is None:
            rows.append(["300 characters", name, TOKENIZER, cells[0], *["-"] * 3, NOT_FOUND])
            continue
        same = peer_tokenizer(text)["input_ids"][1:-1] == [token.id for token in tokenize(text)]
        rows.append(["300 characters", name, TOKENIZER, *cells, "yes" if same else "no"])
    return table(TOKENS_HEAD, rows, num_left=3)


TOKENS = PageSection(
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
    "four words down": {"compel": {"syntax": "compel", "scheme": "compel"}},
}
"""Our ways of encoding each prompt, with their options."""

PAIRS = (
    ("plain", "comfy", TRANSFORMERS, True),
    ("plain", EXACT, TRANSFORMERS, True),
    ("plain", "comfy", COMPEL, True),
    ("one word up", "comfy", COMPEL, True),
    ("four words down", "compel", COMPEL, True),
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
    from ...encoder.models.text_model import TextEncoder

    encoder = TextEncoder(model) if way == EXACT else native(model)
    return ours(encoder, fresh(PROMPTS[prompt], choices["syntax"]), **choices)


def open_peers(model: TextModel) -> Callable[[str, str], Run | None]:
    """From the names of a peer and a prompt to a function that encodes its next text; None if it is not installed."""
    peer_model, compel = transformers_of(model), None
    if peer_model is not None and find_spec("compel") is not None:
        from ..peers.compel_library import open_peer

        compel = open_peer(model)

    def peer_of(name: str, prompt: str) -> Run | None:
        if name == TRANSFORMERS:
            return peer_model and peer_model.one(fresh(PROMPTS[prompt], "none"))
        return compel and in_order(compel, {}, fresh(PROMPTS[prompt], "compel"))

    return peer_of


ENCODE = PageSection(
    "encode",
    encode_block,
    "Beside transformers and compel",
    (
        Goal("A plain prompt", "transformers", rows_of("plain", "comfy", TRANSFORMERS), 0.97, is_certain=True),
        Goal("Four words down in 60 tokens", "compel", rows_of("four words down", "compel", COMPEL), 2.0),
    ),
)


# ---- what is computed once

TYPED, GRID, FADED = "last word of 3 chunks typed", "prompts with 40 tokens alike", "four words down"
PAIR, TIMES = "positive and negative", "four texts of a timed prompt"
NO_MEMORY, FULL_PASSES, ONE_BY_ONE = "ours, nothing remembered", "ours, bit for bit", "ours, one by one"
LAWS = ("nested", "compel")
POSITIONS_HEAD = ("Prompt", "Ours", "Encodings", "Their positions", "Positions run", "Part")
TIMED_STEPS = 20


def sharing_block(request: Request) -> str:
    """Section in Markdown: times compared with a peer or another way of ours, and positions run through the encoder."""
    import torch

    scale = request.scale
    model = scale.model()
    peer_model = transformers_of(model)
    with torch.no_grad():
        rows = [*_typed_rows(model, peer_model, scale), _grid_row(model, peer_model, scale)]
        rows += [*_faded_rows(model, scale), *_together_rows(model, scale)]
        counts = _position_rows(model, scale)
    return "\n\n".join([table(COMPARISON_HEAD, rows, num_left=3), table(POSITIONS_HEAD, counts, num_left=2)])


def _typed_rows(model: TextModel, peer_model: Transformers | None, scale: BenchScale) -> list[list[str]]:
    peers: dict[str, Run | None] = {
        NO_MEMORY: ours(native(model, 0), typed()),
        f"{TRANSFORMERS}, a batch of 3": None if peer_model is None else peer_model.long(typed()),
    }
    return in_turn(TYPED, {"remembering": ours(native(model), typed())}, peers, scale.repetitions)


def _grid_row(model: TextModel, peer_model: Transformers | None, scale: BenchScale) -> list[str]:
    count, way = scale.num_prompts, f"{scale.num_prompts} in one call"
    if peer_model is None:
        return missing(GRID, way, TRANSFORMERS)
    best = best_batch(peer_model, lambda: grids(count), scale.batches)
    peers: dict[str, Run | None] = {f"{TRANSFORMERS}, batches of {best}": peer_model.batch(grids(count), best)}
    run = ours_together(native(model, 0), grids(count))
    return in_turn(GRID, {way: run}, peers, scale.grid_repetitions)[0]


def _faded_rows(model: TextModel, scale: BenchScale) -> list[list[str]]:
    from ...encoder.models.text_model import TextEncoder

    rows: list[list[str]] = []
    for law in LAWS:
        runs = [_faded(encoder, law) for encoder in (native(model, 0), TextEncoder(model))]
        rows += in_turn(FADED, {_law(law): runs[0]}, {FULL_PASSES: runs[1]}, scale.repetitions)
    return rows


def _faded(encode: EncodeFn, law: str) -> Callable[[], Tensor]:
    return ours(encode, fresh(FOUR_DOWN, "comfy"), syntax="comfy", scheme="masked_blend", law=law)


def _law(law: str) -> str:
    return f"masked_blend, law {law}"


def _together_rows(model: TextModel, scale: BenchScale) -> list[list[str]]:
    def pairs() -> Iterator[Sequence[str]]:
        return zip(fresh(ONE_UP, "comfy"), fresh(NEGATIVE, "comfy"), strict=True)

    rows: list[list[str]] = []
    for prompt, make, syntax in ((PAIR, pairs, "comfy"), (TIMES, timed, "a1111")):
        together, alone = (
            ours_together(native(model), make(), is_together=is_together, syntax=syntax)
            for is_together in (True, False)
        )
        rows += in_turn(prompt, {"together": together}, {ONE_BY_ONE: alone}, scale.repetitions)
    return rows


def timed() -> Iterator[list[str]]:
    """Texts of a timed prompt, repeatedly with another first word."""
    from ...weighting.timed.schedule import read_timed

    for source in fresh(TIMED, "a1111"):
        yield [text.text for text in read_timed(source, TIMED_STEPS).branches[0].texts]


def _position_rows(model: TextModel, scale: BenchScale) -> list[list[str]]:
    """Cells of `POSITIONS_HEAD`."""
    rows: list[list[str]] = []
    counted = _Counted(native(model, 0))
    for law in LAWS:
        _faded(counted, law)()
        rows.append([FADED, _law(law), *counted.cells()])
    ours_together(counted, grids(scale.num_prompts))()
    rows.append([GRID, f"{scale.num_prompts} in one call", *counted.cells()])
    return rows


class _Counted:
    """An encode function that counts the requested chunks."""

    def __init__(self, encode: EncodeFn) -> None:
        self.encode = encode
        self.calls: list[list[ChunkKey]] = []

    def __call__(self, ids: Sequence[Sequence[Any]], mask: Tensor | None = None, *, is_causal: bool = True) -> Any:
        from ...encoder.cache import chunk_keys
        from ...encoder.masks import check_mask

        if mask is not None:
            mask = check_mask(mask, len(ids), len(ids[0])).expand(len(ids), len(ids[0]), len(ids[0]))
        self.calls.append(chunk_keys(ids, mask, is_causal=is_causal))
        return self.encode(ids, mask, is_causal=is_causal)

    def cells(self) -> list[str]:
        """Encodings, their positions, those an encoder without a cache runs, and the share; resets the counters."""
        from ...encoder.models.prefix import share

        calls, self.calls = self.calls, []
        num_chunks = sum(map(len, calls))
        total = sum(len(key.positions) for keys in calls for key in keys)
        run = sum(len(share(list(dict.fromkeys(keys))).fresh) for keys in calls)
        return [str(num_chunks), str(total), str(run), f"{run / total:.2f}"]


SHARING = PageSection(
    "sharing",
    sharing_block,
    "What is computed once",
    (
        Goal(
            "The last word of three chunks changed",
            "transformers' full encode",
            rows_of(TYPED, "*", f"{TRANSFORMERS}*"),
            5.0,
        ),
        Goal("The last word of three chunks changed", "our own full encode", rows_of(TYPED, "*", NO_MEMORY), 5.0),
        Goal("64 prompts, 40 tokens alike", "transformers' best batch", rows_of(GRID, "*", f"{TRANSFORMERS}*"), 1.6),
    ),
)
