"""The lab as a WebUI's tab: prompts are read as the WebUI reads them, and nothing speaks of nodes."""

from __future__ import annotations

import json
import re
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from safetensors import safe_open
from weighted_clip.web.lab.components import Inputs
from weighted_clip.web.lab.handlers import TAGS_ACT, Handlers
from weighted_clip.web.lab.tabs.prompt_tabs import CompareTab, ConvertTab, ExportTab, MasksTab, ScheduleTab, TokensTab
from weighted_clip.web.lab.tabs.two_prompts import BesideTab

from .handling import BASE, small_model, strip_of, values_of

PROMPT = "a (red:1.4) [cat:dog:0.5] <lora:ink:0.8> AND sky:0.5 # blue"
FIRST = "a (red:1.4) cat"


values = partial(values_of, BASE)


@pytest.fixture
def handlers() -> Handlers:
    return Handlers(small_model, BASE, is_in_webui=True)


def views(markup: str) -> list[dict[str, Any]]:
    return strip_of(markup)["views"]


def chips(view: dict[str, Any]) -> list[str]:
    return [chip["text"] for chunk in view["chunks"] for chip in chunk["chips"]]


def test_the_strip_has_each_text_that_the_webui_makes_of_a_prompt(handlers: Handlers) -> None:
    shown = views(handlers.read(PROMPT, *values(), 1, 10)[1])
    dog_later = [["a", "red", "cat", "<lora:ink:0.8>"], ["a", "red", "dog"]]
    assert [chips(view) for view in shown] == [*dog_later, ["sky", "# blue"]]
    assert [view["steps"] for view in shown] == [[[1, 6]], [[7, 10]], [[1, 10]]]
    assert [view["weight"] for view in shown] == [1.0, 1.0, 0.5]
    assert [issue["code"] for view in shown for issue in view["issues"]] == ["comment"]
    assert shown[0]["notes"] == [TAGS_ACT]
    assert "notes" not in views(handlers.read("a cat", *values())[1])[0]


def test_other_syntaxes_are_read_of_what_the_webui_leaves(handlers: Handlers) -> None:
    first, second = views(handlers.read("[cat:dog:0.5] (red)++ <lora:ink:1>", *values(syntax="compel"))[1])
    assert chips(first) == ["cat", "red", "<lora:ink:1>"]
    assert chips(second) == ["dog", "red"]


def test_the_counter_is_that_of_the_strips_and_the_schedule_stands_there_once(handlers: Handlers) -> None:
    for counter, last in (("as the WebUI counts", 11), ("as written", 10)):
        shown = views(handlers.read(PROMPT, *values(), 1, 20, counter)[1])
        assert shown[0]["steps"] == [[1, last]]
        assert not any("node" in issue["message"] for view in shown for issue in view["issues"])
    assert "Counter must be one of: as the WebUI counts, as written; got 'late'" in unescape(
        handlers.read(PROMPT, *values(), 1, 20, "late")[1]
    )
    for lab, count in ((handlers, 0), (Handlers(small_model, BASE), 1)):
        tab = ScheduleTab(lab)
        with gr.Blocks():
            tab.build(Inputs(None, {}, [], {}))
        assert len(tab.shown) == count


def test_the_first_text_is_encoded_and_named(handlers: Handlers, tmp_path: Path) -> None:
    tokens = TokensTab(handlers).show(PROMPT, *values())[0]
    assert f"Of the 3 texts that the WebUI makes of this prompt in 20 steps, this is number 1: “{FIRST}" in unescape(
        tokens
    )
    assert re.findall("<td>(a|red|cat|dog|sky|lora)</td>", tokens) == ["a", "red", "cat"]
    assert "Of 3 texts" not in TokensTab(handlers).show("a cat", *values())[0]
    *_, drawn, (*_, told, _) = CompareTab(handlers).compare({}, ["comfy"], PROMPT, *values())
    assert "done" in told
    assert "this is number 1" in unescape(drawn[-1])
    assert json.loads(unescape(re.search("weighted-clip-of='(.*?)'", drawn[-1])[1]))["weighted_clip_prompt"] == PROMPT
    exporting = ExportTab(handlers)
    file, line = exporting.export(PROMPT, *values())
    assert "this is number 1" in unescape(line)
    with safe_open(file, framework="pt") as written:
        assert written.metadata()["prompt"] == FIRST


@pytest.fixture
def alone() -> Handlers:
    return Handlers(small_model, BASE)


def words_of(tokens: str) -> list[str]:
    return re.findall("<td>(a|red|cat|dog|sky|AND|lora)</td>", tokens)


@pytest.mark.parametrize(
    ("number", "text", "words"),
    [
        (1, FIRST, ["a", "red", "cat"]),
        (2, "a (red:1.4) dog", ["a", "red", "dog"]),
        (3, " sky", ["sky"]),
        (9, " sky", ["sky"]),
    ],
)
@pytest.mark.parametrize("is_in_webui", [True, False])
def test_each_text_is_taken_apart_as_its_user_chooses(
    handlers: Handlers, alone: Handlers, number: int, text: str, words: list[str], *, is_in_webui: bool
) -> None:
    """The second part of an AND has weights that change rows, whatever the first has."""
    lab = handlers if is_in_webui else alone
    chosen = (*values(), number, 10)
    tokens = unescape(TokensTab(lab).show(PROMPT, *chosen)[0])
    assert words_of(tokens) == words
    told = f"Of the 3 texts that the WebUI makes of this prompt in 10 steps, this is number {min(number, 3)}: “{text}"
    assert told in tokens
    assert told in unescape(MasksTab(lab).show(1, PROMPT, *chosen)[1])
    *_, drawn, (*_, done, _) = CompareTab(lab).compare({}, ["comfy"], PROMPT, *chosen)
    assert "done" in done
    assert told in unescape(drawn[-1])
    made_of = json.loads(unescape(re.search("weighted-clip-of='(.*?)'", drawn[-1])[1]))
    assert (made_of["weighted_clip_text"], made_of["weighted_clip_steps"]) == (str(number), "10")
    exporting = ExportTab(lab)
    file, line = exporting.export(PROMPT, *chosen)
    assert told in unescape(line)
    with safe_open(file, framework="pt") as written:
        assert written.metadata()["prompt"].startswith(text)
    beside = BesideTab(lab)
    assert told in unescape(beside.show(text, PROMPT, *chosen)[0])
    assert told in unescape(pooled := beside.pooled(text, PROMPT, *chosen))
    assert re.findall(r"<td>[\d.]+</td>", pooled) == ["<td>1.0000</td>"]


def test_a_weighted_second_part_is_compared(handlers: Handlers) -> None:
    for number, is_told in ((1, True), (2, False)):
        *_, drawn, _ = CompareTab(handlers).compare({}, ["comfy"], "a cat AND a (dog:1.4)", *values(), number, 20)
        assert ("No row changes" in drawn[-1]) is is_told


def test_the_choice_is_seen_where_there_is_one(handlers: Handlers, alone: Handlers) -> None:
    assert handlers.read(PROMPT, *values(), 1, 10)[3]["visible"] is True
    assert handlers.read(PROMPT, *values(), 1, 10)[3]["label"] == "Text, 1 to 3"
    assert handlers.read(PROMPT, *values(), 1, 1)[3]["label"] == "Text, 1 to 2"
    assert alone.read(PROMPT, *values(), 0, 10)[3]["label"] == "Text, 1 to 3; 0: all as written"
    for lab, prompt, given in (
        (handlers, "a (cat:1.2)", values()),
        (alone, "a (cat:1.2)", values()),
        (alone, PROMPT, values(syntax="comfy")),
        (handlers, PROMPT, values(scheme="nonsense")),
    ):
        assert lab.read(prompt, *given)[3]["visible"] is False
    assert handlers.read("[a|b]" * 2000, *values(), 1, 10_000)[3]["visible"] is False


def test_the_lab_alone_takes_all_as_it_is_written_unless_told(alone: Handlers) -> None:
    whole = TokensTab(alone).show(PROMPT, *values())[0]
    assert words_of(whole) == ["a", "red", "cat", "dog", "AND", "sky"]
    assert TokensTab(alone).show(PROMPT, *values(), 0, 10)[0] == whole
    # a number that is left from another prompt
    assert "Of " not in TokensTab(alone).show("a cat", *values(), 2, 10)[0]
    comfy = values(syntax="comfy")
    assert TokensTab(alone).show(PROMPT, *comfy, 2, 10) == TokensTab(alone).show(PROMPT, *comfy)


@pytest.mark.parametrize("number", [None, "2", 1.5, -1, 21, float("nan"), True, 10**400])
def test_a_number_that_is_none_is_told(handlers: Handlers, alone: Handlers, number: Any) -> None:
    for lab, first in ((handlers, 1), (alone, 0)):
        for told in (
            TokensTab(lab).show(PROMPT, *values(), number, 10)[0],
            ExportTab(lab).export(PROMPT, *values(), number, 10)[1],
            BesideTab(lab).show("a cat", PROMPT, *values(), number, 10)[0],
        ):
            assert f"Text must be a whole number, {first} to 20; " in unescape(told)
        assert lab.read(PROMPT, *values(), number, 10)[3]["visible"] is True


@pytest.mark.parametrize("is_in_webui", [True, False])
def test_problems_name_nothing_that_is_not_there(handlers: Handlers, alone: Handlers, *, is_in_webui: bool) -> None:
    lab = handlers if is_in_webui else alone
    said = [
        *lab.read(PROMPT, *values()),
        *ConvertTab(lab).show("compel", PROMPT, *values()),
        *ConvertTab(lab).show("comfy", PROMPT, *values()),
        *MasksTab(lab).show(1, PROMPT, *values()),
        *ScheduleTab(alone).show(PROMPT, *values()),
    ]
    assert not [one for one in said if re.search(r"\bnodes?\b", str(one))]
    assert "The tab Schedule shows how" in unescape(str(said))


def test_what_cannot_be_read_is_told(handlers: Handlers) -> None:
    assert "steps must be" in unescape(handlers.read("a cat", *values(), 1, 0)[1])
    assert "too many" in unescape(handlers.read("[a|b]" * 2000, *values(), 1, 10_000)[1])
