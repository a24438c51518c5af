"""Colour emoji with their names in Unicode: a small folder of real pictures and captions that any machine can draw."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageFont

FONT = "NotoColorEmoji.ttf"
"""Font of Google's Noto, under the SIL Open Font License; Debian has it as fonts-noto-color-emoji."""
SIDE = 144
"""Side of a picture, in pixels; the font's own are 136 wide and 128 high."""
_SIZE = 109
"""The one size that the font has."""


def write_emoji(folder: Path) -> int:
    """Draw every emoji that is one character with a name, on white, each with its name in a ``.txt`` next to it.

    Args:
        folder: Made here.

    Returns:
        Their number. The test is skipped if the font is not installed.
    """
    try:
        font = ImageFont.truetype(FONT, _SIZE)
    except OSError:
        pytest.skip(f"draws with {FONT}, which is not installed; Debian has it as fonts-noto-color-emoji")
    folder.mkdir()
    missing, blank = _picture("\U0003fff0", font), Image.new("RGB", (SIDE, SIDE), "white")
    count = 0
    for code in range(0xA0, 0x20000):
        name = unicodedata.name(chr(code), "")
        if not name or unicodedata.category(chr(code)) != "So":
            continue
        picture = _picture(chr(code), font)
        if picture not in (missing, blank):
            picture.save(folder / f"{code:05x}.png")
            (folder / f"{code:05x}.txt").write_text(name.lower(), encoding="utf-8")
            count += 1
    return count


def _picture(character: str, font: ImageFont.FreeTypeFont) -> Image.Image:
    picture = Image.new("RGB", (SIDE, SIDE), "white")
    ImageDraw.Draw(picture).text((4, 8), character, font=font, embedded_color=True)
    return picture
