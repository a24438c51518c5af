"""Recall on captions longer than in training, by the text tower's positions: learned, stretched, rotary.

A picture shows one coloured shape. Its caption describes several shapes in turn, and only the last is in the picture;
so a tower has to read to the end, and to know which clause is the last. Pictures are features of an image tower trained
on captions of one clause, the same for all; every text tower starts with random weights and is trained on captions that
fit 77 positions.

Source: B. Zhang et al., "Long-CLIP: Unlocking the Long-Text Capability of CLIP", 2024, for the stretched table; J. Su
et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, for rotary positions.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...encoder.config import POSITIONS, TextConfig, VisionConfig
from ...encoder.files.stretching import stretched
from ...encoder.images import preprocess
from ...encoder.similarity import ContrastiveLoss
from ...encoder.text_model import TextModel
from ...encoder.tokenizer import default_tokenizer
from ...encoder.vision_model import VisionModel
from ...training.grad_cache import pack, projected
from ...training.metrics import recalls
from ...training.new_text import new_text_model
from ...world.shapes import APART, Shape, combinations, draw, split
from .page import table
from .timing import machine

SHORT, LONG = 77, 248
"""Positions of CLIP, and of Long-CLIP."""
STYLE = replace(APART, side=48)
COPIES = 10
"""Pictures of each shape for training."""
BETWEEN = ", then "
DIM = 64
"""Width of features."""
VISION = VisionConfig(
    image_size=48, patch_size=16, hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=128, projection_dim=DIM
)
RATE, WARM_UP = 1e-3, 50
READ = "as trained, cut at 77"
"""Treatment of captions that are too long for a tower."""


@dataclass(frozen=True)
class Plan:
    """Amount of training and measuring."""

    image_steps: int = 300
    image_batch: int = 128
    steps: int = 600
    further: int = 100
    """Steps on captions of up to 248 positions, afterwards."""
    batch: int = 64
    seeds: tuple[int, ...] = (0,)
    groups: tuple[tuple[int, int], ...] = ((1, 3), (4, 7), (9, 12), (13, 16), (17, 20))
    """Minimum and maximum number of clauses of captions measured together."""
    rounds: int = 8
    """Captions of each held-out shape in a group."""


QUICK = Plan(image_steps=3, image_batch=16, steps=3, further=2, batch=8, seeds=(0,), rounds=1)
"""Plan for tests; its figures are meaningless."""


class Words:
    """CLIP's tokens of all captions, renumbered, so that no table rows represent words that never occur."""

    def __init__(self) -> None:
        """Tokenize all clauses."""
        tokens = {shape: [token.id for token in default_tokenizer()(shape.caption)] for shape in combinations()}
        between = [token.id for token in default_tokenizer()(BETWEEN)]
        used = {*between, *(one for ids in tokens.values() for one in ids)}
        numbers = {one: number for number, one in enumerate(sorted(used))}
        self.config = TextConfig(
            vocab_size=len(numbers) + 2,
            bos_id=len(numbers),
            eos_id=len(numbers) + 1,
            pad_id=len(numbers) + 1,
            hidden_dim=128,
            num_heads=2,
            num_layers=2,
            mlp_dim=256,
            projection_dim=DIM,
        )
        self._clauses = {shape: [numbers[one] for one in ids] for shape, ids in tokens.items()}
        self._between = [numbers[one] for one in between]

    def caption(
        self, target: Shape, others: Sequence[Shape], count: int, rng: random.Random, most: int = LONG
    ) -> list[int]:
        """Tokens of so many clauses, or as many as fit into ``most`` positions; only the last describes the target."""
        told = list(self._clauses[target])
        for shape in rng.sample(others, min(count, len(others))):
            longer = [*self._clauses[shape], *self._between, *told]
            count -= shape != target
            if count < 1 or len(longer) > most - 2:
                break
            told = told if shape == target else longer
        return told

    def ids(self, captions: Sequence[Sequence[int]], config: TextConfig) -> Tensor:
        """``[captions, s]``, int64: BOS, tokens, EOS, padding, truncated to the tower's length."""
        cut = [caption[: config.context_length - 2] for caption in captions]
        rows = [[config.bos_id, *caption, config.eos_id] for caption in cut]
        longest = max(map(len, rows))
        return torch.tensor([row + [config.pad_id] * (longest - len(row)) for row in rows])


def picture_features(words: Words, plan: Plan) -> tuple[Tensor, Tensor]:
    """Features of pictures by an image tower trained on captions of one clause, of unit length.

    Shapes: of all training shapes ``[COPIES, shapes, p]``, of those held out ``[rounds, shapes, p]``.
    """
    learned, held = split()
    rng, generator = random.Random(1), torch.Generator().manual_seed(0)
    pixels, other = (
        torch.stack([preprocess([draw(shape, rng, STYLE) for shape in shapes], STYLE.side) for _ in range(count)])
        for shapes, count in ((learned, COPIES), (held, plan.rounds))
    )
    text = new_text_model(words.config, 0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vision = VisionModel(VISION)
        for table in (vision.embeddings.position_embedding.weight, vision.embeddings.class_embedding):
            nn.init.normal_(table, std=0.05)
    ids = words.ids([words.caption(shape, [], 1, rng) for shape in learned], words.config)

    def batch() -> tuple[Tensor, Tensor]:
        some = torch.randperm(len(learned), generator=generator)[: plan.image_batch]
        which = torch.randint(COPIES, (len(some),), generator=generator)
        return _texts(text, ids[some]), _images(vision, pixels[which, some])

    _train([text, vision], batch, plan.image_steps)
    with torch.no_grad():
        features, of_held = (torch.stack([_images(vision, one) for one in some]) for some in (pixels, other))
    return functional.normalize(features, dim=-1), functional.normalize(of_held, dim=-1)


def train(model: TextModel, words: Words, features: Tensor, plan: Plan, num_steps: int, seed: int) -> None:
    """Train a text tower against features ``[COPIES, shapes, p]``, on captions of all lengths that it can read."""
    learned, rng, length = split()[0], random.Random(f"{seed}/captions"), model.config.context_length

    def batch() -> tuple[Tensor, Tensor]:
        some = rng.sample(range(len(learned)), plan.batch)
        captions = [words.caption(learned[one], learned, rng.randint(1, length // 10), rng, length) for one in some]
        images = torch.stack([features[rng.randrange(COPIES), one] for one in some])
        return _texts(model, words.ids(captions, model.config)), images

    _train([model], batch, num_steps)


def measured(model: TextModel, words: Words, features: Tensor, plan: Plan) -> list[float]:
    """Recall@1 from captions to pictures of all held-out shapes, 0 to 1, by group; features ``[rounds, shapes, p]``."""
    held = split()[1]
    found: list[float] = []
    for fewest, most in plan.groups:
        rng = random.Random(f"group {fewest}")
        shares: list[float] = []
        for images in features:
            captions = [words.caption(shape, held, rng.randint(fewest, most), rng) for shape in held]
            with torch.no_grad():
                texts = _texts(model, words.ids(captions, model.config))
            shares.append(recalls(texts, images)["text to image @1"])
        found.append(sum(shares) / len(shares))
    return found


def longer(model: TextModel) -> TextModel:
    """The tower for 248 positions: its table stretched by Long-CLIP's rule; unchanged if positions are rotary."""
    weights = model.state_dict()
    table = weights.get("embeddings.position_embedding.weight")
    if table is not None:
        weights["embeddings.position_embedding.weight"] = stretched(table, LONG)
    long = TextModel(replace(model.config, context_length=LONG))
    long.load_state_dict(weights)
    return long


Row = tuple[str, str, list[float]]
"""Positions, treatment of long captions, and recall by group."""


def compare(plan: Plan, say: Callable[[str], None] = print) -> Iterator[Row]:
    """Train and measure all towers."""
    words = Words()
    features, of_held = picture_features(words, plan)
    say("the image tower has learned")
    for seed, positions in product(plan.seeds, POSITIONS):
        model = new_text_model(replace(words.config, positions=positions), seed)
        train(model, words, features, plan, plan.steps, seed)
        way = f"stretched to {LONG}" if positions == "learned" else f"all of up to {LONG}"
        further = f"{way}, trained {plan.further} steps more, on captions of up to {LONG}"
        long = longer(model)
        for name, tower, num_steps in ((READ, model, 0), (way, long, 0), (further, long, plan.further)):
            if num_steps:
                train(tower, words, features, plan, num_steps, seed + 100)
            found = measured(tower, words, of_held, plan)
            say(f"seed {seed}, {positions}, {name}: {', '.join(f'{share:.1%}' for share in found)}")
            yield positions, name, found


def _texts(model: TextModel, ids: Tensor) -> Tensor:
    return projected(model, pack(ids, model.config))


def _images(vision: VisionModel, pixels: Tensor) -> Tensor:
    found = vision(pixels).projected
    assert found is not None
    return found


def _train(models: Sequence[nn.Module], batch: Callable[[], tuple[Tensor, Tensor]], num_steps: int) -> None:
    """Train by AdamW on the contrastive loss of batches of texts and images."""
    loss = ContrastiveLoss()
    modules = nn.ModuleList([*models, loss]).requires_grad_(True)
    optimizer = torch.optim.AdamW(modules.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.1)
    share = min(0.3, WARM_UP / num_steps)
    course = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=num_steps, pct_start=share)
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss(*batch()).backward()
        nn.utils.clip_grad_norm_(modules.parameters(), 1.0)
        optimizer.step()
        course.step()
        loss.clamp_temperature()
    modules.requires_grad_(False)


# ---- the page


def block(rows: Sequence[Row], plan: Plan, minutes: float, about: str) -> str:
    """Markdown for the page: the machine and a table."""
    by_name: dict[tuple[str, str], list[list[float]]] = {}
    for positions in POSITIONS:
        for of, name, found in rows:
            if of == positions:
                by_name.setdefault((positions, name), []).append(found)
    head = ["Positions", "Read", *(f"{fewest} to {most} clauses" for fewest, most in plan.groups)]
    lines = [[*names, *map(_share, zip(*found, strict=True))] for names, found in by_name.items()]
    count, captions = len(plan.seeds), plan.rounds * len(split()[1])
    seeds = "of one seed" if count == 1 else f"for each of {count} seeds: the mean, the lowest and the highest one"
    work = f"{minutes:.0f} minutes on one thread; {plan.steps} steps of {plan.batch} captions"
    return f"{about}\n- {work}; {captions:,} captions in each cell, {seeds}\n\n{table(head, lines, num_left=2)}"


def _share(column: Sequence[float]) -> str:
    mean = f"{sum(column) / len(column):.1%}"
    return mean if len(column) == 1 else f"{mean} ({min(column):.1%} to {max(column):.1%})"


def make_block(plan: Plan, say: Callable[[str], None] = print) -> str:
    """Train, measure and describe."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # such small models gain nothing from more
    try:
        about, began = machine(), time.monotonic()
        rows = list(compare(plan, say))
        return block(rows, plan, (time.monotonic() - began) / 60, about)
    finally:
        torch.set_num_threads(num_threads)
