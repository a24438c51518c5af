"""Train DALL·E's prior in several precisions, or with gradients compressed between processes, and log each update.

Called by precision.py in a process of its own; over several processes under torchrun. A job is ``folder`` (with the
data; created on first use), ``sizes`` (fields of `PriorOptions`), ``vae_steps``, ``device`` and ``runs``: for each its
``name``, ``precision``, ``compress``, ``is_scaled``, and ``factor``, a factor of the loss.

The result holds for each run its losses, seconds and peak memory of an update, the share of gradients that are exactly
0, the skipped updates, and the amount sent; and versions.
"""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import Any


def run(job: dict[str, Any]) -> dict[str, Any] | None:
    """Run a job; the first process returns the result."""
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
    from ...dalle.shapes import write_shapes
    from ...training.data import read_data
    from ...training.dvae import NAME, DVAERun
    from ...training.dvae_options import small

    place = folder / "dvae"
    if not (place / NAME).is_file():
        size = job["sizes"]["size"]
        write_shapes(folder / "shapes", size, copies=(2, 1))
        place.mkdir()
        options = replace(small(job["vae_steps"]), size=size)
        DVAERun(read_data(folder / "shapes" / "train"), place, options, accelerator_of("fp32", job), _quiet).train()
    return load_dvae(place / NAME)


def accelerator_of(precision: str, job: dict[str, Any]) -> Any:
    """An accelerator without state from earlier ones."""
    from accelerate.state import AcceleratorState

    from ...training.step import make_accelerator

    AcceleratorState._reset_state(reset_partial_state=True)
    return make_accelerator(precision, is_cpu=job["device"] == "cpu", has_scales=True)  # pyright: ignore[reportArgumentType]


def trained(run: dict[str, Any], job: dict[str, Any], dvae: Any, data: Any, folder: Path) -> dict[str, Any]:
    """Train once, and return the measurements."""
    import torch

    from ...training.prior import PriorRun
    from ...training.prior_options import PriorOptions

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
    matrices = [one for name, one in training.whole.named_parameters() if ".layers." in name and one.ndim == 2]
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
    noted["parameters"] = sum(one.numel() for one in training.whole.parameters())
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
