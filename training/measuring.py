"""Measurements of a run: recall of held-out pairs, and the change of watched prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from .data import Example
from .grad_cache import Part, Towers
from .images import Images
from .metrics import moved, recalls, rows_of

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
        lines = [f"recall of {len(self._held)} held-out pairs after {step:,} steps: {shares}"] if shares else []
        moves = {prompt: found[f"{MOVED}{prompt}"] for prompt in self._watched}
        return lines + [f"{prompt!r} has moved by {share:.1%} after {step:,} steps" for prompt, share in moves.items()]

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
        return recalls(torch.cat(texts), torch.cat(images))
