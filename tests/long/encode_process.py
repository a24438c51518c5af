"""Encodes the drawn prompts in a process of its own, as our nodes and commands do, and writes down how it fared.

    python -m tests.long.encode_process JOB.json RESULT

RESULT is a folder; figures.json is written there. A job is JSON: ``seed`` and ``count`` of the prompts, ``config``
(fields of `TextConfig`), ``max_bytes``, ``kept`` (the numbers of the prompts whose encodings are written to
RESULT/NUMBER.safetensors), ``points`` (how often memory is looked at), and ``way``: ``on`` encodes all prompts one
after the other, ``fresh`` only those that are kept, each with nothing remembered, ``plain`` the same by the encoder
that neither shares nor remembers, ``exact`` as plain in float64.
"""

# ruff: noqa: E402 (the package has to be loaded before it is imported)

from __future__ import annotations

import ctypes
import gc
import json
import sys
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from ..fuzz.campaign import load

load()

import numpy as np
import torch
from safetensors.numpy import save_file  # the one for tensors keeps Python objects for each new size
from torch import Tensor
from weighted_clip.encoder.cache import Memory
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.encoder.models.linear import rounded_up
from weighted_clip.encoder.models.prefix import LEAST_SHARED, PrefixTextEncoder, encoders_for
from weighted_clip.encoder.models.text_model import TextEncoder
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.encoders import Encoders
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.timed.schedule import COUNTERS, read_timed, runs
from weighted_clip.weighting.towers import Reader, layout_of

from .page import resident_bytes
from .prompts import STEPS, Drawn, draw_prompts

MAX_ROWS = 2048
"""Maximum number of rows that all the prompts come to where chunks share states."""
MAX_WHOLE = 14
"""The same of chunks that share none, as without causality."""


class Watched:
    """The memories of an encoder, with a count of what is found in them and a look at their bytes."""

    def __init__(self, encoder: PrefixTextEncoder) -> None:
        self.memories: dict[str, Memory[Any]] = {"encodings": encoder.encodings, "trunks": encoder.trunks}
        self.found = self.asked = self.highest = 0
        memory = encoder.encodings
        get = memory.get

        def counting(key: Hashable) -> tuple[Tensor, ...] | None:
            entry = get(key)
            self.asked += 1
            self.found += entry is not None
            return entry

        memory.get = counting

    def check_bounds(self) -> None:
        """No memory has more than it may."""
        for name, memory in self.memories.items():
            assert 0 <= memory.num_bytes <= memory.max_bytes, f"{name}: {memory.num_bytes} of {memory.max_bytes} bytes"
        self.highest = max(self.highest, sum(memory.num_bytes for memory in self.memories.values()))

    def check_bytes(self) -> None:
        """The bytes counted by a cache are those its entries keep alive."""
        for name, memory in self.memories.items():
            tensors = [tensor for entry in list(memory._entries.values()) for tensor in entry]
            alive = {tensor.data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors if tensor.numel()}
            counted = memory.num_bytes
            assert sum(alive.values()) == counted, f"{name}: counts {counted}, keeps {sum(alive.values())}"


def encode_drawn(drawn: Drawn, encoder: TextEncoder) -> dict[str, np.ndarray]:
    """Hidden states and pooled vector of a prompt, or of all its texts one below the other."""
    options = EncodeOptions(**drawn.options)
    texts = [drawn.text]
    if drawn.is_timed:
        branches = read_timed(drawn.text, STEPS).branches
        texts = [run.fragment.text for branch in branches for run in runs(branch, STEPS, COUNTERS[0])]
    encoders = Encoders({"tower": Reader(default_tokenizer(), layout_of(encoder.config))}, {"tower": encoder})
    encoded = encoders.prepare(list(dict.fromkeys(texts)), options).run_tower("tower")
    hidden, pooled = (
        torch.cat([getattr(one, name).flatten(0, -2) for one in encoded]) for name in ("hidden", "pooled")
    )
    return {"hidden": hidden.numpy(), "pooled": pooled.numpy()}


def point(step: int, watched: Watched) -> dict[str, int]:
    """Current state, after everything that can be freed is freed."""
    gc.collect()
    resident = 0
    if sys.platform == "linux":
        trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:  # what the C library holds free is no leak
            trim(0)
        resident = resident_bytes()
    objects = gc.get_objects()
    tensors = sum(issubclass(type(one), Tensor) for one in objects)
    watched.check_bytes()
    remembered = sum(memory.num_bytes for memory in watched.memories.values())
    return {
        **{"step": step, "resident": resident, "objects": len(objects), "tensors": tensors, "remembered": remembered},
        **{"entries": sum(map(len, watched.memories.values())), "found": watched.found, "asked": watched.asked},
    }


def forget(encoder: PrefixTextEncoder) -> None:
    """Empty both memories of an encoder."""
    for memory in (encoder.encodings, encoder.trunks):
        memory.forget(memory.keys())


def meet_all_shapes(encoder: PrefixTextEncoder) -> None:
    """Multiply by every number of rows that the prompts come to: oneDNN keeps the code that it compiles for each.

    Without this, a number of rows that is rare looks like a leak late in a run.
    """
    length, bos = encoder.config.context_length, encoder.config.bos_id

    def chunk(begin: int, shared: int = 1) -> list[int]:
        return [bos, *range(1, shared), *range(begin, begin + length - shared)]

    first = chunk(1)
    possible = [count for count in range(1, MAX_ROWS + 1) if not length - LEAST_SHARED < count <= length]
    for count in {rounded_up(count): count for count in reversed(possible)}.values():
        forget(encoder)
        if count < length:  # goes on from the first chunk
            encoder([first])
            encoder([chunk(500, length - count)])
        else:
            more, rest = divmod(count - length, length - 1)
            others = [chunk(1000 * number) for number in range(1, more + 1)]
            encoder([first, *others, *[chunk(500, length - rest)] * (rest > 0)])
    for count in range(1, MAX_WHOLE + 1):
        forget(encoder)
        encoder([chunk(1000 * number) for number in range(1, count + 1)], is_causal=False)
    forget(encoder)


def run(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Do a job, and write the encodings that are kept at once, so that they take no memory: figures."""
    model = seeded_text_model(TextConfig(**job["config"]))
    encoder: Any = TextEncoder(model.double() if job["way"] == "exact" else model)
    if job["way"] in ("on", "fresh"):
        encoder = encoders_for({"clip_l": model}, max_bytes=job["max_bytes"])[1]["clip_l"]
    prompts, kept = draw_prompts(job["seed"], job["count"]), set(job["kept"])
    if job["way"] != "on":
        for number in sorted(kept):
            if job["way"] == "fresh":
                forget(encoder)
            save_file(encode_drawn(prompts[number], encoder), folder / f"{number}.safetensors")
        return {}
    meet_all_shapes(encoder)
    watched = Watched(encoder)
    every = max(1, len(prompts) // job["points"])
    points: list[dict[str, int]] = []
    began = time.perf_counter()
    for number, drawn in enumerate(prompts):
        rows = encode_drawn(drawn, encoder)
        watched.check_bounds()
        if number in kept:
            save_file(rows, folder / f"{number}.safetensors")
        del rows
        if (number + 1) % every == 0:
            points.append(point(number + 1, watched))
    seconds = time.perf_counter() - began
    bound = sum(memory.max_bytes for memory in watched.memories.values())
    return {"points": points, "seconds": seconds, "highest": watched.highest, "bound": bound}


if __name__ == "__main__":
    target = Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    figures = run(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), target)
    (target / "figures.json").write_text(json.dumps(figures), encoding="utf-8")
