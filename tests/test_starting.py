"""Imports at start: no torch if a command needs none, and nothing foreign when a host loads the pack."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import weighted_clip
from weighted_clip.nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
from weighted_clip.studio.commands.program import COMMANDS
from weighted_clip.weighting.encoders import Encoders

ROOT = Path(__file__).resolve().parents[1]

READING = {
    "inspect": ["inspect", "a (cat:1.2)"],
    "inspect, every option": ["inspect", "[a] BREAK", "--json", "--quirks", "--normalization", "mean"],
    "convert": ["convert", "a ((red)) [cat]", "--to", "compel"],
    "schedule": ["schedule", "a [cat:dog:0.5] AND b", "--steps", "4"],
}
"""Commands that need no tensor."""
HELP = ["", *(command.name for command in COMMANDS)]
MISTYPED = {
    "no such command": ["inspekt", "a"],
    "no such option": ["encode", "a", "--shceme", "comfy"],
    "no such choice": ["encode", "a", "--scheme", "comfi"],
    "a missing argument": ["rerank"],
}


HEAVY = {"torch", "safetensors", "PIL"}
RUN_ALL = """
import io, json, runpy, sys
from contextlib import redirect_stderr, redirect_stdout

runpy.run_path(sys.argv[1])["load_package"]()
from weighted_clip.studio.commands.program import main

found = {}
for name, arguments in json.loads(sys.argv[2]).items():
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            status = main(arguments)
        except SystemExit as error:
            status = error.code
    found[name] = status, [*sys.modules]
print(json.dumps(found))
"""
"""Runs commands one after the other, and prints the exit status of each and the modules that are imported by then."""


def started(*arguments: str) -> tuple[int, set[str]]:
    """The exit status of a command and the modules that it imported."""
    command = [sys.executable, "-X", "importtime", str(ROOT / "__main__.py"), *arguments]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    return done.returncode, set(re.findall(r"^import time: .*\| +([\w.]+)$", done.stderr, re.MULTILINE))


def test_no_torch_is_imported() -> None:
    code, modules = started(*READING["inspect"])
    assert code == 0
    assert "weighted_clip.studio.commands" in modules
    assert not HEAVY & modules
    helps = {f"{name} --help": [*name.split(), "--help"] for name in HELP}
    done = run_python(RUN_ALL, str(ROOT / "__main__.py"), json.dumps({**READING, **helps, **MISTYPED}))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name: status for name, (status, _) in found.items()} == {
        name: 2 if name in MISTYPED else 0 for name in (*READING, *helps, *MISTYPED)
    }
    assert next((name for name, (_, modules) in found.items() if HEAVY & {*modules}), None) is None


def test_torch_would_be_seen(tmp_path: Path) -> None:
    code, modules = started("encode", "a", "--weights", str(tmp_path / "nowhere.safetensors"))
    assert code == 1
    assert "torch" in modules


# ---- in a host

HOST = """
import importlib.util, json, sys
from types import SimpleNamespace

folder, has_server, broken = sys.argv[1:]
routes = []
if has_server:
    table = SimpleNamespace(post=lambda path: lambda handler: routes.append(path))
    instance = SimpleNamespace(routes=table)
    sys.modules["server"] = SimpleNamespace(PromptServer=SimpleNamespace(instance=instance))
if broken:
    import torch
    del torch.bfloat16
before = set(sys.modules)
name = folder.replace(".", "_x_")
spec = importlib.util.spec_from_file_location(name, folder + "/__init__.py")
module = sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
web = module.WEB_DIRECTORY if hasattr(module, "WEB_DIRECTORY") else None
nodes = [*module.NODE_CLASS_MAPPINGS] if hasattr(module, "NODE_CLASS_MAPPINGS") else None
titles = [*module.NODE_DISPLAY_NAME_MAPPINGS] if hasattr(module, "NODE_DISPLAY_NAME_MAPPINGS") else None
has_entrypoint = hasattr(module, "comfy_entrypoint")
tops = {other.partition(".")[0] for other in {*sys.modules} - before if other.partition(".")[0] != name}
foreign = sorted(tops - {*sys.stdlib_module_names})
print(json.dumps([web, nodes, titles, has_entrypoint, routes, foreign]))
"""
"""Loads a folder as ComfyUI 0.29.0 does, and prints what the host would find."""
NEEDED = {"torch", "numpy", "safetensors"}
"""Everything a host imports for the pack, besides the imports of these."""


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False)


@pytest.fixture(scope="module")
def companions() -> set[str]:
    """Imports of the required packages."""
    code = f"import {', '.join(sorted(NEEDED))}, sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    return {*run_python(code).stdout.split()} - NEEDED


@pytest.mark.parametrize(
    ("folder", "has_server"), [("ComfyUI-weighted-clip", ""), ("my pack", "server"), ("a.b", "server")]
)
def test_a_host_finds_the_nodes_and_imports_only_what_is_listed(
    folder: str, has_server: str, tmp_path: Path, companions: set[str]
) -> None:
    path = tmp_path / folder
    path.symlink_to(ROOT, target_is_directory=True)
    done = run_python(HOST, str(path), has_server, "")
    assert done.returncode == 0, done.stderr
    web, nodes, titles, has_entrypoint, routes, foreign = json.loads(done.stdout)
    assert nodes == [*NODE_CLASS_MAPPINGS]
    assert titles == [*NODE_DISPLAY_NAME_MAPPINGS]
    assert (path / web).is_dir()
    assert not has_entrypoint
    assert routes == (
        [f"/weighted_clip/{name}" for name in ("inspect", "check", "convert", "infotext", "picture")]
        if has_server
        else []
    )
    assert {*foreign} - companions == NEEDED


def test_nodes_that_cannot_be_imported_are_an_error_and_not_absent() -> None:
    """A host asks with ``hasattr``, which takes an AttributeError of a library for an answer."""
    done = run_python(HOST, str(ROOT), "", "broken")
    assert done.returncode == 1
    assert "bfloat16" in done.stderr
    assert "ImportError" in done.stderr.splitlines()[-1]


def test_the_package_has_what_it_names_and_nothing_else() -> None:
    assert {name for name in weighted_clip.__all__ if not hasattr(weighted_clip, name)} == set()
    assert weighted_clip.Encoders is Encoders
    with pytest.raises(AttributeError, match=r"'weighted_clip' has no attribute 'Encoder'"):
        weighted_clip.Encoder  # noqa: B018
