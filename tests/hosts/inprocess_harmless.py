"""Checks that loading our pack changes nothing in ComfyUI, writes nothing, and costs next to nothing.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import logging
import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from inprocess import OURS, PACK, identity, load_pack, main

HEAVY = {"transformers", "gradio", "compel", "diffusers", "matplotlib", "scipy", "pandas", "torchvision"}
"""Modules our pack must not load. Those loaded by the host itself do not count."""
HOST = (
    *("nodes", "comfy.hooks", "comfy.sd", "comfy.text_encoders.sd2_clip", "execution", "server"),
    "comfy_config.config_parser",
)
"""Modules that a server has loaded before packs; the last reads their pyproject.toml."""


class Loaded(NamedTuple):
    """Effects of loading our pack."""

    changed: set[str]
    """Attributes of the host's modules and classes, and of other packages', that are not what they were."""
    added: set[str]
    """Attributes that were not there."""
    files: set[Path]
    """Files and folders that are new, gone or written to."""
    lines: list[str]
    """Log lines by us or about us."""
    modules: set[str]
    """Packages that were not loaded before, except ours."""
    is_random_state_kept: bool


def snapshot() -> dict[str, Any]:
    """Attributes that a patch could change: those of the host's modules and of the classes in them."""
    host = ("comfy", "comfy_extras", "comfy_execution", "nodes", "folder_paths", "execution", "server", "node_helpers")
    others = ("torch", "torch.nn", "torch.nn.functional", "transformers", "safetensors.torch", "json", "logging")
    seen: dict[str, Any] = {"sys.path": list(sys.path), "sys.meta_path": list(sys.meta_path)}
    for module_name, module in sorted(sys.modules.items()):
        if isinstance(module, ModuleType) and (module_name.split(".")[0] in host or module_name in others):
            for name, value in vars(module).items():
                seen[f"{module_name}.{name}"] = identity(value)
                if isinstance(value, type) and value.__module__.split(".")[0] in host:
                    for attribute, member in vars(value).items():
                        seen[f"{module_name}.{name}.{attribute}"] = identity(member)
    return seen


def files_in(*folders: Path) -> dict[Path, int]:
    """Every file and folder with its modification time, except hidden folders and compiled Python files."""
    found: dict[Path, int] = {}
    for top in folders:
        for folder, names, files in os.walk(top):
            names[:] = [name for name in names if not name.startswith((".", "__pycache__"))]
            for path in (Path(folder, name) for name in (".", *files)):
                found[path] = path.lstat().st_mtime_ns
    return found


@cache
def loaded() -> Loaded:
    """Load our pack, after everything that a server has loaded by then."""
    importlib.import_module("utils.extra_config")  # as in main.py, before nodes.py prepends comfy/ to the path
    import folder_paths

    for name in HOST:
        importlib.import_module(name)
    home = tempfile.mkdtemp()
    for name in ("HOME", "USERPROFILE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "TMPDIR"):
        os.environ[name] = home
    tempfile.tempdir = home
    folders = (PACK.resolve(), Path(folder_paths.base_path), Path(home))
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    modules, random, before, files = set(sys.modules), torch.get_rng_state(), snapshot(), files_in(*folders)
    load_pack()
    files_after, after = files_in(*folders), snapshot()
    logging.getLogger().removeHandler(handler)
    lines = [f"{record.name}: {record.getMessage()}" for record in records]
    ours = str(PACK).replace(".", "_x_")
    return Loaded(
        changed={name for name in before if after.get(name) != before[name]},
        added=after.keys() - before.keys(),
        files={path for path in files.keys() | files_after.keys() if files.get(path) != files_after.get(path)},
        lines=[line for line in lines if "weighted" in line.lower()],
        modules={name.split(".")[0] for name in sys.modules.keys() - modules if not name.startswith(ours)},
        is_random_state_kept=torch.equal(random, torch.get_rng_state()),
    )


def check_importing_the_pack_changes_nothing_in_the_host() -> None:
    registered = {  # by the host itself, for every pack
        "nodes.NODE_CLASS_MAPPINGS",
        "nodes.NODE_DISPLAY_NAME_MAPPINGS",
        "nodes.EXTENSION_WEB_DIRS",
        "nodes.LOADED_MODULE_DIRS",
    }
    assert loaded().changed <= registered, sorted(loaded().changed - registered)
    # a package learns of its sub-modules and a module of its logger when somebody imports more of it
    added = {name for name in loaded().added if not isinstance(sys.modules.get(name), ModuleType)}
    assert not {name for name in added if name.split(".")[0] not in {"torch", "transformers"}}, sorted(added)
    assert loaded().is_random_state_kept
    import nodes

    assert OURS in nodes.NODE_CLASS_MAPPINGS


def check_importing_the_pack_writes_no_file() -> None:
    assert not loaded().files, sorted(loaded().files)


def check_importing_the_pack_says_at_most_one_line() -> None:
    assert len(loaded().lines) <= 1, loaded().lines


def check_importing_the_pack_loads_no_heavy_library() -> None:
    assert not loaded().modules & HEAVY, sorted(loaded().modules)


if __name__ == "__main__":
    main(globals(), is_loaded=False)
