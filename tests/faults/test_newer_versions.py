"""Values that a newer version has saved and this one does not know: refused by name, with what is allowed."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from weighted_clip import NODE_CLASS_MAPPINGS
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.hosts.comfy.a1111.noise import A1111Noise
from weighted_clip.hosts.webui.engines import WebUIError
from weighted_clip.hosts.webui.settings import Settings, pasted
from weighted_clip.nodes.base.routes import ruler_nodes
from weighted_clip.studio.output.shards import FORMAT, ShardError, read_head, read_shards
from weighted_clip.web.inspection import RequestError, inspect, request_of
from weighted_clip.weighting.reading.features import text_features
from weighted_clip.weighting.schemes import SCHEMES
from weighted_clip.weighting.text.chunks import CLIP_L_LAYOUT

from ..comfy_nodes import fake_comfy
from .disks import ROOT

UNKNOWN = "quantum"
FILES = ("file", "image")
"""Menus of files, which are looked for when they are read."""


def menus_of(name: str) -> list[str]:
    return [key for key, (kind, _) in fake_comfy.inputs_of(name).items() if isinstance(kind, list) and key not in FILES]


def given_to(name: str) -> dict[str, Any]:
    """Inputs that a workflow may pass to a node, each menu at its default."""
    inputs = NODE_CLASS_MAPPINGS[name].INPUT_TYPES()
    towers = ("clip_l", "clip_g") if "SDXL" in name else ("clip_l",)
    noise = A1111Noise(0, "CPU", 0, 0, 0.0, 0, 0)
    links = {"CLIP": fake_comfy.FakeClip(towers=towers), "IMAGE": torch.zeros(1, 8, 8, 3), "NOISE": noise}
    given: dict[str, Any] = {}
    for key, (kind, *options) in inputs["required"].items():
        if isinstance(kind, list):
            given[key] = kind[0]
        elif kind == "STRING":
            given[key] = "a (red:1.2) cat"
        else:
            given[key] = (options[0] if options else {}).get("default", links.get(kind.partition(",")[0]))
    return given


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    file = {"tiny.safetensors": "nowhere.safetensors"}
    fake_comfy.install(monkeypatch, {"text_encoders": file, "checkpoints": file, "clip_vision": file, "vae": file})


@pytest.mark.parametrize("name", NODE_CLASS_MAPPINGS)
def test_the_menus_of_a_node_refuse_what_they_do_not_have(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    node, given = NODE_CLASS_MAPPINGS[name], given_to(name)
    for module in ("encode_images", "encode_texts"):
        monkeypatch.setattr(f"weighted_clip.nodes.similarity.{module}", lambda *_: pytest.fail("it went on"))
    for menu in menus_of(name):
        if menu == "syntax" and name in ("WeightedCLIPRerank", "WeightedCLIPSimilarity"):
            continue  # looked at where the text is read, which needs a model
        values = {**given, menu: UNKNOWN}
        if getattr(node, "INPUT_IS_LIST", False):
            values = {key: [value] for key, value in values.items()}
        with pytest.raises(ValueError, match=UNKNOWN) as caught:
            getattr(node(), node.FUNCTION)(**values)
        allowed = fake_comfy.inputs_of(name)[menu][0]
        assert allowed[0] in str(caught.value)
        assert allowed[-1] in str(caught.value)


def test_the_names_that_a_node_of_images_reads_texts_by_are_refused_too() -> None:
    with pytest.raises(ValueError, match=r"syntax must be one of: .*; got 'quantum'"):
        text_features("a cat", UNKNOWN, default_tokenizer(), CLIP_L_LAYOUT, lambda ids: torch.ones(1, 4))


def test_the_ruler_is_told_what_it_may_ask_for() -> None:
    with pytest.raises(RequestError, match=r"scheme must be one of: comfy, .*; got 'quantum'"):
        inspect({"text": "a cat", "scheme": UNKNOWN})
    with pytest.raises(RequestError, match=r"unknown field 'spin'; allowed: syntax, "):
        inspect({"text": "a cat", "spin": 1})
    with pytest.raises(RequestError, match=r"counter must be one of: .*; got 'quantum'"):
        inspect({"text": "a cat", "steps": 20, "counter": UNKNOWN})


ASK = """
import { pathToFileURL } from "node:url";
const { ruleOf, requestsOf } = await import(pathToFileURL(process.argv[1]));
const widgets = Object.entries(JSON.parse(process.argv[3])).map(([name, value]) => ({ name, value }));
console.log(requestsOf({ widgets }, ruleOf(JSON.parse(process.argv[2]))).boxes[0].body);
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize(
    ("name", "widget"), [("WeightedCLIPA1111Encode", "emphasis"), ("WeightedCLIPTextEncode", "scheme")]
)
def test_the_ruler_shows_no_tokens_of_another_mode(name: str, widget: str, tmp_path: Path) -> None:
    for path in (ROOT / "web/comfyui/ruler").glob("*.js"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    widgets = {"text": "a cat", "comma_backtrack": 20, "steps": 20, "counter": "as written", widget: UNKNOWN}
    definition = json.dumps({"name": name, "input": NODE_CLASS_MAPPINGS[name].INPUT_TYPES()})
    command = ["node", "--input-type=module", "-e", ASK, str(tmp_path / "requests.js"), definition, json.dumps(widgets)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    with pytest.raises(RequestError, match=r"must be one of: .*; got 'quantum'"):
        inspect(request_of(json.loads(done.stdout), ruler_nodes(NODE_CLASS_MAPPINGS)))


def test_parameters_of_an_image_keep_a_scheme_that_is_not_here_and_it_is_refused_by_name() -> None:
    parameters = {"Weighted CLIP": UNKNOWN, "Weighted CLIP spin": "up"}
    values = {name: pasted(name, parameters) for name in vars(Settings())}
    assert values == {**vars(Settings()), "enabled": True, "scheme": UNKNOWN}
    with pytest.raises(
        WebUIError, match=f"Scheme must be one of: {', '.join(SCHEMES)}; got 'quantum'".replace("+", r"\+")
    ):
        Settings(**values).options()


@pytest.mark.parametrize(
    "metadata",
    [
        {"format": "weighted-clip shard 2"},
        {"format": "weighted-clip shard 2", "first_line": "0", "last_line": "0", "00000000.text": "a cat"},
        {"format": "weighted-clip shard 2", "first_line": "0-7", "texts": "elsewhere"},
    ],
)
def test_a_shard_of_a_newer_version_is_named_as_one(metadata: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "prompts-00000000.safetensors"
    save_file({"all": torch.zeros(1)}, path, metadata=metadata)
    message = rf"{path.name}: made by another version, as 'weighted-clip shard 2'; this one reads '{FORMAT}'"
    with pytest.raises(ShardError, match=message):
        read_head(path)
    with pytest.raises(ShardError, match=message):
        list(read_shards(tmp_path))
