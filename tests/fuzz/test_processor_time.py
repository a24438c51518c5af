"""No regular expression and no reader takes quadratic time: processor time for a text and for twice as much of it.

`test_growth.py` counts steps of the interpreter, which do not see what goes on in `re`. Patterns are found by
themselves and fed with texts made of them, up to 64 KiB, as long as anything that reads for strangers takes. Readers
are first measured at 2 and 8 KiB, and up to 64 KiB where those differ by more than a linear reader's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache, partial
from itertools import permutations
from typing import Any

import pytest
from weighted_clip.encoder.tokenizer import default_tokenizer, without_surrogates
from weighted_clip.web.inspection import inspect
from weighted_clip.weighting.chunking import CHUNKINGS
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.phrases.hidden_phrases import hiding_issues, mark_hidden
from weighted_clip.weighting.reading.convert import TARGETS, convert
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.reading.view import token_table, view
from weighted_clip.weighting.syntax import SYNTAXES, parse
from weighted_clip.weighting.text.chunks import TokenChunk
from weighted_clip.weighting.text.embedding_folder import EmbeddingFolder
from weighted_clip.weighting.text.tags import tag_issues, take_tags
from weighted_clip.weighting.timed.editing import edits_of, read_editing
from weighted_clip.weighting.timed.schedule import read_timed, split_and

from .patterns import CHARACTERS, Pumped, Use, pumped, uses
from .processor_time import may_grow_too_fast, too_fast_growth
from .targets import NAMES
from .test_growth import SHAPES
from .text_targets import Embeddings

pytestmark = pytest.mark.no_cover

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
    from weighted_clip.web.lab.tabs.prompt_tabs import ConvertTab, MasksTab, TokensTab

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


WORDS = (
    *("BREAK ", "AND ", "embedding:", "embedding:style ", "<lora:", "<lora:a:1>", ":1)", ":1]", "[a|b]", "a, ", "a. "),
    *('"a" ', ',"a"', ".swap(", "withLora(", '\\"', "\r\n", "'s ", "<|endoftext|>", "(a)1.1 "),
)
UNITS = (*CHARACTERS, *WORDS)
MakeText = Callable[[int], str]


def _numbered(each: Callable[[int, int], str]) -> MakeText:
    """A text of many parts that all differ."""
    length = len(each(99999, 100000))
    return lambda size: "".join(each(index, size // length + 1) for index in range(1, size // length + 1))


VARIED: dict[str, MakeText] = {
    "all weights": _numbered(lambda index, count: f"(a:{index / count:.6f}) "),
    "all times": _numbered(lambda index, count: f"[a:b:{index:06}]"),
    "all letter cases": _numbered(
        lambda index, count: (
            "".join((c.upper(), c)[index >> place & 1] for place, c in enumerate("abcdefghijklmnop")) + " "
        )
    ),
    "everything": lambda size: (
        'a (b:1.2) [c:d:3] BREAK [e|f], <lora:x:1> embedding:style \\(\\) AND (g)1.3 "h"++ (i\\\\\\) 猫e\u0301\n'
        * (size // 100)
    )[:size],
}
SHORT = (*VARIED.values(), Pumped("", "BREAK ", "").text)
"""For readers that do everything."""


@cache
def _patterns() -> list[Use]:
    return uses()


def _shaped(shape: Callable[[int], str], size: int) -> str:
    return shape(max(1, size // len(shape(1))))


@cache
def texts() -> dict[str, MakeText]:
    """Input of the readers, most telling first."""
    found: dict[str, MakeText] = {repr(unit): Pumped("", unit, "").text for unit in UNITS} | VARIED
    found |= {name: partial(_shaped, shape) for name, shape in SHAPES.items()}
    found |= {repr(tuple(one)): one.text for use in _patterns() for one in pumped(use.pattern)}
    for one, other in permutations(UNITS, 2):
        found[repr(one + other)] = Pumped("", one + other, "").text
        found[f"{one!r}, {other!r}"] = lambda size, one=one, other=other: (
            Pumped("", one, "").text(size // 2) + Pumped("", other, "").text(size // 2)
        )
    return found


def assert_not_quadratic(read: Callable[[str], object], some: dict[str, MakeText]) -> None:
    read("a (b:1.2)")  # what is made once
    slow = {
        name: growth
        for name, text in some.items()
        if may_grow_too_fast(read, text) and (growth := too_fast_growth(read, text))
    }
    assert not slow


@pytest.mark.parametrize("use", _patterns(), ids=str)
def test_no_pattern_takes_quadratic_time(use: Use) -> None:
    for one in (*pumped(use.pattern), *(Pumped("", unit, "") for unit in UNITS)):
        growth = too_fast_growth(use, one.text)
        assert not growth, (one, growth)


@pytest.mark.parametrize("name", PARSERS)
def test_no_parser_takes_quadratic_time(name: str) -> None:
    first = dict(list(texts().items())[: len(UNITS) + len(VARIED) + len(SHAPES)])
    others = dict(list(texts().items())[len(first) :: 90])
    assert_not_quadratic(PARSERS[name], first | others)


@pytest.mark.parametrize("name", READERS)
def test_no_reader_takes_quadratic_time(name: str) -> None:
    assert_not_quadratic(READERS[name], {repr(text(40)): text for text in SHORT})


@pytest.mark.parametrize("name", ["lab, typing", "lab, Tokens", "lab, Masks", "lab, Convert"])
def test_no_handler_of_the_lab_takes_quadratic_time(name: str) -> None:
    pytest.importorskip("gradio", reason="gradio is not installed: pip install -r requirements/lab.txt")
    assert_not_quadratic(lab_readers()[name], {repr(text(40)): text for text in SHORT})


def test_words_of_other_chunks_cost_nothing_where_the_masks_of_one_are_drawn() -> None:
    pytest.importorskip("gradio", reason="gradio is not installed: pip install -r requirements/lab.txt")
    draw = lab_readers()["lab, Masks"]
    draw("a (b:0.5)")
    assert not too_fast_growth(draw, VARIED["all weights"], tiny=())  # a drawing takes long, however short the text


def test_spellings_of_one_phrase_are_not_gone_through_at_every_place_of_it() -> None:
    chunks: dict[str, tuple[TokenChunk, ...]] = {}

    def phrases(size: int) -> str:
        text = VARIED["all letter cases"](size).replace(" ", "\n")
        chunks[text] = read_prompt(Pumped("", "abcdefghijklmnop ", "").text(size), EncodeOptions(), TOKENIZE).chunks
        return text

    def hide(text: str) -> None:
        options = EncodeOptions(hide=text)
        assert not hiding_issues(mark_hidden(chunks[text], options, TOKENIZE), options, TOKENIZE)

    assert not too_fast_growth(hide, phrases)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", [*PARSERS, *READERS])
def test_no_reader_takes_quadratic_time_whatever_two_things_are_repeated(name: str) -> None:
    every = 1 if name in PARSERS else 11
    assert_not_quadratic({**PARSERS, **READERS}[name], dict(list(texts().items())[::every]))


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r'(\\+)[()"]', "finditer"),
        (r"\s+$", "search"),
        (r"<.*>", "findall"),
        (r"a\w*\d*:", "match"),
        (r"(?:\d+|\w)+x", "match"),
        (r"(?:[^:]*,)?(?P<name>\w+\s*)=", "sub"),
        (r"(?:a|b|ab)+$", "fullmatch"),
    ],
)
def test_a_slow_pattern_is_seen(pattern: str, method: str) -> None:
    use = Use("here", re.compile(pattern), method)
    assert any(too_fast_growth(use, one.text) for one in pumped(use.pattern))
