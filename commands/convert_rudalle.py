"""The command ``convert-rudalle``: ru-DALL-E's pickled weights as a safetensors file."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import Command
from .console import show
from .loading import check_new_file

VARIANTS = ("rudalle-v2", "rudalle-v3")


def _add_arguments(convert: argparse.ArgumentParser) -> None:
    convert.add_argument("weights", type=Path, metavar="IN", help="ru-DALL-E's pytorch_model*.bin")
    convert.add_argument("out", type=Path, metavar="OUT", help="the .safetensors file to write; never overwrites")
    convert.add_argument(
        "--variant",
        choices=VARIANTS,
        help="whose layout it has: rudalle-v2 for Malevich_v2 and Emojich, rudalle-v3 for Malevich, Surrealist_XL and "
        "Kandinsky; needed if the masks are not in the file",
    )
    convert.add_argument(
        "--heads", type=int, metavar="N", help="attention heads in each layer; needed if it is none of these models"
    )


def _run(arguments: argparse.Namespace) -> int:
    from ..dalle.prior_file import save_prior
    from ..dalle.published import read_rudalle

    out: Path = arguments.out
    check_new_file(out)
    prior = read_rudalle(arguments.weights, arguments.variant, arguments.heads)
    save_prior(prior, out, {"converted_from": arguments.weights.name}, may_replace=False)
    config = prior.config
    count = sum(parameter.numel() for parameter in prior.parameters())
    show(
        f"written: {out}, {config.variant}, {count / 1e9:.2f} billion parameters, {config.num_layers} layers, "
        f"{config.text_length} positions of text, {config.rows} x {config.columns} image tokens"
    )
    return 0


CONVERT_RUDALLE = Command(
    "convert-rudalle",
    "make a safetensors file of ru-DALL-E's transformer",
    _add_arguments,
    _run,
    ("pytorch_model.bin rudalle.safetensors",),
    description="Make a .safetensors file of ru-DALL-E's transformer, to draw image tokens from. Only tensors are "
    "read of the pickled file. Its tokenizer and what makes pictures of tokens are not part of it. See "
    "docs/rudalle.md.",
)
