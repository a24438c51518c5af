"""Steps against a plain loop over transformers, open_clip and torch; batches in parts; several processes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from weighted_clip.encoder.files.checkpoint import hugging_face_tensors
from weighted_clip.encoder.models.config import sizes_of
from weighted_clip.studio.training.optimizer import BETAS, EPS, Rates, adamw, factor, groups_of, part_of
from weighted_clip.studio.training.scaling.grad_cache import Towers

from ..launching import launched
from ..libraries import library
from .models import VISION, divided, gradients, pairs, towers, trained
from .process import PAIRS

PROCESS = Path(__file__).with_name("process.py")


@pytest.fixture(autouse=True)
def accelerate() -> None:
    library("accelerate")


def named(model: Towers) -> dict[str, torch.Tensor]:
    """Our parameters under transformers' names."""
    assert model.vision is not None
    scale = model.loss.logit_scale.detach()
    return {**hugging_face_tensors(model.text), **hugging_face_tensors(model.vision), "logit_scale": scale}


def reference_of(model: Towers) -> Any:
    """transformers' model with our weights."""
    transformers = library("transformers")
    text = model.text.config
    ids = {"vocab_size": text.vocab_size, "bos_token_id": text.bos_id, "eos_token_id": text.eos_id}
    config = transformers.CLIPConfig(
        text_config={**sizes_of(text), **ids},
        vision_config={**sizes_of(VISION), "image_size": VISION.image_size, "patch_size": VISION.patch_size},
        projection_dim=text.projection_dim,
    )
    reference = transformers.CLIPModel(config).double().train()
    missing, unexpected = reference.load_state_dict(named(model), strict=False)
    assert unexpected == []
    assert all("position_ids" in key for key in missing)
    return reference


@pytest.mark.parametrize("start", [1 / 0.07, 99.9], ids=["usual scale", "scale at its bound"])
def test_twenty_steps_equal_a_plain_loop_over_transformers_and_open_clip(start: float) -> None:
    num_steps, warmup, rate, decay = 20, 4, 1e-3, 0.2
    model = towers()
    with torch.no_grad():
        model.loss.logit_scale.fill_(math.log(start))
    reference = reference_of(model)
    loss_of = library("open_clip").ClipLoss()
    decayed = [parameter for parameter in reference.parameters() if parameter.ndim >= 2]
    others = [parameter for parameter in reference.parameters() if parameter.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}],
        lr=rate,
        betas=(0.9, 0.98),
        eps=1e-6,
    )
    expected = []
    for step in range(num_steps):
        batch = pairs(8, step)
        output = reference(input_ids=batch.ids, pixel_values=batch.images)
        loss = loss_of(output.image_embeds, output.text_embeds, reference.logit_scale.exp())
        rising = (step + 1) / warmup if step < warmup else 1.0
        falling = 0.5 * (1 + math.cos(math.pi * max(0, step - warmup) / (num_steps - warmup)))
        for group in optimizer.param_groups:
            group["lr"] = rate * rising * falling
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            reference.logit_scale.clamp_(max=math.log(100))
        expected.append(loss.item())

    rates = Rates(rate, weight_decay=decay, warmup=warmup)
    losses = trained(model, [[pairs(8, step)] for step in range(num_steps)], rates)
    assert losses == pytest.approx(expected, abs=1e-10)
    theirs = reference.state_dict()
    moved = 0.0
    for name, tensor in named(model).items():
        assert (tensor - theirs[name]).abs().max() <= 1e-10, name
        moved = max(moved, (tensor - named(towers())[name]).abs().max().item())
    assert moved > 1e-3


@pytest.mark.parametrize("is_frozen", [False, True], ids=["both towers", "image features given"])
def test_eight_parts_of_four_have_the_gradients_of_32_at_once(is_frozen: bool) -> None:
    model, batch = towers(), pairs(32)
    if is_frozen:
        assert model.vision is not None
        with torch.no_grad():
            features = model.vision(batch.images).projected
        model.vision, batch = None, batch._replace(images=features)
    at_once = gradients(model, [batch])
    in_parts = gradients(model, divided(batch, 8))
    apart = gradients(model, divided(batch, 8)[:1])
    assert at_once.keys() == in_parts.keys() == dict(model.named_parameters()).keys()
    for name, gradient in at_once.items():
        assert (gradient - in_parts[name]).abs().max() <= 1e-10, name
    assert (at_once["loss.logit_scale"] - apart["loss.logit_scale"]).abs() > 1e-4


def test_parts_of_a_scale_that_is_frozen() -> None:
    model = towers()
    groups_of(model, Rates(by_part=(("scale", 0.0),)))
    trained(model, [divided(pairs(8), 2)], Rates(1e-3, by_part=(("scale", 0.0),)))
    assert model.loss.logit_scale.equal(towers().loss.logit_scale)


# ---- several processes


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, Any]]:
    """Results of each of several processes."""
    folder = tmp_path_factory.mktemp("ranks")
    done = launched(request.param, PROCESS, folder)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"{rank}.pt") for rank in range(request.param)]


@pytest.mark.parametrize("number", [1, 2, "sharded"])
@pytest.mark.parametrize("is_both", [True, False], ids=["both towers", "text alone"])
def test_several_processes_train_as_one(ranks: list[dict[Any, Any]], is_both: bool, number: object) -> None:
    model = towers(is_both=is_both)
    batches = [[pairs(PAIRS, seed, is_both=is_both)] for seed in range(5)]
    losses = trained(model, batches, Rates(1e-3, warmup=2))
    each = [rank[is_both, number] for rank in ranks]
    means = [sum(some) / len(ranks) for some in zip(*(rank["losses"] for rank in each), strict=True)]
    assert means == pytest.approx(losses, abs=1e-10)
    for name, parameter in model.state_dict().items():
        for rank in each:
            assert (parameter - rank[name]).abs().max() <= 1e-10, name


def test_each_process_keeps_its_part_of_a_divided_model(ranks: list[dict[Any, Any]]) -> None:
    for rank in ranks:
        for is_both in (True, False):
            assert rank[is_both, "share"] == pytest.approx(1 / len(ranks), abs=0.02)


def test_gradients_of_several_processes_in_single_precision(ranks: list[dict[Any, Any]]) -> None:
    """Compared in float64: every order of adding up has its own rounding, and one process alone is off by 1.4e-6."""
    batch = pairs(PAIRS, 0, torch.float32)
    expected = gradients(towers(), [batch._replace(images=batch.images.double())])
    for rank in ranks:
        for name, gradient in expected.items():
            assert (gradient - rank["gradients"][name]).abs().max() <= 4e-6 * max(1, gradient.abs().max()), name


# ---- what is trained


def test_each_part_has_its_rate_and_only_matrices_decay() -> None:
    model = towers()
    rates = Rates(1e-4, by_part=(("embeddings", 1e-3), ("image", 0.0)), frozen_layers=1, weight_decay=0.3)
    groups = groups_of(model, rates)
    found = {id(parameter): group for group in groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        is_frozen = name.startswith(("vision.", "text.encoder.layers.0."))
        assert parameter.requires_grad == (not is_frozen) == (id(parameter) in found), name
        if not is_frozen:
            assert found[id(parameter)]["lr"] == (1e-3 if ".embeddings." in name else 1e-4), name
            is_plain = "norm" in name or name.endswith(("bias", "scale"))
            assert found[id(parameter)]["weight_decay"] == (0.0 if is_plain else 0.3), name
    assert part_of("text.final_layer_norm.bias") == "layers"
    assert part_of("text.text_projection.weight") == "projection"
    assert part_of("vision.embeddings.class_embedding") == "image"
    options = adamw(groups).defaults
    assert (options["betas"], options["eps"]) == (BETAS, EPS) == ((0.9, 0.98), 1e-6)


def test_rates_rise_and_fall() -> None:
    seen = [2.0 * factor(step, 2, 6) for step in range(6)]
    assert seen == pytest.approx([1.0, 2.0, 2.0, 1 + math.cos(math.pi / 4), 1.0, 1 - math.cos(math.pi / 4)])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rate": -1.0}, "learning rate must be a number from 0, got -1.0"),
        ({"rate": math.nan}, "got nan"),
        ({"by_part": (("tail", 1.0),)}, "'tail'; parts are layers, embeddings, projection, image, scale, head"),
        ({"warmup": -3}, "counted from 0, got -3"),
    ],
)
def test_rates_out_of_range_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rates(**wrong)


def test_a_model_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing is left to train"):
        groups_of(towers(), Rates(0.0))
