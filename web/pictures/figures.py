"""The lecture's mask figure, drawn with the pack's own tokenizer, sizes and masks, and labels for a chunk's positions.

Source: docs/lecture.md Figure 3, Definitions 3.1, 3.2 and 5.10.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import torch
from PIL import Image
from torch import Tensor

from ...encoder.config import CLIP_L
from ...encoder.masks import PadConvention, causal_mask, combine, length_normalization, padding_mask
from ...encoder.tokenizer import default_tokenizer
from ...weighting.chunks import TokenChunk
from ...weighting.masks import variant_mask
from ...weighting.reading import ReadPrompt
from ...weighting.schemes.plan import Variant, versions_of_first
from .masks import draw_mask_rows
from .style import ThemeName

SHOWN_PADDING = 3
"""PAD positions shown in the figure before its dots."""

SHOWN_ENCODINGS = 4
"""Maximum number of masks side by side."""

SHOWN_ROWS = 4
"""Maximum number of rows of masks, if phrases are bound: each has its own pass."""

CAPTIONS: dict[PadConvention, str] = {
    "tokenizer": "A tokenizer's attention mask: what follows the first EOS is hidden, EOS itself is visible.",
    "lecture": "Definition 3.2 to the letter: hidden wherever the id is PAD. EOS has that id too, so it is hidden.",
}
"""Captions of the rows of the figure."""


def mask_labels(chunk: TokenChunk, text: str) -> list[str]:
    """Labels for the positions of a chunk.

    Args:
        chunk: The chunk.
        text: Its prompt.

    Returns:
        One label per position: BOS, the tokens' texts, EOS, PAD. Tokens that share one text, such as the bytes of an
        emoji, are numbered.

    >>> from ...weighting.encode import EncodeOptions, read_prompt
    >>> chunk = read_prompt("a (red:1.2) cat", EncodeOptions(), default_tokenizer()).chunks[0]
    >>> mask_labels(chunk, "a (red:1.2) cat")[:7]
    ['BOS', 'a', 'red', 'cat', 'EOS', 'PAD', 'PAD']
    """
    spans = [(token.span.start, token.span.end) if token.span else (0, 0) for token in chunk.content]
    return _labels(spans, text, len(chunk.tokens))


def figure_masks(text: str, convention: PadConvention) -> tuple[list[tuple[str, Tensor]], list[str]]:
    """Titles and masks, ``[77, 77]``, bool, of the figure's three (causal, PAD, product); labels of its positions."""
    length = CLIP_L.context_length
    tokens = default_tokenizer()(text)
    ids = length_normalization(
        [token.id for token in tokens], length=length, bos_id=CLIP_L.bos_id, eos_id=CLIP_L.eos_id, pad_id=CLIP_L.pad_id
    )
    causal = causal_mask(length)
    padding = padding_mask(
        torch.tensor([ids]), eos_id=CLIP_L.eos_id, pad_id=CLIP_L.pad_id, convention=convention
    ).expand(-1, length, -1)
    product = combine(causal, padding)
    assert product is not None
    labels = _labels([(token.start, token.end) for token in tokens[: length - 2]], text, length)
    return [("causal mask", causal[0]), ("PAD mask", padding[0]), ("product", product[0])], labels


def draw_figure_masks(
    text: str = "a red cat", *, visible: int | None = None, cell: int | None = None, theme: ThemeName = "light"
) -> Image.Image:
    """Draw how causal mask and PAD mask multiply to the attention mask, in both padding conventions.

    Args:
        text: Any text, read without syntax.
        visible: Positions shown; None for the text and a little padding.
        cell: Size of a cell in pixels; None to choose by their number.
        theme: ``light`` or ``dark``.

    Returns:
        The picture, RGB: a row of three masks for the tokenizer's convention, one for the lecture's.

    Raises:
        ValueError: If a number is below 1 or the theme unknown.
    """
    labels = figure_masks(text, "tokenizer")[1]
    if visible is None:
        visible = labels.index("PAD") + SHOWN_PADDING if labels[-1] == "PAD" else len(labels)
    rows = [(caption, figure_masks(text, convention)[0]) for convention, caption in CAPTIONS.items()]
    return draw_mask_rows(rows, labels, signs=("×", "="), visible=visible, cell=cell, theme=theme)


def draw_encoding_masks(read: ReadPrompt, variants: Iterable[Variant], *, theme: ThemeName = "light") -> Image.Image:
    """Draw the attention masks of a prompt's first chunk in each of its encodings.

    Args:
        read: The prompt.
        variants: Variants of its plan.
        theme: ``light`` or ``dark``.

    Returns:
        The picture, RGB: up to `SHOWN_ENCODINGS` masks side by side; up to `SHOWN_ROWS` such rows if phrases are bound.
    """
    chunk, length = read.chunks[0], read.layout.length
    versions = versions_of_first(variants)
    limit = SHOWN_ENCODINGS * (SHOWN_ROWS if read.options.binds else 1)
    shown = [(version.title, variant_mask(version, length)[0]) for version in versions[:limit]]
    num_more = len(versions) - len(shown)
    caption = f"{num_more} more versions are not shown." if num_more else ""
    labels = mask_labels(chunk, read.prompt.source)
    visible = min(len(labels), chunk.num_content + 2 + SHOWN_PADDING)
    rows = [shown[first : first + SHOWN_ENCODINGS] for first in range(0, len(shown), SHOWN_ENCODINGS)]
    captioned = [(caption if row is rows[-1] else "", row) for row in rows]
    return draw_mask_rows(captioned, labels, visible=visible, theme=theme)


def _labels(spans: Sequence[tuple[int, int]], text: str, length: int) -> list[str]:
    """Labels: BOS, the text of each span, EOS, and PAD up to ``length``."""
    labels = ["BOS"]
    for (start, end), group in groupby(spans):
        count = len(list(group))
        name = " ".join(text[start:end].split()) or "?"
        labels += [name] if count == 1 else [f"{name} {number}/{count}" for number in range(1, count + 1)]
    labels.append("EOS")
    return labels + ["PAD"] * (length - len(labels))
