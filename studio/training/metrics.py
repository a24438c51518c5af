"""Retrieval between texts and images: recall, ranks and loss; and the change of a prompt's token states."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...encoder.models.text_model import TextModel, first_eos
from ...encoder.quoting import quote
from ...encoder.similarity import similarity
from ...encoder.tokenizer import default_tokenizer
from .data.captions import token_ids
from .data.examples import Example
from .data.image_inputs import Images
from .log import number_of
from .scaling.grad_cache import MicroBatch, Towers

AT = (1, 5, 10)
"""Numbers of top results considered."""
ROWS_AT_ONCE = 1024
"""Rows of a matrix of scores that are in memory at once."""


def places(texts: Tensor, images: Tensor, captions: Sequence[object] | None = None) -> dict[str, Tensor]:
    """Place of the first right image for each text, and of the first right text for each image, ``[pairs]``, from 0.

    Among equal scores the wrong ones count as first. Where a score is not a number, the place is the number of pairs.

    Args:
        texts: ``[pairs, p]``.
        images: ``[pairs, p]``, each at the place of its text.
        captions: Something for each pair that is equal for equal texts, of which no one can tell whose image is whose:
            any pair of the same one is right. None: all differ.
    """
    numbers = {caption: number for number, caption in enumerate(captions or ())}
    group = torch.tensor([numbers[caption] for caption in captions] if captions else range(len(texts)))
    group = group.to(texts.device)
    by_direction: dict[str, Tensor] = {}
    for name, queries, targets in (("text to image", texts, images), ("image to text", images, texts)):
        parts: list[Tensor] = []
        for start in range(0, len(queries), ROWS_AT_ONCE):  # not all scores of a large set
            scores = similarity(queries[start : start + ROWS_AT_ONCE], targets)
            is_right = group[start : start + ROWS_AT_ONCE].unsqueeze(1) == group
            best = scores.masked_fill(~is_right, -torch.inf).amax(1, keepdim=True)  # NaN if one of them is
            num_before = ((scores >= best) & ~is_right).sum(1)
            parts.append(num_before.masked_fill(best.isnan().squeeze(1), len(queries)))
        by_direction[name] = torch.cat(parts)
    return by_direction


def recalls(by_direction: Mapping[str, Tensor]) -> dict[str, float]:
    """Recall by `places`, shares from 0 to 1; that at 5 or 10 is left out if there are no more pairs than that."""
    return {
        f"{name} @{at}": (place < at).double().mean().item()
        for name, place in by_direction.items()
        for at in AT
        if at == 1 or at < len(place)
    }


def ranks(by_direction: Mapping[str, Tensor]) -> dict[str, float]:
    """Mean and median of `places`, counted from 1, the median rounded down, as open_clip gives them."""
    return {
        f"{name} {kind} rank": value + 1
        for name, place in by_direction.items()
        for kind, value in (
            ("mean", place.double().mean().item()),
            ("median", math.floor(statistics.median(place.tolist()))),
        )
    }


@torch.no_grad()
def rows_of(text: TextModel, prompts: Sequence[str]) -> list[Tensor]:
    """Token states of prompts as a diffusion model reads them: last hidden states of the tokens and of EOS.

    They are ``[tokens + 1, d]``, on the CPU; the row of BOS, the same for all, is left out.
    """
    device = text.final_layer_norm.weight.device
    ids = (token_ids([prompt], default_tokenizer(), text.config) for prompt in prompts)
    return [text(prompt_ids.to(device)).hidden[0, 1:].float().cpu() for prompt_ids in ids]


def moved(before: Tensor, after: Tensor) -> float:
    """Relative change of rows: the mean of each row's change divided by its length.

    >>> moved(torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.5]]))
    0.25
    """
    return ((after - before).norm(dim=-1) / before.norm(dim=-1)).mean().item()


MOVED = "moved: "
"""Prefix of a watched prompt in the name of its measurement."""


@dataclass
class Measure:
    """Evaluation of towers on pairs: `recalls`, `ranks` and the loss; and how far watched prompts have `MOVED`.

    The loss is the mean over batches, and ``watched`` has rows before training.
    """

    held: Sequence[Example]
    images: Images
    token_ids: Callable[[Sequence[str]], Tensor]  # [captions, s]
    batch: int
    watched: Mapping[str, Tensor]
    prefix: str = ""
    count: int = field(default=0, init=False)
    """Number of pairs that could be read."""
    _num_shared: int = field(default=0, init=False)

    @torch.no_grad()
    def __call__(self, towers: Towers) -> dict[str, float]:
        """Evaluate towers, on their device."""
        figures = {f"{self.prefix}{name}": value for name, value in self._on_pairs(towers).items()}
        rows = rows_of(towers.text, list(self.watched))
        for (prompt, before), after in zip(self.watched.items(), rows, strict=True):
            figures[f"{MOVED}{prompt}"] = moved(before, after)
        return figures

    def lines(self, figures: Mapping[str, float], step: int) -> list[str]:
        """Readable lines about the measurements after a step."""
        on_pairs = {name.removeprefix(self.prefix): value for name, value in figures.items() if self.prefix in name}
        shares = ", ".join(f"{name} {value:.1%}" for name, value in on_pairs.items() if "@" in name)
        rest = ", ".join(f"{name} {value:.4g}" for name, value in on_pairs.items() if name.endswith(("rank", "loss")))
        shared = self._num_shared
        note = f" ({shared} have a caption that another has, and count as right with each other)" if shared else ""
        of = number_of(self.count, f"{self.prefix.removesuffix(': ') or 'held-out'} pairs")
        lines = [f"recall of {of}{note} after {step:,} steps: {shares}; {rest}"] if self.count else []
        moves = {prompt: figures[f"{MOVED}{prompt}"] for prompt in self.watched}
        return lines + [
            f"{quote(prompt)} has moved by {share:.1%} after {step:,} steps" for prompt, share in moves.items()
        ]

    def _on_pairs(self, towers: Towers) -> dict[str, float]:
        device = towers.loss.logit_scale.device
        texts: list[Tensor] = []
        images: list[Tensor] = []
        captions: list[tuple[int, ...]] = []  # as the encoder reads them
        loss = 0.0
        for pairs, seen in self.images.readable(self.held, self.batch):
            ids = self.token_ids([pair.captions[0] for pair in pairs])
            ends = first_eos(ids, towers.text.config.eos_id).tolist()
            captions += (tuple(row[:end]) for row, end in zip(ids.tolist(), ends, strict=True))
            features = towers(MicroBatch(ids.to(device), seen.to(device)))
            loss += towers.loss.alone(features.texts, features.images).item() * len(pairs)
            texts.append(features.texts)
            images.append(features.images)
        self.count, self._num_shared = len(captions), sum(n for n in Counter(captions).values() if n > 1)
        if not captions:
            return {}
        where = places(torch.cat(texts), torch.cat(images), captions)
        name = "loss" if self.prefix else "held-out loss"
        return {**recalls(where), **ranks(where), name: loss / len(captions)}


VAL = "val: "
"""Prefix of figures measured on a separate validation set."""
BEST_NAME = "best.pt"
"""Name of the file with the best weights in a run's folder."""


@dataclass
class Patience:
    """Counter of measurements without improvement."""

    most: int
    """Number of measurements in a row without improvement that end the run."""
    best: float = -1.0
    """Mean of the best recalls, from 0 to 1; -1 before the first."""
    step: int = 0
    """Step of the best measurement."""
    since: int = 0
    """Measurements since then."""

    def is_better(self, recalls: Mapping[str, float], step: int) -> bool:
        """Count a measurement, and return whether it is the best so far.

        >>> patience = Patience(2)
        >>> [patience.is_better({"@1": share}, step) for step, share in enumerate([0.5, 0.6, 0.6, 0.4])]
        [True, True, False, False]
        >>> patience.step, patience.is_over
        (1, True)
        """
        shares = [share for name, share in recalls.items() if "@" in name]
        shares = [share for name, share in recalls.items() if "@" in name and name.startswith(VAL)] or shares
        mean = sum(shares) / len(shares)
        if mean > self.best:
            self.best, self.step, self.since = mean, step, 0
            return True
        self.since += 1
        return False

    @property
    def is_over(self) -> bool:
        """Whether the run should end."""
        return self.since >= self.most
