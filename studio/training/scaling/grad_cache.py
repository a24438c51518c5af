"""One training step: the loss of a batch, optionally computed in parts, and its gradients.

In parts, all pairs of the batch are still negatives of each other: features are computed without gradients first, the
loss of all of them gives the gradient of each feature, and each part is computed again to propagate it to the weights.
This takes the memory of one part and a third more time. The gradients equal those of the whole batch.

Source: L. Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from heapq import heapreplace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ....encoder.masks import causal_mask, group_mask
from ....encoder.models.config import TextConfig
from ....encoder.models.linear import widened
from ....encoder.models.text_model import TextModel, Vectors, check_ids, first_eos
from ....encoder.models.vision_model import VisionModel
from ....encoder.similarity import ContrastiveLoss
from ..finetuning.retention import Kept
from ..finetuning.textual_inversion import WordVectors

if TYPE_CHECKING:
    from accelerate import Accelerator


class MicroBatch(NamedTuple):
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


class Towers(nn.Module):
    """Modules being trained, wrapped in one for distributed training: the towers, and the scale of the loss."""

    def __init__(
        self, text: TextModel, vision: VisionModel | None, loss: ContrastiveLoss, word: WordVectors | None = None
    ) -> None:
        super().__init__()
        self.text = text
        self.vision = vision
        self.loss = loss
        self.word = word

    def forward(self, part: MicroBatch, kept_prompts: Kept | None = None) -> Features:
        """Features of some pairs, and the change of the kept rows."""
        texts, images = self.texts(part.ids), self.images(part.images)
        return Features(texts, images, None if kept_prompts is None else kept_prompts.distance(self.text))

    def texts(self, ids: Tensor) -> Tensor:
        """Features of texts, ``[texts, p]``."""
        packed = pack(ids, self.text.config)
        if self.word is None:
            return widened(projected(self.text, packed))
        ids, vectors = self.word.split(packed.ids, self.text.config)
        # so that a batch without the word has a gradient, too, of 0
        return widened(projected(self.text, packed._replace(ids=ids), vectors) + 0 * self.word.vectors.sum())

    def images(self, images: Tensor) -> Tensor:
        """Features of images, ``[images, p]``, given as in `MicroBatch`."""
        return widened(images if self.vision is None else self.vision(images).projected)


def backward(
    accelerator: Accelerator,
    model: nn.Module,
    parts: Sequence[MicroBatch],
    kept_prompts: Kept | None = None,
    keep: float = 0.0,
) -> tuple[float, float]:
    """Accumulate the gradients of a batch; the mean of the processes' losses is the batch's.

    Returns the contrastive loss in nats, and the change of the kept rows, without its weight; 0 if none are kept.
    """
    loss_of = cast("Towers", getattr(model, "module", model)).loss
    if len(parts) == 1:
        texts, images, distance = model(parts[0], kept_prompts)
        loss = loss_of(texts, images)
        accelerator.backward(loss if distance is None else loss + keep * distance)
        return loss.item(), 0.0 if distance is None else distance.item()
    with torch.no_grad():
        pieces = [model(part)[:2] for part in parts]
    features = [torch.cat(piece).requires_grad_() for piece in zip(*pieces, strict=True)]
    loss = loss_of(*features)
    numbers = [parameter for parameter in loss_of.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(loss, [*features, *numbers])
    divided = [gradient.split([len(part.ids) for part in parts]) for gradient in gradients[:2]]
    distance = None
    for index, part in enumerate(parts):
        is_last = index == len(parts) - 1
        with nullcontext() if is_last else cast("Any", accelerator.no_sync(model)):
            texts, images, distance = model(part, kept_prompts if is_last else None)
            carried = (texts * divided[0][index]).sum()
            if images.requires_grad:
                carried = carried + (images * divided[1][index]).sum()
            for number, gradient in zip(numbers, gradients[2:], strict=True) if is_last else ():
                carried = carried + number * gradient
            if distance is not None:
                carried = carried + keep * distance
            accelerator.backward(carried)
    return loss.item(), 0.0 if distance is None else distance.item()


LENGTHS = (1, 2, 4)
"""Row lengths considered, in multiples of the longest caption. Longer rows fill up better, but cost more in
attention."""


class PackedCaptions(NamedTuple):
    """Captions packed into rows."""

    ids: Tensor
    """``[rows, length]``, int64."""
    ends: Tensor
    """``[captions]``, int64: place of each caption's EOS, counted through all rows."""
    positions: Tensor | None = None
    """``[rows, length]``, int64: position of each token in its caption. None if each row is one caption."""
    captions: Tensor | None = None
    """``[rows, length]``, int64: number of each token's caption; -1 after the last one of a row. None as above."""


def pack(ids: Tensor, config: TextConfig) -> PackedCaptions:
    """Pack captions, each from BOS to its first EOS, into the rows that take the fewest multiplications.

    A caption without EOS is used whole. Captions stay as they are if packing saves nothing; it is deterministic.

    >>> ids = torch.tensor([[1, 5, 9, 9], [1, 6, 7, 9], [1, 9, 9, 9], [1, 8, 9, 9]])
    >>> packed = pack(ids, TextConfig(bos_id=1, eos_id=9))
    >>> packed.ids.tolist(), packed.ends.tolist()
    ([[1, 6, 7, 9, 1, 9], [1, 5, 9, 1, 8, 9]], [8, 3, 5, 11])
    """
    check_ids(ids, config)
    (num_captions, width), device = ids.shape, ids.device
    last = first_eos(ids, config.eos_id)
    lengths = [end + 1 for end in last.tolist()]
    plain = _Rows(num_captions, width, range(0, ids.numel(), width))
    numbers = sorted({-(-sum(lengths) // (factor * max(lengths))) for factor in LENGTHS})
    best = min([plain, *(_filled(lengths, number) for number in numbers)], key=lambda rows: rows.cost(config))
    starts = torch.tensor(best.starts, device=device)
    if best is plain:
        return PackedCaptions(ids, starts + last)
    columns = torch.arange(width, device=device)
    is_caption = columns <= last.unsqueeze(1)  # [captions, s]
    places = (starts.unsqueeze(1) + columns)[is_caption]

    def laid(values: Tensor, fill: int) -> Tensor:
        """Arrange values of tokens, ``[captions, s]`` or fewer, in rows."""
        flat = torch.full((best.num_rows * best.length,), fill, device=device)
        flat[places] = values.expand_as(ids)[is_caption]
        return flat.view(best.num_rows, best.length)

    numbered = torch.arange(num_captions, device=device).unsqueeze(1)
    return PackedCaptions(laid(ids, config.pad_id), starts + last, laid(columns, 0), laid(numbered, -1))


def projected(model: TextModel, packed: PackedCaptions, vectors: Vectors | None = None) -> Tensor:
    """Project packed captions to ``[captions, p]``, in the original order."""
    if packed.captions is None:
        return model(packed.ids, vectors=vectors).projected
    hidden = model.embeddings(packed.ids, vectors, packed.positions)
    causal = causal_mask(hidden.shape[1]).to(hidden.device)
    mask = (causal & group_mask(packed.captions)).unsqueeze(1)  # [rows, 1, length, length]
    rotate = None if packed.positions is None else model.rotation(packed.positions)
    last = model.encoder(hidden, mask, is_causal=False, rotate=rotate)[-1]
    pooled = model.final_layer_norm(last.flatten(0, 1)[packed.ends])  # [rows, length, d] -> [captions, d]
    return cast("nn.Linear", model.text_projection)(pooled)


class _Rows(NamedTuple):
    """Starts of captions."""

    num_rows: int
    length: int
    starts: Sequence[int]
    """Counted through all rows."""

    def cost(self, config: TextConfig) -> int:
        """Multiplications per layer, divided by ``2 d``.

        A token takes ``4 d^2 + 2 d m`` in the linear layers, and ``2 d`` in attention for each place in its row.
        """
        return self.num_rows * self.length * (2 * config.hidden_dim + config.mlp_dim + self.length)


def _filled(lengths: Sequence[int], num_rows: int) -> _Rows:
    """Distribute captions of given lengths over rows: the longest first, each into the emptiest row."""
    filled = [(0, row) for row in range(num_rows)]
    begins = [(0, 0)] * len(lengths)
    for caption in sorted(range(len(lengths)), key=lambda caption: -lengths[caption]):
        column, row = filled[0]
        begins[caption] = row, column
        heapreplace(filled, (column + lengths[caption], row))
    longest = max(filled)[0]
    return _Rows(num_rows, longest, [row * longest + column for row, column in begins])
