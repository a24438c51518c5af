"""The small world in a running ComfyUI: the first of its templates, and others with it instead of their checkpoint."""

from __future__ import annotations

import json

import numpy as np
import pytest

from .comfy_server import REPOSITORY, ComfyServer, Graph, Node, template
from .make_checkpoint import WHOLE_CLIP, write_whole_clip

pytestmark = pytest.mark.host

WORKFLOWS = REPOSITORY / "example_workflows"
NOT_ON_IT = ("15 Native encoder", "13 From an A1111 picture")
"""Templates whose text encoder is not the checkpoint's, or whose sampler is for Stable Diffusion alone."""


def loads_sd15(name: str) -> bool:
    nodes = json.loads((WORKFLOWS / f"{name}.json").read_text(encoding="utf-8"))["nodes"]
    loaded = [node["widgets_values"][0] for node in nodes if node["type"] == "CheckpointLoaderSimple"]
    return bool(loaded) and all(file.startswith("v1-5") for file in loaded)


ON_CHECKPOINT = [
    path.stem for path in sorted(WORKFLOWS.glob("*.json")) if loads_sd15(path.stem) and path.stem not in NOT_ON_IT
]


def pictures_of(server: ComfyServer, graph: Graph) -> list[np.ndarray]:
    """Every picture that a workflow saves or previews."""
    result = server.run(graph)
    shows = [node_id for node_id, node in graph.nodes.items() if node["class_type"] in ("SaveImage", "PreviewImage")]
    return [picture for node_id in shows for picture in server.pictures(result, Node(node_id))]


def share_of(color: str, picture: np.ndarray) -> float:
    """Share of pixels in which a channel is far above the others."""
    channel = "rgb".index(color[0])
    others = np.delete(picture.astype(int), channel, axis=2).max(axis=2)
    return float((picture[..., channel] - others > 60).mean())


def test_its_template_runs_without_a_checkpoint_and_a_weight_shows(server: ComfyServer) -> None:
    graph = template("01 A weight fades a word")
    assert not any("Checkpoint" in node["class_type"] for node in graph.nodes.values())
    (prompt,) = (node["inputs"] for node in graph.nodes.values() if node["class_type"] == "WeightedCLIPTextEncode")
    blue: dict[str, float] = {}
    for weight in ("0.25", "1"):
        prompt["text"] = f"a red circle and a (blue square:{weight})"
        drawn = pictures_of(server, graph)
        assert [picture.shape for picture in drawn] == [(256, 256, 3)] * 8
        assert all(share_of("red", picture) > 0.02 for picture in drawn)
        blue[weight] = float(np.mean([share_of("blue", picture) for picture in drawn]))
    assert blue["0.25"] < 0.002 and blue["1"] > 0.02, blue


@pytest.mark.parametrize("name", ON_CHECKPOINT)
def test_other_templates_run_on_it(server: ComfyServer, name: str) -> None:
    write_whole_clip(server.base / "models")
    graph = template(name)
    for node in graph.nodes.values():
        inputs = node["inputs"]
        if node["class_type"] == "CheckpointLoaderSimple":
            node["class_type"], node["inputs"] = "WeightedCLIPLoadWorld", {"device": "auto"}
        elif node["class_type"] == "EmptyLatentImage":
            inputs |= {"width": 32, "height": 32}
        elif node["class_type"] == "WeightedCLIPLoadFull":
            inputs["file"] = WHOLE_CLIP.as_posix()
        elif "scheduler" in inputs:
            inputs["scheduler"] = "simple"
    drawn = pictures_of(server, graph)
    drawn = [picture for picture in drawn if picture.shape == (32, 32, 3)]  # the others show masks and tokens
    assert drawn
    assert all(picture.std() > 10 for picture in drawn)
