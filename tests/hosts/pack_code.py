"""Code of other packs without their hosts: a folder as a package, and single classes and functions of a file."""

from __future__ import annotations
import __future__

import ast
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch


def package(name: str, folder: Path) -> None:
    """Make a folder a package without running its own ``__init__.py``, whose other parts may not import."""
    module = sys.modules[name] = ModuleType(name)
    module.__path__ = [str(folder)]


def definitions(file: Path, *names: str, **given: Any) -> SimpleNamespace:
    """Classes and functions of a file whose other parts cannot be loaded; ``given`` are names that they use."""
    source = file.read_text(encoding="utf-8", errors="replace")
    space: dict[str, Any] = {"torch": torch, **given}
    parts = {getattr(part, "name", ""): part for part in ast.parse(source).body}
    for name in names:
        code = ast.get_source_segment(source, parts[name]) or ""
        exec(compile(code, str(file), "exec", __future__.annotations.compiler_flag), space)
    return SimpleNamespace(**{name: space[name] for name in names})
