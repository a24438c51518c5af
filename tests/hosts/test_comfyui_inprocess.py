"""Our nodes with ComfyUI's own objects in hand, in a process of its Python; see inprocess_checks.py."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from .comfy_server import PACK_FOLDER, REPOSITORY, Host, link_folder
from .parity import Figures

pytestmark = pytest.mark.host

SCRIPT = Path(__file__).with_name("inprocess_checks.py")
CHECKS = re.findall(r"^def (check_\w+)", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)
SUBJECTS = {
    "check_every_clip_family_equals_stock": "SD1, SD2 and SDXL, small, clip skip 1 to 3, with stock",
    "check_half_precision_weights_equal_stock": "SDXL, small, weights in fp16 and bf16, with stock",
    "check_the_clip_that_came_in_is_untouched": "Stock on a small CLIP that our nodes used, with before",
    "check_an_exception_while_encoding_leaves_the_host_clean": "Stock and ours after an error in encoding, with before",
    "check_another_packs_patch_stays_on_its_own_clip": "Ours on a small CLIP that another pack patched, with unpatched",
}
"""What a check compares, in the words of docs/parity.md."""


@pytest.fixture(scope="module")
def outcome(host: Host, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each check found."""
    folder = tmp_path_factory.mktemp("inprocess")
    pack, results = folder / PACK_FOLDER, folder / "results.json"
    link_folder(REPOSITORY, pack)
    host.run_script(SCRIPT, pack, results)
    return json.loads(results.read_text(encoding="utf-8"))


@pytest.mark.parametrize("check", CHECKS)
def test_with_the_hosts_objects(outcome: dict[str, dict[str, Any]], figures: Figures, check: str) -> None:
    found = outcome[check]
    assert "error" not in found, found["error"]
    if check in SUBJECTS:
        figures.add(SUBJECTS[check], found["difference"], comparisons=found["comparisons"])
    else:
        assert found["difference"] is None
