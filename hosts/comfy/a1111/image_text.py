"""Generation data in image files, where A1111 and Forge save it: a PNG's text “parameters”, or EXIF's user comment."""

from __future__ import annotations

from pathlib import Path

from ....encoder.image_file import SUFFIXES, open_image
from ..contract import host

_EXIF, _USER_COMMENT = 0x8769, 0x9286  # tags of EXIF 2.3
_ENCODINGS = {b"UNICODE\0": "utf-16-be", b"ASCII\0\0\0": "ascii"}


def list_images() -> list[str]:
    """Names of the images in the host's input folder."""
    folder = Path(host("folder_paths").get_input_directory())
    return sorted(file.name for file in folder.glob("*") if file.suffix.lower() in SUFFIXES and file.is_file())


def image_path(name: str) -> Path:
    """Path of one of the images; an error for any other name."""
    if name not in list_images():
        raise ValueError(
            f"Read A1111 Parameters: give text, or an image of ComfyUI's input folder; there is no “{name}” in it"
        )
    return Path(host("folder_paths").get_input_directory(), name)


def read_image_text(path: Path) -> str:
    """Read the generation data of an image file.

    Raises:
        ValueError: If it is no image, or there is none in it, as in pictures that a chat program or a site sent on.
    """
    image = open_image(path)
    text = image.info.get("parameters")
    if not isinstance(text, str):
        comment = image.getexif().get_ifd(_EXIF).get(_USER_COMMENT, b"")
        encoding = _ENCODINGS.get(bytes(comment[:8])) if isinstance(comment, bytes) else None
        text = comment[8:].decode(encoding, "replace") if encoding else ""
    if not text.strip():
        raise ValueError(
            f"Read A1111 Parameters: “{path.name}” holds no generation data: a picture as A1111 or Forge saved it "
            f"does, copies from chats and sites often do not"
        )
    return text
