"""The command ``bench``: its options, and the order in which things are measured."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from . import page
from .encoding import encode_block
from .hosts import host_block
from .machine import machine
from .parsing import ParseScale, parse_block
from .tokenizing import token_block

SEED = 0
TINY = {"hidden_dim": 64, "num_heads": 1, "num_layers": 2, "mlp_dim": 128}


@dataclass(frozen=True)
class Scale:
    """How much is measured: all of it, or just enough to see that the command works."""

    parse: ParseScale = field(default_factory=ParseScale)
    token_repetitions: int = 200
    token_inner: int = 20
    encode_repetitions: int = 15
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes of the text encoder where they are not CLIP-L's."""


FULL = Scale()
QUICK = Scale(ParseScale((30, 100, 300), seconds=0.0, repetitions=1), 2, 1, 2, TINY)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to its parser."""
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model and few repetitions: the figures mean nothing"
    )
    parser.add_argument(
        "--hosts", type=Path, metavar="DIR", help="a folder with a ComfyUI checkout and its .venv, and ADV_CLIP_emb"
    )
    parser.add_argument("--write", action="store_true", help=f"write the figures into {page.PAGE.name}")


def run(options: argparse.Namespace, say: Callable[[str], None] = print) -> int:
    """Measure everything and print it.

    Args:
        options: ``quick``, ``hosts`` and ``write``, as `add_options` describes them.
        say: Prints.

    Returns:
        The exit status, 0.

    Raises:
        ValueError: If the options do not go together, or the page cannot be written.
    """
    if options.quick and options.write:
        raise ValueError("--quick measures nothing worth writing down; leave out --quick or --write")
    blocks: dict[str, str] = {}
    for name, block in measure(QUICK if options.quick else FULL, options.hosts, say):
        say(f"\n## {name}\n\n{block}")
        blocks[name] = block
    if options.write:
        page.write(blocks)
        say(f"\nwrote {page.PAGE.name}")
    return 0


def measure(scale: Scale, hosts: Path | None, say: Callable[[str], None]) -> Iterator[tuple[str, str]]:
    """Measure section by section.

    Args:
        scale: How much.
        hosts: Folder of hosts, if there is one.
        say: Told what goes wrong.

    Yields:
        Name of the section, as in the page's markers, and its Markdown.
    """
    from ..encoder.checkpoint import seeded_text_model
    from ..encoder.config import TextConfig

    yield "machine", machine()
    yield "parse", parse_block(scale.parse)
    yield "tokens", token_block(repetitions=scale.token_repetitions, inner=scale.token_inner)
    model = seeded_text_model(TextConfig(**scale.sizes), seed=SEED)  # pyright: ignore[reportArgumentType]
    yield "encode", encode_block(model, repetitions=scale.encode_repetitions)
    yield "hosts", host_block(model, hosts, repetitions=scale.encode_repetitions, say=say)
