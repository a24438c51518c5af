"""Our tab and our script in a real WebUI's page, used in Chromium: what its user sees, clicks and gets."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from weighted_clip.encoder.files.checkpoint import load_text_models
from weighted_clip.encoder.models.text_model import TextEncoder
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.options import OPTIONS, EncodeOptions
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.schemes import SCHEMES
from weighted_clip.workshop.find_hosts import Host

from ..door import encode_prompt
from ..web.chromium import Tab, running_chromium
from ..web.lab_in_browser import LabPage
from .comfy_server import CHECKPOINT
from .webui_server import WebUIServer

pytestmark = [pytest.mark.host, pytest.mark.slow]

TAB = "Weighted CLIP"
PROMPT = "a (red:1.4) cat and a (dog:0.5) in a bowl"
CHIPS = ["a", "red 1.4", "cat", "and", "a", "dog 0.5", "in", "a", "bowl"]
PARAMETERS = (
    "a (dog:0.5)\nSteps: 2, Sampler: Euler, CFG scale: 7, Seed: 1, Size: 64x64, Weighted CLIP: comfy, "
    "Weighted CLIP law: compel, Weighted CLIP padding: mask"
)


PANEL = (
    "const find = (name) => [...document.querySelectorAll(`#tab_txt2img [id$=weighted_clip_${name}]`)]"
    "  .map((one) => one.matches('input') ? one : one.querySelector('input')).filter(Boolean)[0];"
)
"""A function of the page that finds the field of a setting of the script."""


def named(host: Host, name: str, value: str) -> str:
    """A choice of a menu as it is shown: from gradio 4 on with its meaning, and of the WebUIs only Forge has that."""
    return OPTIONS[name].shown(value) if host.kind == "Forge" else value


@pytest.fixture(scope="module")
def browser(webui: WebUIServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with running_chromium(tmp_path_factory.mktemp("browser"), width=1280, height=1800) as tab:
        yield tab


@pytest.fixture
def page(webui: WebUIServer, browser: Tab) -> LabPage:
    page = LabPage(browser)
    page.open(webui.address, host_tab=TAB)
    return page


def test_tokens_are_read_while_typing_and_masks_drawn(page: LabPage) -> None:
    page.wait_for_chips(CHIPS)
    page.fill_new("prompt", "a (blue:1.2) cat, (never closed")
    page.wait_until_read("a (blue:1.2) cat, (never closed")
    assert page.chips()[1] == "blue 1.2"
    page.wait_for_text("strip", "is never closed")
    page.choose("scheme", "masked_blend")
    page.wait_for_text("scheme_note", SCHEMES["masked_blend"].advice)
    page.open_part("Masks")
    assert len(page.wait_for_pictures("masks", 2)) >= 2
    page.open_part("Convert")
    page.tab.wait("return !!document.querySelector('#weighted_clip_converted textarea')?.value")
    assert "blue" in page.value("converted")


def test_loaded_model_is_named_compared_and_exported(
    webui: WebUIServer, browser: Tab, webui_models: Path, tmp_path: Path
) -> None:
    """The first picture loads the model; then the lab has it, and its export is our own encoder's."""
    webui.txt2img("a cat")
    page = LabPage(browser)
    page.open(webui.address, host_tab=TAB)
    page.wait_for_text("model", "as loaded in the WebUI")
    page.fill("prompt", PROMPT)
    page.wait_until_read(PROMPT)
    page.choose("scheme", "masked_blend")
    page.open_part("Compare schemes")
    page.click("compare")
    page.wait_for_text("progress", "done")
    browser.wait("return document.querySelectorAll('#weighted_clip_comparison .weighted-clip-bars li').length > 9")

    page.open_part("Export")
    page.click("export")
    page.wait_for_text("export_report", "Encoded with masked_blend")
    link = browser.wait("return document.querySelector('#weighted_clip_file a[href]')?.href")
    data = browser.run(
        "const bytes = new Uint8Array(await (await fetch(args[0])).arrayBuffer());"
        "return btoa(Array.from(bytes, (one) => String.fromCharCode(one)).join(''))",
        link,
    )
    (tmp_path / "export.safetensors").write_bytes(base64.b64decode(data))
    models, _ = load_text_models(webui_models / "checkpoints" / CHECKPOINT)
    read = read_prompt(
        PROMPT, EncodeOptions(syntax="a1111", scheme="masked_blend", above_one="as the WebUI"), default_tokenizer()
    )
    with torch.no_grad():
        expected = encode_prompt(read, TextEncoder(models["clip_l"]), default_tokenizer()).hidden
    with safe_open(tmp_path / "export.safetensors", framework="pt") as file:
        torch.testing.assert_close(file.get_tensor("hidden").float(), expected, atol=1e-4, rtol=0)
        assert file.metadata()["prompt"] == PROMPT
        assert file.metadata()["scheme"] == "masked_blend"


def test_the_user_chooses_which_text_of_a_prompt_is_taken_apart(webui: WebUIServer, page: LabPage) -> None:
    webui.txt2img("a cat")  # which loads the model
    page.fill("prompt", "a cat AND a (dog:1.4)")
    page.wait_for_text("tokens", "this is number 1")
    page.fill_new("text", "2")
    page.wait_for_text("tokens", "this is number 2")
    page.open_part("Compare schemes")
    page.click("compare")
    page.wait_for_text("progress", "done")
    assert "No row changes" not in page.wait_for_text("comparison", "this is number 2")


@pytest.mark.parametrize("text", ["", "🐱🚀" * 200, "((((a [b] (c:1.2", "(cat:1.1) dog, " * 1000])
def test_odd_prompts_leave_the_page_alive(page: LabPage, text: str) -> None:
    page.fill("prompt", text)
    page.wait_until_read(text)
    if text.startswith("(((("):
        page.wait_for_text("strip", "never closed")
    page.fill("prompt", "a cat")
    page.wait_for_chips(["a", "cat"])


def test_pasted_parameters_set_the_script(webui: WebUIServer, browser: Tab) -> None:
    """The arrow below Generate reads the parameters of an image out of the prompt box."""
    browser.open(webui.address)
    browser.wait("return !!document.querySelector('#txt2img_prompt textarea')?.offsetParent")
    browser.wait("return document.readyState === 'complete'")
    values = (
        "const find = (name) => [...document.querySelectorAll('#tab_txt2img [id*=weighted_clip_]')]"
        "  .filter((one) => one.id.endsWith(name))"
        "  .map((one) => one.matches('input') ? one : one.querySelector('input')).filter(Boolean)[0];"
        "return ['scheme', 'law', 'padding', 'mask_method'].map((name) => find(name)?.value)"
    )
    nested, compel = (named(webui.host, "law", value) for value in ("nested", "compel"))
    attention, attend = named(webui.host, "mask_method", "attention"), named(webui.host, "padding", "attend")
    assert browser.wait(f"const all = (() => {{ {values} }})(); return all.every(Boolean) && all") == [
        *(named(webui.host, "scheme", "masked_blend"), nested, attend, attention)
    ]
    browser.run("const box = document.querySelector('#txt2img_prompt textarea'); box.focus(); box.select()")
    browser.paste(PARAMETERS)
    browser.wait("document.querySelector('#paste').click(); return true")
    expected = [named(webui.host, "scheme", "comfy"), compel, named(webui.host, "padding", "mask"), attention]
    browser.wait(f"const all = (() => {{ {values} }})(); return all.join() === args[0].join()", expected)
    assert browser.run("return document.querySelector('#txt2img_prompt textarea').value") == "a (dog:0.5)"
    checked = (
        "return [...document.querySelectorAll('#tab_txt2img [id*=weighted_clip_enabled] input[type=checkbox]')]"
        ".some((one) => one.checked)"
    )
    browser.wait(checked)
    note = "return document.querySelector('#tab_txt2img [id$=weighted_clip_note]').innerText"
    browser.wait(f"const told = (() => {{ {note} }})(); return told.includes('Padding mask') && told")
    seen = f"{PANEL} return ['law', 'mask_method', 'finest_step'].map((name) => !!find(name)?.offsetParent)"
    browser.wait(f"return String((() => {{ {seen} }})()) === 'false,false,false'")


def test_switched_on_the_panel_fades_words_and_shows_what_counts(browser: Tab, webui: WebUIServer) -> None:
    browser.open(webui.address)
    browser.wait("return !!document.querySelector('#txt2img_prompt textarea')?.offsetParent")
    browser.wait("return document.readyState === 'complete' && !!document.querySelector('.input-accordion-checkbox')")
    browser.run("document.querySelector('#script_txt2img_weighted_clip_enabled .label-wrap').click()")
    begin = named(webui.host, "scheme", "masked_blend")
    browser.wait(f"{PANEL} return find('scheme')?.offsetParent && find('scheme').value.startsWith(args[0])", begin)
    told = "document.querySelector('#tab_txt2img [id$=weighted_clip_note]').innerText"
    assert SCHEMES["masked_blend"].advice in browser.run(f"return {told}")
    names = "['law', 'mask_method', 'above_one', 'finest_step', 'padding']"
    seen = f"{PANEL} return {names}.map((name) => !!find(name)?.offsetParent)"
    for scheme, expected in (("repeat", [0, 0, 0, 1, 0]), ("a1111", [0] * 5), ("masked_blend", [1, 1, 1, 0, 0])):
        browser.run(f"{PANEL} find('scheme').focus()")
        browser.wait(
            "const option = [...document.querySelectorAll('[data-testid=dropdown-option]')]"
            "  .find((one) => one.getAttribute('aria-label').startsWith(args[0]));"
            "option?.dispatchEvent(new MouseEvent('mousedown', {bubbles: true, cancelable: true}));"
            "return !!option",
            named(webui.host, "scheme", scheme),
        )
        browser.run("document.activeElement.blur()")
        wanted = str([bool(one) for one in expected]).lower()
        browser.wait(f"return JSON.stringify((() => {{ {seen} }})()) === args[0]", wanted.replace(" ", ""))
        assert ("nothing changes" in browser.run(f"return {told}")) == (scheme == "a1111")


def test_keep_apart_shows_its_choices_once_a_phrase_is_typed(browser: Tab, webui: WebUIServer) -> None:
    browser.open(webui.address)
    browser.wait("return document.readyState === 'complete' && !!document.querySelector('.input-accordion-checkbox')")
    browser.run("document.querySelector('#script_txt2img_weighted_clip_enabled .label-wrap').click()")
    browser.wait(f"{PANEL} return !!find('scheme')?.offsetParent")
    browser.run("document.querySelector('[id$=txt2img_weighted_clip_advanced] .label-wrap').click()")
    field = "document.querySelector('#script_txt2img_weighted_clip_bind textarea')"
    browser.wait(f"return !!{field}?.offsetParent")
    names = "['bind_hide', 'bind_rest', 'bind_strength', 'bind_words']"
    seen = (
        f"return JSON.stringify({names}.map((name) =>"
        "  !!document.querySelector(`#script_txt2img_weighted_clip_${name} :is(input, textarea)`)?.offsetParent))"
    )
    assert browser.run(seen) == "[false,false,false,false]"
    browser.run(f"{field}.focus()")
    browser.paste("red cat")
    browser.wait(f"{seen.replace('return ', 'return (')}) === '[true,true,true,false]'")
    browser.run(f"{field}.select()")
    browser.press_backspace()
    browser.wait(f"{seen.replace('return ', 'return (')}) === '[false,false,false,false]'")


def test_a_request_without_a_scheme_means_what_it_meant(webui: WebUIServer) -> None:
    """The host fills in what the page begins with."""
    text = "a (dog:0.5)"
    off, bare, named = (webui.txt2img(text, script=script) for script in ((), (True,), (True, "masked_blend")))
    assert bare.equals(off)
    assert not named.equals(off)
    assert "Weighted CLIP: a1111" in bare.infotext


def test_page_has_no_error_of_ours(webui: WebUIServer, page: LabPage) -> None:
    found = [line for line in page.tab.complaints() if "weighted" in json.dumps(line).lower()]
    assert not found
