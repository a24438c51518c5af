"""The command ``bench``: its options, and the order of measurements."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from ...training.torchvision_operators import declare_missing_operators
from . import page
from .dalle import dalle_block
from .encoding import encode_block
from .goals import goal_block
from .gpu import gpu_section
from .hosts import host_block
from .machine import machine
from .many import many_block
from .parsing import parse_block
from .precision import PICTURE, precision_block
from .processors import processor_block
from .reranking import image_block
from .sampling import sampling_block
from .scale import FULL, QUICK, Scale
from .sharing import sharing_block
from .tokenizing import token_block
from .training import training_block

MEASURES: dict[str, Callable[[Scale], str]] = {
    "machine": lambda scale: machine(),
    "processors": processor_block,
    "parse": parse_block,
    "tokens": token_block,
    "encode": encode_block,
    "sharing": sharing_block,
    "many": many_block,
    "images": image_block,
    "training": training_block,
    "dalle": dalle_block,
    "precision": precision_block,
    "hosts": host_block,
    "sampling": sampling_block,
    "gpu": gpu_section,
}
"""Functions that make each section as Markdown, in the order of measurement. ``goals`` comes after them, made from
their results."""


GOALS = "goals"
OF_GOALS = ("machine", "processors")
"""Sections measured by ``--only goals``."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model and few repetitions: the figures mean nothing"
    )
    parser.add_argument(
        "--hosts",
        type=Path,
        metavar="DIR",
        help="a folder with a ComfyUI checkout and its .venv, ADV_CLIP_emb, and a dalle-venv with dalle-pytorch",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=[*MEASURES, GOALS],
        default=MEASURES,
        metavar="SECTION",
        help=f"of: {', '.join(MEASURES)}; or {GOALS}, which is {' and '.join(OF_GOALS)} and takes a few minutes",
    )
    parser.add_argument(
        "--images",
        type=int,
        metavar="N",
        help=f"measure the memory of N images ({FULL.num_images}); 512 take more than half an hour on two cores",
    )
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help=f"a UTF-8 file with a prompt in each line, for the section many: {max(FULL.many)}, or fewer for some of "
        "its rows (made prompts)",
    )
    parser.add_argument("--write", action="store_true", help=f"write the figures into {page.PAGE.name}")


def run(options: argparse.Namespace, say: Callable[[str], None] = print) -> int:
    """Measure everything and print it.

    Args:
        options: ``quick``, ``hosts``, ``only``, ``images``, ``prompts`` and ``write``, see `add_arguments`.
        say: Function that prints.

    Returns:
        The exit status, 0.

    Raises:
        ValueError: If the options are incompatible, or the page cannot be written.
    """
    if options.quick and options.write:
        raise ValueError("--quick measures nothing worth writing down; leave out --quick or --write")
    declare_missing_operators()
    scale = QUICK if options.quick else FULL
    if options.images is not None:
        if options.images < 1:
            raise ValueError(f"--images must be at least 1, got {options.images}")
        scale = replace(scale, num_images=options.images)
    in_hosts = {"dalle": dalle_block, "hosts": host_block, "sampling": sampling_block}
    measures = MEASURES | {name: partial(block, folder=options.hosts, say=say) for name, block in in_hosts.items()}
    measures["many"] = partial(many_block, file=options.prompts)
    measures["precision"] = partial(precision_block, say=say, picture=PICTURE if options.write else None)
    blocks: dict[str, str] = {}
    on_page = page.PAGE.read_text(encoding="utf-8") if page.PAGE.is_file() else ""
    before = page.blocks_of(on_page).get("processors", "")
    measures["processors"] = partial(processor_block, before=before, folder=options.hosts, say=say)
    asked = [*options.only, *(OF_GOALS if GOALS in options.only else ())]
    for name in (name for name in measures if name in asked):
        blocks[name] = measures[name](scale)
        say(f"\n## {name}\n\n{blocks[name]}")
    say(f"\n## goals\n\n{goal_block(blocks)}")
    if options.write:
        page.write(blocks, page.PAGE)
        on_page = page.blocks_of(page.PAGE.read_text(encoding="utf-8"))  # with earlier measurements
        page.write({"goals": goal_block(on_page)}, page.PAGE)
        say(f"\nwrote {page.PAGE.name}")
    return 0
