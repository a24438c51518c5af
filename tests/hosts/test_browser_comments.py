"""Comments in the ruler: those of ComfyUI's page and of the option, on the canvas and in Nodes 2.0, in Chromium."""

from __future__ import annotations

import pytest

from .ruler_page import RulerPage

pytestmark = pytest.mark.host

GREY = "return [...document.querySelectorAll('.wcr-comment .wcr-text')].map(({ textContent }) => textContent)"
PROMPT = "a cat // the page's own\nin a bowl # (ours:1.3)"


def test_comments_are_grey_and_no_tokens(page: RulerPage) -> None:
    page.load({"class_type": "WeightedCLIPTextEncode", "inputs": {"text": PROMPT}})
    page.wait(f"{GREY}.length === 1")
    assert page.run(GREY) == ["// the page's own"]
    assert page.run("return document.querySelector('.wcr-count').innerText").startswith("7 ")
    page.set_widget("comments", "#")
    page.wait(f"{GREY}.length === 2")
    assert page.run(GREY) == ["// the page's own", "# (ours:1.3)"]
    assert page.run("return document.querySelector('.wcr-count').innerText").startswith("5 ")
    color = "return getComputedStyle(document.querySelector(args[0])).color"
    assert page.run(color, ".wcr-comment") != page.run(color, ".wcr-chip:not(.wcr-comment)")
