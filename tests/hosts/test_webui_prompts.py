"""The rulers below a real WebUI's prompt boxes, in Chromium: what they show, and the host's own number of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from ..web.chromium import Tab, running_chromium
from .webui_server import WebUIServer

pytestmark = [pytest.mark.host, pytest.mark.slow]

PHONE = 390
RULER = (
    "const ruler = document.querySelector(`#weighted_clip_ruler_${args[0]}`);"
    "const textsIn = (one, what) => [...(one?.querySelectorAll(what) ?? [])].map((part) => part.textContent);"
)
CHIPS = f"{RULER} return [...(ruler?.querySelectorAll('.wcr-section') ?? [])].map((one) => textsIn(one, '.wcr-text'))"
COUNTED = (
    *("", "a cat", "a (cat:1.4) BREAK a [dog:bird:0.5] in <lora:ink:0.8> a bowl", "word " * 75, "word " * 76),
    *(
        "a cat AND a dog, a big one:0.5",
        "[one|two words|three of them]",
        "it's (never closed, 1girl # a comment",
        "猫 🐱",
    ),
)


@pytest.fixture(scope="module")
def server(webui: WebUIServer) -> WebUIServer:
    webui.txt2img("a cat")  # loads the model, with which the host counts
    return webui


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with running_chromium(tmp_path_factory.mktemp("browser"), width=1280, height=1400) as tab:
        yield tab


@pytest.fixture
def page(server: WebUIServer, browser: Tab) -> Tab:
    open_page(server, browser)
    return browser


def open_page(server: WebUIServer, tab: Tab) -> None:
    tab.open(server.address)
    tab.wait("return !!document.querySelector('#txt2img_prompt textarea')?.offsetParent")
    tab.wait("return document.readyState === 'complete' && 'weighted_clip_ruler' in (globalThis.opts ?? {})")


def fill(tab: Tab, box: str, text: str) -> None:
    tab.run("const box = document.querySelector(`#${args[0]} textarea`); box.focus(); box.select()", box)
    if text:
        tab.paste(text)
    else:
        tab.press_backspace()


def wait_for_chips(tab: Tab, box: str, chips: list[list[str]]) -> None:
    tab.wait(f"return JSON.stringify((() => {{ {CHIPS} }})()) === JSON.stringify(args[1])", box, chips)


def test_the_host_s_reading_is_below_each_box(page: Tab) -> None:
    fill(page, "txt2img_prompt", "a (red:1.4) [cat:dog:0.5] <lora:ink:0.8> AND sky:0.5")
    fill(page, "txt2img_neg_prompt", "bad AND (ugly")
    wait_for_chips(page, "txt2img_prompt", [["a", "red", "cat", "<lora:ink:0.8>"], ["a", "red", "dog"], ["sky"]])
    wait_for_chips(page, "txt2img_neg_prompt", [["bad", "AND", "ugly"]])
    labels: list[str] = page.run(f"{RULER} return textsIn(ruler, '.wcr-label')", "txt2img_prompt")
    assert labels == ["steps 1–11", "steps 12–20", "AND ×0.5, all steps"]
    assert page.run(f"{RULER} return textsIn(ruler, '.wcr-tag')", "txt2img_prompt") == ["<lora:ink:0.8>"]
    assert page.run(f"{RULER} return textsIn(ruler, '.wcr-problems p').length", "txt2img_prompt") == 0
    assert page.run(f"{RULER} return textsIn(ruler, '.wcr-problems p').length", "txt2img_neg_prompt") == 2
    places = page.run(
        "const at = (id) => document.getElementById(id).getBoundingClientRect();"
        "return ['txt2img_prompt', 'weighted_clip_ruler_txt2img_prompt', 'txt2img_neg_prompt',"
        "  'weighted_clip_ruler_txt2img_neg_prompt'].map((id) => [at(id).top, at(id).bottom])"
    )
    assert all(above[1] <= below[0] for above, below in pairwise(places)), places
    # the host's own slider
    page.run(
        "const steps = document.querySelector('#txt2img_steps input'); steps.value = 10;"
        "steps.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    page.wait(f"{RULER} return textsIn(ruler, '.wcr-label')[0] === 'steps 1–6'", "txt2img_prompt")


def test_it_says_the_number_of_the_hosts_counter_and_each_text_its_own(page: Tab) -> None:
    for text in COUNTED:
        fill(page, "txt2img_prompt", text)
        if not text:
            continue
        # both are of this text once neither changes any more
        page.wait(
            f"{RULER} const counter = document.querySelector('#txt2img_token_counter').textContent.trim();"
            "const said = textsIn(ruler, '.wcr-bar .wcr-count').at(-1);"
            "const heads = textsIn(ruler, '.wcr-head .wcr-count').map((one) => parseInt(one));"
            "const before = globalThis.before; globalThis.before = JSON.stringify([counter, said, heads]);"
            "await new Promise((done) => setTimeout(done, 1500));"
            "return before === globalThis.before && said === counter"
            "  && (!heads.length || Math.max(...heads) === parseInt(counter))",
            "txt2img_prompt",
        )


def test_the_setting_and_the_script_switch_what_is_shown(server: WebUIServer, page: Tab) -> None:
    fill(page, "txt2img_prompt", "a (cat)++")
    wait_for_chips(page, "txt2img_prompt", [["a", "cat", "++"]])
    find = (
        "const field = (name) => document.querySelector(`#script_txt2img_weighted_clip_${name} input`);"
        "const choose = (value) => [...document.querySelectorAll('[data-testid=dropdown-option]')]"
        "  .find((one) => one.getAttribute('aria-label').split(': ')[0] === value)"
        "  ?.dispatchEvent(new MouseEvent('mousedown', {bubbles: true, cancelable: true}));"
    )
    page.run("document.querySelector('#script_txt2img_weighted_clip_enabled .label-wrap').click()")
    page.run("document.querySelector('[id$=txt2img_weighted_clip_advanced] .label-wrap').click()")
    page.wait(
        f"{find} if (field('syntax')?.value.split(': ')[0] === 'compel') return true; field('syntax')?.focus();"
        "await new Promise((done) => setTimeout(done, 300)); choose('compel'); document.activeElement.blur()"
    )
    wait_for_chips(page, "txt2img_prompt", [["a", "cat"]])
    server.api("/sdapi/v1/options", {"weighted_clip_ruler": False})
    try:
        open_page(server, page)
        fill(page, "txt2img_prompt", "a cat")
        page.wait("return document.querySelector('#txt2img_token_counter').textContent.trim() === '2/75'")
        assert not page.run("return document.querySelectorAll('.weighted-clip-prompt').length")
        asked = [one for one in page.requests() if "weighted-clip/ruler" in one]
        page.run("await new Promise((done) => setTimeout(done, 1500))")
        assert [one for one in page.requests() if "weighted-clip/ruler" in one] == asked
    finally:
        server.api("/sdapi/v1/options", {"weighted_clip_ruler": True})


def test_what_is_typed_quickly_is_asked_once_and_an_empty_box_has_none(page: Tab) -> None:
    before = len([one for one in page.requests() if "weighted-clip/ruler" in one])
    page.run("document.querySelector('#txt2img_prompt textarea').focus()")
    page.type("a very red cat")
    wait_for_chips(page, "txt2img_prompt", [["a", "very", "red", "cat"]])
    asked = len([one for one in page.requests() if "weighted-clip/ruler" in one]) - before
    assert asked <= 3
    fill(page, "txt2img_prompt", "")
    page.wait("return !document.querySelector('#weighted_clip_ruler_txt2img_prompt')")


def test_dark_and_on_a_phone_nothing_is_cut(page: Tab, server: WebUIServer) -> None:
    fill(page, "txt2img_prompt", "a (red:1.4) cat " * 12 + "(never closed")
    page.wait(f"{RULER} return textsIn(ruler, '.wcr-chip').length > 30", "txt2img_prompt")
    colours: dict[str, Any] = {}
    for theme in ("light", "dark"):
        page.run("document.body.classList.toggle('dark', args[0] === 'dark')", theme)
        page.run("await new Promise((done) => setTimeout(done, 500))")
        colours[theme] = page.run(
            f"{RULER} return getComputedStyle(ruler).getPropertyValue('--wcr-text')", *["txt2img_prompt"]
        )
    assert colours["light"] != colours["dark"]
    page.call("Emulation.setDeviceMetricsOverride", width=PHONE, height=900, deviceScaleFactor=1, mobile=True)
    try:
        wide = page.wait(f"{RULER} return ruler.getBoundingClientRect().right", "txt2img_prompt")
        assert wide <= PHONE
        assert page.run(f"{RULER} return ruler.scrollWidth <= ruler.clientWidth", "txt2img_prompt")
    finally:
        page.call("Emulation.clearDeviceMetricsOverride")
    assert not [line for line in page.complaints() if "weighted" in line.lower()]


CLICK = (
    f"{RULER} const chip = [...ruler.querySelectorAll('.wcr-chip')].find((one) => one.textContent.startsWith(args[1]));"
    "if (!chip) return false; chip.click(); return !!document.querySelector('.weighted-clip-slider')"
)
"""Clicks a chip by its text; whether a slider opened."""
VALUE = "return document.querySelector(`#${args[0]} textarea`).value"


def open_script(page: Tab, *boxes: str) -> None:
    """Switch our script on and unfold it, until the boxes of some settings are there."""
    page.run("document.querySelector('#script_txt2img_weighted_clip_enabled .label-wrap').click()")
    page.run("document.querySelector('[id$=txt2img_weighted_clip_advanced] .label-wrap').click()")
    for box in boxes:
        page.wait(f"return !!document.querySelector('#script_txt2img_weighted_clip_{box} textarea')?.offsetParent")


def slide(page: Tab, weight: str) -> None:
    """Let the open slider go at a weight."""
    page.run(
        "const slider = document.querySelector('.weighted-clip-slider input'); slider.value = args[0];"
        "slider.dispatchEvent(new Event('change', {bubbles: true}))",
        weight,
    )


def test_a_token_that_is_clicked_changes_its_weight_in_the_box(server: WebUIServer, page: Tab) -> None:
    box = "txt2img_prompt"
    fill(page, box, "a red cat AND a dog")
    wait_for_chips(page, box, [["a", "red", "cat"], ["a", "dog"]])
    assert page.run(CLICK, box, "dog")
    slide(page, "1.3")
    page.wait(f"{VALUE.replace('return ', 'return (')}) === 'a red cat AND a (dog:1.3)'", box)
    page.wait(f"{RULER} return textsIn(ruler, '.wcr-note').join() === '1.3'", box)
    # by the keys, in steps of the host's own setting
    page.run(
        f"{RULER} const chip = [...ruler.querySelectorAll('.wcr-chip')].find((one) => one.textContent === 'red');"
        "chip.focus(); chip.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowDown', bubbles: true}))",
        box,
    )
    page.wait(f"{VALUE.replace('return ', 'return (')}) === 'a (red:0.9) cat AND a (dog:1.3)'", box)
    # the host has it: what it counts, and its undo
    page.wait("return document.querySelector('#txt2img_token_counter').textContent.trim() === '3/75'")
    page.run(
        "const box = document.querySelector('#txt2img_prompt textarea'); box.focus(); document.execCommand('undo')"
    )
    page.wait(f"{VALUE.replace('return ', 'return (')}) === 'a red cat AND a (dog:1.3)'", box)
    # a problem that says what is meant writes it
    fill(page, box, "a (cat:12)")
    page.wait(
        f"{RULER} const button = [...(ruler?.querySelectorAll('.wcr-problems button') ?? [])][0];"
        "button?.click(); return document.querySelector(`#${args[0]} textarea`).value === 'a (cat:1.2)'",
        box,
    )


def test_scheme_and_phrases_of_the_script_are_seen_and_what_it_would_refuse(page: Tab) -> None:
    box = "txt2img_prompt"
    fill(page, box, "a (red:0.5) cat and a blue dog")
    wait_for_chips(page, box, [["a", "red", "cat", "and", "a", "blue", "dog"]])
    said = f"{RULER} return textsIn(ruler, '.wcr-options').join()"
    assert page.run(said, box) == ""
    open_script(page, "bind", "places")
    page.wait(f"{said.replace('return textsIn', 'return (textsIn')}) === 'a1111 · masked_blend'", box)
    fill(page, "script_txt2img_weighted_clip_bind", "red cat\nblue dog")
    page.wait(f"{RULER} return textsIn(ruler, '.wcr-bound .wcr-text').join() === 'red,cat,blue,dog'", box)
    page.wait(f"{RULER} return textsIn(ruler, '.wcr-extra').includes('2 phrases kept apart in 3 passes')", box)
    below = "document.querySelector('#script_txt2img_weighted_clip_places .weighted-clip-refused')"
    found = "args[1] ? told.includes(args[1]) : told === ''"
    for line, words in (
        ("red bird: left half", "is in none of the prompts"),
        ("red cat: nowhere", "nowhere"),
        ("red cat: left half, 0.8-0.2", "0.8"),
        ("red cat: left half", ""),
    ):
        fill(page, "script_txt2img_weighted_clip_places", line)
        page.wait(f"{RULER} const told = textsIn(ruler, '.wcr-problems p').join(); return {found}", box, words)
        page.wait(f"{RULER} const told = textsIn({below}, 'li').join(); return {found}", box, words)
    # nothing of it where the script is off
    page.run("document.querySelector('#script_txt2img_weighted_clip_enabled input[type=checkbox]').click()")
    page.wait(f"{said.replace('return textsIn', 'return (textsIn')}) === ''", box)


def test_an_old_error_goes_once_the_server_answers(page: Tab) -> None:
    fill(page, "txt2img_prompt", "a cat")
    wait_for_chips(page, "txt2img_prompt", [["a", "cat"]])
    page.run("globalThis.heldFetch = fetch; globalThis.fetch = () => Promise.reject(new TypeError('gone'))")
    fill(page, "txt2img_prompt", "a dog")
    page.wait(
        f"{RULER} return textsIn(ruler, '.wcr-message').join() === 'The server does not answer'", "txt2img_prompt"
    )
    page.run("globalThis.fetch = globalThis.heldFetch")
    wait_for_chips(page, "txt2img_prompt", [["a", "dog"]])
    assert page.run(f"{RULER} return textsIn(ruler, '.wcr-message').length", "txt2img_prompt") == 0
