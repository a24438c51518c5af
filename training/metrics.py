"""Retrieval between texts and images: recall at 1, 5 and 10; and the change of a prompt's token states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..encoder.quoting import quote
from ..encoder.similarity import similarity
from ..encoder.text_model import TextModel
from ..encoder.tokenizer import default_tokenizer
from .captions import token_ids
from .data import Example
from .grad_cache import Part, Towers
from .images import Images
from .log import number_of

AT = (1, 5, 10)
"""Numbers of top results considered."""


def recalls(texts: Tensor, images: Tensor, captions: Sequence[object] | None = None) -> dict[str, float]:
    """Recall in both directions, shares from 0 to 1; among equal scores the wrong ones count as first.

    Recall at 5 or 10 is left out if there are no more pairs than that.

    Args:
        texts: ``[pairs, p]``.
        images: ``[pairs, p]``, each at the place of its text.
        captions: Something for each pair that is equal for equal texts, of which no one can tell whose image is whose:
            any pair of the same one is right. None: all differ.
    """
    scores = similarity(texts, images)
    numbers = {caption: number for number, caption in enumerate(captions or ())}
    group = torch.tensor([numbers[caption] for caption in captions] if captions else range(len(texts)))
    is_right = (group.unsqueeze(1) == group).to(scores.device)
    informative = [at for at in AT if at == 1 or at < len(texts)]
    found: dict[str, float] = {}
    for name, matrix in (("text to image", scores), ("image to text", scores.T)):
        best = matrix.masked_fill(~is_right, -torch.inf).amax(1, keepdim=True)  # NaN if one of them is
        num_before = ((matrix >= best) & ~is_right).sum(1)
        is_number = ~best.isnan().squeeze(1)
        found |= {f"{name} @{at}": ((num_before < at) & is_number).double().mean().item() for at in informative}
    return found


def num_shared(captions: Sequence[object]) -> int:
    """Number of captions that another pair has, too.

    >>> num_shared(["a cat", "a dog", "a cat"])
    2
    """
    return sum(count for count in Counter(captions).values() if count > 1)


@torch.no_grad()
def rows_of(text: TextModel, prompts: Sequence[str]) -> list[Tensor]:
    """Token states of prompts as a diffusion model reads them: last hidden states of the tokens and of EOS.

    They are ``[tokens + 1, d]``, on the CPU; the row of BOS, the same for all, is left out.
    """
    device = text.final_layer_norm.weight.device
    rows: list[Tensor] = []
    for prompt in prompts:
        ids = token_ids([prompt], default_tokenizer(), text.config)
        rows.append(text(ids.to(device)).hidden[0, 1:].float().cpu())
    return rows


def moved(before: Tensor, after: Tensor) -> float:
    """Relative change of rows: the mean of each row's change divided by its length.

    >>> moved(torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.5]]))
    0.25
    """
    return ((after - before).norm(dim=-1) / before.norm(dim=-1)).mean().item()


MOVED = "moved: "
"""Prefix of a watched prompt in the name of its measurement."""


class Measure:
    """Evaluation of towers. Its results are shares by name: those of `recalls`, and `MOVED` with a prompt."""

    def __init__(
        self,
        held: Sequence[Example],
        images: Images,
        token_ids: Callable[[Sequence[str]], Tensor],
        batch: int,
        watched: Mapping[str, Tensor],
    ) -> None:
        """Define the measurements."""
        self._held, self._images, self._token_ids, self._batch = held, images, token_ids, batch
        self._watched = watched
        ids = [token_ids([pair.captions[0]]) for pair in held]
        self._captions = [tuple(row.flatten().tolist()) for row in ids]  # as the encoder reads them

    @torch.no_grad()
    def __call__(self, towers: Towers) -> dict[str, float]:
        """Evaluate towers, on their device."""
        found = self._recall(towers) if self._held else {}
        rows = rows_of(towers.text, list(self._watched))
        for (prompt, before), after in zip(self._watched.items(), rows, strict=True):
            found[f"{MOVED}{prompt}"] = moved(before, after)
        return found

    def lines(self, found: Mapping[str, float], step: int) -> list[str]:
        """Readable lines about the measurements after a step."""
        shares = ", ".join(f"{name} {share:.1%}" for name, share in found.items() if not name.startswith(MOVED))
        shared = num_shared(self._captions)
        note = f" ({shared} have a caption that another has, and count as right with each other)" if shared else ""
        of = number_of(len(self._held), "held-out pairs")
        lines = [f"recall of {of}{note} after {step:,} steps: {shares}"] if shares else []
        moves = {prompt: found[f"{MOVED}{prompt}"] for prompt in self._watched}
        return lines + [
            f"{quote(prompt)} has moved by {share:.1%} after {step:,} steps" for prompt, share in moves.items()
        ]

    def _recall(self, towers: Towers) -> dict[str, float]:
        device = towers.loss.logit_scale.device
        texts: list[Tensor] = []
        images: list[Tensor] = []
        for start in range(0, len(self._held), self._batch):
            some = self._held[start : start + self._batch]
            ids = self._token_ids([pair.captions[0] for pair in some])
            loaded = [self._images(pair) for pair in some]
            stacked = torch.stack([image for image in loaded if isinstance(image, Tensor)])
            found = towers(Part(ids.to(device), stacked.to(device)))
            texts.append(found.texts)
            images.append(found.images)
        return recalls(torch.cat(texts), torch.cat(images), self._captions)


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
