"""Generation data in image files: PNG texts, EXIF, XMP and comments, and bits of pixels.

What is found in a file is a text, for `read_infotext`: one as A1111 writes it, or JSON of another program.

Source: behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06); EXIF 2.3; XMP part 1.
"""

from __future__ import annotations

import html
import json
import re
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ....encoder.image_file import SUFFIXES, open_image
from ....weighting.infotext import MAX_CHARACTERS, Infotext, read_infotext
from ....weighting.text.prompt import shortened
from ..contract import host
from ..titles import READ_GENERATION_DATA
from .comments import text_of_comment
from .stealth import read_stealth_text

if TYPE_CHECKING:
    from PIL import Image

_EXIF = 0x8769  # tags of EXIF 2.3
_USER_COMMENT, _DESCRIPTION, _MODEL, _WINDOWS_COMMENT = 0x9286, 0x010E, 0x0110, 0x9C9C
_JSON_TEXTS = ("invokeai_metadata", "sd-metadata", "generation_data", "prompt", "Comment")
"""Names of PNG texts that hold JSON: InvokeAI's, Tensor.Art's, ComfyUI's and Fooocus's."""
_MAX_TEXTS = 20
"""Maximum number of other texts of a PNG, and of an XMP packet, that are tried."""
_MAX_TOTAL = 4 * MAX_CHARACTERS
"""Maximum length of all texts that are tried."""
_XMP_VALUE = re.compile(
    r"<(?:exif:UserComment|dc:description)\b[^<>]*>(?:\s*<rdf:(?:Alt|Seq|Bag)>\s*<rdf:li\b[^<>]*>)?([^<]*)<"
)


def list_images() -> list[str]:
    """Names of the images in the host's input folder."""
    folder = Path(host("folder_paths").get_input_directory())
    return sorted(file.name for file in folder.glob("*") if file.suffix.lower() in SUFFIXES and file.is_file())


def image_path(name: str) -> Path:
    """Path of one of the images; an error for any other name."""
    if name not in list_images():
        raise ValueError(
            f"{READ_GENERATION_DATA}: give text, or an image of ComfyUI's input folder; there is no “{name}” in it"
        )
    return Path(host("folder_paths").get_input_directory(), name)


def read_image_data(path: Path) -> Infotext:
    """Generation data of an image file, read by `read_image_text`, with sentences on what else the file holds."""
    text, notes = read_image_text(path)
    return read_infotext(text).with_problems(*notes)


def read_image_text(path: Path) -> tuple[str, list[str]]:
    """Find the text of an image file that is its generation data, and sentences on other data in it.

    Returns:
        The first text with settings in it, in the WebUI's order of places; else the first of a known writer, or of the
        places where the WebUI looks; and the sentences.

    Raises:
        ValueError: If it is no image, or there is none in it, as in pictures that a chat program or a site sent on.
    """
    image = open_image(path)
    chosen: tuple[str, Infotext] | None = None
    candidates: list[str] = []
    damaged: list[Infotext] = []
    notes: dict[str, None] = dict.fromkeys(_too_long(image))
    num_characters = 0
    for is_webuis, text in _texts(image):
        num_characters += min(len(text), MAX_CHARACTERS)
        if num_characters > _MAX_TOTAL:
            notes["Not all of its texts are read, as they are too long together."] = None
            break
        data = read_infotext(text)
        if data.settings and chosen is None:
            chosen = text, data
        elif data.settings and chosen and not _is_same(data, chosen[1]):
            notes[f"The file also has data of {data.writer or 'the WebUI'}, of another picture: not read."] = None
        elif not data.settings and (data.writer or (is_webuis and text.strip())):
            candidates.append(text)
            if data.writer and not data.prompt:
                damaged.append(data)
    if chosen:
        notes |= dict.fromkeys(note for data in damaged if data.writer != chosen[1].writer for note in data.problems)
        return chosen[0], list(notes)
    if stealth := read_stealth_text(image):
        return stealth, list(notes)
    if not candidates:
        raise ValueError(
            f"{READ_GENERATION_DATA}: “{path.name}” holds no generation data{_software(image)}: a picture as A1111 or "
            f"Forge saved it does, copies from chats and sites often do not{''.join(f'. {note}' for note in notes)}"
        )
    return candidates[0], list(notes)


def _is_same(data: Infotext, other: Infotext) -> bool:
    """Whether two texts of a file say the same of one picture."""
    is_one = data.writer == other.writer or data.prompt.split() == other.prompt.split()
    return is_one and data.settings.get("Seed") == other.settings.get("Seed")


def _too_long(image: Image.Image) -> Iterator[str]:
    """A sentence for each text that is too long to be read."""
    for name, text in image.info.items():
        if isinstance(text, str) and len(text) > MAX_CHARACTERS and name != "parameters":
            named = shortened(str(name), 40)
            yield f"Its text “{named}” has {len(text):,} characters, over {MAX_CHARACTERS:,}: not read."


def _software(image: Image.Image) -> str:
    """The program that an image names as its writer, for a message."""
    software = image.info.get("Software")
    return f"; it was written by “{shortened(software, 40)}”" if isinstance(software, str) else ""


def _texts(image: Image.Image) -> Iterator[tuple[bool, str]]:
    """Texts of an image, and whether the WebUI takes them for generation data whatever they are."""
    texts = {name: _png_text(text) for name, text in image.info.items() if isinstance(text, str)}
    parameters = texts.get("parameters", "")  # a long one is named, not left out
    texts = {name: text for name, text in texts.items() if len(text) <= MAX_CHARACTERS}
    if texts.get("Software") == "NovelAI":
        names = ("Software", "Description", "Comment")
        sides = {"width": image.width, "height": image.height}
        yield False, json.dumps({name: texts[name] for name in names if name in texts} | sides)
    yield from _exif_texts(image)
    yield True, parameters
    comment = image.info.get("comment")
    if isinstance(comment, (bytes, str)) and len(comment) <= 4 * MAX_CHARACTERS:
        yield False, text_of_comment(comment)
    if "Dream" in texts and _JSON_TEXTS[0] not in texts:
        yield False, json.dumps({"Dream": texts["Dream"]})
    # Easy Diffusion has a text for each setting
    if {"negative_prompt", "Negative Prompt"} & texts.keys() and sum(map(len, texts.values())) <= MAX_CHARACTERS:
        yield False, json.dumps({name: text for name, text in texts.items() if name != "parameters"})
    for name in _JSON_TEXTS:
        yield False, texts.get(name, "")
    yield from ((False, text) for text in islice(texts.values(), _MAX_TEXTS))
    for name in ("xmp", "XML:com.adobe.xmp"):
        packet = image.info.get(name)
        yield from ((False, text) for text in _xmp_texts(packet))


def _png_text(text: str) -> str:
    """Text of a PNG; one that is Latin 1 by its kind, and was read so, is UTF-8 in files of some programs."""
    return text if type(text) is not str or text.isascii() else text_of_comment(text)


def _exif_texts(image: Image.Image) -> Iterator[tuple[bool, str]]:
    """Texts of EXIF data, and whether it is the user comment, where the WebUI looks."""
    tags = (_USER_COMMENT, _WINDOWS_COMMENT, _DESCRIPTION, _MODEL)  # of the first directory
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd counts
            exif = image.getexif()
            values = [exif.get_ifd(_EXIF).get(_USER_COMMENT), *map(exif.get, tags)]
    except Exception:  # Pillow raises errors of many kinds about broken EXIF data, without which a picture is shown
        return
    for number, value in enumerate(values):
        if isinstance(value, (bytes, str)) and len(value) <= 4 * MAX_CHARACTERS:
            # ComfyUI writes "prompt:" before its JSON
            yield number == 0, text_of_comment(value).removeprefix("prompt:")


def _xmp_texts(packet: object) -> Iterator[str]:
    """User comment and description of an XMP packet; it is searched, not parsed, so nothing in it is expanded."""
    if isinstance(packet, bytes):
        packet = packet[:MAX_CHARACTERS].decode("utf-8", "replace")
    if isinstance(packet, str):
        for match in islice(_XMP_VALUE.finditer(packet[:MAX_CHARACTERS]), _MAX_TEXTS):
            yield html.unescape(match[1])
