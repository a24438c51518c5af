"""Captioned pictures of coloured shapes, and a CLIP small enough to learn them within a test.

A caption names size, colour, kind and place of the one shape in its picture. Of all combinations 64 are held out: their
captions, all different, are in no training batch, so only a model that has learned what the words mean can find their
pictures.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn
from weighted_clip.encoder.images import preprocess
from weighted_clip.encoder.models.clip import FullClip
from weighted_clip.encoder.models.config import TextConfig, VisionConfig
from weighted_clip.encoder.models.text_model import TextModel
from weighted_clip.encoder.models.vision_model import VisionModel
from weighted_clip.encoder.similarity import ContrastiveLoss
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.studio.world.shapes import APART, Shape, draw, split
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.text.chunks import TokenChunk
from weighted_clip.weighting.towers import layout_of

TEXT = TextConfig(hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=128, projection_dim=64)
VISION = VisionConfig(
    image_size=48, patch_size=16, hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=128, projection_dim=64
)
"""Heads are 64 wide, as in every CLIP, so that a file of them can be read."""
NUM_READ = 10
"""Positions that training computes: no caption is longer, and nothing after EOS affects what is before it."""
NUM_PICTURES = 10
"""Pictures per caption, all different."""
NUM_STEPS = 500
BATCH = 128


def picture_of(shape: Shape, rng: random.Random, side: int = APART.side) -> Image.Image:
    """A picture of a shape; no two are the same."""
    return draw(shape, rng, replace(APART, side=side))


def chunk_of(caption: str) -> TokenChunk:
    """BOS, a caption's tokens, EOS and padding: 77 positions."""
    [chunk] = read_prompt(caption, EncodeOptions(syntax="none"), default_tokenizer(), layout_of(TEXT)).chunks
    return chunk


def train_clip(path: Path) -> None:
    """Write the trained CLIP; the same on the same machine."""
    clip = trained_clip()
    state = {"text": clip.text.state_dict(), "vision": clip.vision.state_dict(), "scale": clip.logit_scale}
    torch.save(state, path)


def read_clip(path: Path) -> FullClip:
    """Read what `train_clip` wrote, in evaluation mode without gradients."""
    state = torch.load(path, weights_only=True)
    text, vision = TextModel(TEXT), VisionModel(VISION)
    for name, model in (("text", text), ("vision", vision)):
        model.load_state_dict(state[name])
        model.eval().requires_grad_(False)
    return FullClip(text, vision, state["scale"], "shapes")


@contextmanager
def _one_thread() -> Generator[None, None, None]:
    """So small a model gains nothing from more; they round otherwise, and wait for each other on a busy machine."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


@cache
def trained_clip() -> FullClip:
    """Let a CLIP learn the training part."""
    with _one_thread():
        return _trained(0)


def _trained(seed: int) -> FullClip:
    shapes, _ = split()
    rng, generator = random.Random(1), torch.Generator().manual_seed(seed)
    ids = torch.tensor([chunk_of(shape.caption).plain_ids[:NUM_READ] for shape in shapes])
    pixels = torch.stack(
        [preprocess([picture_of(shape, rng) for shape in shapes], VISION.image_size) for _ in range(NUM_PICTURES)]
    )
    text, vision, loss = _models(seed)
    whole = text.embeddings.token_embedding
    text.embeddings.token_embedding = known = _Known(whole, ids.unique())
    parameters = [*text.parameters(), *vision.parameters(), *loss.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=NUM_STEPS, pct_start=0.1)
    for _ in range(NUM_STEPS):
        some = torch.randperm(len(shapes), generator=generator)[:BATCH]
        which = torch.randint(NUM_PICTURES, (BATCH,), generator=generator)
        error = loss(_projected(text(ids[some])), _projected(vision(pixels[which, some])))
        optimizer.zero_grad()
        error.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        loss.clamp_temperature()
    text.embeddings.token_embedding = known.in_table(whole)
    for model in (text, vision):
        model.eval().requires_grad_(False)
    return FullClip(text, vision, 1 / loss.temperature.item(), "shapes")


class _Known(nn.Module):
    """Embedding of the tokens in captions alone: with all 49,408 rows a step takes half as long again."""

    def __init__(self, table: nn.Embedding, ids: Tensor) -> None:
        super().__init__()
        self.ids, self.rows = ids, nn.Parameter(table.weight[ids].detach())

    def forward(self, ids: Tensor) -> Tensor:
        return nn.functional.embedding(torch.searchsorted(self.ids, ids), self.rows)

    def in_table(self, table: nn.Embedding) -> nn.Embedding:
        with torch.no_grad():
            table.weight[self.ids] = self.rows
        return table


def _models(seed: int) -> tuple[TextModel, VisionModel, ContrastiveLoss]:
    """With PyTorch's own first weights, but small embeddings."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        text, vision = TextModel(TEXT), VisionModel(VISION)
        for model in (text, vision):
            for module in model.modules():
                if isinstance(module, nn.Embedding):
                    nn.init.normal_(module.weight, std=0.05)
        nn.init.normal_(vision.embeddings.class_embedding, std=0.05)
    return text, vision, ContrastiveLoss()


def _projected(output: object) -> Tensor:
    projected = getattr(output, "projected", None)
    assert isinstance(projected, Tensor)
    return projected
