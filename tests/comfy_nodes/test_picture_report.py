"""Report of Read Generation Data: where each setting of a picture went, and first what went nowhere."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from weighted_clip.hosts.comfy.a1111.files import file_rows, with_loras_by_hash
from weighted_clip.hosts.comfy.a1111.parameters import MAX_ROWS, read_parameters
from weighted_clip.weighting.infotext import Infotext, read_infotext

from .fake_comfy import install, node
from .test_a1111 import SAMPLING

NUMBERS = "Steps: 20, Sampler: Euler, Schedule type: Karras, CFG scale: 7, Seed: 1, Size: 64x96, RNG: CPU"
SD1, SDXL = {"clip_l": 768}, {"clip_l": 768, "clip_g": 1280}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Models of the host, by name."""
    found = {
        name: tmp_path / name for name in ("sub/good.safetensors", "large.pt", "styles/ink.safetensors", "sd.ckpt")
    }
    for name, path in found.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name.encode())
    kinds = {"embeddings": ("sub/good.safetensors", "large.pt"), "loras": ("styles/ink.safetensors",)}
    kinds["checkpoints"] = ("sd.ckpt",)
    install(monkeypatch, {kind: {name: str(found[name]) for name in names} for kind, names in kinds.items()})
    vectors = {"good": torch.ones(2, 768), "large": torch.ones(2, 1280)}
    monkeypatch.setattr(sys.modules["comfy.sd1_clip"], "load_embed", lambda name, *others: vectors.get(name))
    return found


def undone(more: str, prompt: str = "a cat", widths: Any = SD1) -> list[str]:
    """Lines before those of what is done."""
    return undone_of(read_infotext(f"{prompt}\n{NUMBERS}{more}"), widths)


def undone_of(infotext: Infotext, widths: Any = SD1) -> list[str]:
    report = read_parameters(infotext, "CPU").report(file_rows(infotext, widths))
    assert all(len(line) < 1000 for line in report)
    assert len(report) < MAX_ROWS + 20
    return report[: next(index for index, line in enumerate(report) if line.startswith("→"))]


def test_each_setting_has_its_output() -> None:
    more = (
        ", Clip skip: 2, ENSD: 31337, Variation seed: 5, Variation seed strength: 0.25, Seed resize from: 64x64, "
        "Model: sd, Emphasis: No norm, Version: f2"
    )
    report = "\n".join(read_parameters(read_infotext(f"a cat\n{NUMBERS}{more}"), "NV").report())
    for name, value in read_infotext(f"a\n{NUMBERS}{more}").settings.items():
        [line] = [line for line in report.splitlines() if f"{name} {value}" in line or f" {name}" in line][:1]
        assert line.startswith("→ ")
    assert "everything" not in report


@pytest.mark.parametrize("setting", ["TI: {}", 'TI hashes: "{}: 0123456789ab"', 'Hashes: {{"embed:{}": "0123"}}'])
def test_an_embedding_that_is_not_there_is_named_with_its_folder(files: dict[str, Path], setting: str) -> None:
    name, value = setting.format("badhands").split(": ", 1)
    value = json.dumps(value) if name == "Hashes" else value
    [line] = undone(f", {name}: {value}")
    assert line.startswith("TI: badhands: there is no embedding of this name in “models/embeddings”")


def test_an_embedding_that_is_there_is_used(files: dict[str, Path]) -> None:
    digest = hashlib.sha256(files["sub/good.safetensors"].read_bytes()).hexdigest()[:12]
    for more in (", TI: good", f', TI hashes: "good: {digest}"', f', TI: "good, good", TI hashes: "good: {digest}"'):
        assert undone(more) == []
    [line] = undone(', TI hashes: "good: 00112233aabb"')
    assert "not the picture's file" in line and digest in line


def test_an_embedding_for_another_model_is_not_used(files: dict[str, Path]) -> None:
    assert undone(", TI: good") == []
    assert "1280 wide, clip_l takes 768" in undone(", TI: large")[0]
    assert "768 wide, clip_g takes 1280" in undone(", TI: good", widths=SDXL)[0]


@pytest.mark.parametrize("error", [StopIteration, RuntimeError, AttributeError])
def test_an_embedding_whose_file_cannot_be_read_is_named(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def load(*_: Any) -> None:
        raise error

    monkeypatch.setattr(sys.modules["comfy.sd1_clip"], "load_embed", load)
    assert "cannot be read" in undone(", TI: good")[0]


def test_loras_are_named_first_and_those_that_are_not_there_with_their_folder(files: dict[str, Path]) -> None:
    lines = undone(", Eta: 0.5", "a <lora:ink:0.8> cat <lora:glow:1> <lora:glow:0.5> <hypernet:old:1>")
    assert [line.split(": ")[0] for line in lines] == ["LoRA", "LoRA", "<hypernet", "Eta"]
    assert lines[0].startswith("LoRA: glow: there is none of this name in “models/loras”")
    assert lines[1].startswith("LoRA: ink: LoRA Tag Loader")


def test_a_tag_in_a_comment_or_the_negative_prompt_is_no_lora(files: dict[str, Path]) -> None:
    assert undone("", "a cat # <lora:glow:1>\nNegative prompt: <lora:glow:1>") == []


def test_a_lora_with_another_name_here_is_found_by_its_hash(files: dict[str, Path]) -> None:
    digest = hashlib.sha256(files["styles/ink.safetensors"].read_bytes()).hexdigest()[:12]
    prompt = "a <lora:brush:0.8:te=0.5> cat <lora:glow:1> <lora:brush:1>, brush"
    for more in (f'Lora hashes: "brush: {digest}, glow: 001122334455"', f'Hashes: {{"lora:brush": "{digest}"}}'):
        infotext = read_infotext(f"{prompt}\n{NUMBERS}, {more}")
        found, rows = with_loras_by_hash(infotext, hashes_files=True)
        assert found.prompt == "a <lora:styles/ink:0.8:te=0.5> cat <lora:glow:1> <lora:styles/ink:1>, brush"
        [row] = rows
        assert row.line.startswith("LoRA: brush: “styles/ink” has its hash")
        assert [line.value for line in file_rows(found, SD1) if not line.output] == ["glow"]
        assert with_loras_by_hash(infotext, hashes_files=False) == (infotext, [])


def test_a_checkpoint_that_is_not_there_is_named_with_its_folder(files: dict[str, Path]) -> None:
    assert undone(", Model: sd, Model hash: 0123") == []
    assert undone(", Model: other") == ["Model: other: there is no checkpoint of this name in “models/checkpoints”"]


def test_the_node_reports_what_it_did(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weighted_clip.nodes.a1111_sampling.make_sampler", lambda *_: None)
    config = SimpleNamespace(unet_config={"context_dim": 768})
    model = SimpleNamespace(get_model_object=lambda _: SAMPLING, model=SimpleNamespace(model_config=config))
    text = f"a <lora:glow:1> cat\n{NUMBERS}, TI: large"
    result = node("ReadParameters").run(model=model, text=text, source="CPU", image="")
    lines = result["ui"]["text"]
    assert [line.split(":")[0] for line in lines[:3]] == ["LoRA", "TI", "→ SAMPLER, SIGMAS"]
    assert result["result"][12] == "\n".join(lines)


@pytest.mark.parametrize(
    "more",
    [
        {f"Extension {number}": "1" for number in range(20_000)},
        {f"Extension {'x' * 100_000}": "y" * 100_000},
        {"TI hashes": ", ".join(f"name{number}: 0" for number in range(20_000))},
        {f"Hires {number}": "z" * 100 for number in range(20_000)},
        {"Hashes": "[" * 100_000},
    ],
    ids=["settings", "lengths", "embeddings", "hires", "nested"],
)
def test_a_report_has_bounds(files: dict[str, Path], more: dict[str, str]) -> None:
    infotext = read_infotext(f"a cat\n{NUMBERS}")
    start = time.monotonic()
    assert len(undone_of(replace(infotext, settings={**infotext.settings, **more}))) <= MAX_ROWS + 1
    assert time.monotonic() - start < 5


def test_a_report_of_a_prompt_of_tags_has_bounds(files: dict[str, Path]) -> None:
    tags = "".join(f"<lora:l{number}:1><k{number}:x>" for number in range(2_500))
    assert len(undone("", f"a cat {tags}")) == MAX_ROWS + 1


@pytest.mark.parametrize("weight", ["9" * 400, "-" + "9" * 400, "1" + "0" * 20])
def test_weights_of_parts_between_ands_have_bounds(weight: str) -> None:
    with pytest.raises(ValueError, match=r"weigh .* together"):
        read_parameters(read_infotext(f"a cat AND a dog:{weight}\n{NUMBERS}"), "CPU")


@pytest.mark.parametrize(
    ("context", "written", "layer"),
    [(768, "", -1), (768, "2", -2), (1024, "", -2), (1024, "2", -3), (2048, "", -2), (2048, "1", -2), (2048, "3", -3)],
)
def test_the_last_layer_is_the_webuis_for_the_model(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, Path], context: int, written: str, layer: int
) -> None:
    """SD 1.x, SD 2.x and SDXL by the width of what their U-Nets read."""
    monkeypatch.setattr("weighted_clip.nodes.a1111_sampling.make_sampler", lambda *_: None)
    config = SimpleNamespace(unet_config={"context_dim": context})
    model = SimpleNamespace(get_model_object=lambda _: SAMPLING, model=SimpleNamespace(model_config=config))
    text = f"a cat\n{NUMBERS}{written and f', Clip skip: {written}'}"
    result = node("ReadParameters").run(model=model, text=text, source="CPU", image="")
    assert result["result"][10] == layer
