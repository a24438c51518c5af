"""Captioned pictures of coloured shapes, and a CLIP small enough to learn them within a test.

A caption names size, colour, kind and place of the one shape in its picture. Of all combinations 64 are held out: their
captions, all different, are in no training batch, so only a model that has learned what the words mean can find their
pictures.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from itertools import product
from typing import NamedTuple

import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from weighted_clip.encoder.config import TextConfig, VisionConfig
from weighted_clip.encoder.contrastive import ContrastiveLoss
from weighted_clip.encoder.full_clip import FullClip
from weighted_clip.encoder.images import preprocess
from weighted_clip.encoder.text_model import TextModel
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.encoder.vision_model import VisionModel
from weighted_clip.weighting.chunks import TokenChunk
from weighted_clip.weighting.encode import EncodeOptions, read_prompt
from weighted_clip.weighting.towers import layout_of

RADII = {"small": 8, "large": 13}
"""In pixels."""
COLORS = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 80, 220),
    "yellow": (240, 210, 50),
    "purple": (140, 60, 180),
    "white": (245, 245, 245),
}
KINDS = ("circle", "square", "triangle", "cross", "ring")
PLACES = {
    "at the top left": (1 / 6, 1 / 6),
    "at the top": (1 / 2, 1 / 6),
    "at the top right": (5 / 6, 1 / 6),
    "on the left": (1 / 6, 1 / 2),
    "in the middle": (1 / 2, 1 / 2),
    "on the right": (5 / 6, 1 / 2),
    "at the bottom left": (1 / 6, 5 / 6),
    "at the bottom": (1 / 2, 5 / 6),
    "at the bottom right": (5 / 6, 5 / 6),
}
"""Centres, in sides of the picture."""
SIDE = 96
"""Of a picture, in pixels."""
NUM_HELD_OUT = 64

TEXT = TextConfig(hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=128, projection_dim=64)
VISION = VisionConfig(
    image_size=48, patch_size=16, hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=128, projection_dim=64
)
"""Heads are 64 wide, as in every CLIP, so that a file of them can be read."""
NUM_READ = 12
"""Positions that training computes: no caption is longer, and what stands behind EOS changes nothing before it."""
NUM_PICTURES = 10
"""Of each caption, all different."""
NUM_STEPS = 500
BATCH = 128


class Shape(NamedTuple):
    """What a picture shows."""

    size: str
    color: str
    kind: str
    place: str

    @property
    def caption(self) -> str:
        return f"a {self.size} {self.color} {self.kind} {self.place}"

    def draw(self, rng: random.Random, side: int = SIDE) -> Image.Image:
        """A picture of it; no two are the same in background, place, size and colour."""
        unit = side / SIDE
        picture = Image.new("RGB", (side, side), tuple(rng.randint(20, 50) for _ in range(3)))
        draw = ImageDraw.Draw(picture)
        x, y = (share * side + rng.uniform(-2, 2) * unit for share in PLACES[self.place])
        r = RADII[self.size] * rng.uniform(0.94, 1.06) * unit
        fill = tuple(min(255, max(0, value + rng.randint(-12, 12))) for value in COLORS[self.color])
        if self.kind == "circle":
            draw.ellipse((x - r, y - r, x + r, y + r), fill=fill)
        elif self.kind == "ring":
            draw.ellipse((x - r, y - r, x + r, y + r), outline=fill, width=round(r * 0.35))
        elif self.kind == "square":
            draw.rectangle((x - 0.9 * r, y - 0.9 * r, x + 0.9 * r, y + 0.9 * r), fill=fill)
        elif self.kind == "triangle":
            draw.polygon([(x, y - 1.1 * r), (x + 1.1 * r, y + 0.8 * r), (x - 1.1 * r, y + 0.8 * r)], fill=fill)
        else:
            for width, height in ((r, 0.35 * r), (0.35 * r, r)):
                draw.rectangle((x - width, y - height, x + width, y + height), fill=fill)
        return picture


def split() -> tuple[list[Shape], list[Shape]]:
    """All combinations, in two parts: 476 to learn from, and 64 held out."""
    shapes = [Shape(*words) for words in product(RADII, COLORS, KINDS, PLACES)]
    random.Random(0).shuffle(shapes)
    return shapes[NUM_HELD_OUT:], shapes[:NUM_HELD_OUT]


def chunk_of(caption: str) -> TokenChunk:
    """BOS, a caption's tokens, EOS and padding: 77 positions."""
    [chunk] = read_prompt(caption, EncodeOptions(syntax="none"), default_tokenizer(), layout_of(TEXT)).chunks
    return chunk


@cache
def trained_clip(seed: int = 0) -> FullClip:
    """A CLIP that has learned the training part, in evaluation mode without gradients.

    Args:
        seed: Of first weights and batches.

    Returns:
        The model; the same for the same seed on the same machine. Nobody may change it.
    """
    with _one_thread():
        return _trained_clip(seed)


@contextmanager
def _one_thread() -> Generator[None, None, None]:
    """So small a model gains nothing from more; they round otherwise, and wait for each other on a busy machine."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


def _trained_clip(seed: int) -> FullClip:
    shapes, _ = split()
    rng, generator = random.Random(1), torch.Generator().manual_seed(seed)
    ids = torch.tensor([chunk_of(shape.caption).plain_ids[:NUM_READ] for shape in shapes])
    pixels = torch.stack(
        [preprocess([shape.draw(rng) for shape in shapes], VISION.image_size) for _ in range(NUM_PICTURES)]
    )
    text, vision, loss = _models(seed)
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
    for model in (text, vision):
        model.eval().requires_grad_(False)
    return FullClip(text, vision, 1 / loss.temperature.item(), "shapes")


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
