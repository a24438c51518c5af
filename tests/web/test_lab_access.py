"""The lab by keyboard, by screen reader, in dark and on a phone: what axe-core finds, and what it cannot see.

Source: https://github.com/dequelabs/axe-core, whose script comes with axe-playwright-python.
"""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import pytest
from weighted_clip.web.lab.tabs.prompt_tabs import COMPARED
from weighted_clip.weighting.schemes import SCHEMES
from weighted_clip.weighting.syntax import SYNTAXES

from ..patience import SECONDS
from .conftest import save_pictures
from .lab_in_browser import LabPage

PROMPT = "a (red:1.4) cat and a (dog:0.5) in a bowl, photorealistic [, (sharp:30)"
TABS = "#weighted_clip_tabs"
COLORS = ("color-contrast", "link-in-text-block")
"""The rules of axe-core that look at colours."""
RUN = (
    "const {violations} = await axe.run(args[0], {resultTypes: ['violations'], ...args[1]});"
    "return violations.flatMap(({id, nodes}) => nodes.map((node) => `${id}: ${node.target} ${node.failureSummary}`))"
)
PHONE = 390


def parts(lab: LabPage) -> list[str]:
    """Names of the tabs."""
    return lab.tab.run(
        "return [...new Set([...document.querySelectorAll('#weighted_clip_tabs [role=tab]')]"
        "  .map((one) => one.textContent.trim()))]"
    )


def axe() -> str:
    """axe-core's script."""
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None or found.origin is None:
        pytest.skip("axe-playwright-python is not installed: python run.py test installs it")
    return Path(found.origin).with_name("axe.min.js").read_text(encoding="utf-8")


def fill_all(lab: LabPage, folder: Path) -> None:
    """Let everything be there that can be there."""
    lab.fill("prompt", PROMPT)
    lab.wait_until_read(PROMPT)
    lab.open_part("Compare schemes")
    lab.click("compare")
    lab.wait_for_text("progress", f"{len(COMPARED)} of {len(COMPARED)} schemes: done")
    lab.open_part("Export")
    lab.click("export")
    lab.wait_for_text("export_report", "Encoded with")
    lab.open_part("Attention")
    lab.wait_for_text("attention", "sharp attends")
    lab.open_part("Two prompts")
    lab.fill_new("other", "a red dog")
    lab.wait_for_text("panes", "only in the other")
    lab.click("compare_pooled")
    lab.wait_for_text("pooled", "clip_l")
    lab.open_part("Pictures")
    lab.give_files("pictures", save_pictures(folder))
    lab.fill_new("other_texts", "a dog\na very long text about a cat, a bowl and all that is around them")
    lab.click("rank")
    lab.wait_for_text("ranked", "3 pictures")
    lab.open_part("Text to image")
    lab.fill_new("caption", "a small red ring")
    lab.wait_for_text("pieces", "4 of at most 12 pieces")
    lab.click("draw")
    lab.wait_for_pictures("drawn", 8)


def test_axe_finds_nothing_on_any_tab(lab: LabPage, tmp_path: Path) -> None:
    script = axe()
    fill_all(lab, tmp_path)
    lab.tab.run(script)
    for name in ("more", "other_weights"):
        lab.tab.run("document.querySelector(`#weighted_clip_${args[0]} button`).click()", name)
    names = parts(lab)
    assert names == [
        *("Tokens", "Masks", "Compare schemes", "Convert", "Export", "Schedule"),
        *("Two prompts", "Attention", "Pictures", "Image tokens", "Text to image"),
    ]
    in_dark = {"runOnly": {"type": "rule", "values": COLORS}}  # the other rules see the same in both
    wrong = {
        "light": ({}, "page-has-heading-one", "style.display = 'none'"),
        "dark": (in_dark, "color-contrast", "style = 'opacity: 0.2'"),
    }
    for theme, (rules, rule, fault) in wrong.items():
        lab.tab.prefer(theme)
        lab.tab.run("document.body.classList.toggle('dark', args[0] === 'dark')", theme)
        for name in names:
            lab.open_part(name)
            lab.tab.wait("return !document.querySelector('.pending')")  # pale until it is filled
            time.sleep(0.6)  # colours fade in
            assert lab.tab.run(RUN, TABS, rules) == [], name
        assert lab.tab.run(RUN, "html", rules) == []
        lab.tab.run(f"document.querySelector('h1').{fault}")
        assert any(rule in finding for finding in lab.tab.run(RUN, "html", rules))


def press(lab: LabPage, key: str, code: int) -> None:
    for kind in ("keyDown", "keyUp"):
        lab.tab.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)
    time.sleep(0.3)


@pytest.mark.parametrize("height", [1200, 500])
def test_tab_leaves_no_list_open_and_keys_choose(lab: LabPage, height: int) -> None:
    lab.tab.call("Emulation.setDeviceMetricsOverride", width=1200, height=height, deviceScaleFactor=1, mobile=False)
    lists = "return [...document.querySelectorAll('[role=listbox]')].map((one) => one.children.length)"
    place = "return document.activeElement.closest('[id^=weighted_clip_]')?.id"

    def wait_for(script: str, value: object) -> None:
        end = time.monotonic() + SECONDS
        while (found := lab.tab.run(script)) != value:
            assert time.monotonic() < end, f"{found}, not {value}"
            time.sleep(0.05)

    lab.focus("prompt")
    for name, count in (("syntax", len(SYNTAXES)), ("scheme", len(SCHEMES)), ("law", 2)):
        press(lab, "Tab", 9)
        if name == "law":  # in a folded part
            wait_for(place, "weighted_clip_link")
            press(lab, "Tab", 9)
            wait_for(place, "weighted_clip_more")
            lab.tab.run("document.activeElement.click()")
            lab.tab.wait("return !!document.querySelector('#weighted_clip_law')?.offsetParent")
            press(lab, "Tab", 9)
        wait_for(place, f"weighted_clip_{name}")
        wait_for(lists, [count])  # one list, with all that can be chosen
    before = lab.value("law")
    press(lab, "ArrowDown", 40)
    press(lab, "Enter", 13)
    wait_for(lists, [])
    assert lab.value("law") != before
    lab.focus("prompt")
    wait_for(lists, [])


def test_a_phone_shows_all_of_it(lab: LabPage, tmp_path: Path) -> None:
    lab.tab.call("Emulation.setDeviceMetricsOverride", width=PHONE, height=800, deviceScaleFactor=1, mobile=True)
    fill_all(lab, tmp_path)
    lab.tab.run(axe())
    rules = {"rules": {name: {"enabled": False} for name in COLORS}}  # they are those of the window
    for name in parts(lab):
        lab.open_part(name)
        lab.tab.wait("return !document.querySelector('.pending')")
        assert lab.tab.run("return document.scrollingElement.scrollWidth") <= PHONE, name
        assert lab.tab.run(RUN, TABS, rules) == [], name
    assert lab.tab.run(RUN, "html", rules) == []
    lab.open_part("Compare schemes")
    lab.tab.wait("return !!document.querySelector('.weighted-clip-bars').offsetParent")
    bars = "return [...document.querySelectorAll('.weighted-clip-bars li')]"
    columns = lab.tab.run(f"{bars}.map((one) => one.getBoundingClientRect().right)")
    assert len(columns) > 20
    assert PHONE / 2 < max(columns) <= PHONE
    sizes = lab.tab.run(f"{bars}.map((one) => parseFloat(getComputedStyle(one.querySelector('em')).fontSize))")
    assert min(sizes) >= 12
    cut = "return [...document.querySelectorAll('.wcr-problems')].some((one) => one.scrollHeight > one.clientHeight)"
    assert not lab.tab.run(cut)
