"""PowerSGD between two processes, compared with plain means, and with the algorithm written out in NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from weighted_clip.studio.dalle.weight_files import save_dvae
from weighted_clip.studio.training.scaling.powersgd import EPSILON

from ..dalle.models import TINY_SMALL, seeded
from ..launching import launched
from .process_compression import NUM_UPDATES, SIZES
from .runs import log_of, tensors_of

PROCESS = Path(__file__).with_name("process_compression.py")
COMMANDS = Path(__file__).with_name("process_command.py")
Gradients = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Results of two processes."""
    folder = tmp_path_factory.mktemp("compression")
    done = launched(2, PROCESS, folder)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def is_matrix_of_a_block(name: str, gradient: torch.Tensor) -> bool:
    return name.startswith("layers.") and gradient.ndim == 2


def distance(one: Gradients, other: Gradients) -> float:
    """The largest relative distance of a tensor, except those that are 0 up to rounding."""
    return max(
        float((one[name] - other[name]).norm() / other[name].norm()) for name in one if "k_proj.bias" not in name
    )


def test_both_processes_have_the_same_gradients(found: list[dict[str, Any]]) -> None:
    one, other = found
    for kind in ("plain", "full rank", "rank 32", "rank 4", "scaled", "spoiled", "resumed"):
        for update, gradients in enumerate(one[kind]):
            assert all(torch.equal(gradients[name], other[kind][update][name]) for name in gradients), kind
    assert distance(one["local"][0], other["local"][0]) > 0.5


def test_at_full_rank_nothing_is_lost(found: list[dict[str, Any]]) -> None:
    for plain, compressed in zip(found[0]["plain"], found[0]["full rank"], strict=True):
        assert distance(compressed, plain) <= 2e-6  # rounding, which processors differ in
    before, after = found[0]["full rank sent"]
    assert after > before  # products of full rank have more numbers, so they are what was sent
    last, compressed = found[0]["plain"][-1], found[0]["full rank"][-1]
    is_same = {name: torch.equal(last[name], compressed[name]) for name in last}
    assert {name for name, is_it in is_same.items() if is_it} >= {
        name for name in last if not is_matrix_of_a_block(name, last[name])
    }
    assert not any(is_it for name, is_it in is_same.items() if is_matrix_of_a_block(name, last[name]))


@pytest.mark.parametrize("rank", [32, 4])
def test_what_is_sent_is_counted(found: list[dict[str, Any]], rank: int) -> None:
    d, layers = SIZES["hidden_dim"], SIZES["num_layers"]
    total = sum(gradient.numel() for gradient in found[0]["plain"][0].values())
    of_blocks = layers * (4 * d * d + 2 * d * 4 * d)
    narrow = layers * rank * (4 * (d + d) + 2 * (d + 4 * d))
    compressed_updates = NUM_UPDATES - 2
    expected = (compressed_updates * total, compressed_updates * (total - of_blocks + narrow))
    assert found[0][f"rank {rank} sent"] == expected


@pytest.mark.parametrize("rank", [32, 4])
def test_gradients_are_those_of_the_algorithm(found: list[dict[str, Any]], rank: int) -> None:
    """Q drawn once, P = ΣMQ made orthogonal, Q = mean of MᵀP; what PQᵀ lacks of M goes to the next M."""
    errors: list[dict[str, np.ndarray]] = [{}, {}]
    for update in range(NUM_UPDATES):
        ours, plain = found[0][f"rank {rank}"][update], found[0]["plain"][update]
        for name, gradient in ours.items():
            if update < 2 or not is_matrix_of_a_block(name, gradient):
                assert torch.equal(gradient, plain[name]), name
        if update < 2:
            continue
        for name in filter(lambda name: is_matrix_of_a_block(name, ours[name]), ours):
            drawn = torch.randn(1, ours[name].shape[1], rank, generator=torch.Generator().manual_seed(0))[0]
            q = np.linalg.qr(drawn.double().numpy())[0]
            m = [
                found[process]["local"][update][name].double().numpy() + errors[process].get(name, 0)
                for process in range(2)
            ]
            p = np.linalg.qr(m[0] @ q + m[1] @ q)[0]
            product = p @ ((m[0].T @ p + m[1].T @ p) / 2).T
            for process in range(2):
                errors[process][name] = m[process] - product
            compressed = ours[name].double().numpy()
            assert np.linalg.norm(compressed - product) <= 1e-4 * np.linalg.norm(product), (update, name)
            assert np.linalg.norm(product - plain[name].numpy()) > 1e-3 * np.linalg.norm(product)
            assert np.linalg.matrix_rank(compressed, tol=1e-5 * np.linalg.norm(compressed)) <= rank


def reflected(matrix: np.ndarray) -> np.ndarray:
    """Q of Householder's factorization, each reflection written out."""
    left, q = matrix.astype(np.float64), np.eye(len(matrix))
    for column in range(matrix.shape[1]):
        v = np.zeros(len(matrix))
        v[column:] = left[column:, column]
        v[column] += np.copysign(np.linalg.norm(v), v[column])
        mirror = np.eye(len(matrix)) - 2 * np.outer(v, v) / (v @ v)
        left, q = mirror @ left, q @ mirror
    return q[:, : matrix.shape[1]]


@pytest.mark.parametrize("rank", [3, 4, 16])
def test_columns_are_made_orthogonal_by_householder_s_reflections(rank: int) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import _orthogonalize

    some = torch.randn(2, 96, rank, generator=torch.Generator().manual_seed(0))
    some[1, :, -1] = some[1, :, 0]  # where Gram-Schmidt leaves two columns alike
    found = some.clone()
    _orthogonalize(found, EPSILON)
    assert np.abs(found[0].numpy() - reflected(some[0].numpy())).max() <= 2e-6
    assert (found.mT @ found - torch.eye(rank)).abs().max() <= 2e-6


def test_one_gradient_is_compressed_to_the_same_bits_twice(found: list[dict[str, Any]]) -> None:
    fixed, anew = found[0]["fixed"], found[0]["drawn anew"]
    assert all(torch.equal(fixed[0][name], fixed[1][name]) for name in fixed[0])
    assert distance(anew[0], anew[1]) > 0.1


def test_gradient_scales_change_nothing(found: list[dict[str, Any]]) -> None:
    """Not even where they change from update to update, though what an update lacks goes to the next one."""
    for plain, scaled in zip(found[0]["rank 4"], found[0]["scaled"], strict=True):
        assert distance(scaled, plain) <= 1e-5


def test_a_skipped_update_leaves_no_trace(found: list[dict[str, Any]]) -> None:
    """One process had gradients that are not finite; both skip them, and go on as if they had not been."""
    for process in range(2):
        assert found[process]["verdicts"] == [True, True, False, True, False, True, True]
        for plain, spoiled in zip(found[process]["rank 4"], found[process]["spoiled"], strict=True):
            assert distance(spoiled, plain) <= 1e-5


def test_what_is_kept_survives_a_stop_to_the_bit(found: list[dict[str, Any]]) -> None:
    for process in range(2):
        for plain, resumed in zip(found[process]["rank 4"][3:], found[process]["resumed"], strict=True):
            assert all(torch.equal(plain[name], resumed[name]) for name in plain)


# ---- whole runs


@pytest.mark.parametrize("kind", ["train", pytest.param("dalle train", marks=pytest.mark.long)])
def test_a_compressed_run_that_is_stopped_and_resumed_ends_with_the_same_bits(
    kind: str, weights: Path, pairs: Path, tmp_path: Path
) -> None:
    dvae = tmp_path / "dvae.safetensors"
    save_dvae(seeded(TINY_SMALL), dvae)
    options = ["--batch", "4", "--accumulate", "2", "--steps", "6", "--held-out", "4", "--compress", "4"]
    if kind == "train":
        options += ["--weights", str(weights), "--towers", "both", "--device", "cpu"]
    else:
        options += ["--dvae", str(dvae), "--recipe", "small", "--width", "32", "--heads", "2", "--size", "16"]
        options += ["--precision", "fp16", "--device", "cpu"]
    whole, out = tmp_path / "whole", tmp_path / "out"

    def words(folder: Path, *more: str) -> list[str]:
        return [*kind.split(), str(pairs), "--out", str(folder), *options, *more]

    runs = [[0, None, words(whole)], [130, 4, words(out)], [0, None, words(out, "--resume")]]
    done = launched(2, COMMANDS, json.dumps(runs))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("processes sent each other 1/") == 2
    name = "clip.safetensors" if kind == "train" else "dalle.safetensors"
    one, other = tensors_of(whole / name), tensors_of(out / name)
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert log_of(whole) == log_of(out)
    # what belonged to an earlier checkpoint is thrown away
    assert sorted(path.name for path in out.glob("gradients-*")) == ["gradients-6-0.pt", "gradients-6-1.pt"]
