"""Thumbnails of the templates: before and after by the small world, or a picture of a help page.

The others were made otherwise and stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from PIL import Image, ImageOps

from ...studio.world.model import Timed
from ...studio.world.painter import Drawable
from ...studio.world.questions import PHRASES, REGIONS, Way
from ...studio.world.unet import Text
from ...web.pictures.canvas import Canvas
from ...web.pictures.masks import draw_masks, mask_labels
from ...web.pictures.style import DARK
from ...weighting.guidance import GUIDANCE
from ...weighting.options import EncodeOptions
from ...weighting.plan import variant_mask, versions_of_first
from . import help_pictures
from .docs_pictures import TWO, painter
from .glides import drawn as glided
from .help_pictures import DROP, FADED, SOME, as_picture, of_two

SIDE, BAND = 400, 36
"""Size of a thumbnail and height of the names in it, in pixels."""
BLEND = SOME["masked_blend"]
HALF = "a red circle and (a blue square:0.5)"
ONE, BOTH, NEGATIVE = "a red circle", TWO.text(part=""), "a red circle (and a blue square:-1)"


def compared(sides: Mapping[str, Drawable | str], seeds: Sequence[int] = (4, 1)) -> Image.Image:
    """Two prompts beside each other, each with two seeds above its name; or four, each with the first seed.

    A prompt as it is written may glide.
    """
    canvas = Canvas(SIDE, SIDE, DARK.background)
    num_rows = len(sides) // 2
    first_seeds, height = seeds[: 3 - num_rows], SIDE / num_rows
    side = int((height - BAND) / len(first_seeds))
    for number, (name, text) in enumerate(sides.items()):
        middle, top = SIDE / 4 + number % 2 * SIDE / 2, number // 2 * height
        drawn = (
            glided(painter(), text, SOME["comfy"], first_seeds)
            if isinstance(text, str)
            else painter().pictures([text], [first_seeds])[0]
        )
        for row, picture in enumerate(drawn.split(1)):
            canvas.paste(as_picture(picture, side), int(middle - side / 2), int(top + row * side))
        canvas.text(middle, top + height - BAND / 2, name, DARK.text, size=18, align="center")
    return canvas.image()


def seen() -> Image.Image:
    """Which word of two phrases sees which: in the stock prompt, and with the phrases kept apart."""
    prompt, phrases = "red circle, blue square", "red circle\nblue square"
    [encoded] = painter().encoders.prepare([prompt], EncodeOptions(bind=phrases)).run()
    read, variants = encoded.prompts["clip_l"].read, encoded.prompts["clip_l"].variants()
    stock, *_, last = (variant_mask(version, read.layout.length)[0] for version in versions_of_first(variants))
    chunk = read.chunks[0]
    picture = draw_masks(
        [("stock", stock), ("kept apart", last)],
        mask_labels(chunk, prompt),
        visible=1 + chunk.num_content,
    )
    return framed(picture)


def framed(picture: Image.Image) -> Image.Image:
    """A picture, as large as it fits."""
    picture = ImageOps.contain(picture, (SIDE - 20, SIDE - 20), Image.Resampling.LANCZOS)
    return ImageOps.pad(picture, (SIDE, SIDE), color=DARK.background)


def of_help(name: str) -> Image.Image:
    """A picture of a help page."""
    return framed(help_pictures.PICTURES[name]())


def text(prompt: str, way: Way = SOME["comfy"]) -> Text:
    """A prompt, as the U-Net reads it."""
    return painter().text(prompt, way)


def faded(weight: float) -> str:
    """The prompt of the first templates."""
    return FADED.replace("*", f"{weight:g}")


PICTURES: dict[str, Callable[[], Image.Image]] = {
    "00 Weighted CLIP": lambda: compared(
        {f"stock prompt, {weight:g}": text(faded(weight), BLEND) for weight in (1, 0.25)}
    ),
    "01 A weight fades a word": lambda: compared(
        {f"blue square: {weight:g}": text(faded(weight), BLEND) for weight in (1, 0.25)}
    ),
    "02 Weights compared": lambda: compared({name: text(faded(0.3), way) for name, way in SOME.items()}),
    "03 Fade a word out": lambda: compared({"stock, 0.3": text(faded(0.3)), "fading, 0.3": text(faded(0.3), BLEND)}),
    "04 Keep colours apart": seen,
    "05 Hide a word": lambda: compared({"stock": of_two(), "square hidden": of_two({"hide": "blue square"})}),
    "06 Attention weights": lambda: compared(
        {"stock, -1": text(NEGATIVE), "attention, -1": text(NEGATIVE, Way("", how="bias"))}, (1, 2)
    ),
    "07 A word for the first steps": lambda: compared(
        {"a square": text("a square"), "red, 3 of 20 steps": Timed(text("a red square"), text("a square"), 0.15)},
        (0, 2),
    ),
    "08 Place a phrase": lambda: compared({"anywhere": of_two(DROP), "placed": of_two(DROP, PHRASES)}, (4, 0)),
    "09 Regions": lambda: compared({"one prompt": of_two(DROP), "two, in halves": of_two(DROP, REGIONS)}, (4, 0)),
    "10 Where words act": lambda: of_help("word-maps"),
    "11 Timed prompt": lambda: compared(
        {ONE: text(ONE), "later a square": Timed(text(ONE), text("a green square"), 0.15)}, (2, 4)
    ),
    "12 Long prompt with BREAK": lambda: compared(
        {"and": of_two(), "BREAK": text("a red circle BREAK a blue square", Way("", {"syntax": "a1111"}))}, (6, 5)
    ),
    "20 Sweep a weight": lambda: framed(
        help_pictures.swept_in_small_world("a red circle and a (blue square:0..1:5)", (2, 0, 4), 72)
    ),
    "21 Half a thing": lambda: compared(
        {"stock, 0.5": text(HALF), "guidance, 0.5": painter().guided(HALF, Way("", how=GUIDANCE))}, (1, 2)
    ),
    "23 Glide from text to text": lambda: compared(
        {"stays: all 20 steps": text(BOTH), "glides: steps 6 to 18": f"[{BOTH}:{ONE}:0.3,0.9]"}, (1, 2)
    ),
    "13 From an A1111 picture": lambda: of_help("read-parameters"),
}
