"""The parts of the WebUI's objects that we use, by their names there. They are not checked at run time.

Methods that we replace on an object are declared as attributes. Attributes of some hosts only are accessed by
`getattr`.

Source: stable-diffusion-webui 1.10 and stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor


class Embedding(Protocol):
    """A textual inversion: ``Embedding`` in both."""

    vec: Tensor | dict[str, Tensor]


class EmbeddingDatabase(Protocol):
    """``EmbeddingDatabase`` in both."""

    word_embeddings: Mapping[str, Embedding]


class FixesOwner(Protocol):
    """Object with the positions of vectors in each chunk."""

    fixes: Sequence[Sequence[tuple[int, Any]]] | None


class TextEngine(Protocol):
    """A text encoder, in the form common to both."""

    chunk_length: int
    id_start: int
    id_end: int
    id_pad: int
    comma_token: int
    tokenize: Callable[[list[str]], list[list[int]]]
    encode_with_transformers: Callable[[Tensor], Tensor]
    process_texts: Callable[[Sequence[str]], Any]
    process_tokens: Callable[[Any, Any], Tensor]


class ForgeDatabase(EmbeddingDatabase, FixesOwner, Protocol):
    """Forge's ``EmbeddingDatabase``, which is both."""


class ForgeEngine(TextEngine, Protocol):
    """Forge's ``ClassicTextProcessingEngine``."""

    embedding_key: str
    embeddings: ForgeDatabase
    text_encoder: Any


class Hijack(FixesOwner, Protocol):
    """A1111's ``StableDiffusionModelHijack``."""

    embedding_db: EmbeddingDatabase


class A1111Engine(TextEngine, Protocol):
    """A1111's ``FrozenCLIPEmbedderWithCustomWordsBase``, around a text encoder of another library."""

    hijack: Hijack
    wrapped: object


class Generation(Protocol):
    """``StableDiffusionProcessing`` in both; ``comment`` and ``get_conds_with_caching`` since 1.5."""

    extra_generation_params: dict[str, Any]
    sd_model: Any
    sample: Callable[..., Any]
    get_conds_with_caching: Callable[..., Any]
    comment: Callable[[str], None]
    script_args: Sequence[Any]


class Processed(Protocol):
    """``Processed`` in both: the result of a generation."""

    extra_generation_params: dict[str, Any]


class Model(Protocol):
    """``sd_model`` in both; the names of its text encoders differ."""

    get_learned_conditioning: Callable[[Sequence[str]], Any]
