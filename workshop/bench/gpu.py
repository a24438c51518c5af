"""A weighted prompt on a GPU, in three types, compared with transformers' eager and PyTorch's fused attention.

transformers has no weights: it encodes prompt and empty prompt as one batch, as one would write by hand, and the rows
of the weighted word are moved away from those of the empty prompt, as in ComfyUI.

Then whole passes: kernel by kernel, as CUDA graphs, and compiled, compared with the fused attention.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from ..peers.transformers import Transformers, transformers_of
from .page import COMPARISON_HEAD, Goal, Request, Section, comparison, milliseconds, missing, table
from .scale import Scale
from .texts import ONE_UP, fresh
from .timing import TRANSFORMERS, compare, native, ours, times_in_turn

if TYPE_CHECKING:
    from torch import Tensor

    from ...encoder.encoding import EncodeFn, Encoding
    from ...encoder.text_model import TextModel

TYPES = ("float32", "float16", "bfloat16")
FUSED = "sdpa"
ATTENTIONS = ("eager", FUSED)
HEAD = ("Weights", *COMPARISON_HEAD[1:], "First call, ms")
NO_DEVICE = "no CUDA device here"
Backend = str | Callable[[Any, Any], Any]
PASSES: dict[str, tuple[Backend, str | None] | None] = {
    "kernel by kernel": None,
    "CUDA graphs": ("cudagraphs", None),
    "compiled": ("inductor", None),
    "compiled, CUDA graphs": ("inductor", "reduce-overhead"),
}
"""Backend and mode of ``torch.compile`` for whole passes."""


def gpu_section(request: Request) -> str:
    """`gpu_block` on the GPU, or a note that there is none."""
    import torch

    if not torch.cuda.is_available():
        return NO_DEVICE
    name = torch.cuda.get_device_name()
    return f"{gpu_block(request.scale, 'cuda')}\n\nMeasured on: {name}."


def gpu_block(scale: Scale, device: str) -> str:
    """A row for each type and attention of the peer, then for each type and pass; a first call includes our setup."""
    import torch

    model = scale.model()
    rows: list[list[str]] = []
    passes: list[list[str]] = []
    for kind in TYPES:
        placed = copy.deepcopy(model).to(device, getattr(torch, kind))
        peers = {attention: transformers_of(placed, attention) for attention in ATTENTIONS}
        passes += _pass_rows(placed, peers[FUSED], kind, device, scale.gpu_repetitions)
        runs = {"ours": _finished(ours(native(placed), fresh(ONE_UP, "comfy")), device)}
        runs |= {name: _finished(weighted(peer), device) for name, peer in peers.items() if peer is not None}
        with torch.no_grad():
            start = time.perf_counter()
            results = {"ours": runs["ours"]()}
            first = milliseconds(time.perf_counter() - start)
            results |= {name: run() for name, run in runs.items() if name != "ours"}
            taken = times_in_turn(runs, repetitions=scale.gpu_repetitions)
        for attention, peer in peers.items():
            names = (kind, "comfy", f"{TRANSFORMERS}, {attention}")
            if peer is None:
                rows.append([*missing(*names), first])
                continue
            difference = float((results["ours"] - results[attention]).abs().max())
            rows.append([*comparison(*names, compare(taken["ours"], taken[attention]), difference), first])
    return "\n\n".join([table(HEAD, rows, num_left=3), table(HEAD, passes, num_left=3)])


def _pass_rows(
    model: TextModel, theirs: Transformers | None, kind: str, device: str, repetitions: int
) -> list[list[str]]:
    """Rows of whole passes by this model, which is on the device in that type, beside the peer."""
    import torch

    peer = f"{TRANSFORMERS}, {FUSED}"
    rows: list[list[str]] = []
    for name, how in PASSES.items():
        if theirs is None:
            rows.append([*missing(kind, name, peer), "-"])
            continue
        expected = _finished(weighted(theirs), device)
        run = _finished(ours(whole_passes(model, how), fresh(ONE_UP, "comfy")), device)
        with torch.no_grad():
            start = time.perf_counter()
            try:
                result = run()
            except RuntimeError as error:  # no compiler, or none for this device
                why = " ".join(str(error).splitlines()[:2])  # the backend's name and its own message
                rows.append([*missing(kind, name, peer, why), "-"])
                continue
            first = milliseconds(time.perf_counter() - start)
            difference = float((result - expected()).abs().max())
            taken = times_in_turn({"ours": run, peer: expected}, repetitions=repetitions)
        rows.append([*comparison(kind, name, peer, compare(taken["ours"], taken[peer]), difference), first])
    return rows


def whole_passes(model: TextModel, how: tuple[Backend, str | None] | None) -> EncodeFn:
    """Encode every position of every chunk; ``how`` is backend and mode of ``torch.compile``, or None."""
    import torch

    from ...encoder.encoding import Encoding
    from ...encoder.text_model import TextEncoder

    if how is None:
        return TextEncoder(model)
    torch.compiler.reset()  # a graph of the same code may be of another type
    backend, mode = how
    encode = TextEncoder(cast("TextModel", torch.compile(model, dynamic=False, backend=backend, mode=mode)))

    def encoded(ids: Sequence[Sequence[Any]], mask: Tensor | None = None, *, is_causal: bool = True) -> Encoding:
        found = encode(ids, mask, is_causal=is_causal)
        return Encoding(found.hidden.clone(), found.pooled.clone())  # a graph writes to the same memory every time

    return encoded


def weighted(theirs: Transformers) -> Callable[[], Tensor]:
    """Run transformers on a prompt with one word raised by hand, to float32 ``[1, 77, dim]``."""
    import torch

    from ...encoder.tokenizer import default_tokenizer
    from ...weighting.options import EncodeOptions
    from ...weighting.reading import read_prompt

    texts = fresh(ONE_UP, "none")
    read = read_prompt(next(fresh(ONE_UP, "comfy")), EncodeOptions(), default_tokenizer())
    weights = torch.tensor(read.chunks[0].weights, device=theirs.model.device).unsqueeze(1)  # [77, 1]
    encode = theirs.batch(([text, ""] for text in texts), 2)

    def run() -> Tensor:
        prompt, empty = encode().float()  # [77, dim] each
        return (empty + (prompt - empty) * weights).unsqueeze(0)

    return run


def _finished(run: Callable[[], Any], device: str) -> Callable[[], Any]:
    """Function that waits until its device has finished."""
    import torch

    if not device.startswith("cuda"):
        return run

    def waiting() -> Any:
        result = run()
        torch.cuda.synchronize()
        return result

    return waiting


GPU = Section(
    "gpu",
    gpu_section,
    "On a GPU",
    (Goal("A weighted prompt on a GPU", "transformers, eager", {"Peer": (f"{TRANSFORMERS}, eager",)}, 3.0),),
)
