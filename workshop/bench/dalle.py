"""Times of drawing image tokens and training the prior: with and without a cache, and compared with dalle-pytorch.

``--hosts DIR`` may contain a virtual environment ``dalle-venv`` with dalle-pytorch and our requirements: then all are
timed in its Python, in one process, in turn. Without it only ours is timed, in our own Python.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..find_hosts import python_of
from ..job import HostFailed, run_job
from . import dalle_process
from .dalle_process import FULL, OURS, SPARSE, WITHOUT_CACHE
from .machine import load
from .page import NOT_FOUND, table, times
from .scale import Scale
from .timing import compare

ENVIRONMENT = "dalle-venv"
SECONDS = 7200
DRAWING, TRAINING = "drawing", "training"
HEAD = (
    *("Work", "Images", "Peer", "Ours, ms", "Peer, ms", "Ours / peer", "Middle half"),
    *("Tokens/s, ours", "Tokens/s, peer", "Same tokens"),
)
OWN = "ours, without cache"
DRAWERS = {FULL: "dalle-pytorch, full attention, cache", SPARSE: "dalle-pytorch, row and column attention, cache"}
TRAINERS = {FULL: "dalle-pytorch, full attention", SPARSE: "dalle-pytorch, row, column, convolutional"}


def dalle_block(scale: Scale, folder: Path | None = None, say: Callable[[str], None] = print) -> str:
    """Section in Markdown: what ran, and a row for each peer.

    The peer is searched for in ``folder``; ``say`` is called with the reason if something did not run.
    """
    python = None if folder is None else python_of(folder.resolve(), (ENVIRONMENT,))
    busy = load("the minute before")
    job = {**scale.dalle, "has_peer": python is not None}
    try:
        found = run_job(dalle_process.run, job, python or Path(sys.executable), seconds=SECONDS)
    except HostFailed as error:
        say(f"dalle-pytorch did not run:\n{str(error)[-3000:]}" if python else f"failed:\n{str(error)[-3000:]}")
        return table(HEAD, _rows(job, None, "failed"), num_left=3)
    names = {OURS: "ours", FULL: "dalle-pytorch", SPARSE: "dalle-pytorch with row and column attention"}
    sizes = ", ".join(f"{names[name]} {number / 1e6:.2f} million" for name, number in found["parameters"].items())
    lines = [
        ", ".join(f"{name} {value}" for name, value in found["about"].items()),
        f"parameters: {sizes}",
        *busy,
    ]
    return "\n".join([*(f"- {line}" for line in lines), "", table(HEAD, _rows(job, found, NOT_FOUND), num_left=3)])


def _rows(job: dict[str, Any], found: dict[str, Any] | None, why: str) -> list[list[str]]:
    """Cells of `HEAD`; ``why`` is the reason for a missing peer."""
    sizes = job["sizes"]
    per_image = sizes["rows"] * sizes["columns"]
    rows: list[list[str]] = []

    def row(work: str, images: int, peer: str, taken: dict[str, list[float]] | None, key: str, tokens: int) -> None:
        about = [work, str(images), peer]
        if taken is None or key not in taken:
            rows.append([*about, *["-"] * 6, why])
            return
        ratio = compare(taken[OURS], taken[key])
        speeds = [f"{tokens / seconds:.3g}" for seconds in (ratio.ours, ratio.peer)]
        rows.append([*about, *times(ratio), *speeds, "-"])

    for images in job["images"]:
        drawn = None if found is None else found["drawing"][str(images)]
        row(DRAWING, images, OWN, drawn and drawn["cache"], WITHOUT_CACHE, images * per_image)
        if drawn:
            rows[-1][-1] = f"{drawn['same']:.1%}"
        for key, peer in DRAWERS.items():
            row(DRAWING, images, peer, drawn and drawn["times"], key, images * per_image)
    pairs = job["pairs"]
    for key, peer in TRAINERS.items():
        row(TRAINING, pairs, peer, found and found["training"], key, pairs * (per_image + sizes["text_length"]))
    return rows
