"""Prompts read as Forge reads them: comments taken out, text repaired, everything in its place."""

import sys

import pytest
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.reading import ReadPrompt
from weighted_clip.weighting.syntax import SYNTAXES
from weighted_clip.weighting.tags import bare
from weighted_clip.weighting.timed.schedule import read_timed
from weighted_clip.weighting.view import view

from . import tiny

COMMENTED = "a cat # best quality, (ugly:1.3)\nin a bowl"


def read(text: str, **choices: str) -> ReadPrompt:
    return tiny.read(text, **{"syntax": "a1111", **choices})


def ids_of(text: str, **choices: str) -> list[object]:
    return [token.id for chunk in read(text, **choices).chunks for token in chunk.content]


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
    found = [[(token.id, token.weight) for token in chunk.content] for chunk in read(case["prompt"]).chunks]
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
    found = read("# intro\na (“red”:1.2) <lora:ink:1>oﬃce # end")
    assert typed(found) == ["a", "“", "red", "”", "oﬃce"]
    chips = view(found)["chunks"][0]["chips"]
    assert [chip["text"] for chip in chips] == ["a", "“", "red", "”", "<lora:ink:1>", "oﬃce"]
    assert [chip["text"] for chip in chips if not chip["ids"]] == ["<lora:ink:1>"]


def test_comments_are_marks_and_named_at_their_place() -> None:
    found = read(COMMENTED)
    assert (6, 32) in found.prompt.marks
    (issue,) = found.issues
    assert (issue.code, issue.span) == ("comment", (6, 32))
    assert "# best quality, (ugly:1.3)" in issue.message


def test_a_comment_hides_tags_breaks_and_edits() -> None:
    text = "a # <lora:ink:1> BREAK [b:c:5] AND\nd"
    found = read(text)
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
    found = read("a “red” hat", hide='"red"')
    assert [token.is_hidden for token in found.chunks[0].content] == [False, True, True, True, False]


def test_without_ftfy_it_is_said_what_is_not_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ftfy", None)
    found = read("a cat, (“red”:1.2) hat")
    (issue,) = found.issues
    assert (issue.code, issue.span) == ("not-cleaned", (8, 13))
    assert "ftfy" in issue.message
    assert not read("a cat, (red:1.2) hat").issues
    assert not read("a cat, (“red”:1.2) hat", cleaning="none").issues
