"""Coverage of ComfyUI's own templates: a template counts if all its models that draw are weighted."""

from __future__ import annotations

import pytest
from weighted_clip.hosts.comfy.families.families import FAMILIES
from weighted_clip.workshop import coverage
from weighted_clip.workshop.coverage import ATTENTION, NOT_YET, SCHEMES, TemplateRow, verdict

WAN = "CLIPLoader umt5_xxl_fp16.safetensors wan"


def test_all_models_that_draw_must_weigh(monkeypatch: pytest.MonkeyPatch) -> None:
    known = TemplateRow("one", "CLIPTextEncode", WAN, "wan2.1_t2v_1.3B_fp16.safetensors")
    sam = known._replace(text_encoder="CheckpointLoaderSimple sam3.safetensors", file="sam3.safetensors")
    sdxl = known._replace(text_encoder="CheckpointLoaderSimple sd_xl_x.safetensors", file="sd_xl_x.safetensors")
    assert verdict([sam, known]).result == ATTENTION
    assert verdict([sam]).result.endswith("draws nothing")
    assert verdict([sdxl, known]).result in (SCHEMES, ATTENTION)
    monkeypatch.setattr(coverage, "FAMILIES", tuple(one for one in FAMILIES if one.title != "Wan"))
    assert verdict([sdxl, known]) == (NOT_YET, ("Wan",))
