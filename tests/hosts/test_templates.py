"""Example workflows, help pages and translations in a real ComfyUI and Chromium: they are listed, open, and run.

Every workflow is loaded as the template library loads it, turned into a prompt by the front end itself, and run on
models with random weights: the seeded Stable Diffusion 1.5, a tiny SDXL that the probe makes, a tiny CLIP, a dVAE of
plain colours, and a tiny DALL·E. The
pack's folder has a name of its own here, as ComfyUI shows no help pages of one with a dot and serves nothing of one
with a space.

What asks the server alone runs without a browser.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from weighted_clip.nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
from weighted_clip.studio.dalle.full_model import save_dalle
from weighted_clip.studio.dalle.weight_files import save_dvae
from weighted_clip.workshop.find_hosts import Host

from ..dalle.models import PRIOR, TINY_SMALL, palette_dvae, tiny_dalle
from .browser import Page, running_browser
from .comfy_server import CHECKPOINT, REPOSITORY, ComfyServer, Graph, Node, running_server
from .make_checkpoint import WHOLE_CLIP, write_whole_clip

pytestmark = pytest.mark.host

FOLDER = "weighted-clip"
WORKFLOWS = REPOSITORY / "example_workflows"
NAMES = sorted(path.stem for path in WORKFLOWS.glob("*.json"))
SIZE, STEPS = 64, 2
DVAE = "vae/palette.safetensors"
DALLE = "checkpoints/tiny-dalle.safetensors"
SETTINGS = {
    "Comfy.TutorialCompleted": True,  # no dialog on the first visit
    "Comfy.Canvas.SelectionToolbox": True,  # it has the button that opens the help
    "Comfy.Workflow.ShowMissingModelsWarning": False,
}
SET_NODES_2 = "await app.extensionManager.setting.set('Comfy.VueNodes.Enabled', args[0])"
IS_SHOWN = (
    "const image = document.querySelector('.node-help-content img');"
    "const title = document.querySelector('.node-help-content h1');"
    "return image?.complete && image.naturalWidth > 0 && image.getBoundingClientRect().width > 100 ? title?.innerText"
    " : null"
)


class HelpPage(Page):
    """With what opens a node's help."""

    def open_help(self, node_id: str) -> None:
        """Put a node alone on the canvas and click what opens its help."""
        # again if the front end then loads what it had open before
        self.wait(
            "const isThere = () => app.graph.nodes.length === 1 && app.graph.nodes[0].type === args[0];"
            "if (!isThere()) await app.loadApiJson({ 1: { class_type: args[0], inputs: {} } }, 'test');"
            "await new Promise((done) => setTimeout(done, 300)); return isThere()",
            node_id,
        )
        self.run("app.canvas.selectNode(app.graph.nodes[0]); app.canvas.setDirty(true, true)")
        button = "document.querySelector('[data-testid=\"info-button\"]')"
        self.wait(f"return Boolean({button}?.checkVisibility())")
        self.run(f"{button}.click()")


def write_small_models(base: Path) -> None:
    """Write the small models that `on_small_models` names, and the picture of the host's template, below a folder."""
    write_whole_clip(base / "models")
    for folder in ("vae", "checkpoints"):
        (base / "models" / folder).mkdir(exist_ok=True)
    save_dvae(palette_dvae(), base / "models" / DVAE)
    side = SIZE // TINY_SMALL.downsampling
    # the template's caption has 17 pieces, and PRIOR takes 12
    config = replace(PRIOR, text_length=36, rows=side, columns=side)
    save_dalle(tiny_dalle(config), base / "models" / DALLE)
    Image.linear_gradient("L").convert("RGB").save(base / "input" / "example.png")


@pytest.fixture(scope="module")
def web_server(host: Host, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyServer]:
    """A server with the pack in a folder whose help pages ComfyUI shows."""
    base = tmp_path_factory.mktemp("comfyui") / "base"
    with running_server(host, models, base, with_pack=True, folder=FOLDER) as server:
        server.request("/settings", SETTINGS)
        write_small_models(base)
        yield server


@pytest.fixture(scope="module")
def page(web_server: ComfyServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HelpPage]:
    """The page in a browser that has seen nothing yet."""
    with running_browser(tmp_path_factory.mktemp("browser")) as driver:
        opened = HelpPage(driver, web_server.port)
        opened.open()
        yield opened


def template_path(name: str, suffix: str) -> str:
    return f"/api/workflow_templates/{FOLDER}/{urllib.parse.quote(name)}.{suffix}"


def test_every_workflow_is_listed_with_its_thumbnail(web_server: ComfyServer) -> None:
    assert sorted(web_server.get("/workflow_templates")[FOLDER]) == NAMES
    for name in NAMES:
        assert web_server.get(template_path(name, "json"))["nodes"]
        status, thumbnail = web_server.request(template_path(name, "jpg"))
        assert status == 200
        assert thumbnail.startswith(b"\xff\xd8\xff")


def test_both_locales_are_merged(web_server: ComfyServer) -> None:
    merged = web_server.get("/i18n")
    for language in ("en", "zh"):
        for path in (REPOSITORY / "locales" / language).glob("*.json"):
            expected, found = json.loads(path.read_text(encoding="utf-8")), merged[language]
            assert expected.items() <= (found if path.stem == "main" else found[path.stem]).items()


@pytest.mark.parametrize("node_id", NODE_CLASS_MAPPINGS)
def test_a_help_page_and_its_picture_are_served(web_server: ComfyServer, node_id: str) -> None:
    status, text = web_server.request(f"/extensions/{FOLDER}/docs/{node_id}.md")
    assert status == 200
    name = text.decode().split("](images/")[1].split(")")[0]
    status, picture = web_server.request(f"/extensions/{FOLDER}/docs/images/{name}")
    assert status == 200
    assert picture.startswith(b"\x89PNG")


@pytest.mark.parametrize("node_id", NODE_CLASS_MAPPINGS)
def test_a_help_page_opens_with_its_picture(page: HelpPage, node_id: str) -> None:
    page.open()
    page.open_help(node_id)
    assert page.wait(IS_SHOWN) == NODE_DISPLAY_NAME_MAPPINGS[node_id]
    folded = "[...document.querySelectorAll('.node-help-content details')]"
    shown = (
        f"{folded}.map((one) => [one.firstElementChild, one.lastElementChild].map((part) => part.checkVisibility()))"
    )
    before = page.run(f"return {shown}")
    assert before == [[True, False]] * len(before) and len(before) >= 3
    page.run(f"{folded}[0].firstElementChild.click()")
    page.wait(f"return {shown}[0][1]")


OVERLAPS = """
const ends = ({ boundingRect: [x, y, width, height] }) => [x, y, x + width, y + height];
const { nodes } = app.graph;
const found = [];
for (const [i, one] of nodes.entries()) for (const other of nodes.slice(i + 1)) {
    const [a, b] = [ends(one), ends(other)];
    const height = Math.min(a[3], b[3]) - Math.max(a[1], b[1]);
    if (a[0] < b[2] && b[0] < a[2] && height > 0) found.push(`${one.title} and ${other.title}, by ${height} px`);
}
return found;
"""
"""Nodes that are drawn over one another; only known when their rulers have been drawn."""

PROMPT_RULERS = """\
app.graph.nodes.filter(({ type }) => !['WeightedCLIPReadParameters', 'WeightedCLIPTokensToImage'].includes(type))
    .flatMap(({ widgets = [] }) => widgets.filter(({ name }) => name === 'ruler').map(({ element }) => element))\
"""
"""Rulers but those of nodes whose ruler is empty while nothing is wrong."""


@pytest.fixture(scope="module", params=[False, True], ids=["canvas", "Nodes 2.0"])
def drawn_page(page: HelpPage, request: pytest.FixtureRequest) -> Iterator[HelpPage]:
    """The page, with nodes drawn in either way."""
    page.open()
    page.run(SET_NODES_2, request.param)
    yield page
    page.run(SET_NODES_2, False)


@pytest.mark.parametrize("name", NAMES)
def test_a_workflow_opens_and_runs(drawn_page: HelpPage, web_server: ComfyServer, name: str) -> None:
    page = drawn_page
    workflow = web_server.get(template_path(name, "json"))
    page.run("await app.loadGraphData(args[0])", workflow)
    page.wait("return app.graph.nodes.length === args[0]", len(workflow["nodes"]))
    unknown = (
        "app.graph.nodes.filter((node) => !(node.type in LiteGraph.registered_node_types)).map(({ type }) => type)"
    )
    assert page.run(f"return {unknown}") == []
    # as in the file: no widget has taken another's position
    for node in (node for node in workflow["nodes"] if node["type"] in NODE_CLASS_MAPPINGS):
        values = page.run("return app.graph.getNodeById(args[0]).serialize().widgets_values", node["id"])
        kept = node["widgets_values"]
        assert (values or [])[: len(kept)] == kept, node["type"]  # front end 1.58 saves no empty list
        assert (values or [])[len(kept) :] in ([], ["image"])  # the button that uploads one

    nodes = page.run("return (await app.graphToPrompt()).output")
    assert {node["type"] for node in workflow["nodes"]} - {"MarkdownNote"} == {
        node["class_type"] for node in nodes.values()
    }
    graph = Graph()
    graph.nodes = on_small_models(nodes)
    # as the page's own, so that its nodes show what they bring
    queue = "return (await app.api.queuePrompt(0, { output: args[0], workflow: {} })).prompt_id"
    result = web_server.result(page.run(queue, graph.nodes))

    pictures = {
        node_id: web_server.pictures(result, Node(node_id))
        for node_id, node in graph.nodes.items()
        if node["class_type"] in ("SaveImage", "PreviewImage")
    }
    drawn = [name for name, shown in pictures.items() if all(one.shape == (SIZE, SIZE, 3) for one in shown)]
    samplers = ("KSampler", "SamplerCustom", "SamplerCustomAdvanced", "WeightedCLIPDalleSample")
    makers = (*samplers, "WeightedCLIPTokensToImage")
    made = [node for node in nodes.values() if node["class_type"] in makers]
    grids = [node for node in nodes.values() if node["class_type"] == "WeightedCLIPSweepGrid"]
    assert len(drawn) + len(grids) == len(made) >= 1
    batch = max((node["inputs"].get("batch_size", 1) for node in graph.nodes.values()), default=1)
    for node_id, shown in pictures.items():
        source = graph.nodes[graph.nodes[node_id]["inputs"]["images"][0]]
        assert len(shown) == (source["inputs"].get("keep", batch) if node_id in drawn else 1)  # of masks, one
        for picture in shown:
            assert picture.std() > 10  # NaN would be drawn black
    page.wait(
        f"return {PROMPT_RULERS}.every((ruler) => !ruler.checkVisibility() || ruler.firstChild.childElementCount > 0)"
    )
    assert page.run(OVERLAPS) == []


def test_a_workflow_runs_from_the_page_to_its_pictures(drawn_page: HelpPage, web_server: ComfyServer) -> None:
    page = drawn_page
    page.open_help("WeightedCLIPMaskedBlend")
    assert page.wait(IS_SHOWN) == NODE_DISPLAY_NAME_MAPPINGS["WeightedCLIPMaskedBlend"]
    workflow = web_server.get(template_path("03 Fade a word out", "json"))
    (batch,) = [one["widgets_values"][2] for one in workflow["nodes"] if one["type"] == "EmptyLatentImage"]
    page.run("await app.loadGraphData(args[0])", workflow)
    page.wait("return app.graph.nodes.some(({ type }) => type === 'WeightedCLIPMaskedBlend')")
    page.run("await app.queuePrompt(0)")
    previews = "app.graph.nodes.filter(({ type }) => type === 'PreviewImage')"
    page.wait(f"return {previews}.every((node) => app.nodeOutputs[node.id]?.images?.length === args[0])", batch)
    assert page.run(f"return {previews}.length") == 3


def on_small_models(nodes: dict[str, Any]) -> dict[str, Any]:
    """A prompt with the seeded checkpoint, or the tiny SDXL, in place of its checkpoint; small, and in few steps."""
    result = {node_id: {**node, "inputs": dict(node["inputs"])} for node_id, node in nodes.items()}
    for node_id, node in nodes.items():
        inputs = result[node_id]["inputs"]
        if node["class_type"] == "CheckpointLoaderSimple":
            is_sdxl = inputs["ckpt_name"].startswith("sd_xl")
            inputs["ckpt_name"] = CHECKPOINT
            if is_sdxl:
                result["tiny"] = {"class_type": "WeightedCLIPTestTinySDXL", "inputs": {}}
                for other in result.values():
                    for name, value in other["inputs"].items():
                        if value in ([node_id, 0], [node_id, 1]):  # the VAE stays
                            other["inputs"][name] = ["tiny", value[1]]
        elif node["class_type"] == "WeightedCLIPLoad":
            inputs["file"] = f"checkpoints/{CHECKPOINT}"
        elif node["class_type"] == "WeightedCLIPLoadFull":
            inputs["file"] = WHOLE_CLIP.as_posix()
        elif node["class_type"] == "WeightedCLIPLoadDVAE":
            inputs["file"] = DVAE
        elif node["class_type"] == "WeightedCLIPLoadDalle":
            inputs["file"] = DALLE
        elif node["class_type"] == "WeightedCLIPReadParameters":
            inputs["text"] = re.sub(r"(?<=Size: )\d+x\d+", f"{SIZE}x{SIZE}", inputs["text"])
            inputs["text"] = re.sub(r"(?<=Steps: )\d+", str(STEPS), inputs["text"])
        elif node["class_type"] == "ImageScale":
            inputs |= {"width": SIZE, "height": SIZE}
        elif node["class_type"] == "EmptyLatentImage":
            inputs |= {"width": SIZE, "height": SIZE, "batch_size": min(inputs["batch_size"], 4)}
        elif "steps" in inputs:
            inputs["steps"] = STEPS
    return result


def test_a_node_is_shown_in_chinese(page: HelpPage, web_server: ComfyServer) -> None:
    chinese = json.loads((REPOSITORY / "locales" / "zh" / "nodeDefs.json").read_text(encoding="utf-8"))
    web_server.request("/settings", {"Comfy.Locale": "zh"})
    try:
        page.open()
        for node_id, texts in chinese.items():
            page.run("await app.loadApiJson(args[0], 'test')", {"1": {"class_type": node_id, "inputs": {}}})
            page.wait("return app.graph.nodes.length === 1 && app.graph.nodes[0].type === args[0]", node_id)
            assert page.run("return app.graph.nodes[0].title") == texts["display_name"]
            labels = page.run("return app.graph.nodes[0].outputs.map((slot) => slot.localized_name ?? slot.name)")
            assert labels == [output["name"] for output in texts["outputs"].values()]
            slots = "app.graph.nodes[0].inputs.map((slot) => [slot.name, slot.localized_name ?? slot.name])"
            for name, label in page.run(f"return {slots}"):
                if name != "upload":  # the host's own button beside an image
                    assert label == texts["inputs"][name]["name"]
            names = page.run("return app.graph.nodes[0].outputs.map(({ name }) => name)")
            assert names == list(NODE_CLASS_MAPPINGS[node_id].RETURN_NAMES)  # what scripts and files go by
    finally:
        web_server.request("/settings", {"Comfy.Locale": "en"})
        page.open()
