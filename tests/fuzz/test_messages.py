"""Messages are ours and short, however long the text is that they are about."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.hosts.comfy.a1111.parameters import Parameters, read_parameters
from weighted_clip.studio.dalle.tokens import read_swaps, read_tokens
from weighted_clip.web.inspection import MAX_BYTES, conversion, generation_data, inspect
from weighted_clip.weighting.infotext import read_infotext
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.placing.areas import read_area, read_where
from weighted_clip.weighting.placing.places import read_places
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.reading.sweep import read_sweep
from weighted_clip.weighting.syntax import SYNTAXES
from weighted_clip.weighting.timed.loras import lora_times
from weighted_clip.weighting.timed.schedule import read_timed

MOST = 700
"""Characters of one message."""
PYTHONS = ("set_int_max_str_digits", "invalid literal", "could not convert", "unhashable", "Traceback", "_csv")
"""Words of Python's own messages."""
TOKENIZE = default_tokenizer()


def a_token_a_word(text: str) -> list[tuple[int, int, int]]:
    """Ids with the words' first and last characters, as messages are about words; CLIP's has a token for each digit."""
    return [(1, *word.span()) for word in re.finditer(r"\S+", text)]


LONG = {
    "letters": "x" * 5_000,
    "digits": "9" * 5_000,
    "words": "ab " * 1_500,
    "decimals": "1" * 5_000 + ".5",
}
"""Texts in the place of ``@`` in a template: several times a message, and more digits than Python makes a number of."""
PROMPTS = (
    "(cat:@)", "(@:1.2)", "[@:dog:5]", "[cat:dog:@]", "[cat|@]", "<lora:@:1>", "<lora:a:@>", "<lora:a:1:@>",
    "<@:a>", "embedding:@", "(@", "[@", "@)", "a AND b:@", "(@)1.2", "(a)@", '("@", "b").and(@)', '("a").@()',
    '("@", "b").blend(@)',     "a.swap(@)", "@++", "MASK(@)", "AREA(@, @)", "{@|b}", "a BREAK @", "@:1.2", "(a:1@)",
    "<lora:a:1@0.5,@>", "<lora:@:@:@:@:a=@:start=@>", "<@:@>", "(a:@,)", "[a:b:@%]", "[@:@]", "(a:@e9)", "(@;1.5)",
    "（@：1.2）", "__@__",
)  # fmt: skip
OPTIONS = {"hide": "@", "bind": "@", "filler": "@"}
SETTINGS = {"Steps": "20", "Sampler": "Euler a", "CFG scale": "7", "Seed": "1", "Size": "64x64"}
LONG_SETTINGS = ("RNG", "Clip skip", "Schedule type", "TI", "TI hashes", "Lora hashes", "Model", "ENSD", "Other")
DATA = (
    "@",
    "a\nSteps: 20, Sampler: Euler a, Seed: 1, @: 1",
    *(
        "a\n" + ", ".join(f"{key}: {value}" for key, value in {**SETTINGS, name: "@"}.items())
        for name in (*SETTINGS, *LONG_SETTINGS)
    ),
)
CALLS: dict[str, tuple[Callable[[str], Any], tuple[str, ...]]] = {
    "area": (read_area, ("@", "where @", "0 0 @ 1", "left half ~@", "0 0 1 @px", "left @", "0.@ 2, 0 1")),
    "where": (read_where, ("x @", "~@", "left ~@", "left @ half", "@ , ")),
    "places": (read_places, ("@", "@: left half", "a: left half: @", "a: @", "a: inside @", "a: from @ to 1")),
    "sweep": (read_sweep, ("(a:0..1:@)", "(a:@..1:3)", "@0..1:3", "(a:0..@:3)", "(@:0..1:99)", "(@:0..0:3)")),
    "timed": (lambda text: read_timed(text, 20), PROMPTS),
    "LoRAs in time": (lambda text: lora_times(text, 20, "as written", has_comments=True), PROMPTS),
    "tokens": (lambda text: read_tokens(text, 100), ("@", "1 2 @", "1,@")),
    "swaps": (lambda text: read_swaps(text, 8, 8, 100), ("@", "1, @ = 5", "1, 2 = @", "1-@, 1 = 2", "1, 1 =")),
    "generation data": (lambda text: read_parameters(read_infotext(text), "CPU"), DATA),
    "pasted data": (lambda text: generation_data({"text": text}), DATA),
    "request": (inspect, ("@",)),
    "conversion": (lambda text: conversion({"text": text, "from": "a1111", "to": "compel"}), PROMPTS),
    **{
        f"prompt in {syntax}": (
            lambda text, syntax=syntax: read_prompt(text, EncodeOptions(syntax=syntax), a_token_a_word),
            PROMPTS,
        )
        for syntax in SYNTAXES
    },
    **{
        f"option {name}": (
            lambda text, name=name: read_prompt("a cat", EncodeOptions(**{name: text}), TOKENIZE),
            (template,),
        )
        for name, template in OPTIONS.items()
    },
}


def messages_in(answer: object, depth: int = 4) -> Iterator[str]:
    """Messages anywhere in an answer: of issues, and lines of reports."""
    if isinstance(message := getattr(answer, "message", None), str):
        yield message
    if depth == 0:
        return
    if isinstance(answer, dict):
        yield from (value for key, value in answer.items() if key == "message")
        for value in answer.values():
            yield from messages_in(value, depth - 1)
    elif isinstance(answer, (list, tuple)):
        for value in answer[:200]:
            yield from messages_in(value, depth - 1)
    for value in getattr(answer, "issues", ()):
        yield from messages_in(value, depth - 1)
    if isinstance(answer, Parameters):
        yield from answer.report()


@pytest.mark.parametrize("long", LONG)
@pytest.mark.parametrize("name", CALLS)
def test_a_message_is_ours_and_short(name: str, long: str) -> None:
    call, templates = CALLS[name]
    for template in templates:
        text = template.replace("@", LONG[long])[: MAX_BYTES // 2]
        try:
            messages = list(messages_in(call(text)))
        except ValueError as error:
            messages = [str(error)]
        wrong = [message for message in messages if len(message) > MOST or any(word in message for word in PYTHONS)]
        assert not wrong, (template, len(wrong[0]), wrong[0][:300])
