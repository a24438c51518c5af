"""Comments in every syntax: what the option `comments` leaves out, compared with the programs that have them.

ComfyUI's page replaces matches of one pattern by nothing (front end 1.27 to 1.47), and A1111 and Forge replace two by a
line break (modules/processing_scripts/comments.py of stable-diffusion-webui-forge dfdcbab6).
"""

from __future__ import annotations

import re
from dataclasses import fields, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading.convert import convert
from weighted_clip.weighting.reading.prompt_reader import ReadPrompt, read_prompt
from weighted_clip.weighting.reading.view import encoded_text, view
from weighted_clip.weighting.syntax import SYNTAXES
from weighted_clip.weighting.text.tags import bare, comment_spans
from weighted_clip.weighting.timed.loras import lora_times
from weighted_clip.weighting.timed.schedule import COUNTERS, read_timed

TOKENIZE = default_tokenizer()
PROMPT = "a (cat:1.2) // note (x:1.3)\nin /* no\nBREAK */ a # b [c]\nbowl http://x"
PIECES = st.lists(
    st.sampled_from(["/", "*", "//", "/*", "*/", "#", "\n", "\r", "\u2028", "a", " b", "(c:1.2)"]), max_size=30
)


def read(text: str, **options: str) -> ReadPrompt:
    return read_prompt(text, EncodeOptions(**options), TOKENIZE)


def tokens(parsed: ReadPrompt) -> list[tuple[object, float]]:
    return [(token.id, token.weight) for chunk in parsed.chunks for token in chunk.content]


def as_page(text: str) -> str:
    """Without comments, by the pattern of ComfyUI's page; a dot of JavaScript's matches none of its four line ends."""
    return re.sub("/\\*[\\s\\S]*?\\*/|//[^\n\r\u2028\u2029]*", "", text)


def as_webui(text: str) -> str:
    return re.sub("#[^\n]*(\n|$)", "\n", re.sub("(^|\n)#[^\n]*(\n|$)", "\n", text))


@given(PIECES)
def test_what_is_left_is_what_the_page_sends(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert bare(text, has_comments=("//",), has_tags=False).fragment.text == as_page(text)


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_comments_are_not_encoded_in_any_syntax(syntax: str) -> None:
    page, webui = read(as_page(PROMPT), syntax=syntax), read(as_webui(PROMPT), syntax=syntax)
    assert tokens(read(PROMPT, syntax=syntax, comments="//")) == tokens(page)
    assert tokens(read(PROMPT, syntax=syntax, comments="#")) == tokens(webui)
    both = read(as_webui(as_page(PROMPT)), syntax=syntax)
    assert tokens(read(PROMPT, syntax=syntax, comments="# and //")) == tokens(both)
    assert len(tokens(both)) <= len(tokens(page)) and view(read(PROMPT, syntax=syntax, comments="//"))[
        "num_tokens"
    ] == len(tokens(page))


@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize("cleaning", ["as Forge", "none"])
def test_without_a_choice_only_the_syntax_own_comments_are_left_out(syntax: str, cleaning: str) -> None:
    options = EncodeOptions(syntax=syntax, cleaning=cleaning)
    assert options.comments == "as syntax"
    assert options.comment_marks == (("#",) if syntax == "a1111" and cleaning == "as Forge" else ())
    assert replace(options, quirks=True).comment_marks == (("#",) if cleaning == "as Forge" else ())


def test_the_option_is_the_last() -> None:
    assert [field.name for field in fields(EncodeOptions)][-1] == "comments"


@pytest.mark.parametrize(("comments", "marks"), [("#", ("#",)), ("//", ("//",)), ("# and //", ("#", "//"))])
def test_nothing_in_a_comment_changes_a_timed_prompt(comments: str, marks: tuple[str, ...]) -> None:
    written = "a [cat:dog:4]{} AND in a bowl <lora:ink:1>"
    noise = {"#": " # x [a:b:2]\n", "//": " /* AND y:0.5 // <lora:x:9> */"}
    source = written.format("".join(noise[mark] for mark in marks))
    options = EncodeOptions(syntax="a1111", cleaning="none", comments=comments)
    timed, plain = (
        read_timed(text, 8, has_comments=options.comment_marks, joins="neutral-prompt")
        for text in (source, written.format(""))
    )
    assert [[text.text.split() for text in branch.texts] for branch in timed.branches] == [
        [text.text.split() for text in branch.texts] for branch in plain.branches
    ]
    assert [issue.code for issue in timed.issues].count("comment") == len(marks)
    (lora,) = lora_times(source, 8, COUNTERS[0], has_comments=options.comment_marks)
    assert lora.tag.name == "ink"


def test_comments_are_grey_chips_at_their_place() -> None:
    shown = view(read(PROMPT, comments="# and //"))
    comments = [chip for chip in shown["chunks"][0]["chips"] if chip.get("comment")]
    texts = [PROMPT[chip["start"] : chip["end"]] for chip in comments]
    assert texts == ["// note (x:1.3)", "/* no\nBREAK */", "# b [c]", "//x"]
    assert [chip["text"] for chip in comments] == [" ".join(text.split()) for text in texts]
    assert all(not chip["ids"] and not chip["hidden"] for chip in comments)
    starts = [chip["start"] for chip in shown["chunks"][0]["chips"]]
    assert starts == sorted(starts)
    assert encoded_text(read(PROMPT, comments="//")) == as_page(PROMPT)


@pytest.mark.parametrize(("syntax", "word"), [("compel", "(cat)1.2"), ("a1111", "(cat:1.2)")])
def test_a_converted_prompt_loses_its_comments(syntax: str, word: str) -> None:
    converted = convert(f"{word} # note\n// more\nbowl", syntax, "comfy", TOKENIZE, marks=("#", "//"))
    assert converted.text.split() == ["(cat:1.2)", "bowl"]
    assert [issue.code for issue in converted.issues] == ["comment", "comment"]


@pytest.mark.parametrize("unit", ["/* ", "//", "/*/", "*/", "/* */", "#", "/* # // "])
def test_comments_are_found_in_one_pass(unit: str) -> None:
    text = unit * 200_000
    spans = comment_spans(text, ("#", "//"))
    assert all(first.end <= second.start for first, second in pairwise(spans))
    assert (not spans) == (unit == "/* ")  # never closed
