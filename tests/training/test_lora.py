"""LoRAs: keys as ComfyUI has them, and the same encoder as with the updates merged."""

from __future__ import annotations

import pytest
import torch
from weighted_clip.encoder.files.checkpoint import hugging_face_tensors, seeded_text_model
from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.encoder.models.text_model import TextModel
from weighted_clip.studio.training.finetuning.lora import LORA_NAMES, add_lora, lora_tensors, merged, model_of
from weighted_clip.studio.training.optimizer import Rates, groups_of

from ..libraries import library
from .models import TEXT, towers

IDS = torch.tensor([[49406, 320, 736, 2368, 49407]])


@pytest.fixture(autouse=True)
def peft() -> None:
    library("peft")


def with_lora(config: TextConfig = TEXT, rank: int = 3) -> TextModel:
    """A tower whose updates are not 0 any more."""
    model = seeded_text_model(config)
    add_lora(model, rank, seed=0)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if ".lora_B." in name:
            parameter.data.normal_(0, 0.05, generator=generator)
    return model


def test_updates_are_nothing_at_first_and_the_same_for_the_same_seed() -> None:
    plain, one, same, other = (seeded_text_model(TEXT) for _ in range(4))
    for model, seed in ((one, 0), (same, 0), (other, 1)):
        add_lora(model, 4, seed)
    with torch.no_grad():
        assert torch.equal(plain(IDS).hidden, one(IDS).hidden)
    name = "encoder.layers.1.mlp.fc2.lora_A.default.weight"
    assert torch.equal(one.get_parameter(name), same.get_parameter(name))
    assert not torch.equal(one.get_parameter(name), other.get_parameter(name))


def test_merged_weights_compute_what_the_updates_do() -> None:
    model = with_lora()
    plain = seeded_text_model(TEXT)
    before = plain(IDS).hidden
    parameters = merged(model)
    assert parameters.keys() == dict(plain.named_parameters()).keys()
    plain.load_state_dict(parameters)
    assert (plain(IDS).hidden - model(IDS).hidden).abs().max() < 1e-5
    assert (before - model(IDS).hidden).abs().max() > 1e-2
    assert all(torch.equal(merged(plain)[name], parameter) for name, parameter in plain.named_parameters())


@pytest.mark.parametrize("model", LORA_NAMES)
def test_a_file_holds_the_updates_by_the_rule_of_hosts(model: str) -> None:
    """W + alpha / rank * up @ down, under kohya's names: written out here, as ComfyUI 0.29's ``lora.py`` does."""
    tower = with_lora(rank=5)
    tensors = lora_tensors(tower, model)
    plain = hugging_face_tensors(seeded_text_model(TEXT))
    expected = hugging_face_tensors(tower, merged(tower))
    parts = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj", "mlp.fc1", "mlp.fc2"}
    seen = set()
    for layer in range(TEXT.num_layers):
        for part in parts:
            key = f"{LORA_NAMES[model]}_text_model_encoder_layers_{layer}_{part.replace('.', '_')}"
            names = [f"{key}.{name}" for name in ("lora_up.weight", "lora_down.weight", "alpha")]
            up, down, alpha = (tensors[name] for name in names)
            assert down.shape[0] == up.shape[1] == 5
            weight = f"text_model.encoder.layers.{layer}.{part}.weight"
            assert (plain[weight] + alpha / 5 * up @ down - expected[weight]).abs().max() < 1e-6
            seen |= {*names}
    assert seen == tensors.keys()
    assert model_of(768) == "sd1"


def test_only_the_updates_and_the_scale_are_trained() -> None:
    model = towers(torch.float32)
    model.vision = None
    add_lora(model.text, 2, seed=0)
    groups_of(model, Rates())
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert len(trained) == 2 * 6 * TEXT.num_layers + 1
    assert all(".lora_" in name or name == "loss.logit_scale" for name in trained)
    with pytest.raises(ValueError, match="nothing is left to train"):
        groups_of(model, Rates(by_part=(("layers", 0.0),)))


def test_a_rank_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="rank of a LoRA must be at least 1, got 0"):
        add_lora(seeded_text_model(TEXT), 0, seed=0)
