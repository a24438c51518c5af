"""DALL·E's prior trained in 16 bits, and with gradients compressed between processes: losses, times, memory.

All runs start with the same weights and see the same pairs in the same order; runs with several processes divide them.
"""

from __future__ import annotations

import platform
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import mean, median
from typing import Any

from ...output.files import written_whole
from .page import Request, Section, in_process, milliseconds, table
from .timing import measured

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "precision.png"
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


def precision_block(request: Request) -> str:
    """Section in Markdown: a row for each run, and when and with what they were measured; the picture shows losses."""
    import torch

    scale, say, picture = request.scale, request.say, request.picture

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
            except ValueError as error:
                say(str(error))
    if picture is not None and found:
        _draw(found, picture)
    rows = [_row(name, found) for name in (*ALONE, *TOGETHER)]
    return f"{table(HEAD, rows, num_left=1)}\n\n{about}"


def _run(job: dict[str, Any], processes: int) -> dict[str, Any]:
    """Results of a job's runs, by name."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    how: dict[str, Any] = {"folder": Path(job["folder"]), "launcher": torchrun if processes > 1 else []}
    if sys.platform == "linux":
        how["GLOO_SOCKET_IFNAME"] = "lo"
    return in_process("failed", run, job, **how)["runs"]


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


PRECISION = Section("precision", precision_block)


# ---- in that process


def run(job: dict[str, Any]) -> dict[str, Any] | None:
    """Train DALL·E's prior in several precisions, or with gradients compressed between processes under torchrun.

    A job is ``folder`` (with the data; created on first use), ``sizes`` (fields of `PriorOptions`), ``vae_steps``,
    ``device`` and ``runs``: for each its ``name``, ``precision``, ``compress``, ``is_scaled``, and ``factor``, a factor
    of the loss. The first process returns for each run its losses, seconds and peak memory of an update, the share of
    gradients that are exactly 0, the skipped updates, and the amount sent; and versions.
    """
    import torch

    from ...training.data import read_data

    folder = Path(job["folder"])
    dvae = dvae_of(folder, job)
    data = read_data(folder / "shapes" / "train")
    found = {run["name"]: trained(run, job, dvae, data, folder) for run in job["runs"]}
    about = {"Python": platform.python_version(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    if job["device"] != "cpu" and torch.cuda.is_available():
        about["GPU"] = torch.cuda.get_device_name()
    is_first = True
    if torch.distributed.is_initialized():
        is_first = torch.distributed.get_rank() == 0
        torch.distributed.destroy_process_group()
    return {"about": about, "runs": found} if is_first else None


def dvae_of(folder: Path, job: dict[str, Any]) -> Any:
    """A discrete VAE of coloured shapes: trained, with the pictures, by the first process that needs it alone."""
    from dataclasses import replace

    from ...dalle.files import load_dvae
    from ...training.dalle_options import dvae_small
    from ...training.data import read_data
    from ...training.dvae import NAME, DVAERun
    from ...world.shapes import write_shapes

    place = folder / "dvae"
    if not (place / NAME).is_file():
        size = job["sizes"]["size"]
        write_shapes(folder / "shapes", size, copies=(2, 1))
        place.mkdir()
        options = replace(dvae_small(job["vae_steps"]), size=size)
        DVAERun(read_data(folder / "shapes" / "train"), place, options, accelerator_of("fp32", job), _quiet).train()
    return load_dvae(place / NAME)


def accelerator_of(precision: str, job: dict[str, Any]) -> Any:
    """An accelerator without state from earlier ones."""
    from accelerate.state import AcceleratorState

    from ...training.distributed import make_accelerator

    AcceleratorState._reset_state(reset_partial_state=True)
    return make_accelerator(precision, is_cpu=job["device"] == "cpu", has_scales=True)  # pyright: ignore[reportArgumentType]


def trained(run: dict[str, Any], job: dict[str, Any], dvae: Any, data: Any, folder: Path) -> dict[str, Any]:
    """Train once, and return the measurements."""
    import torch

    from ...training.dalle_options import PriorOptions
    from ...training.prior import PriorRun

    noted: dict[str, Any] = {"loss": [], "seconds": [], "skipped": 0}
    options = PriorOptions(**job["sizes"], precision=run["precision"], compress=run["compress"])
    accelerator = accelerator_of(run["precision"], job)
    out = folder / run["name"]
    out.mkdir(exist_ok=True)
    training = PriorRun(dvae, data, out, options, accelerator, _quiet)
    if not run["is_scaled"]:
        training.scales = _unscaled(training)
    _multiply(training, run["factor"])
    zeros: list[float] = []
    count_at = max(1, options.steps // 10)
    matrices = [one for name, one in training.trained.named_parameters() if ".layers." in name and one.ndim == 2]
    backward, train_on = training._backward, training._train_on

    def counting(loaded: Any) -> dict[str, float]:
        entry = backward(loaded)
        if training.step and training.step % count_at == 0:  # at 0 everything is 0 except the heads
            gradients = [one.grad for one in matrices if one.grad is not None]
            zeros.append(sum(int((one == 0).sum()) for one in gradients) / sum(one.numel() for one in gradients))
        return entry

    def timing(loaded: Any) -> dict[str, float]:
        began = time.perf_counter()
        entry = train_on(loaded)
        if accelerator.device.type == "cuda":
            torch.cuda.synchronize()
        noted["seconds"].append(time.perf_counter() - began)
        noted["loss"].append(entry["loss"])
        noted["skipped"] += int(entry.get("skipped", 0))
        return entry

    training._backward, training._train_on = counting, timing
    if accelerator.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    training.train()
    noted["zeros"] = sum(zeros) / len(zeros)
    noted["parameters"] = sum(one.numel() for one in training.trained.parameters())
    noted["mebibytes"] = torch.cuda.max_memory_allocated() / 2**20 if accelerator.device.type == "cuda" else None
    noted["sent"] = None if training.compression is None else training.compression.sent
    noted["processes"] = accelerator.num_processes
    return noted


def _unscaled(training: Any) -> Any:
    """Float16 without scales."""
    scales = training.scales

    def unscale() -> bool:
        for block in scales.blocks:
            block.scale = 1.0
        scales.is_skipped = not all(
            bool(parameter.grad.isfinite().all()) for block in scales.blocks for parameter in block.parameters
        )
        return not scales.is_skipped

    for block in scales.blocks:
        block.scale = 1.0
    scales.unscale = unscale
    return scales


def _multiply(training: Any, factor: float) -> None:
    """Train on a multiple of the loss. AdamW takes the same steps, as its epsilon is multiplied, too."""
    real = training.accelerator.backward
    training.accelerator.backward = lambda loss: real(factor * loss)
    for group in training.optimizer.param_groups:
        group["eps"] *= factor


def _quiet(line: str) -> None:
    """Discard the output of a training run."""
