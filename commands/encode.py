"""The command ``encode``: a prompt into a safetensors file, with pictures; or many prompts, by ``bulk.py``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from . import Command, bulk
from .console import show
from .loading import add_loading_options, encoders_of, readers_of
from .reading import add_options, add_reading_options, options_of, text_of

if TYPE_CHECKING:
    from PIL import Image

    from ..encoder.text_model import TextEncoder
    from ..weighting.plan import Variant
    from ..weighting.reading import ReadPrompt

NAME = "prompt"
"""Default beginning of the files' names."""


def _add_arguments(encode: argparse.ArgumentParser) -> None:
    add_reading_options(encode, is_text_needed=False)
    add_options(encode, "scheme", "padding", "pooled", "law", "mask_method", "filler", "finest_step")
    add_options(encode, "bind", "bind_rest", "bind_strength", "bind_hide", "bind_words", "eos_rows")
    encode.add_argument(
        "--weights", type=Path, metavar="FILE", help=".safetensors file with the text encoders of SD 1.x, 2.x or SDXL"
    )
    encode.add_argument("--seed", type=int, default=0, help="of the random weights used without --weights (0)")
    add_loading_options(encode)
    encode.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="folder for the files (out)")
    encode.add_argument("--name", help=f"first part of the files' names ({NAME})")
    pictures = encode.add_mutually_exclusive_group()
    pictures.add_argument("--no-pictures", dest="pictures", action="store_false", help="write the tensors only")
    pictures.add_argument(
        "--figures", action="store_true", help="also draw the encoder, and the masks of “a red cat” as in the lecture"
    )
    bulk.add_options(encode)


def _run(arguments: argparse.Namespace) -> int:
    bulk.check_use(arguments)
    return _encode_one(arguments) if arguments.batch is None else bulk.run(arguments)


def _encode_one(arguments: argparse.Namespace) -> int:
    from ..encoder.encoding import Encoding
    from ..output.export import write_conditioning
    from ..output.files import written_whole
    from ..weighting.encoders import Encoders
    from ..weighting.schemes.negpip import check_without_signs
    from ..weighting.view import bound_text, counted, token_table

    text = text_of(arguments)
    towers, source = encoders_of(arguments)
    readers = readers_of(arguments, towers)
    prepared = Encoders(readers, towers).prepare([text], options_of(arguments))
    first = next(iter(readers))
    read = prepared.reads[first][0]
    show(token_table(read), flush=True)

    check_without_signs((reads[0] for reads in prepared.reads.values()), "a file")
    encoded = prepared.run()[0]
    found = [issue for prompt in encoded.prompts.values() for issue in prompt.read.issues]
    for issue in dict.fromkeys(found):
        if issue not in read.issues:
            show(f"  {issue.line}")
    show()
    for name, prompt in encoded.prompts.items():
        rows, dim = prompt.hidden.shape[1:]
        count = counted(prompt.num_encodings, "encoding")
        told = ", ".join(filter(None, (prompt.read.options.scheme, bound_text(prompt.read), count)))
        show(f"{name}: {told} -> {rows} rows of {dim}, weights: {source}")

    drawn = _pictures(read, encoded.prompts[first].variants()) if arguments.pictures else {}
    if arguments.figures:
        drawn |= _figures(towers[first])
    arguments.out.mkdir(parents=True, exist_ok=True)
    name = arguments.name or NAME
    files = {arguments.out / f"{name}-{part}.png": picture for part, picture in drawn.items()}
    tensors = arguments.out / f"{name}.safetensors"
    about = {"weights": source, "clip_skip": str(arguments.clip_skip)}
    with ExitStack() as stack:  # files are moved to their destinations when all are written
        for path, picture in files.items():
            picture.save(stack.enter_context(written_whole(path)))
        write_conditioning(tensors, Encoding(encoded.hidden, encoded.pooled), text, options_of(arguments), about)
    show("wrote " + "\n      ".join(map(str, [tensors, *files])))
    return 0


def _pictures(read: ReadPrompt, variants: Iterable[Variant]) -> dict[str, Image.Image]:
    """Pictures of the prompt's tokens and masks, by suffix of their file names."""
    from ..web import pictures
    from ..weighting.view import view

    return {
        "tokens": pictures.draw_tokens(view(read)),
        "masks": pictures.draw_encoding_masks(read, variants),
    }


def _figures(encoder: TextEncoder) -> dict[str, Image.Image]:
    """The lecture's figures, which depend on no prompt, by suffix of their file names."""
    from ..web import pictures

    return {
        "figure-masks": pictures.draw_figure_masks(),
        "architecture": pictures.draw_architecture(encoder.config),
    }


ENCODE = Command(
    "encode",
    "encode into a safetensors file, with pictures; or a file of prompts",
    _add_arguments,
    _run,
    (
        '"a (red:1.4) cat" --scheme masked_blend --weights sd15.safetensors',
        '"a red cat and a blue dog" --bind "red cat" --bind "blue dog" --weights sd15.safetensors',
        "--batch prompts.txt --weights sdxl.safetensors --save-dtype fp16 --out encoded",
    ),
)
