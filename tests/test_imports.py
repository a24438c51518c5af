"""A host's own modules are imported only in the files meant for it, and there only inside functions."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    "encoder",
    "studio",
    "weighting",
    "hosts",
    "nodes",
    "web",
    "workshop",
)
RUN_IN_HOSTS = {"peers"}
"""Folder of files whose functions run in a host's own Python."""
FILES = [path for name in FOLDERS for path in (ROOT / name).rglob("*.py") if not RUN_IN_HOSTS & set(path.parts)]
WEBUI = ("hosts/webui/*.py", "hosts/webui/*/*.py")
TRAINING = ("studio/training/*.py", "studio/training/*/*.py", "studio/commands/*.py", "studio/commands/*/*.py")
ALLOWED = {
    # ComfyUI's, which `host` of hosts/comfy/contract.py gives
    **dict.fromkeys(("comfy", "folder_paths", "nodes", "server"), ()),
    "modules": WEBUI,
    "modules_forge": WEBUI,
    "gradio": ("web/lab/*.py", "web/lab/tabs/*.py"),
    "accelerate": TRAINING,
    "peft": ("studio/training/finetuning/lora.py",),
}
"""Files that may import a module of a host, or one that no host needs."""
AT_THE_TOP = {
    "gradio": tuple(
        f"web/lab/{name}.py" for name in ("page", "components", "handlers", "accordion", "standalone", "tabs/*")
    ),
    "accelerate": TRAINING,  # for types
}
"""Files that are only imported where the module is, or name its types."""


@cache
def imported(path: Path) -> list[tuple[str, bool]]:
    """Top-level packages that a file imports, and whether it does so when it is itself imported."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner = {
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    found: list[tuple[str, bool]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name.split(".")[0], node not in inner) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.append((node.module.split(".")[0], node not in inner))
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_hosts_are_imported_in_their_own_files_only(path: Path) -> None:
    place = path.relative_to(ROOT)
    for name, is_at_the_top in imported(path):
        if name in ALLOWED:
            assert any(place.match(pattern) for pattern in ALLOWED[name]), f"{place} imports {name}"
            is_free = any(place.match(pattern) for pattern in AT_THE_TOP.get(name, ()))
            assert is_free or not is_at_the_top, f"{place} imports {name} outside a function"


def test_every_rule_is_used() -> None:
    assert {name for path in FILES for name, _ in imported(path) if name in ALLOWED} == {
        name for name, patterns in ALLOWED.items() if patterns
    }
