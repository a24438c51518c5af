"""Time the two commands in a fresh clone with some versions of Python, and write a table into docs/evidence/README.md.

    python tests/clones.py --pythons DIR --work DIR [--tests WORD ...] [--write] [VERSION ...]

DIR of --pythons holds a folder for each interpreter, as pyenv has them: ``3.10.13/bin/python``. What is committed is
cloned to a folder of --work, where ``VERSION.json`` holds the result afterwards, and ``VERSION.log`` all output; the
clone is removed. With --write all that is known there is put on the page. CI does not run this: a version takes some 20
minutes and 8 GB.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compatibility import python_of, with_table

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "evidence" / "README.md"
MARKERS = ("<!-- clones: made by tests/clones.py -->", "<!-- end of clones -->")
ABOUT = (
    "import platform, runpy, torch; runpy.run_path('__main__.py')['load_package'](); "
    "from weighted_clip.workshop.bench.timing import processor; "
    "print(platform.python_version(), torch.__version__, sep=', '); print(processor())"
)
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/\S*")
SUMMARY = re.compile(r"\d+ (?:passed|failed|skipped|errors?)")
HEADS = ("Python, torch", "When", "`python run.py` until its page is there", "again", "`python run.py test`", "Tests")


def tried(version: str, base: Path, work: Path, tests: list[str]) -> dict[str, str]:
    """Row of the table for an interpreter, as cells by head; what failed stands in the cell where it did."""
    clone, log = work / version, work / f"{version}.log"
    shutil.rmtree(clone, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    row: dict[str, str] = {}
    with log.open("w", buffering=1, encoding="utf-8") as output:
        for head in HEADS[2:4]:
            row[head] = _until_page(base, clone, output)
        began = time.monotonic()
        subprocess.run([base, "run.py", "test", *tests], cwd=clone, stdout=output, stderr=output, check=False)
        row[HEADS[4]] = _minutes(began)
    last = log.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2]
    row[HEADS[5]] = f"{' '.join(tests) or 'all'}: {', '.join(SUMMARY.findall(last)) or last}"
    row[HEADS[0]], processor = _said(clone / ".venv" / "bin" / "python", "-c", ABOUT, cwd=clone).splitlines()
    revision = _said("git", "rev-parse", "--short=8", "HEAD", cwd=clone)
    row[HEADS[1]] = f"{datetime.datetime.now(datetime.timezone.utc).date()}, {revision}, {processor}"
    shutil.rmtree(clone)
    return row


def _until_page(base: Path, clone: Path, output: Any) -> str:
    """Start the lab, open its page, end the lab; the time from the start to the page."""
    began = time.monotonic()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "BROWSER": "true"}  # a browser that only ends
    with subprocess.Popen(
        [base, "run.py"], cwd=clone, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as lab:
        assert lab.stdout is not None
        found = None
        for line in lab.stdout:
            output.write(line)
            if found := ADDRESS.search(line):
                break
        if found is None:
            return f"ended with status {lab.wait()}"
        with urllib.request.urlopen(found[0]) as page:
            taken = _minutes(began) if b"<html" in page.read() else "answers without a page"
        lab.send_signal(signal.SIGINT)
        output.write(lab.stdout.read())
    return taken


def _minutes(began: float) -> str:
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _said(*command: Any, cwd: Path) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, check=True, capture_output=True, encoding="utf-8")
    return done.stdout.strip()


def table(rows: Mapping[str, Mapping[str, str]]) -> str:
    """The rows as Markdown, by version."""
    ordered = sorted(rows, key=lambda version: int(version.partition(".")[2]))
    cells = [HEADS, ["---"] * len(HEADS), *([rows[version][head] for head in HEADS] for version in ordered)]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def main() -> int:
    """Try versions and write what is known of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="to try, such as 3.10")
    parser.add_argument("--pythons", type=Path, metavar="DIR", required=True, help="folder of interpreters")
    parser.add_argument("--work", type=Path, metavar="DIR", required=True, help="for clones and results")
    parser.add_argument("--tests", nargs="+", default=[], metavar="WORD", help="what run.py test gets (all tests)")
    parser.add_argument("--write", action="store_true", help="write the table")
    options = parser.parse_args()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    for version in options.versions:
        base = python_of(options.pythons.resolve().iterdir(), version)
        if base is None:
            parser.error(f"no Python {version} in {options.pythons}")
        row = tried(version, base, work, options.tests)
        (work / f"{version}.json").write_text(json.dumps(row, indent=1), encoding="utf-8")
    if options.write:
        rows = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in work.glob("3.*.json")}
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), table(rows), MARKERS), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
