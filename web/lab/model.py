"""Interface of the lab to a text encoder, wherever it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from ...encoder.encoding import EncoderError
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
