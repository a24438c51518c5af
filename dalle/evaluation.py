"""Fréchet inception distance and inception score, of features and class probabilities that come in batches.

Source: M. Heusel et al., "GANs Trained by a Two Time-Scale Update Rule Converge to a Local Nash Equilibrium", 2017,
equation 6; T. Salimans et al., "Improved Techniques for Training GANs", 2016, section 4; T. F. Chan et al., "Updating
Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979, for covariances joined without cancellation.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..encoder.files.pickles import check_pickle
from ..encoder.files.torch_archive import GLOBALS, MAX_PICKLE_BYTES
from ..encoder.regular_file import open_regular
from .files import DVAEFileError
from .torch_file import check_tensors, load

MAX_BYTES = 512 * 2**20
"""Maximum size of an Inception's file; the published ones have about 100 MB."""

_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""Beginning of files that PyTorch wrote before 1.6: a number, pickled."""
_NUM_PICKLES = 5
"""Pickles in such a file: this number, its version, the system, the object and the keys of its tensors' bytes."""


class Moments:
    """Mean and covariance of features."""

    def __init__(self, dim: int) -> None:
        self.count = 0
        self.mean = torch.zeros(dim, dtype=torch.float64)
        self._scatter = torch.zeros(dim, dim, dtype=torch.float64)

    def add(self, features: Tensor) -> None:
        """Add features, ``[n, dim]``; ValueError if one is not finite."""
        if not features.isfinite().all():
            raise ValueError("the features are not all finite numbers")
        features = features.double()
        mean, total = features.mean(0), self.count + len(features)
        centred, apart = features - mean, mean - self.mean
        self._scatter += centred.T @ centred + torch.outer(apart, apart) * (self.count * len(features) / total)
        self.mean += apart * (len(features) / total)
        self.count = total

    @property
    def covariance(self) -> Tensor:
        """Unbiased covariance, ``[dim, dim]``, float64; ValueError for fewer than 2 features."""
        if self.count < 2:
            raise ValueError(f"a covariance is of at least 2 pictures, got {self.count}")
        return self._scatter / (self.count - 1)


def frechet_distance(first: Moments, second: Moments) -> float:
    """Squared Fréchet distance of two normal distributions.

    ``|m1 - m2|² + tr(C1 + C2 - 2 (C1 C2)^½)``; the last trace is the sum of the roots of the eigenvalues of
    ``C1^½ C2 C1^½``, which is symmetric, so that covariances of any rank will do.
    """
    one, two = first.covariance, second.covariance
    values, vectors = torch.linalg.eigh(one)
    root = vectors * values.clamp_min(0).sqrt() @ vectors.T
    shared = torch.linalg.eigvalsh(root @ two @ root).clamp_min(0).sqrt().sum()
    distance = (first.mean - second.mean).square().sum() + one.trace() + two.trace() - 2 * shared
    return max(0.0, distance.item())


class InceptionScore:
    """Exponential of the mean divergence of each picture's classes from those of all, in several splits."""

    def __init__(self, num_classes: int, splits: int) -> None:
        self._counts = torch.zeros(splits, dtype=torch.float64)
        self._sums = torch.zeros(splits, num_classes, dtype=torch.float64)
        self._negentropies = torch.zeros(splits, dtype=torch.float64)

    def add(self, probabilities: Tensor) -> None:
        """Add probabilities, ``[n, num_classes]``, to the splits in turn; ValueError if one is not finite."""
        if not probabilities.isfinite().all():
            raise ValueError("the probabilities of classes are not all finite numbers")
        probabilities = probabilities.double()
        splits = len(self._counts)
        turns = (int(self._counts.sum()) + torch.arange(len(probabilities))) % splits
        self._counts += torch.bincount(turns, minlength=splits)
        self._sums.index_add_(0, turns, probabilities)
        self._negentropies.index_add_(0, turns, torch.xlogy(probabilities, probabilities).sum(1))

    def __call__(self) -> tuple[float, float]:
        """Mean over the splits, and their standard deviation; ValueError if a split has no picture."""
        if not self._counts.all():
            raise ValueError(f"{int(self._counts.sum())} pictures are too few for {len(self._counts)} splits")
        means = self._sums / self._counts[:, None]
        scores = (self._negentropies / self._counts - torch.xlogy(means, means).sum(1)).exp()
        return scores.mean().item(), scores.std(correction=0).item()


class Network(NamedTuple):
    """Function from pictures to features and class probabilities."""

    name: str
    """Name of the features, for figures."""
    is_of_literature: bool
    """Whether its figures are those that papers give."""
    run: Callable[[Tensor], tuple[Tensor, Tensor | None]]
    """Pictures ``[n, 3, h, w]``, uint8, to features ``[n, dim]`` and probabilities ``[n, classes]``, on the CPU."""


def load_inception(path: Path, device: str = "cpu") -> Network:
    """Read an Inception v3: that of torch-fidelity, which papers use for FID, or torchvision's.

    Raises:
        ValueError: If it is neither, or its package is not installed.
    """
    tensors = _tensors_of(path)
    num_classes = len(tensors["fc.bias"]) if isinstance(tensors.get("fc.bias"), Tensor) else 0
    if num_classes not in _MAKERS:
        raise DVAEFileError(f"{path}: no Inception v3, neither torch-fidelity's nor torchvision's")
    package, make = _MAKERS[num_classes]
    try:
        return make(path.name, tensors, device)
    except ModuleNotFoundError as error:
        raise ValueError(f"{path} needs {package}: .venv/bin/pip install {package} ({error})") from error
    except RuntimeError as error:  # other names or shapes
        raise DVAEFileError(f"{path}: no Inception v3 of {package}: {str(error).splitlines()[0]}") from error


def _of_torch_fidelity(name: str, tensors: Mapping[str, Tensor], device: str) -> Network:
    extractors = import_module("torch_fidelity.feature_extractor_inceptionv3")
    file = io.BytesIO()  # not the path, which it would unpickle with all code that the file names
    torch.save(dict(tensors), file)
    file.seek(0)
    model = extractors.FeatureExtractorInceptionV3(name, ["2048", "logits_unbiased"], file).to(device)

    def run(pictures: Tensor) -> tuple[Tensor, Tensor]:
        features, logits = model(pictures.to(device))
        return features.cpu(), logits.double().softmax(1).cpu()

    return Network(f"{name} by torch-fidelity", True, run)


def _of_torchvision(name: str, tensors: Mapping[str, Tensor], device: str) -> Network:
    models: Any = import_module("torchvision.models")
    model = models.inception_v3(weights=None, init_weights=False, aux_logits="AuxLogits.fc.bias" in tensors)
    model.load_state_dict(tensors)
    model = model.eval().requires_grad_(False).to(device)
    classifier, model.fc = model.fc, nn.Identity()

    def run(pictures: Tensor) -> tuple[Tensor, Tensor]:
        pixels = nn.functional.interpolate(pictures.to(device).float(), (299, 299), mode="bilinear", antialias=True)
        features = model(pixels / 127.5 - 1)
        return features.cpu(), classifier(features).double().softmax(1).cpu()

    return Network(f"{name} by torchvision", False, run)


_MAKERS: Mapping[int, tuple[str, Callable[[str, Mapping[str, Tensor], str], Network]]] = {
    1008: ("torch-fidelity", _of_torch_fidelity),
    1000: ("torchvision", _of_torchvision),
}
"""By the number of classes: its package, and what makes a network of its tensors."""


def _tensors_of(path: Path) -> Mapping[str, Tensor]:
    try:
        with open_regular(path) as file:
            is_pickle = file.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        raise DVAEFileError(f"{path} cannot be read: {error.strerror or error}") from error
    if not is_pickle or path.stat().st_size > MAX_BYTES:
        tensors = load(path, MAX_BYTES, "PyTorch", "it holds more than tensors")
    else:
        try:
            with open_regular(path) as file:
                for _ in range(_NUM_PICKLES):
                    check_pickle(file, GLOBALS, MAX_PICKLE_BYTES)
            tensors = torch.load(path, map_location="cpu", weights_only=True)  # as before PyTorch 1.6
        except Exception as error:  # a broken file fails in many ways
            raise DVAEFileError(f"{path}: no file of tensors that PyTorch has written") from error
    if not isinstance(tensors, dict) or not all(isinstance(one, Tensor) for one in tensors.values()):
        raise DVAEFileError(f"{path}: no table of tensors")
    check_tensors(path, tensors)
    return tensors
