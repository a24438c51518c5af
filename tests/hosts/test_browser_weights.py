"""Weights changed by keys, wheel and slider, and prompts converted from the ruler, in a real ComfyUI and Chromium."""

from __future__ import annotations

from typing import Any

import pytest
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.reading.convert import convert
from weighted_clip.weighting.syntax import parse

from .ruler_page import VALUE, RulerPage, inspect_node

pytestmark = pytest.mark.host

SYNTAXES = ("comfy", "a1111", "compel")
TEXT = "a red cat on a mat"
VALUES = "return app.graph.nodes[0].widgets.filter(({ name }) => name.startsWith('text')).map(({ value }) => value)"
BUTTONS = ".wcr-problems .wcr-button"


def load(page: RulerPage, text: str, syntax: str) -> None:
    """An Inspect node."""
    page.load_inspect(text, syntax=syntax)
    page.wait("return document.querySelectorAll('.wcr-chip').length > 0")


def weights(text: str, syntax: str) -> dict[str, float]:
    """The weights that are not 1 by their text, as the node reads it."""
    fragments = parse(text, syntax).fragments
    return {one.text.strip(): round(one.weight, 6) for one in fragments if one.weight != 1 and one.text.strip()}


def click_chip(page: RulerPage, text: str) -> None:
    """Click a chip."""
    from selenium.webdriver import ActionChains

    chips = page.driver.find_elements("css selector", ".wcr-chip")
    (chip,) = (one for one in chips if one.find_element("css selector", ".wcr-text").text == text)
    ActionChains(page.driver).move_to_element(chip).click().perform()


def select(page: RulerPage, word: str) -> None:
    """Put the caret into a word of the box."""
    area = page.text_area()
    area.click()
    page.run("args[0].setSelectionRange(args[1], args[1])", area, area.get_attribute("value").index(word) + 1)


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_ctrl_and_arrows_write_the_nodes_own_syntax(page: RulerPage, syntax: str) -> None:
    load(page, TEXT, syntax)
    select(page, "cat")
    page.press("ARROW_UP", control=True)
    written = page.run(VALUE)
    assert written == {"compel": "a red (cat)1.05 on a mat"}.get(syntax, "a red (cat:1.05) on a mat")
    assert weights(written, syntax) == {"cat": 1.05}
    page.press("ARROW_DOWN", "ARROW_DOWN", control=True)
    assert weights(page.run(VALUE), syntax) == {"cat": 0.95}
    page.wait_for(chips=["a", "red", "cat 0.95", "on", "a", "mat"])
    page.press("ARROW_UP", control=True)
    assert page.run(VALUE) == TEXT


def test_ctrl_z_takes_a_weight_back(page: RulerPage) -> None:
    load(page, TEXT, "compel")
    select(page, "cat")
    page.press("ARROW_UP", "ARROW_UP", control=True)
    assert weights(page.run(VALUE), "compel") == {"cat": 1.1}
    page.press("z", "z", control=True)
    assert page.run(VALUE) == TEXT


def test_signs_of_compel_become_a_number(page: RulerPage) -> None:
    load(page, "a cat++ on a (red mat)1.2", "compel")
    select(page, "cat")
    page.press("ARROW_UP", control=True)
    select(page, "mat")
    page.press("ARROW_DOWN", control=True)
    assert weights(page.run(VALUE), "compel") == {"cat": 1.26, "red mat": 1.15}


def test_without_weights_the_text_stays(page: RulerPage) -> None:
    load(page, TEXT, "none")
    select(page, "cat")
    page.press("ARROW_UP", control=True)
    assert page.run(VALUE) == TEXT


def test_boxes_of_other_nodes_are_the_hosts(page: RulerPage) -> None:
    page.load({"class_type": "CLIPTextEncode", "inputs": {"text": TEXT}})
    select(page, "cat")
    page.press("ARROW_UP", control=True)
    assert page.run(VALUE) == "a red (cat:1.05) on a mat"


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_keys_and_wheel_on_a_chip(page: RulerPage, syntax: str) -> None:
    load(page, TEXT, syntax)
    click_chip(page, "cat")
    page.press("ESCAPE")
    page.run("document.querySelectorAll('.wcr-chip')[2].focus()")
    page.press("ARROW_UP", "ARROW_UP")
    page.wait_for(chips=["a", "red", "cat 1.1", "on", "a", "mat"])
    assert weights(page.run(VALUE), syntax) == {"cat": 1.1}
    focused = "return document.activeElement.querySelector('.wcr-text')?.innerText"
    assert page.run(focused) == "cat"
    wheel = "document.activeElement.dispatchEvent(new WheelEvent('wheel', {deltaY: 100, bubbles: true}))"
    page.run(wheel)
    page.wait_for(chips=["a", "red", "cat 1.05", "on", "a", "mat"])
    page.press("ARROW_LEFT", "ARROW_DOWN")
    page.wait_for(chips=["a", "red 0.95", "cat 1.05", "on", "a", "mat"])
    assert page.run(focused) == "red"
    page.run("window.undone = 0; addEventListener('input', (event) => (undone += event.inputType === 'historyUndo'))")
    page.press("z", control=True)
    page.wait_for(chips=["a", "red", "cat 1.05", "on", "a", "mat"])
    assert page.run("return undone") == 0  # by the browser: ComfyUI would undo that


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_a_click_on_a_chip_opens_a_slider(page: RulerPage, syntax: str) -> None:
    load(page, "a red (cat)", syntax)
    click_chip(page, "red")
    slider = ".weighted-clip-slider input"
    page.wait(f"return document.activeElement === document.querySelector('{slider}')")
    assert page.run(f"return document.querySelector('{slider}').value") == "1"
    page.press("ARROW_RIGHT", "ARROW_RIGHT", "ARROW_RIGHT")
    page.wait("return document.querySelectorAll('.wcr-chip')[1].innerText.includes('1.15')")
    assert weights(page.run(VALUE), syntax)["red"] == 1.15
    assert page.run("return document.querySelector('.weighted-clip-slider output').innerText") == "1.15"
    page.press("ESCAPE")
    assert page.run(f"return document.querySelector('{slider}')") is None


def test_both_boxes_with_one_text_change_together(page: RulerPage) -> None:
    page.run("await app.loadApiJson(args[0], 'test')", {"1": {"class_type": "WeightedCLIPSDXLEncode", "inputs": {}}})
    page.run("app.canvas.ds.scale = 1; app.canvas.ds.offset = [0, 0]; app.canvas.setDirty(true, true)")
    for name in ("text_g", "text_l"):
        page.set_widget(name, "a cat")
    page.wait_for(labels=["text_g, text_l"], chips=["a", "cat"])
    page.run("document.querySelectorAll('.wcr-chip')[1].focus()")
    page.press("ARROW_UP")
    assert page.run(VALUES) == ["a (cat:1.05)"] * 2


def test_chips_of_a_linked_text_are_not_changed(page: RulerPage) -> None:
    converter = {"class_type": "WeightedCLIPConvert", "inputs": {"text": "((cat))", "from": "a1111", "to": "comfy"}}
    page.load(converter, inspect_node(["1", 0]))
    page.wait("return document.querySelectorAll('.wcr-bar').length === 2")
    page.queue()
    page.wait("return document.querySelectorAll('.wcr-chip').length === 2")
    page.wait("return document.querySelectorAll('.wcr-editable').length === 1")


# Prompts with forms of another syntax


def load_with_problems(page: RulerPage, text: str, syntax: str) -> dict[str, Any]:
    """An Inspect node; what its ruler shows."""
    page.load_inspect(text, syntax=syntax)
    page.wait("return document.querySelectorAll('.wcr-problems p').length > 0")
    return page.shown()[0]


@pytest.mark.parametrize(
    ("text", "source", "target"),
    [
        ("a (cat:1.1) and a (dog:0.5)", "comfy", "compel"),
        ("a (red [cat]:1.3) in a bowl", "a1111", "comfy"),
        ("a (cat)++ and a dog+", "compel", "comfy"),
        ("a (red cat)1.3, dog", "compel", "a1111"),
    ],
)
def test_a_prompt_of_another_syntax_is_converted_at_a_click(
    page: RulerPage, text: str, source: str, target: str
) -> None:
    shown = load_with_problems(page, text, target)
    assert any("is text" in problem for problem in shown["problems"])
    button = page.driver.find_element("css selector", BUTTONS)
    assert button.text == f"Convert from {source} to {target}"
    button.click()
    converted = convert(text, source, target, default_tokenizer()).text
    page.wait(f"{VALUES}[0] === args[0]", converted)
    page.wait("return document.querySelectorAll('.wcr-problems p').length === 0")
    area = page.text_area()
    area.click()
    page.press("z", control=True)
    assert page.run(VALUES) == [text]


def test_what_a_conversion_cannot_keep_is_said(page: RulerPage) -> None:
    load_with_problems(page, "a cat BREAK [b]", "comfy")
    page.driver.find_element("css selector", BUTTONS).click()
    page.wait("return document.querySelector('.wcr-message')?.innerText.includes('BREAK cannot be written')")
    assert page.run(VALUES) == ["a cat (b:0.90909091)"]
    page.set_widget("text", "a cat")
    page.wait("return document.querySelector('.wcr-message') === null")


def test_each_syntax_has_one_button(page: RulerPage) -> None:
    shown = load_with_problems(page, "[a] BREAK (cat)++ [b] dog++", "comfy")
    assert len(shown["problems"]) == 5
    texts = "return [...document.querySelectorAll(args[0])].map((button) => button.innerText)"
    assert page.run(texts, BUTTONS) == ["Convert from a1111 to comfy", "Convert from compel to comfy"]
