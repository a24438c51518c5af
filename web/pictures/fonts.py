"""Fonts of the machine a picture is drawn on, and fallbacks for characters they lack.

No font is shipped. The first available one of a short list of well-known fonts is used by its file name, which Pillow
finds in the system's font folders on Linux, macOS and Windows; without any, Pillow's built-in font. A character that it
lacks is drawn with the first fallback font that has it, or else as its code point, such as U+732B, small.

To see Chinese, Japanese and Korean characters as themselves, install any font of `FALLBACK_FONTS`, for example with
``apt install fonts-noto-cjk`` or ``fonts-wqy-microhei``; Windows and macOS include one. Colour emoji fonts that hold
bitmaps only (Noto Color Emoji, Apple Color Emoji) cannot be used; Symbola or the monochrome Noto Emoji can.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from PIL import Image, ImageDraw, ImageFont

REGULAR_FONTS = (
    "DejaVuSans.ttf", "NotoSans-Regular.ttf", "segoeui.ttf", "HelveticaNeue.ttc", "Helvetica.ttc", "Arial.ttf",
    "arial.ttf", "LiberationSans-Regular.ttf", "Ubuntu-R.ttf", "Roboto-Regular.ttf", "FreeSans.ttf", "Vera.ttf",
)  # fmt: skip
"""Fonts for ordinary text, in order of preference."""
BOLD_FONTS = (
    "DejaVuSans-Bold.ttf", "NotoSans-Bold.ttf", "segoeuib.ttf", "Arial Bold.ttf", "arialbd.ttf",
    "LiberationSans-Bold.ttf", "Ubuntu-B.ttf", "Roboto-Bold.ttf", "FreeSansBold.ttf", "VeraBd.ttf",
)  # fmt: skip
"""Fonts for headings; without any, these are regular."""
FALLBACK_FONTS = (
    "NotoSansCJK-Regular.ttc", "NotoSansCJKsc-Regular.otf", "NotoSansSC-Regular.ttf", "NotoSansJP-Regular.ttf",
    "NotoSansKR-Regular.ttf", "SourceHanSans-Regular.ttc", "wqy-microhei.ttc", "wqy-zenhei.ttc",
    "DroidSansFallbackFull.ttf", "DroidSansFallback.ttf", "PingFang.ttc", "Hiragino Sans GB.ttc",
    "AppleSDGothicNeo.ttc", "YuGothM.ttc", "msyh.ttc", "meiryo.ttc", "malgun.ttf", "simsun.ttc", "Arial Unicode.ttf",
    "ARIALUNI.TTF", "Apple Symbols.ttf", "seguiemj.ttf", "seguisym.ttf", "NotoEmoji-Regular.ttf", "NotoEmoji[wght].ttf",
    "Symbola_hint.ttf", "Symbola.ttf", "NotoSansSymbols2-Regular.ttf", "NotoSans-Regular.ttf", "DejaVuSans.ttf",
    "unifont.ttf",
)  # fmt: skip
"""Fonts for characters that the ordinary font lacks, in search order."""

SPELLINGS = {
    "“": '"', "”": '"', "‘": "'", "’": "'", "…": "...", "–": "-", "—": "-", "−": "-", "×": "x", "→": "->",
    "·": "*", "ᵀ": "^T", "√": "sqrt ", "σ": "sigmoid", "Φ": "Phi", "ε": "eps",
}  # fmt: skip
"""Replacements for special characters in our own texts that a font lacks."""

CODE_POINT_SCALE = 0.62
"""Size of a code point that represents a character, in font sizes."""
MEASURED_SIZE = 16
"""Font size for checking whether a text is invisible."""

BUILT_IN = ""
"""Marks the font built into Pillow instead of a file."""

_NO_CHARACTER = "\U0010ffff"  # assigned in no font: shows how a missing character looks
_PROBE_SIZE = 32


class FontRun(NamedTuple):
    """Characters drawn with one font."""

    file: str
    """File of the font, or `BUILT_IN`."""
    text: str
    scale: float
    """1.0, or less for a code point that represents a character."""


@lru_cache(maxsize=2)
def main_font(*, bold: bool = False) -> str:
    """File of the ordinary font on this machine."""
    return next(filter(_exists, (BOLD_FONTS if bold else ()) + REGULAR_FONTS), BUILT_IN)


@lru_cache(maxsize=8192)
def runs(text: str, *, bold: bool = False) -> tuple[FontRun, ...]:
    """Split any string, including lone surrogates and control characters, by the font that each character needs.

    Characters that are invisible by nature are left out, unless the text has no others: then they are drawn as code
    points.
    """
    main = main_font(bold=bold)
    result: list[FontRun] = []
    for character in text:
        run = _character_run(character, main, result[-1].file if result else main)
        if run and result and run.scale == result[-1].scale == 1.0 and run.file == result[-1].file:
            result[-1] = result[-1]._replace(text=result[-1].text + run.text)
        elif run:
            result.append(run)
    if text and not any(run_width(run, MEASURED_SIZE) for run in result):  # nothing would be visible
        return tuple(_code_point(character, main) for character in text)
    return tuple(result)


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Width of a text in pixels at a font size in pixels."""
    return sum(run_width(run, size) for run in runs(text, bold=bold))


@lru_cache(maxsize=16384)
def run_width(run: FontRun, size: float) -> float:
    """Width of one run in pixels at a font size in pixels."""
    # measured at twice the size, as it is drawn
    font = _load(run.file, round(size * run.scale * 2))
    if isinstance(font, ImageFont.FreeTypeFont):
        width = font.getlength(run.text) / 2
    else:
        width = font.getlength(run.text) * _bitmap_zoom(font, size * run.scale)
    return width if run.scale == 1.0 else width + size * 0.16  # some space between code points


def draw_run(
    image: Image.Image, run: FontRun, left: float, baseline: float, size: float, fill: tuple[int, int, int] | int
) -> None:
    """Draw one run on an image of mode RGB or L, in the image's own pixels."""
    font = _load(run.file, round(size * run.scale))
    left += 0.0 if run.scale == 1.0 else size * 0.08
    if isinstance(font, ImageFont.FreeTypeFont):
        ImageDraw.Draw(image).text((left, baseline), run.text, font=font, fill=fill, anchor="ls")
        return
    zoom = _bitmap_zoom(font, size * run.scale)
    width, height = (max(1, round(value)) for value in font.getbbox(run.text)[2:])
    stencil = Image.new("L", (width, height), 0)
    ImageDraw.Draw(stencil).text((0, 0), run.text, font=font, fill=255)
    stencil = stencil.resize((max(1, round(width * zoom)), max(1, round(height * zoom))), Image.Resampling.BICUBIC)
    image.paste(fill, (round(left), round(baseline - 0.82 * stencil.height)), stencil)


def _character_run(character: str, main: str, previous: str) -> FontRun | None:
    category = unicodedata.category(character)
    if category in ("Mn", "Me") and _has_glyph(previous, character):
        return FontRun(previous, character, 1.0)  # an accent belongs to its letter
    file = _font_of(character, main)
    if file is not None:
        return FontRun(file, character, 1.0)
    if category == "Cf" or "\ufe00" <= character <= "\ufe0f" or "\u2000" <= character <= "\u200b":
        return None  # joiners, variation selectors and special blanks
    if character in SPELLINGS:
        return FontRun(main, SPELLINGS[character], 1.0)
    return _code_point(character, main)


def _code_point(character: str, main: str) -> FontRun:
    return FontRun(main, f"U+{ord(character):04X}", CODE_POINT_SCALE)


@lru_cache(maxsize=8192)
def _font_of(character: str, main: str) -> str | None:
    """First font that has a character."""
    if character == " ":
        return main
    if unicodedata.category(character) in ("Cc", "Cs"):
        return None
    return next((file for file in chain([main], filter(_exists, FALLBACK_FONTS)) if _has_glyph(file, character)), None)


def _has_glyph(file: str, character: str) -> bool:
    if not isinstance(_load(file, _PROBE_SIZE), ImageFont.FreeTypeFont):
        return " " <= character <= "~"
    return character.isspace() or _glyph(file, character) != _glyph(file, _NO_CHARACTER)


@lru_cache(maxsize=256)
def _glyph(file: str, character: str) -> tuple[tuple[int, int], bytes]:
    """Size and pixels of a character."""
    mask: Any = _load(file, _PROBE_SIZE).getmask(character, mode="L")  # a buffer, though not to the type checker
    return mask.size, bytes(mask)


@lru_cache(maxsize=256)
def _exists(file: str) -> bool:
    try:
        ImageFont.truetype(file, _PROBE_SIZE)
    except (OSError, ImportError):  # missing, or a Pillow without FreeType
        return False
    return True


@lru_cache(maxsize=256)
def _load(file: str, size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    size = max(1, size)
    if file != BUILT_IN:
        return ImageFont.truetype(file, size)
    try:
        return ImageFont.load_default(size)
    except (TypeError, ImportError):  # Pillow before 10.1, or without FreeType: one bitmap font of one size
        return ImageFont.load_default()


def _bitmap_zoom(font: ImageFont.ImageFont, size: float) -> float:
    """Factor by which a bitmap font must be enlarged."""
    return size / font.getbbox("x")[3]
