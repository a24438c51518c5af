"""The page that host tests write."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import parity
from .parity import Figures


def test_a_run_writes_the_columns_of_its_own_hosts_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    monkeypatch.setattr(parity, "PAGE", page)
    runs = (
        ("Forge 2", "Pixels", 0.5),
        ("ComfyUI 1", "Pixels", 0.25),
        ("ComfyUI 2", "Rows", 0.0),
        ("Forge 2", "Pixels", 0.125),
    )
    for host, subject, difference in runs:
        figures = Figures()
        figures.of(host).about["torch"] = "2"
        figures.of(host).add(subject, difference, required="at most 1", comparisons=3)
        parity.write_parity(figures)
    assert (
        page.read_text(encoding="utf-8")
        == parity.HEAD
        + """
## ComfyUI

- 1: torch 2
- 2: torch 2

| Compared | Required | 1 | 2 |
| --- | --- | ---: | ---: |
| Pixels | at most 1 | 3: 2.5e-01 | - |
| Rows | at most 1 | - | 3: 0 |

## Forge

- 2: torch 2

| Compared | Required | 2 |
| --- | --- | ---: |
| Pixels | at most 1 | 3: 1.2e-01 |
"""
    )
