"""A1111's tags: found, taken out before anything else is read, and never encoded."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from weighted_clip.weighting.tags import read_loras, take_tags
from weighted_clip.weighting.timed.schedule import read_timed
from weighted_clip.weighting.view import view

from .tiny import read


@pytest.mark.parametrize(
    ("text", "bare", "loras"),
    [
        ("a <lora:ink:0.8> cat", "a  cat", [("ink", 0.8, 0.8)]),
        ("<lora:ink>", "", [("ink", 1.0, 1.0)]),
        ("<lora:ink:0.5:0.7>x", "x", [("ink", 0.5, 0.7)]),
        ("<lora:ink:te=0.5:unet=0.7>", "", [("ink", 0.5, 0.7)]),
        ("<lora:ink:0.3:unet=-1>", "", [("ink", 0.3, -1.0)]),
        ("<lora:my style v2.1:1><lyco:b:2>", "", [("my style v2.1", 1.0, 1.0), ("b", 2.0, 2.0)]),
        ("a < b <3 <> <lora> <:x> c>", "a < b <3 <> <lora> <:x> c>", []),
        ("<lora:never closed", "<lora:never closed", []),
        ("<hypernet:x:1> y", " y", []),
    ],
)
def test_tags_are_taken_out(text: str, bare: str, loras: list) -> None:
    fragment, tags = take_tags(text)
    assert fragment.text == bare
    found, _ = read_loras(tags)
    assert [lora[:3] for lora in found] == loras
    assert all(text[slice(*tag.span)].startswith("<") and text[slice(*tag.span)].endswith(">") for tag in tags)


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("<lora:ink:abc>", ["unreadable-strength", "lora"]),
        ("<lora:ink:nan>", ["unreadable-strength", "lora"]),
        ("<hypernet:x:1>", ["unknown-tag"]),
        ("<lora:a:1> <lora:b:1>", ["lora", "lora"]),
        ("no tag", []),
    ],
)
def test_every_tag_is_named(text: str, codes: list[str]) -> None:
    issues = read(text, syntax="a1111").issues
    assert sorted(issue.code for issue in issues) == sorted(codes)
    assert all(text[slice(*issue.span)].startswith("<") for issue in issues)
    assert sorted(issue.code for issue in read_timed(text, 5).issues) == sorted(codes)


def tokens(text: str) -> list[tuple[object, float]]:
    return [(t.id, t.weight) for chunk in read(text, syntax="a1111").chunks for t in chunk.content]


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("a <lora:ink:0.8> (cat:1.2)", "a  (cat:1.2)"),
        ("(a <lora:x(1):0.8>cat:1.2)", "(a cat:1.2)"),
        ("ca<lora:x:1>t", "cat"),
        ("a BREAK<lora:x:1> b", "a BREAK b"),
    ],
)
def test_the_rest_is_read_as_if_no_tag_had_been_there(text: str, bare: str) -> None:
    assert tokens(text) == tokens(bare)


def test_places_count_the_tags() -> None:
    text = "<lora:ink:0.8> a (red:1.2) cat"
    found = read(text, syntax="a1111")
    shown = view(found)
    chips = shown["chunks"][0]["chips"]
    assert [chip["text"] for chip in chips] == ["<lora:ink:0.8>", "a", "red", "cat"]
    assert [chip["hidden"] for chip in chips] == [True, False, False, False]
    assert shown["text"] == text
    assert (0, 14) in found.prompt.marks
    assert [lora.name for lora in found.prompt.loras] == ["ink"]


def test_tags_within_edits_do_not_disturb_them() -> None:
    text = "a [<lora:ink:0.8>cat:dog:0.5] AND <lora:b:1>x:0.3"
    prompt = read_timed(text, 10)
    assert [[(t.last_step, t.text) for t in branch.texts] for branch in prompt.branches] == [
        [(5, "a cat"), (10, "a dog")],
        [(10, " x")],
    ]
    for branch in prompt.branches:
        for timed in branch.texts:
            assert "".join(text[i] for i in timed.fragment.positions) == timed.text


@given(st.lists(st.sampled_from(["<lora:", "<lora:>", "<lyco:a:1>", "<", ">", ":", "a", " red cat "])).map("".join))
@example("<lora:> a red cat <lora:x:1>")
def test_tags_are_those_that_the_webui_finds(text: str) -> None:
    theirs = [found.span() for found in re.finditer(r"<(\w+):([^>]+)>", text)]  # as its extra_networks.py says it
    assert [tag.span for tag in take_tags(text)[1]] == theirs


def test_other_syntaxes_take_tags_for_text() -> None:
    assert len(read("<lora:a:1>").chunks[0].content) > 3


@given(st.text(alphabet="<>:lora1 ()[]", max_size=40))
def test_tags_and_rest_are_all_of_any_text(text: str) -> None:
    fragment, tags = take_tags(text)
    spans = sorted([*(piece.span for piece in fragment.pieces), *(tag.span for tag in tags)])
    assert "".join(text[slice(*span)] for span in spans) == text


def test_tags_within_tags_are_taken_out_once() -> None:
    text = "<" * 5_000 + "lora:x:1>" * 5_000
    found = read(text, syntax="a1111")
    assert len(found.prompt.loras) == 1
    assert len(found.prompt.fragments[0].text) == len(text) - len("<lora:x:1>")


def test_many_openings_without_an_end_take_one_look() -> None:
    text = "<lora:" * 30_000
    assert take_tags(text)[0].text == text
