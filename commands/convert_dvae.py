"""The command ``convert-dvae``: OpenAI's pickled discrete VAE as one safetensors file."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import Command
from .console import show
from .loading import check_new_file


def _add_arguments(convert: argparse.ArgumentParser) -> None:
    convert.add_argument("encoder", type=Path, metavar="ENCODER", help="OpenAI's encoder.pkl")
    convert.add_argument("decoder", type=Path, metavar="DECODER", help="OpenAI's decoder.pkl")
    convert.add_argument("out", type=Path, metavar="OUT", help="the .safetensors file to write; never overwrites")


def _run(arguments: argparse.Namespace) -> int:
    from ..dalle.files import save_dvae
    from ..dalle.published import read_published

    out: Path = arguments.out
    check_new_file(out)
    model = read_published(arguments.encoder, arguments.decoder)
    about = {"converted_from": f"{arguments.encoder.name}, {arguments.decoder.name}"}
    save_dvae(model, out, about, may_replace=False)
    config = model.config
    show(f"written: {out}, {config.vocab_size:,} tokens, {config.downsampling} pixels along each side of one")
    return 0


CONVERT_DVAE = Command(
    "convert-dvae",
    "make a safetensors file of OpenAI's discrete VAE",
    _add_arguments,
    _run,
    ("encoder.pkl decoder.pkl dvae.safetensors",),
    description="Make one .safetensors file of the two pickled files of OpenAI's discrete VAE. They are read "
    "without running any code in them; a file that holds anything but the parts of that model is refused. See "
    "docs/dalle.md.",
)
