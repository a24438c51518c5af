"""What samplings and prompts ask of a GPU, counted without one, as docs/evidence/launches.md.

    python workshop/launches.py --host COMFYUI [--only MODEL ...] [--write]

ComfyUI's own models sample at their real widths on a pretended device (bench/counting.py): no numbers are computed.
"""

from __future__ import annotations

import argparse
import importlib
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/evidence/launches.md"
STEPS = 3
SECONDS = 3600
HEAD = ("Model", "Way", "Operators, first step", "Later", "More than stock", "Attentions", "Waits, first", "Later")
HEAD = (*HEAD, "Masks, MiB", "Copied, KiB")
PROMPTS = {
    "plain": ("a photo of a cat", {"scheme": "comfy", "syntax": "comfy"}),
    "a word up, comfy": ("a photo of a (red:1.3) cat", {"scheme": "comfy", "syntax": "comfy"}),
    "a word up, a1111": ("a photo of a (red:1.3) cat", {"scheme": "a1111", "syntax": "a1111"}),
    "four words down, compel": ("(a)0.5 photo of (a)0.7 (red)0.4 (cat)0.2", {"scheme": "compel", "syntax": "compel"}),
}
TYPES = ("float32", "bfloat16")


# ---- in the host


def count_samplings(job: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Counts of each step of samplings: ``models`` by name with sides of their latents, in each of `WAYS`."""
    from .bench import samplings

    samplings.open_host(is_pretended=True)
    return [
        {"model": name, "side": side, "way": way, "steps": count_steps(name, way, side)}
        for name, sides in job["models"].items()
        for side in sides
        for way in samplings.WAYS
    ]


def count_steps(name: str, way: str, side: int, **watching: Any) -> list[dict[str, Any]]:
    """Counts of each step of a sampling in a host that `samplings.open_host` has opened."""
    import torch

    from .bench import samplings
    from .bench.counting import ATTENTION, DEVICE, Counts, counting

    model = samplings.MODELS[name]
    opened = samplings.opened(model, DEVICE, torch.bfloat16, few=True)
    conditionings = samplings.prompts(model, way, **watching)
    found: list[dict[str, Any]] = []
    with counting() as counts:

        def note(_: int) -> None:
            asked = {"operators": counts.num_operators, "attentions": counts.operators[ATTENTION]}
            found.append({**asked, "waits": counts.num_waits, "masks": counts.mask_bytes, "copied": counts.copied})
            Counts.__init__(counts)

        samplings.draw(model, opened, conditionings, side, STEPS, note)
    return found


# ---- the page


def sampling_rows(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Rows of `HEAD`."""
    rows: list[list[str]] = []
    stock: Mapping[str, Any] = {}
    for result in results:
        first, *_, later = result["steps"]
        stock = later if result["way"] == "stock" else stock
        title = f"{result['model']}, {8 * result['side']} × {8 * result['side']}"
        numbers = [first["operators"], later["operators"], later["operators"] - stock["operators"]]
        numbers += [later["attentions"], first["waits"], later["waits"]]
        sizes = [f"{later['masks'] / 2**20:.1f}", f"{later['copied'] / 2**10:.0f}"]
        rows.append([title, result["way"], *map(str, numbers), *sizes])
    return rows


def prompt_rows() -> list[list[str]]:
    """Rows about a prompt of one chunk by the native encoder, beside transformers' pass."""
    import torch

    from ..encoder.models.config import TextConfig
    from ..encoder.models.text_model import TextModel
    from ..studio.training.scaling.distributed import declare_missing_operators
    from .bench.counting import DEVICE, counting
    from .bench.timing import native, ours
    from .peers.transformers import transformers_text_model

    declare_missing_operators()
    rows: list[list[str]] = []
    for kind in TYPES:
        with torch.device(DEVICE):
            model = TextModel(TextConfig()).to(getattr(torch, kind))
            peer = transformers_text_model(model, "sdpa")
        with counting() as stock:
            peer(input_ids=torch.full((1, 77), 49407).to(DEVICE))
        numbers = stock.num_operators, 1, stock.num_waits, stock.num_copies
        rows.append([kind, "transformers' pass, sdpa", *map(str, numbers)])
        for name, (text, choices) in PROMPTS.items():
            run = ours(native(model), iter([text]), **choices)
            with counting() as counts:
                run()
            ratio = f"{counts.num_operators / stock.num_operators:.2f}"
            rows.append([kind, name, str(counts.num_operators), ratio, str(counts.num_waits), str(counts.num_copies)])
    return rows


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    from .bench.page import blocks_of, in_process, table, write
    from .bench.samplings import MODELS
    from .bench.timing import machine

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", type=Path, required=True, help="a folder of ComfyUI with its .venv")
    parser.add_argument("--only", nargs="+", choices=MODELS, default=[*MODELS], metavar="MODEL")
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE.name}")
    options = parser.parse_args(arguments)
    python = options.host / ".venv/bin/python"
    if not python.is_file():
        parser.error(f"--host {options.host}: there is no .venv/bin/python in it")
    job = {"models": {name: MODELS[name].sides for name in options.only}}
    how: dict[str, Any] = {"folder": options.host.resolve(), "seconds": SECONDS, "OMP_NUM_THREADS": "1"}
    results = in_process("ComfyUI did not run", count_samplings, job, python.absolute(), **how)
    blocks = {
        "samplings": table(HEAD, sampling_rows(results), num_left=2),
        "prompts": table(("Weights", "Prompt", "Operators", "/ pass", "Waits", "Copies"), prompt_rows(), num_left=2),
        "machine": machine(),
    }
    print("\n\n".join(blocks.values()))
    if options.write:
        write({name: block for name, block in blocks.items() if name in blocks_of(PAGE.read_text("utf-8"))}, PAGE)


if __name__ == "__main__":
    runpy.run_path(str(ROOT / "__main__.py"))["load_package"]()
    importlib.import_module("weighted_clip.workshop.launches").main(sys.argv[1:])
