"""DALL·E's prior trained in 16 bits, and with gradients compressed between processes: losses, times, memory.

All runs start with the same weights and see the same pairs in the same order; runs with several processes divide them.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean, median
from typing import Any

from ...output.files import written_whole
from ..job import HostFailed, run_job
from . import precision_process
from .machine import measured
from .page import milliseconds, table
from .scale import Scale

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "precision.png"
SECONDS = 7200
SHARE = 2.0**-12
"""Factor of the loss, in runs of one process: here it is the mean over some 400 tokens, in the paper over 1.3
million."""
ALONE: dict[str, dict[str, Any]] = {
    "float32": {"precision": "fp32", "factor": SHARE},
    "bfloat16": {"precision": "bf16", "factor": SHARE},
    "float16, a scale for each resblock": {"precision": "fp16", "factor": SHARE},
    "float16, no scales": {"precision": "fp16", "is_scaled": False, "factor": SHARE},
}
"""Runs with one process, by name."""
TOGETHER: dict[str, dict[str, Any]] = {
    "all-reduce": {},
    "PowerSGD, a quarter of the width": {"compress": 4},
    "PowerSGD, rank 4": {"compress": None},
}
"""Runs with several processes: ``compress`` is a fraction of the width, or rank 4 if it is None."""
HEAD = (
    *("Run", "Processes", "Loss, first tenth", "Loss, last tenth", "Gradients that are 0", "Skipped", "Update, ms"),
    *("× the first", "Memory, MiB", "Sent"),
)


def precision_block(scale: Scale, say: Callable[[str], None] = print, picture: Path | None = None) -> str:
    """Section in Markdown: a row for each run, and when and with what they were measured.

    Args:
        scale: Sizes and counts.
        say: Called with the reason if something did not run.
        picture: A .png file for a chart of the losses, or None.
    """
    import torch

    about = measured("accelerate")
    is_cuda = torch.cuda.is_available()
    processes = max(2, torch.cuda.device_count()) if torch.cuda.device_count() != 1 else 1
    sizes = scale.prior
    job = {"vae_steps": scale.vae_steps, "device": "auto" if is_cuda else "cpu"}
    rank = sizes["hidden_dim"] // 4
    ranks = {name: {"compress": 0 if not run else rank if run["compress"] else 4} for name, run in TOGETHER.items()}
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for runs, count in ((ALONE, 1), (ranks, processes)):
            if count == 1 and runs is ranks:
                say("one GPU: nothing can be sent between processes")
                continue
            usual = {"precision": "fp32", "compress": 0, "is_scaled": True, "factor": 1.0}
            asked = [{**usual, **run, "name": name} for name, run in runs.items()]
            try:
                shared = {**sizes, "batch": max(1, sizes["batch"] // count)}
                found |= _run({**job, "sizes": shared, "folder": temporary, "runs": asked}, count)
            except HostFailed as error:
                say(f"failed:\n{str(error)[-3000:]}")
    if picture is not None and found:
        _draw(found, picture)
    rows = [_row(name, found) for name in (*ALONE, *TOGETHER)]
    return f"{table(HEAD, rows, num_left=1)}\n\n{about}"


def _run(job: dict[str, Any], processes: int) -> dict[str, Any]:
    """Results of a job's runs, by name."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    done = run_job(
        precision_process.run,
        job,
        Path(sys.executable),
        folder=Path(job["folder"]),
        seconds=SECONDS,
        launcher=torchrun if processes > 1 else [],
        **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}),
    )
    return done["runs"]


def _row(name: str, found: Mapping[str, Any]) -> list[str]:
    """Cells of `HEAD`."""
    if name not in found:
        return [name, *["-"] * (len(HEAD) - 1)]
    run = found[name]
    first = found[next(iter(ALONE if name in ALONE else TOGETHER))]
    tenth = max(1, len(run["loss"]) // 10)
    taken = median(run["seconds"])
    return [
        name,
        str(run["processes"]),
        *(f"{mean(some):.4f}" for some in (run["loss"][:tenth], run["loss"][-tenth:])),
        f"{run['zeros']:.1%}",
        str(run["skipped"]),
        milliseconds(taken),
        f"{taken / median(first['seconds']):.2f}",
        "-" if run["mebibytes"] is None else f"{run['mebibytes']:.0f}",
        "-" if run["sent"] is None else f"1/{run['sent'][0] / run['sent'][1]:.2f}",
    ]


def _draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw the losses, each the mean of some neighbours, in two charts one below the other."""
    from PIL import Image

    from ...web.pictures.curves import draw_curves

    charts = []
    for title, names in (("One process", ALONE), ("Several processes", TOGETHER)):
        curves = {name: _smoothed(found[name]["loss"]) for name in names if name in found}
        if curves:
            charts.append(draw_curves(f"{title}: loss of each update", curves, theme="light"))
    whole = Image.new("RGB", (charts[0].width, sum(chart.height for chart in charts)))
    top = 0
    for chart in charts:
        whole.paste(chart, (0, top))
        top += chart.height
    with written_whole(path) as place:
        whole.save(place, format="PNG")


def _smoothed(losses: list[float]) -> list[tuple[float, float]]:
    size = max(1, len(losses) // 40)
    starts = range(0, len(losses) - size + 1, size)
    return [(start + size / 2, mean(losses[start : start + size])) for start in starts]
