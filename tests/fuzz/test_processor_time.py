"""No regular expression and no reader takes quadratic time: processor time for a text and for twice as much of it.

`test_growth.py` counts steps of the interpreter, which do not see what goes on in `re`. Patterns are found by
themselves and fed with texts made of them, up to 64 KiB, as long as anything that reads for strangers takes. Readers
are first measured at 2 and 8 KiB, and up to 64 KiB where those differ by more than a linear reader's."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from itertools import permutations
from typing import Any

import pytest
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.phrases.hidden_phrases import hiding_issues, mark_hidden
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.syntax import SYNTAXES, parse
from weighted_clip.weighting.text.chunks import TokenChunk
from weighted_clip.weighting.text.embedding_folder import EmbeddingFolder
from weighted_clip.weighting.text.tags import tag_issues, take_tags
from weighted_clip.weighting.timed.editing import edits_of, read_editing
from weighted_clip.weighting.timed.schedule import read_timed, split_and

from .patterns import CHARACTERS, Pumped, Use, pumped, uses
from .processor_time import may_grow_too_fast, too_fast_growth
from .test_growth import SHAPES

pytestmark = pytest.mark.no_cover

TOKENIZE = default_tokenizer()
STEPS = 20
SHARES = 8
"""Tests among which patterns are divided: finding them takes seconds, which every worker would spend to name each."""
Reader = Callable[[str], Any]


def _tags(text: str) -> None:
    bare, tags = take_tags(text)
    tag_issues(tags)
    assert len(bare.positions) == len(bare.text)


def _timed(text: str) -> None:
    edits_of(read_editing(text).parts)
    split_and(text)
    read_timed(text, STEPS)


def _name(text: str) -> None:
    folder = EmbeddingFolder([], "clip_l", 8)
    assert folder.find(text) is None


PARSERS: dict[str, Reader] = {
    **{f"parse {syntax}": partial(parse, syntax=syntax) for syntax in SYNTAXES},
    "tags": _tags,
    "timed": _timed,
    "embedding name": _name,
    "tokenizer": TOKENIZE,
}
"""Parsers, which run first in everything else, and are quick."""


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


@pytest.mark.parametrize("share", range(SHARES))
def test_no_pattern_takes_quadratic_time(share: int) -> None:
    slow = [
        f"{use}: {one}: {growth}"
        for use in _patterns()[share::SHARES]
        for one in (*pumped(use.pattern), *(Pumped("", unit, "") for unit in UNITS))
        if (growth := too_fast_growth(use, one.text))
    ]
    assert not slow


@pytest.mark.parametrize("name", PARSERS)
def test_no_parser_takes_quadratic_time(name: str) -> None:
    first = dict(list(texts().items())[: len(UNITS) + len(VARIED) + len(SHAPES)])
    others = dict(list(texts().items())[len(first) :: 180])
    assert_not_quadratic(PARSERS[name], first | others)


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
    assert any(too_fast_growth(use, one.text, repeats=1) for one in pumped(use.pattern))
