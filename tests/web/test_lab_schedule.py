"""The lab's tab for timed prompts: a strip for each text, with the steps at which the sampler is given it."""

from __future__ import annotations

import json
from html import unescape
from typing import Any

import pytest
from weighted_clip.commands.program import main
from weighted_clip.web.inspection import MAX_VIEWS
from weighted_clip.web.lab.components import PREFIX
from weighted_clip.web.lab.handlers import Handlers
from weighted_clip.web.lab.page import build_page
from weighted_clip.web.lab.tabs import COMPARED, TIMED_EXAMPLE, ScheduleTab
from weighted_clip.weighting.timed.schedule import COUNTERS

from .handling import BASE, small_model, strip_of, values_of
from .lab_in_browser import LabPage


@pytest.fixture
def handlers() -> Handlers:
    return Handlers(small_model, BASE)


def shown(handlers: Handlers, text: str, steps: Any = 20, counter: str = "as written", **changes: str) -> Any:
    return strip_of(ScheduleTab(handlers).show(counter, text, *values_of(BASE, **changes), 0, steps)[0])


def test_every_text_has_its_steps_and_tokens(handlers: Handlers) -> None:
    views = shown(handlers, "a [cat:(dog:1.2):0.5] AND [x|y] b :0.5", 4)["views"]
    told = [
        (
            " ".join(chip["text"] for chunk in view["chunks"] for chip in chunk["chips"]),
            view["branch"],
            view["weight"],
            view["steps"],
        )
        for view in views
    ]
    assert told == [
        ("a cat", 0, 1.0, [[1, 2]]),
        ("a dog", 0, 1.0, [[3, 4]]),
        ("x b", 1, 0.5, [[1, 1], [3, 3]]),
        ("y b", 1, 0.5, [[2, 2], [4, 4]]),
    ]
    assert [chip["weight"] for chip in views[1]["chunks"][0]["chips"]] == [1.0, 1.2]


def test_the_counter_of_the_webui_is_a_step_late(handlers: Handlers) -> None:
    late = shown(handlers, "a [cat:dog:0.5]", 4, COUNTERS[0])["views"]
    assert [view["steps"] for view in late] == [[[1, 3]], [[4, 4]]]


def test_a_text_without_times_stands_at_all_steps_in_any_syntax(handlers: Handlers) -> None:
    (view,) = shown(handlers, "a (cat:1.2)", 7, syntax="comfy")["views"]
    assert view["steps"] == [[1, 7]]
    assert view["issues"] == []


def test_the_example_of_the_tab_changes_halfway(handlers: Handlers) -> None:
    views = shown(handlers, TIMED_EXAMPLE, 20)["views"]
    assert [view["steps"] for view in views] == [[[1, 10]], [[11, 20]]]


def test_more_texts_than_are_shown_are_counted(handlers: Handlers) -> None:
    views = shown(handlers, f"[{'|'.join(map(str, range(MAX_VIEWS + 5)))}] cat", 100)["views"]
    assert len(views) == MAX_VIEWS
    assert views[-1]["num_more"] == 5


@pytest.mark.parametrize(
    ("steps", "counter", "told"),
    [
        (0, "as written", "steps must be a whole number, 1 to 10000; got 0"),
        (None, "as written", "steps must be a whole number"),
        (2.5, "as written", "got 2.5"),
        (20, "as ever", "counter must be one of: as the WebUI counts, as written; got 'as ever'"),
    ],
)
def test_what_cannot_be_counted_is_said(handlers: Handlers, steps: Any, counter: str, told: str) -> None:
    data = shown(handlers, "[a|b]", steps, counter)
    assert told in data["message"]
    assert data["views"] == []


def test_only_the_open_tab_is_filled() -> None:
    page = build_page(small_model)
    follow = next(one for one in page.fns.values() if one.fn and one.fn.__name__ == "follow")
    assert follow.fn
    fill = follow.fn
    first = [part.value for part in follow.inputs]
    names = [part.elem_id.removeprefix(PREFIX) for part in follow.outputs]
    filled = {
        title: [name for name, one in zip(names, fill(title, *first[1:]), strict=True) if isinstance(one, str)]
        for title in ("Tokens", "Masks", "Convert", "Export", "Schedule", "Two prompts")
    }
    assert filled == {
        "Tokens": ["tokens"],
        "Masks": ["masks"],
        "Convert": ["converted", "conversion_problems"],
        "Export": [],
        "Schedule": ["schedule"],
        "Two prompts": ["panes"],
    }


def test_problems_name_what_is_there_where_they_are_shown(handlers: Handlers, capsys) -> None:
    text = "a [cat:dog:0.5] AND b"
    markup = unescape(handlers.read(text, *values_of(BASE))[1])
    assert markup.count("The tab Schedule shows how; here") >= 2
    assert "A1111 Prompt node" not in markup
    assert main(["inspect", text]) == 0
    told = capsys.readouterr().out
    assert told.count("The command schedule shows how; here") == 2
    assert "A1111 Prompt node" not in told


def test_the_tab_draws_and_follows(lab: LabPage) -> None:
    lab.fill("prompt", "a [cat:dog:0.5]")
    lab.open_part("Schedule")
    lab.tab.wait(f"return document.body.innerText.includes({json.dumps(TIMED_EXAMPLE)})")
    text = "return document.querySelector('#weighted_clip_tab_schedule .weighted-clip-ruler')?.innerText ?? ''"
    lab.tab.wait(f"{text.replace('return ', 'return (')}).includes('steps 12–20')")
    assert "steps 1–11" in lab.tab.run(text)
    lab.fill_new("steps", "10")
    lab.tab.wait(f"{text.replace('return ', 'return (')}).includes('steps 7–10')")
    lab.choose("counter", "as written")
    lab.tab.wait(f"{text.replace('return ', 'return (')}).includes('steps 6–10')")
    lab.fill("prompt", "a [red|blue] cat")
    lab.tab.wait(f"{text.replace('return ', 'return (')}).includes('steps 1, 3')")
    chips = "return [...document.querySelectorAll('#weighted_clip_tab_schedule .wcr-chip')].map((one) => one.innerText)"
    assert lab.tab.run(chips) == ["a", "red", "cat", "a", "blue", "cat"]


def test_the_user_chooses_which_text_is_taken_apart(lab: LabPage) -> None:
    field = "!!document.querySelector('#weighted_clip_text input')?.offsetParent"
    lab.fill("prompt", "a cat AND a (dog:1.4)")
    lab.wait_for_text("tokens", "AND")
    lab.tab.wait(f"return {field}")
    lab.fill_new("text", "2")
    lab.wait_for_text("tokens", "this is number 2: “ a (dog:1.4)”")
    lab.open_part("Compare schemes")
    lab.click("compare")
    lab.wait_for_text("progress", "done")
    # only unweighted, which is what the others are compared with
    assert lab.wait_for_text("comparison", "this is number 2").count("No row changes") == 1
    lab.fill_new("text", "1")
    lab.tab.wait("return !!document.querySelector('#weighted_clip_comparison .weighted-clip-stale')")
    lab.click("compare")
    counted = "document.querySelector('#weighted_clip_comparison').innerText.split('No row changes').length"
    lab.tab.wait(f"return {counted} === {len(COMPARED) + 1}")
    lab.open_part("Two prompts")
    lab.fill_new("other", "a cat")
    lab.wait_for_text("panes", "this is number 1")
    lab.wait_for_text("panes", "2 tokens in both")
    lab.fill("prompt", "a cat")
    lab.tab.wait(f"return !{field}")
