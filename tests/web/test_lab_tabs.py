"""The lab's tabs for two prompts and for timed ones: shared tokens, pooled vectors, and a strip for each text."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import gradio as gr
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.studio.commands.program import main
from weighted_clip.web.lab.components import PREFIX
from weighted_clip.web.lab.handlers import Handlers
from weighted_clip.web.lab.model import LabError
from weighted_clip.web.lab.page import build_page
from weighted_clip.web.lab.tabs.prompt_tabs import COMPARED, TIMED_EXAMPLE, MasksTab, ScheduleTab
from weighted_clip.web.lab.tabs.two_prompts import MAX_TOKENS, BesideTab, compared
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.timed.schedule import COUNTERS
from weighted_clip.workshop.peers.transformers import transformers_text_model

from ..libraries import library
from .chromium import Browser
from .handling import BASE, CONFIG, no_model, noting, small_model, strip_of, values_of
from .lab_in_browser import LabPage

VALUES = values_of(BASE)


@pytest.fixture
def beside() -> BesideTab:
    return BesideTab(Handlers(small_model, BASE))


def of(one: str, other: str, syntax: str = "a1111") -> list[list[tuple[str, str]]]:
    reads = (read_prompt(text, EncodeOptions(syntax=syntax), default_tokenizer()) for text in (one, other))
    return [[(token.text, token.kind) for token in some] for some in compared(*reads)]


def test_tokens_are_laid_beside_each_other() -> None:
    first, second = of("a (red:1.4) cat in a bowl", "a red dog in a hat, (bowl:1)")
    assert first == [
        *(("a", "same"), ("red", "weight"), ("cat", "own"), ("in", "same"), ("a", "same"), ("bowl", "same"))
    ]
    assert [text for text, kind in second if kind == "own"] == ["dog", "hat", ","]
    assert ("red", "weight") in second


@given(*[st.lists(st.sampled_from(["a", "red", "(cat:1.2)", "🦊", "BREAK", "dog,"]), max_size=12)] * 2)
def test_what_is_in_both_is_the_same_in_both_and_all_else_is_left(one: list[str], other: list[str]) -> None:
    texts = " ".join(one), " ".join(other)
    found = of(*texts)
    shared = [[text for text, kind in some if kind != "own"] for some in found]
    assert shared[0] == shared[1]
    for text, some in zip(texts, found, strict=True):
        plain = re.sub(r"\(cat:1.2\)", "cat", text).replace("BREAK", "")
        assert len(some) == len(default_tokenizer()(plain))
    assert all(kind == "same" for some in of(texts[0], texts[0]) for _, kind in some)


def test_the_tab_counts_and_escapes(beside: BesideTab) -> None:
    markup = unescape(beside.show("a red <b>", "a (red:1.4) cat", *VALUES)[0])
    assert "2 tokens in both, 1 only in the prompt, 3 only in the other, 1 with another weight." in markup
    assert "The prompt: 3 tokens" in markup
    assert "The other: 5 tokens" in markup
    assert "<b>" not in beside.show("a red <b>", "a (red:1.4) cat", *VALUES)[0]
    assert "Type another prompt" in beside.show(" ", "a cat", *VALUES)[0]
    assert "lone surrogate" in beside.show("a \ud800", "a cat", *VALUES)[0]
    assert f"the first {MAX_TOKENS:,} are compared" in beside.show("cat " * 3000, "a cat", *VALUES)[0]


def test_pooled_vectors_are_compared_as_those_of_transformers(beside: BesideTab) -> None:
    library("transformers", "4.46")
    reference = transformers_text_model(seeded_text_model(CONFIG), "eager")
    pooled = []
    for text in ("a red cat", "two dogs"):
        ids = [CONFIG.bos_id, *(token.id for token in default_tokenizer()(text))]
        with torch.no_grad():
            output = reference(torch.tensor([ids + [CONFIG.eos_id] * (77 - len(ids))]))
        pooled.append(output.pooler_output[0].double())
    expected = torch.nn.functional.cosine_similarity(*pooled, dim=0)
    markup = beside.pooled("two dogs", "a (red:1.4) cat", *VALUES)
    found = re.search(r"<td>clip_l</td><td>([-0-9.]+)</td><td>([0-9.]+)°</td>", markup)
    assert found
    assert abs(float(found[1]) - expected.item()) < 6e-5
    assert abs(float(found[2]) - torch.rad2deg(expected.acos()).item()) < 0.06
    assert expected < 0.999
    same = beside.pooled("a red cat", "a (red:1.4) cat", *VALUES)
    assert "<td>1.0000</td><td>0.0°</td>" in same, "weights do not count"


def test_cosines_go_through_run_and_errors_are_told() -> None:
    calls: list[str] = []
    tab = BesideTab(Handlers(small_model, BASE, noting(calls)))
    tab.show("a dog", "a cat", *VALUES)
    assert calls == []
    tab.pooled("a dog", "a cat", *VALUES)
    assert calls == ["pooled_cosines"]
    tab = BesideTab(Handlers(no_model, BASE))
    assert "No model is loaded yet." in tab.pooled("a dog", "a cat", *VALUES)
    assert "1 token in both" in tab.show("a dog", "a cat", *VALUES)[0]


# --- in a browser


def test_two_prompts_are_kept_compared_and_grow_old(lab: LabPage, small_lab: str) -> None:
    lab.open_part("Two prompts")
    lab.fill_new("other", "a red cat in a hat")
    lab.wait_for_text("panes", "5 tokens in both, 4 only in the prompt, 1 only in the other, 1 with another weight.")
    lab.click("compare_pooled")
    lab.wait_for_text("pooled", "clip_l")
    lab.fill("prompt", "a cat in a hat")
    lab.wait_for_text("panes", "5 tokens in both, 0 only in the prompt, 1 only in the other.")
    lab.tab.wait("return !!document.querySelector('#weighted_clip_pooled .weighted-clip-stale')")
    lab.tab.wait('return /"a red cat in a hat"/.test(decodeURIComponent(location.hash))')
    lab.tab.wait('return /"a cat in a hat"/.test(decodeURIComponent(location.hash))')
    lab.tab.open("about:blank")
    lab.open(small_lab)
    lab.open_part("Two prompts")
    lab.wait_for_value("other", "a red cat in a hat")
    lab.wait_for_text("panes", "1 only in the other.")


def test_ids_and_table_are_copied(lab: LabPage) -> None:
    lab.fill("prompt", "a 🦊")
    lab.wait_for_text("tokens", "byte 4 of 4 of 🦊")
    assert "3 tokens of 3 characters in 1 chunk: 3 of 75" in lab.text("tokens")
    lab.tab.allow_clipboard()
    press = "document.querySelectorAll('#weighted_clip_tokens .weighted-clip-copy')[args[0]].click()"
    lab.tab.run(press, 0)
    lab.wait_for_text("tokens", "Copied.")
    assert lab.tab.run("return navigator.clipboard.readText()") == "[320, 6040, 488]"
    lab.tab.run(press, 1)
    lab.tab.wait("return (await navigator.clipboard.readText()).includes('\\t')")
    lines = lab.tab.run("return navigator.clipboard.readText()").splitlines()
    assert lines[0].split("\t")[:3] == ["Chunk", "Position", "Id"]
    assert lines[3].split("\t")[2:4] == ["488", "🦊"]


def test_signs_of_markup_are_copied_as_they_are(lab: LabPage) -> None:
    lab.fill("prompt", 'a cat\'s <b> &amp; "dog"')
    lab.wait_for_text("tokens", "12 tokens")
    lab.tab.allow_clipboard()
    lab.tab.run("document.querySelectorAll('#weighted_clip_tokens .weighted-clip-copy')[1].click()")
    lab.wait_for_text("tokens", "Copied.")
    lines = lab.tab.run("return navigator.clipboard.readText()").splitlines()
    words = ["a", "cat", "'s", "<", "b", ">", "&", "amp", ";", '"', "dog", '"']
    assert [line.split("\t")[3] for line in lines] == ["Text", *words]


@pytest.fixture
def handlers() -> Handlers:
    return Handlers(small_model, BASE)


def shown(handlers: Handlers, text: str, steps: Any = 20, counter: str = "as written", **changes: str) -> Any:
    return strip_of(ScheduleTab(handlers).show(text, *values_of(BASE, **changes), 0, steps, counter)[0])


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


@pytest.mark.parametrize(
    ("steps", "counter", "told"),
    [
        (0, "as written", "Sampling steps must be a whole number, 1 to 10000; got 0"),
        (None, "as written", "Sampling steps must be a whole number"),
        (2.5, "as written", "got 2.5"),
        (20, "as ever", "Counter must be one of: as the WebUI counts, as written; got 'as ever'"),
    ],
)
def test_what_cannot_be_counted_is_said(handlers: Handlers, steps: Any, counter: str, told: str) -> None:
    data = shown(handlers, "[a|b]", steps, counter)
    assert told in data["message"]
    assert data["views"] == []


def test_a_box_for_whole_numbers_refuses_others_as_they_were_typed() -> None:
    """gradio would round them before our handlers see them."""
    page = build_page(small_model)
    boxes = [block for block in page.blocks.values() if isinstance(block, gr.Number)]
    assert {"Text", "Chunk", "Sampling steps"} <= {box.label for box in boxes}
    assert all(box.preprocess(1.5) == 1.5 for box in boxes)
    handlers, values = Handlers(small_model, BASE), VALUES
    with pytest.raises(LabError, match=r"Text must be a whole number, 0 to 20; got 1.5"):
        handlers.prompt_text("a cat AND a dog", [*values, 1.5, 20, "as written"])
    for odd in (1.5, None, float("nan"), "2", 0):
        assert "Chunk must be a whole number, 1 to 1; " in MasksTab(handlers).show(odd, "a cat", *values)[1]
    assert "<img" in MasksTab(handlers).show(7, "a cat", *values)[1]  # there were more chunks when it was typed


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
    assert "A1111/Forge Prompt node" not in markup
    assert main(["inspect", text]) == 0
    told = capsys.readouterr().out
    assert told.count("The command schedule shows how; here") == 2
    assert "A1111/Forge Prompt node" not in told


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
    assert "No row changes" not in lab.wait_for_text("comparison", "this is number 2")
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


def test_on_a_phone_weights_are_seen_and_masks_can_be_read(browser: Browser, small_lab: str) -> None:
    with browser.tab(width=390, height=844) as tab:
        tab.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
        page = LabPage(tab)
        page.open(small_lab)
        heads = "[...document.querySelectorAll('#weighted_clip_tokens th')]"
        weight = f"{heads}.find((one) => one.textContent === 'Weight')?.getBoundingClientRect()"
        assert tab.wait(f"return {weight}?.right") < 380
        page.open_part("Masks")
        page.wait_for_pictures("masks", 3)
        scales = (
            "return [...document.querySelectorAll('#weighted_clip_masks img')]"
            "  .map((one) => one.getBoundingClientRect().width / one.naturalWidth)"
        )
        assert min(tab.run(scales)) >= 0.6
        page.open_part("Compare schemes")
        far = (
            "const at = (id) => document.querySelector(`#weighted_clip_${id}`).getBoundingClientRect();"
            "return at('progress').top - at('prompt').top"
        )
        assert 0 < tab.run(far) < 1000
        assert tab.run("return document.documentElement.scrollWidth") <= 390


def test_no_menu_stands_alone_in_its_row(browser: Browser, small_lab: str) -> None:
    for width in (1200, 1366):
        with browser.tab(width=width, height=900) as tab:
            page = LabPage(tab)
            page.open(small_lab)
            tab.run("document.querySelector('#weighted_clip_more .label-wrap').click()")
            menus = (
                "return [...document.querySelectorAll(':is(#weighted_clip_choices, #weighted_clip_more)"
                "  input[role=combobox]')].filter((one) => one.offsetParent)"
                "  .map((one) => Math.round(one.getBoundingClientRect().bottom / 8))"
            )
            tab.wait(f"return (() => {{ {menus} }})().length === 11")
            rows = tab.run(menus)
            # a hint of two lines makes a menu end lower
            assert all(sum(abs(row - other) <= 3 for other in rows) >= 2 for row in rows), rows
