"""States of the code that the tools beside this compare: another commit in a folder, and any folder as the package."""

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
FORMER = {"encoder.files.checkpoint": "encoder.checkpoint"}
"""Modules that older states of the code have elsewhere."""


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A folder with a commit in it, as long as the context lasts."""
    git = ["git", "-C", str(ROOT)]
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder, "other")
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(other), commit], check=True)
        try:
            yield other
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(other)], check=True)


def load_package(root: Path) -> None:
    """Make a folder the package of this process, whatever the folder is called."""
    spec = importlib.util.spec_from_file_location(PACKAGE, root / "__init__.py", submodule_search_locations=[str(root)])
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def part(name: str) -> Any:
    """A module of the package that is loaded, wherever this state of the code has it."""
    former = FORMER.get(name, name)
    try:
        return importlib.import_module(f"{PACKAGE}.{name}")
    except ModuleNotFoundError:
        return importlib.import_module(f"{PACKAGE}.{former}")
