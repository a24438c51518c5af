"""Early stopping by the recall of held-out pairs: the best measurement, and its age."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
