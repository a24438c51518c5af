"""The command ``lab``: the Prompt Lab on this computer, in a browser. It needs gradio."""

from __future__ import annotations

import argparse
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from . import Command
from .console import show
from .prompt_options import (
    add_embeddings_option,
    add_flag,
    add_loading_options,
    add_value,
    device_of,
    dtype_named,
    embedding_folders,
)

if TYPE_CHECKING:
    from ...web.lab.native import Shelf


def _add_arguments(lab: argparse.ArgumentParser) -> None:
    weights = lab.add_mutually_exclusive_group()
    add_value(weights, "--weights", Path, "FILE", ".safetensors file with the text encoders of SD 1.x, 2.x or SDXL")
    add_value(weights, "--models", Path, "DIR", "folder “models” of ComfyUI or the WebUI, to take weights from")
    add_flag(weights, "--download", "fetch OpenAI's CLIP ViT-L/14 (1.7 GB) from Hugging Face, once")
    add_value(lab, "--model", str, "NAME", "file of --models to use (the first with a text encoder)")
    add_value(lab, "--dvae", Path, "FILE", ".safetensors file of a discrete VAE, for images as tokens")
    add_value(lab, "--dalle", Path, "FILE", ".safetensors file of a DALL·E, which draws images of a caption")
    add_embeddings_option(lab)
    add_loading_options(lab)
    add_value(lab, "--port", int, "N", "port of the page (7867, or the next free one)")
    lab.add_argument(
        "--no-browser", dest="browser", action="store_false", help="print the page's address, and open no browser"
    )
    add_flag(lab, "--private", "store nothing of the prompt in the browser, and delete what it stored")


def _run(arguments: argparse.Namespace) -> int:
    from ...web.lab.access import listen

    with listen(arguments.port) as listening:  # before anything is loaded, which takes a while
        return _serve(arguments, listening)


def _serve(arguments: argparse.Namespace, listening: socket.socket) -> int:
    from ...web.lab.model import LabError
    from ...web.lab.server import serve
    from ..dalle.full_model import load_dalle
    from ..dalle.weight_files import load_dvae

    shelf = shelf_of(arguments)
    model = shelf.source()
    dvae = None if arguments.dvae is None else load_dvae(arguments.dvae, device=device_of(arguments))
    dalle = None if arguments.dalle is None else load_dalle(arguments.dalle, device=device_of(arguments))
    if dvae is None and dalle is not None:
        dvae = dalle.dvae
    if model.warning:
        show(f"*** {model.warning} ***\n", sys.stderr)
    else:
        show(f"Weights: {model.title}; {model.origin}")
    try:
        serve(
            shelf.source,
            listening,
            open_browser=arguments.browser,
            is_private=arguments.private,
            dvae=dvae,
            dalle=dalle,
            shelf=shelf,
        )
    except LabError as error:
        raise ValueError(str(error)) from error
    return 0


def shelf_of(arguments: argparse.Namespace) -> Shelf:
    """The model chosen by the arguments, and others of its folder to choose from.

    It is a file, one from a folder or Hugging Face's cache, or else random weights.
    """
    from ...web.lab import model_folders as places
    from ...web.lab.native import LoadSettings, Shelf, file_model, random_model

    if arguments.model is not None and arguments.models is None:
        raise ValueError(f"--model {arguments.model}: say where it is with --models DIR, or use --weights FILE")
    embeddings = embedding_folders(arguments)
    path, files = arguments.weights, {}
    if arguments.models is not None:
        models = places.model_folder(arguments.models)
        path = places.chosen_file(models, arguments.model)
        embeddings, files = embeddings or models.embeddings, models.files
        for file_name, file in models.files.items():
            show(f"{'*' if file == path else ' '} {file_name}")
    elif path is None:
        path = places.hub_file(download=arguments.download)
    settings = LoadSettings(embeddings, arguments.clip_skip, dtype_named(arguments.dtype), device_of(arguments))
    if path is None:
        return Shelf(random_model(settings), "random weights", settings, files)
    name = next((name for name, file in files.items() if file == path), path.name)
    return Shelf(file_model(path, settings), name, settings, files)


LAB = Command(
    "lab",
    "open the Prompt Lab (default)",
    _add_arguments,
    _run,
    (
        "--weights sd15.safetensors",
        "--models ComfyUI/models --model sdxl.safetensors --embeddings ComfyUI/models/embeddings",
        "--no-browser --port 8000",
    ),
)
