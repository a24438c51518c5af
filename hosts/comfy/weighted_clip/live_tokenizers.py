"""The host's tokenizers without a checkpoint: live reading of prompts for T5, Qwen and others.

A tokenizer is created from its class and the vocabulary shipped with the host, once and on first use. Those with their
vocabulary in the checkpoint (Gemma, Mistral) are not available.

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

from ....encoder.models.config import TOWERS
from ....weighting.options import EncodeOptions
from ....weighting.reading.prompt_reader import ReadPrompt
from ..attention.text_rows import as_read
from ..clip.host_encoding import read_for_host, stock_note
from ..clip.host_texts import text_to_weigh, tokens_of_text
from ..clip.rows import check_embeddings, read_of_tokens
from ..families.families import BY_TOKENIZER, FAMILIES
from ..families.kinds import class_of
from ..types import Clip

logger = logging.getLogger(__name__)

OF_LOADERS: Mapping[str, str] = {one.loader: next(iter(one.tokenizers)) for one in FAMILIES if one.loader is not None}
"""Most likely tokenizer by name of the loader and its type setting."""

_lock = Lock()

Read = Callable[[str, EncodeOptions], ReadPrompt]
"""Function from text and options to the prompt as read."""


class _TokenizerAlone:
    """The part of the host's CLIP that reads text."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def tokenize(self, text: str, **options: Any) -> dict[str, Any]:
        return self.tokenizer.tokenize_with_weights(text, False, **options)


def as_weighed(clip: Clip, text: str, options: EncodeOptions) -> ReadPrompt:
    """Read a prompt whose words are weighted in the attention."""
    family = BY_TOKENIZER[class_of(clip.tokenizer)]
    host_text = text_to_weigh(clip, family, text, options)
    tokens = tokens_of_text(clip, host_text)
    check_embeddings(family, tokens)
    known = read_of_tokens(tokens, family.names_of(clip))
    return as_read(host_text.prompt, (), tuple(host_text.issues), options) if known is None else known[1]


def as_by_host(clip: Clip, text: str, options: EncodeOptions) -> ReadPrompt:
    """Read a prompt that the host encodes itself."""
    return read_for_host(clip, text, options).read


@dataclass(frozen=True)
class LiveReader:
    """Prompt reader that does without its text encoder."""

    name: str
    """Class of the host's tokenizer, with its module."""
    note: str
    """Note on how the host's own node treats weights there."""
    read: Read
    """Reads a prompt; raises ValueError for one that cannot be encoded, as the node does."""


def live_reader(name: str, read: Callable[[Clip, str, EncodeOptions], ReadPrompt]) -> LiveReader | None:
    """Prompt reader of a text encoder.

    Args:
        name: Class of its tokenizer, as reported by a run; or a loader and its type, one of `OF_LOADERS`.
        read: `as_weighed` or `as_by_host`.

    Returns:
        The reader; None if that encoder's rows are unknown, if it is not available without a checkpoint, or if there is
        a CLIP text tower too, so that the host would not encode alone.
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
    """A host's tokenizer by its class; None if it is not available."""
    if name not in BY_TOKENIZER:
        return None
    module, _, class_name = name.rpartition(".")
    try:
        clip = _TokenizerAlone(getattr(import_module(module), class_name)())
        as_weighed(clip, "a", EncodeOptions())  # pyright: ignore[reportArgumentType]
    except Exception as error:  # any exception of a host class created without its checkpoint
        logger.info("the token ruler shows tokens of %s after a run only: %s", class_name, error)
        return None
    return clip
