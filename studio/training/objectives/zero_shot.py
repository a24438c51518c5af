"""Zero-shot classification of images: each is given the class whose texts are nearest to it.

The vector of a class is the mean of its texts' features, one for each template, each of unit length; so is the mean
after it is made that long again.

Source: A. Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", 2021, section 3.1.4;
``zero_shot_classifier.py`` of open_clip 3.3, and CLIP benchmark's ``.cls`` and ``classnames.txt`` in shards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ....encoder.quoting import quote
from ....encoder.regular_file import read_regular
from ....encoder.similarity import normalized
from ..data.datasets import read_data
from ..data.examples import Example
from ..data.image_inputs import Images
from ..scaling.grad_cache import Towers
from .classifier import class_of, without_examples

TEMPLATES = ("a photo of a {}.",)
"""Templates if none are given."""
PLACES = ("{}", "{c}")
"""Mark for a class in a template, as in open_clip and in CLIP benchmark."""
NAMES_FILE = "classnames.txt"
"""File of class names next to shards."""
MAX_BYTES = 2**24
"""Maximum size of a file of names or templates."""


def lines_of(path: Path) -> list[str]:
    """Lines of a text file that are not blank."""
    try:
        lines = read_regular(path, MAX_BYTES).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{path}: it is not UTF-8") from None
    return [line.strip() for line in lines if line.strip()]


def templates_of(path: Path | None) -> tuple[str, ...]:
    """Templates in a file, a line each; `TEMPLATES` without one."""
    if path is None:
        return TEMPLATES
    templates = tuple(lines_of(path))
    wrong = [template for template in templates if not any(place in template for place in PLACES)]
    if wrong or not templates:
        why = f"{quote(wrong[0])} has no place for a class" if wrong else "there is no template in it"
        raise ValueError(f"{path}: {why}; write a template a line, such as: a photo of a {{}}.")
    return templates


class Counts(NamedTuple):
    """Outcome of a classification."""

    classes: tuple[str, ...]
    """Names of the classes, as they stand in the texts."""
    confusion: Tensor
    """``[classes, classes]``, int64: number of images by their class and the one they were given."""
    among_five: Tensor
    """``[classes]``, int64: number of images whose class is among the five nearest."""

    def figures(self) -> dict[str, float]:
        """Shares of images whose class is the first, and among the first five if there are more, from 0 to 1."""
        total = max(1, int(self.confusion.sum()))
        shares = {"zero-shot top-1": int(self.confusion.trace()) / total}
        return shares | ({"zero-shot top-5": int(self.among_five.sum()) / total} if len(self.classes) > 5 else {})


class ZeroShot:
    """A set of images with their classes, to classify by any CLIP."""

    def __init__(self, path: Path, templates: Sequence[str] = TEMPLATES, names: Sequence[str] | None = None) -> None:
        """Find the images.

        Args:
            path: A folder with a folder for each class, or shards whose members are in such folders or have a ``.cls``
                with the number of a class.
            templates: Texts with one of `PLACES` for a class.
            names: Names of the classes in the order of their folders or numbers; by default those of the folders, with
                spaces for ``_``, or in `NAMES_FILE`.

        Raises:
            ValueError: If there are no images in two classes or more, or as many names.
        """
        self.data = read_data(path, is_captioned=False)
        labels = [_label_of(example) for example in self.data.examples]
        self._label = {label: number for number, label in enumerate(sorted({*labels} - {""}, key=_in_order))}
        self.notes = without_examples(path, dict.fromkeys(self._label, 1)) if labels and not labels[0].isdigit() else []
        self._examples = self.data.examples.chosen(index for index, label in enumerate(labels) if label)
        if len(self._examples) < len(labels):
            self.notes.append(f"{len(labels) - len(self._examples):,} left out: in no folder, so it has no class")
        if len(self._label) < 2:
            raise ValueError(f"{path}: {len(self._label)} classes with images in it; give a folder with two or more")
        names_path = (path if path.is_dir() else path.parent) / NAMES_FILE
        is_numbered = all(label.isdigit() for label in self._label)
        if names is None and is_numbered and names_path.is_file():
            names = lines_of(names_path)
        if names is not None and is_numbered and len(names) > max(map(int, self._label)):
            self._label = {label: int(label) for label in self._label}  # classes without images count, too
        elif names is not None and len(names) != len(self._label):
            raise ValueError(f"{path}: {len(self._label):,} classes, and {len(names):,} names for them")
        self.classes = tuple(names or (label.replace("_", " ") for label in self._label))
        self._templates = templates

    def __call__(
        self, towers: Towers, images: Images, token_ids: Callable[[Sequence[str]], Tensor], batch: int
    ) -> Counts:
        """Classify all images; those that cannot be read are left out."""
        device = towers.loss.logit_scale.device
        with torch.no_grad():
            classes = self._classifier(towers, token_ids, device)
            confusion = torch.zeros(len(self.classes), len(self.classes), dtype=torch.int64)
            among_five = torch.zeros(len(self.classes), dtype=torch.int64)
            for examples, pixels in images.readable(self._examples, batch):
                features = normalized(towers.images(pixels.to(device)))
                nearest = (features @ classes.T).topk(min(5, len(classes))).indices.cpu()
                labels = torch.tensor([self._label[_label_of(example)] for example in examples])
                confusion.index_put_((labels, nearest[:, 0]), torch.ones_like(labels), accumulate=True)
                among_five += torch.bincount(labels[(nearest == labels.unsqueeze(1)).any(1)], minlength=len(classes))
        return Counts(self.classes, confusion, among_five)

    def _classifier(self, towers: Towers, token_ids: Callable[[Sequence[str]], Tensor], device: torch.device) -> Tensor:
        """Vectors of the classes, ``[classes, p]``."""
        rows: list[Tensor] = []
        marks = [next(place for place in PLACES if place in template) for template in self._templates]
        for name in self.classes:
            texts = [template.replace(mark, name) for template, mark in zip(self._templates, marks, strict=True)]
            rows.append(normalized(normalized(towers.texts(token_ids(texts).to(device))).mean(0)))
        return torch.stack(rows)


def _label_of(example: Example) -> str:
    """Class of an image: its number in the shard, or the name of its folder; empty if it has neither."""
    return example.captions[0] if example.captions else class_of(example)


def _in_order(label: str) -> tuple[int, str]:
    """Sort key: numbers before names, and by size.

    >>> sorted(["cat", "10", "9"], key=_in_order)
    ['9', '10', 'cat']
    """
    return (int(label), "") if label.isdigit() else (2**62, label)
