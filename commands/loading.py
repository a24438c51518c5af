"""Options of the commands that load an encoder, and the loading itself."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .console import show

if TYPE_CHECKING:
    import torch

    from ..encoder.text_model import TextEncoder
    from ..weighting.embeddings import Embeddings
    from ..weighting.towers import Reader

DTYPES = ("fp32", "fp16", "bf16")
"""Data types, as named in options."""


def add_loading_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for loading weights."""
    parser.add_argument(
        "--clip-skip", type=int, default=1, metavar="N", help="1 = last layer (1); SD 2.x, SDXL: from 2"
    )
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

    some = torch.zeros(2, 2, dtype=dtype)
    try:
        functional.linear(functional.layer_norm(some, (2,)), some)
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
    from ..weighting.embedding_folder import EmbeddingFolder  # reading files takes torch

    return EmbeddingFolder(folders, tower, dim)


def encoders_of(arguments: argparse.Namespace, *, is_quiet: bool = False) -> tuple[Mapping[str, TextEncoder], str]:
    """Encoders for ``--weights`` or ``--seed``."""
    from ..encoder.files.checkpoint import load_text_models, seeded_text_model
    from ..encoder.prefix import encoders_for
    from ..web.lab.native import RANDOM_WARNING

    dtype, device = dtype_named(arguments.dtype), device_of(arguments)
    if arguments.weights is None:
        if not is_quiet:
            show(f"*** {RANDOM_WARNING} ***\n", sys.stderr)
        models = {"clip_l": seeded_text_model(seed=arguments.seed, dtype=dtype).to(device)}
        source = f"random, seed {arguments.seed} (no meaning)"
    else:
        models, report = load_text_models(arguments.weights, dtype=dtype, device=device)
        if not is_quiet:
            show(f"{report}\n")
        source = f"{report.file} ({report.layout})"
    return encoders_for(models, arguments.clip_skip)[1], source


def readers_of(arguments: argparse.Namespace, encoders: Mapping[str, TextEncoder]) -> dict[str, Reader]:
    """Prompt readers for some encoders."""
    from ..weighting.towers import in_folders, native_readers

    configs = {name: encoder.config for name, encoder in encoders.items()}
    return native_readers(configs, in_folders(embedding_folders(arguments)))
