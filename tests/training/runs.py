"""Pairs of random pictures and words, and what a run of the command has written."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image
from safetensors import safe_open
from torch import Tensor
from weighted_clip.studio.commands.program import main

from ..libraries import library

Start = Callable[..., int]


def run_anew(*words: object) -> int:
    """Run a command with an accelerator of its own; return its exit status."""
    library("accelerate")
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    return main([*map(str, words)])


TIMED = ("pairs/s", "images/s", "seconds waited")
WORDS = ["red", "green", "blue", "cat", "dog", "bird", "sits", "runs", "sleeps", "small", "large", "old"]


def write_pairs(folder: Path, count: int) -> Path:
    """Pictures of noise, each with three random words and a number."""
    rng = random.Random(0)
    folder.mkdir()
    for number in range(count):
        noise = Image.frombytes("RGB", (7, 7), rng.randbytes(147)).resize((35, 28), Image.Resampling.NEAREST)
        noise.save(folder / f"{number:03}.png")
        words = " ".join(rng.choices(WORDS, k=3))
        (folder / f"{number:03}.txt").write_text(f"{words} {number}\n{number} {words}\n", encoding="utf-8")
    return folder


def copy_clip(weights: Path, path: Path) -> Path:
    """Copy a CLIP and its config to a file in another folder."""
    shutil.copy(weights.with_name("config.json"), path.parent)
    return Path(shutil.copy(weights, path))


def tensors_of(path: Path) -> dict[str, Tensor]:
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def log_of(folder: Path, *, is_timed: bool = False) -> list[dict[str, Any]]:
    """Entries of a log; those of time, which no two runs have alike, only if asked for."""
    lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        {name: value for name, value in json.loads(line).items() if is_timed or name not in TIMED} for line in lines
    ]
