"""The text encoders of A1111, its relatives and Forge as encode functions.

Every pass is the host's own ``encode_with_transformers``, so clip skip, LoRA, precision and low-memory loading are the
host's too. Attention masks are applied by hooks on the attention layers, for that one pass.

The protocols name the parts of the host's objects that we use, as they are called there; they are not checked at run
time. Methods that we replace on an object are declared as attributes. Attributes of some hosts only are accessed by
`getattr`.

Source: docs/reference/hosts.md, "In the WebUI"; behaviour of stable-diffusion-webui 1.10 and
stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from itertools import groupby
from types import SimpleNamespace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from ...encoder.encoding import EncoderError, Encoding
from ...encoder.masks import causal_mask, check_mask
from ...weighting import script_settings
from ...weighting.options import EncodeOptions
from ...weighting.text.chunks import ChunkLayout
from ...weighting.text.embeddings import EmbeddingError, EmbeddingVector, SizedVectors, TokenId, plain_id
from ...weighting.towers import Reader
from ..host_tokenizer import HostTokenize


class Embedding(Protocol):
    """A textual inversion: ``Embedding`` in both."""

    vec: Tensor | dict[str, Tensor]
    vectors: int


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
    """``Processed`` in both: the result of a generation; ``extra_images`` in Forge."""

    extra_generation_params: dict[str, Any]
    extra_images: list[Any]
    infotext: Callable[..., str]


class HostModel(Protocol):
    """``sd_model`` in both; the names of its text encoders differ."""

    get_learned_conditioning: Callable[[Sequence[str]], Any]


METHODS = ("process_texts", "process_tokens")
"""Methods replaced on an engine for one generation."""
COMMA_SETTING = "comma_padding_backtrack"
ENGINE_CLASSES = (
    ("backend.text_processing.classic_engine", "ClassicTextProcessingEngine"),
    ("backend.text_processing.sd_engine", "ClipEngine"),  # Forge Neo since 2026
    ("modules.sd_hijack_clip", "FrozenCLIPEmbedderWithCustomWordsBase"),
)
"""Modules and names of the classes of text encoders: of Forge and its relatives, and of A1111."""
FORGE_NAMES = ("text_processing_engine", "text_processing_engine_l", "text_processing_engine_g")


class WebUIError(EncoderError):
    """Raised for anything impossible in this WebUI, or with this model; the message says what to do instead."""

    def __init__(self, message: str) -> None:
        """Set on the instance what the host's API answers with: it looks into ``vars(error)``."""
        super().__init__(message)
        self.status_code, self.detail = 422, message


class UnknownEncodersError(WebUIError):
    """Raised for a model with a text encoder that is no CLIP, or with none that is known."""


for _error in (WebUIError, UnknownEncodersError):
    _error.__name__ = "Weighted CLIP"  # which the host's page and API write before the message


def engines_of(model: HostModel) -> dict[str, Engine]:
    """CLIP text encoders of a loaded model, by tower (``clip_l``, ``clip_g``, ...), in the host's order.

    Raises `UnknownEncodersError` if none are known or there are others too, and `WebUIError` if another extension has
    replaced the methods that ours would replace.
    """
    owners: list[Any] = [getattr(model, name) for name in FORGE_NAMES if getattr(model, name, None) is not None]
    if not owners:
        embedders = getattr(getattr(model, "conditioner", None), "embedders", None)
        candidates = list(embedders) if embedders is not None else [getattr(model, "cond_stage_model", None)]
        owners = [owner for owner in candidates if hasattr(owner, "process_tokens")]
    other_engines = [
        name for name in vars(model) if name.startswith("text_processing_engine") and name not in FORGE_NAMES
    ]
    if other_engines and getattr(model, other_engines[0]) is not None:
        raise UnknownEncodersError(
            f"Weighted CLIP works with Stable Diffusion 1, 2 and XL. This model ({type(model).__name__}) also has "
            f"another kind of text encoder ({other_engines[0].removeprefix('text_processing_engine_')}): switch "
            "Weighted CLIP off for it."
        )
    if not owners:
        raise UnknownEncodersError(
            f"Weighted CLIP finds no CLIP text encoder it knows in this model ({type(model).__name__}): switch it off "
            "for this model."
        )
    engines: dict[str, Engine] = {}
    for owner in owners:
        refuse_replaced(owner, METHODS)
        engine = _forge_engine(owner) if hasattr(owner, "text_encoder") else _a1111_engine(owner)
        engines[engine.tower] = engine
    if len(engines) != len(owners):
        raise WebUIError(f"Weighted CLIP cannot tell the {len(owners)} text encoders of this model apart.")
    return engines


@dataclass(frozen=True, eq=False)
class Engine:
    """One text encoder of the host, usable as an encode function."""

    owner: TextEngine
    """The host's object."""
    tower: str
    """Its name: ``clip_l``, ``clip_g``, ... In A1111, Stable Diffusion 2's encoder is called ``clip_l``."""
    comma_backtrack: int
    """Maximum distance, in tokens, of a comma to cut at from the end of a chunk."""
    fixes_owner: FixesOwner
    """The host's object whose ``fixes`` give the positions of embedding vectors."""
    database: EmbeddingDatabase
    """The host's embeddings."""
    text_model: nn.Module | None
    """transformers' text model behind the engine, or None if it is another library's."""
    device: torch.device | str
    """Device on which the host's encoder expects token ids."""
    methods: ClassVar[Sequence[str]] = METHODS

    def reader(self) -> Reader:
        """Prompt reader for this tower."""
        owner = self.owner
        layout = ChunkLayout(owner.chunk_length + 2, owner.id_start, owner.id_end, owner.id_pad, owner.comma_token)
        return Reader(HostTokenize(weakref.ref(owner), _host_ids), layout, _LoadedEmbeddings(self.database, self.tower))

    def __call__(
        self, ids: Sequence[Sequence[TokenId]], mask: Tensor | None = None, *, is_causal: bool = True
    ) -> Encoding:
        """Encode chunks: an `EncodeFn`. Pooled vectors are the host's, or zeros ``[chunks, 1]`` if it has none."""
        tokens = torch.tensor([[plain_id(token) for token in chunk] for chunk in ids])
        # the host removes them during each pass
        self.fixes_owner.fixes = [list(_fixes(chunk)) for chunk in ids]
        with self._masked(mask, len(ids), tokens.shape[1], is_causal=is_causal):
            hidden = self.owner.encode_with_transformers(tokens.to(self.device))
        pooled = getattr(hidden, "pooled", None)
        return Encoding(hidden, hidden.new_zeros(len(ids), 1) if pooled is None else pooled)

    @contextmanager
    def _masked(self, mask: Tensor | None, batch: int, length: int, *, is_causal: bool) -> Iterator[None]:
        """Apply our mask in every attention layer for the duration of the context."""
        if mask is not None:
            mask = check_mask(mask, batch, length)
        if is_causal and (mask is None or bool(mask.all())):
            yield
            return
        if self.text_model is None:
            raise WebUIError(
                f"This WebUI runs the text encoder {self.tower} through open_clip, where Weighted CLIP cannot hide "
                "words or padding. Choose a scheme that hides nothing, such as comfy or a1111, and the padding "
                "attend; or use Forge."
            )
        visible = torch.ones(1, 1, length, dtype=torch.bool) if mask is None else mask
        if is_causal:
            visible = visible & causal_mask(length)
        is_asked = False

        def give_mask(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            nonlocal is_asked
            states: Tensor = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
            if "attention_mask" not in kwargs:
                raise WebUIError("Weighted CLIP does not know how this WebUI's CLIP takes masks: please report it.")
            hidden = ~visible.expand(batch, length, length).unsqueeze(1).to(states.device)
            bias = torch.zeros(hidden.shape, dtype=states.dtype, device=states.device)
            kwargs = {**kwargs, "attention_mask": bias.masked_fill(hidden, torch.finfo(states.dtype).min)}
            if "causal_attention_mask" in kwargs:
                kwargs["causal_attention_mask"] = None
            is_asked = True
            return args, kwargs

        with ExitStack() as hooks:
            for layer in self.text_model.get_submodule("encoder.layers").children():
                attention = layer.get_submodule("self_attn")
                hooks.enter_context(attention.register_forward_pre_hook(give_mask, with_kwargs=True))
            yield
        if not is_asked:
            raise WebUIError("This WebUI's CLIP was run without asking for Weighted CLIP's masks: please report it.")


def _forge_engine(owner: ForgeEngine) -> Engine:
    """Engine of Forge, which moves token ids itself."""
    return Engine(
        owner,
        owner.embedding_key,
        comma_backtrack(type(owner)),
        fixes_owner=owner.embeddings,
        database=owner.embeddings,
        text_model=_inner_text_model(owner.text_encoder.transformer),
        device="cpu",
    )


def _a1111_engine(owner: A1111Engine) -> Engine:
    """Engine of A1111 and its relatives."""
    from modules import devices  # pyright: ignore[reportMissingImports]

    if host_option("use_old_emphasis_implementation", default=False):
        raise WebUIError(
            "The setting “Use old emphasis implementation” leaves out what Weighted CLIP replaces: switch that "
            "setting off, or Weighted CLIP."
        )
    text_model = _inner_text_model(getattr(owner.wrapped, "transformer", None))
    if text_model is not None:
        token_embedding = text_model.get_submodule("embeddings.token_embedding")
    else:  # open_clip's
        token_embedding = getattr(getattr(owner.wrapped, "model", None), "token_embedding", None)
    if token_embedding is None:
        raise WebUIError(
            f"The text encoder {type(owner.wrapped).__name__} is not a CLIP that Weighted CLIP knows: switch it off "
            "for this model."
        )
    return Engine(
        owner,
        getattr(token_embedding, "textual_inversion_key", "clip_l"),
        comma_backtrack(type(owner)),
        fixes_owner=owner.hijack,
        database=owner.hijack.embedding_db,
        text_model=text_model,
        device=devices.device,
    )


def _host_ids(owner: weakref.ref[TextEngine], text: str) -> Sequence[int]:
    """The host's ids of a text; cached results do not keep the engine alive."""
    engine = owner()
    assert engine is not None
    return engine.tokenize([text])[0]


@dataclass(frozen=True)
class _LoadedEmbeddings:
    """The host's loaded embeddings."""

    database: EmbeddingDatabase
    tower: str

    def names(self) -> tuple[str, ...]:
        """Names of embeddings that fit the model, and of those that do not, so that a prompt with one says so."""
        skipped = getattr(self.database, "skipped_embeddings", {})
        return tuple(dict.fromkeys([*self.database.word_embeddings, *skipped]))

    def find(self, name: str) -> list[Tensor] | None:
        """Vectors of an embedding, ``[dim]`` each; one for another model is refused."""
        embedding = self.database.word_embeddings.get(name)
        if embedding is None:
            raise EmbeddingError(f"The embedding “{name}” is for another model.")
        vectors = embedding.vec
        if isinstance(vectors, dict):
            if self.tower not in vectors:
                raise EmbeddingError(
                    f"The embedding “{name}” is for another model: it has vectors for {' and '.join(vectors)}, this "
                    f"encoder is {self.tower}."
                )
            vectors = vectors[self.tower]
        return SizedVectors(vectors, int(embedding.vectors))


def _fixes(chunk: Sequence[TokenId]) -> Iterator[tuple[int, Any]]:
    """Runs of vectors in the host's form: the position before the run, and an object with their stack."""
    position = 0
    for _, run in groupby(chunk, key=lambda token: isinstance(token, EmbeddingVector)):
        tokens = list(run)
        vectors = [token.vector for token in tokens if isinstance(token, EmbeddingVector)]
        if vectors:
            yield position - 1, SimpleNamespace(vec=torch.stack(vectors))
        position += len(tokens)


def _inner_text_model(transformer: Any) -> nn.Module | None:
    """The module with embeddings, encoder and norm; newer transformers have it at the top."""
    return getattr(transformer, "text_model", None) or (transformer if hasattr(transformer, "encoder") else None)


def refuse_replaced(owner: object, methods: Sequence[str]) -> None:
    """Raise if another extension has replaced the methods of a text encoder that ours would replace.

    Our own replacements are allowed: the lab examines the engines while an image is being made.
    """
    for name in methods:
        home = next((cls for cls in type(owner).__mro__ if name in vars(cls)), None)
        if home is None:
            raise WebUIError(
                f"This WebUI's text encoder ({type(owner).__name__}) has no {name}: Weighted CLIP does not know it. "
                "Switch Weighted CLIP off."
            )
        function = vars(owner).get(name) or vars(home)[name]
        if getattr(function, "__module__", home.__module__) not in (home.__module__, f"{__package__}.conditioning"):
            raise WebUIError(
                f"Another extension ({function.__module__}) has replaced {name} of the text encoder, which Weighted "
                "CLIP would replace too: switch one of the two off."
            )


def comma_backtrack(engine: type | None) -> int:
    """Maximum distance, in tokens, of a comma at which a full chunk is cut.

    The host's setting if the class of its text encoder reads it, as in A1111 and Forge Neo; otherwise, or without a
    known class, 20, which is built into Forge although its page shows the setting.
    """
    methods = [method for parent in getattr(engine, "__mro__", ()) for method in vars(parent).values()]
    codes = [code for method in methods if (code := getattr(inspect.unwrap(method), "__code__", None)) is not None]
    reads = any(COMMA_SETTING in (*code.co_names, *code.co_consts) for code in codes)
    return int(host_option(COMMA_SETTING, default=20)) if reads else 20


def text_engine_class() -> type | None:
    """Class of the host's text encoders, before any model is loaded; None if it is unknown."""
    for module, name in ENGINE_CLASSES:
        with suppress(ImportError, AttributeError):
            return getattr(import_module(module), name)
    return None


def as_emphasized(options: EncodeOptions) -> EncodeOptions:
    """Apply the host's setting *Emphasis mode* to options: under ``None`` A1111's brackets are text."""
    return script_settings.as_emphasized(options, host_option("emphasis", default="Original"))


def unet_of(model: HostModel) -> nn.Module | None:
    """U-Net of a loaded model, Forge's or A1111's; None if it is unknown."""
    owner = getattr(getattr(getattr(model, "forge_objects", None), "unet", None), "model", None)
    owner = owner or getattr(model, "model", None)
    unet = getattr(owner, "diffusion_model", None)
    is_known = isinstance(unet, nn.Module) and any(name.endswith("attn2.to_v") for name, _ in unet.named_modules())
    return unet if is_known else None


class InterceptedModel:
    """A model whose texts another function encodes."""

    def __init__(self, model: HostModel, encode: Callable[[Sequence[str]], Any]) -> None:
        self._model, self.get_learned_conditioning = model, encode

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def is_ended() -> bool:
    """Whether the host's user has pressed Interrupt or Skip; the host's samplers then end at their next step."""
    from modules import shared  # pyright: ignore[reportMissingImports]

    state = getattr(shared, "state", None)
    return any(getattr(state, name, False) for name in ("interrupted", "skipped"))


def host_option(name: str, *, default: Any) -> Any:
    """A setting of the host, or the default if it does not exist."""
    from modules.shared import opts  # pyright: ignore[reportMissingImports]

    return getattr(opts, name, default)


def calling_with(
    function: Callable[..., Any], names: dict[str, Any], name: str, replacement: Callable[..., Any]
) -> Callable[..., Any]:
    """A function of the host during whose calls another one among its global names is ours."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        replaced, names[name] = names[name], replacement
        try:
            return function(*args, **kwargs)
        finally:
            names[name] = replaced

    return call
