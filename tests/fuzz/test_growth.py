"""Work and memory grow with the input and no faster: counted in steps of the interpreter, not in seconds."""

import json
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import isqrt
from types import FrameType
from typing import Any

import pytest
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.web.inspection import MAX_BYTES, RequestError, inspect
from weighted_clip.weighting.infotext import read_infotext
from weighted_clip.weighting.infotext.record import MAX_CHARACTERS, MAX_PROBLEMS, MAX_SETTINGS
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.phrases.words import words_of
from weighted_clip.weighting.reading.convert import TARGETS, convert
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.reading.timed_view import read_standing, standing_texts
from weighted_clip.weighting.reading.view import view
from weighted_clip.weighting.schemes.scheme import all_places
from weighted_clip.weighting.syntax import SYNTAXES, parse
from weighted_clip.weighting.timed.schedule import read_timed

from .processor_time import too_fast_growth
from .text_targets import Embeddings

pytestmark = pytest.mark.no_cover

TOKENIZE = default_tokenizer()
A1111 = EncodeOptions(syntax="a1111", hide="a\nb c", normalization="length+mean")
SIZE = 25
MOST = 2.3
"""Times as many steps for twice as much; 4 would be quadratic."""

OPENINGS = (
    *(
        "<",
        "<lora:",
        "<lora:a ",
        "<lora:a:0.5",
        "<a:b",
        "(",
        "(a:",
        "[",
        "[a:",
        "[a|",
        "{",
        "{{",
        "{a|",
        "\\",
        "'",
        '"',
        '("a",',
    ),
    *(
        "a AND ",
        "AND",
        "a AND b:",
        "a BREAK ",
        "BREAK",
        "MASK(",
        "AREA(a ",
        "COUPLE ",
        "a.swap(",
        "withLora(",
        "a_(",
        "__a",
    ),
    *("1.5::", "::", ":", "(:", "# ", "embedding:", "(a:1.2", "(a,1", "[a:b:1", "(a;1", "(a:1.2,", "{a::"),
)
"""Beginnings of what a syntax reads, none of them ended."""

SHAPES: dict[str, Callable[[int], str]] = {
    "nested rounds": lambda n: "(" * n + "a" + ")" * n,
    "nested squares": lambda n: "[" * n + "a" + "]" * n,
    "nested weights": lambda n: "(" * n + "a" + ":1.1)" * n,
    "nested edits": lambda n: "[" * n + "a" + ":b:1]" * n,
    "nested alternations": lambda n: "[" * n + "a" + "|b]" * n,
    "edits in brackets": lambda n: "(" * n + "[a:b:1]" * n + ")" * n,
    "alternations in brackets": lambda n: "[(" * n + "[a|b]" * n + ")]" * n,
    "nested attention": lambda n: "(" * n + "a" + ")1.2" * n,
    "never closed": lambda n: "(a [b" * n,
    "never opened": lambda n: "a) b]" * n,
    "escapes in front of words": lambda n: "\\" * n + "(" + " a" * n,
    "escapes": lambda n: "\\(a\\) " * n,
    "quotes": lambda n: '"a" \\" "b' * n,
    "sections": lambda n: "(" + '"a (b)1.2",' * n + '"a").and()',
    "swaps": lambda n: "a.swap(b) " * n,
    "breaks": lambda n: "a BREAK " * n,
    "tags": lambda n: "<lora:a:0.5> b " * n,
    "embeddings": lambda n: "embedding:style, a " * n,
    "marks": lambda n: "e\u0301猫\u200d" * n,
    "tags alone": lambda n: "<lora:a:0.5>" * n,
    "unknown tags": lambda n: "<a:b>" * n,
    **{f"openings of {opening}": lambda n, opening=opening: opening * n for opening in OPENINGS},
    **{f"openings of {opening}, closed": lambda n, opening=opening: opening * n + ')]}>":1)' for opening in OPENINGS},
}


LINE = "a\nSteps: 1, Sampler: b, Seed: 2, "
INFOTEXTS: dict[str, Callable[[int], str]] = {
    "settings": lambda n: LINE + "".join(f"name {i}: 1, " for i in range(n)),
    "one setting again and again": lambda n: LINE + "Civitai resources: [1, " * n,
    "colons": lambda n: LINE + "aa:" * n,
    "open quotes": lambda n: LINE + 'aa:"' * n,
    "quotes": lambda n: LINE + 'aa:"b, c:d",' * n,
    "words that are no settings": lambda n: LINE + "aa: b, c\n" * n,
    "names without end": lambda n: LINE + "a" * 20 * n,
    "pairs before the settings": lambda n: "a\n" + "ab: c, " * n + "Steps: 1, Sampler: b, Seed: 2",
    "open quotes before the settings": lambda n: "a\n" + 'ab: "c, ' * n + "Steps: 1, Sampler: b, Seed: 2",
    "beginnings of settings": lambda n: "Steps: 1\n" * n,
    "beginnings in one line": lambda n: "Steps: 1 " * n,
    "negative prompts": lambda n: "a\nNegative prompt: b\n" * n + LINE,
    "negative prompts in one line": lambda n: "Negative prompt: b. " * n + LINE,
    "templates": lambda n: LINE + "\nTemplate: a, b: c" * n,
    "negative templates": lambda n: LINE + "\nNegative Template: a, b: c" * n,
    "line breaks": lambda n: "\n" * n + LINE + "\n" * n + "a: b",
    "spaces": lambda n: LINE + "aa:" + " " * 20 * n + "b",
    "open JSON": lambda n: '{"a":' * n,
    "JSON": lambda n: json.dumps({"prompt": "a", "steps": 1, **{f"name {i}": [i] for i in range(n)}}),
    "JSON of Civitai": lambda n: json.dumps({"prompt": "a", "cfgScale": 1, **{f"name {i}": i for i in range(n)}}),
    "a command of InvokeAI": lambda n: json.dumps({"Dream": '"a"' + " -s 1" * n + " x"}),
    "brackets of InvokeAI": lambda n: json.dumps({"Dream": '"' + "[a" * n + '"'}),
    "labels of Easy Diffusion": lambda n: "Prompt: a\nGuidance Scale: 1\n" + "Seed: 1\n" * n,
    "text of Draw Things": lambda n: "a\n" + "-b\n" * n + "Steps: 1, Guidance Scale: 1, Seed: 2, Seed Mode: Legacy",
    "damaged JSON": lambda n: '{"sui_image_params": [' + '"a",' * n,
    "LoRAs": lambda n: json.dumps({"sui_image_params": {"prompt": "a", "loras": ["a"] * n, "loraweights": "1," * n}}),
    "a graph with a sampler": lambda n: json.dumps(
        {
            "s": {"class_type": "K", "inputs": {"steps": 1, "positive": ["0", 0], "latent": ["0", 0]}},
            **{str(i): {"class_type": "a", "inputs": {"conditioning": [str(i + 1), 0]}} for i in range(n)},
        }
    ),
    "a graph of samplers": lambda n: json.dumps(
        {str(i): {"class_type": "K", "inputs": {"steps": 1, "positive": [str(i + 1), 0]}} for i in range(n)}
    ),
    "a graph": lambda n: json.dumps(
        {str(i): {"class_type": "a", "inputs": {"text": [str(i + 1), 0]}} for i in range(n)}
    ),
    "samplers": lambda n: json.dumps(
        {str(i): {"class_type": "a", "inputs": {"steps": 1, "positive": ["0", 0]}} for i in range(n)}
    ),
}


def steps(call: Callable[[], Any]) -> int:
    """Lines and calls of Python that a call takes."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        del frame, event, argument
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def assert_linear(call: Callable[[Any], Any], shape: Callable[[int], Any], size: int = SIZE) -> None:
    call(shape(1))  # what is made once
    small, large = (steps(partial(call, shape(count))) for count in (size, 2 * size))
    assert large < MOST * small, (small, large)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("syntax", SYNTAXES)
def test_parsing_is_linear(syntax: str, shape: str) -> None:
    assert_linear(lambda text: parse(text, syntax), SHAPES[shape], 4 * SIZE)


@pytest.mark.parametrize("shape", SHAPES)
def test_reading_and_timing_are_linear(shape: str) -> None:
    assert_linear(lambda text: read_prompt(text, A1111, TOKENIZE, embeddings=Embeddings()), SHAPES[shape])
    assert_linear(lambda text: read_timed(text, 20), SHAPES[shape], 4 * SIZE)


@pytest.mark.parametrize(
    "shape", ["tags", "tags alone", "unknown tags", "breaks", *(f"openings of {one}" for one in OPENINGS)]
)
@pytest.mark.parametrize("request_", [{}, {"steps": 20}, {"steps": 20, "loras": "in time"}], ids=str)
def test_views_are_linear(request_: dict[str, Any], shape: str) -> None:
    def show(text: str) -> None:
        with suppress(RequestError):
            json.dumps(inspect({"text": text, "syntax": "a1111", **request_}))

    assert_linear(show, SHAPES[shape], 3 * SIZE)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", SYNTAXES)
def test_converting_is_linear(source: str, target: str) -> None:
    for shape in ("never closed", "nested edits", "sections", "escapes", "marks"):
        assert_linear(lambda text: convert(text, source, target, TOKENIZE), SHAPES[shape])


@pytest.mark.parametrize("shape", INFOTEXTS)
def test_reading_generation_data_is_linear(shape: str) -> None:
    """In steps of the interpreter, and in time, of which C takes its part too."""
    assert_linear(read_infotext, INFOTEXTS[shape], 4 * SIZE)
    unit = len(INFOTEXTS[shape](20)) / 20
    assert too_fast_growth(read_infotext, lambda size: INFOTEXTS[shape](int(size / unit))) == ""


@pytest.mark.parametrize("shape", INFOTEXTS)
def test_the_longest_generation_data_makes_short_reports(shape: str) -> None:
    text = INFOTEXTS[shape](MAX_CHARACTERS // 10)[-MAX_CHARACTERS:]
    data = read_infotext(text)
    assert len(data.settings) <= MAX_SETTINGS + 1
    assert len(data.problems) <= MAX_PROBLEMS + 1 and sum(map(len, data.problems)) < 10_000


def test_problems_of_many_texts_are_compared_in_one_pass() -> None:
    def read(text: str) -> None:
        count = text.count("|") + 1
        prompt = read_timed(text, count)
        read_standing(
            prompt, standing_texts(prompt, count, "as written"), lambda one: read_prompt(one, A1111, TOKENIZE)
        )

    assert_linear(read, lambda n: "[" + "|".join("\\a " * 20 + str(i) for i in range(n)) + "]")


PHRASES: dict[str, Callable[[int], tuple[str, str]]] = {
    "half of the prompt": lambda n: ("a " * 2 * n, "a " * n),
    "half of it and another word": lambda n: ("a " * 2 * n + "b", "a " * n + "b"),
    "every word": lambda n: (" ".join(map(str, range(n))), "\n".join(map(str, range(n)))),
    "nested": lambda n: ("a " * n, "\n".join("a " * (1 + count) for count in range(isqrt(n)))),
    "nested at the end": lambda n: ("b " + "a " * n, "\n".join("b " + "a " * count for count in range(isqrt(n)))),
}
"""Prompts, and phrases of them one a line."""
HOLDERS = {
    "bound": ({"bind": ""}, "bind"),
    "words of phrases": ({"bind": "a", "bind_hide": "these words"}, "bind_words"),
    "hidden": ({"hide": ""}, "hide"),
    "hidden from": ({"hide": "a", "hidden_from": "the phrases below"}, "from_phrases"),
}
"""Options whose phrases are looked for, and their name."""


@pytest.mark.parametrize("shape", PHRASES)
@pytest.mark.parametrize("holder", HOLDERS)
def test_phrases_are_found_in_linear_time(shape: str, holder: str) -> None:
    given, name = HOLDERS[holder]

    def read(typed: tuple[str, str]) -> None:
        text, phrases = typed
        view(read_prompt(text, EncodeOptions(**{**given, name: phrases}), TOKENIZE))

    assert_linear(read, PHRASES[shape], 8 * SIZE)


@pytest.mark.parametrize("shape", ["half of the prompt", "half of it and another word", "every word"])
def test_words_are_found_in_linear_time(shape: str) -> None:
    def find(typed: tuple[str, str]) -> None:
        text, phrases = typed
        read = read_prompt(text, A1111, TOKENIZE)
        words = words_of(read.prompt.parts, read.chunks, all_places(len(read.chunks), 77))
        for phrase in phrases.splitlines():
            words.rows_of(phrase)

    assert_linear(find, PHRASES[shape], 8 * SIZE)


@pytest.mark.parametrize(
    "text",
    [
        "a | [" + "|" * 60_000,
        "a \\\n[" + "a|" * 30_000,
        "\\" * 30_000 + "(" + " a" * 15_000,
        "(" * 20_000 + "[a:b:1]" * 3_000 + ")" * 20_000,
        "[" * 10_000 + "a" + ":b:1]" * 10_000,
    ],
    ids=["bars", "bars behind a backslash", "escapes", "edits in brackets", "nested edits"],
)
@pytest.mark.parametrize("syntax", SYNTAXES)
def test_the_longest_request_of_the_ruler_does_not_hang(syntax: str, text: str) -> None:
    assert len(text) <= MAX_BYTES
    for steps in ({}, {"steps": 20}) if syntax == "a1111" else ({},):
        with suppress(RequestError):  # of more tokens than an answer holds
            assert inspect({"text": text, "syntax": syntax, **steps})["views"]


def test_messages_do_not_grow_with_what_they_quote() -> None:
    def peak(count: int) -> int:
        tracemalloc.start()
        prompt = parse("[" * count + "a" + ":b:1]" * count, "a1111")
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert max(len(issue.message) for issue in prompt.issues) < 300
        return most

    assert peak(2000) < MOST * peak(1000)
