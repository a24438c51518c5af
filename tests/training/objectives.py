"""Every command that trains, at a tiny size: data for all of them, and the words that start each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from weighted_clip.encoder.files.checkpoint import seeded_text_model, seeded_vision_model
from weighted_clip.studio.dalle.weight_files import save_dvae
from weighted_clip.studio.training import loop

from ..dalle.models import TINY_SMALL, seeded
from ..transformers_clip import write_clip
from .models import TEXT, VISION
from .runs import run_anew, write_pairs

STEPS = 8
_LOOP = ["--batch", "4", "--steps", str(STEPS), "--held-out", "4", "--device", "cpu"]
_CLIP = ["train", "pairs", "--weights", "clip.safetensors", "--accumulate", "1", "--rate", "1e-3"]
_CLASSES = ["train", "classes", *_CLIP[2:]]
_DVAE = ["dalle", "train-vae", "pairs", "--recipe", "small", "--tokens", "16", "--width", "8", "--size", "16"]
_PRIOR = ["dalle", "train", "pairs", "--dvae", "dvae.safetensors", "--recipe", "small", "--size", "16", "--width", "16"]
OBJECTIVES = {
    "contrastive": _CLIP,
    "mlm": [*_CLIP, "--objective", "mlm"],
    "classify texts": [*_CLASSES, "--objective", "classify"],
    "classify images": [*_CLASSES, "--objective", "classify", "--towers", "image"],
    "dvae": _DVAE,
    "prior": [*_PRIOR, "--heads", "2", "--layers", "3", "--pieces", "600"],
}
"""First words of each command; names of `write_data`'s files are replaced by their paths."""
RESULTS = {
    "contrastive": ["text_encoder.safetensors", "clip.safetensors"],
    "mlm": ["text_encoder.safetensors", "clip.safetensors"],
    "classify texts": ["classifier.safetensors"],
    "classify images": ["classifier.safetensors"],
    "dvae": ["dvae.safetensors"],
    "prior": ["dalle.safetensors"],
}
"""Files that each writes at its end."""


def kinds() -> list[type[loop.Loop]]:
    """The class of each objective."""
    for path in (Path(loop.__file__).parent / "objectives").glob("[!_]*.py"):
        import_module(f"weighted_clip.studio.training.objectives.{path.stem}")
    return loop.Loop.__subclasses__()


def write_data(folder: Path) -> Path:
    """Pairs, a CLIP and a discrete VAE for all objectives."""
    write_pairs(folder / "pairs", 24)
    (folder / "classes").mkdir()
    for name in ("cat", "dog", "old bird"):
        write_pairs(folder / "classes" / name, 8)
    write_clip(folder / "clip.safetensors", seeded_text_model(TEXT), seeded_vision_model(VISION), 1 / 0.07)
    save_dvae(seeded(TINY_SMALL), folder / "dvae.safetensors")
    return folder


def words(objective: str, data: Path, out: Path, *options: str) -> list[str]:
    """Command of an objective; a second value of an option counts."""
    given = [str(data / word) if (data / word).exists() else word for word in OBJECTIVES[objective]]
    return [*given, *_LOOP, "--out", str(out), *options]


def start(objective: str, data: Path, out: Path, *options: str) -> int:
    """Run a command here; return its exit status."""
    return run_anew(*words(objective, data, out, *options))


@contextmanager
def stopping_after(last: int) -> Iterator[None]:
    """Let each run end after a step, as Ctrl-C does."""
    with pytest.MonkeyPatch.context() as patch:
        real = loop.Loop._log

        def log(self: Any, entry: dict[str, float]) -> None:
            real(self, entry)
            self.is_stopped = entry["step"] == last

        patch.setattr(loop.Loop, "_log", log)
        yield
