"""Options of the commands that load an encoder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def add_loading_options(parser: argparse.ArgumentParser) -> None:
    """Add what says how weights are loaded."""
    parser.add_argument(
        "--clip-skip", type=int, default=1, metavar="N", help="1 = last layer (1); SD 2.x, SDXL: from 2"
    )
    parser.add_argument("--dtype", choices=["fp32", "fp16", "bf16"], default="fp32")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (cpu)")


def add_embeddings_option(parser: argparse.ArgumentParser) -> None:
    """Add the folders of textual inversions."""
    parser.add_argument(
        "--embeddings", type=Path, action="append", metavar="DIR", help="folder of textual-inversion .safetensors files"
    )


def dtype_of(arguments: argparse.Namespace) -> torch.dtype:
    """The type of weights among the arguments."""
    import torch

    return {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[arguments.dtype]


def device_of(arguments: argparse.Namespace) -> str:
    """The device among the arguments.

    Raises:
        ValueError: If it is not there.
    """
    import torch

    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"this PyTorch ({torch.__version__}) finds no CUDA device; use --device cpu")
    return arguments.device


def embedding_folders(arguments: argparse.Namespace) -> tuple[Path, ...]:
    """The folders of textual inversions among the arguments.

    Raises:
        ValueError: If one is not there.
    """
    for folder in arguments.embeddings or ():
        if not folder.is_dir():
            raise ValueError(f"--embeddings {folder}: there is no such folder")
    return tuple(arguments.embeddings or ())
