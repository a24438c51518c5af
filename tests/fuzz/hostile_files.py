"""Campaign of hostile files: models, training data, checkpoints and options, each read by what a user gives it to.

    python -m tests.fuzz.hostile_files              # all of them; Linux only
    python -m tests.fuzz.hostile_files --only models checkpoints

Run it in the repository's root; for another commit copy tests/ there. Each file is read in a process with little memory
and time. It prints each read that never ends, takes too much memory, ends in a traceback, or takes what it must refuse,
and returns 1 if there are any. Writes that are killed are the other campaign, tests/faults/kills.py.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .limited import Outcome

SECONDS = 60.0
"""Longest time for one file."""
MEMORY = 2**30
"""Bytes that one file may take; training needs more of them than a refusal."""
OBJECTIVE = "prior"
"""Objective of the runs whose checkpoints are damaged."""
LAST = 3


def models(folder: Path) -> Iterator[tuple[str, str]]:
    """Model files, read by the commands that take them."""
    from .limited import Limited
    from .model_files import hostile_files

    with Limited(SECONDS, MEMORY) as process:
        for number, one in enumerate(hostile_files()):
            place = folder / str(number)
            place.mkdir()
            yield one.name, _wrong(process.run(one.written(place)))
            shutil.rmtree(place)


def data(folder: Path) -> Iterator[tuple[str, str]]:
    """Training data, of which every whole pair must be read and everything else be named."""
    from .data_sets import hostile_sets
    from .limited import Limited

    with Limited(SECONDS, MEMORY, work="data sets") as process:
        for number, one in enumerate(hostile_sets()):
            place = folder / str(number) / "data"
            place.mkdir(parents=True)
            one.write(place)
            yield one.name, str(process.run([number, str(place)]).status or "")
            shutil.rmtree(place.parent, ignore_errors=True)


def checkpoints(folder: Path) -> Iterator[tuple[str, str]]:
    """Checkpoints of a stopped run, each of which its command must refuse to go on with."""
    from ..training.objectives import start, stopping_after, words, write_data
    from .checkpoints import damages
    from .limited import Limited

    data = write_data(folder)
    with stopping_after(LAST):
        start(OBJECTIVE, data, folder / "stopped")
    with Limited(SECONDS, MEMORY) as process:
        for number, (name, damage) in enumerate(damages()):
            out = folder / str(number)
            shutil.copytree(folder / "stopped", out)
            damage(out)
            outcome = process.run(words(OBJECTIVE, data, out, "--resume"))
            yield name, "is gone on with" if outcome.status == 0 else _wrong(outcome)
            shutil.rmtree(out)


def options(folder: Path) -> Iterator[tuple[str, str]]:
    """Files of options, each of which must be refused at once or read as it stands."""
    from .limited import Limited
    from .option_files import MEMORY, option_files, words, wrong

    with Limited(SECONDS, MEMORY) as process:
        process.run(["train", "--help"])  # what the program loads at first use
        for number, one in enumerate(option_files()):
            path = folder / f"{number}.yaml"
            one.write(path)
            yield one.name, wrong(one, path, process.run(words(path)))


KINDS: dict[str, Callable[[Path], Iterator[tuple[str, str]]]] = {
    "models": models,
    "data": data,
    "checkpoints": checkpoints,
    "options": options,
}


def _wrong(outcome: Outcome) -> str:
    """Fault of the end of a command, or nothing."""
    status, told, _ = outcome
    if isinstance(status, str):
        return status
    if "not enough memory" in told:
        return "asks for more memory than there may be"
    return "is refused without a word" if status and not told.strip() else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Read all files; print what is found and how many there were."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS), metavar="KIND")
    options = parser.parse_args(arguments)
    from .campaign import load

    load()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files are hostile, too
    num_found = 0
    for kind in options.only:
        num_files = found_here = 0
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            for name, wrong in KINDS[kind](Path(folder)):
                num_files += 1
                if wrong:
                    found_here += 1
                    sys.stdout.write(f"{kind}: {name}: {wrong}\n")
                    sys.stdout.flush()
        sys.stdout.write(f"{kind}: {num_files} files, {found_here} found\n")
        num_found += found_here
    return 1 if num_found else 0


if __name__ == "__main__":
    sys.exit(main())
