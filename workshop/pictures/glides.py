"""Whether the amount of a thing follows a glide, in the small world: python workshop glides.

A prompt of two things is drawn from each seed with ever higher lines, each of which lies nowhere below the one before:
a weight that rises from 0 earlier and earlier, and a glide that takes a thing away later and later. In a picture that
follows, the thing has no less of its colour each time, up to `TOLERANCE` of what it has at weight 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ...studio.world.measure import FIRST_SEED
from ...studio.world.model import CFG, STEPS, load_world, noise_of, times, to_pictures
from ...studio.world.painter import Painter, painter_of
from ...studio.world.powers import CHOSEN_BY, MIN_PIXELS, amounts
from ...studio.world.questions import Prompt, Question, Way
from ...studio.world.unet import Text
from ...weighting.timed.glides import GLIDES
from ...weighting.timed.schedule import COUNTERS, read_timed

TOLERANCE = 0.05
LINES = {
    "a weight on a line": [
        "({phrase}:0@0,0@1)",
        "({phrase}:0@0,0@0.6,1@1)",
        "({phrase}:0@0,0@0.4,1@0.8)",
        "({phrase}:0@0,0@0.2,1@0.6)",
        "({phrase}:0@0,1@0.4)",
        "({phrase}:0@0,1@0.2)",
        "({phrase}:1@0,1@1)",
    ],
    "a glide that takes it away": [
        "[{whole}:{rest}:0,0]",
        "[{whole}:{rest}:0.0,0.2]",
        "[{whole}:{rest}:0.0,0.4]",
        "[{whole}:{rest}:0.1,0.6]",
        "[{whole}:{rest}:0.2,0.8]",
        "[{whole}:{rest}:0.4,1.0]",
        "{whole}",
    ],
}
"""Lines from the lowest to the highest, and glides likewise."""


class Amounts(NamedTuple):
    """What the pictures of one kind of line say."""

    followed: float
    """Share of the pictures in which the amount never falls."""
    pairs: float
    """Share of neighbouring lines in which it does not."""
    means: tuple[float, ...]
    """Mean amount at each line, from 0 without the thing to 1 at weight 1."""
    pictures: int
    """Pictures in which the thing is there at weight 1."""


@torch.no_grad()
def drawn(painter: Painter, text: str, way: Way, seeds: Sequence[int]) -> Tensor:
    """Pictures of a prompt that glides, ``[seeds, 3, 32, 32]``: one encoding for each text, mixed at each step."""
    (branch,) = read_timed(text, STEPS, glides=GLIDES[1], counter=COUNTERS[1]).branches
    encoded = {each: painter.text(each, way) for each in branch.all_texts}
    negative, x = painter.empty.expanded(len(seeds)), noise_of(list(seeds))
    for step, (time, following) in enumerate(pairwise(times(STEPS))):
        standing = branch.at(step, COUNTERS[1])
        shares = [(mixed.share, mixed.fragment.text) for mixed in standing.mixture] or [(1.0, standing.text)]
        rows = torch.stack([encoded[each].rows * share for share, each in shares]).sum(0)
        t = torch.full((len(seeds),), 1000 * time)
        without = painter.network(x, t, negative)
        x = x + (following - time) * (
            without + CFG * (painter.network(x, t, Text(rows).expanded(len(seeds))) - without)
        )
    return ((to_pictures(x) * 255).round() / 255).clamp(0, 1)


def measured(painter: Painter, prompts: Sequence[Prompt], lines: Sequence[str], way: Way, num_seeds: int) -> Amounts:
    """Draw prompts with each line, and see whether amounts follow."""
    curves: list[Tensor] = []
    for number, prompt in enumerate(prompts):
        seeds = range(FIRST_SEED + number * num_seeds, FIRST_SEED + (number + 1) * num_seeds)
        phrases = [thing.phrase for thing in prompt.scene.things]
        target = phrases[prompt.target]
        rest = " and ".join(phrase for phrase in phrases if phrase != target)
        whole = " and ".join(phrases)
        by_line = []
        for line in lines:
            written = line.format(phrase=target, whole=whole, rest=rest)
            text = written if whole in written else whole.replace(target, written)
            color = prompt.scene.things[prompt.target].color
            by_line.append(amounts(drawn(painter, text, way, seeds), color))
        pixels = torch.stack(by_line, 1)  # [seeds, lines]
        full = pixels[:, -1:] - pixels[:, :1]
        there = full[:, 0] > MIN_PIXELS
        curves.append(((pixels - pixels[:, :1]) / full)[there])
    curve = torch.cat(curves)
    rises = curve.diff(dim=1) >= -TOLERANCE
    means = tuple(round(float(mean), 3) for mean in curve.mean(0))
    return Amounts(float(rises.all(1).float().mean()), float(rises.float().mean()), means, len(curve))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each kind of line and each scheme."""
    parser = argparse.ArgumentParser(description="Whether the amount of a thing follows a glide.")
    parser.add_argument("--prompts", type=int, default=13)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--schemes", nargs="+", default=["masked_blend", "comfy", "a1111"])
    chosen = parser.parse_args(arguments)
    painter = painter_of(load_world()[0])
    prompts = Question("glides", "", (), num_prompts=chosen.prompts, num_skipped=CHOSEN_BY).prompts
    for kind, lines in LINES.items():
        weighs = "@" in lines[0]
        for scheme in chosen.schemes if weighs else ["comfy"]:
            way = Way(scheme, {"scheme": scheme, "syntax": "a1111"})
            found = measured(painter, prompts, lines, way, chosen.seeds)
            sys.stdout.write(
                f"{kind}{f', {scheme}' if weighs else ''}: followed in {found.followed:.1%} of {found.pictures} "
                f"pictures, {found.pairs:.1%} of neighbours; means {found.means}\n"
            )
