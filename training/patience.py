"""Early stop by the recall of held-out pairs: which measurement was best, and how long ago."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BEST_NAME = "best.pt"
"""Of the file with the best weights in a run's folder."""


@dataclass
class Patience:
    """How many measurements without a better one are borne."""

    most: int
    """So many in a row end the run."""
    best: float = -1.0
    """Mean of the best recalls, from 0 to 1; -1 before the first."""
    step: int = 0
    """When that was."""
    since: int = 0
    """Measurements after it."""

    def is_better(self, recalls: Mapping[str, float], step: int) -> bool:
        """Count a measurement, and say whether it is the best one so far.

        Args:
            recalls: Shares as `recalls` gives them; their mean counts. What has no ``@`` in its name does not.
            step: When it was made.

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
        """Whether the run is to end."""
        return self.since >= self.most
