"""Table of the goals of speed with a column for each processor they were measured on.

Columns of other machines stay as they are on the page; only this one's is replaced.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from ..peers.transformers import transformers_of
from . import timing
from .encoding import COMPEL, open_peers
from .hosts import STOCK, WAYS, prompts_for, run_in_host
from .images import memory_rows, tower_times
from .page import NOT_FOUND, PageSection, Request, table, table_rows
from .scale import BenchScale
from .texts import PROMPTS, fresh, grids, typed

if TYPE_CHECKING:
    from ...encoder.models.layers import EncoderBlock
    from ...encoder.models.text_model import TextModel

BATCHES = (4, 8, 16)
"""Batch sizes of the peer, of which the fastest counts; others were slower on every machine so far."""
NUM_IMAGES = 4
IMAGE_REPETITIONS = 3
HEAD = ("Work", "Beside", "Asked")
ABOUT = ("date", "version, threads")
"""Names of the rows below the figures."""


class Work(NamedTuple):
    """Row of the table."""

    name: str
    peer: str
    asked: str


PLAIN = Work("plain prompt", "transformers, sdpa", "0.97")
PRODUCTS = Work("its pass, as times of its products", "the same products alone", "1.15 AVX512, 1.25 AVX2")
FADED = Work("four words down", "compel", "2")
TYPED = Work("last word of three chunks", "transformers' full encode", "5")
GRID = Work("64 prompts with 40 tokens alike", "transformers' best batch", "1.6")
IMAGES = Work("image tower", "transformers", "0.97")
WEIGHTED = Work("a weighted prompt", "ComfyUI's own encode", "1.9")
MEMORY = Work("32 images of 512 x 512, MiB", "budget of 512 MiB", "512")
WORKS = (PLAIN, PRODUCTS, FADED, TYPED, GRID, IMAGES, WEIGHTED, MEMORY)


def processor_block(request: Request) -> str:
    """Table of speedups over peers, on this processor and on those of the previous table."""
    import torch

    scale = request.scale

    model = scale.model()
    with torch.no_grad():
        cells = dict(_text_rows(model, scale))
    cells[IMAGES] = _ratio(tower_times(scale, NUM_IMAGES, min(IMAGE_REPETITIONS, scale.image_repetitions)))
    cells[MEMORY] = memory_rows(scale.vision(), scale.num_images, scale.image_side)[0][-2]
    cells[WEIGHTED] = _hosted(request)
    day = str(datetime.datetime.now(datetime.timezone.utc).date())
    column = {work.name: cells[work] for work in WORKS} | dict(zip(ABOUT, (day, timing.with_torch()), strict=True))
    return merged(request.before, timing.processor(), column)


def merged(before: str, name: str, column: Mapping[str, str]) -> str:
    """Replace the column of that name in a table, or append it.

    >>> print(merged("", "One", {work.name: "2.00" for work in WORKS} | {"date": "today"}).splitlines()[2])
    | plain prompt                       | transformers, sdpa        | 0.97                   |  2.00 |
    """
    old = {row[HEAD[0]]: row for row in table_rows(before)}
    names = [head for row in list(old.values())[:1] for head in row if head not in HEAD]
    names += [name] if name not in names else []
    firsts = [*WORKS, *((label, "", "") for label in ABOUT)]
    rows = [
        [
            *first,
            *(
                column.get(first[0], "-") if column_name == name else old.get(first[0], {}).get(column_name, "-")
                for column_name in names
            ),
        ]
        for first in firsts
    ]
    return table([*HEAD, *names], rows, num_left=len(HEAD))


def _text_rows(model: TextModel, scale: BenchScale) -> Iterable[tuple[Work, str]]:
    peer_model, peer_of = transformers_of(model), open_peers(model)

    def timed(run: timing.Run, peer: timing.Run | None, repetitions: int) -> str:
        if peer is None:
            return NOT_FOUND
        return _ratio(timing.times_in_turn({"ours": run, "peer": peer}, repetitions=repetitions))

    plain = timing.ours(timing.native(model), fresh(PROMPTS["plain"], "comfy"), syntax="comfy", scheme="comfy")
    yield PLAIN, timed(plain, peer_of(timing.TRANSFORMERS, "plain"), scale.repetitions)
    passes = timing.times_in_turn({"ours": plain, "products": _products(model)}, repetitions=scale.repetitions)
    yield PRODUCTS, f"{timing.compare(passes['ours'], passes['products']).ratio:.2f}"
    faded = timing.ours(
        timing.native(model), fresh(PROMPTS["four words down"], "compel"), syntax="compel", scheme="compel"
    )
    yield FADED, timed(faded, peer_of(COMPEL, "four words down"), scale.repetitions)
    long = None if peer_model is None else peer_model.long(typed())
    yield TYPED, timed(timing.ours(timing.native(model), typed()), long, scale.repetitions)
    count = scale.num_prompts
    together, best = timing.ours_together(timing.native(model, 0), grids(count)), None
    if peer_model is not None:
        size = timing.best_batch(peer_model, lambda: grids(count), BATCHES, repetitions=1, warm_up=0)
        best = peer_model.batch(grids(count), size)
    yield GRID, timed(together, best, min(3, scale.grid_repetitions))


def _products(model: TextModel) -> timing.Run:
    """The matrix products of a chunk's pass by the kernel of the encoders, and nothing else."""
    import torch

    from ...encoder.cache import state_of
    from ...encoder.models.fast_layers import arithmetic_for, products_of
    from ...encoder.models.kernels import CHOICE

    blocks = cast("Sequence[EncoderBlock]", model.encoder.layers)
    arithmetic = arithmetic_for(model, blocks, CHOICE.now(), state_of(model), partial(state_of, model))
    work = [
        (layers, torch.zeros(model.config.context_length, layers[0].in_features))
        for block in blocks
        for layers in products_of(block)
    ]

    def run() -> None:
        for layers, x in work:
            arithmetic.products(layers, x)

    return run


def _hosted(request: Request) -> str:
    prompt = prompts_for(STOCK)["prompts"]["one word up"]
    prompt["ours"] = {name: how for name, how in prompt["ours"].items() if name.endswith(WAYS["native"])}
    result, why = run_in_host(request, STOCK, {"prompts": {"one word up": prompt}})
    if result is None:
        return why
    times = result["prompts"]["one word up"]["times"]
    ((_, run_times),) = ((name, seconds) for name, seconds in times.items() if name != "peer")
    return _ratio({"ours": run_times, "peer": times["peer"]})


def _ratio(times: Mapping[str, list[float]] | None) -> str:
    """Speedup over the peer, and that at the slow end of the middle half."""
    if times is None:
        return NOT_FOUND
    compared = timing.compare(times["ours"], times["peer"])
    return f"{1 / compared.ratio:.2f} ({1 / compared.high:.2f})"


PROCESSORS = PageSection("processors", processor_block)
