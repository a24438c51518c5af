"""Run the tests with other versions of Python and of the libraries: one virtual environment for each row of a table.

    python tests/compatibility.py --pythons DIR --work DIR [--row NAME ...] [--tests PATH ...] [--keep] [--write]

DIR of --pythons holds a folder for each interpreter, as pyenv has them: ``3.10.13/bin/python``. A row's environment is
made under --work, where ``NAME.json`` holds its result afterwards, and ``NAME.log`` pytest's output. With --write all
that is known there is put into docs/compatibility.md; without --row nothing is run for it.

CI does not run this: an environment is up to 8 GB, and a row takes minutes.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
MARKERS = ("<!-- rows: made by tests/compatibility.py -->", "<!-- end of rows -->")
LIBRARIES = (
    "torch",
    "numpy",
    "safetensors",
    "tokenizers",
    "Pillow",
    "transformers",
    "compel",
    "open_clip_torch",
    "gradio",
)
"""Libraries whose versions are reported."""
FOREIGN = ("transformers", "compel", "diffusers", "open_clip", "gradio", "torchvision", "PIL", "tokenizers")
"""Modules that are checked for being imported with the pack."""
PROMPT = "a (red:1.4) cat and a (dog:0.5) in a bowl, [photorealistic] BREAK (sharp focus"
"""That of docs/command-line.md."""
REFERENCE = "development"
"""The row whose numbers the others' are compared with."""


@dataclass(frozen=True)
class Row:
    """An environment."""

    python: str
    """Its version, to the minor number."""
    pins: tuple[str, ...]
    """Requirements for pip."""
    bare: tuple[str, ...] = ()
    """Requirements installed afterwards without their dependencies."""
    stands_for: str = ""
    """Source of these versions."""


_BOUNDS = ("numpy==1.24.0", "safetensors==0.4.2", "tokenizers==0.13.3", "Pillow==9.5.0", "ftfy==6.1.0")
_WEBUI = ("numpy==1.26.2", "safetensors==0.4.2", "Pillow==9.5.0", "ftfy==6.3.1")
ROWS: Mapping[str, Row] = {
    "development": Row(
        "3.11", ("torch==2.13.0",), ("-r", "requirements/dev.txt"), stands_for="requirements/dev.txt, CI"
    ),
    "bounds": Row("3.10", ("torch==2.1.0", *_BOUNDS), stands_for="requirements.txt, every lower bound"),
    "a1111": Row("3.10", ("torch==2.1.2", "transformers==4.30.2", *_WEBUI), stands_for="A1111 1.10"),
    "forge": Row("3.10", ("torch==2.3.1", "transformers==4.46.1", *_WEBUI), stands_for="Forge"),
    "numpy2": Row(
        "3.12", ("torch==2.5.1", "numpy==2.0.2", "transformers==4.57.6", "pillow<12", "ftfy==6.3.1"), ("compel==2.0.3",)
    ),
    "newest": Row(
        "3.13",
        ("torch", "numpy", "transformers", "safetensors", "tokenizers", "Pillow", "ftfy"),
        stands_for="the newest of all",
    ),
    "numpy1": Row("3.11", ("torch==2.13.0", "numpy==1.26.4", "safetensors", "tokenizers", "Pillow", "ftfy")),
    "transformers4": Row(
        "3.11", ("torch==2.13.0", "numpy", "transformers==4.57.6", "Pillow", "ftfy"), ("compel==2.0.3",)
    ),
}
TOOLS = ("pytest", "pytest-timeout", "hypothesis")
CHOSEN = "not (host or weights or gpu or slow)"
"""The tests that are run, in pytest's words."""


@dataclass
class Record:
    """Result of a row."""

    versions: dict[str, str] = field(default_factory=dict)
    """Versions of Python and of the installed libraries."""
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    """Names of tests."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Number of skipped tests by reason."""
    checks: dict[str, Any] = field(default_factory=dict)
    """Results of `probe`."""
    problem: str = ""
    """Reason why there is nothing else here."""
    tests: list[str] = field(default_factory=list)
    """Files and folders that were run; empty for all."""


def outcome_of(report: str) -> tuple[int, list[str], dict[str, int]]:
    """Tests that passed, names of those that failed, and skipped ones by reason, from pytest's XML report."""
    passed, failed, skipped = 0, list[str](), Counter[str]()
    for case in ElementTree.fromstring(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif (skip := case.find("skipped")) is not None:
            skipped[skip.get("message", "")] += 1
        else:
            passed += 1
    return passed, failed, dict(skipped.most_common())


def python_of(folders: Iterable[Path], version: str) -> Path | None:
    """The newest interpreter of a minor version among folders named after their versions; None if there is none."""

    def key(folder: Path) -> list[int]:
        return [int(part) for part in folder.name.split(".")]

    found = [folder for folder in folders if re.fullmatch(rf"{re.escape(version)}(\.\d+)+", folder.name)]
    return max(found, key=key) / "bin" / "python" if found else None


def last_error(output: str) -> str:
    """Reason given by pip."""
    errors = [line.removeprefix("ERROR:").strip() for line in output.splitlines() if line.startswith("ERROR:")]
    return errors[-1] if errors else output.strip().rpartition("\n")[2]


def run_row(name: str, pythons: Path, work: Path, tests: list[str], *, keep: bool) -> Record:
    """Make a row's environment, run tests and all checks in it, and remove it unless it should be kept."""
    row, environment = ROWS[name], work / name
    base = python_of(pythons.iterdir(), row.python)
    if base is None:
        return Record(problem=f"no Python {row.python} in {pythons}")
    python, ready = environment / "bin" / "python", environment / "ready"
    if not ready.exists():  # else it was kept
        problem = _made(environment, base, row)
        if problem:
            return Record(problem=problem)
        ready.touch()
    record = _tested(python, work, name, tests)
    if not keep:
        shutil.rmtree(environment)
    return record


def _made(environment: Path, base: Path, row: Row) -> str:
    """Make a row's environment; what kept pip from it, or nothing."""
    subprocess.run([base, "-m", "venv", "--clear", environment], check=True)
    pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-cache-dir"]
    for arguments in ([*row.pins, *TOOLS], ["--no-deps", *row.bare])[: 2 if row.bare else 1]:
        done = subprocess.run([*pip, *arguments], cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
        if done.returncode:
            return last_error(done.stderr)
    return ""


def _tested(python: Path, work: Path, name: str, chosen: list[str]) -> Record:
    """Run tests, then `probe`, with a Python."""
    tests, report, outside = ROOT / "tests", work / f"{name}.xml", work / "empty"
    report.unlink(missing_ok=True)
    outside.mkdir(exist_ok=True)  # the working directory is on sys.path, and this repository must not be
    options = ["-c", tests / "pytest.ini", "--rootdir", tests, "-v", "-p", "no:cacheprovider", f"--junitxml={report}"]
    options += ["-m", CHOSEN]
    with (work / f"{name}.log").open("w", encoding="utf-8") as log:
        command = [python, "-m", "pytest", *options, *(tests / path for path in chosen or [""])]
        subprocess.run(command, cwd=outside, stdout=log, stderr=subprocess.STDOUT, check=False)
    asked = [python, Path(__file__).resolve(), "--probe", name, "--work", work]
    done = subprocess.run(asked, cwd=outside, capture_output=True, encoding="utf-8", check=False)
    if done.returncode or not report.exists():
        return Record(problem=f"the checks failed: {done.stderr.strip()}" if done.returncode else "pytest did not end")
    checks = json.loads(done.stdout)
    return Record(checks.pop("versions"), *outcome_of(report.read_text(encoding="utf-8")), checks, tests=chosen)


def probe(name: str, work: Path) -> dict[str, Any]:
    """Versions in the running interpreter, imports of the pack, and results of its command line."""
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for library in LIBRARIES:
        found = next(iter(importlib.metadata.distributions(name=library)), None)
        if found is not None:
            versions[library] = found.version
    package = work / "package"  # the repository may have any name
    package.mkdir(exist_ok=True)
    link = package / "weighted_clip"
    link.unlink(missing_ok=True)
    link.symlink_to(ROOT, target_is_directory=True)
    environment = {**os.environ, "PYTHONPATH": str(package)}

    def run(*arguments: Any) -> str:
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(command, env=environment, cwd=work, capture_output=True, encoding="utf-8", check=False)
        return done.stdout if not done.returncode else f"exit status {done.returncode}: {done.stderr.strip()}"

    code = (
        "import sys, time, torch, numpy; before = set(sys.modules); began = time.perf_counter(); "
        "import weighted_clip; weighted_clip.NODE_CLASS_MAPPINGS; "
    )
    code += "print(round((time.perf_counter() - began) * 1000), *(set(sys.modules) - before))"
    milliseconds, *modules = run("-c", code).split()
    shown = run("-m", "weighted_clip", "inspect", PROMPT)
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    folder = work / f"{name}-encoded"
    encoded = run("-m", "weighted_clip", "encode", PROMPT, "--scheme", "masked_blend", "--out", folder)
    return {
        "versions": versions,
        "import_ms": milliseconds,
        "imports": sorted({module.split(".")[0] for module in modules} & set(FOREIGN)),
        "inspect": "as in docs/command-line.md" if shown and shown.strip() in page else shown,
        "encode": "done" if encoded.rstrip().endswith("-masks.png") else encoded,
        "difference": _difference(folder / "prompt.safetensors", work / f"{REFERENCE}-encoded" / "prompt.safetensors"),
    }


def _difference(ours: Path, reference: Path) -> float | None:
    """The largest difference between two files' tensors of the same names; None if one is not there."""
    if not ours.exists() or not reference.exists():
        return None
    from safetensors.torch import load_file

    one, other = load_file(ours), load_file(reference)
    assert one.keys() == other.keys()
    return max(float((one[key].double() - other[key].double()).abs().max()) for key in one)


def table(records: Mapping[str, Record]) -> str:
    """The rows as Markdown: a table, then why tests were skipped, failed or not run."""
    heads = (
        "Row",
        "Python",
        "torch",
        "numpy",
        "transformers",
        "tokenizers, safetensors, Pillow",
        "Others",
        "Tests",
        "Encoded",
    )
    lines = ["| " + " | ".join(heads) + " |", "| " + " | ".join("---" for _ in heads) + " |"]
    notes: list[str] = []
    for name, record in records.items():
        lines.append("| " + " | ".join(_cells(name, record)) + " |")
        notes += [f"- `{name}` failed: {test}" for test in record.failed]
        if record.problem:
            notes.append(f"- `{name}` could not be had: {record.problem}")
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _cells(name: str, record: Record) -> list[str]:
    def of(*libraries: str) -> str:
        return ", ".join(record.versions.get(library, "-") for library in libraries)

    others = [f"{library} {record.versions[library]}" for library in LIBRARIES[6:] if library in record.versions]
    tests = f"{record.passed} passed, {len(record.failed)} failed, {sum(record.skipped.values())} skipped"
    difference = record.checks.get("difference")
    encoded = "-" if difference is None else "equal" if difference == 0 else f"{difference:.1e}"
    title = f"`{name}`" + (f": {ROWS[name].stands_for}" if name in ROWS and ROWS[name].stands_for else "")
    kept = of("tokenizers", "safetensors", "Pillow")
    cells = [title, of("python"), of("torch"), of("numpy"), of("transformers"), kept, ", ".join(others) or "-"]
    return [*cells, "not run" if record.problem else tests, encoded]


def with_table(page: str, rendered: str, markers: tuple[str, str] = MARKERS) -> str:
    """A page with the text between the markers replaced."""
    start, found, rest = page.partition(markers[0])
    _, also_found, end = rest.partition(markers[1])
    if not (found and also_found):
        raise ValueError(f"the lines {markers[0]!r} and {markers[1]!r} are missing in the page")
    return f"{start}{markers[0]}\n{rendered}\n{markers[1]}{end}"


def main(arguments: list[str] | None = None) -> int:
    """Run rows and write their results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", choices=list(ROWS), default=[], help="run this one; again for more")
    parser.add_argument("--pythons", type=Path, metavar="DIR", help="folder of interpreters")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="for environments and results")
    parser.add_argument("--tests", nargs="+", default=[], metavar="PATH", help="of files in this folder (all of them)")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    parser.add_argument("--write", action="store_true", help=f"write the table into docs/{PAGE.name}")
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    if options.probe:
        sys.stdout.write(json.dumps(probe(options.probe, work)))
        return 0
    if options.row and options.pythons is None:
        parser.error("--row needs --pythons")
    for name in options.row:
        record = run_row(name, options.pythons, work, options.tests, keep=options.keep)
        (work / f"{name}.json").write_text(json.dumps(asdict(record), indent=1), encoding="utf-8")
        counts = f"{record.passed} passed, {len(record.failed)} failed, {sum(record.skipped.values())} skipped"
        sys.stderr.write(f"{name}: {record.problem or counts}\n")
    files = {name: work / f"{name}.json" for name in ROWS}
    known = {name: Record(**json.loads(file.read_text("utf-8"))) for name, file in files.items() if file.exists()}
    if options.write:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), table(known)), encoding="utf-8")
    return any(record.problem or record.failed for record in known.values())


if __name__ == "__main__":
    sys.exit(main())
