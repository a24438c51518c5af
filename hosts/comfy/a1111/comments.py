"""Texts of EXIF comments, whose encoding programs give in many ways, or not at all.

Source: EXIF 2.3, which has a mark of 8 bytes. Behind UNICODE, A1111 and piexif write UTF-16 with the larger byte first,
exiftool as the file has its numbers, Windows with the smaller first, others UTF-8; behind ASCII, many write UTF-8.
"""

from __future__ import annotations

import re

_UTF_16 = ("utf-16-be", "utf-16-le")
_ENCODINGS = {
    b"UNICODE\0": (*_UTF_16, "utf-8", "cp1252"),
    b"ASCII\0\0\0": ("utf-8", "cp1252", *_UTF_16),
    b"JIS\0\0\0\0\0": ("iso2022_jp", "cp932"),
    b"\0" * 8: ("utf-8", "cp1252", *_UTF_16),
    b"": ("utf-8", "cp1252", *_UTF_16),
}
"""Encodings by mark, the likeliest first."""
_WORDS = re.compile(r"steps|seed|negative prompt", re.IGNORECASE)


def text_of_comment(comment: bytes | str) -> str:
    r"""Decode a comment: in the first encoding that gives words of generation data, or else the first that is possible.

    Args:
        comment: Bytes; or text that Pillow read as Latin 1.

    >>> text_of_comment(b"UNICODE\0" + "a cat".encode("utf-16-be"))
    'a cat'
    >>> text_of_comment("Steps: 20".encode("utf-16-le"))
    'Steps: 20'
    """
    if isinstance(comment, str):
        try:
            comment = comment.encode("latin-1")
        except UnicodeEncodeError:
            return comment.strip("\0")
    mark = next(mark for mark in _ENCODINGS if comment[:8].upper().startswith(mark))
    data = comment[len(mark) :]
    possible = ""
    for encoding in _ENCODINGS[mark]:
        try:
            text = data.decode(encoding).strip("\0")
        except UnicodeDecodeError:
            continue
        if _WORDS.search(text):
            return text.removeprefix("\ufeff")
        possible = possible or text
    return possible or data.decode(_ENCODINGS[mark][0], "replace").strip("\0")
