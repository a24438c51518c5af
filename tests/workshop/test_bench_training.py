"""Sections of ``bench`` that train: their loops train the same. Nothing looks at how long anything takes."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import distributed
from weighted_clip.encoder.clip import FullClip
from weighted_clip.training.optimizer import Rates
from weighted_clip.workshop.bench import dalle, page, precision, training
from weighted_clip.workshop.bench.dalle import DRAWERS, DRAWING, ENVIRONMENT, OWN, TRAINERS, TRAINING, dalle_block
from weighted_clip.workshop.bench.page import Request, Section, goal_block
from weighted_clip.workshop.bench.precision import ALONE, TOGETHER, precision_block
from weighted_clip.workshop.bench.scale import QUICK
from weighted_clip.workshop.bench.training import (
    FULL_SIZE,
    LIKE_OURS,
    LOCKED,
    NEEDS,
    OPEN_CLIP,
    OURS,
    SMALL,
    UNTRIMMED,
    WITH_ACCELERATE,
    training_block,
)
from weighted_clip.workshop.find_hosts import python_of
from weighted_clip.workshop.peers import open_clip

from ..libraries import library

NUM_STEPS = 12
PEERS = [
    *((DRAWING, images, peer) for images in ("1", "2") for peer in (OWN, *DRAWERS.values())),
    *((TRAINING, "2", peer) for peer in TRAINERS.values()),
]


def verdicts(section: Section, block: str) -> set[str]:
    return {row[""] for row in page.table_rows(goal_block([section], {section.name: block}))}


# ---- contrastive training


def test_shows_every_size_and_peer_with_the_same_losses() -> None:
    library("accelerate")
    library("transformers", "5")
    library("open_clip", "3")
    block = training_block(Request(QUICK))
    rows = [row for row in page.table_rows(block) if "Text tower" in row]
    assert [(row["Text tower"], row["Peer"]) for row in rows] == [
        (size, peer) for size in (SMALL, FULL_SIZE) for peer in NEEDS
    ]
    for row in rows:
        assert row["Its positions"] == ("77" if row["Peer"] in UNTRIMMED else "32")
        assert all(float(row[f"{side}, ms"]) > 0 for side in ("Ours", "Peer"))
        assert float(row["Difference"]) <= 1e-5
    assert verdicts(training.TRAINING, block) <= {"met", "missed"}
    for word in ("CPU core", "open_clip_torch", "transformers", "accelerate", "thread"):
        assert word in block


def test_all_loops_learn_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that comes again and again is learned, by all in the same steps."""
    library("accelerate")
    library("transformers", "5")
    library("open_clip", "3")
    monkeypatch.setattr(open_clip, "RATES", Rates(1e-3))
    case = next(training._cases(QUICK))
    pixels = torch.randn(6, *case.pixels.shape[1:], generator=torch.Generator().manual_seed(1)) * 3
    case = case._replace(pixels=pixels, features=FullClip(case.text, case.vision).image_features(pixels))
    batch = next(training._batches(case))
    before = {name: parameter.clone() for name, parameter in case.text.named_parameters()}
    losses = {
        name: [loss for _ in range(2) for loss in epoch([batch] * (NUM_STEPS // 2))]
        for name, epoch in training._loops(case, list(NEEDS), NUM_STEPS).items()
    }
    assert list(losses) == [OURS, *NEEDS]
    assert losses[OURS][-1] < losses[OURS][0] - 0.05
    for name, found in losses.items():
        assert found == pytest.approx(losses[OURS], abs=1e-4), name
    assert all(parameter.equal(before[name]) for name, parameter in case.text.named_parameters())


def test_without_peers_their_rows_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    library("accelerate")

    def missing() -> list[tuple[str, str]]:
        rows = page.table_rows(training_block(Request(QUICK)))
        return [(row["Text tower"], row["Peer"]) for row in rows if row["Difference"] == "not found"]

    monkeypatch.setitem(sys.modules, "transformers", None)
    assert missing() == [(size, WITH_ACCELERATE) for size in (SMALL, FULL_SIZE)]
    monkeypatch.setitem(sys.modules, "open_clip", None)
    named = (OPEN_CLIP, LIKE_OURS, WITH_ACCELERATE, LOCKED)
    assert missing() == [(size, peer) for size in (SMALL, FULL_SIZE) for peer in named]
    monkeypatch.setitem(sys.modules, "accelerate", None)
    assert missing() == [(size, peer) for size in (SMALL, FULL_SIZE) for peer in NEEDS]


# ---- image tokens


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
    block = dalle_block(Request(QUICK, tmp_path))
    rows = rows_of(block)
    check_own(rows)
    assert {row["Same tokens"] for row in rows if row["Peer"] != OWN} == {"not found"}
    assert "parameters: ours 0.0" in block
    judged = page.table_rows(goal_block([dalle.DALLE], {"dalle": block}))
    assert [row[""] in ("met", "missed") for row in judged] == [True, False, False]


def test_goals_of_image_tokens_look_at_rows_that_there_are() -> None:
    wanted = {peer for goal in dalle.DALLE.goals for peer in goal.where["Peer"]}
    assert wanted == {peer for _, _, peer in PEERS}


@pytest.mark.host
def test_dalle_pytorch_is_measured_in_its_own_environment(request: pytest.FixtureRequest) -> None:
    folder = request.config.getoption("--hosts")
    if folder is None or python_of(Path(folder).resolve(), (ENVIRONMENT,)) is None:
        pytest.skip(f"needs --hosts DIR with DIR/{ENVIRONMENT}, which has dalle-pytorch 1.6.6")
    said: list[str] = []
    block = dalle_block(Request(QUICK, Path(folder), said.append))
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


# ---- 16 bits


def test_all_runs_learn_alike_and_what_they_send_is_counted(tmp_path: Path) -> None:
    library("accelerate")
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    said: list[str] = []
    picture = tmp_path / "precision.png"
    block = precision_block(Request(QUICK, say=said.append, picture=picture))
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


# ---- all


@pytest.mark.parametrize(
    ("module", "block", "column", "cell", "times"),
    [(dalle, dalle_block, "Same tokens", "failed", 1), (precision, precision_block, "Update, ms", "-", 2)],
)
def test_what_fails_is_said_and_leaves_rows_without_figures(
    module: object,
    block: Callable[[Request], str],
    column: str,
    cell: str,
    times: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    monkeypatch.setattr(module, "run", library)  # which the other process cannot import
    rows = list(page.table_rows(block(Request(QUICK, say=said.append))))
    assert rows
    assert {row[column] for row in rows} == {cell}
    assert len(said) == times
    assert said[0].startswith("failed:")
