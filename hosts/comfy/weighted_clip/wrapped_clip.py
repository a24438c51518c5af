"""A host's CLIP whose prompts are read by our syntaxes and weighted by our schemes, for any node that encodes.

What the host's class does is left to it: memory, patches, hooks, clip skip, saving, merging. Only the words that nodes
give it and the rows that it gives them pass through here.

Source: behaviour of ComfyUI 0.29.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from ....encoder.quoting import quote
from ....weighting.encoders import Encoders
from ....weighting.syntax import syntax_of
from ..clip.clip import readers_of, towers_of
from ..clip.host_clip import SESSION, base_of, host_clip
from ..clip.host_encoding import written_for_host
from ..clip.host_texts import is_replaced, text_as_typed, text_to_weigh, tokens_of_text
from ..clip.marks import marked_chunks, values_of
from ..clip.towers import t5_readers
from ..contract import CLIP, checked_object
from ..types import Clip, Conditioning
from .encoder_call import EncodingReport, Session
from .guided_tokens import guided_conditioning, guided_tokens
from .settings import ClipSettings, method_for
from .timed_tokens import TimedChunks, timed_conditioning, timed_tokens
from .wrapped_towers import copied_model

GENERATING = {"skip_template", "thinking", "lyrics", "audio", "video"}
"""Options of the host's tokenizers for text that no picture is drawn by."""


class _WeightedClipMixin:
    """Mixin before the host's class of a CLIP."""

    def clone(self, *rest: Any, **choices: Any) -> Any:
        """A clone with the same settings."""
        clone = super().clone(*rest, **choices)  # type: ignore[misc]
        return _with_session(clone, base_of(self), vars(self)[SESSION])  # type: ignore[arg-type]

    def tokenize(self, text: Any, return_word_ids: bool = False, **choices: Any) -> dict[str, Any]:
        """Tokens of the host, marked with the words and weights of the prompt."""
        session: Session = vars(self)[SESSION]
        stock: Any = super()
        if not isinstance(text, str) or is_replaced(self.tokenizer) or choices.keys() & GENERATING:  # type: ignore[attr-defined]
            return stock.tokenize(text, return_word_ids, **choices)

        def tokens_of(part: str) -> dict[str, Any]:
            return _tokens(host_clip(self), session, part, {"return_word_ids": return_word_ids, **choices})  # type: ignore[arg-type]

        def guided(part: str) -> dict[str, Any]:
            return guided_tokens(part, session, tokens_of)

        return timed_tokens(text, session, guided) if session.settings.is_timed else guided(text)

    def encode_from_tokens_scheduled(self, tokens: Any, *rest: Any, **choices: Any) -> Conditioning:
        """Conditioning with the words of the prompt, and weights that act in the attention."""
        stock: Any = super()

        def encoded(part_tokens: Mapping[str, Any]) -> Conditioning:
            return self._encoded(
                part_tokens, lambda host_tokens: stock.encode_from_tokens_scheduled(host_tokens, *rest, **choices)
            )

        def guided(part_tokens: Mapping[str, Any]) -> Conditioning:
            return guided_conditioning(part_tokens, encoded)

        return timed_conditioning(tokens, vars(self)[SESSION], guided)

    def encode_from_tokens(self, tokens: Any, return_pooled: Any = False, return_dict: bool = False) -> Any:
        """Rows of some tokens; weights act in the attention only as far as the result can carry them."""
        stock: Any = super()
        session: Session = vars(self)[SESSION]
        if session.current is not None:  # asked by the host for a conditioning
            return stock.encode_from_tokens(tokens, return_pooled, return_dict)
        if any(isinstance(chunks, TimedChunks) for chunks in tokens.values()):
            raise ValueError(
                "This node takes one encoding of a prompt, and the prompt changes while the picture is sampled: take "
                "out what changes, or use a node that makes a conditioning of its own, such as CLIP Text Encode."
            )
        if return_dict:
            ((rows, values),) = self._encoded(
                tokens, lambda host_tokens: _entry(stock.encode_from_tokens(host_tokens, return_pooled, True))
            )
            return {"cond": rows, **values}
        with session.encoding(self, tokens) as call:  # type: ignore[arg-type]
            result = stock.encode_from_tokens(session.tokens_for_host(tokens), return_pooled, False)
            session.check_is_carried(call)
        rows, *pooled = result if return_pooled else (result,)
        session.tell(
            call, [[rows, {"pooled_output": vector} if (vector := next(iter(pooled), None)) is not None else {}]]
        )
        return result

    def _encoded(self, tokens: Mapping[str, Any], encode: Callable[[Any], Conditioning]) -> Conditioning:
        session: Session = vars(self)[SESSION]
        with session.encoding(self, tokens) as call:  # type: ignore[arg-type]
            conditioning = session.finished(call, encode(session.tokens_for_host(tokens)))
        session.tell(call, conditioning)
        return conditioning


def _entry(values: dict[str, Any]) -> Conditioning:
    return [[values.pop("cond"), values]]


def weighted_clip(
    clip: Clip, settings: ClipSettings, tell: Callable[[EncodingReport], None] = lambda report: None
) -> Clip:
    """A CLIP whose prompts are read and weighted by some settings.

    Args:
        clip: A host's CLIP; of one that comes from here, the settings no longer count.
        settings: The settings.
        tell: Function that is told what became of a prompt, each time that one is encoded.

    Returns:
        A clone of the CLIP, of a subclass of its class. Its model is a copy with the host's own modules.

    Raises:
        ValueError: If it is not a CLIP of the host, or weights cannot act in the attention of its model.
    """
    if clip is None:
        towers_of(clip)  # raises
    names = ("cond_stage_model", "encode_from_tokens", "encode_from_tokens_scheduled", "tokenize", "tokenizer", "clone")
    if not all(hasattr(clip, name) for name in (*names, "patcher")):
        raise ValueError(
            f"Weighted CLIP takes a CLIP of ComfyUI, as from Load Checkpoint or Load CLIP, got {quote(clip)}. "
            "Our native encoder's second output is one."
        )
    checked_object(clip, CLIP, *names)
    clip = host_clip(clip)
    method = method_for(clip, settings)
    readers = {**readers_of(clip), **t5_readers(clip, method.options.scheme)} if method.has_readers else {}
    session = Session(settings, method, readers, tell)
    work = clip.clone()
    model = work.cond_stage_model
    encoders = [name for name, part in model.named_children() if hasattr(part, "encode_token_weights")]
    work.cond_stage_model = copied_model(model, encoders, session)
    return _with_session(work, type(clip), session)


def settings_of(clip: Clip) -> ClipSettings | None:
    """Settings of a CLIP that comes from `weighted_clip`, or a clone of it; None for any other."""
    session: Session | None = getattr(clip, "__dict__", {}).get(SESSION)
    return None if session is None else session.settings


def _with_session(clip: Any, base: type, session: Session) -> Clip:
    """A new CLIP of a class, with a session; refused if its class cannot have ours before it."""
    try:
        clip.__class__ = _class_of(base)
        vars(clip)[SESSION] = session
    except TypeError as error:
        name = f"{base.__module__}.{base.__qualname__}"
        raise ValueError(f"Weighted CLIP cannot act on another pack's CLIP, {quote(name)}.") from error
    return clip


@cache
def _class_of(base: type) -> type:
    """A class of CLIPs with our mixin; it has the same name, as some nodes look at that."""
    return type(
        base.__name__, (_WeightedClipMixin, base), {"__module__": base.__module__, "__qualname__": base.__qualname__}
    )


def _tokens(clip: Clip, session: Session, text: str, choices: dict[str, Any]) -> dict[str, Any]:
    """Marked tokens of a text by a host's CLIP; ``choices`` are its own."""
    method = session.method
    if method.way is not None and method.family is not None:
        return tokens_of_text(clip, text_to_weigh(clip, method.family, text, method.options), **choices)
    if not method.has_readers:
        return tokens_of_text(clip, written_for_host(clip, text, method.options), **choices)
    reads = Encoders(session.readers).read(text, method.options)
    if method.family is None:
        tokens = clip.tokenize(text, **choices)
    else:  # the host reads the unchanged text for its other encoders
        tokens = tokens_of_text(clip, text_as_typed(text, method.options), **choices)
    for name, prompt in reads.items():
        key = name.removeprefix("clip_")
        marked = marked_chunks(prompt, has_words=choices["return_word_ids"], weighs=session.weighs)
        # what ComfyUI cuts otherwise stays as it is, so that at its defaults nothing changes
        is_comfys = method.is_stock and syntax_of(method.options.syntax).by_comfyui
        if not is_comfys or values_of(tokens[key]) == marked.values:
            tokens[key] = marked
    return tokens
