"""Generation data pasted into a prompt box, in a real ComfyUI and Chromium, on the canvas and in Nodes 2.0."""

from __future__ import annotations

from typing import Any

import pytest

from .ruler_page import RulerPage

pytestmark = pytest.mark.host

PROMPT = "a (red:1.2) cat, <b>bold</b>"
NEGATIVE = "blurry, <img src=x onerror='window.hit=1'>"
SETTINGS = "Steps: 20, Sampler: Euler a, CFG scale: 7, Seed: 1, Model: <script>window.hit=2</script>"
PASTED = f"{PROMPT}\nNegative prompt: {NEGATIVE}\n{SETTINGS}"
OURS, STOCK = "WeightedCLIPTextEncode", "CLIPTextEncode"
TEXTS = (
    "return app.graph.nodes.filter(({ type }) => type.endsWith('TextEncode')).sort((one, other) => one.id - other.id)"
    ".map(({ widgets }) => widgets.find(({ name }) => name === 'text').value)"
)
SPLIT = "[...document.querySelectorAll('.wcr-problems .wcr-button')].find(({ innerText }) => /^Split/.test(innerText))"
LISTED = "return [...document.querySelectorAll('.wcr-setting')].map((one) => one.innerText)"


def node(kind: str, text: str) -> dict[str, Any]:
    return {"class_type": kind, "inputs": {"text": text}}


def sampler(positive: str, negative: str | None) -> dict[str, Any]:
    links = {"positive": [positive, 0], **({"negative": [negative, 0]} if negative else {})}
    return {"class_type": "KSampler", "inputs": {**links, "seed": 1, "steps": 1, "cfg": 1}}


def load(page: RulerPage, *nodes: dict[str, Any]) -> None:
    """Load nodes, beside each other."""
    page.load(*nodes)
    page.run(
        "app.graph.nodes.forEach((node, i) => { node.pos = [60 + 440 * (i % 3), 90 + 500 * Math.floor(i / 3)]; });"
        "app.canvas.setDirty(true, true); await new Promise((done) => setTimeout(done, 300))"
    )


def split(page: RulerPage) -> str:
    """Click the button, with the mouse; its text."""
    page.wait(f"return Boolean({SPLIT})")
    button = page.run(f"return {SPLIT}")
    text = button.text
    button.click()
    return text


def wait_for_texts(page: RulerPage, *texts: str) -> None:
    page.wait(f"return JSON.stringify((() => {{ {TEXTS} }})()) === JSON.stringify(args[0])", list(texts))


@pytest.mark.parametrize("kind", [STOCK, OURS])
def test_a_click_fills_both_prompts_and_lists_the_settings(page: RulerPage, kind: str) -> None:
    load(page, node(OURS, PASTED), node(kind, "ugly"), sampler("1", "2"))
    page.wait(f"return Boolean({SPLIT})")
    assert page.run(TEXTS) == [PASTED, "ugly"]
    assert page.run("return app.graph.nodes[1].title") in split(page)
    wait_for_texts(page, PROMPT, NEGATIVE)
    page.wait_for(problems=[], chips=[*("a", "red 1.2", "cat", ",", "<", "b", ">", "bold", "</", "b", ">")])
    listed = page.run(LISTED)
    assert listed[1:] == [one.replace(": ", " ") for one in SETTINGS.split(", ")]
    assert page.run("return [window.hit ?? null, document.querySelector('.wcr-box img, .wcr-box b b')]") == [None, None]
    page.press("z", control=True)  # the focus is nowhere
    wait_for_texts(page, PASTED, "ugly")
    page.press("y", control=True)
    wait_for_texts(page, PROMPT, NEGATIVE)


def test_one_line_is_split_and_what_was_guessed_is_said(page: RulerPage) -> None:
    line = SETTINGS.rpartition(", ")[0]
    load(page, node(OURS, f"a cat. Negative prompt: blurry. {line}"), node(OURS, ""), sampler("1", "2"))
    split(page)
    wait_for_texts(page, "a cat.", "blurry.")
    page.wait("return document.querySelector('.wcr-message')?.innerText.includes('within a line')")
    assert page.run(LISTED)[1:] == [one.replace(": ", " ") for one in line.split(", ")]


def test_the_button_stands_before_other_problems(page: RulerPage) -> None:
    load(page, node(OURS, f"[one], [two], <lora:three:1>, [four], {PASTED}"), sampler("1", None))
    page.wait(f"return Boolean({SPLIT})")
    assert page.run(f"return document.querySelector('.wcr-problems').firstElementChild === {SPLIT}.parentElement")


def test_each_box_takes_its_text_back_by_one_key(page: RulerPage) -> None:
    load(page, node(OURS, PASTED), node(OURS, "ugly"), sampler("1", "2"))
    split(page)
    wait_for_texts(page, PROMPT, NEGATIVE)
    page.text_area(0).click()
    page.press("z", control=True)
    wait_for_texts(page, PASTED, NEGATIVE)
    page.text_area(1).click()
    page.press("z", control=True)
    wait_for_texts(page, PASTED, "ugly")


def test_without_another_node_the_negative_prompt_is_copied(page: RulerPage) -> None:
    load(page, node(OURS, PASTED), sampler("1", None))
    assert "copy" in split(page)
    wait_for_texts(page, PROMPT)
    area = page.text_area()
    area.click()
    page.press("a", "v", control=True)
    wait_for_texts(page, NEGATIVE)


def test_data_pasted_into_the_negative_node_goes_the_other_way(page: RulerPage) -> None:
    load(page, node(STOCK, ""), node(OURS, PASTED), sampler("1", "2"))
    split(page)
    wait_for_texts(page, PROMPT, NEGATIVE)


def test_the_way_to_the_sampler_may_lead_through_other_nodes(page: RulerPage) -> None:
    part = {"class_type": "ConditioningSetTimestepRange", "inputs": {"start": 0, "end": 1}}
    ways = [{**part, "inputs": {**part["inputs"], "conditioning": [number, 0]}} for number in ("1", "2")]
    load(page, node(OURS, PASTED), node(STOCK, ""), *ways, sampler("3", "4"))
    split(page)
    wait_for_texts(page, PROMPT, NEGATIVE)


def test_lists_of_civitai_stay_whole(page: RulerPage) -> None:
    resources = '[{"type":"checkpoint","modelVersionId":1},{"type":"lora","weight":0.8}]'
    load(page, node(OURS, f"{PROMPT}\n{SETTINGS}, Civitai resources: {resources}"))
    split(page)
    wait_for_texts(page, PROMPT)
    assert any(one.startswith('Civitai resources [{"type":"check') for one in page.run(LISTED))


def test_a_megabyte_is_pasted(page: RulerPage) -> None:
    load(page, node(OURS, "a cat"))
    page.wait_for(chips=["a", "cat"])
    area = page.text_area()
    area.click()
    huge = f"{'((' * 250_000}\nNegative prompt: {'x, ' * 170_000}\n{SETTINGS}"
    page.run("args[0].select(); document.execCommand('insertText', false, args[1])", area, huge)
    page.wait("return document.querySelector('.wcr-bar').innerText.includes('longer than 64 KiB')")
    page.run("args[0].select(); document.execCommand('insertText', false, args[1])", area, PASTED)
    page.wait(f"return Boolean({SPLIT})")
    page.press("z", "z", control=True)
    wait_for_texts(page, "a cat")
