"""What the lab needs of a text encoder, wherever that comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from ...encoder.encoding import EncoderError
from ...weighting.encode import EncodedPrompt, EncodeOptions
from ...weighting.encoders import Check
from ...weighting.towers import Reader


class LabError(EncoderError):
    """Something the user of the page has to know or do; the message says it."""


class LabModel(Protocol):
    """One loaded model: a text encoder, or several that read the same prompt."""

    @property
    def title(self) -> str:
        """What encodes, in a few words: a file's name, or the host's model."""
        ...

    @property
    def warning(self) -> str:
        """What every screen and every exported file must say; empty for real weights."""
        ...

    def readers(self) -> Mapping[str, Reader]:
        """What reads prompts for each text tower, by name: ``clip_l``, ``clip_g``, ``clip_h``."""
        ...

    def encode(self, text: str, options: EncodeOptions, check: Check | None = None) -> Mapping[str, EncodedPrompt]:
        """Encode a prompt with every tower.

        Args:
            text: The prompt.
            options: How to read and weight it.
            check: Called before each call of an encoder; raises to end the work.

        Returns:
            By tower, in the order of `readers`.

        Raises:
            EncoderError: If it cannot be done now, or with these options.
            ValueError: If an option is out of range.
        """
        ...


ModelSource = Callable[[], LabModel]
"""Gives the model to use now; it is asked anew for every request. Raises `EncoderError` where there is none."""
