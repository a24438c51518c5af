"""The host's tokenizers without a checkpoint: what a prompt becomes in T5, Qwen and others while it is typed.

A tokenizer is made by its class alone, from the vocabulary that the host ships, once and when it is first asked for.
Those whose vocabulary stands in the checkpoint (Gemma, Mistral) cannot be had so.

Source: behaviour of ComfyUI 0.29.0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from threading import Lock
from typing import Any

from ...encoder.config import TOWERS
from ...weighting.encode import EncodeOptions, ReadPrompt
from .by_host import read_for_host, stock_note
from .text_rows import TEXT_FAMILIES, class_of, read_rows
from .types import Clip

logger = logging.getLogger(__name__)

OF_LOADERS: Mapping[str, str] = {
    "DualCLIPLoader flux": "comfy.text_encoders.flux.FluxTokenizer",
    "CLIPLoader chroma": "comfy.text_encoders.pixart_t5.PixArtTokenizer",
    "CLIPLoader qwen_image": "comfy.text_encoders.qwen_image.QwenImageTokenizer",
    "CLIPLoader krea2": "comfy.text_encoders.krea2.Krea2Tokenizer",
}
"""The tokenizer that a loader most likely gives, by its name and the type that it is set to. Which one it is stands in
the file; so types that fit several models, such as ``lumina2``, are not here."""

_lock = Lock()

Read = Callable[[str, EncodeOptions], ReadPrompt]
"""From text and options to what is read."""


class _TokenizerAlone:
    """The part of the host's CLIP that reads text."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def tokenize(self, text: str, **options: Any) -> dict[str, Any]:
        return self.tokenizer.tokenize_with_weights(text, False, **options)


def as_weighed(clip: Clip, text: str, options: EncodeOptions) -> ReadPrompt:
    """A prompt whose words are weighed in the attention."""
    return read_rows(clip, TEXT_FAMILIES[class_of(clip.tokenizer)], text, options).read


def as_by_host(clip: Clip, text: str, options: EncodeOptions) -> ReadPrompt:
    """A prompt that the host encodes itself."""
    return read_for_host(clip, text, options).read


@dataclass(frozen=True)
class LiveReader:
    """What reads prompts as a text encoder does, without the encoder."""

    name: str
    """The class of the host's tokenizer, with its module."""
    note: str
    """What the host's own node does with weights there, in words."""
    read: Read
    """Reads a prompt; as the node does, it raises ValueError for what cannot be encoded."""


def live_reader(name: str, read: Callable[[Clip, str, EncodeOptions], ReadPrompt]) -> LiveReader | None:
    """What reads prompts as a text encoder does.

    Args:
        name: The class of its tokenizer, as a run has told it; or a loader and its type, one of `OF_LOADERS`.
        read: `as_weighed` or `as_by_host`.

    Returns:
        The reader; None if there is no table of that encoder's rows, if it cannot be had without a checkpoint, or if
        the host would not encode alone, as there is a CLIP text tower beside it.
    """
    guess = OF_LOADERS.get(name)
    with _lock:
        clip = _tokenizer_alone(guess or name)
    if clip is None or (guess and read is as_by_host and set(vars(clip.tokenizer)) & set(TOWERS)):
        return None

    def locked(text: str, options: EncodeOptions) -> ReadPrompt:
        with _lock:
            return read(clip, text, options)

    return LiveReader(guess or name, stock_note(clip), locked)


@cache
def _tokenizer_alone(name: str) -> Any:
    """A host's tokenizer by its class; None if it is none that can be had."""
    if name not in TEXT_FAMILIES:
        return None
    module, _, class_name = name.rpartition(".")
    try:
        clip = _TokenizerAlone(getattr(import_module(module), class_name)())
        as_weighed(clip, "a", EncodeOptions())  # pyright: ignore[reportArgumentType]
    except Exception as error:  # whatever a class of the host raises that is made without its checkpoint
        logger.info("the token ruler shows tokens of %s after a run only: %s", class_name, error)
        return None
    return clip
