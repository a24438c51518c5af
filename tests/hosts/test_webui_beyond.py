"""Models beyond CLIP in a running Forge: its page, its API and the parameters of its images.

Their files have 20 GB, so a stub of the loader (forge_loader_stub) makes small models of Forge's classes in their
place; all else is Forge's own. What is computed in them is compared with a softmax in forge_joint.py.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from weighted_clip.hosts.webui.model_readers import LOADS_NEXT
from weighted_clip.hosts.webui.script.axis_values import WEIGHT_STRENGTH
from weighted_clip.hosts.webui.script.routes import UNKNOWN
from weighted_clip.workshop.find_hosts import Host

from ..patience import SECONDS
from ..web.chromium import Tab, running_chromium
from .comfy_server import CHECKPOINT
from .server import TESTS
from .test_forge_places import HIRES
from .test_webui_axes import plotted
from .test_webui_prompts import CHIPS, PHONE, RULER, fill, open_page, open_script
from .webui_server import WebUIServer, pixels_of, running_webui

pytestmark = [pytest.mark.host, pytest.mark.slow]

KINDS = ("Flux", "Chroma", "SD35", "Unknown")
PROMPT = "a (red:1.5) cat and a (dog:0.3)"
ATTENTION = (
    *(True, "a1111", "none", "nested", "attention", "attend", "a1111", "auto", "", "full", 1.0),
    "whole phrases",
)
ATTENTION = (*ATTENTION, "", "", False, "as ComfyUI", "bias")
"""Values of the script's controls up to the way in which weights act beyond CLIP."""


@pytest.fixture(scope="module")
def server(webui_host: Host, webui_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebUIServer]:
    if webui_host.kind != "Forge":
        pytest.skip("of the WebUIs Forge alone has models beyond CLIP")
    base, folder = tmp_path_factory.mktemp("beyond") / "data", tmp_path_factory.mktemp("checkpoints")
    for kind in KINDS:
        (folder / f"small-{kind}.ckpt").write_bytes(b"in place of 20 GB")
    stub = {"weighted-clip-loader-stub": TESTS / "forge_loader_stub"}
    arguments = ("--ckpt-dir", str(folder))
    settings = {"sd3_enable_t5": True}
    with running_webui(
        webui_host, webui_models, base, with_ours=True, extensions=stub, settings=settings, arguments=arguments
    ) as running:
        yield running


def drawn(server: WebUIServer, kind: str, *script: Any, prompt: str = PROMPT, **fields: Any) -> Any:
    """Pictures by a model; ``SD1`` is the checkpoint that is really there."""
    name = CHECKPOINT if kind == "SD1" else f"small-{kind}.ckpt"
    override = {"sd_model_checkpoint": name}
    return server.txt2img(prompt, script=script, override_settings=override, **{"cfg_scale": 2.0, **fields})


def ruler(server: WebUIServer, text: str, **settings: Any) -> dict[str, Any]:
    """The strip's answer for a prompt."""
    asked = {"text": text, "is_negative": False, "steps": 2, "syntax": "a1111"}
    return server.api(
        "/weighted-clip/ruler", {**asked, **({"settings": {"enabled": True, **settings}} if settings else {})}
    )


def chips(view: dict[str, Any]) -> list[str]:
    return [chip["text"] for chunk in view["chunks"] for chip in chunk["chips"]]


@pytest.mark.parametrize("kind", ["Flux", "Chroma", "SD35"])
def test_weights_act_where_the_strip_says_so(server: WebUIServer, kind: str) -> None:
    off, on = drawn(server, kind), drawn(server, kind, *ATTENTION)
    assert not on.equals(off)
    assert "Weighted CLIP attention: bias" in on.infotext
    assert "Weighted CLIP acted by: attention bias" in on.infotext
    assert "Weighted CLIP" not in off.infotext
    answer = ruler(server, PROMPT, attention="bias")
    beside = {"Flux": ["CLIP-L"], "Chroma": [], "SD35": ["CLIP-L + CLIP-G"]}[kind]
    assert [view["encoder"] for view in answer["views"]] == ["T5", *beside]
    assert all(chips(view) == ["a", "red", "cat", "and", "a", "dog"] for view in answer["views"])
    assert answer["views"][0]["scheme"] == "attention bias"
    # weight 1, and script off after it: the host's own picture
    plain = drawn(server, kind, prompt="a red cat and a dog")
    assert drawn(server, kind, *ATTENTION, prompt="a red cat and a dog").equals(plain)
    assert drawn(server, kind).equals(off)


def picture(pixels: np.ndarray) -> str:
    """A picture as the API takes it."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return base64.b64encode(file.getvalue()).decode("ascii")


COLOURS = np.random.default_rng(3).integers(0, 256, (64, 64, 3), dtype=np.uint8)
MASK = np.zeros_like(COLOURS)
MASK[:, 32:] = 255
REDRAWN = {"init_images": [picture(COLOURS)], "denoising_strength": 0.9, "steps": 4}
INPAINTED = {"mask": picture(MASK), "mask_blur": 0, "inpainting_fill": 1, "inpaint_full_res": False}
WAYS = {"hires. fix": HIRES, "img2img": REDRAWN, "inpainting": {**REDRAWN, **INPAINTED}, "batch": {"batch_size": 2}}


@pytest.mark.parametrize("kind", ["Flux", "Chroma", "SD35"])
@pytest.mark.parametrize("way", WAYS)
def test_weights_act_in_all_ways_of_drawing(server: WebUIServer, kind: str, way: str) -> None:
    fields = WAYS[way]
    off, on = drawn(server, kind, **fields), drawn(server, kind, *ATTENTION, **fields)
    assert not on.equals(off)
    assert len(on.pictures) == fields.get("batch_size", 1)
    assert "Weighted CLIP acted by: attention bias" in on.infotext
    if way == "inpainting":
        assert np.array_equal(on.pictures[0][:, :32], COLOURS[:, :32])
        assert not np.array_equal(on.pictures[0][:, 32:], COLOURS[:, 32:])
    plain = {"prompt": "a red cat and a dog", **fields}
    assert drawn(server, kind, *ATTENTION, **plain).equals(drawn(server, kind, **plain))
    assert drawn(server, kind, **fields).equals(off)


@pytest.mark.parametrize("kind", ["Flux", "Chroma", "SD35", "Unknown"])
def test_what_cannot_act_is_said_and_the_picture_is_the_hosts(server: WebUIServer, kind: str) -> None:
    off, on = drawn(server, kind), drawn(server, kind, True, "masked_blend")
    assert on.equals(off)
    told = "\n".join(on.info["extra_generation_params"]["Weighted CLIP problems"])
    answer = ruler(server, PROMPT, scheme="masked_blend")
    said = [issue["message"] for view in answer["views"] for issue in view["issues"]] + answer["notes"]
    # what a request overrides, the host takes back behind it
    (line,) = [line for line in said if line != UNKNOWN and not line.startswith(LOADS_NEXT.partition("{")[0])]
    assert line in told
    assert "Weighted CLIP acted by: the WebUI's own weights" in on.infotext


@pytest.mark.parametrize("scheme", ["compel", "lpw"])
def test_schemes_weigh_rows_of_t5_in_flux(server: WebUIServer, scheme: str) -> None:
    off, on = drawn(server, "Flux"), drawn(server, "Flux", True, scheme)
    other = drawn(server, "Flux", True, scheme, prompt="a (red:1.2) cat and a (dog:0.3)")
    assert not on.equals(off)
    assert not on.equals(other)
    assert f"Weighted CLIP: {scheme}" in on.infotext
    assert "acted by" not in on.infotext
    assert "Weighted CLIP problems" not in on.info["extra_generation_params"]
    answer = ruler(server, PROMPT, scheme=scheme)
    assert answer["views"][0]["scheme"] == scheme
    assert not [issue for view in answer["views"] for issue in view["issues"]]
    pasted = {"infotext": on.infotext, "styles": [], "hr_additional_modules": ["Use same choices"]}
    assert drawn(server, "Flux", **pasted).equals(on)
    for fields in WAYS.values():
        assert not drawn(server, "Flux", True, scheme, **fields).equals(drawn(server, "Flux", **fields))
    assert drawn(server, "Flux").equals(off)
    override = {"override_settings": {"sd_model_checkpoint": "small-Flux.ckpt"}, "cfg_scale": 2.0, "prompt": PROMPT}
    override["scheduler"] = "Normal"
    plot = plotted(server, ("Scheme", ("off", scheme)), ("Beyond CLIP", ("as the WebUI", "bias")), **override)
    cells = [*map(pixels_of, plot["images"][1:])]
    for cell, alone in zip(cells, (off, on, off, drawn(server, "Flux", *ATTENTION)), strict=True):
        assert np.array_equal(cell, alone.pictures[0])


def test_models_that_change_between_jobs_draw_as_alone(server: WebUIServer) -> None:
    jobs = [
        ("Flux", ATTENTION),
        ("SD1", (True, "masked_blend")),
        ("Unknown", ATTENTION),
        ("Chroma", ATTENTION),
        ("SD1", ()),
    ]
    alone = [drawn(server, kind, *script) for kind, script in jobs]
    again = [drawn(server, kind, *script) for kind, script in reversed(jobs)][::-1]
    assert all(map(type(alone[0]).equals, alone, again))
    assert not alone[1].equals(alone[-1])


@pytest.mark.parametrize("ended", ["interrupt", "skip"])
def test_what_was_ended_early_leaves_nothing_behind(server: WebUIServer, ended: str) -> None:
    """As with Generate forever, which begins the next picture at once."""
    stock = drawn(server, "Flux")
    with ThreadPoolExecutor(1) as pool:
        cut = pool.submit(drawn, server, "Flux", *ATTENTION, steps=150, n_iter=2)
        server.wait(lambda: server.api("/sdapi/v1/progress")["state"]["sampling_step"] > 2, SECONDS, "it never began")
        server.api(f"/sdapi/v1/{ended}", {})
        after = drawn(server, "Flux")
        cut.result()
    assert after.equals(stock)
    assert drawn(server, "Flux", *ATTENTION).equals(drawn(server, "Flux", *ATTENTION))


def test_axes_draw_what_is_drawn_alone(server: WebUIServer) -> None:
    drawn(server, "Flux")
    override = {"override_settings": {"sd_model_checkpoint": "small-Flux.ckpt"}, "cfg_scale": 2.0, "prompt": PROMPT}
    override["scheduler"] = "Normal"
    answer = plotted(
        server, ("Beyond CLIP", ("as the WebUI", "bias")), ("Above 1", ("as ComfyUI", "as the WebUI")), **override
    )
    cells = [*map(pixels_of, answer["images"][1:])]
    places = [(way, above) for above in ("as ComfyUI", "as the WebUI") for way in ("as the WebUI", "bias")]
    for (way, above), cell in zip(places, cells, strict=True):
        alone = drawn(server, "Flux", *ATTENTION[:15], above, way)
        assert np.array_equal(cell, alone.pictures[0]), (way, above)
    assert not np.array_equal(cells[0], cells[1])
    prompt = {**override, "prompt": "a (red)0.2 (cat:0.2)"}
    answer = plotted(server, ("Syntax", ("a1111", "compel")), (WEIGHT_STRENGTH, "0-1 [2]"), script=ATTENTION, **prompt)
    cells = [*map(pixels_of, answer["images"][1:])]
    for number, (strength, syntax) in enumerate(product((0.0, 1.0), ("a1111", "compel"))):
        script = (*ATTENTION[:6], syntax, *ATTENTION[7:], strength)
        alone = drawn(server, "Flux", *script, prompt=prompt["prompt"])
        assert np.array_equal(cells[number], alone.pictures[0]), (strength, syntax)
    assert not np.array_equal(cells[0], cells[2]) and not np.array_equal(cells[2], cells[3])


PLACED = "red cat: left half"
PLAIN = "a red cat and a dog"


def test_places_and_word_maps_act_and_leave_nothing_behind(server: WebUIServer) -> None:
    stock, watched, placed = (
        drawn(server, "Flux", *script, prompt=PLAIN)
        for script in ((), (*ATTENTION[:13], "", True), (*ATTENTION[:13], PLACED, True))
    )
    assert (len(stock.pictures), len(watched.pictures), len(placed.pictures)) == (1, 2, 2)
    assert np.array_equal(watched.pictures[0], stock.pictures[0])
    assert not np.array_equal(placed.pictures[0], stock.pictures[0])
    assert not np.array_equal(placed.pictures[1], watched.pictures[1])
    (line,) = placed.info["extra_generation_params"]["Weighted CLIP problems"]
    assert line == f"“{PLACED}” acted in 2 of 2 steps."
    pasted = {"infotext": placed.infotext, "styles": [], "hr_additional_modules": ["Use same choices"]}
    assert drawn(server, "Flux", prompt=PLAIN, **pasted).equals(placed)
    assert drawn(server, "Flux", prompt=PLAIN).equals(stock)


def test_axes_of_places_and_phrases_draw_what_is_drawn_alone(server: WebUIServer) -> None:
    drawn(server, "Flux")
    fields = {"override_settings": {"sd_model_checkpoint": "small-Flux.ckpt"}, "cfg_scale": 2.0, "prompt": PLAIN}
    fields["scheduler"] = "Normal"
    placed = plotted(server, ("Places", f"off, {PLACED}"), script=ATTENTION, **fields)
    for cell, places in zip(map(pixels_of, placed["images"][1:]), ("", PLACED), strict=True):
        assert np.array_equal(cell, drawn(server, "Flux", *ATTENTION[:13], places, prompt=PLAIN).pictures[0]), places
    # phrases cannot be kept apart there at any strength, which is said and stops nothing
    apart = plotted(server, ("Keep apart", "off, red cat"), ("Strength", "0.5, 1"), script=ATTENTION, **fields)
    cells = [*map(pixels_of, apart["images"][1:])]
    assert len(cells) == 4
    assert all(np.array_equal(cell, pixels_of(placed["images"][1])) for cell in cells)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with running_chromium(tmp_path_factory.mktemp("browser"), width=1366, height=768) as tab:
        yield tab


def test_the_page_shows_t5_and_follows_the_model(server: WebUIServer, browser: Tab) -> None:
    drawn(server, "Flux")
    open_page(server, browser)
    fill(browser, "txt2img_prompt", "a (red:1.5) cat")
    shown = f"return JSON.stringify((() => {{ {CHIPS} }})()) === args[1]"
    words = json.dumps([["a", "red", "cat"]] * 2, separators=(",", ":"))
    browser.wait(shown, "txt2img_prompt", words)
    heads = f"{RULER} return textsIn(ruler, '.wcr-head')"
    assert browser.run(heads, "txt2img_prompt") == ["T54/255", "CLIP-L3/75"]  # “a” is two, as it has a space of its own
    chip = "document.querySelector('#weighted_clip_ruler_txt2img_prompt .wcr-chip[data-start=\"12\"]')"
    browser.run(f"{chip}.dispatchEvent(new KeyboardEvent('keydown', {{key: 'ArrowUp', bubbles: true}}))")
    browser.wait("return document.querySelector('#txt2img_prompt textarea').value.startsWith('a (red:1.5) (cat:1.')")
    drawn(server, "SD1")
    browser.run("window.dispatchEvent(new Event('focus'))")
    browser.wait(f"return !(() => {{ {heads} }})().length", "txt2img_prompt")
    drawn(server, "Unknown")
    browser.run("window.dispatchEvent(new Event('focus'))")
    browser.wait(
        "return document.querySelector('#weighted_clip_ruler_txt2img_prompt').innerText.includes(args[0])", UNKNOWN
    )


def test_the_strip_fits_a_laptop_and_a_phone(server: WebUIServer, browser: Tab, tmp_path: Path) -> None:
    drawn(server, "SD35")
    open_page(server, browser)
    open_script(browser)
    fill(browser, "txt2img_prompt", "a (red:1.5) cat and a (blue dog:0.4), " * 8 + "a 🦊 BREAK (never closed")
    browser.wait(
        f"{RULER} return textsIn(ruler, '.wcr-chip').length > 100 && textsIn(ruler, '.wcr-problems p').length > 2",
        "txt2img_prompt",
    )
    try:
        for width, height in ((1366, 768), (PHONE, 844)):
            browser.call(
                "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=True
            )
            browser.wait(f"{RULER} return ruler.getBoundingClientRect().right <= args[1]", "txt2img_prompt", width)
            assert browser.run(f"{RULER} return ruler.scrollWidth <= ruler.clientWidth", "txt2img_prompt")
            browser.screenshot(tmp_path / f"{width}.png")
    finally:
        browser.call("Emulation.clearDeviceMetricsOverride")
    assert not [line for line in browser.complaints() if "weighted" in line.lower()]


def test_parameters_of_an_image_set_the_controls(server: WebUIServer, browser: Tab) -> None:
    infotext = drawn(server, "Flux", *ATTENTION, 0.5).infotext
    open_page(server, browser)
    fill(browser, "txt2img_prompt", infotext)
    browser.run("document.querySelector('#paste').click()")
    values = (
        "const value = (name) =>"
        "  document.querySelector(`#script_txt2img_weighted_clip_${name} :is(input, textarea)`)?.value;"
        "return value('attention')?.startsWith('bias') && Number(value('attention_strength')) === 0.5"
    )
    browser.wait(values)
    assert browser.run("return document.querySelector('#txt2img_prompt textarea').value") == PROMPT
