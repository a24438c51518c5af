"""The command ``bench``: times of parsing, tokenizing and encoding, compared with other programs in the same run.

Speed is a ratio to a peer timed in turn with ours, on the same weights and the same machine; nothing here passes or
fails by the clock. It may import every other part of the pack, and none imports it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from . import page
from .encoding import ENCODE, PARSE, SHARING, TOKENS
from .gpu import GPU
from .hosts import HOSTS, SAMPLING
from .images import IMAGES
from .page import Request, Section, goal_block
from .processors import PROCESSORS
from .scale import FULL, QUICK
from .timing import machine

MACHINE = Section("machine", lambda request: machine())
SECTIONS = (MACHINE, PROCESSORS, PARSE, TOKENS, ENCODE, SHARING, IMAGES, HOSTS, SAMPLING, GPU)
"""All sections in the order of measurement. ``goals`` comes after them, made from their results."""
GOALS = "goals"
OF_GOALS = (MACHINE.name, PROCESSORS.name)
"""Sections measured by ``--only goals``."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    names = [section.name for section in SECTIONS]
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model and few repetitions: the figures mean nothing"
    )
    parser.add_argument(
        "--hosts",
        type=Path,
        metavar="DIR",
        help="a folder with a ComfyUI checkout and its .venv, and ADV_CLIP_emb",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=[*names, GOALS],
        default=names,
        metavar="SECTION",
        help=f"of: {', '.join(names)}; or {GOALS}, which is {' and '.join(OF_GOALS)} and takes a few minutes",
    )
    parser.add_argument(
        "--images",
        type=int,
        metavar="N",
        help=f"measure the memory of N images ({FULL.num_images}); 512 take more than half an hour on two cores",
    )
    parser.add_argument("--write", action="store_true", help=f"write the figures into {page.PAGE.name}")


def run(options: argparse.Namespace, say: Callable[[str], None] = print) -> int:
    """Measure what is asked for and print it, by a function that prints.

    It raises ValueError if the options are incompatible, or the page cannot be written.
    """
    if options.quick and options.write:
        raise ValueError("--quick measures nothing worth writing down; leave out --quick or --write")
    from ...studio.training.scaling.distributed import declare_missing_operators  # not above, as it imports torch

    declare_missing_operators()
    scale = QUICK if options.quick else FULL
    if options.images is not None:
        if options.images < 1:
            raise ValueError(f"--images must be at least 1, got {options.images}")
        scale = replace(scale, num_images=options.images)
    request = Request(scale, options.hosts, say)
    on_page = page.blocks_of(page.PAGE.read_text(encoding="utf-8") if page.PAGE.is_file() else "")
    asked = [*options.only, *(OF_GOALS if GOALS in options.only else ())]
    blocks: dict[str, str] = {}
    for section in SECTIONS:
        if section.name in asked:
            blocks[section.name] = section.measure(replace(request, before=on_page.get(section.name, "")))
            say(f"\n## {section.name}\n\n{blocks[section.name]}")
    say(f"\n## {GOALS}\n\n{goal_block(SECTIONS, blocks)}")
    if options.write:
        page.write(blocks, page.PAGE)
        on_page = page.blocks_of(page.PAGE.read_text(encoding="utf-8"))  # with earlier measurements
        page.write({GOALS: goal_block(SECTIONS, on_page)}, page.PAGE)
        say(f"\nwrote {page.PAGE.name}")
    return 0
