"""The section "Training" of the command ``bench``: its loops train the same. Nothing looks at how long they take."""

import argparse
import sys

import pytest
import torch
from weighted_clip.encoder.full_clip import FullClip
from weighted_clip.training.optimizer import Rates
from weighted_clip.workshop.bench import add_arguments, page, run, training, training_peers
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

from .libraries import library

NUM_STEPS = 12


@pytest.fixture(autouse=True)
def accelerate() -> None:
    library("accelerate")


def test_shows_every_size_and_peer_with_the_same_losses() -> None:
    library("transformers", "5")
    library("open_clip", "3")
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    printed: list[str] = []
    run(parser.parse_args(["--quick", "--only", "training"]), printed.append)
    rows = [row for row in page.table_rows(printed[0]) if "Text tower" in row]
    assert [(row["Text tower"], row["Peer"]) for row in rows] == [
        (size, peer) for size in (SMALL, FULL_SIZE) for peer in NEEDS
    ]
    for row in rows:
        assert row["Its positions"] == ("77" if row["Peer"] in UNTRIMMED else "32")
        assert all(float(row[f"{side}, ms"]) > 0 for side in ("Ours", "Peer"))
        assert float(row["Difference"]) <= 1e-5
    judged = [row for block in printed for row in page.table_rows(block) if "Found under" in row]
    assert {row[""] for row in judged if "Training" in row["Found under"]} <= {"met", "missed"}
    for word in ("CPU core", "open_clip_torch", "transformers", "accelerate", "thread"):
        assert word in printed[0]


def test_all_loops_learn_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that comes again and again is learned, by all in the same steps."""
    library("transformers", "5")
    library("open_clip", "3")
    monkeypatch.setattr(training_peers, "RATES", Rates(1e-3))
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
    def missing() -> list[tuple[str, str]]:
        rows = page.table_rows(training_block(QUICK))
        return [(row["Text tower"], row["Peer"]) for row in rows if row["Difference"] == "not found"]

    monkeypatch.setitem(sys.modules, "transformers", None)
    assert missing() == [(size, WITH_ACCELERATE) for size in (SMALL, FULL_SIZE)]
    monkeypatch.setitem(sys.modules, "open_clip", None)
    named = (OPEN_CLIP, LIKE_OURS, WITH_ACCELERATE, LOCKED)
    assert missing() == [(size, peer) for size in (SMALL, FULL_SIZE) for peer in named]
    monkeypatch.setitem(sys.modules, "accelerate", None)
    assert missing() == [(size, peer) for size in (SMALL, FULL_SIZE) for peer in NEEDS]
