"""The same noise, rows of text and weights in Forge's models beyond CLIP and in ComfyUI's: the same latents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from weighted_clip.workshop.find_hosts import Host

from .comfy_server import PACK_FOLDER, link_folder, pack_folder, run_script
from .parity import Figures
from .server import TESTS
from .webui_server import run_in_webui

pytestmark = [pytest.mark.host, pytest.mark.slow]

OWN = "Forge and ComfyUI on small Flux, Chroma and Stable Diffusion 3.5, Euler, the same text, relative to the largest"
WEIGHTED = "Weights in the attention of Forge with Attention Weights of ComfyUI, likewise"


def test_forge_and_comfyui_weigh_alike(
    host: Host, webui_host: Host, webui_models: Path, tmp_path: Path, figures: Figures
) -> None:
    if webui_host.kind != "Forge":
        pytest.skip("the models are Forge's")
    run_in_webui(webui_host, TESTS / "forge_joint_latents.py", tmp_path, models=webui_models)
    pack, outcome = tmp_path / PACK_FOLDER, tmp_path / "again.json"
    link_folder(pack_folder(), pack)
    run_script(host, TESTS / "comfy_joint_latents.py", pack, tmp_path / "outcome.safetensors", outcome)
    for name, (own, difference, change) in json.loads(outcome.read_text(encoding="utf-8")).items():
        figures.add(OWN, own, required="at most 1e-5")
        figures.add(WEIGHTED, difference, required="at most 1e-5")
        assert max(own, difference) <= 1e-5 < 1e-3 < change, (name, own, difference, change)
