"""Options of ``dalle train-vae`` and ``dalle train``: where they arrive, and the recipes' values in their help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import Any

import pytest
from weighted_clip.studio.commands.program import make_parser
from weighted_clip.studio.commands.training.dalle_training import (
    PRIOR_FLAGS,
    VAE_FLAGS,
    Flag,
    prior_options,
    vae_options,
)
from weighted_clip.studio.dalle.config import DVAEConfig
from weighted_clip.studio.training.objectives.dalle_options import STEP_SIZE, DVAEOptions, PriorOptions, Schedule

COMMANDS: dict[str, tuple[list[str], Callable[..., Any], tuple[Flag, ...]]] = {
    "train-vae": (["data", "--out", "out"], vae_options, VAE_FLAGS),
    "train": (["data", "--out", "out", "--dvae", "file"], prior_options, PRIOR_FLAGS),
}
EACH = [(name, flag) for name, (_, _, flags) in COMMANDS.items() for flag in flags]


def options_of(name: str, *given: str) -> Any:
    """Options of a run with some arguments."""
    usual, options, _ = COMMANDS[name]
    return options(make_parser().parse_args(["dalle", name, *usual, *given]))


def test_every_option_arrives_in_its_field() -> None:
    vae = "--steps 11 --size 32 --batch 3 --accumulate 5 --ema 0.5 --clip 7 --tokens 12 --width 16 --rate 0.01"
    more = "--kl-weight 2 --kl-steps 17 --temperature 0.25 --temperature-steps 13"
    assert options_of("train-vae", *vae.split(), *more.split()) == (
        DVAEOptions(
            config=DVAEConfig(vocab_size=12, hidden_dim=16),
            size=32,
            batch=3,
            accumulate=5,
            steps=11,
            ema=0.5,
            clip=7.0,
            step_size=replace(STEP_SIZE, first=0.01),
            kl_weight=Schedule(0.0, 2.0, 17),
            temperature=Schedule(1.0, 0.25, 13),
        )
    )
    prior = "--steps 11 --size 32 --batch 3 --accumulate 5 --ema 0.5 --clip 7 --width 48 --heads 6 --layers 2"
    more = "--text-length 9 --pieces 600 --bpe-dropout 0.3 --rate 0.01 --warmup 4 --halvings 2 --text-weight 0.75"
    assert options_of("train", *prior.split(), *more.split(), "--ignore-padding") == (
        PriorOptions(
            hidden_dim=48,
            num_heads=6,
            num_layers=2,
            text_length=9,
            pieces=600,
            bpe_dropout=0.3,
            size=32,
            batch=3,
            accumulate=5,
            steps=11,
            highest_rate=0.01,
            warmup=4,
            halvings=2,
            clip=7.0,
            ema=0.5,
            text_weight=0.75,
            counts_padding=False,
        )
    )


@pytest.mark.parametrize(("name", "flag"), EACH, ids=[f"{name} --{flag.name}" for name, flag in EACH])
def test_help_shows_what_a_run_takes(name: str, flag: Flag, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        make_parser().parse_args(["dalle", name, "--help"])
    text = " ".join(capsys.readouterr().out.partition("options:")[2].split())
    shown = text.partition(f"--{flag.name} {flag.metavar} ")[2].partition(" --")[0]
    told = shown.rpartition(" (")[2].removesuffix(")").split("; ")
    for recipe, value in zip(("paper", "small"), told * 2, strict=False):
        options = options_of(name, "--recipe", recipe)
        share = value.removesuffix("% of the run")
        if share != value:
            assert attrgetter(flag.path)(options) == pytest.approx(float(share) / 100 * options.steps)
        else:
            assert attrgetter(flag.path)(options) == (
                None if value == "none" else pytest.approx(float(value.replace(",", "")))
            )
