"""Images with an uncertain label, as a picture: each with its two most probable labels.

``weighting/zero_shot.py`` and ``training/probe.py`` compute the probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image

from .canvas import Canvas, shorten
from .fonts import text_width
from .style import MARGIN, SMALL_SIZE, ThemeName, theme_named
from .thumbnails import TEXT_SIZE, put_thumbnail

SIDE, GAP, COLUMNS = 132, 16, 6
"""Side of the thumbnails and gap, in pixels, and thumbnails per row."""
CARD_TEXT = 66
"""Height of the three lines below a thumbnail."""
TITLE_ROOM = 34


class Card(NamedTuple):
    """Text below an image."""

    name: str
    """Name of the image; a long one keeps its end."""
    guesses: Sequence[tuple[str, float]]
    """The predicted label and the runner-up, each with its probability."""


def draw_unsure(
    images: Sequence[Image.Image], cards: Sequence[Card], title: str, *, theme: ThemeName = "light"
) -> Image.Image:
    """Draw images with their two most probable labels, in the given order.

    Args:
        images: Images of any size and mode, accessed one by one.
        cards: One card per image.
        title: Title above.
        theme: ``light`` or ``dark``.

    Returns:
        The picture, RGB.

    Raises:
        ValueError: If there are no images, the numbers do not fit, or the theme is unknown.
    """
    colors = theme_named(theme)
    if not len(images) or len(images) != len(cards):
        raise ValueError(f"{len(images)} images need as many cards, and there must be one; got {len(cards)} cards")
    columns, step = min(COLUMNS, len(images)), SIDE + GAP
    width = max(columns * step - GAP, text_width(title, TEXT_SIZE))
    rows = math.ceil(len(images) / columns)
    height = TITLE_ROOM + rows * (SIDE + CARD_TEXT + GAP) - GAP
    canvas = Canvas(2 * MARGIN + width, 2 * MARGIN + height, colors.background)
    canvas.text(MARGIN, MARGIN + 8, title, colors.muted, size=TEXT_SIZE)
    places = [
        (MARGIN + number % columns * step, MARGIN + TITLE_ROOM + number // columns * (SIDE + CARD_TEXT + GAP))
        for number in range(len(cards))
    ]
    for card, (left, top) in zip(cards, places, strict=True):
        for line, (label, probability) in enumerate(card.guesses):
            y, share = top + SIDE + 14 + 20 * line, f"{100 * probability:.0f} %"
            size, ink = (TEXT_SIZE, colors.text) if line == 0 else (SMALL_SIZE, colors.muted)
            room = SIDE - text_width(share, size) - 6
            canvas.text(left, y, shorten(" ".join(label.split()), room, size), ink, size=size)
            canvas.text(left + SIDE, y, share, ink, size=size, align="right")
        # names of generated files differ at their ends
        name = shorten(card.name[::-1], SIDE, SMALL_SIZE)[::-1]
        canvas.text(left, top + SIDE + 55, name, colors.muted, size=SMALL_SIZE)
    picture = canvas.image()
    for number, (left, top) in enumerate(places):
        put_thumbnail(picture, images[number], left, top, SIDE, colors)
    return picture
