"""Measure recall on long captions by learned, stretched and rotary positions, and write the table into its page.

    python workshop/long_captions.py [--seeds 3] [--write]

See ``workshop/bench/long_captions.py`` for the method. It needs the packages of ``requirements-train.txt``.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from states import ROOT, load_package, part

PAGE = ROOT / "docs" / "long-prompts.md"


def main() -> None:
    """Measure, print the table and write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="how many times all is trained (%(default)s)")
    options = parser.parse_args()
    load_package(ROOT)
    measure = part("workshop.bench.long_captions")
    plan = replace(measure.Plan(), seeds=tuple(range(options.seeds)))
    block = measure.make_block(plan, lambda line: print(line, flush=True))
    if options.write:
        part("benchmarks.page").write({"captions": block}, PAGE)
    print(block)


if __name__ == "__main__":
    main()
