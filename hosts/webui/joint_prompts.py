"""Prompts as the encoders of models beyond CLIP read them, with their tokens where they were typed: for the strip.

Source: docs/reference/beyond-clip.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...weighting.chunking.t5 import T5Rule
from ...weighting.options import AS_HOST, EncodeOptions
from ...weighting.reading.characters import stripped
from ...weighting.reading.prompt_reader import ReadPrompt, relocated
from ...weighting.text.chunks import Token
from ...weighting.text.prompt import Fragment, Issue, Prompt, pieces_of
from .attention.joint_models import family_of, t5_rule
from .engines import WebUIError, as_emphasized, host_option
from .joint_texts import Weights, WrittenText, as_plain
from .model_readers import ModelReaders
from .settings import Settings
from .t5 import as_host_reads

Read = Callable[[str, EncodeOptions], ReadPrompt]
"""A text as an encoder reads it."""


def weights_in(readers: ModelReaders, settings: Settings) -> Weights | None:
    """Way in which weights act in the attention of a model; None if they are the host's own."""
    if not settings.enabled or settings.attention == AS_HOST:
        return None
    if readers.model is None or not readers.is_beyond_clip or family_of(readers.model) is None:
        return None
    return Weights(settings.attention, settings.attention_strength, settings.above_one == "as the WebUI")


def rule_in(readers: ModelReaders, settings: Settings) -> T5Rule | None:
    """Rule by which the scheme weighs T5's rows in a model; None if they are the host's own."""
    return t5_rule(settings, readers.model) if settings.enabled and readers.model is not None else None


def read_beyond_clip(text: str, options: EncodeOptions, weights: Weights | None, reader: Read) -> ReadPrompt:
    """Read a text of a model beyond CLIP by an encoder: as the host does, or as it is given to it for ``weights``."""
    as_host = as_emphasized(replace(as_host_reads(options), syntax="a1111"))
    if weights is None:
        return reader(text, as_host)
    options, is_literal = as_emphasized(options), host_option("emphasis", default="Original") == "None"
    try:
        written = as_plain(text, options, weights, is_literal=is_literal)
    except WebUIError:  # a weight that is not finite, which is told of the text as typed
        return reader(text, as_host_reads(options))
    host_read = reader(written.text, as_host)
    typed = _typed(text, written, host_read.prompt, options)
    host_read = reweighted(
        host_read, lambda token: token.weight * (1.0 if token.span is None else written.weight_of(token.span))
    )
    more = tuple(issue for issue in host_read.issues if issue not in host_read.prompt.issues)
    typed_read = relocated(host_read._replace(issues=more), text, typed)
    divided = [_divided(token, typed, written) for chunk in host_read.chunks for token in chunk.content]
    issues = [*written.issues, *typed_read.issues, *dict.fromkeys(filter(None, divided))]
    return typed_read._replace(
        issues=tuple(sorted(issues, key=lambda issue: issue.span)),
        options=replace(typed_read.options, syntax=options.syntax),
    )


def _typed(text: str, written: WrittenText, prompt: Prompt, options: EncodeOptions) -> Fragment:
    """Where each letter of the host's text was typed; its syntax takes the place of the letter after it."""
    letters = [position for part in prompt.parts if isinstance(part, Fragment) for position in part.positions]
    try:
        places = [character.place for character in stripped(text, options)[1] for _ in character.text]
    except ValueError:  # several prompts, encoded as they are typed
        places = letters
    if len(letters) != len(places):  # the host reads it otherwise than it was meant
        places = [min(position, len(text) - 1) for position in letters]
    at: list[int | None] = [None] * len(written.text)
    for position, place in zip(letters, places, strict=True):
        at[position] = place
    place = max(len(text) - 1, 0)
    for position in reversed(range(len(at))):
        place = at[position] = place if (typed_place := at[position]) is None else typed_place
    return Fragment(tuple(pieces_of(written.text, [typed_place or 0 for typed_place in at])))


def reweighted(prompt: ReadPrompt, weight_of: Callable[[Token], float]) -> ReadPrompt:
    """A text with other weights of its tokens."""
    sections = tuple(
        replace(
            section, prompts=tuple(tuple(chunk.reweighted(weight_of) for chunk in chunks) for chunks in section.prompts)
        )
        for section in prompt.sections
    )
    return prompt._replace(sections=sections)


def _divided(token: Token, typed: Fragment, written: WrittenText) -> Issue | None:
    """A problem of a token whose letters have several weights."""
    if token.span is None or not written.is_divided(token.span):
        return None
    token_text, weight = written.text[slice(*token.span)].strip(), written.weight_of(token.span)
    message = f"“{token_text}” is one token of this text encoder: all of it gets the weight {weight:g}."
    return Issue("one-token", message, typed.span_of(token.span))
