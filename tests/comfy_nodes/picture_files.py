"""Pictures with generation data where programs put it; EXIF, XMP and hidden bits are made here, not by a library."""

from __future__ import annotations

import gzip
import io
import struct
from typing import Any

import numpy as np
from PIL import Image, PngImagePlugin

EXIF, USER_COMMENT, DESCRIPTION, MODEL, WINDOWS_COMMENT = 0x8769, 0x9286, 0x010E, 0x0110, 0x9C9C
ASCII, BYTE, SHORT, LONG, UNDEFINED = 2, 1, 3, 4, 7


def exif_block(
    comment: bytes | None = None, *, order: str = ">", first: dict[int, tuple[int, bytes]] | None = None
) -> bytes:
    """EXIF data with a user comment, and entries ``{tag: (type, bytes)}`` of the first directory.

    Args:
        comment: The whole value of the user comment, with its mark.
        order: ``>`` puts the larger byte first, ``<`` the smaller.
        first: Entries of the first directory.
    """

    def directory(entries: dict[int, tuple[int, bytes]], start: int) -> bytes:
        head, data = struct.pack(f"{order}H", len(entries)), b""
        place = start + 2 + 12 * len(entries) + 4
        for tag, (kind, value) in sorted(entries.items()):
            count = len(value) // {SHORT: 2, LONG: 4}.get(kind, 1)
            field = value.ljust(4, b"\0") if len(value) <= 4 else struct.pack(f"{order}I", place + len(data))
            head += struct.pack(f"{order}HHI", tag, kind, count) + field
            data += value if len(value) > 4 else b""
        return head + b"\0\0\0\0" + data

    entries = dict(first or {})
    inner = {} if comment is None else {USER_COMMENT: (UNDEFINED, comment)}
    if inner:
        entries[EXIF] = (LONG, b"\0\0\0\0")
        entries[EXIF] = (LONG, struct.pack(f"{order}I", 8 + len(directory(entries, 8))))
    block = directory(entries, 8)
    block += directory(inner, 8 + len(block)) if inner else b""
    return b"Exif\0\0" + (b"MM\0*" if order == ">" else b"II*\0") + struct.pack(f"{order}I", 8) + block


def saved(kind: str, pixels: np.ndarray | None = None, **options: Any) -> bytes:
    """Bytes of an image file of a format of Pillow's."""
    stream = io.BytesIO()
    image = Image.fromarray(np.zeros((8, 6, 3), np.uint8) if pixels is None else pixels)
    image.save(stream, kind, **options)
    return stream.getvalue()


def png(pixels: np.ndarray | None = None, *, is_compressed: bool = False, **texts: str) -> bytes:
    """A PNG with texts; an underscore in a name stands for itself, two for a space."""
    info = PngImagePlugin.PngInfo()
    for name, text in texts.items():
        info.add_itxt(name.replace("__", " "), text, zip=is_compressed)
    return saved("PNG", pixels, pnginfo=info)


def xmp(**values: str) -> str:
    """An XMP packet as Draw Things writes it."""
    items = ""
    for name, value in values.items():
        tag = name.replace("_", ":")
        items += f'<{tag}><rdf:Alt><rdf:li xml:lang="x-default">{value}</rdf:li></rdf:Alt></{tag}>'
    return (
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF><rdf:Description rdf:about="">'
        f"{items}</rdf:Description></rdf:RDF></x:xmpmeta>"
    )


def hidden_bits(text: str | bytes, channels: str, *, is_compressed: bool, length: int | None = None) -> str:
    """Bits of a text as the WebUI hides it: a mark, the length in bits, and the text."""
    data = text.encode() if isinstance(text, str) else text
    data = gzip.compress(data) if is_compressed and isinstance(text, str) else data
    mark = f"stealth_{'png' if channels == 'A' else 'rgb'}{'comp' if is_compressed else 'info'}".encode()
    size = struct.pack(">I", 8 * len(data) if length is None else length)
    return "".join(f"{byte:08b}" for byte in mark + size + data)


def with_hidden_bits(bits: str, channels: str, size: tuple[int, int] = (64, 48)) -> np.ndarray:
    """Noise of ``size`` with bits in its channels, column by column; with alpha if they are in it."""
    width, height = size
    pixels = np.random.default_rng(1).integers(0, 256, (height, width, 4 if channels == "A" else 3), np.uint8)
    numbers = [3] if channels == "A" else [0, 1, 2]
    if channels == "A":
        pixels[..., 3] = 255
    places = [(y, x, number) for x in range(width) for y in range(height) for number in numbers]
    for place, bit in zip(places, bits, strict=False):
        pixels[place] = (pixels[place] & 0xFE) | int(bit)
    return pixels
