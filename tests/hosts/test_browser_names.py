"""Names of embeddings and LoRAs offered while a prompt is typed, in a real ComfyUI and Chromium, in both modes."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.syntax import parse
from weighted_clip.weighting.text.prompt import Lora

from .comfy_server import ComfyServer
from .ruler_page import PALETTE, VALUE, RulerPage

pytestmark = pytest.mark.host

SHOWN = """
const rows = [...document.querySelectorAll('#weighted-clip-names [role=option]')];
return rows.map((row) => row.innerText.replace('\\n', ' '));
"""
CHOSEN = "return document.querySelector('#weighted-clip-names [aria-selected=true] span')?.innerText ?? ''"
SETTING = "WeightedCLIP.Names"
EMBEDDINGS = ("easynegative.safetensors", "easypeasy.pt", "sub/bad_hands.pt", "odd(1).pt", "a/same.pt", "b/same.pt")
LORAS = ("ink.safetensors", "styles/ink_wash v1.1.safetensors", "x/detail.safetensors", "y/detail.safetensors")


@pytest.fixture(scope="module", autouse=True)
def files(ruler_server: ComfyServer) -> None:
    """Empty files: only their names count."""
    for folder, names in (("embeddings", EMBEDDINGS), ("loras", LORAS)):
        for name in names:
            path = ruler_server.base / "models" / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()


def load(page: RulerPage, syntax: str, text: str = "") -> Any:
    """An Inspect node; its box, with the focus."""
    page.load_inspect(text, syntax=syntax)
    page.wait("return document.querySelectorAll('.wcr-count').length > 0")
    area = page.text_area()
    area.click()
    return area


def wait_for(page: RulerPage, *names: str) -> None:
    """Wait until these names are shown, or that there is no list."""
    page.wait(f"return JSON.stringify((() => {{{SHOWN}}})()) === args[0]", _json(names))


def _json(names: tuple[str, ...]) -> str:
    return json.dumps(list(names), separators=(",", ":"))


def stays_closed(page: RulerPage) -> None:
    """Nothing is shown for longer than it takes a list to come."""
    page.run("await new Promise((done) => setTimeout(done, 700))")
    assert page.run(SHOWN) == []


def embeddings_in(text: str, syntax: str) -> list[str]:
    """The names of the embeddings that a node reads in a prompt, if those files are all there are."""
    bare = [name.rsplit("/", 1)[-1].rsplit(".", 1)[0] for name in EMBEDDINGS]
    known = [*bare, *(name.rsplit(".", 1)[0] for name in EMBEDDINGS)]
    embeddings = SimpleNamespace(names=lambda: known, find=lambda name: [0.0] if name in known else None)
    read = read_prompt(text, EncodeOptions(syntax=syntax), default_tokenizer(), embeddings=embeddings)
    ids = [token.id for chunk in read.chunks for token in chunk.content]
    return [one.name for one in ids if not isinstance(one, int)]


@pytest.mark.parametrize(
    ("syntax", "name", "written"),
    [
        ("comfy", "easynegative", "embedding:easynegative"),
        ("none", "easynegative", "embedding:easynegative"),
        ("a1111", "easynegative", "easynegative"),
        ("comfy", "odd(1)", r"embedding:odd\(1\)"),
        ("a1111", "odd(1)", r"odd\(1\)"),
        ("a1111", "bad_hands", "bad_hands"),
        ("comfy", "b/same", "embedding:b/same"),
    ],
)
def test_embeddings_are_written_as_the_node_reads_them(page: RulerPage, syntax: str, name: str, written: str) -> None:
    load(page, syntax)
    page.press(f"a cat, embedding:{name[:3]}")
    page.wait(f"return (() => {{{SHOWN}}})().includes(args[0])", f"{name} embedding")
    while page.run(CHOSEN) != name:
        page.press("ARROW_DOWN")
    page.press("ENTER", " dog")  # not a comma: behind a bracket, A1111 would read it as a part of that
    assert page.run(VALUE) == f"a cat, {written} dog"
    assert embeddings_in(f"a cat, {written} dog", syntax) == [name]
    wait_for(page)


def test_a_word_that_a_name_begins_with_takes_no_key_until_a_name_is_chosen(page: RulerPage) -> None:
    load(page, "comfy")
    page.press("easy")
    wait_for(page, "easynegative embedding", "easypeasy embedding")
    assert page.run(CHOSEN) == ""
    page.press("ENTER", "easy")
    wait_for(page, "easynegative embedding", "easypeasy embedding")
    page.press("ARROW_UP", "TAB")
    assert page.run(VALUE) == "easy\nembedding:easypeasy"
    assert page.run("return document.activeElement.tagName") == "TEXTAREA"


def test_the_list_of_loras_stays_while_the_tag_is_begun(page: RulerPage) -> None:
    load(page, "a1111")
    for key in "<lora:":
        page.press(key)
        page.wait(f"return (() => {{{SHOWN}}})().length === 4")
        page.run("await new Promise((done) => setTimeout(done, 300))")
        assert len(page.run(SHOWN)) == 4
    page.press("det")
    wait_for(page, "x/detail LoRA", "y/detail LoRA")


def test_loras_are_tags_for_a1111(page: RulerPage) -> None:
    load(page, "a1111", "a cat")
    page.press("END", "<")
    wait_for(page, "ink LoRA", "ink_wash v1.1 LoRA", "x/detail LoRA", "y/detail LoRA")
    page.press("lora:det")
    wait_for(page, "x/detail LoRA", "y/detail LoRA")
    page.press("ARROW_DOWN", "ENTER")
    assert page.run(VALUE) == "a cat<lora:y/detail:1>"
    page.press("<ink")
    wait_for(page, "ink LoRA", "ink_wash v1.1 LoRA")
    page.press("ENTER")
    assert page.run(VALUE) == "a cat<lora:y/detail:1><lora:ink:1>"


def test_a_tag_keeps_its_weight_when_its_name_changes(page: RulerPage) -> None:
    area = load(page, "a1111", "a <lora:in:0.5> cat")
    page.run("args[0].setSelectionRange(10, 10)", area)
    page.press("k")
    wait_for(page, "ink_wash v1.1 LoRA")
    page.press("ENTER")
    assert page.run(VALUE) == "a <lora:ink_wash v1.1:0.5> cat"


def test_loras_are_calls_for_compel(page: RulerPage) -> None:
    load(page, "compel")
    page.press("a cat withLora(")
    wait_for(page, "ink LoRA")
    page.press("TAB")
    assert page.run(VALUE) == "a cat withLora(ink, 1.0)"
    assert parse("a cat withLora(ink, 1.0)", "compel").loras == (Lora("ink", 1.0),)


@pytest.mark.parametrize(
    ("syntax", "typed"),
    [("comfy", "a <lora:"), ("none", "a <"), ("compel", "embedding:e"), ("compel", "easy"), ("a1111", "ea")],
)
def test_nothing_is_offered_that_the_node_would_read_as_text(page: RulerPage, syntax: str, typed: str) -> None:
    load(page, syntax)
    page.press(typed)
    stays_closed(page)


def test_mouse_escape_and_undo(page: RulerPage) -> None:
    from selenium.webdriver import ActionChains

    load(page, "comfy")
    page.press("a embedding:ea")
    wait_for(page, "easynegative embedding", "easypeasy embedding")
    page.press("ESCAPE")
    wait_for(page)
    assert page.run("return document.activeElement.tagName") == "TEXTAREA"
    page.press("s")
    wait_for(page, "easynegative embedding", "easypeasy embedding")
    ActionChains(page.driver).move_to_element(
        page.driver.find_element("css selector", "#weighted-clip-names-1")
    ).click().perform()
    assert page.run(VALUE) == "a embedding:easypeasy"
    assert page.run("return document.activeElement.tagName") == "TEXTAREA"
    page.press("z", control=True)
    assert page.run(VALUE) == "a embedding:eas"
    wait_for(page)
    page.press("y")
    stays_closed(page)


def test_keys_of_weights_are_not_taken(page: RulerPage) -> None:
    load(page, "comfy")
    page.press("embedding:easy")
    wait_for(page, "easynegative embedding", "easypeasy embedding")
    page.press("ARROW_UP", control=True)
    assert page.run(VALUE).endswith(":1.05)")


def test_a_screen_reader_is_told(page: RulerPage) -> None:
    area = load(page, "comfy")
    page.press("embedding:ea")
    wait_for(page, "easynegative embedding", "easypeasy embedding")
    element = page.driver.find_element("css selector", "#weighted-clip-names")
    assert element.get_attribute("role") == "listbox"
    assert element.accessible_name == "Embeddings and LoRAs"
    assert area.get_attribute("aria-controls") == "weighted-clip-names"
    assert area.get_attribute("aria-autocomplete") == "list"
    assert area.get_attribute("aria-activedescendant") == "weighted-clip-names-0"
    page.press("ARROW_DOWN")
    assert area.get_attribute("aria-activedescendant") == "weighted-clip-names-1"
    assert "2 names" in page.run("return [...document.querySelectorAll('[role=status]')].map((one) => one.textContent)")
    page.press("ESCAPE")
    for name in ("aria-controls", "aria-autocomplete", "aria-activedescendant"):
        assert area.get_attribute(name) is None


def test_it_closes_when_another_text_comes_into_the_box(page: RulerPage) -> None:
    load(page, "comfy")
    page.press("embedding:ea")
    wait_for(page, "easynegative embedding", "easypeasy embedding")
    page.set_widget("text", "a dog")
    wait_for(page)


def test_other_boxes_get_no_list(page: RulerPage) -> None:
    page.load({"class_type": "CLIPTextEncode", "inputs": {"text": ""}})
    page.text_area().click()
    page.press("embedding:ea")
    stays_closed(page)


def test_a_linked_prompt_gets_them_where_it_is_typed(page: RulerPage) -> None:
    holder = {"class_type": "PrimitiveStringMultiline", "inputs": {"value": ""}}
    reader = {"class_type": "WeightedCLIPInspect", "inputs": {"text": ["1", 0], "syntax": "a1111"}}
    page.load(holder, reader)
    page.wait("return document.querySelector('.wcr-bar')?.innerText.includes('text linked: comes from')")
    page.text_area().click()
    page.press("<in")
    wait_for(page, "ink LoRA", "ink_wash v1.1 LoRA")
    page.press("ENTER")
    typed = "return app.graph.nodes.map(({ type, widgets }) => [type, widgets[0].value])"
    assert ["PrimitiveStringMultiline", "<lora:ink:1>"] in page.run(typed)


def test_the_setting_switches_it_off(page: RulerPage) -> None:
    load(page, "comfy")
    page.set(SETTING, False)
    try:
        page.press("embedding:ea")
        stays_closed(page)
    finally:
        page.set(SETTING, True)
    page.press("s")
    wait_for(page, "easynegative embedding", "easypeasy embedding")


def test_it_works_while_the_ruler_is_off(page: RulerPage) -> None:
    page.set("WeightedCLIP.TokenRuler", False)
    try:
        page.load({"class_type": "WeightedCLIPA1111Encode", "inputs": {"text": ""}})
        page.text_area().click()
        page.press("<")
        wait_for(page, "ink LoRA", "ink_wash v1.1 LoRA", "x/detail LoRA", "y/detail LoRA")
    finally:
        page.set("WeightedCLIP.TokenRuler", True)


@pytest.mark.parametrize(
    "theirs", ['<div class="pysssss-autocomplete">cat</div>', '<div id="autocomplete-plus-root">cat</div>']
)
def test_there_is_no_list_while_another_pack_shows_one(page: RulerPage, theirs: str) -> None:
    """By a stand-in for their lists; beside their own code: test_browser_autocompleters.py."""
    load(page, "comfy")
    page.run("document.body.insertAdjacentHTML('beforeend', args[0]); window.theirs = document.body.lastChild", theirs)
    page.press("embedding:e")
    stays_closed(page)
    page.run("window.theirs.style.display = 'none'")
    page.press("a")
    wait_for(page, "easynegative embedding", "easypeasy embedding")
    page.run("window.theirs.style.display = 'block'")
    wait_for(page)


@pytest.mark.parametrize("palette", ["dark", "light"])
def test_it_stands_at_the_caret_and_can_be_read(page: RulerPage, palette: str) -> None:
    page.set(PALETTE, palette)
    try:
        area = load(page, "comfy", "a cat\n\n")
        page.press("PAGE_DOWN", "embedding:ea")
        wait_for(page, "easynegative embedding", "easypeasy embedding")
        place = page.run(
            "const box = (one) => one.getBoundingClientRect().toJSON();"
            "return [box(args[0]), box(document.getElementById('weighted-clip-names'))]",
            area,
        )
        around, shown = place
        assert around["left"] + 40 < shown["left"] < around["left"] + 200
        assert around["top"] + 30 < shown["top"] < around["top"] + 90
        contrast = page.run(CONTRAST)
        assert len(contrast) == 4 and min(contrast) >= 4.5
    finally:
        page.set(PALETTE, "dark")


CONTRAST = """
const { contrast, parseColor } = await import('/extensions/ComfyUI-weighted.clip/ruler/colors.js');
const list = document.getElementById('weighted-clip-names');
return [...list.querySelectorAll('[role=option] > *')].map((part) => {
  const row = parseColor(getComputedStyle(part.parentElement).backgroundColor);
  return contrast(row ?? parseColor(getComputedStyle(list).backgroundColor), parseColor(getComputedStyle(part).color));
});
"""
