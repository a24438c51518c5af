"""States of the code to compare: another commit in a folder, and any folder as the package."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "weighted_clip"
FORMER = {
    "workshop.bench.runs": "benchmarks.runs",
    "workshop.bench.texts": "benchmarks.texts",
}
"""Modules with another name in older states of the code."""


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Check out a commit into a folder for the duration of the context."""
    git = ["git", "-C", str(ROOT)]
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder, "other")
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(other), commit], check=True)
        try:
            yield other
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(other)], check=True)


def load_package(root: Path) -> None:
    """Load a folder as this process's package, whatever the folder is called."""
    spec = importlib.util.spec_from_file_location(PACKAGE, root / "__init__.py", submodule_search_locations=[str(root)])
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def part(name: str) -> Any:
    """A module of the loaded package, wherever this state of the code has it."""
    former = FORMER.get(name, name)
    try:
        return importlib.import_module(f"{PACKAGE}.{name}")
    except ModuleNotFoundError:
        return importlib.import_module(f"{PACKAGE}.{former}")
