"""A text of any length as one vector, for comparison with images.

CLIP was trained on plain text of up to 75 tokens. So weights are read and left out, and longer texts are cut into
chunks between words, as in ComfyUI; the vectors of the chunks are averaged, weighted by their numbers of tokens. Up to
75 tokens that is CLIP's own vector.

Source: docs/images.md, "Long texts"; A. Radford et al., "Learning Transferable Visual Models From Natural Language
Supervision", 2021, section 3.1.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ..options import EncodeOptions
from ..text.chunks import ChunkLayout, Tokenize
from ..text.prompt import Issue, Span
from .prompt_reader import ReadPrompt, read_prompt

EncodeTexts = Callable[[Sequence[Sequence[int]]], Tensor]
"""From chunks of token ids to vectors, ``[chunks, p]``, of unit length."""


class TextFeatures(NamedTuple):
    """Vector of a text, and the text as read."""

    vector: Tensor
    """``[p]``, of unit length."""
    read: ReadPrompt
    """The text as read; its issues say what was left out."""


def text_options(syntax: str) -> EncodeOptions:
    """Options for reading a text to compare images with: no weights, chunks cut between words."""
    return EncodeOptions(syntax=syntax, scheme="unweighted", chunking="comfy word")


def text_features(text: str, syntax: str, tokenize: Tokenize, layout: ChunkLayout, encode: EncodeTexts) -> TextFeatures:
    """Read a text and encode it.

    Args:
        text: Any string.
        syntax: Syntax of its weights, which are left out; ``none`` takes every character as text.
        tokenize: The encoder's tokenizer.
        layout: The encoder's chunk layout.
        encode: The encoder, with its projection.

    Returns:
        The vector.

    Raises:
        ValueError: If the syntax is unknown.
    """
    read = read_prompt(text, text_options(syntax), tokenize, layout)
    chunks = read.chunks
    vectors = encode([chunk.plain_ids for chunk in chunks])
    issues: list[Issue] = []
    weighted = next((token for chunk in chunks for token in chunk.content if token.weight != 1.0), None)
    if weighted is not None:
        issues.append(Issue("ignored-weights", "Similarity has no weights: they are left out.", weighted.at))
    if len(chunks) > 1:
        message = f"CLIP reads {layout.capacity} tokens at once: the {len(chunks)} parts of this text are averaged."
        issues.append(Issue("averaged-chunks", message, Span(0, 0)))
        counts = torch.tensor([[max(chunk.num_content, 1)] for chunk in chunks], dtype=vectors.dtype)
        vectors = functional.normalize((vectors * counts).sum(0, keepdim=True), dim=-1)
    return TextFeatures(vectors[0], read._replace(issues=(*read.issues, *issues)))
