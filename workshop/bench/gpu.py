"""A weighted prompt on a GPU, in three types, compared with transformers' eager and PyTorch's fused attention.

transformers has no weights: it encodes prompt and empty prompt as one batch, as one would write by hand, and the rows
of the weighted word are moved away from those of the empty prompt, as in ComfyUI.

Then whole passes: kernel by kernel, as CUDA graphs, and compiled, compared with the fused attention; and faded words
and many prompts.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

from ..peers.transformers import Transformers, transformers_of
from .encoding import COMPEL, FADED, open_peers
from .hosts import STOCK, find_places
from .page import (
    COMPARISON_HEAD,
    NOT_FOUND,
    Goal,
    PageSection,
    Request,
    in_process,
    in_turn,
    milliseconds,
    missing,
    table,
)
from .samplings import WAYS, time_samplings
from .scale import QUICK, BenchScale
from .texts import FOUR_DOWN, ONE_UP, fresh, grids
from .timing import TRANSFORMERS, Run, compare, native, ours, ours_together

if TYPE_CHECKING:
    from torch import Tensor

    from ...encoder.encoding import EncodeFn, Encoding
    from ...encoder.models.text_model import TextModel

TYPES = ("float32", "float16", "bfloat16")
FUSED = "sdpa"
ATTENTIONS = ("eager", FUSED)
HEAD = ("Weights", *COMPARISON_HEAD[1:], "First call, ms")
NO_DEVICE = "no CUDA device here"
SAMPLINGS_HEAD = ("Model, pixels", "Weights", "Way", "ms", "/ stock", "Middle half", "Asked", "Memory, MiB")
ASKED = {
    "Attention Weights": (1.03, 1.03),
    "Place Phrase": (1.08, 1.10),
    "two regions": (1.25, 1.15),
    "Watch Words": (1.15, 1.15),
}
"""Largest ratios to stock that are asked for: with cross attention, and where text and picture share one."""
JOINT = ("Flux",)
Backend = str | Callable[[Any, Any], Any]
PASSES: dict[str, tuple[Backend, str | None] | None] = {
    "kernel by kernel": None,
    "compiled, CUDA graphs": ("inductor", "reduce-overhead"),
}
"""Backend and mode of ``torch.compile`` for whole passes."""


def gpu_section(request: Request) -> str:
    """`gpu_block` on the GPU, or a note that there is none; with ``--quick`` on the CPU then, to see that it runs."""
    import torch

    has_device = torch.cuda.is_available()
    if not has_device and request.scale is not QUICK:
        return NO_DEVICE
    device, name = ("cuda", torch.cuda.get_device_name()) if has_device else ("cpu", f"{NO_DEVICE}, so the CPU")
    return "\n\n".join([gpu_block(request.scale, device), samplings_block(request, device), f"Measured on: {name}."])


def samplings_block(request: Request, device: str) -> str:
    """Rows for samplings in ComfyUI with and without our nodes; needs a host."""
    place = find_places(request.hosts).get(STOCK)
    if place is None:
        return f"Samplings: {NOT_FOUND}"
    scale = request.scale
    kinds = ["float16", "bfloat16"] if device == "cuda" else ["float32"]
    job = {"models": scale.gpu_samplings, "kinds": kinds, "steps": scale.gpu_steps}
    job |= {"repetitions": scale.gpu_rounds, "device": device}
    found = in_process("samplings did not run", time_samplings, job, place.python, folder=place.host)
    return table(SAMPLINGS_HEAD, [row for each in found for row in _sampling_rows(each)], num_left=3)


def _sampling_rows(result: dict[str, Any]) -> list[list[str]]:
    """Rows of `SAMPLINGS_HEAD` for the ways of a sampling."""
    times, peaks = result["times"], result["peaks"]
    is_joint = result["model"] in JOINT
    rows: list[list[str]] = []
    for way in WAYS:
        ratio = compare(times[way], times[WAYS[0]])
        memory = "-" if peaks[way] is None else f"{(peaks[way] - peaks[WAYS[0]]) / 2**20:.0f}"
        asked = "-" if way not in ASKED else f"{ASKED[way][is_joint]:.2f}"
        cells = [milliseconds(ratio.first), f"{ratio.ratio:.2f}", f"{ratio.low:.2f} to {ratio.high:.2f}", asked, memory]
        rows.append([f"{result['model']}, {8 * result['side']}", result["kind"], way, *cells])
    return rows


def gpu_block(scale: BenchScale, device: str) -> str:
    """A row for each type and attention of the peer, then for each type and pass; a first call includes our setup.

    Then rows for faded words and for many prompts.
    """
    import torch

    from ...encoder.models.graphs import VARIABLE

    model = scale.model()
    rows: list[list[str]] = []
    passes: list[list[str]] = []
    more: list[list[str]] = []
    for kind in TYPES:
        placed = copy.deepcopy(model).to(device, getattr(torch, kind))
        peers = {f"{TRANSFORMERS}, {attention}": transformers_of(placed, attention) for attention in ATTENTIONS}
        fused = {f"{TRANSFORMERS}, {FUSED}": peers[f"{TRANSFORMERS}, {FUSED}"]}
        for name, how in PASSES.items():
            if how is not None and device == "cpu":  # to compile for it takes minutes, and has no graphs
                continue
            passes += _rows(kind, name, partial(whole_passes, placed, how), fused, device, scale.gpu_repetitions)
        rows += _rows(kind, "comfy", partial(native, placed), peers, device, scale.gpu_repetitions)
        with patch.dict(os.environ, {VARIABLE: "1"}):
            rows += _rows(kind, "comfy, graphs by hand", partial(native, placed), fused, device, scale.gpu_repetitions)
        with torch.no_grad():
            more += _more_rows(kind, placed, device, scale)
    tables = [table(HEAD, each, num_left=3) for each in (rows, passes)]
    return "\n\n".join([*tables, table(("Weights", *COMPARISON_HEAD[1:]), more, num_left=3)])


def _more_rows(kind: str, placed: TextModel, device: str, scale: BenchScale) -> list[list[str]]:
    """Rows of `COMPARISON_HEAD`: four words down beside compel, and many prompts beside transformers."""
    choices, number = {"scheme": COMPEL, "syntax": COMPEL}, scale.num_prompts
    compel = open_peers(placed)(COMPEL, FADED)
    ways = {f"{FADED}, {COMPEL}": ours(native(placed), fresh(FOUR_DOWN, COMPEL), **choices)}
    peer_runs = {COMPEL: compel and _finished(compel, device)}
    rows = in_turn(kind, {name: _finished(run, device) for name, run in ways.items()}, peer_runs, scale.gpu_repetitions)
    peer_model = transformers_of(placed, FUSED)
    many = _finished(ours_together(native(placed), grids(number)), device)
    best = peer_model and _finished(peer_model.batch(grids(number), number), device)
    peers = {f"{TRANSFORMERS}, {FUSED}, one batch": best}
    return [*rows, *in_turn(kind, {f"{number} prompts": many}, peers, scale.gpu_repetitions)]


def _rows(
    kind: str,
    name: str,
    open_ours: Callable[[], EncodeFn],
    peers: dict[str, Transformers | None],
    device: str,
    repetitions: int,
) -> list[list[str]]:
    """Rows of `HEAD` for one of our encoders, which is on the device in that type, beside some peers."""
    import torch

    if not any(peers.values()):
        return [[*missing(kind, name, peer), "-"] for peer in peers]
    run = _finished(ours(open_ours(), fresh(ONE_UP, "comfy")), device)
    calls: list[float] = []

    def noted() -> Any:
        start = time.perf_counter()
        result = run()
        calls.append(time.perf_counter() - start)
        return result

    runs = {peer: peer_model and _finished(weighted(peer_model), device) for peer, peer_model in peers.items()}
    try:
        with torch.no_grad():
            rows = in_turn(kind, {name: noted}, runs, repetitions)
    except RuntimeError as error:  # no compiler, or none for this device
        why = " ".join(str(error).splitlines()[:2])  # the backend's name and its own message
        return [[*missing(kind, name, peer, why), "-"] for peer in peers]
    return [[*row, milliseconds(calls[0])] for row in rows]


def whole_passes(model: TextModel, how: tuple[Backend, str | None] | None) -> EncodeFn:
    """Encode every position of every chunk; ``how`` is backend and mode of ``torch.compile``, or None."""
    import torch

    from ...encoder.encoding import Encoding
    from ...encoder.models.text_model import TextEncoder

    if how is None:
        return TextEncoder(model)
    torch.compiler.reset()  # a graph of the same code may be of another type
    backend, mode = how
    encode = TextEncoder(cast("TextModel", torch.compile(model, dynamic=False, backend=backend, mode=mode)))

    def encoded(ids: Sequence[Sequence[Any]], mask: Tensor | None = None, *, is_causal: bool = True) -> Encoding:
        encoding = encode(ids, mask, is_causal=is_causal)
        # a graph writes to the same memory every time
        return Encoding(encoding.hidden.clone(), encoding.pooled.clone())

    return encoded


def weighted(peer_model: Transformers) -> Callable[[], Tensor]:
    """Run transformers on a prompt with one word raised by hand, to float32 ``[1, 77, dim]``."""
    import torch

    from ...encoder.tokenizer import default_tokenizer
    from ...weighting.options import EncodeOptions
    from ...weighting.reading.prompt_reader import read_prompt

    texts = fresh(ONE_UP, "none")
    parsed = read_prompt(next(fresh(ONE_UP, "comfy")), EncodeOptions(), default_tokenizer())
    weights = torch.tensor(parsed.chunks[0].weights, device=peer_model.model.device).unsqueeze(1)  # [77, 1]
    encode = peer_model.batch(([text, ""] for text in texts), 2)

    def run() -> Tensor:
        prompt, empty = encode().float()  # [77, dim] each
        return (empty + (prompt - empty) * weights).unsqueeze(0)

    return run


def _finished(run: Run, device: str) -> Run:
    """Function that waits until its device has finished."""
    import torch

    if not device.startswith("cuda"):
        return run

    def waiting() -> Any:
        result = run()
        torch.cuda.synchronize()
        return result

    return waiting


GPU = PageSection(
    "gpu",
    gpu_section,
    "On a GPU",
    (Goal("A weighted prompt on a GPU", "transformers, eager", {"Peer": (f"{TRANSFORMERS}, eager",)}, 3.0),),
)
