"""Pictures of A1111 dropped on ComfyUI's page in Chromium: its own graph stays, and ours is offered, not opened."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from .comfy_server import ComfyServer
from .ruler_page import RulerPage

pytestmark = pytest.mark.host

INFOTEXT = (
    "a (red:1.2) cat\nNegative prompt: blurry\nSteps: 20, Sampler: Euler a, Schedule type: Karras, CFG scale: 7, "
    "Seed: 1, Size: 512x768, Model: seeded"
)
READER = "WeightedCLIPReadParameters"
OFFER = "document.querySelector('#weighted-clip-offer')"
TYPES = "app.graph.nodes.map(({ type }) => type)"
OPEN = "app.extensionManager.workflow.openWorkflows.map(({ path }) => path)"
DROP = """
const carried = new DataTransfer();
for (const [name, encoded] of args[0]) {
    const bytes = Uint8Array.from(atob(encoded), (letter) => letter.charCodeAt(0));
    carried.items.add(new File([bytes], name, { type: 'image/png' }));
}
const event = { dataTransfer: carried, bubbles: true, cancelable: true, clientX: 700, clientY: 500 };
app.canvas.canvas.dispatchEvent(new DragEvent('drop', event));
"""
COUNT_UPLOADS = """
window.numUploads = window.numAsked = 0;
const fetchApi = app.api.fetchApi;
app.api.fetchApi = function (path, ...others) {
    if (path.startsWith('/upload')) window.numUploads += 1;
    return fetchApi.call(this, path, ...others);
};
"""


@pytest.fixture(autouse=True)
def checkpoint(ruler_server: ComfyServer) -> None:
    """The pictures' checkpoint, there before the page is: a missing one is told in a dialog above the page."""
    checkpoints = ruler_server.base / "models" / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    (checkpoints / "seeded.safetensors").touch()


def png(**texts: str) -> str:
    """A picture with texts, as base64."""
    info = PngImagePlugin.PngInfo()
    for name, text in texts.items():
        info.add_text(name, text)
    stream = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(stream, "PNG", pnginfo=info)
    return base64.b64encode(stream.getvalue()).decode()


def drop(page: RulerPage, **files: str) -> None:
    """Drop files by their names, without the suffix; while ComfyUI fades in from one, its page would stay covered."""
    page.wait("return !document.querySelector('.p-blockui-mask')")
    page.run("await app.loadGraphData({ nodes: [], links: [], version: 0.4 }, true, true, 'before')")
    page.run(COUNT_UPLOADS)
    page.run(DROP, [[f"{name}.png", encoded] for name, encoded in files.items()])


def values(page: RulerPage, kind: str) -> list[Any]:
    """Values that a node of a kind would save."""
    return page.run("return app.graph.nodes.find(({ type }) => type === args[0]).serialize().widgets_values", kind)


def click_offer(page: RulerPage) -> None:
    page.wait(f"return Boolean({OFFER}?.querySelector('button'))")
    page.run(f"return {OFFER}.querySelector('button')").click()


def test_the_hosts_graph_stays_and_ours_opens_beside_it(page: RulerPage, ruler_server: ComfyServer) -> None:
    drop(page, dropped=png(parameters=INFOTEXT))
    page.wait(f"return Boolean({OFFER}) && {TYPES}.includes('KSampler')")
    hosts = page.run(f"return [{TYPES}, {OPEN}]")
    assert not any(kind.startswith("WeightedCLIP") for kind in hosts[0])
    assert page.run("return [window.numUploads, window.numAsked]") == [0, 0]
    click_offer(page)
    page.wait(f"return {TYPES}.includes('{READER}') && !{OFFER}")
    assert values(page, READER)[::2] == ["", "dropped.png"]
    assert values(page, "CheckpointLoaderSimple") == ["seeded.safetensors"]
    assert "WeightedCLIPLoadPromptLoras" in page.run(f"return {TYPES}")
    assert (ruler_server.base / "input" / "dropped.png").is_file()
    assert set(hosts[1]) < set(page.run(f"return {OPEN}"))


def test_an_offer_is_closed_and_follows_the_last_picture(page: RulerPage) -> None:
    drop(page, one=png(parameters=INFOTEXT))
    page.wait(f"return Boolean({OFFER})")
    page.run(f"return {OFFER}.querySelector('button:last-child')").click()
    assert page.run(f"return {OFFER}") is None
    drop(page, two=png(parameters=INFOTEXT))
    page.wait(f"return Boolean({OFFER})")
    drop(page, plain=png())
    page.wait(f"return !{OFFER} && {TYPES}.includes('LoadImage')")
    drop(page, three=png(parameters=INFOTEXT.replace("Seed: 1", "Seed: 3")))
    page.wait(f"return Boolean({OFFER})")
    page.run(f"{OFFER}.dataset.seen = 'yes'")
    drop(page, four=png(parameters=INFOTEXT))
    page.wait(f"return Boolean({OFFER}) && !{OFFER}.dataset.seen")
    click_offer(page)
    page.wait(f"return {TYPES}.includes('{READER}') && !{OFFER}")
    assert values(page, READER)[::2] == ["", "four.png"]


MISSING = (
    "a <lora:ink:1> cat <lora:<img src=x onerror='window.hit=1'>:1>\nNegative prompt: blurry\nSteps: 20, "
    "Sampler: Euler a, CFG scale: 7, Seed: 1, Size: 512x768, Model: other, TI: badhands"
)


def missing(page: RulerPage) -> list[str]:
    """Lines of the bar about files that are not there."""
    page.wait(f"return Boolean({OFFER}?.querySelector('li'))")
    return page.run(f"return [...{OFFER}.querySelectorAll('li')].map((line) => line.innerText)")


def test_files_that_are_not_there_are_named_when_the_template_opens(page: RulerPage, ruler_server: ComfyServer) -> None:
    drop(page, dropped=png(parameters=MISSING))
    click_offer(page)
    lines = missing(page)
    assert [line.split(": ")[:2] for line in lines[:2]] == [["Model", "other"], ["LoRA", "ink"]]
    assert lines[-1].startswith("TI: badhands: there is no embedding of this name in")
    assert str(ruler_server.base) in lines[-1]
    assert page.run("return window.hit ?? null") is None
    page.run(f"return {OFFER}.querySelector('button')").click()
    assert page.run(f"return {OFFER}") is None


PASTED = "WeightedCLIPTextEncode"
BUTTONS = "[...document.querySelectorAll('.wcr-problems .wcr-button')]"
SAME = f"{BUTTONS}.find(({{ innerText }}) => innerText === 'The same picture')"


@pytest.mark.parametrize("syntax", ["comfy", "a1111"])
def test_pasted_data_opens_the_template_too(page: RulerPage, syntax: str) -> None:
    page.load({"class_type": PASTED, "inputs": {"text": MISSING, "syntax": syntax}})
    page.wait(f"return Boolean({SAME})")
    before = page.run(f"return {OPEN}")
    page.run(f"{SAME}.click(); {SAME}?.click()")
    page.wait(f"return {TYPES}.includes('{READER}')")
    assert len(missing(page)) >= 3
    assert values(page, READER)[0] == MISSING
    assert values(page, READER)[2] == ""
    assert len(page.run(f"return {OPEN}")) == len(before) + 1


def test_pasted_data_that_cannot_be_read_is_said(page: RulerPage) -> None:
    text = INFOTEXT.replace("Euler a", "Restart")
    page.load({"class_type": PASTED, "inputs": {"text": text}})
    page.wait(f"return Boolean({SAME})")
    page.run(f"{SAME}.click()")
    page.wait("return document.querySelector('.wcr-bar').innerText.includes('“Restart” is not among ours')")
    assert READER not in page.run(f"return {TYPES}")
    page.load({"class_type": PASTED, "inputs": {"text": "a cat\nNegative prompt: blurry"}})
    page.wait("return document.querySelector('.wcr-problems')?.innerText.includes('generation data')")
    assert page.run(f"return {SAME} ?? null") is None


def test_a_workflow_and_two_pictures_at_once_are_the_hosts_alone(page: RulerPage) -> None:
    node = {"id": 1, "type": "EmptyLatentImage", "pos": [0, 0], "size": [200, 100], "flags": {}, "order": 0, "mode": 0}
    workflow = {
        "nodes": [{**node, "inputs": [], "outputs": [], "widgets_values": [64, 64, 1]}],
        "links": [],
        "version": 0.4,
    }
    drop(page, both=png(parameters=INFOTEXT, workflow=json.dumps(workflow)))
    page.wait(f"return {TYPES}.join() === 'EmptyLatentImage'")
    assert page.run(f"await new Promise((done) => setTimeout(done, 300)); return {OFFER}") is None
    drop(page, one=png(parameters=INFOTEXT), two=png(parameters=INFOTEXT))
    page.wait(f"return {TYPES}.filter((kind) => kind === 'LoadImage').length === 2")
    assert page.run(f"await new Promise((done) => setTimeout(done, 300)); return {OFFER}") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{'a ' * 5_000_000}\n{INFOTEXT}", "64 KiB"),
        ("a cat\nSteps: 20, nonsense <img src=x onerror='window.hit=1'>", "there are no settings"),
    ],
    ids=["10 MB", "malformed"],
)
def test_data_that_cannot_be_read_is_said_and_opens_nothing(page: RulerPage, text: str, said: str) -> None:
    drop(page, bad=png(parameters=text))
    click_offer(page)
    page.wait(f"return {OFFER}?.innerText.includes(args[0])", said)
    assert READER not in page.run(f"return {TYPES}")
    assert page.run("return [window.numUploads, window.hit ?? null]") == [0, None]
