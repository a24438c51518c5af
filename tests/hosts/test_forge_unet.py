"""Repeated rows in Forge's own U-Net class, in a process of its Python: forge_unet.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from weighted_clip.workshop.find_hosts import Host

from .parity import Figures
from .webui_server import run_in_forge

pytestmark = pytest.mark.host

SCRIPT = Path(__file__).with_name("forge_unet.py")
CLOSE = 1e-5
SUBJECT = "Scheme repeat, a call of a U-Net, with ln w as a bias, relative to the largest"


def test_repeated_rows_equal_a_bias_in_the_cross_attention(
    webui_host: Host, webui_figures: Figures, tmp_path: Path
) -> None:
    if webui_host.kind != "Forge":
        pytest.skip("the U-Net of A1111 is another repository's")
    found = run_in_forge(webui_host, SCRIPT, tmp_path)
    assert [rows for rows, _, _ in found] == [159, 309, 773, 78, 77]
    largest = max(difference for _, difference, _ in found)
    webui_figures.add(SUBJECT, largest, required="at most 1e-5", comparisons=len(found))
    assert largest <= CLOSE, found
    assert all(change > 1e-3 for _, _, change in found[:-1]), found
