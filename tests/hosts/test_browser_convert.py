"""Prompts with forms of another syntax, converted from the ruler in a real ComfyUI, on the canvas and in Nodes 2.0."""

from __future__ import annotations

from typing import Any

import pytest
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.convert import convert

from .ruler_page import RulerPage

pytestmark = pytest.mark.host

VALUES = "return app.graph.nodes[0].widgets.filter(({ name }) => name.startsWith('text')).map(({ value }) => value)"
BUTTONS = ".wcr-problems .wcr-button"


def load(page: RulerPage, text: str, syntax: str) -> dict[str, Any]:
    """An Inspect node; what its ruler shows."""
    node = {"class_type": "WeightedCLIPInspect", "inputs": {"text": text, "syntax": syntax, "chunking": "as syntax"}}
    page.load(node)
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
    shown = load(page, text, target)
    assert any("is text" in problem for problem in shown["problems"])
    button = page.driver.find_element("css selector", BUTTONS)
    assert button.text == f"Convert from {source} to {target}"
    button.click()
    converted = convert(text, source, target, default_tokenizer()).text
    page.wait(f"{VALUES}[0] === args[0]", converted)
    page.wait("return document.querySelectorAll('.wcr-problems p').length === 0")
    area = page.text_area()
    area.click()
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    ActionChains(page.driver).key_down(Keys.CONTROL).send_keys("z").key_up(Keys.CONTROL).perform()
    assert page.run(VALUES) == [text]


def test_what_a_conversion_cannot_keep_is_said(page: RulerPage) -> None:
    load(page, "a cat BREAK [b]", "comfy")
    page.driver.find_element("css selector", BUTTONS).click()
    page.wait("return document.querySelector('.wcr-message')?.innerText.includes('BREAK cannot be written')")
    assert page.run(VALUES) == ["a cat (b:0.90909091)"]
    page.set_widget("text", "a cat")
    page.wait("return document.querySelector('.wcr-message') === null")


def test_each_syntax_has_one_button(page: RulerPage) -> None:
    shown = load(page, "[a] BREAK (cat)++ [b] dog++", "comfy")
    assert len(shown["problems"]) == 5
    texts = "return [...document.querySelectorAll(args[0])].map((button) => button.innerText)"
    assert page.run(texts, BUTTONS) == ["Convert from a1111 to comfy", "Convert from compel to comfy"]
