"""Training of a new CLIP, of a new text tower with learned or rotary positions, and of one made longer."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from weighted_clip.encoder.files.checkpoint import clip_config, load_text_models
from weighted_clip.encoder.files.sizes import configs_of
from weighted_clip.encoder.models.clip import load_full_clip
from weighted_clip.studio.commands.program import main
from weighted_clip.studio.training.finetuning.new_towers import new_clip, new_text_model
from weighted_clip.studio.training.options import TrainOptions
from weighted_clip.weighting.encoders import Encoders

from ..encoder.test_open_clip import seeded_model
from ..encoder.test_sizes import TINY
from ..libraries import library
from .models import TEXT, VISION
from .objectives import stopping_after
from .runs import Start, log_of, run_anew, tensors_of, write_pairs

NEW = ("--new-text", "--steps", "3", "--held-out", "4")


def test_first_weights_are_spread_as_open_clips(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    theirs = seeded_model("ViT-B-32", 2)
    save_file({key: one.contiguous() for key, one in theirs.state_dict().items()}, tmp_path / "theirs.safetensors")
    [reference] = load_text_models(tmp_path / "theirs.safetensors")[0].values()
    ours = new_text_model(reference.config, seed=0)
    names = [name for name, _ in ours.named_parameters()]
    assert [name for name, _ in reference.named_parameters()] == names
    for (name, one), other in zip(ours.named_parameters(), reference.parameters(), strict=True):
        if name.endswith("weight") and "layer_norm" not in name:  # the others are not left as first chosen there
            assert one.std().item() == pytest.approx(other.std().item(), rel=0.1, abs=1e-9), name
    first, again, other = (new_text_model(TEXT, seed) for seed in (0, 0, 1))
    assert all(one.equal(two) for one, two in zip(first.parameters(), again.parameters(), strict=True))
    assert not first.text_projection.weight.equal(other.text_projection.weight)


@pytest.mark.parametrize("is_quick", [True, False])
def test_first_weights_of_a_whole_clip_are_spread_as_open_clips(tmp_path: Path, *, is_quick: bool) -> None:
    from safetensors.torch import save_file

    open_clip = library("open_clip", "3.0")
    sizes = {
        "embed_dim": 192,
        "quick_gelu": is_quick,
        "vision_cfg": {"image_size": 64, "patch_size": 8, "width": 256, "layers": 3},
        "text_cfg": {"width": 320, "heads": 5, "layers": 2},
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs = open_clip.model.CLIP(**sizes)
    save_file({key: one.contiguous() for key, one in theirs.state_dict().items()}, tmp_path / "theirs.safetensors")
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": sizes}))
    reference = load_full_clip(tmp_path / "theirs.safetensors")
    size = str(tmp_path / "open_clip_config.json")
    ours = new_clip(size, TrainOptions())
    assert ours.logit_scale == pytest.approx(reference.logit_scale, rel=1e-6)
    for half in ("text", "vision"):
        mine, other = getattr(ours, half), getattr(reference, half)
        assert mine.config == other.config
        for (name, one), their in zip(mine.named_parameters(), other.parameters(), strict=True):
            assert one.shape == their.shape
            spread = 5 / one.numel() ** 0.5
            assert one.std().item() == pytest.approx(their.std().item(), rel=0.02 + spread, abs=1e-9), name
            assert one.mean().item() == pytest.approx(their.mean().item(), abs=spread * (0.02 + their.std().item())), (
                name
            )
            kurtosis = [((some - some.mean()) / some.std()).pow(4).mean().item() for some in (one, their)]
            if one.numel() > 2000:  # a uniform one has 1.8, a normal one 3
                assert kurtosis[0] == pytest.approx(kurtosis[1], abs=0.4), name
    again, other = (new_clip(size, TrainOptions(seed=seed)) for seed in (0, 1))
    for half in ("text", "vision"):
        one, two, three = (list(getattr(clip, half).parameters()) for clip in (ours, again, other))
        assert all(map(torch.equal, one, two))
        assert not any(first.equal(second) for first, second in zip(one, three, strict=True) if first.std() > 0)


def begun(data: Path, out: Path, *options: str) -> int:
    """Train a new CLIP."""
    usual = ["--out", out, "--device", "cpu", "--batch", "8", "--accumulate", "1", "--rate", "1e-3"]
    return run_anew("train", data, *usual, *options)


@pytest.fixture
def size(tmp_path: Path) -> str:
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    return str(tmp_path / "tiny.json")


KINDS = {"contrastive": ["--towers", "both", "--ema", "0.9"], "mlm": ["--objective", "mlm"]}


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_a_new_clip_is_trained_and_goes_on_to_the_same_bits(
    pairs: Path, tmp_path: Path, size: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*options, "--new", size, "--steps", "4", "--held-out", "4"]
    assert begun(pairs, tmp_path / "a", *options) == 0
    told = capsys.readouterr().out
    assert told.startswith(
        "random weights, tiny.json: text encoder of 2 layers, 64 wide, 77 positions; image encoder of 2 layers, 64 "
        "wide, 48 pixels in patches of 16; 1 and 1 heads, activations gelu and gelu\n"
    )
    assert "random weights, tiny.json" in (tmp_path / "a" / "report.html").read_text(encoding="utf-8")
    with stopping_after(2):
        assert begun(pairs, tmp_path / "b", *options) == 130
    assert begun(pairs, tmp_path / "b", *options, "--resume", "--new", os.path.relpath(size)) == 0
    for name in ("text_encoder.safetensors", "clip.safetensors"):
        one, two = (tensors_of(tmp_path / run / name) for run in "ab")
        assert all(map(torch.equal, one.values(), two.values()))
        with safe_open(tmp_path / "a" / name, framework="pt") as file:
            assert file.metadata()["trained_from"] == "random weights, tiny.json"
    clip = load_full_clip(tmp_path / "a" / "clip.safetensors")
    assert (clip.text.config, clip.vision.config) == configs_of(size)
    capsys.readouterr()
    Path(size).write_text(json.dumps({**TINY, "quick_gelu": True}))
    assert begun(pairs, tmp_path / "b", *options, "--resume") == 1
    assert "is of a run with other sizes (" in capsys.readouterr().err


def test_a_new_clip_can_have_other_positions_and_folders(pairs: Path, tmp_path: Path, size: str) -> None:
    options = ["--new", size, "--towers", "both", "--steps", "1", "--held-out", "0"]
    more = ["--context-length", "99", "--activation", "quick_gelu", "--write-for", "open_clip"]
    assert begun(pairs, tmp_path / "a", *options, *more) == 0
    clip = load_full_clip(tmp_path / "a" / "open_clip")
    assert (clip.text.config.context_length, clip.text.config.activation) == (99, "quick_gelu")
    assert begun(pairs, tmp_path / "b", *options, "--positions", "rotary") == 0
    assert load_full_clip(tmp_path / "b" / "clip.safetensors").text.config.positions == "rotary"


def test_options_that_do_not_go_with_a_new_clip_are_refused_in_words(
    pairs: Path, weights: Path, tmp_path: Path, size: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, new = tmp_path / "out", ["--new", size, "--steps", "1"]
    huge = {"width": 8192, "layers": 256}
    (tmp_path / "huge.json").write_text(json.dumps({**TINY, "vision_cfg": {**TINY["vision_cfg"], **huge}}))
    for options, why in (
        (new, "--new has random weights in the image encoder, too: add --towers both"),
        ([*new, "--towers", "both", "--merge", "0.5"], "leaves nothing of the old text encoder: leave out --merge"),
        ([*new, "--towers", "both", "--keep", "1", "--new-text"], "leave out --keep, --new-text"),
        (["--new", "ViT-C-3", "--towers", "both"], "ViT-C-3: there is no such file, and no model of this name; models"),
        (["--new", str(tmp_path / "huge.json"), "--towers", "both"], "parameters, at most 4,000,000,000 are possible"),
    ):
        assert begun(pairs, out, *options) == 1
        told = capsys.readouterr().err
        assert why in told
        assert len(told.strip().splitlines()) == 1
    for options in ([], [*new, "--weights", str(weights)]):
        with pytest.raises(SystemExit):
            begun(pairs, out, *options)
        told = capsys.readouterr().err
        assert "one of the arguments --weights --new is required" in told or "not allowed with argument" in told
    assert not out.exists()


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_new_tower_with_rotary_positions_is_trained_and_goes_on(
    start: Start, weights: Path, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], precision: str
) -> None:
    more = ("--precision", precision, "--checkpointing", "--ema", "0.5")
    assert start(*NEW, "--positions", "rotary", "--context-length", "100", *more) == 0
    told = capsys.readouterr().out
    assert told.count("ComfyUI, A1111 and Forge refuse such an encoder, only this program reads it") == 2
    assert " for a host" not in told
    path = tmp_path / "out" / "clip.safetensors"
    clip, old = load_full_clip(path), load_full_clip(weights)
    assert clip.text.config == replace(TEXT, positions="rotary", context_length=100)
    assert all(map(torch.equal, clip.vision.parameters(), old.vision.parameters()))
    with safe_open(tmp_path / "out" / "text_encoder.safetensors", framework="pt") as file:
        about = file.metadata()
    assert (about["positions"], about["rotary"]) == ("rotary", "half-split pairs as Llama's, base 10000")
    assert json.loads(about["options"])["new_text"] is True
    table = "text_model.embeddings.position_embedding.weight"
    assert tensors_of(tmp_path / "out" / "text_encoder.safetensors")[table].shape == (100, 0)
    scales = [entry["scale"] for entry in log_of(tmp_path / "out") if "scale" in entry]
    assert scales[0] == pytest.approx(1 / 0.07, rel=0.01)
    # goes on as what it is, without being asked
    assert start("--steps", "1", "--held-out", "4", "--weights", str(path), out="on") == 0
    assert load_full_clip(tmp_path / "on" / "clip.safetensors").text.config.positions == "rotary"


def test_a_new_tower_has_learned_positions_if_nothing_else_is_asked_for(start: Start, tmp_path: Path) -> None:
    assert start(*NEW) == 0
    with safe_open(tmp_path / "out" / "text_encoder.safetensors", framework="pt") as file:
        assert not {"positions", "rotary"} & set(file.metadata())
    assert load_full_clip(tmp_path / "out" / "clip.safetensors").text.config == TEXT


def test_released_weights_are_never_read_with_other_positions(
    start: Start, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start("--positions", "rotary") != 0
    told = capsys.readouterr().err
    assert f"--positions rotary: the text encoder of {weights} was trained with learned positions" in told
    assert "add --new-text" in told
    assert not (tmp_path / "out").exists()
    assert start(*NEW, "--positions", "rotary") == 0
    rotary = ("--weights", str(tmp_path / "out" / "clip.safetensors"))
    capsys.readouterr()
    assert start(*rotary, "--positions", "learned", out="other") != 0
    assert "was trained with rotary positions, and its weights mean nothing with others" in capsys.readouterr().err
    assert start(*rotary, "--lora", "4", out="other") != 0
    assert "no host loads: --lora and --word are for the text encoder of a host" in capsys.readouterr().err


def test_the_command_encode_reads_a_rotary_tower(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(*NEW, "--positions", "rotary") == 0
    path = tmp_path / "out" / "text_encoder.safetensors"
    command = ["encode", "a (red:1.3) cat", "--weights", str(path), "--out", str(tmp_path / "cat")]
    assert main(command) == 0
    assert tensors_of(tmp_path / "cat" / "prompt.safetensors")["hidden"].shape == (1, 77, TEXT.hidden_dim)


WORDS = "small red cat sits on a mat "
LAST_WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]


@pytest.fixture
def long_pairs(tmp_path: Path) -> Path:
    """Captions of 142 tokens that differ only in the last one, far beyond the 77th position."""
    folder = write_pairs(tmp_path / "long", 8)
    for path, word in zip(sorted(folder.glob("*.txt")), LAST_WORDS, strict=True):
        path.write_text(f"{WORDS * 20} number {word}\n", "utf-8")
    return folder


def test_it_is_trained_on_to_the_last_position(
    start: Start, tmp_path: Path, weights: Path, long_pairs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = tmp_path / "long.safetensors"
    assert main(["stretch", str(weights), "--out", str(longer)]) == 0
    config = clip_config(replace(TEXT, context_length=248), VISION)
    longer.with_name("config.json").write_text(json.dumps(config), encoding="utf-8")
    capsys.readouterr()
    usual = ("--steps", "3", "--held-out", "0", "--accumulate", "1", "--weight-decay", "0")
    assert start(*usual, "--weights", str(longer), data=long_pairs) == 0
    assert "captions have more than" not in capsys.readouterr().out
    before, after = (load_full_clip(path).text for path in (longer, tmp_path / "out" / "clip.safetensors"))
    assert after.config.context_length == 248
    moved = (after.embeddings.position_embedding.weight - before.embeddings.position_embedding.weight).abs().amax(1)
    assert bool((moved[:144] > 1e-4).all())  # 142 tokens, BOS and EOS
    assert bool((moved[144:] == 0).all())
    (model,) = load_text_models(tmp_path / "out" / "text_encoder.safetensors")[0].values()
    assert torch.equal(model.embeddings.position_embedding.weight, after.embeddings.position_embedding.weight)
    hidden, _ = Encoders.load(tmp_path / "out" / "text_encoder.safetensors")(WORDS * 20)
    assert hidden.shape == (1, 248, TEXT.hidden_dim)


def test_without_it_the_ends_of_long_captions_are_not_read(
    start: Start, long_pairs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start("--steps", "1", "--held-out", "0", "--accumulate", "1", data=long_pairs) == 0
    assert "8 captions have more than 75 tokens, and are read up to there" in capsys.readouterr().out
