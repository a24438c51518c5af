"""Interface of the lab to a text encoder, wherever it comes from, and checks of what the page's components hold.

Only direct calls of the page's functions can send values other than a component's.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ...encoder.encoding import EncoderError
from ...encoder.image_file import image_of, open_image
from ...encoder.quoting import quote
from ...weighting.options import EncodeOptions
from ...weighting.pipeline import Check, EncodedPrompt
from ...weighting.towers import Reader


class LabError(EncoderError):
    """Raised with a message that the user of the page has to know or act on."""


def without_folder(error: Exception, path: Path) -> str:
    """Message of an error about a file, with the file's name alone: an uploaded one is in a temporary folder."""
    return str(error).replace(str(path), path.name)


class LabModel(Protocol):
    """A loaded model: one or more text encoders that read the same prompt."""

    @property
    def title(self) -> str:
        """Name of the encoder in a few words: a file's name, or the host's model."""
        ...

    @property
    def warning(self) -> str:
        """Warning for every screen and every exported file; empty for real weights."""
        ...

    def readers(self) -> Mapping[str, Reader]:
        """Prompt readers by name of the text tower: ``clip_l``, ``clip_g``, ``clip_h``."""
        ...

    def encode(self, text: str, options: EncodeOptions, check: Check | None = None) -> Mapping[str, EncodedPrompt]:
        """Encode a prompt with every tower.

        Args:
            text: The prompt.
            options: Options for reading and weighting it.
            check: Called before each call of an encoder. An exception it raises ends the work.

        Returns:
            Encoded prompts by tower, in the order of `readers`.

        Raises:
            EncoderError: If it is impossible now, or with these options.
            ValueError: If an option is out of range.
        """
        ...


ModelSource = Callable[[], LabModel]
"""Returns the current model; called for every request. Raises `EncoderError` if there is none."""


EXPLAINED = (EncoderError, ValueError)
"""Errors whose message is meant for the user."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_log = logging.getLogger(__name__)


def checked_text(name: str, value: object) -> str:
    """Check that a value is a text, and replace lone surrogates."""
    if not isinstance(value, str):
        raise LabError(f"{name} must be a text, got {quote(value)}")
    if _SURROGATE.search(value):
        raise LabError("The text holds half of a character (a lone surrogate): delete it and type it again.")
    return value


def checked_number(name: str, value: object, minimum: float = -math.inf, maximum: float = math.inf) -> float:
    """Check that a value is a number, within a range if there is one."""
    span = "" if minimum == -math.inf else f", {minimum:g} to {maximum:g}"
    if not _is_number(value) or not minimum <= value <= maximum:
        raise LabError(f"{name} must be a number{span}; {_got(value)}")
    return value


def whole_number(name: str, value: object, first: int, last: int) -> int:
    """Check that a value is a whole number in a range, both ends included.

    >>> whole_number("row", 3.0, 1, 8)
    3
    """
    if not _is_number(value) or not first <= value <= last or value != int(value):
        raise LabError(f"{name} must be a whole number, {first} to {last}; {_got(value)}")
    return int(value)


def entry_number(name: str, value: object, count: int) -> int:
    """Check that a value is the number of an entry of a list, counted from 1; beyond the list it is the last.

    The list may have become shorter since the number was typed.

    >>> entry_number("Chunk", 3, 2)
    2
    """
    is_beyond = _is_number(value) and value > count and value % 1 == 0
    return count if is_beyond else whole_number(name, value, 1, count)


def _got(value: object) -> str:
    return "the box is empty" if value is None else f"got {quote(value, 40)}"


def _is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number; true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def explained(error: Exception) -> str:
    """Message for the page about an error; an unforeseen one is also written to the program's log."""
    if isinstance(error, EXPLAINED):
        return str(error)
    _log.exception("the lab could not do this")
    return f"That failed because of the program or the device: {type(error).__name__}: {error}"


SHOWN_SIDE = 384
"""Approximate length of the longer side of a decoded image on the page, in pixels."""


def opened_upload(path: Path) -> Image.Image:
    """Read an uploaded picture."""
    try:
        return open_image(path)
    except ValueError as error:
        raise LabError(without_folder(error, path)) from error


def uploaded_picture(upload: Any) -> Image.Image | None:
    """Picture that a component holds as a file, without gradio's preprocessing, which opens every format there is."""
    return None if upload is None else opened_upload(Path(upload["path"]))


def pixels_of(picture: Image.Image) -> Tensor:
    """``[3, h, w]``, 0 to 1, float32."""
    return torch.from_numpy(np.asarray(picture.convert("RGB"), dtype=np.float32) / 255).movedim(-1, 0)


def picture_of(pixels: Tensor) -> Image.Image:
    """Picture of ``[3, h, w]``, 0 to 1."""
    return image_of(pixels.clamp(0, 1).cpu())


def enlarged(pixels: Tensor) -> Image.Image:
    """The same picture; a small one has every pixel repeated."""
    image = picture_of(pixels)
    times = max(1, SHOWN_SIDE // max(image.size))
    return image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
