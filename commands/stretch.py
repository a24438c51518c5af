"""The command ``stretch``: a CLIP with more positions, for training on longer captions."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import Command
from .console import show
from .loading import check_new_file


def _add_arguments(stretch: argparse.ArgumentParser) -> None:
    stretch.add_argument(
        "weights", type=Path, metavar="FILE", help=".safetensors file of a CLIP text encoder or of a whole CLIP"
    )
    stretch.add_argument(
        "--positions",
        type=int,
        default=248,
        metavar="N",
        help="how many it shall have (%(default)s, as Long-CLIP); of 77 can be made 134, 191, 248, 305, ...: 20 + 57 k",
    )
    stretch.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the .safetensors file to write, which must not be there yet (FILE-N.safetensors beside FILE)",
    )


def _run(arguments: argparse.Namespace) -> int:
    from ..encoder.files.layouts import KEPT_POSITIONS
    from ..encoder.files.stretching import stretched_file
    from ..encoder.files.tensor_file import open_tensor_file
    from ..output.files import written_whole
    from ..output.rewriting import rewrite

    weights: Path = arguments.weights
    positions: int = arguments.positions
    out: Path = arguments.out or weights.with_name(f"{weights.stem}-{positions}.safetensors")
    check_new_file(out)
    with open_tensor_file(weights) as file:
        tower, old, tensors = stretched_file(file, positions)
    rule = (
        f"{KEPT_POSITIONS} positions kept, {(positions - KEPT_POSITIONS) // (old - KEPT_POSITIONS)} made of each other"
    )
    metadata = {
        "stretched_from": weights.name.encode(errors="backslashreplace").decode(),
        "stretched_by": "weighted-clip stretch",
        "stretched": f"{old} to {positions}, by Long-CLIP's rule: {rule}",
    }
    with written_whole(out, may_replace=False) as place:
        rewrite(weights, place, tensors, metadata)
    show(f"written: {out}, {positions} positions in place of {old}, so {positions - 2} tokens in each chunk; {rule}")
    if tower == "clip_h":
        show("ComfyUI 0.29 loads a CLIP-H with 77 positions only; our native encoder loads this one")
    return 0


STRETCH = Command(
    "stretch",
    "give a CLIP more positions, by Long-CLIP's rule",
    _add_arguments,
    _run,
    ("clip.safetensors", "clip.safetensors --positions 305 --out long.safetensors"),
    description="Write a text encoder or a whole CLIP with a longer position table, stretched as Long-CLIP does: "
    "the first 20 positions are kept, and several are made of each of the others. All other tensors stay as they "
    "are. It is a beginning for training on long captions. See docs/long-prompts.md.",
)
