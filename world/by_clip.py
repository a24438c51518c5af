"""Weights measured in pictures of any model, by a CLIP: how sure it is of a weighted phrase, and of the rest.

Sureness of a text is its probability for a picture among the same texts of all prompts, as in zero-shot classification:
pictures that have nothing to do with their prompts get one in so many on average, whatever a weight does to them. So a
common change of all pictures is not taken for one of the phrase.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..encoder.quoting import quote
from ..encoder.similarity import probabilities, similarity
from .measure import Interval, interval
from .tables import Table, cell

WEIGHTS = (0.0, 0.5, 1.0, 1.5, 2.0)
PHRASE, REST = "phrase", "rest"
ANSWERS = {PHRASE: "Sureness of the phrase", REST: "Sureness of the rest"}
LEAST_PROMPTS = 6
"""With fewer, even an effect in all of them is no surer than 94 %."""
LEVEL = 0.05
"""Probability that chance alone is taken for an effect, in any of the ways and weights."""
NUM_FLIPS = 4096

_MARKED = re.compile(r"\(([^()]*):1\)")


class Marked(NamedTuple):
    """A prompt with the phrase that is weighted."""

    before: str
    phrase: str
    after: str

    def text(self, weight: float) -> str:
        """The prompt with a weight, in ComfyUI's syntax.

        >>> Marked("a table and ", "a red cup", "").text(0.5)
        'a table and (a red cup:0.5)'
        """
        return f"{self.before}({self.phrase}:{weight:g}){self.after}"

    @property
    def rest(self) -> str:
        """The prompt without the phrase."""
        return " ".join(f"{self.before} {self.after}".split())


def marked(line: str) -> Marked:
    """Read a prompt in which one phrase is marked.

    Raises:
        ValueError: If there is none, or several.

    >>> marked("a table and (a red cup:1)")
    Marked(before='a table and ', phrase='a red cup', after='')
    """
    found = [match for match in _MARKED.finditer(line) if match[1].strip()]
    if len(found) != 1:
        raise ValueError(f"{quote(line)} has {len(found)} marked phrases: mark one, as in 'a table and (a red cup:1)'")
    return Marked(line[: found[0].start()], found[0][1], line[found[0].end() :])


def check_prompts(prompts: Sequence[Marked]) -> None:
    """Raise ValueError if there are too few prompts, or a phrase stands in two of them."""
    if len(prompts) < LEAST_PROMPTS:
        raise ValueError(
            f"there are {len(prompts)} prompts, and at least {LEAST_PROMPTS} are needed: fewer cannot tell an effect "
            "from chance"
        )
    phrases = [prompt.phrase.strip().lower() for prompt in prompts]
    for index, phrase in enumerate(phrases):
        if phrase in phrases[:index]:
            raise ValueError(f"the phrase {quote(phrase)} is in two prompts: each needs its own, to be told apart")


PROMPTS = tuple(
    marked(line)
    for line in (
        "(a red apple:1) beside a glass of water",
        "a wooden chair and (a black cat:1)",
        "(a yellow umbrella:1) leaning on a brick wall",
        "a bowl of oranges and (a burning candle:1)",
        "(a green bottle:1) and an open book",
        "a white bed with (a brown dog:1)",
        "(a blue bicycle:1) in front of a shop window",
        "a quiet lake with (a small boat:1)",
        "(a guitar:1) on a grey sofa",
        "a laptop beside (a potted plant:1)",
        "(a red barn:1) in a snowy field",
        "a plate of fish and (a slice of lemon:1)",
    )
)
"""Everyday prompts of two things."""

Scores = dict[tuple[str, str, float], list[list[float]]]
"""Sureness by prompt and seed, by the names of answer and way, and the weight."""


def sureness(vectors: Tensor, own: Sequence[int], features: Tensor, logit_scale: float) -> list[list[float]]:
    """Probability of each prompt's own text for its pictures, among all texts.

    Args:
        vectors: Vectors of the texts, ``[texts, p]``.
        own: Number of each prompt's text.
        features: Vectors of the pictures, ``[prompts, seeds, p]``.
        logit_scale: The CLIP's factor for cosines.

    Returns:
        By prompt and seed.

    Raises:
        ValueError: If one is not finite.
    """
    scores = similarity(vectors.double(), features.flatten(0, 1).double(), 1 / logit_scale)
    shares = probabilities(scores, "texts").unflatten(1, features.shape[:2])  # [texts, prompts, seeds]
    found = shares[torch.tensor(own), torch.arange(len(own))]
    if not bool(found.isfinite().all()):
        raise ValueError("the CLIP gives numbers that are not finite: is its file damaged, or --dtype too small?")
    return found.tolist()


def changes_of(scores: Scores) -> Scores:
    """Differences from the same pictures at weight 1."""
    return {
        (answer, way, weight): (np.asarray(values) - np.asarray(scores[answer, way, 1.0])).tolist()
        for (answer, way, weight), values in scores.items()
        if weight != 1
    }


def beyond_chance(changes: Scores) -> set[tuple[str, str, float]]:
    """Changes that are none of chance.

    By a test of signs: without an effect each prompt's mean difference could as well be negative. Signs are turned at
    random, for all ways and weights together; what is found exceeds, as a multiple of its own spread, the largest of
    all after 95 % of the turns. So one false finding or more comes in 5 % of whole measurements at most.
    """
    means = np.asarray([np.asarray(values).mean(1) for values in changes.values()])  # [changes, prompts]
    num_prompts = means.shape[1]
    if 2**num_prompts <= NUM_FLIPS:
        signs = np.asarray(list(product((1, -1), repeat=num_prompts)), float)
    else:
        signs = np.random.default_rng(0).choice((1.0, -1.0), (NUM_FLIPS, num_prompts))
        signs[0] = 1
    spread = np.sqrt((means**2).mean(1))
    sizes = np.abs(means @ signs.T).T / num_prompts / np.where(spread > 0, spread, np.inf)  # [flips, changes], 0..1
    shares = (sizes.max(1)[:, None] >= sizes[0] - 1e-9).mean(0)
    return {key for key, share in zip(changes, shares, strict=True) if share <= LEVEL}


def tables_of(scores: Scores, ways: Sequence[str], found: Iterable[tuple[str, str, float]]) -> list[Table]:
    """Tables of sureness and of its changes, in percent with 95 % intervals; a star marks what was found."""
    marked_keys, changes = set(found), changes_of(scores)
    tables: list[Table] = []
    for answer, title in ANSWERS.items():
        for head, values, show in (
            (title, scores, partial(cell, is_share=True)),
            (f"{title}: change from weight 1", changes, _signed),
        ):
            weights = [weight for weight in WEIGHTS if (answer, ways[0], weight) in values]
            rows = [
                (
                    f"`{way}`",
                    *(
                        show(interval(values[answer, way, weight]))
                        + ("*" if values is changes and (answer, way, weight) in marked_keys else "")
                        for weight in weights
                    ),
                )
                for way in ways
            ]
            tables.append(Table((head, *(f"{weight:g}" for weight in weights)), rows))
    return tables


def _signed(found: Interval) -> str:
    """Change with its interval, in percent.

    >>> _signed(Interval(-0.051, -0.12, -0.002)), _signed(Interval(0.0, 0.0, 0.0))
    ('-5 (-12 to +0)', '+0')
    """
    mean, low, high = (f"{round(100 * value):+d}" for value in found)
    return f"{mean} ({low} to {high})" if low != high else mean


def verdict(scores: Scores, found: Iterable[tuple[str, str, float]], chances: Mapping[str, float]) -> list[str]:
    """Sentences about what was found.

    Args:
        scores: All of them.
        found: From `beyond_chance`.
        chances: Sureness by guessing, of each answer.
    """
    way = next(iter(scores))[1]
    plain: Interval = interval(scores[PHRASE, way, 1.0])
    lines = [
        f"At weight 1 the CLIP's sureness of the phrase is {cell(plain, is_share=True)} %, where guessing gives "
        f"{100 * chances[PHRASE]:.0f} %" + ("." if plain.low > chances[PHRASE] else ": it is no better than guessing.")
    ]
    changes, keys = changes_of(scores), sorted(found)
    if not keys:
        return [
            *lines,
            "Found nothing: no weight changes how sure the CLIP is of the phrase or of the rest by more than chance.",
        ]
    for answer in ANSWERS:
        by_way: dict[str, list[str]] = {}
        for _, name, weight in (key for key in keys if key[0] == answer):
            by_way.setdefault(name, []).append(f"at {weight:g} by {_signed(interval(changes[answer, name, weight]))}")
        told = "; ".join(f"{name} {', '.join(some)}" for name, some in by_way.items())
        lines.append(f"{ANSWERS[answer]} changes beyond chance, in points: {told or 'nowhere'}.")
    return lines
