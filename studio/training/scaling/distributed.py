"""Processes that train together: their accelerator, and numbers and gradients reduced over them."""

from __future__ import annotations

import importlib.util
import warnings
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, distributed, nn

from ..options import Precision

if TYPE_CHECKING:
    from accelerate import Accelerator

LONGEST_WAIT = timedelta(minutes=30)
"""Timeout for processes waiting for one of them, e.g. while it writes a file; NCCL's default is 10 minutes."""


def make_accelerator(
    precision: Precision, *, is_cpu: bool = False, has_scales: bool = False, tracker: str | None = None
) -> Accelerator:
    """Create the accelerator: device, precision, processes, and a tracker of accelerate's that shows the log, too.

    With ``has_scales`` float16 is left to `GradientScales`.

    Raises:
        ValueError: If accelerate or the tracker is not installed, or the device does not support the precision.
    """
    try:
        from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
    except ModuleNotFoundError as error:
        if error.name != "accelerate":
            raise
        raise ValueError("train needs accelerate, which python run.py train installs") from error
    warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)  # its heir broadcasts once
    # buffers are equal on all processes without being sent, and may be in use
    distributed = DistributedDataParallelKwargs(broadcast_buffers=False)
    mixed = "no" if precision == "fp32" or (precision == "fp16" and has_scales) else precision
    waiting = InitProcessGroupKwargs(timeout=LONGEST_WAIT)
    if tracker and importlib.util.find_spec(tracker) is None:
        raise ValueError(f"--track {tracker}: {tracker} is not installed: .venv/bin/pip install {tracker}")
    # without a GPU, accelerate joins no processes unless it is told to use the processor
    is_cpu = is_cpu or not torch.accelerator.is_available()
    return Accelerator(cpu=is_cpu, mixed_precision=mixed, kwargs_handlers=[distributed, waiting], log_with=tracker)


def reduce_apart(model: nn.Module) -> None:
    """Reduce the gradient of each parameter separately between processes, instead of many in one bucket.

    The rounding of a sum of three or more depends on the place in the bucket, and buckets are rebuilt after the first
    step: a resumed run would differ in bits.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel):
        model.register_comm_hook(None, _reduced_apart)


def _reduced_apart(_, bucket):  # pyright: ignore[reportUnknownParameterType] - PyTorch refuses annotations as strings
    bucket.buffer().div_(distributed.get_world_size())
    works = [distributed.all_reduce(gradient, async_op=True) for gradient in bucket.gradients()]
    futures = [cast("Any", work).get_future() for work in works]
    return torch.futures.collect_all(futures).then(lambda reduced: (reduced.wait(), bucket.buffer())[1])


def over_processes(accelerator: Accelerator, number: float, how: Literal["mean", "sum"]) -> float:
    """Mean or sum of a number over processes."""
    if accelerator.num_processes == 1:
        return number
    shared = torch.tensor(number, device=accelerator.device)
    return float(cast("Tensor", accelerator.reduce(shared, how)).item())


@lru_cache(maxsize=1)
def declare_missing_operators() -> torch.library.Library | None:
    """Declare the operators that torchvision lacks, if any; they vanish with the result, so keep it alive.

    PyPI's torchvision is built for CUDA. If torch has none, its compiled part does not load, and its import, and with
    it that of transformers, compel and open_clip, fails for lack of two operators. Nothing here calls them.
    """
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        return None  # nothing that needs it is installed either
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return library
    return None
