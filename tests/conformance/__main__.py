"""Write docs/evidence/conformance.md: what compel, diffusers' pipelines and prompt-control answer to the case files.

    python -m tests.conformance --hosts DIR

DIR holds a ComfyUI and comfyui-prompt-control, and diffusers unless ``--diffusers`` names its checkout; compel is this
Python's, or that of ``--compel``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
RUNNER = ROOT / "tests" / "cases" / "conformance.py"
PAGE = ROOT / "docs" / "evidence" / "conformance.md"
HEAD = """\
# Other programs and the case files

Written by `python -m tests.conformance`, which gives [the case files](../../tests/cases/README.md) to programs through
`tests/cases/conformance.py`. Rows are those files that a program has anything to do with. A failed case is another
reading, not a fault: most files hold what *one* program does.
"""


class Program(NamedTuple):
    """A program that is asked."""

    name: str
    module: str
    """Name of the module of this folder that asks it."""
    python: Path
    folder: Path
    """Working directory."""
    given: Mapping[str, str]
    """Variables of the environment."""
    options: tuple[str, ...]
    differs: str
    """Differences, in a sentence or two."""


def programs(hosts: Path, diffusers: Path, compel: Path) -> list[Program]:
    """The programs, with where they are."""
    comfyui, pack = hosts / "ComfyUI", hosts / "comfyui-prompt-control"
    return [
        Program(
            "compel",
            "compel_answers",
            compel,
            ROOT,
            {},
            ("parse", "encode"),
            "Nothing: these cases were made with the same version.",
        ),
        Program(
            "diffusers' lpw pipelines",
            "diffusers_answers",
            compel,
            ROOT,
            {"DIFFUSERS": str(diffusers)},
            ("parse",),
            "They read the WebUI's syntax of before BREAK: it is a word, and `(red: 1.3 )` with spaces round its "
            "number is text at 1.1. Square brackets, which ComfyUI reads as text, divide the weight.",
        ),
        Program(
            "comfyui-prompt-control",
            "prompt_control_answers",
            comfyui / ".venv" / "bin" / "python",
            comfyui,
            {"PROMPT_CONTROL": str(pack)},
            ("parse", "encode"),
            "Alternation changes by tenths of the picture, not each step; spaces round a time make the edit text; an "
            "edit inside an edit keeps the first text after the outer time; backslashes are taken out, and times "
            "rounded. Its weighting finds words by the shape that NumPy 1 gave: with NumPy 2 *down_weight* differs, "
            "and *compel* and *comfy++* do where a weight is below 1.",
        ),
    ]


def version(program: Program) -> str:
    """Version that is asked: of the library, or the checkout's commit."""
    if program.given:
        (folder,) = program.given.values()
        command = ["git", "-C", folder, "rev-parse", "--short", "HEAD"]
    else:
        command = [str(program.python), "-c", "from importlib.metadata import version; print(version('compel'))"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def table(program: Program) -> str:
    """The runner's table, without files that are not the program's matter."""
    command = [str(program.python), str(RUNNER)]
    for option in program.options:
        command += [f"--{option}", f"{program.module}:{option}"]
    environment = {**os.environ, **program.given, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, cwd=program.folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode > 1 or not done.stdout:
        sys.exit(f"{program.name}: {done.stderr[-2000:]}")
    return "\n".join(line for line in done.stdout.splitlines() if line.split(" | ")[1:3] != ["0", "0"])


def main() -> None:
    """Ask each program, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=Path, required=True)
    parser.add_argument("--compel", type=Path, default=Path(sys.executable), metavar="PYTHON")
    parser.add_argument("--diffusers", type=Path, metavar="DIR")
    given = parser.parse_args()
    hosts, parts = given.hosts.resolve(), [HEAD]
    for program in programs(hosts, given.diffusers or hosts / "diffusers", given.compel):
        parts.append(f"## {program.name} {version(program)}\n\n{table(program)}\n\n{program.differs}\n")
    PAGE.write_text("\n".join(parts), encoding="utf-8")


main()
