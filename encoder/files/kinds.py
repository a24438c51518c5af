"""Kinds of files by their first bytes, for messages about those that are named as something else."""

from __future__ import annotations

from ..quoting import quote

NUM_FIRST_BYTES = 512

_KINDS = {
    b"version https://git-lfs": "a pointer of Git LFS: get the file itself with git lfs pull",
    b"GGUF": "a GGUF file, whose weights are quantised: get the .safetensors version",
    b"\x93NUMPY": "an array of NumPy",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file, as of Keras: get the .safetensors version",
    b"\x89PNG\r\n\x1a\n": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"RIFF": "a WebP picture, or a sound",
    b"%PDF": "a PDF",
    b"\x1f\x8b": "a gzip file: unpack it with gzip -d",
    b"BZh": "a bzip2 file: unpack it with bzip2 -d",
    b"\xfd7zXZ\0": "an xz file: unpack it with xz -d",
    b"\x28\xb5\x2f\xfd": "a zstd file: unpack it with zstd -d",
    b"7z\xbc\xaf\x27\x1c": "a 7z file: unpack it",
    b"Rar!": "a RAR file: unpack it",
}
PICKLES = tuple(bytes([0x80, protocol]) for protocol in range(1, 6))
"""Beginnings of pickles."""
_ZIP = b"PK\x03\x04"
_PICKLE = "which is not read, because loading one can run code: get the .safetensors version"


def kind_of(start: bytes) -> str:
    """Say what a file is, with advice; empty if its first `NUM_FIRST_BYTES` do not tell.

    >>> kind_of(b"<!doctype html>")
    'a web page, as some downloads end: download it again'
    """
    if not start:
        return "an empty file: download it again"
    for begin, name in _KINDS.items():
        if start.startswith(begin):
            return name
    if start.startswith(_ZIP):
        is_pickle = b"data.pkl" in start or b"version" in start[:60]
        return f"a checkpoint pickled by PyTorch, {_PICKLE}" if is_pickle else "a zip file: unpack it"
    if start.startswith(PICKLES):
        return f"a pickle, {_PICKLE}"
    if not start.strip(b"\0"):
        return "a file of zeros, as a download that was broken off can leave: download it again"
    return _kind_of_text(start)


def _kind_of_text(start: bytes) -> str:
    try:
        text = start.decode("utf-8-sig").lstrip()
    except UnicodeDecodeError as error:
        if error.start < len(start) - 3:  # not a character that is cut off at the end
            return ""
        text = start[: error.start].decode("utf-8-sig").lstrip()
    if not text or any(char < " " and char not in "\t\n\r\f" for char in text):
        return ""
    if text.startswith("<"):
        return "a web page, as some downloads end: download it again"
    if text.startswith(("{", "[")):
        return f"JSON and no more, as some downloads end: {quote(text, 60)}"
    return f"a text, {quote(text, 60)}"
