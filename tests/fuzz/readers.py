"""Everything of the pack that reads a prompt or a part of one, as a function of its text alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from weighted_clip.encoder.tokenizer import default_tokenizer, without_surrogates
from weighted_clip.web.inspection import inspect
from weighted_clip.weighting.chunking import CHUNKINGS
from weighted_clip.weighting.convert import TARGETS, convert
from weighted_clip.weighting.embedding_folder import EmbeddingFolder
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading import read_prompt
from weighted_clip.weighting.syntax import SYNTAXES, parse
from weighted_clip.weighting.tags import tag_issues, take_tags
from weighted_clip.weighting.timed.editing import edits_of, read_editing
from weighted_clip.weighting.timed.schedule import read_timed, split_and
from weighted_clip.weighting.view import token_table, view

from .front_targets import NAMES
from .text_targets import Embeddings

TOKENIZE = default_tokenizer()
STEPS = 20
Reader = Callable[[str], Any]


def _options(**given: Any) -> Reader:
    options = EncodeOptions(**given)

    def read(text: str) -> None:
        found = read_prompt(text, options, TOKENIZE, embeddings=Embeddings())
        token_table(found)
        view(found)

    return read


def _tags(text: str) -> None:
    bare, tags = take_tags(text)
    tag_issues(tags)
    assert len(bare.positions) == len(bare.text)


def _timed(text: str) -> None:
    edits_of(read_editing(text).parts)
    split_and(text)
    read_timed(text, STEPS)


def _hiding(text: str) -> None:
    """Phrases to hide, in a prompt that is made of them."""
    options = EncodeOptions(hide=text.replace(" ", "\n"), hidden_from="the phrases below", from_phrases=text)
    read_prompt(text, options, TOKENIZE)


def _name(text: str) -> None:
    folder = EmbeddingFolder([], "clip_l", 8)
    assert folder.find(text) is None


def _inspect(**given: Any) -> Reader:
    return lambda text: json.dumps(inspect({"text": without_surrogates(text), **given}, NAMES))


PARSERS: dict[str, Reader] = {
    **{f"parse {syntax}": partial(parse, syntax=syntax) for syntax in SYNTAXES},
    "tags": _tags,
    "timed": _timed,
    "embedding name": _name,
    "tokenizer": TOKENIZE,
}
"""Parsers, which run first in everything else, and are quick."""

READERS: dict[str, Reader] = {
    **{f"read {syntax}": _options(syntax=syntax, normalization="length+mean") for syntax in SYNTAXES},
    **{f"chunk {chunking}": _options(syntax="compel", chunking=chunking) for chunking in CHUNKINGS},
    **{
        f"convert {source} to {target}": partial(convert, source=source, target=target, tokenize=TOKENIZE)
        for source in SYNTAXES
        for target in TARGETS
        if source != target
    },
    "hidden phrases": _hiding,
    "ruler": _inspect(syntax="a1111"),
    "ruler, timed": _inspect(syntax="a1111", steps=STEPS),
}
"""All else that needs no model."""


@cache
def lab_readers() -> dict[str, Reader]:
    """The lab's handlers while its user types."""
    from weighted_clip.web.lab.handlers import OPTIONS, Handlers
    from weighted_clip.web.lab.model import LabError
    from weighted_clip.web.lab.tabs import ConvertTab, MasksTab, TokensTab

    def none() -> Any:
        raise LabError("No model is loaded yet.")

    base = EncodeOptions(syntax="a1111", scheme="masked_blend")
    handlers, values = Handlers(none, base), [getattr(base, name) for name in OPTIONS]

    return {
        "lab, typing": lambda text: handlers.read(text, *values),
        "lab, Tokens": lambda text: TokensTab(handlers).show(text, *values),
        "lab, Masks": lambda text: MasksTab(handlers).show(1, text, *values),
        "lab, Convert": lambda text: ConvertTab(handlers).show("compel", text, *values),
    }
