"""Image files and a whole CLIP, as several commands take them, and files copied into folders."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...encoder.image_file import SUFFIXES, open_image
from ..output.files import written_whole
from .console import Progress, show
from .processes import holding_interrupt
from .prompt_options import device_of, dtype_named

if TYPE_CHECKING:
    from PIL import Image

    from ...encoder.models.clip import FullClip
    from ...encoder.models.config import Activation
    from ...weighting.reading.features import TextFeatures
    from ..output.file_copies import FileCopy


WHOLE_CLIP = (
    ".safetensors file of a whole CLIP, such as openai/clip-vit-large-patch14's model.safetensors, or a folder with one"
)
"""Help of the option ``--weights``."""


def add_crop_option(parser: argparse.ArgumentParser) -> None:
    """Add the option about images that are not square."""
    from ...encoder.models.config import CROPS

    parser.add_argument("--crop", choices=CROPS, default=CROPS[0], help="how images are made square (%(default)s)")


def add_activation_option(parser: argparse._ActionsContainer) -> None:
    """Add the option about the activation of a CLIP."""
    parser.add_argument(
        "--activation",
        choices=["quick_gelu", "gelu"],
        help="activation of the model (from its config.json, or as OpenAI's B and L and OpenCLIP's H and bigG have)",
    )


def clip_of(arguments: argparse.Namespace, path: Path, activation: Activation | None = None) -> FullClip:
    """Load a CLIP, and say on the error stream how its heads and activation were determined."""
    from ...encoder.models.clip import load_full_clip

    dtype, device = dtype_named(arguments.dtype), device_of(arguments)
    clip = load_full_clip(path, dtype=dtype, device=device, activation=activation)
    show(f"{clip.name}: {clip.origin}", sys.stderr)
    return clip


def tell_left_out(skipped: Sequence[Path], num_failed: int, num_files: int) -> int:
    """Report the skipped files of folders and the number of unreadable ones; return the exit status."""
    if skipped:
        kinds = ", ".join(sorted({file.suffix.lower() or file.name for file in skipped}))
        show(f"files of other kinds in folders, not looked at: {len(skipped)} ({kinds})", sys.stderr)
    if num_failed:
        show(f"{num_failed} of {num_files} files left out", sys.stderr)
    return 1 if num_failed else 0


def image_files(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Images given by paths."""
    selected: dict[Path, None] = {}
    skipped: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            inside = sorted((file for file in path.iterdir() if file.is_file()), key=lambda file: file.parts)
            images = [file for file in inside if file.suffix.lower() in SUFFIXES]
            if not images:
                raise ValueError(f"{path}: no image in this folder; looked for: {', '.join(SUFFIXES)}")
            selected |= dict.fromkeys(images)
            skipped |= dict.fromkeys(file for file in inside if file.suffix.lower() not in SUFFIXES)
        elif path.exists():
            selected[path] = None
        else:
            raise ValueError(f"{path}: there is no such file or folder")
    return list(selected), [file for file in skipped if file not in selected]


def text_features_of(clip: FullClip, text: str, syntax: str) -> TextFeatures:
    """The vector of a text."""
    from ...encoder.tokenizer import default_tokenizer
    from ...weighting.reading.features import text_features
    from ...weighting.towers import layout_of

    return text_features(text, syntax, default_tokenizer(), layout_of(clip.text.config), clip.text_features)


def copy_images(placements: Sequence[FileCopy]) -> list[FileCopy]:
    """Copy images, all or, on an error or Ctrl-C, none of them, counting them on a terminal; those already there."""
    from ..output.file_copies import place_files

    progress, stopped = Progress(), threading.Event()

    def stop() -> None:
        progress.clear()
        show("stopping: either all files are put there or none", sys.stderr)
        stopped.set()

    def count(num_copied: int) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        progress.tell(f"{num_copied} of {len(placements)} images copied")

    with holding_interrupt(stop):
        placed = place_files(placements, on_progress=count)
    progress.clear()
    return placed


def write_picture(picture: Image.Image, path: Path) -> None:
    """Write a picture atomically."""
    with written_whole(path) as place:
        picture.save(place)


class Files(Sequence["Image.Image"]):
    """Images that are opened only when drawn."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> Any:
        return open_image(self.paths[index])
