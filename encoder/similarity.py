"""CLIP's objective: the similarity of texts and images, and the symmetric contrastive loss over a batch of pairs.

Works on the two towers' projected features, whatever made them. Also works over several processes, where every rank's
negatives are the features of all ranks.

Source: docs/lecture.md Definition 6.1 (equations 64 to 68); for the temperature A. Radford et al., "Learning
Transferable Visual Models From Natural Language Supervision", 2021, section 2.5.
"""

from __future__ import annotations

import math
from typing import Any, Literal, cast

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from .models.linear import widened, without_autocast
from .quoting import checked

Over = Literal["texts", "images", "none"]
"""Dimension over which probabilities sum to 1."""

INITIAL_TEMPERATURE = 0.07
"""τ at the start of CLIP's training."""

INITIAL_SIGMOID_TEMPERATURE, INITIAL_BIAS = 0.1, -10.0
"""τ and bias at the start of SigLIP's training."""

MIN_TEMPERATURE = 0.01
"""Minimum of τ: CLIP never scales a cosine by more than 100."""

MAX_LOGIT_SCALE = math.log(100)
"""The same bound on ln(1/τ)."""


def normalized(features: Tensor) -> Tensor:
    """Normalise features to unit length (equation 64).

    Args:
        features: ``[..., dim]``, float. Half precision is computed and returned in float32.

    Returns:
        ``[..., dim]``, float32 or float64. A vector of zeros has no direction and is returned unchanged.
    """
    return functional.normalize(widened(features), dim=-1)


def similarity(text_features: Tensor, image_features: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    """Cosine similarity of each text and each image, divided by the temperature (equations 64 and 65).

    Args:
        text_features: ``[texts, dim]``, float, of any length: they are normalised here.
        image_features: ``[images, dim]``, in the same way.
        temperature: τ, above 0; at 1 the result is the cosine, from -1 to 1.

    Returns:
        S, ``[texts, images]``, float32, or float64 if a feature is. Half precision is computed in float32, under
        autocast too.

    Raises:
        ValueError: If the features are not matrices of the same width, or ``temperature`` is not above 0.
    """
    _check_features(text_features, image_features)
    if not isinstance(temperature, Tensor) and not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    with without_autocast(text_features.device):
        texts, images = normalized(text_features), normalized(image_features)
        wide = torch.promote_types(texts.dtype, images.dtype)
        return texts.to(wide) @ images.to(wide).T / temperature


def probabilities(scores: Tensor, over: Over) -> Tensor:
    """Softmax of a similarity matrix over its texts or its images (the fractions in equations 66 and 67).

    Args:
        scores: S, ``[texts, images]``, from `similarity`.
        over: ``images``: for each text, the probability of each image. ``texts``: for each image, the probability of
            each text. ``none``: the unchanged scores.

    Returns:
        ``[texts, images]``. For ``images`` rows sum to 1, for ``texts`` columns.

    Raises:
        ValueError: If ``scores`` is not a matrix or ``over`` is unknown.
    """
    if scores.ndim != 2:
        raise ValueError(f"scores must be [texts, images], got shape {list(scores.shape)}")
    axes = {"texts": 0, "images": 1, "none": None}
    axis = axes[checked("over", over, axes)]
    return scores if axis is None else widened(scores).softmax(axis)


class ContrastiveLoss(nn.Module):
    """Symmetric contrastive loss with a learnable temperature (Definition 6.1, equations 64 to 68).

    **Temperature.** The parameter is ``logit_scale`` = ln(1/τ), a single number, as in CLIP's checkpoints. It starts at
    ln(1/0.07). The loss never uses more than ln 100. Call `clamp_temperature` after every optimizer step, as CLIP's
    training does: a parameter beyond the bound gets no gradient and would stay there.

    **Several processes.** If torch.distributed is initialised with more than one rank, each rank passes its own pairs,
    the same number on every rank. `forward` gathers the features of all ranks and returns the loss of this rank's own
    texts and images against all of them. Of the joint batch,

    - the loss is the *mean* of the ranks' losses;
    - the gradient of a parameter (tower weights, ``logit_scale``) is the *mean* over the ranks of its gradients.
      DistributedDataParallel does that if it wraps this module; otherwise the caller averages ``logit_scale.grad``;
    - the gradient of a feature is that on its own rank divided by the number of ranks, since there it comes from the
      *sum* of all ranks' losses.

    Forward and backward are collective: every rank must run both, equally often.
    """

    def __init__(self, temperature: float = INITIAL_TEMPERATURE) -> None:
        """Initialise at a temperature."""
        super().__init__()
        if not MIN_TEMPERATURE <= temperature < math.inf:
            raise ValueError(f"temperature must be at least {MIN_TEMPERATURE}, got {temperature}")
        self.logit_scale = nn.Parameter(torch.tensor(-math.log(temperature)))

    @property
    def temperature(self) -> Tensor:
        """τ as used by the loss: a tensor of shape ``[]``, at least 0.01."""
        scale = widened(self.logit_scale)
        bound = scale.new_tensor(MAX_LOGIT_SCALE)
        # not clamp(): from torch 2.15 on it has no gradient at the bound, where the scale would be stuck
        return torch.exp(-torch.where(scale > bound, bound, scale))

    @torch.no_grad()
    def clamp_temperature(self) -> None:
        """Clamp ``logit_scale`` to at most ln 100. Call this after every optimizer step."""
        self.logit_scale.clamp_(max=MAX_LOGIT_SCALE)

    def forward(self, text_features: Tensor, image_features: Tensor) -> Tensor:
        """Loss of a batch of pairs.

        Args:
            text_features: ``[batch, dim]``, float: projected text features, normalised or not.
            image_features: ``[batch, dim]``, float: row i is the image of text i.

        Returns:
            Shape ``[]``, float32 or float64, in nats. With several processes, this rank's part; see the class.

        Raises:
            ValueError: If the features are not two matrices of the same shape with at least one pair, or ranks have
                features of different shapes.
        """
        _check_features(text_features, image_features)
        batch = len(text_features)
        if batch != len(image_features) or batch == 0:
            raise ValueError(
                "every text needs its image, and there must be at least one pair; got text features of shape "
                f"{list(text_features.shape)} and image features of shape {list(image_features.shape)}"
            )
        text_features, image_features = widened(text_features), widened(image_features)
        return self._loss(text_features, image_features, *_of_all_ranks(text_features, image_features))

    def alone(self, text_features: Tensor, image_features: Tensor) -> Tensor:
        """Loss of a batch of this process alone; see `forward`."""
        text_features, image_features = widened(text_features), widened(image_features)
        return self._loss(text_features, image_features, text_features, image_features, 0)

    def _loss(self, texts: Tensor, images: Tensor, all_texts: Tensor, all_images: Tensor, first: int) -> Tensor:
        """Loss of pairs among all pairs, of which they are those from ``first`` on."""
        targets = first + torch.arange(len(texts), device=texts.device)
        text_to_image = similarity(texts, all_images, self.temperature)  # [batch, all]: S_ij over j
        image_to_text = similarity(all_texts, images, self.temperature).T  # [batch, all]: S_ji over j
        # (66), (67) and their mean (68)
        return (functional.cross_entropy(text_to_image, targets) + functional.cross_entropy(image_to_text, targets)) / 2


class SigmoidLoss(ContrastiveLoss):
    """SigLIP's loss: for each text and each image of a batch, whether they are a pair, apart from all others.

    It is the sum of -ln sigmoid(z (S + b)) over all texts and images, divided by the number of pairs, where z is 1 for
    a pair and else -1. The bias b, ``logit_bias``, is learned too. What is said of several processes and of the
    temperature in `ContrastiveLoss` holds.

    Source: X. Zhai et al., "Sigmoid Loss for Language Image Pre-Training", 2023, equation 1 and algorithm 1.
    """

    def __init__(self, temperature: float = INITIAL_SIGMOID_TEMPERATURE, bias: float = INITIAL_BIAS) -> None:
        """Initialise at a temperature and a bias."""
        super().__init__(temperature)
        self.logit_bias = nn.Parameter(torch.tensor(float(bias)))

    def _loss(self, texts: Tensor, images: Tensor, all_texts: Tensor, all_images: Tensor, first: int) -> Tensor:
        scores = similarity(all_texts, images, self.temperature).T + self.logit_bias  # [batch, all]: image i, text j
        is_pair = torch.zeros_like(scores, dtype=torch.bool)
        is_pair.diagonal(first).fill_(True)
        return -functional.logsigmoid(torch.where(is_pair, scores, -scores)).sum() / len(images)


class _AllGather(torch.autograd.Function):
    """Gather every rank's tensor, with gradients: a rank's tensor gets the sum over all ranks' losses.

    torch.distributed.nn.functional.all_gather is the same, but deprecated since torch 2.13.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor) -> Tensor:
        """``[...]`` to ``[ranks, ...]``."""
        features = features.contiguous()
        everyone = [torch.empty_like(features) for _ in range(distributed.get_world_size())]
        distributed.all_gather(everyone, features)
        return torch.stack(everyone)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        """``[ranks, ...]`` to ``[...]``."""
        total = grad_outputs[0].clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total)
        return total[distributed.get_rank()]


def _of_all_ranks(texts: Tensor, images: Tensor) -> tuple[Tensor, Tensor, int]:
    """Text and image features of all ranks, ``[all, dim]`` each, and the first row of this rank."""
    is_alone = not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1
    if is_alone:
        return texts, images, 0
    shape = torch.tensor(texts.shape, device=texts.device)
    shapes = [torch.empty_like(shape) for _ in range(distributed.get_world_size())]
    distributed.all_gather(shapes, shape)
    if any(rank_shape.tolist() != shape.tolist() for rank_shape in shapes):
        each = ", ".join(f"{rank_shape.tolist()} on rank {rank}" for rank, rank_shape in enumerate(shapes))
        raise ValueError(
            "every rank must give features of the same shape, so that the mean over the ranks is that over all pairs "
            f"(DataLoader: drop_last=True); got {each}"
        )
    everyone = cast("Tensor", _AllGather.apply(torch.stack([texts, images])))  # [ranks, 2, batch, dim]
    all_texts, all_images = everyone.transpose(0, 1).flatten(1, 2)  # [2, all, dim]
    return all_texts, all_images, distributed.get_rank() * len(texts)


def _check_features(text_features: Tensor, image_features: Tensor) -> None:
    shapes = list(text_features.shape), list(image_features.shape)
    if len(shapes[0]) != 2 or len(shapes[1]) != 2 or shapes[0][1] != shapes[1][1]:
        raise ValueError(
            f"text features must be [texts, dim] and image features [images, dim] of the same dim, "
            f"got {shapes[0]} and {shapes[1]}"
        )
