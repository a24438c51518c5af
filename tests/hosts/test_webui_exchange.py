"""Script and tab of a real WebUI know each other, in Chromium: the tab shows what the next picture will use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..web.chromium import Tab
from ..web.lab_in_browser import LabPage
from .webui_server import WebUIServer

pytestmark = [pytest.mark.host, pytest.mark.slow]

PHRASES = "red cat\nblue: dog"
PARAMETERS = (
    "a red cat and a (blue dog:0.5)\nSteps: 13, Sampler: Euler, CFG scale: 7, Seed: 1, Size: 64x64, "
    "Weighted CLIP: masked_blend, Weighted CLIP law: compel, Weighted CLIP padding: mask EOS too, "
    'Weighted CLIP bind: "red cat\\nblue: dog", Weighted CLIP bind strength: 0.35, '
    "Weighted CLIP above one: as the WebUI"
)
FIELD = (
    "const field = (tab, name) => document.querySelector("
    "  `#script_${tab}_weighted_clip_${name} :is(textarea, input:not([type=range]))`);"
)


@pytest.fixture(scope="module")
def page(webui_tab: Tab) -> Iterator[LabPage]:
    webui_tab.wait("return !!document.querySelector('.input-accordion-checkbox')")
    yield LabPage(webui_tab)
    assert not [line for line in webui_tab.complaints() if "weighted" in line.lower()]


def go(page: LabPage, name: str) -> None:
    """Open one of the host's tabs."""
    page.tab.run(
        "[...document.querySelectorAll('#tabs > .tab-nav button')]"
        "  .find((one) => one.textContent.trim().toLowerCase() === args[0]).click()",
        name.lower(),
    )


def wait_for_script(page: LabPage, tab: str, name: str, value: str) -> None:
    page.tab.wait(
        f"{FIELD} const value = field(args[0], args[1])?.value;"
        "return value === args[2] || value?.split(': ')[0] === args[2]",
        *(tab, name, value),
    )


def is_on(page: LabPage, tab: str) -> bool:
    return page.tab.run(
        "return document.querySelector(`#script_${args[0]}_weighted_clip_enabled input[type=checkbox]`).checked", tab
    )


def test_choices_go_from_the_script_to_the_tab_and_back(page: LabPage) -> None:
    tab = page.tab
    tab.run("const box = document.querySelector('#txt2img_prompt textarea'); box.focus(); box.select()")
    tab.paste(PARAMETERS)
    tab.wait("document.querySelector('#paste').click(); return true")
    wait_for_script(page, "txt2img", "padding", "mask EOS too")
    wait_for_script(page, "txt2img", "bind", PHRASES)
    tab.wait(
        f"{FIELD} return !!field('txt2img', 'scheme') && document.querySelector('#txt2img_steps input').value == 13"
    )

    go(page, "Weighted CLIP")  # which shows it at once
    page.wait_for_value("prompt", "a red cat and a (blue dog:0.5)")
    for name, value in (
        *(("scheme", "masked_blend"), ("law", "compel"), ("padding", "mask EOS too"), ("bind", PHRASES)),
        *(("above_one", "as the WebUI"), ("steps", "13"), ("mask_method", "attention")),
    ):
        page.wait_for_value(name, value)
    tab.wait("return document.querySelector('#weighted_clip_bind_strength input[type=number]').value === '0.35'")

    page.choose("scheme", "comfy")
    page.choose("normalization", "mean")
    page.fill("hide", "cat")
    page.wait_until_read("a red cat and a (blue dog:0.5)")
    page.click("to_img2img")
    wait_for_script(page, "img2img", "scheme", "comfy")
    for name, value in (("normalization", "mean"), ("padding", "mask EOS too"), ("bind", PHRASES), ("law", "compel")):
        wait_for_script(page, "img2img", name, value)
    assert is_on(page, "img2img")
    tab.wait("return document.querySelector('#img2img_prompt textarea').value.startsWith('a red cat')")
    told = "document.querySelector('#script_img2img_weighted_clip_pasted').innerText"
    tab.wait(f"return {told}.includes('Hide phrases is only in the tab')")


def test_what_its_user_types_in_the_tab_stays(page: LabPage) -> None:
    go(page, "Weighted CLIP")
    page.wait_for_value("hide", "")  # as in the script
    page.fill("prompt", "another prompt")
    go(page, "img2img")
    page.tab.run("await new Promise((done) => setTimeout(done, 1500))")
    go(page, "Weighted CLIP")
    page.tab.run("await new Promise((done) => setTimeout(done, 2500))")
    assert page.value("prompt") == "another prompt"
    page.click("from_img2img")
    page.wait_for_value("prompt", "a red cat and a (blue dog:0.5)")
    page.wait_for_value("normalization", "mean")


def test_switched_off_the_tab_shows_the_webuis_own_and_gives_it_back(webui: WebUIServer, page: LabPage) -> None:
    for mode, scheme in (("No norm", "a1111_no_norm"), ("Original", "a1111")):
        webui.api("/sdapi/v1/options", {"emphasis": mode})
        page.tab.run(
            "const box = document.querySelector('#script_txt2img_weighted_clip_enabled input[type=checkbox]');"
            "if (box.checked) box.click()"
        )
        go(page, "Weighted CLIP")
        page.click("from_txt2img")
        page.wait_for_value("scheme", scheme)
        page.wait_for_value("padding", "attend")
        page.wait_for_value("bind", "")
    page.click("to_img2img")
    page.tab.wait(
        "return !document.querySelector('#script_img2img_weighted_clip_enabled input[type=checkbox]').checked"
    )


def test_what_a_script_of_the_page_sends_wrongly_is_quoted(page: LabPage) -> None:
    go(page, "Weighted CLIP")
    page.tab.run("await new Promise((done) => setTimeout(done, 2500))")  # it fetches when it is opened
    for text in ('{"enabled": true, "above_one": "<b>NaN</b>"}', "no JSON"):
        page.tab.run(
            "const box = document.querySelector('#weighted_clip_taken textarea'); box.value = args[0];"
            "box.dispatchEvent(new Event('input', {bubbles: true}))",
            text,
        )
        page.wait_for_text("taken_told", "<b>NaN</b>" if "NaN" in text else "no JSON")
    assert page.value("scheme").split(": ")[0] == "a1111"
