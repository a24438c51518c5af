"""Pictures of sorted images: the confusion matrix, and the images with an uncertain label.

Draw given numbers; ``weighting/zero_shot.py`` and ``training/probe.py`` compute them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image

from .canvas import Canvas, shorten, wrap
from .fonts import text_width
from .style import MARGIN, SMALL_SIZE, ThemeName, mix, readable, theme_named
from .thumbnails import NOTE_SIZE, TEXT_SIZE, put_thumbnail

MAX_LABELS = 32
"""Maximum number of labels drawn; further ones are counted."""
CELLS = ((8, 56), (16, 44), (MAX_LABELS, 34))
"""Cell sizes in pixels, each up to a number of labels."""
LABEL_WIDTH = 160
"""Width for a label, in pixels."""
SHARE_ROOM = 62
"""Width for the share of correct predictions at the end of a row."""


def draw_confusion(
    counts: Sequence[Sequence[int]], labels: Sequence[str], *, title: str = "", theme: ThemeName = "light"
) -> Image.Image:
    """Draw a confusion matrix: a row for each true label, a column for each predicted one.

    Cells are coloured by their share of their row. The diagonal, i.e. correct predictions, is framed, and its share of
    the row is at the row's end. Up to 32 labels are drawn; the others are counted.

    Args:
        counts: ``[labels, labels]``: numbers by true and predicted label.
        labels: Names of the labels, in any script.
        title: Title above.
        theme: ``light`` or ``dark``.

    Returns:
        The picture, RGB.

    Raises:
        ValueError: If there is no label, the counts do not fit, or the theme is unknown.
    """
    colors = theme_named(theme)
    if not labels or len(counts) != len(labels) or any(len(row) != len(labels) for row in counts):
        raise ValueError(f"{len(labels)} labels need as many rows and columns of counts, and there must be a label")
    num_drawn = min(len(labels), MAX_LABELS)
    cell = next(size for limit, size in CELLS if num_drawn <= limit)
    names = [shorten(" ".join(label.split()) or "(empty)", LABEL_WIDTH, TEXT_SIZE) for label in labels[:num_drawn]]
    room = max(text_width(name, TEXT_SIZE) for name in names)
    left = MARGIN + 22 + room + 10
    right, inner = left + num_drawn * cell, num_drawn * cell + SHARE_ROOM
    titles = wrap(title, max(inner + room, 320), TEXT_SIZE + 2) if title else []
    top = MARGIN + len(titles) * 24 + (8 if titles else 0) + 22 + room + 8
    bottom = top + num_drawn * cell
    notes = ["rows: true label; columns: given label; framed: right"]
    if len(labels) > num_drawn:
        notes.append(f"not drawn: {len(labels) - num_drawn:,} more labels")
    widest = max(
        [text_width(note, NOTE_SIZE) for note in notes]
        + [text_width(line, TEXT_SIZE + 2, bold=True) for line in titles]
    )
    width = max(right + SHARE_ROOM, MARGIN + widest) + MARGIN
    canvas = Canvas(width, bottom + 12 + 20 * len(notes) + MARGIN, colors.background)
    canvas.lines(MARGIN, MARGIN + 10, titles, colors.text, step=24, size=TEXT_SIZE + 2, bold=True)
    middle = left + num_drawn * cell / 2
    canvas.text(middle, top - room - 20, "given label", colors.muted, size=SMALL_SIZE, align="center")
    start = (top + bottom + text_width("true label", SMALL_SIZE)) / 2
    canvas.upright_text(MARGIN + 8, start, "true label", colors.muted, size=SMALL_SIZE)
    canvas.text(right + SHARE_ROOM - 4, top - 12, "right", colors.muted, size=SMALL_SIZE, align="right")
    for index, name in enumerate(names):
        at = (index + 0.5) * cell
        canvas.upright_text(left + at, top - 8, name, colors.text, size=TEXT_SIZE)
        canvas.text(left - 10, top + at, name, colors.text, size=TEXT_SIZE, align="right")
        total = sum(counts[index])
        for column in range(num_drawn):
            count, x, y = counts[index][column], left + column * cell, top + index * cell
            fill = mix(colors.surface, colors.visible, count / total if total else 0.0)
            outline = colors.text if column == index else None
            canvas.box(x + 1, y + 1, x + cell - 1, y + cell - 1, fill=fill, outline=outline, line_width=2, radius=4)
            text, size = f"{count:,}", min(TEXT_SIZE, cell / 2.6)
            size = min(size, size * (cell - 6) / max(1.0, text_width(text, size)))
            ink = readable(fill, colors.text) if count else colors.muted
            canvas.text(x + cell / 2, y + cell / 2, text, ink, size=size, bold=column == index, align="center")
        share = f"{100 * counts[index][index] / total:.0f} %" if total else "none"
        canvas.text(right + SHARE_ROOM - 4, top + at, share, colors.text, size=SMALL_SIZE, align="right")
    canvas.lines(MARGIN, bottom + 22, notes, colors.muted, step=20, size=NOTE_SIZE)
    return canvas.image()


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
    for number, card in enumerate(cards):
        left = MARGIN + number % columns * step
        top = MARGIN + TITLE_ROOM + number // columns * (SIDE + CARD_TEXT + GAP)
        put_thumbnail(canvas, images[number], left, top, SIDE, colors)
        for line, (label, probability) in enumerate(card.guesses):
            y, share = top + SIDE + 14 + 20 * line, f"{100 * probability:.0f} %"
            size, ink = (TEXT_SIZE, colors.text) if line == 0 else (SMALL_SIZE, colors.muted)
            room = SIDE - text_width(share, size) - 6
            canvas.text(left, y, shorten(" ".join(label.split()), room, size), ink, size=size)
            canvas.text(left + SIDE, y, share, ink, size=size, align="right")
        # names of generated files differ at their ends
        name = shorten(card.name[::-1], SIDE, SMALL_SIZE)[::-1]
        canvas.text(left, top + SIDE + 55, name, colors.muted, size=SMALL_SIZE)
    return canvas.image()
