"""Texts in the lowest bits of a picture's pixels, which survive sites that remove all other texts.

Source: behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06), modules/stealth_infotext.py, which reads
NovelAI's too.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from ....weighting.infotext import MAX_CHARACTERS

if TYPE_CHECKING:
    from PIL import Image

_MARKS = {"RGB": (b"stealth_rgbinfo", b"stealth_rgbcomp"), "A": (b"stealth_pnginfo", b"stealth_pngcomp")}
_MARK_BITS = 15 * 8
_LENGTH_BITS = 32
_MAX_BYTES = 4 * MAX_CHARACTERS
_GZIP = 16 + zlib.MAX_WBITS


def read_stealth_text(image: Image.Image) -> str:
    """Read the text that is hidden in a picture's bits; nothing if there is none.

    The bits of red, green and blue, or of alpha, run down the columns. A mark of 15 letters says which, and
    whether the text is compressed; then come its length in bits, 32 of them, and the text.

    Raises:
        ValueError: If the mark is there, but the text after it is cut off, too long or changed.
    """
    for channels, marks in _MARKS.items():
        if not set(channels) <= set(image.getbands()) or image.mode not in ("RGB", "RGBA"):
            continue
        if (mark := _bytes(image, channels, 0, _MARK_BITS)) in marks:
            return _read(image, channels, is_compressed=mark == marks[1])
    return ""


def _read(image: Image.Image, channels: str, *, is_compressed: bool) -> str:
    start = _MARK_BITS + _LENGTH_BITS
    size = int.from_bytes(_bytes(image, channels, _MARK_BITS, start), "big")
    room = max(0, image.width * image.height * len(channels) - start)
    advice = "it was cut, or changed by an editor or a site"
    if size > room:
        raise ValueError(f"The picture's hidden text should have {size:,} bits, and there are {room:,}: {advice}")
    if size > 8 * _MAX_BYTES:
        raise ValueError(f"The picture's hidden text has {size // 8:,} bytes; at most {_MAX_BYTES:,} are read")
    data = _bytes(image, channels, start, start + size)
    if is_compressed:
        unpacker = zlib.decompressobj(_GZIP)
        try:
            data = unpacker.decompress(data, _MAX_BYTES)
        except zlib.error:
            raise ValueError(f"The picture's hidden text cannot be decompressed: {advice}") from None
        if unpacker.unconsumed_tail:
            raise ValueError(f"The picture's hidden text has more than {_MAX_BYTES:,} bytes; no more are read")
        if not unpacker.eof:
            raise ValueError(f"The picture's hidden text ends early: {advice}")
    return data.decode("utf-8", "ignore")


def _bytes(image: Image.Image, channels: str, start: int, end: int) -> bytes:
    """Bytes of a stretch of the bits; only the columns of pixels that hold it are looked at."""
    a_column = image.height * len(channels)
    first, last = start // a_column, min(-(-end // a_column), image.width)
    if first >= last:
        return b""
    columns = image.crop((first, 0, last, image.height))
    pixels = np.stack(
        [np.asarray(columns.getchannel(channel)) for channel in channels], -1
    )  # [rows, columns, channels]
    bits = (pixels.swapaxes(0, 1) & 1).reshape(-1)[start - first * a_column : end - first * a_column]
    return np.packbits(bits).tobytes()
