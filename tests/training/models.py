"""A tiny CLIP with random weights, random pairs, and our own training of it; for processes that tests start, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.optim.lr_scheduler import LambdaLR
from weighted_clip.encoder.files.checkpoint import seeded_text_model, seeded_vision_model
from weighted_clip.encoder.models.config import TextConfig, VisionConfig
from weighted_clip.encoder.similarity import ContrastiveLoss
from weighted_clip.studio.training.optimizer import Rates, adamw, factor, groups_of
from weighted_clip.studio.training.scaling.distributed import reduce_apart
from weighted_clip.studio.training.scaling.fsdp import Sharding
from weighted_clip.studio.training.scaling.grad_cache import MicroBatch, Towers, backward

TEXT = TextConfig(hidden_dim=16, num_heads=1, num_layers=2, mlp_dim=64, projection_dim=32)
"""So narrow since its table has 49,408 rows, which take most of the time of a short run."""
VISION = VisionConfig(
    image_size=28, patch_size=14, hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=64, projection_dim=32
)
WIDE = replace(TEXT, hidden_dim=64)
"""With heads as wide as in released ones, which no config has to tell."""
FEW = replace(WIDE, vocab_size=1002, bos_id=1000, eos_id=1001, pad_id=1001)
"""With few token ids: the whole table takes most of the time of a step."""
LENGTH = 9


def towers(dtype: torch.dtype = torch.float64, *, is_both: bool = True, text: TextConfig = FEW) -> Towers:
    vision = seeded_vision_model(VISION) if is_both else None
    return Towers(seeded_text_model(text), vision, ContrastiveLoss()).to(dtype).train()


def pairs(
    count: int, seed: int = 0, dtype: torch.dtype = torch.float64, *, is_both: bool = True, text: TextConfig = FEW
) -> MicroBatch:
    """Texts of various lengths, and random pixels; random features where the image tower is not trained."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.full((count, LENGTH), text.eos_id)
    ids[:, 0] = text.bos_id
    for row in ids:
        length = int(torch.randint(1, LENGTH - 1, (1,), generator=generator))
        row[1 : 1 + length] = torch.randint(0, FEW.bos_id, (length,), generator=generator)
    image = (3, 28, 28) if is_both else (TEXT.projection_dim,)
    return MicroBatch(ids, torch.randn(count, *image, generator=generator, dtype=dtype))


def divided(batch: MicroBatch, count: int) -> list[MicroBatch]:
    return [MicroBatch(*piece) for piece in zip(*(tensor.chunk(count) for tensor in batch), strict=True)]


def accelerator():
    """One that knows nothing of earlier ones."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    return Accelerator(cpu=True)


def gradients(model: Towers, parts: Sequence[MicroBatch]) -> dict[str, torch.Tensor]:
    """Gradients of a batch in parts, on one of possibly several processes."""
    groups_of(model, Rates())
    model.zero_grad()
    ours = accelerator()
    backward(ours, ours.prepare(model), parts)
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def trained(
    model: Towers, batches: Sequence[Sequence[MicroBatch]], rates: Rates, *, is_sharded: bool = False
) -> list[float]:
    """Losses of some steps; the model is trained by them, and perhaps divided."""
    ours, groups = accelerator(), groups_of(model, rates)
    sharding = Sharding(ours, model) if is_sharded else None
    if sharding:
        groups = sharding.divide(model, groups)
    optimizer = adamw(groups)
    prepared, stepped = (sharding or ours).prepare(model, optimizer)
    reduce_apart(prepared)
    course = LambdaLR(optimizer, lambda step: factor(step, rates.warmup, len(batches)))
    losses = []
    for parts in batches:
        losses.append(backward(ours, prepared, parts)[0])
        stepped.step()
        stepped.zero_grad()
        course.step()
        model.loss.clamp_temperature()
    return losses
