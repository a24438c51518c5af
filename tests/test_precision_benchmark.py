"""The section "Training in 16 bits" of the command ``bench``. Nothing looks at how long anything takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from torch import distributed
from weighted_clip.workshop.bench import page, precision
from weighted_clip.workshop.bench.precision import ALONE, TOGETHER, precision_block
from weighted_clip.workshop.bench.scale import QUICK

from .libraries import library


def test_all_runs_learn_alike_and_what_they_send_is_counted(tmp_path: Path) -> None:
    library("accelerate")
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    said: list[str] = []
    picture = tmp_path / "precision.png"
    block = precision_block(QUICK, said.append, picture)
    assert said == []
    rows = {row["Run"]: row for row in page.table_rows(block)}
    assert list(rows) == [*ALONE, *TOGETHER]
    assert [row["Processes"] for row in rows.values()] == ["1"] * 4 + ["2"] * 3
    losses = [float(row["Loss, last tenth"]) for row in rows.values()]
    assert losses == pytest.approx([losses[0]] * 7, rel=1e-3)  # after four small steps
    zeros = [float(row["Gradients that are 0"].rstrip("%")) for row in rows.values()]
    assert zeros[3] > 50 > 1 > max(zeros[:3] + zeros[4:])
    assert all(float(row["Update, ms"]) > 0 for row in rows.values())
    # d = 32, 2 layers, of which 2 of 4 updates are compressed; a quarter of the width is 8
    of_blocks = 2 * 12 * 32**2
    sizes = {8: 2 * 8 * (4 * 64 + 2 * 160), 4: 2 * 4 * (4 * 64 + 2 * 160)}
    parts = [float(rows[name]["Sent"].removeprefix("1/")) for name in TOGETHER if TOGETHER[name]]
    total = of_blocks * (1 - 1 / parts[0]) ** -1 * (1 - sizes[8] / of_blocks)
    assert parts[1] == pytest.approx(total / (total - of_blocks + sizes[4]), abs=0.02)
    assert parts[1] > parts[0] > 1
    with Image.open(picture) as drawn:
        assert drawn.height > drawn.width / 2


def test_what_fails_is_said_and_leaves_rows_without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(precision.precision_process, "run", library)  # which the other process cannot import
    rows = list(page.table_rows(precision_block(QUICK, said.append)))
    assert {row["Update, ms"] for row in rows} == {"-"}
    assert len(said) == 2
    assert said[0].startswith("failed:")
