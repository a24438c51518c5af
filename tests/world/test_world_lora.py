"""The LoRA of a small world: what it adds, what it is trained on, its file, and words that are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from weighted_clip.studio.commands.program import main
from weighted_clip.studio.world.evaluation import held_out_scenes, training_example
from weighted_clip.studio.world.lora import add_lora, check_mark, lora_tensors, marked
from weighted_clip.studio.world.model import PURPLE, load_world, noise_of

from ..libraries import library


def test_a_lora_adds_the_product_of_its_matrices_and_nothing_at_first() -> None:
    world, plain = load_world()[0], load_world()[0]
    x, time, text = noise_of([1]), torch.tensor([500.0]), plain.read(["a red circle"])
    expected = plain.network(x, time, text)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        add_lora(world, 4)
        assert torch.equal(world.network(x, time, text), expected)
        for name, parameter in world.named_parameters():
            if name.endswith((".up", ".down")):  # as they are in a file
                parameter.data = (parameter + torch.randn(parameter.shape) * name.endswith(".up")).half().float()
    tensors = lora_tensors(world)
    state = dict(plain.network.named_parameters())
    keys = {f"lora_unet_{name.replace('.', '_').removesuffix('_weight')}": name for name in state}
    changed = {key.partition(".")[0] for key in tensors}
    assert {keys[key].split(".")[-2] for key in changed} == {"to_q", "to_k", "to_v", "0", "proj", "2"}
    for key in changed:
        down, up = (tensors[f"{key}.lora_{end}.weight"].float() for end in ("down", "up"))
        assert tensors[f"{key}.alpha"] == down.shape[0] == 4
        state[keys[key]].data += up @ down
    merged = plain.network(x, time, text)
    torch.testing.assert_close(world.network(x, time, text), merged, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(merged, expected, atol=0.5)
    assert not any(parameter.requires_grad for name, parameter in world.named_parameters() if "parametriz" not in name)


@pytest.mark.parametrize("mark", ["purple", "cross"])
def test_pictures_have_the_mark_and_captions_do_not(mark: str) -> None:
    import random

    plain, captions = training_example(random.Random(1), 8)
    pictures, same = training_example(random.Random(1), 8, mark=mark)
    assert same == captions and not torch.equal(pictures, plain)
    (scene,) = held_out_scenes(1)
    assert all(mark in (thing.color, thing.kind) for thing in marked(scene, mark).things)
    assert all(one[2:] == two[2:] for one, two in zip(marked(scene, mark).things, scene.things, strict=True))


def test_other_marks_and_ranks_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"--mark must be one of: red, .*cross; got 'pink'"):
        check_mark("pink", ("circle", "cross"))
    for rank in ("-1", "33"):
        assert main(["world", "train", str(tmp_path / "x"), "--lora", rank]) != 0
        assert "the rank of a LoRA must be 1 to 32" in capsys.readouterr().err


def test_the_command_writes_the_file_that_hosts_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library("accelerate")
    monkeypatch.setattr("weighted_clip.studio.training.objectives.small_world.NUM_MEASURED", 2)
    words = ["--lora", "2", "--mark", "red", "--steps", "2", "--batch", "4", "--device", "cpu"]
    assert main(["world", "train", str(tmp_path), *words]) == 0
    tensors = load_file(tmp_path / "lora.safetensors")
    assert any(bool(value.any()) for key, value in tensors.items() if key.endswith("lora_up.weight"))
    with safe_open(tmp_path / "lora.safetensors", "pt") as file:
        assert file.metadata()["ss_output_name"] == "small-world-red"
        assert json.loads(file.metadata()["recipe"])["lora"] == 2


def test_the_packs_own_is_one_of_its_world() -> None:
    tensors = load_file(PURPLE)
    shapes = {key.replace(".", "_"): value.shape for key, value in load_world()[0].network.named_parameters()}
    for key, value in tensors.items():
        if key.endswith(".lora_up.weight"):
            name = key.removeprefix("lora_unet_").replace(".lora_up.weight", "_weight")
            assert value.shape[0] == shapes[name][0] and bool(value.isfinite().all())
