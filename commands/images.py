"""Image files and a whole CLIP, as several commands take them, and files put into folders."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..encoder.image_file import SUFFIXES, open_image
from .console import Progress, show
from .options import DTYPES, device_of, dtype_named
from .processes import holding_interrupt

if TYPE_CHECKING:
    from PIL import Image

    from ..encoder.clip import FullClip
    from ..output.placing import Placed, Placement
    from ..weighting.features import TextFeatures


def add_clip_options(parser: argparse.ArgumentParser) -> None:
    """Add what says which CLIP is loaded, and how it reads images and texts."""
    from ..encoder.config import CROPS
    from ..weighting.syntax import SYNTAXES

    parser.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help=".safetensors file of a whole CLIP, such as openai/clip-vit-large-patch14's model.safetensors; required",
    )
    parser.add_argument("--crop", choices=CROPS, default=CROPS[0], help="how an image becomes square (%(default)s)")
    parser.add_argument(
        "--syntax", choices=list(SYNTAXES), default="none", help="how weights are written, to be left out (%(default)s)"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (cpu)")
    parser.add_argument(
        "--activation",
        choices=["quick_gelu", "gelu"],
        help="of the model (by config.json beside it, or as OpenAI's B and L and OpenCLIP's H and bigG were released)",
    )


def clip_of(arguments: argparse.Namespace) -> FullClip:
    """Load the CLIP among the arguments, and say on the error stream by what its heads and activation are known."""
    from ..encoder.clip import load_full_clip

    clip = load_full_clip(
        arguments.weights,
        dtype=dtype_named(arguments.dtype),
        device=device_of(arguments),
        activation=arguments.activation,
    )
    show(f"{clip.name}: {clip.origin}", sys.stderr)
    return clip


def tell_left_out(others: Sequence[Path], num_failed: int, num_paths: int) -> int:
    """Report the skipped files of folders and the number of unreadable ones; return the exit status."""
    if others:
        kinds = ", ".join(sorted({file.suffix.lower() or file.name for file in others}))
        show(f"files of other kinds in folders, not looked at: {len(others)} ({kinds})", sys.stderr)
    if num_failed:
        show(f"{num_failed} of {num_paths} files left out", sys.stderr)
    return 1 if num_failed else 0


def image_files(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Images given by paths."""
    found: dict[Path, None] = {}
    others: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            inside = sorted((file for file in path.iterdir() if file.is_file()), key=lambda file: file.parts)
            images = [file for file in inside if file.suffix.lower() in SUFFIXES]
            if not images:
                raise ValueError(f"{path}: no image in this folder; looked for: {', '.join(SUFFIXES)}")
            found |= dict.fromkeys(images)
            others |= dict.fromkeys(file for file in inside if file.suffix.lower() not in SUFFIXES)
        elif path.exists():
            found[path] = None
        else:
            raise ValueError(f"{path}: there is no such file or folder")
    return list(found), [file for file in others if file not in found]


def text_features_of(clip: FullClip, text: str, syntax: str) -> TextFeatures:
    """The vector of a text."""
    from ..encoder.tokenizer import default_tokenizer
    from ..weighting.features import text_features
    from ..weighting.towers import layout_of

    return text_features(text, syntax, default_tokenizer(), layout_of(clip.text.config), clip.text_features)


def put_images(placements: Sequence[Placement], *, is_move: bool) -> Placed:
    """Copy or move images, all or, on an error or Ctrl-C, none of them, counting them on a terminal."""
    from ..output.placing import place_files

    progress, stopped = Progress(), threading.Event()

    def stop() -> None:
        progress.clear()
        show("stopping: either all files are put there or none", sys.stderr)
        stopped.set()

    def count(done: int) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        progress.tell(f"{done} of {len(placements)} images {'moved' if is_move else 'copied'}")

    with holding_interrupt(stop):
        placed = place_files(placements, is_move=is_move, on_progress=count)
    progress.clear()
    return placed


class Files(Sequence["Image.Image"]):
    """Images that are opened only when drawn."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> Any:
        return open_image(self.paths[index])
