"""Thumbnails of the templates: before and after by the small world, or a picture of a help page.

The others were made otherwise and stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from PIL import Image, ImageDraw, ImageOps

from ...studio.world.model import Timed
from ...studio.world.painter import Drawable
from ...studio.world.questions import PHRASES, REGIONS, Way
from ...studio.world.unet import Text
from ...web.pictures.canvas import Canvas
from ...web.pictures.masks import draw_masks, mask_labels
from ...web.pictures.style import DARK, LIGHT, mix
from ...web.pictures.tokens import draw_tokens
from ...weighting.guidance import GUIDANCE
from ...weighting.options import EncodeOptions
from ...weighting.plan import variant_mask, versions_of_first
from ...weighting.reading.view import view
from . import help_pictures
from .docs_pictures import TWO, painter
from .glides import drawn as glided
from .help_pictures import DROP, FADED, SOME, as_picture, of_two

SIDE, GAP = 400, 6
"""Size of a thumbnail and distance between its pictures, in pixels."""
BLEND = SOME["masked_blend"]
HALF = "a red circle and (a blue square:0.5)"
ONE, BOTH, NEGATIVE = "a red circle", TWO.text(part=""), "a red circle (and a blue square:-1)"


class Side(NamedTuple):
    """Pictures of a prompt."""

    name: str
    """What draws it."""
    prompt: str
    """The prompt in words."""
    drawn: Drawable | str
    """What the network reads; or the prompt as it is written, which may glide."""


def compared(sides: Sequence[Side], seeds: Sequence[int], *, has_halves: bool = False) -> Image.Image:
    """Rows of pictures, each below its name and prompt; a column for each seed.

    With halves, a line divides the pictures of the last row.
    """
    canvas = Canvas(SIDE, SIDE, DARK.background)
    head, height = 44 if len(sides) < 3 else 22, (SIDE - GAP) / len(sides)
    side = int(min(height - head, (SIDE - GAP) / len(seeds)) - GAP)
    left = (SIDE + GAP - len(seeds) * (side + GAP)) / 2
    for row, (name, prompt, drawn) in enumerate(sides):
        top = GAP + row * height
        width = canvas.text(left, top + 11, name, DARK.text, size=17, bold=True)
        below = (left, top + 32) if head > 22 else (left + width + 10, top + 12)
        canvas.text(*below, prompt, DARK.muted, size=14 if head > 22 else 12)
        pictures = (
            glided(painter(), drawn, SOME["comfy"], seeds)
            if isinstance(drawn, str)
            else painter().pictures([drawn], [seeds])[0]
        )
        for column, picture in enumerate(pictures.split(1)):
            tile = as_picture(picture, side)
            if has_halves and row == len(sides) - 1:
                ImageDraw.Draw(tile).line([(side // 2, 0), (side // 2, side)], fill=DARK.text, width=2)
            canvas.paste(tile, int(left + column * (side + GAP)), int(top + head))
    return canvas.image()


def seen() -> Image.Image:
    """Which word of two phrases sees which: as always, and each phrase in its own encoding when they are kept apart."""
    prompt, phrases = "red circle, blue square", "red circle\nblue square"
    [encoded] = painter().encoders.prepare([prompt], EncodeOptions(bind=phrases)).run()
    read, variants = encoded.prompts["clip_l"].read, encoded.prompts["clip_l"].variants()
    masks = [variant_mask(version, read.layout.length)[0] for version in versions_of_first(variants)]
    chunk = read.chunks[0]
    apart = torch.stack([masks[token.phrase][row] for row, token in enumerate(chunk.tokens)])
    matrices = draw_masks(
        [("CLIP Text Encode", masks[0]), ("Color Bleed", apart)],
        mask_labels(chunk, prompt),
        visible=1 + chunk.num_content,
    )
    canvas = Canvas(matrices.width, matrices.width, LIGHT.background)
    canvas.text(20, 30, "Which word reads which", LIGHT.text, size=24, bold=True)
    canvas.text(20, 62, "kept apart, square has not read red", LIGHT.muted, size=19)
    canvas.paste(matrices, 0, 90)
    return canvas.image().resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def two_texts() -> Image.Image:
    """The two text encoders of SDXL, each with a text of its own."""
    canvas = Canvas(SIDE, SIDE, DARK.background)
    canvas.text(20, 40, "SDXL reads two texts", DARK.text, size=20, bold=True)
    texts = {
        "CLIP-L": ("text_l", "oil painting, (thick strokes:1.3)", "768 numbers", DARK.down),
        "CLIP-G": ("text_g", "a (lighthouse:1.2) at dusk", "1280 numbers", DARK.up),
    }
    for row, (tower, (name, written, wide, color)) in enumerate(texts.items()):
        top = 90 + 150 * row
        canvas.text(20, top, name, DARK.muted, size=15)
        canvas.text(20, top + 24, written, DARK.text, size=17)
        canvas.line([(60, top + 42), (60, top + 60)], DARK.muted)
        canvas.box(20, top + 62, 250, top + 98, fill=mix(DARK.surface, color, 0.6), radius=5)
        canvas.text(36, top + 80, tower, DARK.text, size=17, bold=True)
        canvas.text(262, top + 80, wide, DARK.muted, size=15)
    canvas.text(20, 376, "side by side, in each row of the prompt", DARK.muted, size=15)
    return canvas.image()


def native() -> Image.Image:
    """The way of a prompt through our own text encoder."""
    canvas = Canvas(SIDE, SIDE, DARK.background)
    canvas.text(20, 40, "Our own CLIP-L", DARK.text, size=20, bold=True)
    canvas.text(20, 66, "from the same checkpoint, with the same rows", DARK.muted, size=15)
    steps = ("Load Checkpoint: MODEL, VAE", "Load CLIP Encoder (native)", "Weighted Prompt", "KSampler")
    for row, name in enumerate(steps):
        top = 100 + row * 72
        color = DARK.accent if "native" in name else DARK.muted
        if row:
            canvas.line([(50, top - 26), (50, top - 4)], DARK.muted)
        canvas.box(20, top, 380, top + 44, fill=mix(DARK.surface, color, 0.35), radius=6)
        canvas.text(36, top + 22, name, DARK.text, size=17)
    return canvas.image()


def framed(picture: Image.Image) -> Image.Image:
    """A picture, as large as it fits."""
    picture = ImageOps.contain(picture, (SIDE - 20, SIDE - 20), Image.Resampling.LANCZOS)
    return ImageOps.pad(picture, (SIDE, SIDE), color=DARK.background)


def of_help(name: str) -> Image.Image:
    """A picture of a help page."""
    return framed(help_pictures.PICTURES[name]())


def settings_of_a_picture() -> Image.Image:
    """Generation data as A1111 writes them, above what Read Generation Data makes of them."""
    settings = help_pictures.PICTURES["read-parameters"]()
    canvas = Canvas(settings.width, settings.height + 108, DARK.background)
    canvas.text(14, 16, "Generation data of A1111", DARK.text, size=15, bold=True)
    canvas.lines(14, 38, [f"{line:.46}" for line in help_pictures.INFOTEXT.splitlines()], DARK.muted, step=17, size=12)
    canvas.text(14, 94, "Read Generation Data", DARK.text, size=15, bold=True)
    canvas.paste(settings, 0, 108)
    return framed(canvas.image())


def text(prompt: str, way: Way = SOME["comfy"]) -> Text:
    """A prompt, as the U-Net reads it."""
    return painter().text(prompt, way)


def faded(weight: float) -> str:
    """The prompt of the first templates."""
    return FADED.replace("*", f"{weight:g}")


STOCK = "CLIP Text Encode"
PICTURES: dict[str, Callable[[], Image.Image]] = {
    "00 Weighted CLIP": lambda: compared(
        [
            Side("without Weighted CLIP", faded(0.25), text(faded(0.25))),
            Side("with it, in every prompt box", faded(0.25), text(faded(0.25), BLEND)),
        ],
        (0, 5, 3),
    ),
    "01 A weight fades a word": lambda: compared(
        [Side(f"weight {weight:g}", faded(weight), text(faded(weight), BLEND)) for weight in (1, 0.25)], (4, 1, 0)
    ),
    "02 Weights compared": lambda: compared(
        [Side(name, faded(0.3), text(faded(0.3), way)) for name, way in SOME.items()], (4, 1, 3, 0, 5)
    ),
    "03 Fade a word out": lambda: compared(
        [
            Side(STOCK, faded(0.3), text(faded(0.3))),
            Side("Fade Words", faded(0.3), text(faded(0.3), BLEND)),
        ],
        (6, 7, 8),
    ),
    "04 Which word reads which": seen,
    "05 Hide a word": lambda: compared(
        [
            Side(STOCK, BOTH, of_two()),
            Side("Hide Words: blue square", BOTH, of_two({"hide": "blue square"})),
        ],
        (9, 10, 11),
    ),
    "06 Attention weights": lambda: compared(
        [
            Side(STOCK, NEGATIVE, text(NEGATIVE)),
            Side("Attention Weights", NEGATIVE, text(NEGATIVE, Way("", how="bias"))),
        ],
        (1, 2, 3),
    ),
    "07 A word for the first steps": lambda: compared(
        [
            Side("without red", "a square", text("a square")),
            Side(
                "red in the first 3 of 20 steps",
                "a red square, then a square",
                Timed(text("a red square"), text("a square"), 0.15),
            ),
        ],
        (0, 2, 4),
    ),
    "08 Place a phrase": lambda: compared(
        [
            Side("nothing placed", BOTH, of_two(DROP)),
            Side("Place Phrase", "a red circle: left half; a blue square: right half", of_two(DROP, PHRASES)),
        ],
        (9, 15, 0),
        has_halves=True,
    ),
    "09 Regions": lambda: compared(
        [
            Side("one prompt", BOTH, of_two(DROP)),
            Side("Regional Prompt: two in their halves", "a red circle | a blue square", of_two(DROP, REGIONS)),
        ],
        (13, 9, 2),
        has_halves=True,
    ),
    "10 Where words act": lambda: of_help("word-maps"),
    "11 Timed prompt": lambda: compared(
        [
            Side("in all 20 steps", ONE, text(ONE)),
            Side(
                "a red circle, from step 3 a green square",
                "[red circle:green square:0.15]",
                Timed(text(ONE), text("a green square"), 0.15),
            ),
        ],
        (2, 4, 3),
    ),
    "12 Long prompt with BREAK": lambda: framed(
        draw_tokens(view(help_pictures.read("a (red:1.4) circle BREAK a blue square")), width=help_pictures.HELP_WIDTH)
    ),
    "13 From an A1111 picture": settings_of_a_picture,
    "14 SDXL": two_texts,
    "15 Native encoder": native,
    "20 Sweep a weight": lambda: framed(
        help_pictures.swept_in_small_world("a red circle and a (blue square:0..1:5)", (2, 0, 4), 72)
    ),
    "21 Half a thing": lambda: compared(
        [
            Side(STOCK, HALF, text(HALF)),
            Side("Attention Weights, guidance", HALF, painter().guided(HALF, Way("", how=GUIDANCE))),
        ],
        (1, 2, 3),
    ),
    "23 Glide from text to text": lambda: compared(
        [
            Side("in all 20 steps", BOTH, text(BOTH)),
            Side(f"glides to {ONE}, step 6 to 18", f"[{BOTH}:{ONE}:0.3,0.9]", f"[{BOTH}:{ONE}:0.3,0.9]"),
        ],
        (15, 6, 4),
    ),
}
