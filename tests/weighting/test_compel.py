"""The syntax ``compel`` against compel's own parser, and the law ``compel`` against its numbers on a seeded model."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.encoder.models.text_model import TextEncoder
from weighted_clip.weighting.syntax import parse
from weighted_clip.weighting.text.prompt import PromptError

from ..libraries import library
from .test_syntax import as_compel_case
from .tiny import encode, read

SETTINGS = ("s_start", "s_end", "t_start", "t_end")


@pytest.fixture(scope="module")
def parser() -> Iterator[Any]:
    """compel's, remembering what each rule found at each place: nested brackets take it exponential time otherwise."""
    library("compel", "2.5")
    from compel.prompt_parser import PromptParser
    from pyparsing import ParserElement

    ParserElement.enable_packrat(None)
    yield PromptParser()
    ParserElement.disable_memoization()


def by_compel(parser: Any, text: str) -> dict[str, Any]:
    """Its result for a prompt, in the form of the case file.

    Raises:
        Exception: Any that it raises.
    """
    conjunction = parser.parse_conjunction(text)
    prompts = [
        {
            "type": "blend",
            "weights": list(prompt.weights),
            "normalize": prompt.normalize_weights,
            "prompts": [prompt_of(one) for one in prompt.prompts],
        }
        if hasattr(prompt, "prompts")
        else prompt_of(prompt)
        for prompt in conjunction.prompts
    ]
    loras = [[lora.model, float(lora.weight)] for lora in conjunction.lora_weights]
    return {"weights": list(conjunction.weights), "prompts": prompts, "loras": loras}


def prompt_of(flattened: Any) -> dict[str, Any]:
    return {"type": "prompt", "fragments": [part_of(part) for part in flattened.children]}


def part_of(part: Any) -> Any:
    if not hasattr(part, "original"):
        return [part.text, part.weight]
    sides = {name: [part_of(one) for one in getattr(part, name)] for name in ("original", "edited")}
    return {"swap": {**sides, "options": part.options}}


def comparable(part: Any) -> Any:
    """Without what says nothing: the weight of an empty side of a swap, and options of a swap that have no name."""
    if isinstance(part, list):
        return [comparable(one) for one in part]
    if not isinstance(part, dict):
        return part
    found = {name: comparable(value) for name, value in part.items()}
    for name in ("original", "edited"):
        side = found.get(name, ())
        if len(side) == 1 and isinstance(side[0], list) and side[0][0] == "":
            found[name] = [["", 1.0]]
    if "options" in found:
        found["options"] = {name: value for name, value in found["options"].items() if name in SETTINGS}
    return found


def assert_as_compel(parser: Any, text: str) -> None:
    """Equal where compel reads a prompt; a problem, and an error in strict mode, where it raises."""
    from compel.prompt_parser import PromptParser
    from pyparsing import ParseException

    try:
        expected = by_compel(parser, text)
    except (PromptParser.ParsingException, ParseException, ValueError):
        assert parse(text, "compel").issues, text
        with pytest.raises(PromptError):
            parse(text, "compel", strict=True)
        return
    assert comparable(as_compel_case(parse(text, "compel", strict=True))) == comparable(expected), text


@pytest.mark.parametrize(
    "text",
    [
        "a.swap(b.swap(c))",
        '("a cat".swap("b").swap("c"))',
        '("a cat".swap("b")).swap("c")',
        '(a "cat+".swap(dog) mat).swap("a (dog)1.2".swap(fox) on it)',
        "((a.swap(b))0.5 c).swap(d)++",
        "().swap(a.swap())",
        '"withLora(x, 0.5)"',
        '"withLora(x)" withLora(y)',
        'withLora(a) (b "c withLora(d)" withLora(e))+ withLora(f)',
        'a.swap("b withLora(x)") withLora(y)',
        'withLora(a) ("withLora(b) c", "withLora(d) e").blend(1, 2) withLora(f)',
        '("withLora(x, 0.5)", "a").and(2, 3)',
        '("withLora(x, 0.5)", "a").blend()',
        '("a", ()).blend(1, 2)',
        '("a", "b").blend(1, 2, no_normalize)',
        '("a", "b").blend(no_normalize, 2)',
        '("a", "b").and(1, no_normalize)',
        '("a", "b").and(1, t_end=2)',
        '("a", "b").blend(x)',
        '("a", "b").blend(3=x, 4)',
        "cat.swap(dog, s_end=0.25, shape_freedom=0.5)",
        "cat.swap(dog, shape_freedom=0.5)",
        r'"a\nb" c\nd',
        r'("a\t(b\rc)+", "\n", "d\\ne").and()',
        '"a\rb"',
        r'("a\f\n b", "c\fd").and()',
        r'("a\f\n b", "c").and()',
        r'"a\f\n b" c',
        "a\xa0b+ (c\u3000d)++ \u3000+",
        '("a").blend() \xa0',
    ],
)
def test_equals_compels_parser(parser: Any, text: str) -> None:
    assert_as_compel(parser, text)


WORDS = ["a", "cat", "b-c", "x+y", "3", "0.5", "\\(", "\\)", '\\"', "-", "+", "e=f", "_k", "\\n", "猫\u3000狗"]
OPERATORS = ["+", "++", "-", "--", "1.3", "0.5", ".5", "2", "-0.5", "1."]
LORAS = ["withLora(x)", "useLora(ink-2, 0.5)", "withLora(x,1)", "withLora (3, -2)", "withLora(x, y)"]
OPTIONS = ["s_start=0.1", "s_end=0.5", "t_end=1", "shape_freedom=0.5", "0.3", "-1", "no_normalize", "x=2", "2=x"]
SIGNS = [*'ab ()\\.,1-+"=\n\t\r', ".swap(", ".attend(", ".and(", ".blend(", '("', '", "', '")', '\\"', "withLora("]

spaces = st.sampled_from(["", "", " ", "\n"])
words = st.builds("".join, st.tuples(st.sampled_from(WORDS), st.sampled_from(["", "", "+", "--"])))
options = st.lists(st.sampled_from(OPTIONS), max_size=3).map(", ".join)


@st.composite
def quotations(draw: st.DrawFn, depth: int) -> str:
    text = draw(texts(depth))
    return f'"{text}"' if draw(st.booleans()) else '"{}"'.format(text.replace('"', '\\"'))


@st.composite
def targets(draw: st.DrawFn, depth: int) -> str:
    """Possible targets of an operator."""
    kind = draw(st.sampled_from(["word", "brackets", "quotes"] if depth else ["word"]))
    if kind == "word":
        return draw(st.sampled_from(WORDS))
    return draw(quotations(depth - 1)) if kind == "quotes" else f"({draw(texts(depth - 1))})"


@st.composite
def texts(draw: st.DrawFn, depth: int = 2) -> str:
    """Words, and to some depth brackets, quotations, weights, swaps and LoRAs."""
    found = ""
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(
            st.sampled_from(["word", "weight", "attend", "swap", "swap", "sign"] if depth else ["word", "sign"])
        )
        if kind == "word":
            found += draw(words)
        elif kind == "sign":
            found += draw(st.sampled_from([*LORAS, ",", "."]))
        else:
            found += draw(targets(depth))
        if kind == "weight":
            found += draw(st.sampled_from(["", *OPERATORS]))
        elif kind == "attend":
            found += f"{draw(spaces)}.attend({draw(st.sampled_from(OPERATORS))})"
        elif kind == "swap":
            found += f".swap({draw(texts(depth - 1))}{draw(st.sampled_from(['', ', ']))}{draw(options)})"
        found += draw(spaces)
    return found


@st.composite
def joined(draw: st.DrawFn) -> str:
    """A blend or a conjunction, sometimes with text around it."""
    part = st.one_of(quotations(1), quotations(1), targets(1))
    prompts = ", ".join(draw(st.lists(part, min_size=1, max_size=3)))
    operator = draw(st.sampled_from([".blend", ".and", ".add"]))
    before = draw(st.sampled_from(["", "", "withLora(z) ", "a "]))
    behind = draw(st.sampled_from(["", "", " withLora(z, 2)", " b"]))
    return f"{before}({prompts}){operator}({draw(options)}){behind}"


soup = st.lists(st.one_of(st.sampled_from(SIGNS), words, st.sampled_from(LORAS)), max_size=14).map("".join)


def has_numeric_escape(text: str) -> bool:
    """Whether some releases of pyparsing turn a number after a backslash in quotes into a character."""
    return re.search(r"\\[0-7xu]", text) is not None


@pytest.mark.no_cover
@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(text=st.one_of(texts(), joined(), soup))
def test_random_prompts_equal_compels_parser(parser: Any, text: str) -> None:
    assume(len(text) <= 120 and not has_numeric_escape(text))
    assert_as_compel(parser, text)


# --- the library


# a third of the width and of the depth: the arithmetic is the same
CONFIG = TextConfig(hidden_dim=256, num_heads=4, num_layers=4, mlp_dim=1024)


@pytest.fixture(scope="module")
def model():
    return seeded_text_model(CONFIG)


@pytest.fixture(scope="module")
def peer(model):
    library("compel")
    from weighted_clip.workshop.peers.compel_library import open_peer

    return open_peer(model)


def by_us(model, text: str, chunking: str, **choices) -> torch.Tensor:
    choices = {"syntax": "compel", "scheme": "compel", "chunking": chunking, **choices}
    return encode(text, TextEncoder(model), **choices).hidden


def test_a_fragment_longer_than_a_chunk_fades_like_its_beginning(model) -> None:
    longer, beginning = (by_us(model, f"({'cat ' * count})0.5", "compel truncate") for count in (76, 75))
    assert torch.equal(longer, beginning)


def test_of_a_swap_the_original_is_encoded_and_of_swaps_within_it_the_innermost(model, peer) -> None:
    text = 'a "red (cat)1.3".swap("dog") on a mat'
    expected = peer({}, text)
    torch.testing.assert_close(by_us(model, text, "compel truncate"), expected, rtol=0, atol=1e-5)
    for nested in (
        'a "red (cat)1.3".swap(dog.swap(fox)) on a mat',
        'a ("red (cat)1.3".swap("dog")).swap(fox) on a mat',
        "a ((red (cat)1.3).swap(dog) on).swap(fox) a mat",
    ):
        with pytest.raises(AttributeError):  # compel reads it, and asks the inner swap for its text
            peer({}, nested)
        torch.testing.assert_close(by_us(model, nested, "compel truncate"), expected, rtol=0, atol=1e-5)
        assert [issue.code for issue in read(nested, syntax="compel").issues].count("nested-swap") == 1
