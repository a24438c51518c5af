"""Zero-shot classification: labels become prompts, and an image gets the label whose prompts match it best.

The vector of a label is the mean of its prompts' unit vectors, normalised again.

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
"""Placeholder for the label in a template."""


def label_prompts(label: str, templates: Iterable[str]) -> list[str]:
    """Prompts for a label.

    Args:
        label: Any text.
        templates: Texts with `GAP` in place of the label.

    Returns:
        One prompt per template.

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
    """Vectors of labels.

    Args:
        labels: At least one label.
        templates: At least one template; the same for all labels.
        tokenize: The encoder's tokenizer.
        layout: The encoder's chunk layout.
        encode: The encoder, with its projection.

    Returns:
        ``[labels, p]``, float32, of unit length; and issues about the prompts, e.g. if one is too long.

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
    """Probability of each label for each image, among the given labels.

    Args:
        vectors: ``[labels, p]``, vectors of labels.
        features: ``[images, p]``, vectors of images.
        logit_scale: Factor of the model for cosines.

    Returns:
        ``[images, labels]``, float64; rows sum to 1.
    """
    return probabilities(similarity(vectors.double(), features.double(), 1 / logit_scale), "texts").T
