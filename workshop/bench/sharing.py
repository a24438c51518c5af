"""Shared computation: a prompt while it is typed, common beginnings of prompts, faded words, texts encoded together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..peers.transformers import Transformers, transformers_of
from .page import COMPARISON_HEAD, Goal, Request, Section, in_turn, missing, rows_of, table
from .scale import Scale
from .texts import FOUR_DOWN, NEGATIVE, ONE_UP, TIMED, fresh, grids, typed
from .timing import TRANSFORMERS, Run, best_batch, native, ours, ours_together

if TYPE_CHECKING:
    from torch import Tensor

    from ...encoder.cache import ChunkKey
    from ...encoder.encoding import EncodeFn
    from ...encoder.text_model import TextModel

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
    theirs = transformers_of(model)
    with torch.no_grad():
        rows = [*_typed_rows(model, theirs, scale), _grid_row(model, theirs, scale)]
        rows += [*_faded_rows(model, scale), *_together_rows(model, scale)]
        counts = _position_rows(model, scale)
    return "\n\n".join([table(COMPARISON_HEAD, rows, num_left=3), table(POSITIONS_HEAD, counts, num_left=2)])


def _typed_rows(model: TextModel, theirs: Transformers | None, scale: Scale) -> list[list[str]]:
    peers: dict[str, Run | None] = {
        NO_MEMORY: ours(native(model, 0), typed()),
        f"{TRANSFORMERS}, a batch of 3": None if theirs is None else theirs.long(typed()),
    }
    return in_turn(TYPED, {"remembering": ours(native(model), typed())}, peers, scale.repetitions)


def _grid_row(model: TextModel, theirs: Transformers | None, scale: Scale) -> list[str]:
    count, way = scale.num_prompts, f"{scale.num_prompts} in one call"
    if theirs is None:
        return missing(GRID, way, TRANSFORMERS)
    best = best_batch(theirs, lambda: grids(count), scale.batches)
    peers: dict[str, Run | None] = {f"{TRANSFORMERS}, batches of {best}": theirs.batch(grids(count), best)}
    run = ours_together(native(model, 0), grids(count))
    return in_turn(GRID, {way: run}, peers, scale.grid_repetitions)[0]


def _faded_rows(model: TextModel, scale: Scale) -> list[list[str]]:
    from ...encoder.text_model import TextEncoder

    rows: list[list[str]] = []
    for law in LAWS:
        runs = [_faded(encoder, law) for encoder in (native(model, 0), TextEncoder(model))]
        rows += in_turn(FADED, {_law(law): runs[0]}, {FULL_PASSES: runs[1]}, scale.repetitions)
    return rows


def _faded(encode: EncodeFn, law: str) -> Callable[[], Tensor]:
    return ours(encode, fresh(FOUR_DOWN, "comfy"), syntax="comfy", scheme="masked_blend", law=law)


def _law(law: str) -> str:
    return f"masked_blend, law {law}"


def _together_rows(model: TextModel, scale: Scale) -> list[list[str]]:
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


def _position_rows(model: TextModel, scale: Scale) -> list[list[str]]:
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
        from ...encoder.prefix import share

        calls, self.calls = self.calls, []
        num_chunks = sum(map(len, calls))
        total = sum(len(key.positions) for keys in calls for key in keys)
        run = sum(len(share(list(dict.fromkeys(keys))).fresh) for keys in calls)
        return [str(num_chunks), str(total), str(run), f"{run / total:.2f}"]


SHARING = Section(
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
