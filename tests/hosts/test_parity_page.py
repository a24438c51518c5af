"""The page that host tests write."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import parity
from .parity import Figures


def test_a_run_writes_the_parts_of_its_own_hosts_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    monkeypatch.setattr(parity, "PAGE", page)
    for host, difference in (("Forge 2", 0.5), ("ComfyUI 1", 0.25), ("Forge 2", 0.125)):
        figures = Figures()
        figures.of(host).about["torch"] = "2"
        figures.of(host).add("Pixels", difference, required="at most 1", comparisons=3)
        parity.write_parity(figures)
    table = "| Compared | Comparisons | Required | Largest difference |\n| --- | ---: | --- | ---: |\n"
    expected = [
        f"## {host}\n\ntorch 2.\n\n{table}| Pixels | 3 | at most 1 | {difference} |\n"
        for host, difference in (("ComfyUI 1", "2.5e-01"), ("Forge 2", "1.2e-01"))
    ]
    assert page.read_text(encoding="utf-8") == "\n".join([parity.HEAD, *expected])
