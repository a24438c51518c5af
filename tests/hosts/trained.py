"""The text encoder of the hosts' checkpoint trained by ``train``: once in full, and once with a LoRA.

Both are runs of the command on a whole CLIP of full size, whose text encoder is that of make_checkpoint.py, so that the
LoRA belongs to that checkpoint. The rates are such that two steps move the hidden states a good way.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from weighted_clip.encoder.files.checkpoint import hugging_face_tensors, seeded_vision_model

from ..patience import SECONDS
from ..training.runs import write_pairs
from .comfy_server import pack_folder
from .make_checkpoint import TEXT_ENCODER, normal

NUM_PAIRS = 4
RUNS = {"full": ("--towers", "text", "--rate", "1e-4"), "lora": ("--lora", "4", "--rate", "1e-2")}


@dataclass(frozen=True)
class Trained:
    """Files that the command wrote for hosts, and the one that it began with."""

    before: Path
    """The text encoder of the checkpoint."""
    full: Path
    """``text_encoder.safetensors`` of a training of all weights."""
    merged: Path
    """``text_encoder.safetensors`` of the training of a LoRA."""
    lora: Path
    """``lora.safetensors`` of the same."""


def train(models: Path, folder: Path) -> Trained:
    """Run the command twice.

    Args:
        models: Folder of make_checkpoint.py.
        folder: For all files; empty. It takes 5 GB while this runs, and 1 GB afterwards.
    """
    before = models / TEXT_ENCODER
    weights = write_clip(before, folder / "clip-l.safetensors")
    data = write_pairs(folder / "pairs", NUM_PAIRS)
    for name, options in RUNS.items():
        out = folder / name
        run("train", data, "--weights", weights, "--out", out, *options)
        for large in ("checkpoint.pt", "clip.safetensors"):
            (out / large).unlink()
    weights.unlink()
    text, lora = "text_encoder.safetensors", "lora.safetensors"
    return Trained(before, folder / "full" / text, folder / "lora" / text, folder / "lora" / lora)


def write_clip(text: Path, path: Path) -> Path:
    """Write a whole CLIP ViT-L/14 around a text encoder, with random weights from a fixed seed."""
    width = 768
    tensors = {
        **load_file(text),
        **hugging_face_tensors(seeded_vision_model(dtype=torch.float16)),
        "text_projection.weight": (normal("text_projection", (width, width)) / width**0.5).half(),
        "logit_scale": torch.tensor(math.log(1 / 0.07)),
    }
    save_file(tensors, path)
    return path


def run(*arguments: object) -> None:
    """Run a command of ours in a process of its own, for two steps."""
    usual = ("--steps", "2", "--batch", str(NUM_PAIRS), "--accumulate", "1", "--held-out", "0", "--device", "cpu")
    done = subprocess.run(
        [sys.executable, "-P", str(pack_folder() / "__main__.py"), *map(str, (*arguments, *usual))],
        env={"OMP_NUM_THREADS": "2", **os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
