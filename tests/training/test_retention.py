"""General prompts that are held near their rows at the beginning, against forgetting."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from weighted_clip.encoder.models.clip import load_full_clip
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.studio.training.finetuning.retention import PER_STEP, PROMPTS, Keeping, Kept
from weighted_clip.studio.training.optimizer import Rates, groups_of
from weighted_clip.studio.training.scaling.grad_cache import MicroBatch, backward

from ..libraries import library
from .models import TEXT, accelerator, divided, pairs, towers
from .runs import Start, log_of

CPU = torch.device("cpu")


def rows_by_hand(model: torch.nn.Module, prompt: str) -> torch.Tensor:
    """BOS, tokens and EOS of a prompt alone in a whole chunk."""
    tokens = [token.id for token in default_tokenizer()(prompt)]
    ids = torch.tensor([[49406, *tokens, *[49407] * (76 - len(tokens))]])
    return model(ids).hidden[0, : len(tokens) + 2]


def test_the_distance_is_the_mean_share_by_which_rows_have_changed() -> None:
    model, kept = towers(text=TEXT).text, Keeping(towers(text=TEXT).text, seed=3)(0, CPU)
    assert kept.distance(model).item() < 1e-25
    with torch.no_grad():
        model.encoder.layers[0].mlp.fc1.weight.mul_(1.5)
        shares = []
        told = {tuple(token.id for token in default_tokenizer()(prompt)): prompt for prompt in PROMPTS}
        for ids, is_row in zip(kept.ids.tolist(), kept.is_row.tolist(), strict=True):
            prompt = told[tuple(ids[1 : sum(is_row) - 1])]
            old, new = rows_by_hand(towers(text=TEXT).text, prompt), rows_by_hand(model, prompt)
            assert len(old) == sum(is_row)
            shares += [((b - a) @ (b - a) / (a @ a)).item() for a, b in zip(old, new, strict=True)]
    assert len(kept.ids) == PER_STEP
    assert kept.distance(model).item() == pytest.approx(sum(shares) / len(shares), rel=1e-9)
    assert kept.distance(model).item() > 1e-4


def test_each_step_has_prompts_of_its_own_and_all_come() -> None:
    keeping = Keeping(towers(text=TEXT).text, seed=0)
    steps = [keeping(step, CPU) for step in range(60)]
    assert torch.equal(steps[3].ids, keeping(3, CPU).ids)
    assert not torch.equal(Keeping(towers(text=TEXT).text, seed=1)(3, CPU).rows[:, :4], steps[3].rows[:, :4])
    seen = {tuple(row[row < 49406].tolist()) for kept in steps for row in kept.ids}
    assert len(seen) == len(set(PROMPTS)) == len(PROMPTS)


@pytest.mark.parametrize("count", [1, 4])
def test_its_gradients_are_added_once_however_a_batch_is_divided(count: int) -> None:
    library("accelerate")
    kept, batch = Keeping(towers(text=TEXT).text, seed=0)(0, CPU), pairs(8, text=TEXT)

    def gradients(parts: list[MicroBatch], given: Kept | None, keep: float) -> tuple[float, dict[str, torch.Tensor]]:
        model, ours = towers(text=TEXT), accelerator()
        with torch.no_grad():
            model.text.encoder.layers[0].mlp.fc1.weight.mul_(1.5)
        groups_of(model, Rates())
        _, distance = backward(ours, ours.prepare(model), parts, given, keep)
        return distance, {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}

    _, alone = gradients([batch], None, 0.0)
    distance, both = gradients(divided(batch, count), kept, 30.0)
    model = towers(text=TEXT)
    with torch.no_grad():
        model.text.encoder.layers[0].mlp.fc1.weight.mul_(1.5)
    model.requires_grad_(True)
    kept.distance(model.text).backward()
    assert distance == pytest.approx(kept.distance(model.text).item(), rel=1e-12)
    for name, parameter in model.named_parameters():
        expected = alone[name] + (0 if parameter.grad is None else 30 * parameter.grad)
        assert (both[name] - expected).abs().max() <= 1e-10, name
    assert (both["text.final_layer_norm.bias"] - alone["text.final_layer_norm.bias"]).abs().max() > 1e-4


def test_a_run_that_keeps_moves_general_prompts_less(start: Start, weights: Path, tmp_path: Path) -> None:
    options = ["--steps", "8", "--held-out", "0"]
    assert start(*options, out="free") == 0
    assert start(*options, "--keep", "100", out="kept") == 0
    before = load_full_clip(weights).text
    moved = {}
    for name in ("free", "kept"):
        after = load_full_clip(tmp_path / name / "clip.safetensors").text
        pairs_of_rows = [(rows_by_hand(before, text), rows_by_hand(after, text)) for text in PROMPTS]
        moved[name] = sum(((new - old).norm() / old.norm()).item() for old, new in pairs_of_rows) / len(PROMPTS)
    assert moved["kept"] < moved["free"] / 2
    entries = log_of(tmp_path / "kept")
    assert [entry["kept"] > 1e-9 for entry in entries if "loss" in entry] == [False, *[True] * 7]
    assert all("kept" not in entry for entry in log_of(tmp_path / "free"))
    assert entries[-1]["loss"] < entries[0]["loss"]
