"""Measure recall on long captions by learned, stretched and rotary positions, and write the page about it.

    python tools/long_captions.py [--seeds 3] [--write]

See ``benchmarks/long_captions.py`` for the method. It needs the packages of ``requirements-train.txt``.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from states import ROOT, load_package, part

PAGE = ROOT / "docs" / "evidence" / "long-captions.md"


def main() -> None:
    """Measure, and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="how many times all is trained (%(default)s)")
    options = parser.parse_args()
    load_package(ROOT)
    measure = part("benchmarks.long_captions")
    plan = replace(measure.Plan(), seeds=tuple(range(options.seeds)))
    page = measure.make_page(plan, lambda line: print(line, flush=True))
    if options.write:
        PAGE.write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
