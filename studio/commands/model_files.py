"""The commands ``convert-dvae``, ``convert-rudalle`` and ``stretch``: safetensors files made of other model files."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import Command
from .console import show
from .prompt_options import add_value, check_new_file


def _add_dvae_arguments(convert: argparse.ArgumentParser) -> None:
    add_value(convert, "encoder", Path, "ENCODER", "OpenAI's encoder.pkl")
    add_value(convert, "decoder", Path, "DECODER", "OpenAI's decoder.pkl")
    add_value(convert, "out", Path, "OUT", "the .safetensors file to write; never overwrites")


def _convert_dvae(arguments: argparse.Namespace) -> int:
    from ..dalle.published import read_published
    from ..dalle.weight_files import save_dvae

    out: Path = arguments.out
    check_new_file(out)
    model = read_published(arguments.encoder, arguments.decoder)
    metadata = {"converted_from": f"{arguments.encoder.name}, {arguments.decoder.name}"}
    save_dvae(model, out, metadata, may_replace=False)
    config = model.config
    show(f"written: {out}, {config.vocab_size:,} tokens, {config.downsampling} pixels along each side of one")
    return 0


CONVERT_DVAE = Command(
    "convert-dvae",
    "make a safetensors file of OpenAI's discrete VAE",
    _add_dvae_arguments,
    _convert_dvae,
    ("encoder.pkl decoder.pkl dvae.safetensors",),
    description="Make one .safetensors file of the two pickled files of OpenAI's discrete VAE. They are read "
    "without running any code in them; a file that holds anything but the parts of that model is refused. See "
    "docs/dalle.md.",
)


VARIANTS = ("rudalle-v2", "rudalle-v3")


def _add_rudalle_arguments(convert: argparse.ArgumentParser) -> None:
    add_value(convert, "weights", Path, "IN", "ru-DALL-E's pytorch_model*.bin")
    add_value(convert, "out", Path, "OUT", "the .safetensors file to write; never overwrites")
    convert.add_argument(
        "--variant",
        choices=VARIANTS,
        help="layout of the file: rudalle-v2 for Malevich_v2 and Emojich, rudalle-v3 for Malevich, Surrealist_XL and "
        "Kandinsky; needed if the masks are not in the file",
    )
    add_value(convert, "--heads", int, "N", "attention heads in each layer; needed for any other model")


def _convert_rudalle(arguments: argparse.Namespace) -> int:
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
    _add_rudalle_arguments,
    _convert_rudalle,
    ("pytorch_model.bin rudalle.safetensors",),
    description="Make a .safetensors file of ru-DALL-E's transformer, to draw image tokens from. Only tensors are "
    "read of the pickled file. Its tokenizer and what makes pictures of tokens are not part of it. See "
    "docs/dalle.md.",
)


def _add_stretch_arguments(stretch: argparse.ArgumentParser) -> None:
    add_value(stretch, "weights", Path, "FILE", ".safetensors file of a CLIP text encoder or of a whole CLIP")
    add_value(
        stretch,
        "--positions",
        248,
        "N",
        "new number of positions (%(default)s, as Long-CLIP); from 77: 134, 191, 248, 305, ...: 20 + 57 k",
    )
    stretch.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="output .safetensors file, which must not exist yet (FILE-N.safetensors beside FILE)",
    )


def _stretch(arguments: argparse.Namespace) -> int:
    from ...encoder.files.layouts import KEPT_POSITIONS
    from ...encoder.files.stretching import stretched_file
    from ...encoder.files.tensor_file import open_tensor_file
    from ..output.files import written_whole
    from ..output.rewriting import rewrite

    weights: Path = arguments.weights
    if weights.is_dir() or weights.suffix == ".json":
        raise ValueError(f"{weights}: name one .safetensors file, and not a folder or a list of files")
    positions: int = arguments.positions
    out: Path = arguments.out or weights.with_name(f"{weights.stem}-{positions}.safetensors")
    check_new_file(out)
    with open_tensor_file(weights) as file:
        tower, old, tensors = stretched_file(file, positions)
    rule = (
        f"{KEPT_POSITIONS} positions kept, {(positions - KEPT_POSITIONS) // (old - KEPT_POSITIONS)} made of each other"
    )
    metadata = {
        "stretched_from": weights.name.encode(errors="backslashreplace").decode(),
        "stretched_by": "weighted-clip stretch",
        "stretched": f"{old} to {positions}, by Long-CLIP's rule: {rule}",
    }
    with written_whole(out, may_replace=False) as place:
        rewrite(weights, place, tensors, metadata)
    show(f"written: {out}, {positions} positions in place of {old}, so {positions - 2} tokens in each chunk; {rule}")
    if tower == "clip_h":
        show("ComfyUI 0.29 loads a CLIP-H with 77 positions only; our native encoder loads this one")
    return 0


STRETCH = Command(
    "stretch",
    "give a CLIP more positions, by Long-CLIP's rule",
    _add_stretch_arguments,
    _stretch,
    ("clip.safetensors", "clip.safetensors --positions 305 --out long.safetensors"),
    description="Write a text encoder or a whole CLIP with a longer position table, stretched as Long-CLIP does: "
    "the first 20 positions are kept, and several are made of each of the others. All other tensors stay as they "
    "are. It is a beginning for training on long captions. See docs/long-prompts.md.",
)
