"""NegPip in ComfyUI, compared with ComfyUI-ppm's CLIP NegPip, which is in --hosts: checks of inprocess_negpip.py."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from weighted_clip.workshop.find_hosts import Host

from .comfy_server import PACK_FOLDER, link_folder, pack_folder, run_script
from .parity import Figures

pytestmark = pytest.mark.host

SCRIPT = Path(__file__).with_name("inprocess_negpip.py")
CHECKS = re.findall(r"^def (check_\w+)", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)
CLOSE = 1e-5
PACK = "ComfyUI-ppm"
SUBJECTS = {
    "check_the_scheme_negpip_draws_what_theirs_draws": "Scheme negpip on SD1 and SDXL",
    "check_the_rows_are_theirs_with_signs": "Rows and signs of scheme negpip on SD1 and SDXL",
    "check_weigh_attention_by_negpip_draws_what_theirs_draws": "Weigh Attention at negpip on SD1 and SDXL",
    "check_anima_draws_what_theirs_draws": "Weigh Attention at negpip on Anima",
}
"""Subjects of comparison with CLIP NegPip, in the words of docs/evidence/parity.md."""


@pytest.fixture(scope="module")
def found(
    host: Host,
    figures: Figures,
    other_pack: Callable[[str, Figures], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, dict[str, Any]]:
    """Results of each check."""
    if not (host.folder / "comfy" / "ldm" / "anima").is_dir():
        pytest.skip(f"{PACK} wants a newer ComfyUI")
    theirs = other_pack(PACK, figures)
    folder = tmp_path_factory.mktemp("negpip")
    pack, results = folder / PACK_FOLDER, folder / "results.json"
    link_folder(pack_folder(), pack)
    run_script(host, SCRIPT, pack, results, theirs)
    return json.loads(results.read_text(encoding="utf-8"))


@pytest.mark.parametrize("check", CHECKS)
def test_beside_clip_negpip(found: dict[str, dict[str, Any]], figures: Figures, check: str) -> None:
    outcome = found[check]
    assert "error" not in outcome, outcome["error"]
    if check in SUBJECTS:
        subject = f"{SUBJECTS[check]}, small, with CLIP NegPip of {PACK}, relative to the largest"
        figures.add(subject, outcome["difference"], required="at most 1e-5", comparisons=outcome["comparisons"])
    assert outcome["difference"] is None or outcome["difference"] <= CLOSE
