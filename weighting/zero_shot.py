"""Zero-shot classification: labels become prompts, and an image gets the label whose prompts it fits best.

The vector of a label is the mean of the vectors of its prompts, each of length 1, brought to length 1 again.

Source: A. Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", 2021, sections 3.1.2
and 3.1.4, and the notebook ``Prompt_Engineering_for_ImageNet.ipynb`` of openai/CLIP.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..encoder.contrastive import normalized, probabilities, similarity
from .chunks import ChunkLayout, Tokenize
from .features import EncodeTexts, text_features
from .prompt import Issue

GAP = "{}"
"""Stands for the label in a template."""


def label_prompts(label: str, templates: Iterable[str]) -> list[str]:
    """The prompts that stand for a label.

    Args:
        label: Any text.
        templates: Texts with `GAP` where the label belongs.

    Returns:
        One for each template.

    Raises:
        ValueError: If a template has no gap.

    >>> label_prompts("cat", ["a photo of a {}", "a drawing of a {}"])
    ['a photo of a cat', 'a drawing of a cat']
    """
    prompts: list[str] = []
    for template in templates:
        if GAP not in template:
            raise ValueError(f"template {template!r} has no {GAP}, which stands for the label: 'a photo of a {GAP}'")
        prompts.append(template.replace(GAP, label))
    return prompts


def label_vectors(
    labels: Sequence[str], templates: Sequence[str], tokenize: Tokenize, layout: ChunkLayout, encode: EncodeTexts
) -> tuple[Tensor, list[Issue]]:
    """The vectors of labels.

    Args:
        labels: At least one.
        templates: At least one; the same for all labels.
        tokenize: The encoder's tokenizer.
        layout: The encoder's chunk layout.
        encode: The encoder, with its projection.

    Returns:
        ``[labels, p]``, float32, each of length 1; and what there is to say of the prompts, as that one is too long.

    Raises:
        ValueError: If a template has no gap for the label.
    """
    vectors: list[Tensor] = []
    issues: list[Issue] = []
    for label in labels:
        read = [text_features(text, "none", tokenize, layout, encode) for text in label_prompts(label, templates)]
        vectors.append(normalized(torch.stack([one.vector for one in read]).mean(0)))
        issues += [issue for one in read for issue in one.read.issues]
    return torch.stack(vectors), issues


def label_probabilities(vectors: Tensor, features: Tensor, logit_scale: float) -> Tensor:
    """How probable each label is for each image, among the labels given.

    Args:
        vectors: ``[labels, p]``, of labels.
        features: ``[images, p]``, of images.
        logit_scale: What the model multiplies cosines by.

    Returns:
        ``[images, labels]``, float64; rows add up to 1.
    """
    return probabilities(similarity(vectors.double(), features.double(), 1 / logit_scale), "texts").T
