"""The unpacked archive of the Comfy Registry in a real ComfyUI: templates on the small world run as they come."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from weighted_clip.workshop.archive import write_archive
from weighted_clip.workshop.find_hosts import Host

from .comfy_server import REPOSITORY, ComfyServer, Node, make_base, serving, template

pytestmark = pytest.mark.host

FOLDER = "weighted-clip"
LOADER = "WeightedCLIPLoadWorld"
WORKFLOWS = sorted((REPOSITORY / "example_workflows").glob("*.json"))
ON_WORLD = [path.stem for path in WORKFLOWS if f'"{LOADER}"' in path.read_text(encoding="utf-8")]


@pytest.fixture(scope="module")
def installed(host: Host, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyServer]:
    """A server whose custom_nodes hold the unpacked archive."""
    if not (REPOSITORY / ".git").exists():
        pytest.skip("this folder is no checkout by git")
    base = tmp_path_factory.mktemp("installed") / "base"
    make_base(base)
    write_archive(base / "node.zip")
    with zipfile.ZipFile(base / "node.zip") as archive:
        archive.extractall(base / "custom_nodes" / FOLDER)
    with serving(host, models, base) as server:
        yield server


@pytest.mark.parametrize("name", ON_WORLD)
def test_a_template_on_the_small_world_runs(installed: ComfyServer, name: str) -> None:
    assert name in installed.get("/workflow_templates")[FOLDER]
    graph = template(name)
    for node in graph.nodes.values():
        if "steps" in node["inputs"]:
            node["inputs"]["steps"] = 2
    result = installed.run(graph)
    shown = [key for key, node in graph.nodes.items() if node["class_type"] in ("SaveImage", "PreviewImage")]
    pictures = [picture for key in shown for picture in installed.pictures(result, Node(key))]
    assert pictures
    assert all(picture.std() > 10 for picture in pictures)
