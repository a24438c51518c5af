"""Options that several commands share, for reading a prompt and choosing encoders, and the objects made from them.

Options of prompts are declared in ``weighting/options.py``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...encoder.option import Option
from .console import show, standard_input

if TYPE_CHECKING:
    import torch

    from ...encoder.models.text_model import TextEncoder
    from ...weighting.options import EncodeOptions
    from ...weighting.text.embeddings import Embeddings
    from ...weighting.towers import Reader


def add_value(
    parser: argparse._ActionsContainer, flag: str, default: float | str | type, metavar: str, help: str, **more: Any
) -> None:
    """Add a flag, or an argument without one, whose value has the type of its default; or a type, without a default."""
    kind, value = (default, None) if isinstance(default, type) else (type(default), default)
    parser.add_argument(flag, type=kind, default=value, metavar=metavar, help=help, **more)


def add_flag(parser: argparse._ActionsContainer, flag: str, help: str | None) -> None:
    """Add a flag without a value."""
    parser.add_argument(flag, action="store_true", help=help)


def add_arguments(
    parser: argparse._ActionsContainer, declared: Mapping[str, Option], *names: str, **defaults: Any
) -> None:
    """Add some declared options as flags, in this order; ``defaults`` replace those declared."""
    for name in names:
        declaration = declared[name]
        flag, help_line = f"--{name.replace('_', '-')}", declaration.help or None
        if isinstance(declaration.default, bool):
            add_flag(parser, flag, help_line)
        elif declaration.is_lines or isinstance(declaration.default, tuple):
            parser.add_argument(
                flag,
                action="append",
                default=[],
                choices=declaration.choices or None,
                metavar=declaration.metavar,
                help=help_line,
            )
        else:
            parser.add_argument(
                flag,
                type=declaration.kind,
                choices=declaration.choices or None,
                default=defaults.get(name, declaration.default),
                metavar=declaration.metavar,
                help=help_line,
            )


DTYPES = ("fp32", "fp16", "bf16")
"""Data types, as named in options."""


def add_loading_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for loading weights."""
    add_value(parser, "--clip-skip", 1, "N", "1 = last layer (1); SD 2.x, SDXL: from 2")
    add_arithmetic_options(parser)


def add_arithmetic_options(parser: argparse._ActionsContainer) -> None:
    """Add the options about data type and device."""
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (cpu)")


def add_embeddings_option(parser: argparse.ArgumentParser) -> None:
    """Add the option for folders of textual inversions."""
    parser.add_argument(
        "--embeddings", type=Path, action="append", metavar="DIR", help="folder of textual-inversion .safetensors files"
    )


def check_new_file(path: Path) -> None:
    """Raise ValueError unless an output file is a safetensors file that does not exist yet."""
    if path.suffix != ".safetensors":
        raise ValueError(f"{path}: the name of the file to write must end in .safetensors")
    if path.exists():
        raise ValueError(f"{path} is there already; choose another name")


def dtype_named(name: str) -> torch.dtype:
    """Data type with a name from `DTYPES`."""
    import torch

    return {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[name]


def device_of(arguments: argparse.Namespace) -> str:
    """Device chosen by the arguments."""
    import torch

    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"this PyTorch ({torch.__version__}) finds no CUDA device; use --device cpu")
    if arguments.device == "cpu" and not _has_arithmetic(dtype_named(arguments.dtype)):
        raise ValueError(
            f"this PyTorch ({torch.__version__}) has no {arguments.dtype} arithmetic on the CPU; use --dtype fp32"
        )
    return arguments.device


def _has_arithmetic(dtype: torch.dtype) -> bool:
    """Whether PyTorch can run an encoder in a type on the CPU; 2.1 cannot in fp16."""
    import torch
    from torch.nn import functional

    sample = torch.zeros(2, 2, dtype=dtype)
    try:
        functional.linear(functional.layer_norm(sample, (2,)), sample)
    except RuntimeError:
        return False
    return True


def embedding_folders(arguments: argparse.Namespace) -> tuple[Path, ...]:
    """Folders of textual inversions among the arguments."""
    for folder in arguments.embeddings or ():
        if not folder.is_dir():
            raise ValueError(f"--embeddings {folder}: there is no such folder")
    return tuple(arguments.embeddings or ())


def embeddings_of(arguments: argparse.Namespace, tower: str, dim: int) -> Embeddings | None:
    """Embeddings a prompt can name for a text tower; None without ``--embeddings``."""
    folders = embedding_folders(arguments)
    if not folders:
        return None
    from ...weighting.text.embedding_folder import EmbeddingFolder  # reading files takes torch

    return EmbeddingFolder(folders, tower, dim)


def encoders_of(arguments: argparse.Namespace) -> tuple[Mapping[str, TextEncoder], str]:
    """Encoders for ``--weights`` or ``--seed``."""
    from ...encoder.files.checkpoint import load_text_models, seeded_text_model
    from ...encoder.models.prefix import encoders_for
    from ...web.lab.native import RANDOM_WARNING

    dtype, device = dtype_named(arguments.dtype), device_of(arguments)
    if arguments.weights is None:
        show(f"*** {RANDOM_WARNING} ***\n", sys.stderr)
        models = {"clip_l": seeded_text_model(seed=arguments.seed, dtype=dtype).to(device)}
        source = f"random, seed {arguments.seed} (no meaning)"
    else:
        models, report = load_text_models(arguments.weights, dtype=dtype, device=device)
        show(f"{report}\n")
        source = f"{report.file} ({report.layout})"
    return encoders_for(models, arguments.clip_skip)[1], source


def readers_of(arguments: argparse.Namespace, encoders: Mapping[str, TextEncoder]) -> dict[str, Reader]:
    """Prompt readers for some encoders."""
    from ...weighting.towers import in_folders, native_readers

    configs = {name: encoder.config for name, encoder in encoders.items()}
    return native_readers(configs, in_folders(embedding_folders(arguments)))


def add_reading_options(parser: argparse.ArgumentParser, *, is_text_needed: bool = True) -> None:
    """Add the prompt, which some commands do not require, and the options for reading it."""
    count = None if is_text_needed else "?"
    parser.add_argument("text", nargs=count, help="the prompt; - reads it from standard input")
    add_options(
        parser, "syntax", "chunking", "comma_backtrack", "normalization", "cleaning", "comments", "strict", "quirks"
    )
    add_embeddings_option(parser)


def add_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add options for encoding as flags; prompts are in the WebUI's syntax and weighted as by the WebUI by default."""
    from ...weighting.options import OPTIONS

    add_arguments(parser, OPTIONS, *names, syntax="a1111", scheme="a1111")


def text_of(arguments: argparse.Namespace) -> str:
    """The prompt, from the command line or standard input."""
    return standard_input() if arguments.text == "-" else arguments.text


def options_of(arguments: argparse.Namespace) -> EncodeOptions:
    """Options among the arguments; repeated ones are joined, one per line."""
    from ...weighting.options import OPTIONS, EncodeOptions

    values: dict[str, Any] = {name: value for name, value in vars(arguments).items() if name in OPTIONS}
    lines: dict[str, Any] = {name: "\n".join(value) for name, value in values.items() if OPTIONS[name].is_lines}
    return EncodeOptions(**values | lines)
