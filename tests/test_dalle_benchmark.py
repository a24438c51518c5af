"""The section "Image tokens" of the command ``bench``. Nothing looks at how long anything takes."""

import argparse
from pathlib import Path

import pytest
from weighted_clip.workshop.bench import add_arguments, dalle, page, run
from weighted_clip.workshop.bench.dalle import DRAWERS, DRAWING, ENVIRONMENT, OWN, TRAINERS, TRAINING, dalle_block
from weighted_clip.workshop.bench.goals import GOALS
from weighted_clip.workshop.bench.scale import QUICK
from weighted_clip.workshop.find_hosts import python_of

PEERS = [
    *((DRAWING, images, peer) for images in ("1", "2") for peer in (OWN, *DRAWERS.values())),
    *((TRAINING, "2", peer) for peer in TRAINERS.values()),
]


def rows_of(block: str) -> list[dict[str, str]]:
    return [row for row in page.table_rows(block) if "Same tokens" in row]


def check_own(rows: list[dict[str, str]]) -> None:
    """With a cache and without the same tokens are drawn."""
    assert [(row["Work"], row["Images"], row["Peer"]) for row in rows] == PEERS
    for row in rows:
        if row["Peer"] == OWN:
            assert row["Same tokens"] == "100.0%"
            assert all(float(row[name]) > 0 for name in ("Ours, ms", "Peer, ms", "Tokens/s, ours", "Tokens/s, peer"))


def test_without_dalle_pytorch_ours_is_measured_alone(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    printed: list[str] = []
    run(parser.parse_args(["--quick", "--only", "dalle", "--hosts", str(tmp_path)]), printed.append)
    rows = rows_of(printed[0])
    check_own(rows)
    assert {row["Same tokens"] for row in rows if row["Peer"] != OWN} == {"not found"}
    assert "parameters: ours 0.0" in printed[0]
    judged = [
        row for block in printed for row in page.table_rows(block) if "Image tokens" in row.get("Found under", "")
    ]
    assert [row[""] in ("met", "missed") for row in judged] == [True, False, False]


def test_what_fails_is_said_and_leaves_rows_without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(dalle.dalle_process, "run", rows_of)  # which the other process cannot import
    rows = rows_of(dalle_block(QUICK, say=said.append))
    assert [(row["Work"], row["Images"], row["Peer"]) for row in rows] == PEERS
    assert {row["Same tokens"] for row in rows} == {"failed"}
    assert said[0].startswith("failed:")


def test_goals_look_at_rows_that_there_are() -> None:
    wanted = {peer for goal in GOALS if goal.section == "dalle" for peer in goal.where["Peer"]}
    assert wanted == {peer for _, _, peer in PEERS}


@pytest.mark.host
def test_dalle_pytorch_is_measured_in_its_own_environment(request: pytest.FixtureRequest) -> None:
    folder = request.config.getoption("--hosts")
    if folder is None or python_of(Path(folder).resolve(), (ENVIRONMENT,)) is None:
        pytest.skip(f"needs --hosts DIR with DIR/{ENVIRONMENT}, which has dalle-pytorch 1.6.6")
    said: list[str] = []
    block = dalle_block(QUICK, Path(folder), said.append)
    assert not said
    rows = rows_of(block)
    check_own(rows)
    for row in rows:
        assert all(float(row[name]) > 0 for name in ("Ours, ms", "Peer, ms", "Tokens/s, ours", "Tokens/s, peer"))
    assert "dalle-pytorch 1.6.6" in block
    # as many parameters, within a percent
    [line] = [line for line in block.splitlines() if "parameters:" in line]
    counts = [float(part.split()[-2]) for part in line.split(", ")]
    assert len(counts) == 3
    assert max(counts) <= 1.01 * min(counts)
