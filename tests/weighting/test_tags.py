"""A1111's tags, taken out before anything else is read; comments and repaired text, as Forge reads them."""

import re
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.reading.prompt_reader import ReadPrompt
from weighted_clip.weighting.reading.view import view
from weighted_clip.weighting.syntax import SYNTAXES
from weighted_clip.weighting.text.tags import bare, read_loras, take_tags
from weighted_clip.weighting.timed.schedule import read_timed

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
        ("<lora:ink:0.375:ALL>", "", [("ink", 0.375, 0.375)]),
        ("<lora:ink:0.375:0,0,1,1,0,0,0,0,0,0,0,0,0,0,0,0,0>", "", [("ink", 0.375, 0.375)]),
        ("<lora:ink:0.5:unet=much>", "", [("ink", 0.5, 0.5)]),
        ("<lora:ink:1:1:lbw=OUTALL:stop=10>", "", [("ink", 1.0, 1.0)]),
        ("<lora:ink:a=b=c>", "", [("ink", 1.0, 1.0)]),
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
        ("<lora:a:1> <lora:a:1>", ["lora", "lora", "repeated-lora"]),
        ("<lora:a:1> <lora:a:1:0.5>", ["lora", "lora"]),
        ("<lora:ink:0.375:ALL>", ["unreadable-strength", "lora"]),
        *(
            (f"<lora:ink:{options}>", ["lora", "lora-option"])
            for options in (
                "lbwe=X",
                "dyn=8",
                "0.7:0.6:8",
                "x=2:lbw=ALL:foo=bar",
                "1:1::",
            )
        ),
        *(
            (f"<lora:ink:{steps}>", ["lora", "timed-strength"])
            for steps in ("1:start=5", "step=5-10", "1:stop=0", "0@0,1@1")
        ),
        *((f"<lora:ink:{options}>", ["lora"]) for options in ("1:lbw=OUTALL", "w=INS", "1:hr=0.5:hrte=1:hrunet=2")),
        ("<lora:ink:w=1,1>", ["lora", "unreadable-blocks"]),
        ("<lora:ink:1:start=0.5>", ["lora", "unreadable-steps"]),
        ("<lora:ink:1:step=5>", ["lora", "unreadable-steps"]),
        ("no tag", []),
    ],
)
def test_every_tag_is_named(text: str, codes: list[str]) -> None:
    issues = read(text, syntax="a1111").issues
    assert sorted(issue.code for issue in issues) == sorted(codes)
    assert all(text[slice(*issue.span)].startswith("<") for issue in issues)
    assert sorted(issue.code for issue in read_timed(text, 5).issues) == sorted(codes)


@pytest.mark.parametrize(
    ("code", "text", "fixed"),
    [
        ("unclosed-tag", "a <lora:ink:0.8 <lora:b:1> c", "a <lora:ink:0.8> <lora:b:1> c"),
        ("unclosed-tag", "<lora:ink:0.8, <lora:b:1>", "<lora:ink:0.8>, <lora:b:1>"),
        ("unknown-tag", "a <LoRA:Ink:0.8> b", "a <lora:Ink:0.8> b"),
        ("unclosed-tag", "a <lora:ink", "a <lora:ink>"),
    ],
)
def test_a_tag_that_is_none_is_mended(code: str, text: str, fixed: str) -> None:
    (issue,) = (issue for issue in read(text, syntax="a1111").issues if issue.code == code)
    assert text[: issue.span.start] + issue.fix + text[issue.span.end :] == fixed
    assert {one.code for one in read(fixed, syntax="a1111").issues} == {"lora"}


def test_options_are_named_where_they_do_nothing() -> None:
    issues = read_loras(take_tags("<lora:ink:1:1:8:lbwe=ATTN:dyn=5>")[1])[1]
    (message,) = [issue.message for issue in issues if issue.code == "lora-option"]
    assert all(f"“{one}”" in message for one in ("8", "lbwe=ATTN", "dyn=5"))


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


def test_tags_within_tags_are_taken_out_once() -> None:
    text = "<" * 5_000 + "lora:x:1>" * 5_000
    found = read(text, syntax="a1111")
    assert len(found.prompt.loras) == 1
    assert len(found.prompt.fragments[0].text) == len(text) - len("<lora:x:1>")


# --- comments, and text that Forge repairs


COMMENTED = "a cat # best quality, (ugly:1.3)\nin a bowl"


def read_cleaned(text: str, **choices: str) -> ReadPrompt:
    return read(text, **{"syntax": "a1111", **choices})


def ids_of(text: str, **choices: str) -> list[object]:
    return [token.id for chunk in read_cleaned(text, **choices).chunks for token in chunk.content]


def typed(found: ReadPrompt) -> list[str]:
    """The text at the position of each token."""
    return [found.prompt.source[slice(*token.at)] for chunk in found.chunks for token in chunk.content]


@pytest.mark.cases("a1111_forge_tokens")
def test_ids_and_weights_are_those_of_forge(case: dict) -> None:
    chunks: list[list[tuple[int, float]]] = [[]]
    for ids, weight in case["expected"]:
        if ids == ["BREAK"]:
            chunks.append([])
        else:
            chunks[-1] += [(token_id, weight) for token_id in ids]
    found = [[(token.id, token.weight) for token in chunk.content] for chunk in read_cleaned(case["prompt"]).chunks]
    assert found == chunks


@pytest.mark.parametrize("prompt", ["a woman’s “red” hat", "rock &amp; roll", COMMENTED])
def test_cleaning_none_leaves_the_text_alone(prompt: str) -> None:
    plain = [token.id for token in default_tokenizer()(prompt.replace("(ugly:1.3)", "ugly"))]
    assert ids_of(prompt, cleaning="none") == plain != ids_of(prompt)


@pytest.mark.parametrize("syntax", [name for name in SYNTAXES if name != "a1111"])
def test_other_syntaxes_are_not_cleaned(syntax: str) -> None:
    prompt = "a woman’s “red” hat # &amp; all"
    assert ids_of(prompt, syntax=syntax) == [token.id for token in default_tokenizer()(prompt)]


def test_brackets_as_text_in_the_webui_are_cleaned_too() -> None:
    assert ids_of("(“a”) # b", syntax="none", chunking="a1111") == [token.id for token in default_tokenizer()('("a")')]


def test_tokens_stand_where_they_were_typed() -> None:
    found = read_cleaned("# intro\na (“red”:1.2) <lora:ink:1>oﬃce # end")
    assert typed(found) == ["a", "“", "red", "”", "oﬃce"]
    chips = view(found)["chunks"][0]["chips"]
    assert [chip["text"] for chip in chips] == ["# intro", "a", "“", "red", "”", "<lora:ink:1>", "oﬃce", "# end"]
    assert [chip["text"] for chip in chips if not chip["ids"]] == ["# intro", "<lora:ink:1>", "# end"]


def test_comments_are_marks_and_named_at_their_place() -> None:
    found = read_cleaned(COMMENTED)
    assert (6, 32) in found.prompt.marks
    (issue,) = found.issues
    assert (issue.code, issue.span) == ("comment", (6, 32))
    assert "# best quality, (ugly:1.3)" in issue.message


def test_a_comment_hides_tags_breaks_and_edits() -> None:
    text = "a # <lora:ink:1> BREAK [b:c:5] AND\nd"
    found = read_cleaned(text)
    assert len(found.chunks) == 1
    assert not found.prompt.loras
    (branch,) = read_timed(text, 10).branches
    assert [one.text for one in branch.texts] == ["a \nd"]
    assert [issue.code for issue in read_timed(text, 10).issues] == ["comment"]


def test_comments_of_timed_prompts_can_be_text() -> None:
    assert len(read_timed("a # [b:c:5]", 10, has_comments=False).branches[0].texts) == 2


def test_a_tag_goes_on_behind_a_comment() -> None:
    found = bare("<lora:i#n\n:1> a", has_comments=True, has_tags=True)
    assert (found.fragment.text, found.tags[0].items, found.tags[0].span) == (" a", ("i\n", "1"), (0, 13))


def test_hidden_phrases_are_cleaned_like_the_prompt() -> None:
    found = read_cleaned("a “red” hat", hide='"red"')
    assert [token.is_hidden for token in found.chunks[0].content] == [False, True, True, True, False]


def test_without_ftfy_it_is_said_what_is_not_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ftfy", None)
    found = read_cleaned("a cat, (“red”:1.2) hat")
    (issue,) = found.issues
    assert (issue.code, issue.span) == ("not-cleaned", (8, 13))
    assert "ftfy" in issue.message
    assert not read_cleaned("a cat, (red:1.2) hat").issues
    assert not read_cleaned("a cat, (“red”:1.2) hat", cleaning="none").issues
