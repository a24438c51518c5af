"""Coverage of ComfyUI's own templates: prompts are followed to their models, and what is unknown counts for nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from weighted_clip.hosts.comfy.families.families import FAMILIES
from weighted_clip.workshop import coverage
from weighted_clip.workshop.coverage import ATTENTION, NOT_YET, SCHEMES, UNKNOWN, Row, rows_of, verdict
from weighted_clip.workshop.template_models import MODELS

WAN = "CLIPLoader umt5_xxl_fp16.safetensors wan"


def node(number: int, kind: str, inputs: dict[str, tuple[str, int | None]], *values: Any) -> dict[str, Any]:
    """A node as saved; inputs have a type and the number of their link."""
    slots = [{"name": name, "type": of, "link": link} for name, (of, link) in inputs.items()]
    return {"id": number, "type": kind, "inputs": slots, "widgets_values": list(values)}


def workflow() -> dict[str, Any]:
    """A workflow that encodes in a subgraph, behind a reroute and a LoRA, for a model inside and one outside."""
    inner_links = [
        (1, -10, 1, 20, 0),  # the subgraph's clip, to the encode node
        (2, 20, 0, 21, 1),
        (3, -10, 0, 21, 0),  # the subgraph's model, to the sampler
        (4, 20, 0, -20, 0),  # the conditioning, to the outside
    ]
    subgraph = {
        "id": "sub",
        "inputs": [{"name": "model"}, {"name": "clip"}],
        "outputNode": {"id": -20},
        "nodes": [
            node(20, "CLIPTextEncode", {"clip": ("CLIP", 1)}, "a cat"),
            node(21, "KSampler", {"model": ("MODEL", 3), "positive": ("CONDITIONING", 2)}),
        ],
        "links": [
            dict(zip(("id", "origin_id", "origin_slot", "target_id", "target_slot"), link, strict=True))
            for link in inner_links
        ],
    }
    return {
        "nodes": [
            node(1, "UNETLoader", {}, "wan2.1_vace_14B_fp16.safetensors", "default"),
            node(2, "CLIPLoader", {}, "umt5_xxl_fp16.safetensors", "wan", "default"),
            node(3, "Reroute", {"": ("*", 12)}),
            node(4, "LoraLoader", {"model": ("MODEL", 11), "clip": ("CLIP", 13)}, "style.safetensors", 1),
            node(5, "sub", {"clip": ("CLIP", 15), "model": ("MODEL", 14)}),
            node(6, "ConditioningZeroOut", {"conditioning": ("CONDITIONING", 16)}),
            node(7, "KSampler", {"model": ("MODEL", 18), "negative": ("CONDITIONING", 17)}),
            node(8, "UNETLoader", {}, "wan2.1_t2v_14B_fp8_scaled.safetensors", "default"),
        ],
        "links": [
            [11, 1, 0, 4, 0, "MODEL"],
            [12, 2, 0, 3, 0, "*"],
            [13, 3, 0, 4, 1, "CLIP"],
            [14, 1, 0, 5, 1, "MODEL"],
            [15, 4, 1, 5, 0, "CLIP"],
            [16, 5, 0, 6, 0, "CONDITIONING"],
            [17, 6, 0, 7, 1, "CONDITIONING"],
            [18, 8, 0, 7, 0, "MODEL"],
        ],
        "definitions": {"subgraphs": [subgraph]},
    }


def test_a_prompt_is_followed_to_its_loader_and_to_all_its_models() -> None:
    files = ["wan2.1_t2v_14B_fp8_scaled.safetensors", "wan2.1_vace_14B_fp16.safetensors"]
    assert list(rows_of("two", workflow())) == [Row("two", "CLIPTextEncode", WAN, file) for file in files]


@pytest.mark.parametrize(
    ("text_encoder", "file", "expected"),
    [
        ("CheckpointLoaderSimple sd_xl_base_1.0.safetensors", "sd_xl_base_1.0.safetensors", SCHEMES),
        (WAN, "wan2.2_ti2v_5B_fp16.safetensors", ATTENTION),
        (WAN, "unheard_of_14B.safetensors", UNKNOWN),
        ("CLIPLoader unheard_of.safetensors wan", "wan2.2_ti2v_5B_fp16.safetensors", UNKNOWN),
        ("CheckpointLoaderSimple sd_xl_base_1.0.safetensors", "sd_xl_refiner_1.0.safetensors", UNKNOWN),
        ("", "wan2.2_ti2v_5B_fp16.safetensors", UNKNOWN),
    ],
)
def test_what_matches_nothing_is_unknown(text_encoder: str, file: str, expected: str) -> None:
    assert verdict([Row("one", "CLIPTextEncode", text_encoder, file)]).result == expected


def test_all_models_that_draw_must_weigh(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Row("one", "CLIPTextEncode", WAN, "wan2.1_t2v_1.3B_fp16.safetensors")
    sam = known._replace(text_encoder="CheckpointLoaderSimple sam3.safetensors", file="sam3.safetensors")
    sdxl = known._replace(text_encoder="CheckpointLoaderSimple sd_xl_x.safetensors", file="sd_xl_x.safetensors")
    assert verdict([sam, known]).result == ATTENTION
    assert verdict([sam]).result.endswith("draws nothing")
    assert verdict([sdxl, known]).result in (SCHEMES, ATTENTION)
    monkeypatch.setattr(coverage, "FAMILIES", tuple(one for one in FAMILIES if one.title != "Wan"))
    assert verdict([sdxl, known]) == (NOT_YET, ("Wan",))


def test_a_family_counts_by_its_network_and_its_tokenizer_together(monkeypatch: pytest.MonkeyPatch) -> None:
    (ovis,) = (model for model in MODELS if model.title == "Ovis")
    families = tuple(one for one in FAMILIES if f"comfy.text_encoders.{ovis.tokenizer}" not in one.tokenizers)
    assert any(f"comfy.ldm.{ovis.network}" in one.networks for one in families)
    monkeypatch.setattr(coverage, "FAMILIES", families)
    assert coverage.result_of(ovis) == NOT_YET


def test_templates_are_read_from_an_installed_package(tmp_path: Path) -> None:
    folder = tmp_path / "comfyui_workflow_templates_json" / "templates"
    folder.mkdir(parents=True)
    for name, content in (("two", workflow()), ("index", [workflow()]), ("list", [1])):
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match="there is no package"):
        coverage.read_templates(tmp_path)
    (tmp_path / "comfyui_workflow_templates_json-1.2.3.dist-info").mkdir()
    version, rows = coverage.read_templates(tmp_path)
    assert (version, {row.template for row in rows}) == ("1.2.3", {"two"})
