"""The parity command: every scheme on fixed prompts against every available reference program.

Imported by the command line only, never by a host. This package does no arithmetic of its own: it gets hidden states
from both sides and subtracts them.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--hosts",
        type=Path,
        metavar="DIR",
        help="folder with ComfyUI, ComfyUI_ADV_CLIP_emb, comfyui-prompt-control, ComfyUI-ppm and Forge checkouts, each "
        "host with its .venv, perhaps peers-venv, a Python with numpy < 2 for the first two packs, and a checkout of "
        "diffusers",
    )
    parser.add_argument("--quick", action="store_true", help="every fourth prompt only")
    parser.add_argument(
        "--write",
        action="store_true",
        help="also write docs/evidence/parity.md of this checkout",
    )


def run(arguments: argparse.Namespace) -> int:
    """Compare, print the table, and optionally write it to the page.

    Args:
        arguments: Options declared by `add_arguments`.

    Returns:
        The exit status: 0, or 1 if a difference is above its limit or a reference failed.
    """
    from .command import compare_all

    return compare_all(arguments.hosts, is_quick=arguments.quick, is_written=arguments.write)
