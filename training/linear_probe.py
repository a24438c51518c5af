"""A linear probe: logistic regression on a frozen image tower's features, fitted to labelled examples.

scikit-learn fits it by L-BFGS with up to 1,000 iterations, as CLIP's paper does. The paper chooses the strength of the
L2 penalty on a validation set; here it is chosen by cross-validation. The paper uses the features before the
projection; here they are projected and of unit length, as everywhere else.

Source: A. Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", 2021, appendix A.3.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..encoder.quoting import quote

if TYPE_CHECKING:
    import numpy as np

MAX_ITERATIONS = 1000
TOLERANCE = 1e-8
"""Tolerance of the gradient. At scikit-learn's default, 1e-4, coefficients are some per cent off the optimum."""
STRENGTHS = tuple(10.0**power for power in range(-2, 5))
"""Values of scikit-learn's ``C``, from the strongest penalty to the weakest."""
MAX_FOLDS = 5


@dataclass(frozen=True)
class Probe:
    """Classifier with probabilities of labels."""

    labels: tuple[str, ...]
    model: Any
    """scikit-learn's fitted ``LogisticRegression``; its classes are indices of labels."""
    strength: float
    """Its ``C``, chosen by cross-validation."""
    num_folds: int
    """Number of folds of the cross-validation."""
    held_out: Tensor
    """``[examples, labels]``, float64: probabilities of each example by a probe that was fitted without it."""

    def __call__(self, features: Tensor) -> Tensor:
        """Probabilities of the labels.

        ``[images, p]`` become ``[images, labels]``, float64; rows sum to 1.
        """
        if not len(features):
            return torch.zeros(0, len(self.labels), dtype=torch.float64)
        return torch.from_numpy(self.model.predict_proba(features.double().numpy()))


def check_installed() -> None:
    """Check that scikit-learn is installed."""
    try:
        import sklearn  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"learning from examples needs scikit-learn, which cannot be imported: {error}. `python run.py sort` "
            "installs it where --examples is given; zero-shot, with --labels, needs none"
        ) from error


def fit_probe(features: Tensor, targets: Sequence[int], labels: Sequence[str]) -> Probe:
    """Fit a probe, with the strength of its penalty chosen by cross-validation.

    Strengths are tried from the strongest penalty on until the cross-validated log loss no longer falls. There are five
    folds, or as many as the rarest label has examples.
    """
    from sklearn.exceptions import ConvergenceWarning

    counts = [list(targets).count(index) for index in range(len(labels))]
    if len(labels) < 2:
        raise ValueError(f"there must be at least two labels, got {', '.join(labels) or 'none'}")
    if min(counts) < 2:
        rare = labels[counts.index(min(counts))]
        raise ValueError(
            f"the label {quote(rare)} has {min(counts)} readable example{'' if min(counts) == 1 else 's'}; each "
            "needs at least two, one to learn from and one to see whether that helped"
        )
    if not features.isfinite().all():
        raise ValueError("the examples' features are not all finite; use --dtype fp32")
    inputs, outputs = features.double().numpy(), torch.tensor(targets).numpy()
    num_folds = min(MAX_FOLDS, *counts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # under a weak penalty, which is then rarely chosen
        strength, held_out = _chosen(inputs, outputs, num_folds)
        model = _regression(strength).fit(inputs, outputs)
    return Probe(tuple(labels), model, strength, num_folds, torch.from_numpy(held_out))


def _chosen(inputs: np.ndarray, outputs: np.ndarray, num_folds: int) -> tuple[float, np.ndarray]:
    """Strength with the lowest log loss, and its probabilities of held-out examples."""
    from sklearn.metrics import log_loss
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    folds = list(StratifiedKFold(num_folds, shuffle=True, random_state=0).split(inputs, outputs))
    best: tuple[float, float, np.ndarray] | None = None
    for strength in STRENGTHS:
        found: Any = cross_val_predict(_regression(strength), inputs, outputs, cv=folds, method="predict_proba")
        loss = float(log_loss(outputs, found))
        if best is not None and loss >= best[0]:
            break
        best = loss, strength, found
    assert best is not None
    return best[1], best[2]


def _regression(strength: float) -> Any:
    """The paper's regression, by L-BFGS, which is also scikit-learn's default."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=strength, solver="lbfgs", tol=TOLERANCE, max_iter=MAX_ITERATIONS)
