"""Sheets of thumbnails: samples with their captions, and images ranked for a text.

Draw given numbers; ``encoder/images.py`` and ``weighting/reading/features.py`` compute them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from .canvas import Canvas, shorten, shorten_start, wrap
from .style import FONT_SIZE, LIGHT, LINE_HEIGHT, MARGIN, SMALL_SIZE, Theme

NO_TEXT = "(empty text)"
TEXT_SIZE = 14.0
"""Size of texts and headings."""
NOTE_SIZE = 13.0
"""Size of explanations."""


def few_lines(text: str, width: float, size: float, max_lines: int) -> list[str]:
    """A text in a limited number of lines of a width in pixels, with an ellipsis if it was cut; never empty."""
    text = " ".join(text.split())
    if not text:
        return [NO_TEXT]
    limit = 200 * max_lines  # no line holds more characters
    lines = wrap(text[:limit], width, size)
    is_cut = len(lines) > max_lines or len(text) > limit
    lines = lines[:max_lines]
    if is_cut and not lines[-1].endswith("…"):
        lines[-1] = shorten(f"{lines[-1]} …", width, size)
    return lines


def put_thumbnail(canvas: Canvas, image: Image.Image, left: float, top: float, side: int, colors: Theme) -> None:
    """Paste an image of any size and mode into the middle of a square of a canvas, as large as fits.

    Transparent parts show the surface.
    """
    scale = side / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    has_alpha = image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info
    small = image.convert("RGBA" if has_alpha else "RGB")
    small = small.reduce(max(1, int(0.4 / scale))) if scale < 0.4 else small
    small = small.resize(size, Image.Resampling.BICUBIC)
    square = Image.new("RGB", (side, side), colors.surface)
    place = ((side - size[0]) // 2, (side - size[1]) // 2)
    square.paste(small, place, small if has_alpha else None)
    canvas.paste(square, left, top)


SAMPLE_SIDE = 72
"""Side of an image, in pixels."""
SAMPLE_GAP, CAPTION_ROOM = 6, 22
MAX_SAMPLES, MAX_SAMPLE_ROWS = 16, 64


def draw_samples(
    rows: Sequence[tuple[str, Sequence[Image.Image]]],
    chosen: Sequence[Image.Image] | None = None,
) -> Image.Image:
    """Draw captions with their images.

    Args:
        rows: Captions, and up to 16 images of each. Up to 64 rows are drawn.
        chosen: One more image per row, separated at its end under the heading "best", or None.

    Returns:
        The picture, RGB.

    Raises:
        ValueError: If there is no row, or not one chosen image per row.
    """
    colors = LIGHT
    if not rows or (chosen is not None and len(chosen) != len(rows)):
        raise ValueError(f"there must be rows and as many chosen images, got {len(rows)} rows")
    num_columns = min(MAX_SAMPLES, max(len(images) for _, images in rows))
    inner = num_columns * (SAMPLE_SIDE + SAMPLE_GAP) - SAMPLE_GAP
    width = 2 * MARGIN + inner + (0 if chosen is None else 3 * SAMPLE_GAP + SAMPLE_SIDE)
    rows = rows[:MAX_SAMPLE_ROWS]
    canvas = Canvas(
        max(width, 320),
        2 * MARGIN + len(rows) * (CAPTION_ROOM + SAMPLE_SIDE + 2 * SAMPLE_GAP) - 2 * SAMPLE_GAP,
        colors.background,
    )
    for number, (caption, images) in enumerate(rows):
        top = MARGIN + number * (CAPTION_ROOM + SAMPLE_SIDE + 2 * SAMPLE_GAP) + CAPTION_ROOM
        text = shorten(caption, canvas.width - 2 * MARGIN - (0 if chosen is None else SAMPLE_SIDE), SMALL_SIZE)
        canvas.text(MARGIN, top - CAPTION_ROOM / 2, text, colors.text, size=SMALL_SIZE)
        for column, image in enumerate(images[:MAX_SAMPLES]):
            put_thumbnail(canvas, image, MARGIN + column * (SAMPLE_SIDE + SAMPLE_GAP), top, SAMPLE_SIDE, colors)
        if chosen is not None:
            left = MARGIN + inner + 3 * SAMPLE_GAP
            canvas.text(left, top - CAPTION_ROOM / 2, "best", colors.muted, size=SMALL_SIZE)
            put_thumbnail(canvas, chosen[number], left, top, SAMPLE_SIDE, colors)
    return canvas.image()


KEPT_SIDE, OTHER_SIDE = 132, 80
"""Sides of the thumbnails of a ranking, in pixels."""
MAX_KEPT, MAX_OTHERS = 60, 18
"""Maximum number of thumbnails in a ranking; further ones are counted."""
RANKING_WIDTH = 6 * (KEPT_SIDE + 14) - 14
"""Width of a ranking without its margins, if there are enough images."""
MIN_RANKING_WIDTH = 440
CARD_GAP = 14
CARD_TEXT = 58
"""Height of bar, score and number below a thumbnail."""
HEADING_ROOM = 34
MAX_TITLE_LINES = 3


def draw_ranking(
    images: Sequence[Image.Image],
    scores: Sequence[float],
    order: Sequence[int],
    keep: int,
    text: str,
    *,
    names: Sequence[str] | None = None,
) -> Image.Image:
    """Draw images ranked for a text: the kept ones large and framed, the best of the others small.

    Below each are its rank and score, its number in the batch, and a bar on the scale from the lowest to the highest
    score. Up to 60 kept images and 18 others are drawn; the rest are counted.

    Args:
        images: Images of any size and mode. Only those drawn are accessed, one by one.
        scores: One score per image; NaN has no bar.
        order: Indices of all images, best first, from `encoder.images.best`.
        keep: Number of kept images, 0 to all.
        text: Text they were ranked for.
        names: Text below each image, such as its file name; a long one keeps its end. None for its number in the batch,
            counted from 1.

    Returns:
        The picture, RGB.

    Raises:
        ValueError: If there are no images, or the numbers do not fit.
    """
    if not len(images) or len(scores) != len(images) or sorted(order) != list(range(len(images))):
        raise ValueError(
            f"{len(images)} images need as many scores and each index once, and there must be an image; got "
            f"{len(scores)} scores and {len(order)} indices"
        )
    if not 0 <= keep <= len(images):
        raise ValueError(f"keep must be 0 to {len(images)}, the number of images, got {keep}")
    names = [f"image {number}" for number in range(1, len(images) + 1)] if names is None else names
    if len(names) != len(images):
        raise ValueError(f"{len(images)} images need as many names, got {len(names)}")
    return _Ranking(scores, order, keep, text, names).draw(images)


@dataclass(frozen=True)
class _Card:
    """Position of a thumbnail in a ranking."""

    index: int
    """Index in the batch."""
    rank: int
    """Rank, counted from 1."""
    left: float
    top: float
    side: int

    @property
    def is_kept(self) -> bool:
        """Whether the image is kept; such images are the large ones."""
        return self.side == KEPT_SIDE


class _Ranking:
    """A measured ranking, ready to be drawn."""

    def __init__(
        self, scores: Sequence[float], order: Sequence[int], keep: int, text: str, names: Sequence[str]
    ) -> None:
        self.scores, self.names, self.colors, self.is_empty = scores, names, LIGHT, not text.strip()
        kept, rest = order[:keep], order[keep:]
        kept_width, other_width = len(kept) * (KEPT_SIDE + CARD_GAP), len(rest) * (OTHER_SIDE + CARD_GAP)
        self.width = max(MIN_RANKING_WIDTH, min(RANKING_WIDTH, max(kept_width, other_width) - CARD_GAP))
        # bold is wider than the regular font used for measuring
        lines = few_lines(text, self.width * 0.85, FONT_SIZE, MAX_TITLE_LINES)
        self.title = [shorten(line, self.width, FONT_SIZE, bold=True) for line in lines]
        self.cards: list[_Card] = []
        self.headings: list[tuple[str, float]] = []
        self.bottom = MARGIN + len(self.title) * FONT_SIZE * LINE_HEIGHT + 6
        count = f"{len(order):,}"
        if kept:
            what = f"Kept: the best {keep:,} of {count}" if rest else f"Kept: all {count}" if keep > 1 else "Kept"
            self._add(what, kept[:MAX_KEPT], 1, KEPT_SIDE, len(kept) - MAX_KEPT)
        if rest:
            what = "Not kept, best first" if kept else f"{count} images, best first"
            self._add(what, rest[:MAX_OTHERS], keep + 1, OTHER_SIDE, len(rest) - MAX_OTHERS)

    def _add(self, heading: str, indices: Sequence[int], first: int, side: int, more: int) -> None:
        heading += f"; {more:,} more {'are' if more > 1 else 'is'} not drawn" if more > 0 else ""
        self.headings.append((heading, self.bottom + HEADING_ROOM / 2))
        columns = int((self.width + CARD_GAP) // (side + CARD_GAP))
        top, step = self.bottom + HEADING_ROOM, side + CARD_TEXT + CARD_GAP
        for number, index in enumerate(indices):
            left = MARGIN + number % columns * (side + CARD_GAP)
            self.cards.append(_Card(index, first + number, left, top + number // columns * step, side))
        self.bottom = top + math.ceil(len(indices) / columns) * step

    def draw(self, images: Sequence[Image.Image]) -> Image.Image:
        """Draw everything."""
        colors = self.colors
        finite = [score for score in self.scores if math.isfinite(score)]
        low, high = min(finite, default=0.0), max(finite, default=0.0)
        note = f"score: cosine, from −1 to 1. bars: from the lowest, {_score(low)}, to the highest, {_score(high)}"
        notes = wrap(note, self.width, NOTE_SIZE) if finite and high > low else ["score: cosine, from −1 to 1"]
        canvas = Canvas(self.width + 2 * MARGIN, self.bottom + 20 * len(notes) + MARGIN - 4, colors.background)
        step, ink = FONT_SIZE * LINE_HEIGHT, colors.muted if self.is_empty else colors.text
        canvas.lines(MARGIN, MARGIN + step / 2, self.title, ink, step=step, size=FONT_SIZE, bold=not self.is_empty)
        for heading, y in self.headings:
            canvas.text(MARGIN, y, heading, colors.muted, size=TEXT_SIZE)
        for card in self.cards:
            share = (self.scores[card.index] - low) / (high - low) if high > low else None
            self._draw_card(canvas, card, share)
            put_thumbnail(canvas, images[card.index], card.left, card.top, card.side, colors)
        canvas.lines(MARGIN, self.bottom + 10, notes, colors.muted, step=20, size=NOTE_SIZE)
        return canvas.image()

    def _draw_card(self, canvas: Canvas, card: _Card, share: float | None) -> None:
        colors = self.colors
        right, bottom = card.left + card.side, card.top + card.side
        if card.is_kept:
            canvas.box(card.left - 4, card.top - 4, right + 4, bottom + 4, fill=colors.accent, radius=5)
        if share is not None:  # no bars if all scores are equal
            fill = colors.accent if card.is_kept else colors.muted
            canvas.bar(card.left, bottom + 12, card.side, share, fill, colors.line)
        size = TEXT_SIZE if card.is_kept else NOTE_SIZE
        y = bottom + 29
        width = canvas.text(card.left, y, f"{card.rank}.", colors.muted, size=size)
        score = _score(self.scores[card.index])
        canvas.text(card.left + width + 6, y, score, colors.text, size=size, bold=card.is_kept)
        name = shorten_start(self.names[card.index], card.side, SMALL_SIZE)
        canvas.text(card.left, y + 18, name, colors.muted, size=SMALL_SIZE)


def _score(score: float) -> str:
    return f"{score:.4f}".replace("-", "−") if math.isfinite(score) else str(score)
