"""An earlier state of the pack in a real ComfyUI is upgraded and then removed: saved workflows give what they gave.

WEIGHTED_CLIP_EARLIER=COMMIT names the earlier state, a commit or tag of this repository; without it, this is skipped.
The pack is a clone, as a user's, which is checked out at that commit and then at the present one (changes that are not
committed are not in it), or replaced by the folder that WEIGHTED_CLIP_PACK names. With the earlier state, each of its
templates is opened in the page, saved by it, and run; every scheme it had encodes a prompt. The upgraded pack opens the
saved files and runs both again.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from weighted_clip.encoder.models.kernels import VARIABLE
from weighted_clip.workshop.find_hosts import Host

from .browser import Page, running_browser
from .comfy_server import (
    ComfyServer,
    Conditioning,
    Graph,
    Node,
    make_base,
    pixel_difference,
    serving,
    with_clip,
)
from .server import REPOSITORY, pack_folder
from .stock import StockOutputs, run_stock
from .test_templates import SETTINGS, on_small_models, write_small_models

pytestmark = pytest.mark.host

FOLDER = "weighted-clip"
PROMPT = "a (red:1.4) cat and a (dog:0.5) in a bowl, ((nested)) words"
RULER = "WeightedCLIP.TokenRuler"
"""A setting of ours, which is changed, so that ComfyUI has something to keep."""
CHANGED = {"scheme lerp_last"}
"""Choices that gave other numbers until 22 November 2026, by CHANGELOG.md; before the first release."""
GRID = "WeightedCLIPWordMaps", 1
"""Output whose maps were drawn at the picture's size until 28 November 2026, and then made smaller."""
KEPT = ("user/", "output/", "input/", "temp/", "cache/weighted-clip/kernels.json", "server.log", "model_paths.yaml")
"""Beginnings of the files that may be left in the base folder in the end. The first four are ComfyUI's own."""


@dataclass(frozen=True)
class Outputs:
    """Outputs of a state of the pack."""

    prompts: Mapping[str, Mapping[str, Any]]
    """Each workflow as the page sends it to the server, by its name."""
    widgets: Mapping[str, Mapping[str, Any]]
    """For each workflow and each of our nodes, its size, and the names and values of its widgets."""
    pictures: Mapping[str, Mapping[str, list[np.ndarray]]]
    """Pictures of each workflow, by the id of the node that shows them."""
    encoded: Mapping[str, Conditioning]
    """Conditioning of `PROMPT` by each choice of the first node's menus."""


@dataclass(frozen=True)
class Story:
    """A clean host, the earlier state, the present one, and the host without the pack again."""

    stock: tuple[StockOutputs, StockOutputs]
    """Outputs of stock nodes before the pack came and after it went."""
    earlier: Outputs
    present: Outputs
    logs: tuple[str, str, str, str]
    left: list[str]
    """Files in the base folder that were not there before, relative to it."""
    settings: Mapping[str, Any]
    """Settings of ours that ComfyUI keeps in the end."""


class WorkflowPage(Page):
    """With what opens and saves workflows."""

    def open_workflow(self, workflow: Mapping[str, Any]) -> None:
        self.run("await app.loadGraphData(args[0])", workflow)
        self.wait("return app.graph.nodes.length === args[0]", len(workflow["nodes"]))

    def prompt(self) -> dict[str, Any]:
        return self.run("return (await app.graphToPrompt()).output")

    def widgets(self) -> dict[str, Any]:
        return self.run(
            "return Object.fromEntries(app.graph.nodes.filter(({ type }) => type.startsWith('WeightedCLIP'))"
            ".map((node) => [node.id, [[...node.size], (node.widgets ?? [])"
            ".filter(({ serialize }) => serialize !== false).map(({ name, value }) => [name, value])]]))"
        )


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)


def user_file(name: str) -> str:
    """Address of a saved workflow."""
    return f"/userdata/workflows%2F{name.replace(' ', '%20')}.json?overwrite=true"


def choices(server: ComfyServer) -> dict[str, dict[str, str]]:
    """Every scheme, normalisation and padding of Weighted Prompt, the other inputs at their defaults."""
    inputs = server.inputs("WeightedCLIPTextEncode")
    found: dict[str, dict[str, str]] = {}
    for name in ("syntax", "scheme", "normalization", "padding"):
        kind, options = inputs[name]
        for value in kind if isinstance(kind, list) else options["options"]:
            found[f"{name} {value}"] = {name: value}
    return found


def encode(server: ComfyServer, wanted: Mapping[str, Mapping[str, str]], number: int) -> dict[str, Conditioning]:
    """Conditionings of `PROMPT` by several choices, by their names."""
    graph, clip = with_clip(number=number)
    nodes = [
        server.add_ours(graph, "WeightedCLIPTextEncode", clip=clip, text=PROMPT, **chosen) for chosen in wanted.values()
    ]
    return dict(zip(wanted, server.conditionings(graph, *nodes), strict=True))


def outputs(
    server: ComfyServer,
    page: WorkflowPage,
    workflows: Mapping[str, Mapping[str, Any]],
    chosen: Mapping[str, Mapping[str, str]],
    number: int,
) -> Outputs:
    """Open and run workflows, and encode by each choice."""
    prompts, widgets, pictures = {}, {}, {}
    for name, workflow in workflows.items():
        page.open_workflow(workflow)
        prompts[name], widgets[name] = page.prompt(), page.widgets()
        graph = Graph()
        graph.nodes = on_small_models(prompts[name])
        result = server.run(graph)
        shown = [key for key, node in graph.nodes.items() if node["class_type"] in ("SaveImage", "PreviewImage")]
        pictures[name] = {key: server.pictures(result, Node(key)) for key in shown}
    return Outputs(prompts, widgets, pictures, encode(server, chosen, number))


def files(base: Path) -> set[str]:
    """Files below a folder, but for links to folders and what is in them."""
    return {path.relative_to(base).as_posix() for path in base.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def story(earlier: str, host: Host, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """All of it, in one base folder."""
    base = tmp_path_factory.mktemp("upgrade") / "base"
    make_base(base)
    before, pack = files(base), base / "custom_nodes" / FOLDER
    logs: list[str] = []
    with pytest.MonkeyPatch.context() as patch, running_browser(tmp_path_factory.mktemp("browser")) as driver:
        patch.setenv("XDG_CACHE_HOME", str(base / "cache"))
        patch.setenv("LOCALAPPDATA", str(base / "cache"))
        patch.delenv(VARIABLE)  # kernels are measured and remembered, as for users
        with serving(host, models, base) as server:
            server.request("/settings", SETTINGS)
            stock_before = run_stock(server, 0)
            logs.append(server.log_text())
        write_small_models(base)
        before |= {name for name in files(base) if name.startswith(("models/", "input/"))}

        git(base, "clone", "--quiet", str(REPOSITORY), str(pack))
        git(pack, "checkout", "--quiet", earlier)
        with serving(host, models, base) as server:
            page = WorkflowPage(driver, server.port)
            page.open()
            for name in server.get("/workflow_templates")[FOLDER]:
                page.open_workflow(server.get(f"/api/workflow_templates/{FOLDER}/{name.replace(' ', '%20')}.json"))
                status, answer = server.request(user_file(name), page.run("return app.graph.serialize()"))
                assert status == 200, answer
            page.run("await app.extensionManager.setting.set(args[0], false)", RULER)
            page.run("await app.extensionManager.setting.set(args[0], true)", RULER)
            chosen = choices(server)
            saved = {path.stem: json.loads(path.read_bytes()) for path in base.glob("user/default/workflows/*.json")}
            outputs_earlier = outputs(server, page, saved, chosen, 1)
            logs.append(server.log_text())

        if pack_folder() == REPOSITORY:
            head = subprocess.run(["git", "-C", str(REPOSITORY), "rev-parse", "HEAD"], check=True, capture_output=True)
            git(pack, "checkout", "--quiet", head.stdout.decode().strip())
        else:
            shutil.rmtree(pack)
            shutil.copytree(pack_folder(), pack)
        with serving(host, models, base) as server:
            page = WorkflowPage(driver, server.port)
            page.open()
            reopened = {name: json.loads(server.request(user_file(name))[1]) for name in saved}
            outputs_present = outputs(server, page, reopened, chosen, 2)
            logs.append(server.log_text())

        shutil.rmtree(pack)
        with serving(host, models, base) as server:
            stock_after = run_stock(server, 3)
            settings = {key: value for key, value in server.get("/settings").items() if "Weighted" in key}
            logs.append(server.log_text())
    one, two, three, four = logs
    left = sorted(files(base) - before)
    return Story((stock_before, stock_after), outputs_earlier, outputs_present, (one, two, three, four), left, settings)


def test_saved_workflows_open_with_every_value_in_its_place(story: Story) -> None:
    assert len(story.earlier.prompts) >= 8
    for name, prompt in story.earlier.prompts.items():
        now = story.present.prompts[name]
        assert now.keys() == prompt.keys(), name
        for key, node in prompt.items():
            assert now[key]["class_type"] == node["class_type"]
            assert {**now[key]["inputs"], **node["inputs"]} == now[key]["inputs"], (name, node["class_type"])
        for key, (size, values) in story.earlier.widgets[name].items():
            size_now, values_now = story.present.widgets[name][key]
            assert values_now[: len(values)] == values, (name, key)  # new ones come last
            assert size_now[0] == size[0], (name, key)


def test_saved_workflows_draw_the_same_pictures(story: Story) -> None:
    for name, shown in story.earlier.pictures.items():
        assert shown, name
        nodes = story.present.prompts[name]
        # the native encoder promises a distance to exact numbers, which its kernels keep with other last digits
        is_native = any(node["class_type"] == "WeightedCLIPLoad" for node in nodes.values())
        for key, pictures in shown.items():
            now = story.present.pictures[name][key]
            assert len(now) == len(pictures)
            source, output = nodes[key]["inputs"]["images"]
            if (nodes[source]["class_type"], output) == GRID:
                mean = np.abs(np.stack(now).astype(int) - np.stack(pictures)).mean()
                assert mean <= 1, (name, key, mean)
            else:
                assert max(map(pixel_difference, now, pictures)) <= is_native, (name, key)


def test_every_choice_gives_the_same_numbers(story: Story) -> None:
    assert len(story.earlier.encoded) > 20
    different = {
        name: now.difference(then)
        for name, then in story.earlier.encoded.items()
        if (now := story.present.encoded[name]) != then
    }
    assert {name: difference for name, difference in different.items() if name not in CHANGED} == {}


def test_what_is_left_after_removal_is_what_the_page_says(story: Story) -> None:
    assert [name for name in story.left if not name.startswith(KEPT)] == []
    assert set(story.settings) <= {RULER}


def test_the_host_is_as_before_once_the_pack_is_gone(story: Story) -> None:
    before, after = story.stock
    assert after.conditionings == before.conditionings
    assert (after.picture == before.picture).all()
    assert "weighted-clip" not in story.logs[3]
    for log in story.logs:
        assert "IMPORT FAILED" not in log
        assert "Traceback" not in log
