"""NegPip in ComfyUI, beside CLIP NegPip of ComfyUI-ppm, which stands in --hosts: the checks of inprocess_negpip.py."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from weighted_clip.parity.find_hosts import Host, find_packs

from .comfy_server import PACK_FOLDER, REPOSITORY, link_folder, run_script

pytestmark = pytest.mark.host

SCRIPT = Path(__file__).with_name("inprocess_negpip.py")
CHECKS = re.findall(r"^def (check_\w+)", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)
CLOSE = 1e-5
PACK = "ComfyUI-ppm"


@pytest.fixture(scope="module")
def found(
    host: Host, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, dict[str, Any]]:
    """What each check found."""
    packs = find_packs(Path(request.config.getoption("--hosts")), [host], PACK)
    if not packs:
        pytest.skip(f"no {PACK} in --hosts")
    if not (host.folder / "comfy" / "ldm" / "anima").is_dir():
        pytest.skip(f"{PACK} wants a newer ComfyUI")
    folder = tmp_path_factory.mktemp("negpip")
    pack, results = folder / PACK_FOLDER, folder / "results.json"
    link_folder(REPOSITORY, pack)
    run_script(host, SCRIPT, pack, results, packs[0])
    return json.loads(results.read_text(encoding="utf-8"))


@pytest.mark.parametrize("check", CHECKS)
def test_beside_clip_negpip(found: dict[str, dict[str, Any]], check: str) -> None:
    outcome = found[check]
    assert "error" not in outcome, outcome["error"]
    assert outcome["difference"] is None or outcome["difference"] <= CLOSE
