"""One training step: the loss of a batch, optionally computed in parts, and its gradients.

In parts, all pairs of the batch are still negatives of each other: features are computed without gradients first, the
loss of all of them gives the gradient of each feature, and each part is computed again to propagate it to the weights.
This takes the memory of one part and a third more time. The gradients equal those of the whole batch.

Source: L. Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", 2021.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, distributed, nn

from ..encoder.linear import widened
from ..encoder.similarity import ContrastiveLoss
from ..encoder.text_model import TextModel
from ..encoder.vision_model import VisionModel
from .options import Precision
from .packing import pack, projected
from .retention import Kept
from .textual_inversion import Word

if TYPE_CHECKING:
    from accelerate import Accelerator

LONGEST_WAIT = timedelta(minutes=30)
"""Timeout for processes waiting for one of them, e.g. while it writes a file; NCCL's default is 10 minutes."""


def make_accelerator(precision: Precision, *, is_cpu: bool = False, has_scales: bool = False) -> Accelerator:
    """Create the accelerator: device, precision and processes.

    Args:
        precision: Precision of the computation.
        is_cpu: Whether to ignore a GPU.
        has_scales: Whether `GradientScales` handles float16.

    Raises:
        ValueError: If accelerate is not installed, or the device does not support the precision.
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
    return Accelerator(cpu=is_cpu, mixed_precision=mixed, kwargs_handlers=[distributed, waiting])


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
    return torch.futures.collect_all(futures).then(lambda done: (done.wait(), bucket.buffer())[1])


def over_processes(accelerator: Accelerator, number: float, how: Literal["mean", "sum"]) -> float:
    """Mean or sum of a number over processes."""
    if accelerator.num_processes == 1:
        return number
    shared = torch.tensor(number, device=accelerator.device)
    return float(cast("Tensor", accelerator.reduce(shared, how)).item())


class Part(NamedTuple):
    """Some pairs of a batch."""

    ids: Tensor
    """``[pairs, s]``, int64."""
    images: Tensor
    """Pixels ``[pairs, 3, size, size]``, or features ``[pairs, p]`` if the image tower is not trained."""


class Features(NamedTuple):
    """Features of some pairs."""

    texts: Tensor
    """``[pairs, p]``."""
    images: Tensor
    """``[pairs, p]``."""
    distance: Tensor | None = None
    """Shape ``[]``: change of the kept rows; None if none are given."""


class Losses(NamedTuple):
    """Losses of a step."""

    contrastive: float
    """Contrastive loss in nats."""
    distance: float
    """Change of the kept rows, without its weight; 0 if none are kept."""


class Towers(nn.Module):
    """Modules being trained, wrapped in one for distributed training: the towers, and the scale of the loss."""

    def __init__(
        self, text: TextModel, vision: VisionModel | None, loss: ContrastiveLoss, word: Word | None = None
    ) -> None:
        super().__init__()
        self.text = text
        self.vision = vision
        self.loss = loss
        self.word = word

    def forward(self, part: Part, kept: Kept | None = None) -> Features:
        """Features of some pairs, and the change of the kept rows."""
        packed = pack(part.ids, self.text.config)
        if self.word is None:
            texts = projected(self.text, packed)
        else:
            ids, vectors = self.word.split(packed.ids, self.text.config)
            # so that a batch without the word has a gradient, too, of 0
            texts = projected(self.text, packed._replace(ids=ids), vectors) + 0 * self.word.vectors.sum()
        images = part.images if self.vision is None else self.vision(part.images).projected
        return Features(widened(texts), widened(images), None if kept is None else kept.distance(self.text))


def backward(
    accelerator: Accelerator, model: nn.Module, parts: Sequence[Part], kept: Kept | None = None, keep: float = 0.0
) -> Losses:
    """Accumulate the gradients of a batch; the mean of the processes' losses is the batch's."""
    loss_of = cast("Towers", accelerator.unwrap_model(model)).loss
    if len(parts) == 1:
        texts, images, distance = model(parts[0], kept)
        loss = loss_of(texts, images)
        accelerator.backward(loss if distance is None else loss + keep * distance)
        return Losses(loss.item(), 0.0 if distance is None else distance.item())
    with torch.no_grad():
        pieces = [model(part)[:2] for part in parts]
    features = [torch.cat(piece).requires_grad_() for piece in zip(*pieces, strict=True)]
    loss = loss_of(*features)
    scale = [loss_of.logit_scale] if loss_of.logit_scale.requires_grad else []
    gradients = torch.autograd.grad(loss, [*features, *scale])
    of_scale = gradients[2] if scale else None
    divided = [gradient.split([len(part.ids) for part in parts]) for gradient in gradients[:2]]
    distance = None
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        with nullcontext() if is_last else cast("Any", accelerator.no_sync(model)):
            texts, images, distance = model(part, kept if is_last else None)
            carried = (texts * divided[0][number]).sum()
            if images.requires_grad:
                carried = carried + (images * divided[1][number]).sum()
            if is_last and of_scale is not None:
                carried = carried + loss_of.logit_scale * of_scale
            if distance is not None:
                carried = carried + keep * distance
            accelerator.backward(carried)
    return Losses(loss.item(), 0.0 if distance is None else distance.item())
