"""The command ``encode``: a prompt into a safetensors file, with pictures; or many, by ``bulk.py``."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import bulk
from .loading import add_loading_options, encoders_of, readers_of
from .reading import add_reading_options, options_of, text_of

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from ..encoder.text_model import TextEncoder
    from ..weighting.encode import EncodedPrompt, ReadPrompt

NAME = "prompt"
"""First part of the files' names, unless another is given."""


def add_command(commands: Any) -> None:
    """Add it to the parser's commands."""
    from ..weighting.encode import EOS_ROWS
    from ..weighting.padding import PADDINGS
    from ..weighting.scheme_api import LAWS, MASK_METHODS, POOLED
    from ..weighting.schemes import SCHEMES

    encode = commands.add_parser("encode", help="encode into a safetensors file, with pictures; or a file of prompts")
    add_reading_options(encode, is_text_needed=False)
    encode.add_argument("--scheme", choices=list(SCHEMES), default="a1111", help="what a weight does (%(default)s)")
    encode.add_argument("--padding", choices=PADDINGS, default="attend", help="what the encoder sees of padding")
    encode.add_argument("--pooled", choices=POOLED, default="unweighted")
    encode.add_argument("--law", choices=LAWS, default="nested", help="masked_blend: how faded words share the result")
    encode.add_argument("--mask-method", choices=MASK_METHODS, default="attention", help="masked_blend: what absent is")
    encode.add_argument("--filler", default="+", help="masked_blend, method token: stands in for an absent token (+)")
    encode.add_argument(
        "--eos-rows", choices=EOS_ROWS, default="own", help="what stands in the EOS rows of long prompts"
    )
    encode.add_argument(
        "--weights", type=Path, metavar="FILE", help=".safetensors file with the text encoders of SD 1.x, 2.x or SDXL"
    )
    encode.add_argument("--seed", type=int, default=0, help="of the random weights used without --weights (0)")
    add_loading_options(encode)
    encode.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="folder for the files (out)")
    encode.add_argument("--name", help=f"first part of the files' names ({NAME})")
    encode.add_argument("--no-pictures", dest="pictures", action="store_false", help="write the tensors only")
    bulk.add_options(encode)
    encode.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    bulk.check_use(arguments)
    return _encode_one(arguments) if arguments.batch is None else bulk.run(arguments)


def _encode_one(arguments: argparse.Namespace) -> int:
    from ..encoder.tokenizer import default_tokenizer
    from ..web.export import write_conditioning
    from ..web.files import written_whole
    from ..weighting.encode import encode_prompt
    from ..weighting.towers import joined, read_for_towers
    from ..weighting.view import counted, token_table

    encoders, source = encoders_of(arguments)
    readers = readers_of(arguments, encoders)
    text = text_of(arguments)
    reads = read_for_towers(dict.fromkeys(readers, text), options_of(arguments), readers)
    first = next(iter(reads))
    print(token_table(reads[first]), flush=True)
    known = set(reads[first].issues)

    encoded: dict[str, EncodedPrompt] = {}
    masks: list[Tensor | None] = []
    for name, read in reads.items():
        encode = _watched(encoders[name], read, masks) if name == first else encoders[name]
        encoded[name] = encode_prompt(read, encode, default_tokenizer())
        for issue in encoded[name].read.issues:
            if issue not in known:
                print(f"  {issue.line}")
        known |= set(encoded[name].read.issues)
    print()
    for name, prompt in encoded.items():
        rows, dim = prompt.hidden.shape[1:]
        count = counted(prompt.num_encodings, "chunk")
        print(f"{name}: {prompt.read.options.scheme}, {count} encoded -> {rows} rows of {dim}, weights: {source}")

    drawn = _pictures(reads[first], encoders[first], masks[0]) if arguments.pictures else {}
    arguments.out.mkdir(parents=True, exist_ok=True)
    name = arguments.name or NAME
    files = {arguments.out / f"{name}-{part}.png": picture for part, picture in drawn.items()}
    tensors = arguments.out / f"{name}.safetensors"
    about = {"weights": source, "clip_skip": str(arguments.clip_skip)}
    with ExitStack() as stack:  # files are put there when all are written
        for path, picture in files.items():
            picture.save(stack.enter_context(written_whole(path)))
        write_conditioning(tensors, joined(encoded), text, options_of(arguments), about)
    print("wrote " + "\n      ".join(map(str, [tensors, *files])))
    return 0


def _watched(encoder: TextEncoder, read: ReadPrompt, masks: list[Tensor | None]) -> Any:
    """The encoder; the masks it is given go into a list, without that of the empty prompt."""

    def encode(ids: Any, mask: Any = None) -> Any:
        is_last_empty = len(ids) > len(read.chunks) and ids[-1] == read.layout.empty_ids()
        # the empty prompt, which some schemes encode last, is not part of the picture
        masks.append(mask[:-1] if mask is not None and is_last_empty else mask)
        return encoder(ids, mask)

    return encode


def _pictures(read: ReadPrompt, encoder: TextEncoder, mask: Any) -> dict[str, Image.Image]:
    """Tokens, masks and the encoder, by the end of their files' names."""
    from ..web import pictures
    from ..weighting.view import view

    return {
        "tokens": pictures.draw_tokens(view(read)),
        "masks": pictures.draw_encoding_masks(read, mask),
        "figure-masks": pictures.draw_figure_masks(),
        "architecture": pictures.draw_architecture(encoder.config),
    }
