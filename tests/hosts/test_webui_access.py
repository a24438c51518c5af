"""Our parts of a real WebUI's page: what axe-core finds in them, and a prompt on its way to our tab and back.

Source: https://github.com/dequelabs/axe-core, whose script comes with axe-playwright-python.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..patience import SECONDS
from ..web.chromium import Tab, running_chromium
from ..web.lab_in_browser import LabPage
from .webui_server import WebUIServer

pytestmark = [pytest.mark.host, pytest.mark.slow]

TAB = "Weighted CLIP"
PROMPT = "a (red:1.4) [cat:dog:0.5] <lora:ink:0.8> in a bowl AND night:0.5 (x"
SCRIPT = "#script_txt2img_weighted_clip_enabled"
RUN = (
    "const {violations} = await axe.run(args[0], {resultTypes: ['violations']});"
    "return violations.flatMap(({id, nodes}) => nodes.map((node) => `${id}: ${node.target} ${node.failureSummary}`))"
)
OF_THE_HOST = ("label", "nested-interactive")
"""Findings of axe-core in the host's own accordions, each of which has a switch without a name in a button."""
NUMBER_OF_A_SLIDER = "label: #weighted_clip_bind_strength"
"""Gradio 3, which Forge Classic has, names a slider, but not the number beside it."""


@pytest.fixture(scope="module")
def page(webui: WebUIServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabPage]:
    with running_chromium(tmp_path_factory.mktemp("browser"), height=1800) as tab:
        tab.open(webui.address)
        tab.wait("return !!document.querySelector('#txt2img_prompt textarea')?.offsetParent")
        tab.wait("return document.readyState === 'complete'")
        yield LabPage(tab)


def found_at_last(tab: Tab, part: str) -> list[str]:
    """Findings of axe-core in a part that is pale until it is filled, and may be filled twice."""
    end = time.monotonic() + SECONDS
    while True:
        time.sleep(1)
        found = [one for one in tab.run(RUN, part) if not one.startswith(NUMBER_OF_A_SLIDER)]
        if not found or time.monotonic() > end:
            return found


def open_tab(tab: Tab, name: str, box: str) -> None:
    """Open a tab, whose name some hosts write with a small first letter."""
    tab.wait(
        "const nameOf = (one) => one.textContent.trim().toLowerCase();"
        "const tab = [...document.querySelectorAll('button')].find((one) => nameOf(one) === args[0].toLowerCase());"
        "tab?.click(); return !!document.querySelector(`#${args[1]} textarea`)?.offsetParent",
        *(name, box),
    )


def test_a_prompt_goes_to_the_tab_and_back_and_is_read_alike(page: LabPage) -> None:
    tab = page.tab
    tab.run("document.querySelector('#txt2img_prompt textarea').focus()")
    tab.paste(PROMPT)
    chips = "return [...document.querySelectorAll(`${args[0]} .wcr-text`)].map((one) => one.textContent)"
    below = tab.wait(f"const all = (() => {{ {chips} }})(); return all.length > 9 && all", "#txt2img_prompt_container")
    open_tab(tab, TAB, "weighted_clip_prompt")
    page.click("from_txt2img")
    page.wait_for_value("prompt", PROMPT)
    page.wait_until_read(PROMPT)
    tab.wait(
        f"return JSON.stringify((() => {{ {chips} }})()) === JSON.stringify(args[1])",
        *("#weighted_clip_page .weighted-clip-ruler", below),
    )
    assert "node" not in tab.run("return document.querySelector('#weighted_clip_page').innerText")
    page.fill("prompt", "a cat")
    page.click("to_img2img")
    tab.wait("return document.querySelector('#img2img_prompt textarea').offsetParent !== null")
    assert tab.run("return document.querySelector('#img2img_prompt textarea').value") == "a cat"
    tab.wait("return !!document.querySelector('#weighted_clip_ruler_img2img_prompt .wcr-chip')")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_of_ours(page: LabPage, theme: str) -> None:
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None or found.origin is None:
        pytest.skip("axe-playwright-python is not installed: python run.py test installs it")
    tab = page.tab
    tab.run(Path(found.origin).with_name("axe.min.js").read_text(encoding="utf-8"))
    tab.run("document.body.classList.toggle('dark', args[0] === 'dark')", theme)
    open_tab(tab, "Txt2img", "txt2img_prompt")
    for name in ("enabled", "advanced"):
        tab.run(
            "const head = document.querySelector(`#script_txt2img_weighted_clip_${args[0]} .label-wrap`);"
            "if (!head.classList.contains('open')) head.click()",
            name,
        )
    time.sleep(1)  # colours fade in
    for part in (SCRIPT, "#weighted_clip_ruler_txt2img_prompt"):
        ours = [one for one in tab.run(RUN, part) if one.partition(":")[0] not in OF_THE_HOST]
        assert ours == [], part
    open_tab(tab, TAB, "weighted_clip_prompt")
    tab.run(
        "const head = document.querySelector('#weighted_clip_more .label-wrap');"
        "if (!head.classList.contains('open')) head.click()"
    )
    page.fill("prompt", PROMPT)
    page.wait_until_read(PROMPT)
    for name in ("Tokens", "Masks", "Compare schemes", "Convert", "Export", "Schedule"):
        page.open_part(name)
        assert found_at_last(tab, "#weighted_clip_page") == [], name
    tab.run("document.querySelector('#weighted_clip_refresh').insertAdjacentHTML('afterend', '<img id=bare src=x>')")
    tab.run("document.querySelector('#weighted_clip_page').append(document.querySelector('#bare'))")
    assert any("image-alt" in one for one in tab.run(RUN, "#weighted_clip_page"))
    tab.run("document.querySelector('#bare').remove()")
