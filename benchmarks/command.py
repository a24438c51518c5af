"""The command ``bench``: its options, and the order in which things are measured."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from . import page
from .dtypes import type_block
from .encoding import encode_block
from .goals import goal_block
from .gpu import gpu_section
from .hosts import host_block
from .machine import machine
from .parsing import ParseScale, parse_block
from .peak import peak_block
from .reranking import image_block
from .sharing import SharingScale, sharing_block
from .tokenizing import token_block

if TYPE_CHECKING:
    from ..encoder.text_model import TextModel

SEED = 0
TINY = {"hidden_dim": 64, "num_heads": 1, "num_layers": 2, "mlp_dim": 128}
TINY_VISION = {**TINY, "image_size": 56, "projection_dim": 32}
SECTIONS = ("machine", "parse", "tokens", "encode", "sharing", "types", "peak", "images", "hosts", "gpu")
"""In the order in which they are measured. Behind them comes ``goals``, which is made of what they found."""


@dataclass(frozen=True)
class Scale:
    """How much is measured: all of it, or just enough to see that the command works."""

    parse: ParseScale = field(default_factory=ParseScale)
    token_repetitions: int = 200
    token_inner: int = 20
    encode_repetitions: int = 15
    sharing: SharingScale = field(default_factory=SharingScale)
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes of the text encoder where they are not CLIP-L's."""
    side: int = 2048
    """Of the matrices by which the speed of multiplying is measured."""
    gpu_repetitions: int = 50
    image_batch: int = 8
    """Images that are timed."""
    num_images: int = 32
    """Images whose memory is measured."""
    image_side: int = 512
    """Pixels."""
    image_repetitions: int = 5
    vision_sizes: dict[str, int] = field(default_factory=dict)
    """Sizes of the image encoder where they are not CLIP-L's."""


FULL = Scale()
QUICK = Scale(
    ParseScale((30, 100, 300), seconds=0.0, repetitions=1),
    token_repetitions=2,
    token_inner=1,
    encode_repetitions=2,
    sharing=SharingScale(2, 4, 1, (1, 4)),
    sizes=TINY,
    side=64,
    gpu_repetitions=2,
    image_batch=3,
    num_images=6,
    image_side=64,
    image_repetitions=2,
    vision_sizes=TINY_VISION,
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to its parser."""
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model and few repetitions: the figures mean nothing"
    )
    parser.add_argument(
        "--hosts", type=Path, metavar="DIR", help="a folder with a ComfyUI checkout and its .venv, and ADV_CLIP_emb"
    )
    parser.add_argument(
        "--only", nargs="+", choices=SECTIONS, default=SECTIONS, metavar="SECTION", help="of: " + ", ".join(SECTIONS)
    )
    parser.add_argument(
        "--images",
        type=int,
        metavar="N",
        help=f"measure the memory of N images ({FULL.num_images}); 512 take more than half an hour on two cores",
    )
    parser.add_argument("--write", action="store_true", help=f"write the figures into {page.PAGE.name}")


def run(options: argparse.Namespace, say: Callable[[str], None] = print) -> int:
    """Measure everything and print it.

    Args:
        options: ``quick``, ``hosts``, ``only``, ``images`` and ``write``, as `add_options` describes them.
        say: Prints.

    Returns:
        The exit status, 0.

    Raises:
        ValueError: If the options do not go together, or the page cannot be written.
    """
    if options.quick and options.write:
        raise ValueError("--quick measures nothing worth writing down; leave out --quick or --write")
    scale = QUICK if options.quick else FULL
    if options.images is not None:
        if options.images < 1:
            raise ValueError(f"--images must be at least 1, got {options.images}")
        scale = replace(scale, num_images=options.images)
    blocks: dict[str, str] = {}
    for name, block in measure(scale, options.hosts, say, options.only):
        say(f"\n## {name}\n\n{block}")
        blocks[name] = block
    say(f"\n## goals\n\n{goal_block(blocks)}")
    if options.write:
        page.write(blocks, page.PAGE)
        on_page = page.blocks_of(page.PAGE.read_text(encoding="utf-8"))  # with what was measured before
        page.write({"goals": goal_block(on_page)}, page.PAGE)
        say(f"\nwrote {page.PAGE.name}")
    return 0


def measure(
    scale: Scale, hosts: Path | None, say: Callable[[str], None], only: Sequence[str] = SECTIONS
) -> Iterator[tuple[str, str]]:
    """Measure section by section.

    Args:
        scale: How much.
        hosts: Folder of hosts, if there is one.
        say: Told what goes wrong.
        only: Which of `SECTIONS`.

    Yields:
        Name of the section, as in the page's markers, and its Markdown.
    """
    from ..encoder.config import TextConfig
    from ..encoder.files.checkpoint import seeded_text_model

    def model() -> TextModel:
        return seeded_text_model(TextConfig(**scale.sizes), seed=SEED)  # pyright: ignore[reportArgumentType]

    measures: dict[str, Callable[[], str]] = {
        "machine": machine,
        "parse": lambda: parse_block(scale.parse),
        "tokens": lambda: token_block(repetitions=scale.token_repetitions, inner=scale.token_inner),
        "encode": lambda: encode_block(model(), repetitions=scale.encode_repetitions),
        "sharing": lambda: sharing_block(model(), scale.sharing),
        "types": lambda: type_block(model(), repetitions=scale.encode_repetitions),
        "peak": lambda: peak_block(model(), side=scale.side, repetitions=scale.encode_repetitions),
        "images": lambda: image_block(
            scale.vision_sizes,
            batch=scale.image_batch,
            num_images=scale.num_images,
            side=scale.image_side,
            repetitions=scale.image_repetitions,
        ),
        "hosts": lambda: host_block(model(), hosts, repetitions=scale.encode_repetitions, say=say),
        "gpu": lambda: gpu_section(model, repetitions=scale.gpu_repetitions),
    }
    for name in SECTIONS:
        if name in only:
            yield name, measures[name]()
