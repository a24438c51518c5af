"""Checks that many samplings with places, regions and word maps leave nothing behind in ComfyUI.

Run by test_comfyui_inprocess.py in ComfyUI's own Python, see inprocess.py, and for long by
tests/long/test_samplings.py, which names their number and a file for what was counted in the environment.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import weakref
from pathlib import Path
from typing import Any

import torch
from inprocess import compares, difference, main, stock
from inprocess_harmless import snapshot
from inprocess_places import encoded, placed
from inprocess_regions import DOG, region
from inprocess_word_maps import shown, watched
from toys import NEGATIVE, PLAIN, make_model, make_text_encoder, sampled, weighable

COUNT, COUNTED = "WEIGHTED_CLIP_SAMPLINGS", "WEIGHTED_CLIP_COUNTED"
FAMILIES = ("SD1", "Flux")
AREAS = ("left half", "right half", "top half", "0.2 0.6, 0.3 0.9", "where mat")
LOADED = "comfy.model_management.current_loaded_models"
"""A list in which the host itself moves models."""
LOOKS = 50
"""Number of times that the process is looked at."""


def positive(clip: Any, dice: random.Random) -> tuple[Any, Any]:
    """A conditioning of a placed phrase, a region or both, watched, and its watch."""
    words = encoded(clip, f"{PLAIN}, {dice.choice(('snow', 'rain', 'sun'))} {dice.randrange(40)}")
    kind = dice.randrange(3)
    if kind != 1:
        times = {"start": dice.choice((0.0, 0.3)), "end": dice.choice((0.7, 1.0))}
        words = placed(words, "red cat", area=dice.choice(AREAS), outside=dice.choice((0.0, 0.4)), **times)
    if kind != 0:
        words = region(words, encoded(clip, DOG), area=dice.choice(AREAS[:4]), strength=dice.choice((0.8, 1.0)))
    return watched(words, "snow\nmat" if kind == 1 else "mat")


def look() -> dict[str, int]:
    """Memory and objects of this process, after what nothing uses has gone."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    [resident] = [int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")]
    objects = gc.get_objects()
    tensors = sum(issubclass(type(one), torch.Tensor) for one in objects)
    return {"resident": resident, "objects": len(objects), "tensors": tensors}


@compares("Stock and a first sampling after many with places, regions and word maps, with before")
def check_many_samplings_leave_nothing_behind() -> None:
    from comfy import model_management

    count = int(os.environ.get(COUNT, "8"))
    hosts = [(make_text_encoder(family), make_model(family)) for family in weighable(*FAMILIES)]
    negatives = [stock(clip, NEGATIVE) for clip, _ in hosts]
    patchers = [*(clip.patcher for clip, _ in hosts), *(model for _, model in hosts)]

    def draw(number: int, keep: list[weakref.ref[Any]]) -> torch.Tensor:
        clip, model = hosts[number % len(hosts)]
        words, watch = positive(clip, random.Random(number))
        samples = sampled(model, words, negatives[number % len(hosts)])
        shown(watch, samples)
        keep.append(weakref.ref(watch))
        return samples

    def plain() -> list[torch.Tensor]:
        drawn = []
        for (clip, model), negative in zip(hosts, negatives, strict=True):
            drawn.append(sampled(model, encoded(clip), negative))
        return drawn

    before, first = plain(), [draw(number, []) for number in range(6)]
    expected, watches, looks = snapshot(), list[weakref.ref[Any]](), list[dict[str, int]]()
    for number in range(count):
        draw(number, watches)
        if (number + 1) % max(1, count // LOOKS) == 0:
            looks.append({"step": number + 1, **look()})
    for one, other in zip(plain(), before, strict=True):
        difference(one, other)
    for number, other in enumerate(first):
        difference(draw(number, watches), other)
    after = snapshot()
    changed = {name for name in expected.keys() | after.keys() if expected.get(name) != after.get(name)}
    assert changed <= {LOADED}, changed
    assert {one.model.model for one in model_management.current_loaded_models} <= {one.model for one in patchers}
    gc.collect()
    assert [watch for watch in watches if watch() is not None] == []
    if COUNTED in os.environ:
        Path(os.environ[COUNTED]).write_text(json.dumps(looks), encoding="utf-8")


if __name__ == "__main__":
    main(globals())
