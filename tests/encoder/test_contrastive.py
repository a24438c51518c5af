"""The contrastive loss: the lecture's equations as loops, open_clip's loss, and two processes against one."""

import importlib.util
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from weighted_clip.encoder.similarity import (
    INITIAL_TEMPERATURE,
    MAX_LOGIT_SCALE,
    ContrastiveLoss,
    SigmoidLoss,
    normalized,
    probabilities,
    similarity,
)

TOLERANCE = 1e-6
RANKS = 2


def random_pairs(batch: int, dim: int = 12, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Text and image features of various lengths; those of a pair are alike."""
    generator = torch.Generator().manual_seed(seed)
    texts = torch.randn(batch, dim, generator=generator, dtype=dtype) * 3
    images = texts + torch.randn(batch, dim, generator=generator, dtype=dtype) * 4
    return texts.requires_grad_(), images.requires_grad_()


# --- the lecture's equations


def by_the_equations(
    texts: list[list[float]], images: list[list[float]], tau: float
) -> tuple[list[list[float]], float]:
    """S and the loss, equations (64) to (68), with nothing but loops."""

    def unit(vector: list[float]) -> list[float]:
        length = math.sqrt(sum(value * value for value in vector))
        return [value / length for value in vector]

    u, v, n = [unit(vector) for vector in texts], [unit(vector) for vector in images], len(texts)
    s = [[sum(a * b for a, b in zip(u[i], v[j], strict=True)) / tau for j in range(len(v))] for i in range(n)]
    text_to_image = image_to_text = 0.0
    for i in range(n):
        text_to_image += -math.log(math.exp(s[i][i]) / sum(math.exp(s[i][j]) for j in range(n))) / n
        image_to_text += -math.log(math.exp(s[i][i]) / sum(math.exp(s[j][i]) for j in range(n))) / n
    return s, (text_to_image + image_to_text) / 2


@pytest.mark.parametrize("tau", [0.07, 0.02, 1.0])
@pytest.mark.parametrize("batch", [1, 2, 7])
def test_equals_the_lectures_equations_in_float64(batch: int, tau: float) -> None:
    texts, images = random_pairs(batch, dtype=torch.float64)
    expected_scores, expected_loss = by_the_equations(texts.tolist(), images.tolist(), tau)
    scores = similarity(texts, images, tau)
    assert torch.allclose(scores, torch.tensor(expected_scores, dtype=torch.float64), rtol=0, atol=1e-12)
    loss = ContrastiveLoss(tau).double()
    with torch.no_grad():
        loss.logit_scale.fill_(math.log(1 / tau))  # it was made in float32
    assert loss(texts, images).item() == pytest.approx(expected_loss, abs=1e-12)


def test_similarity_is_the_cosine_of_every_text_with_every_image() -> None:
    texts, images = random_pairs(5)[0], random_pairs(3, seed=1)[1]
    scores = similarity(texts, images)
    assert scores.shape == (5, 3)
    for i in range(5):
        for j in range(3):
            cosine = texts[i] @ images[j] / texts[i].norm() / images[j].norm()
            assert scores[i, j].item() == pytest.approx(cosine.item(), abs=TOLERANCE)
    assert torch.allclose(similarity(texts * 7, images / 7, 0.5), scores * 2, atol=TOLERANCE)
    assert torch.allclose(normalized(texts).norm(dim=-1), torch.ones(5), atol=TOLERANCE)
    assert normalized(torch.zeros(1, 4)).tolist() == [[0.0] * 4]


def test_probabilities_over_texts_and_over_images() -> None:
    scores = similarity(random_pairs(4)[0], random_pairs(3, seed=1)[1], 0.1)
    rows, columns = probabilities(scores, "images"), probabilities(scores, "texts")
    assert torch.allclose(rows.sum(1), torch.ones(4))
    assert torch.allclose(columns.sum(0), torch.ones(3))
    for i in range(4):
        for j in range(3):
            assert rows[i, j].item() == pytest.approx((scores[i, j].exp() / scores[i].exp().sum()).item(), rel=1e-5)
            assert columns[i, j].item() == pytest.approx(
                (scores[i, j].exp() / scores[:, j].exp().sum()).item(), rel=1e-5
            )
    assert probabilities(scores, "none") is scores


# --- open_clip


@pytest.mark.parametrize("temperature", [0.07, 0.01, 0.5])
@pytest.mark.parametrize("batch", [1, 3, 32])
def test_equals_open_clips_loss_and_gradients(batch: int, temperature: float) -> None:
    from ..libraries import library  # here, as `run_rank` is loaded from this file alone

    loss = ContrastiveLoss(temperature)
    texts, images = random_pairs(batch, dim=64)
    ours = loss(texts, images)
    ours.backward()

    other_texts, other_images = (features.detach().clone().requires_grad_() for features in (texts, images))
    log_scale = loss.logit_scale.detach().clone().requires_grad_()
    units = (nn.functional.normalize(features, dim=-1) for features in (other_images, other_texts))
    theirs = library("open_clip", "3").ClipLoss()(*units, log_scale.exp())
    theirs.backward()

    assert ours.item() == pytest.approx(theirs.item(), abs=TOLERANCE)
    for own, other in ((texts, other_texts), (images, other_images), (loss.logit_scale, log_scale)):
        assert own.grad is not None
        assert torch.allclose(own.grad, other.grad, rtol=0, atol=TOLERANCE)


def by_sigmoids(loss: nn.Module, texts: Tensor, images: Tensor) -> dict[str, Tensor]:
    """SigLIP's loss, ours or open_clip's, of pairs of this process, and its gradients."""
    texts, images = (features.detach().clone().requires_grad_() for features in (texts, images))
    ours = SigmoidLoss(0.2, -3.0).double()
    if isinstance(loss, SigmoidLoss):
        found = ours(texts, images)
    else:
        units = (nn.functional.normalize(features, dim=-1) for features in (images, texts))
        found = loss(*units, ours.logit_scale.exp(), ours.logit_bias)
    found.backward()
    assert ours.logit_scale.grad is not None and ours.logit_bias.grad is not None
    assert texts.grad is not None and images.grad is not None
    return {
        "loss": found.detach(),
        "texts": texts.grad,
        "images": images.grad,
        "scale": ours.logit_scale.grad,
        "bias": ours.logit_bias.grad,
    }


@pytest.mark.parametrize("batch", [1, 3, 32])
def test_the_sigmoid_loss_and_its_gradients_are_open_clip_s(batch: int) -> None:
    from ..libraries import library

    pairs = random_pairs(batch, dim=64, dtype=torch.float64)
    ours = by_sigmoids(SigmoidLoss(), *pairs)
    theirs = by_sigmoids(library("open_clip", "3").loss.SigLipLoss(), *pairs)
    for name, value in ours.items():
        assert (value - theirs[name]).abs().max() <= 1e-9, name


# --- temperature


def test_the_temperature_starts_where_clips_does() -> None:
    loss = ContrastiveLoss()
    assert [name for name, _ in loss.named_parameters()] == ["logit_scale"]
    assert loss.logit_scale.shape == ()
    assert loss.logit_scale.item() == pytest.approx(math.log(1 / 0.07), rel=1e-7)
    assert loss.temperature.item() == pytest.approx(INITIAL_TEMPERATURE, rel=1e-6)
    assert ContrastiveLoss(0.01).temperature.item() == pytest.approx(0.01, rel=1e-6)


def test_the_temperature_learns() -> None:
    loss = ContrastiveLoss().double()
    texts, images = random_pairs(6, dtype=torch.float64)
    loss(texts, images).backward()
    assert loss.logit_scale.grad is not None
    step, values = 1e-6, []
    for sign in (1, -1):
        moved = ContrastiveLoss().double()
        with torch.no_grad():
            moved.logit_scale.copy_(loss.logit_scale + sign * step)
        values.append(moved(texts, images).item())
    assert loss.logit_scale.grad.item() == pytest.approx((values[0] - values[1]) / (2 * step), abs=1e-8)

    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
    before = loss(texts, images).item()
    optimizer.step()
    assert loss(texts, images).item() < before


def test_the_scale_never_exceeds_100() -> None:
    loss, pairs = ContrastiveLoss(0.01), random_pairs(4)
    at_the_bound = loss(*pairs).item()
    with torch.no_grad():
        loss.logit_scale.fill_(9.0)
    assert loss.temperature.item() == pytest.approx(0.01, rel=1e-6)
    assert loss(*pairs).item() == pytest.approx(at_the_bound, rel=1e-6)
    assert loss.logit_scale.item() == 9.0  # a forward pass changes no parameter
    loss.clamp_temperature()
    assert loss.logit_scale.item() == pytest.approx(MAX_LOGIT_SCALE)
    loss(*pairs).backward()
    assert loss.logit_scale.grad is not None
    assert loss.logit_scale.grad.item() != 0  # at the bound it can still go back
    with torch.no_grad():
        loss.logit_scale.fill_(1.0)
    loss.clamp_temperature()
    assert loss.logit_scale.item() == 1.0


@pytest.mark.parametrize("temperature", [0.0, -1.0, 0.009, math.nan, math.inf])
def test_temperatures_out_of_range_are_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match=f"temperature must be at least 0.01, got {temperature}"):
        ContrastiveLoss(temperature)


# --- precision


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    texts, images = (features.detach().to(dtype) for features in random_pairs(9))
    loss = ContrastiveLoss()
    expected = loss(texts.float(), images.float())
    assert expected.dtype == torch.float32
    for result in (loss(texts, images), loss(texts, images.float())):
        assert torch.equal(result, expected)
    assert torch.equal(similarity(texts, images), similarity(texts.float(), images.float()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(loss(texts, images), expected)
        assert torch.equal(similarity(texts.float(), images.float()), similarity(texts, images))
    texts.requires_grad_()
    loss(texts, images).backward()
    assert texts.grad is not None
    assert texts.grad.dtype == dtype
    assert similarity(texts.double(), images).dtype == torch.float64
    assert loss(texts.double(), images).dtype == torch.float64


# --- refusals


@pytest.mark.parametrize(
    ("texts", "images"),
    [((3, 4), (3, 5)), ((4,), (4,)), ((2, 3, 4), (3, 4)), ((3, 4), (2, 4)), ((0, 4), (0, 4))],
)
def test_features_that_do_not_match_are_refused(texts: tuple[int, ...], images: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="features") as error:
        ContrastiveLoss()(torch.ones(texts), torch.ones(images))
    assert str(list(texts)) in str(error.value)
    assert str(list(images)) in str(error.value)


def test_similarity_refuses_what_it_cannot_compare() -> None:
    with pytest.raises(ValueError, match=r"\[3, 4\] and \[3, 5\]"):
        similarity(torch.ones(3, 4), torch.ones(3, 5))
    for temperature in (0, -0.5, math.nan):
        with pytest.raises(ValueError, match=f"temperature must be above 0, got {temperature}"):
            similarity(torch.ones(3, 4), torch.ones(2, 4), temperature)
    with pytest.raises(ValueError, match="over must be one of: texts, images, none; got 'rows'"):
        probabilities(torch.ones(2, 2), "rows")
    with pytest.raises(ValueError, match=r"got shape \[2\]"):
        probabilities(torch.ones(2), "texts")


# --- several processes


class Towers(nn.Module):
    """Two towers that share their weights, and the loss."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shared = nn.Linear(12, 8)
        self.loss = ContrastiveLoss()
        self.to(dtype)

    def forward(self, texts: Tensor, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The loss and both features, which keep their gradients."""
        features = self.shared(texts), self.shared(images)
        if torch.is_grad_enabled():
            for each in features:
                each.retain_grad()
        return self.loss(*features), *features


def step(model: nn.Module, texts: Tensor, images: Tensor) -> dict[str, Any]:
    """Loss and gradients of one batch."""
    loss, *features = model(texts, images)
    loss.backward()
    found = {f"{name} features": each.grad for name, each in zip(("text", "image"), features, strict=True)}
    found |= {name.removeprefix("module."): parameter.grad for name, parameter in model.named_parameters()}
    return {"loss": loss.detach(), **found}


def joint_batch(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    texts, images = random_pairs(5 * RANKS, dtype=dtype)
    return texts.detach(), images.detach()


def run_rank(rank: int, folder: Path) -> None:
    """Work of one process: its half of the joint batch, in each way that the tests below need."""
    options: dict[str, Any] = {"backend": "gloo"}
    store = distributed.FileStore(str(folder / "store"), RANKS)  # pyright: ignore[reportPrivateImportUsage]
    distributed.init_process_group(store=store, rank=rank, world_size=RANKS, **options)
    found: dict[str, Any] = {}
    for dtype in (torch.float32, torch.float64):
        texts, images = (features.chunk(RANKS)[rank] for features in joint_batch(dtype))
        found[str(dtype)] = step(DistributedDataParallel(Towers(dtype)), texts, images)
        alone = Towers(dtype)  # the caller averages
        found[f"{dtype} by hand"] = step(alone, texts, images)
        for parameter in alone.parameters():
            assert parameter.grad is not None
            distributed.all_reduce(parameter.grad)
            parameter.grad.div_(RANKS)
    texts, images = (features.chunk(RANKS)[rank] for features in joint_batch(torch.float32))
    loss = ContrastiveLoss()
    with torch.no_grad():
        found["without gradients"] = loss(texts, images)
        found["in half precision"] = loss(texts.bfloat16(), images.bfloat16())
    frozen = texts.clone().requires_grad_()
    loss(frozen, images).backward()
    found["images frozen"] = frozen.grad
    pairs = [features.chunk(RANKS)[rank] for features in joint_batch(torch.float64)]
    found["sigmoid"] = by_sigmoids(SigmoidLoss(), *pairs)
    if (package := importlib.util.find_spec("open_clip")) and package.submodule_search_locations:
        place = Path(package.submodule_search_locations[0]) / "loss.py"  # alone, as the package loads much more
        spec = importlib.util.spec_from_file_location("open_clip_loss", place)
        theirs = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(theirs)
        found["sigmoid of open_clip"] = by_sigmoids(theirs.SigLipLoss(rank=rank, world_size=RANKS), *pairs)
    try:
        loss(texts[: 3 - rank], images[: 3 - rank])
    except ValueError as error:
        found["uneven"] = str(error)
    distributed.destroy_process_group()
    if rank == 0:
        store = distributed.FileStore(str(folder / "alone"), 1)  # pyright: ignore[reportPrivateImportUsage]
        distributed.init_process_group(store=store, rank=0, world_size=1, **options)
        found["one process"] = step(Towers(torch.float32), *joint_batch(torch.float32))
        distributed.destroy_process_group()
    torch.save(found, folder / f"{rank}.pt")


START = """
import os, pathlib, runpy, sys
test, rank, folder = pathlib.Path(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
runpy.run_path(str(test.parents[2] / "__main__.py"))["load_package"]()
sys.path.append(str(test.parent))
import test_contrastive
test_contrastive.run_rank(rank, folder)
os._exit(0)
"""
"""A process: it loads the package as conftest.py does, without the rest of that, and this file.

PyTorch 2.13 keeps a group that DistributedDataParallel used, and aborts if one of its threads drops a tensor while the
interpreter ends.
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Results of each process."""
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    folder, this = tmp_path_factory.mktemp("ranks"), Path(__file__).resolve()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", START, str(this), str(rank), str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        for process in processes:
            output, _ = process.communicate()  # pytest.ini says when it hangs
            assert process.returncode == 0, output
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, TOLERANCE), (torch.float64, 1e-12)])
@pytest.mark.parametrize("way", ["", " by hand"])
def test_two_processes_are_one_on_the_joint_batch(
    ranks: list[dict[str, Any]], dtype: torch.dtype, tolerance: float, way: str
) -> None:
    joint = step(Towers(dtype), *joint_batch(dtype))
    each = [rank[f"{dtype}{way}"] for rank in ranks]
    assert set(each[0]) == {
        "loss",
        "text features",
        "image features",
        "shared.weight",
        "shared.bias",
        "loss.logit_scale",
    }
    assert abs(sum(rank["loss"] for rank in each) / RANKS - joint["loss"]) <= tolerance
    assert each[0]["loss"] != each[1]["loss"]  # each has its own part
    for name in ("text features", "image features"):
        gathered = torch.cat([rank[name] for rank in each]) / RANKS
        assert gathered.abs().max() > 1e-3
        assert torch.allclose(gathered, joint[name], rtol=0, atol=tolerance), name
    for name in ("shared.weight", "shared.bias", "loss.logit_scale"):
        for rank in each:  # averaged by DistributedDataParallel or by hand
            assert torch.allclose(rank[name], joint[name], rtol=0, atol=tolerance), name


def test_a_tower_without_gradients_and_no_gradients_at_all(ranks: list[dict[str, Any]]) -> None:
    texts, images = joint_batch(torch.float32)
    texts.requires_grad_()
    joint = ContrastiveLoss()(texts, images)
    joint.backward()
    assert sum(rank["without gradients"] for rank in ranks) / RANKS == pytest.approx(joint.item(), abs=TOLERANCE)
    gathered = torch.cat([rank["images frozen"] for rank in ranks]) / RANKS
    assert torch.allclose(gathered, texts.grad, rtol=0, atol=TOLERANCE)
    half = ContrastiveLoss()(texts.bfloat16(), images.bfloat16()).item()
    assert sum(rank["in half precision"] for rank in ranks) / RANKS == pytest.approx(half, abs=TOLERANCE)


def test_the_sigmoid_loss_of_two_processes_is_open_clip_s_and_that_of_one(ranks: list[dict[str, Any]]) -> None:
    if "sigmoid of open_clip" not in ranks[0]:
        pytest.skip("open_clip is not installed")
    joint = by_sigmoids(SigmoidLoss(), *joint_batch(torch.float64))
    for rank in ranks:
        for name, value in rank["sigmoid"].items():
            assert (value - rank["sigmoid of open_clip"][name]).abs().max() <= 1e-9, name
    for name in ("loss", "scale", "bias"):
        assert abs(sum(rank["sigmoid"][name] for rank in ranks) / RANKS - joint[name]) <= 1e-9
    for name in ("texts", "images"):
        gathered = torch.cat([rank["sigmoid"][name] for rank in ranks]) / RANKS
        assert (gathered - joint[name]).abs().max() <= 1e-9


def test_uneven_batches_are_refused_on_every_rank(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert "same shape" in rank["uneven"]
        assert "[3, 12] on rank 0, [2, 12] on rank 1" in rank["uneven"]


def test_a_group_of_one_process_is_as_none(ranks: list[dict[str, Any]]) -> None:
    joint = step(Towers(torch.float32), *joint_batch(torch.float32))
    assert set(joint) == set(ranks[0]["one process"])
    for name, value in joint.items():
        assert torch.allclose(ranks[0]["one process"][name], value, rtol=0, atol=TOLERANCE)
