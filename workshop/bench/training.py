"""Times of a training step, compared with open_clip's own loop and a loop over transformers and accelerate.

All start with the same weights and see the same captions and images, in the same order and with the same optimizer, so
that they have the same losses.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from .page import NOT_FOUND, Goal, Request, Section, small, table, times
from .scale import SEED, TINY, Scale
from .texts import words
from .timing import compare, measured, times_in_turn

if TYPE_CHECKING:
    from torch import Tensor

    from ...encoder.text_model import TextModel
    from ...encoder.vision_model import VisionModel
    from ..peers.open_clip import Batch, Epoch

HEAD = (
    *("Text tower", "Peer", "Its positions", "Pairs", "Ours, ms", "Peer, ms", "Ours / peer", "Middle half"),
    "Difference",
)
OURS = "ours"
OPEN_CLIP, WITH_ACCELERATE = "open_clip's loop", "transformers and accelerate"
LIKE_OURS = "open_clip's loop, captions and AdamW as ours"
LOCKED, EVERY_STEP = "open_clip's loop, image tower locked", "ours, image tower at every step"
NEEDS = {
    OPEN_CLIP: ("open_clip", "open_clip_train"),
    LIKE_OURS: ("open_clip", "open_clip_train"),
    WITH_ACCELERATE: ("transformers",),
    LOCKED: ("open_clip", "open_clip_train"),
    EVERY_STEP: (),
}
"""Peers, and the modules they need besides accelerate, which ours needs."""
WITH_FEATURES, WITH_IMAGES = (OPEN_CLIP, LIKE_OURS, WITH_ACCELERATE), (LOCKED, EVERY_STEP)
"""Peers that get features of the images, and those that compute them at every step."""
UNTRIMMED = (OPEN_CLIP, LOCKED)
"""Peers that pad every caption to the tower's length; others pad to the longest of the batch."""
FULL_SIZE, SMALL = "CLIP-L", "small"
NUM_WORDS = (5, 30)
"""Minimum and maximum number of words in a caption; each is one token."""
WARM_UP = 2


class Case(NamedTuple):
    """Text tower of some size with an image tower, and their training data."""

    name: str
    text: TextModel
    vision: VisionModel
    pixels: Tensor
    """``[pairs, 3, size, size]``: images of every batch."""
    features: Tensor
    """``[pairs, p]``, features of these images, of unit length."""
    repetitions: int
    image_repetitions: int
    """Rounds with the image tower."""
    steps: int
    """Steps per round."""


def training_block(request: Request) -> str:
    """Section in Markdown: a row for each size and peer, and when and with what they were measured."""
    about = measured("open_clip_torch", "transformers", "accelerate")
    cases, groups = _cases(request.scale), (WITH_FEATURES, WITH_IMAGES)
    rows = [row for case in cases for peers in groups for row in _rows(case, peers)]
    return f"{table(HEAD, rows, num_left=2)}\n\n{about}"


def _cases(scale: Scale) -> Iterator[Case]:
    import torch

    from ...encoder.clip import FullClip
    from ...encoder.config import TextConfig, VisionConfig
    from ...encoder.files.checkpoint import seeded_text_model, seeded_vision_model

    small_image = {**TINY, "image_size": 48, "patch_size": 16, "projection_dim": 64}
    for name, text, image in ((SMALL, TINY, small_image), (FULL_SIZE, scale.sizes, scale.vision_sizes)):
        seen = VisionConfig(**image)  # pyright: ignore[reportArgumentType]
        read = TextConfig(**{**text, "projection_dim": seen.projection_dim})  # pyright: ignore[reportArgumentType]
        clip = FullClip(seeded_text_model(read, seed=SEED), seeded_vision_model(seen, seed=SEED))
        num_pairs, *counts = scale.small_training if name == SMALL else scale.training
        generator = torch.Generator().manual_seed(SEED)
        pixels = torch.randn(num_pairs, 3, seen.image_size, seen.image_size, generator=generator)
        yield Case(name, clip.text, clip.vision, pixels, clip.image_features(pixels), *counts)


def _rows(case: Case, peers: Sequence[str]) -> list[list[str]]:
    """Cells of `HEAD` for some peers, timed in turn with ours."""
    repetitions = case.repetitions if peers is WITH_FEATURES else case.image_repetitions
    loops = _loops(case, peers, (WARM_UP + repetitions) * case.steps)
    losses: dict[str, list[float]] = {name: [] for name in loops}

    def run(name: str, epoch: Epoch) -> Callable[[], None]:
        batches = _batches(case)
        return lambda: losses[name].extend(epoch([next(batches) for _ in range(case.steps)]))

    runs = {name: run(name, epoch) for name, epoch in loops.items()}
    taken = times_in_turn(runs, repetitions=repetitions, warm_up=WARM_UP)
    rows: list[list[str]] = []
    for peer in peers:
        about = [case.name, peer, str(_length(case, peer)), str(len(case.pixels))]
        if OURS not in loops or peer not in loops:
            rows.append([*about, *["-"] * 4, NOT_FOUND])
            continue
        ratio = compare(*([one / case.steps for one in taken[name]] for name in (OURS, peer)))
        difference = max(abs(one - other) for one, other in zip(losses[OURS], losses[peer], strict=True))
        rows.append([*about, *times(ratio), small(difference)])
    return rows


def _length(case: Case, peer: str) -> int:
    """Positions of a caption: all of the tower's, or those of the longest caption with BOS and EOS."""
    return case.text.config.context_length if peer in UNTRIMMED else NUM_WORDS[1] + 2


def _loops(case: Case, peers: Sequence[str], num_steps: int) -> dict[str, Epoch]:
    """Our loop and those of the installed peers; empty without accelerate."""
    if find_spec("accelerate") is None:
        return {}
    from ..peers.open_clip import open_clip_loop
    from ..peers.transformers import transformers_loop

    text, vision = case.text, case.vision
    makers: dict[str, Callable[[], Epoch]] = {
        OPEN_CLIP: lambda: open_clip_loop(text, None, num_steps),
        LIKE_OURS: lambda: open_clip_loop(text, None, num_steps, length=_length(case, LIKE_OURS)),
        WITH_ACCELERATE: lambda: transformers_loop(text, num_steps),
        LOCKED: lambda: open_clip_loop(text, vision, num_steps),
        EVERY_STEP: lambda: our_loop(text, vision, num_steps),
    }
    found = [peer for peer in peers if all(find_spec(module) for module in NEEDS[peer])]
    return {OURS: our_loop(text, None, num_steps)} | {peer: makers[peer]() for peer in found}


def our_loop(text: TextModel, vision: VisionModel | None, num_steps: int) -> Epoch:
    """The work of the command ``train`` at each step, beginning with captions, until the rate is 0.

    A frozen image tower is run at every step, as with ``--towers both --rate-of image=0``; without one features of the
    images are given.
    """
    from torch.optim.lr_scheduler import LambdaLR

    from ...encoder.similarity import ContrastiveLoss
    from ...encoder.tokenizer import default_tokenizer
    from ...training.captions import token_ids
    from ...training.distributed import make_accelerator
    from ...training.grad_cache import Part, Towers, backward
    from ...training.optimizer import adamw, factor, groups_of
    from ..peers.open_clip import RATES

    towers = Towers(copy.deepcopy(text), vision, ContrastiveLoss())
    plain = adamw(groups_of(towers, replace(RATES, by_part=(("image", 0.0),))))
    accelerator = make_accelerator("fp32", is_cpu=True)
    model, optimizer = accelerator.prepare(towers, plain)
    course = LambdaLR(plain, lambda number: factor(number, 0, num_steps))

    def step(batch: Batch) -> float:
        ids = token_ids(batch.captions, default_tokenizer(), text.config)
        found = backward(accelerator, model, [Part(ids, batch.features if vision is None else batch.pixels)])
        optimizer.step()
        optimizer.zero_grad()
        course.step()
        towers.loss.clamp_temperature()
        return found.contrastive

    return lambda batches: [step(batch) for batch in batches]


def _batches(case: Case) -> Iterator[Batch]:
    """Batches with other captions each time; each iterator yields the same sequence."""
    from ..peers.open_clip import Batch

    rng = random.Random(SEED)
    while True:
        lengths = [NUM_WORDS[1], *(rng.randint(*NUM_WORDS) for _ in case.pixels[1:])]
        captions = [" ".join(rng.choices(words(), k=length)) for length in lengths]
        yield Batch(captions, case.pixels, case.features)


_SIZES = (SMALL, FULL_SIZE)
TRAINING = Section(
    "training",
    training_block,
    "Training",
    (
        Goal("A step of training", "open_clip's own loop", {"Text tower": _SIZES, "Peer": (OPEN_CLIP,)}, 1.0),
        Goal("A step of training", WITH_ACCELERATE, {"Text tower": _SIZES, "Peer": (WITH_ACCELERATE,)}, 1.0),
        Goal(
            "A step of training, CLIP-L",
            "loops that run the image tower",
            {"Text tower": (FULL_SIZE,), "Peer": (LOCKED, EVERY_STEP)},
            4.0,
        ),
    ),
)
