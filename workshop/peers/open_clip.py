"""open_clip: its tokenizer, and its own training loop on its CLIP with our weights."""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...encoder.files.layouts import OPENCLIP, OPENCLIP_VISION
from ...encoder.similarity import ContrastiveLoss
from ...encoder.text_model import TextModel
from ...encoder.vision_model import VisionModel
from ...training.optimizer import BETAS, EPS, Rates, adamw

RATES = Rates(1e-4)


class Batch(NamedTuple):
    """Input of a step."""

    captions: Sequence[str]
    pixels: Tensor
    """``[pairs, 3, size, size]``."""
    features: Tensor
    """``[pairs, p]``, features of these images by the frozen image tower, of unit length."""


Epoch = Callable[[Sequence[Batch]], list[float]]
"""Function that takes a step for each batch, and returns their losses."""


def ids_of_open_clip() -> Callable[[str], list[int]]:
    """Its tokenizer."""
    from open_clip.tokenizer import SimpleTokenizer

    return SimpleTokenizer().encode


def open_clip_loop(text: TextModel, vision: VisionModel | None, num_steps: int, *, length: int | None = None) -> Epoch:
    """open_clip's ``train_one_epoch`` on its own CLIP, until the rate is 0.

    An image tower is run at every step, locked as by ``--lock-image``; without one features of the images are given.
    ``length`` is that of its text tower, and so of every caption, with AdamW as in ours; by default they have all
    positions of our text tower, with AdamW as in open_clip's command.
    """
    from open_clip import ClipLoss
    from open_clip.tokenizer import SimpleTokenizer
    from open_clip_train.scheduler import cosine_lr
    from open_clip_train.train import train_one_epoch

    num_positions = length or text.config.context_length
    tokenizer, loss_of = SimpleTokenizer(context_length=num_positions), ClipLoss()
    model = _open_clip(text, vision, num_positions)
    groups = groups_of(model)
    optimizer = torch.optim.AdamW(groups, betas=BETAS, eps=EPS) if length is None else adamw(groups)
    course = cosine_lr(optimizer, RATES.rate, 0, num_steps)
    losses: list[Tensor] = []

    def recorded(**given: Any) -> dict[str, Tensor]:
        found = loss_of(**given)
        losses.append(found["contrastive_loss"].detach())
        return found

    number = 0

    def epoch(batches: Sequence[Batch]) -> list[float]:
        nonlocal number
        losses.clear()
        loader = _Loader(batches, tokenizer, is_pixels=vision is not None)
        data = {"train": SimpleNamespace(dataloader=loader, set_epoch=int)}
        options = SimpleNamespace(**_OPTIONS, batch_size=len(batches[0].captions))
        train_one_epoch(model, data, recorded, number, optimizer, None, course, None, options)
        number += 1
        return [loss.item() for loss in losses]

    return epoch


_OPTIONS = {
    **{"device": "cpu", "precision": "fp32", "accum_freq": 1, "grad_clip_norm": None, "log_every_n_steps": 100},
    **{"distill": False, "skip_scheduler": False, "horovod": False, "wandb": False},
    **{"rank": 0, "local_rank": 0, "world_size": 1},
}
"""Defaults of open_clip's command line that its loop reads."""


class _Loader:
    """Some batches in the form of open_clip's data loader."""

    def __init__(self, batches: Sequence[Batch], tokenizer: Any, *, is_pixels: bool) -> None:
        self.batches, self.tokenizer, self.is_pixels = batches, tokenizer, is_pixels
        self.num_batches = len(batches)
        self.num_samples = sum(len(batch.captions) for batch in batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.batches:
            yield batch.pixels if self.is_pixels else batch.features, self.tokenizer(list(batch.captions))


def _open_clip(text: TextModel, vision: VisionModel | None, length: int) -> Any:
    """open_clip's CLIP with our weights; without an image tower if image features are given."""
    from open_clip import CLIP

    given, seen = text.config, None if vision is None else vision.config
    text_sizes = {
        "context_length": length,
        "vocab_size": given.vocab_size,
        "width": given.hidden_dim,
        "heads": given.num_heads,
        "layers": given.num_layers,
        "mlp_ratio": given.mlp_dim / given.hidden_dim,
    }
    image_sizes: dict[str, Any] = {"image_size": 1, "patch_size": 1, "width": 64, "layers": 1}
    if seen is not None:
        image_sizes = {
            "image_size": seen.image_size,
            "patch_size": seen.patch_size,
            "width": seen.hidden_dim,
            "head_width": seen.hidden_dim // seen.num_heads,
            "layers": seen.num_layers,
            "mlp_ratio": seen.mlp_dim / seen.hidden_dim,
        }
    make: Any = CLIP
    model = make(
        given.projection_dim, image_sizes, text_sizes, quick_gelu=given.activation == "quick_gelu", output_dict=True
    )
    tensors = _open_clip_tensors(text, OPENCLIP)
    tensors["positional_embedding"] = tensors["positional_embedding"][:length]
    if vision is None:
        model.visual = nn.Identity()
    else:
        tensors |= _open_clip_tensors(vision, OPENCLIP_VISION)
    model.load_state_dict({**tensors, "logit_scale": ContrastiveLoss().logit_scale})
    if vision is not None:
        model.lock_image_tower()
    return model


def _open_clip_tensors(model: TextModel | VisionModel, table: Any) -> dict[str, Tensor]:
    """Parameters of a tower under open_clip's keys."""
    ours = dict(model.named_parameters())
    tensors: dict[str, Tensor] = {}
    for key, name in table.items():
        for number in range(model.config.num_layers if "{}" in name else 1):
            one = name.format(number)
            if ".qkv_proj." in one:
                found = torch.cat([ours[one.replace("qkv", third)] for third in "qkv"])
            else:
                found = ours[one]
            tensors[key.format(number)] = found.T if key in ("text_projection", "visual.proj") else found
    tensors.pop("text_projection.weight", None)  # if it is a linear layer, which it is not by default
    return {key: tensor.detach() for key, tensor in tensors.items()}


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    """Parameter groups as in open_clip's command: norms, biases and the scale do not decay."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [one for one in trained if one.ndim >= 2], "lr": RATES.rate, "weight_decay": RATES.weight_decay},
        {"params": [one for one in trained if one.ndim < 2], "lr": RATES.rate, "weight_decay": 0.0},
    ]
