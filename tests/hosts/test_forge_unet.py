"""Repeated rows in Forge's own U-Net class, in a process of its Python: forge_unet.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from weighted_clip.parity.find_hosts import Host
from weighted_clip.parity.host_python import own_environment, run_in_host

from .comfy_server import REPOSITORY
from .parity import Figures

pytestmark = pytest.mark.host

SCRIPT = Path(__file__).with_name("forge_unet.py")
CLOSE = 1e-5
SUBJECT = "Scheme repeat, a call of a U-Net, with ln w as a bias, relative to the largest"


def test_repeated_rows_equal_a_bias_in_the_cross_attention(
    webui_host: Host, webui_figures: Figures, tmp_path: Path
) -> None:
    if webui_host.kind != "Forge":
        pytest.skip("the U-Net of A1111 is another repository's")
    outcome = tmp_path / "outcome.json"
    environment = {**own_environment(), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    arguments = [SCRIPT, REPOSITORY, outcome, "--always-cpu"]
    done = run_in_host(webui_host.python, arguments, folder=webui_host.folder, environment=environment, seconds=300)
    assert done.returncode == 0, done.stdout[-6000:]
    found = json.loads(outcome.read_text(encoding="utf-8"))
    assert [rows for rows, _, _ in found] == [159, 309, 773, 78, 77]
    largest = max(difference for _, difference, _ in found)
    webui_figures.add(SUBJECT, largest, required="at most 1e-5", comparisons=len(found))
    assert largest <= CLOSE, found
    assert all(change > 1e-3 for _, _, change in found[:-1]), found
