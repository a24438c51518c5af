"""The archive for the Comfy Registry: its files, and that the pack works from them alone.

comfy-cli packs what git tracks and .comfyignore does not name, by the rules of .gitignore. workshop/archive.py has git
read these rules; here they are read a third time, by code of our own.
"""

from __future__ import annotations

import fnmatch
import importlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import weighted_clip
from weighted_clip.workshop import archive as workshop_archive

ROOT = Path(__file__).resolve().parents[2]
NEVER = ("tests", "workshop", "docs/evidence", "docs/images", ".github", ".venv")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """workshop/archive.py, where this is a checkout by git."""
    if not (ROOT / ".git").exists():
        pytest.skip("this folder is no checkout by git")
    return workshop_archive


@pytest.fixture(scope="module")
def archive(tool: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive as a file."""
    path = tmp_path_factory.mktemp("archive") / "node.zip"
    tool.write_archive(path)
    return path


@pytest.fixture(scope="module")
def unpacked(archive: Path) -> Path:
    """The archive in a folder with a name that is no identifier."""
    folder = archive.parent / "weighted-clip 1.0"
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(folder)
    return folder


def run(unpacked: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program of ours in the unpacked archive; this Python has what it needs."""
    command = [sys.executable, "-P", *arguments] if sys.version_info >= (3, 11) else [sys.executable, *arguments]
    return subprocess.run(command, cwd=unpacked.parent, capture_output=True, encoding="utf-8", check=False)


def is_named(name: str, patterns: list[str]) -> bool:
    """Whether patterns with a slash at their beginning name a file: the last that does so counts."""
    result = False
    for pattern in patterns:
        wanted = pattern.removeprefix("!").strip("/").split("/")
        parts = name.split("/")[: len(wanted)]
        if len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted)):
            if pattern.endswith("/") and len(name.split("/")) == len(wanted):
                continue  # for folders only, and this is a file
            result = not pattern.startswith("!")
    return result


def test_the_files_are_those_that_the_patterns_leave(tool: ModuleType, archive: Path) -> None:
    lines = (ROOT / ".comfyignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    assert all(pattern.removeprefix("!").startswith("/") for pattern in patterns)  # is_named() knows no others
    tracked = tool.git(ROOT, "ls-files", "-z")
    for pattern in patterns:
        assert any(is_named(name, [pattern.removeprefix("!")]) for name in tracked), f"{pattern} names nothing"
    with zipfile.ZipFile(archive) as opened:
        names = opened.namelist()
    assert set(names) == {name for name in tracked if not is_named(name, patterns) and (ROOT / name).exists()}
    assert len(names) > 300
    assert not [name for name in names if name.startswith(tuple(f"{folder}/" for folder in NEVER))]


def test_the_pack_loads_from_the_archive_as_comfyui_loads_it(unpacked: Path) -> None:
    script = """
import importlib, importlib.util, json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
name = str(folder).replace(".", "_x_")
spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
pack = sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pack)
nodes = list(pack.NODE_CLASS_MAPPINGS)
for path in sorted(folder.rglob("*.py")):
    parts = path.relative_to(folder).with_suffix("").parts
    if len(parts) > 1 and parts[:2] != ("web", "lab") and parts[0] != "scripts" and parts[-1] != "__init__":
        importlib.import_module(".".join([name, *parts]))
print(json.dumps([nodes, pack.__version__, (folder / pack.WEB_DIRECTORY / "ruler.js").is_file()]))
"""
    done = run(unpacked, "-c", script, str(unpacked))
    assert done.returncode == 0, done.stderr
    nodes, version, has_scripts = json.loads(done.stdout)
    assert nodes == list(weighted_clip.NODE_CLASS_MAPPINGS)
    assert (version, has_scripts) == (weighted_clip.__version__, True)


def test_the_command_line_reads_a_prompt_in_the_archive(unpacked: Path) -> None:
    prompt = ("inspect", "a (cat:1.2)", "--json")
    here, there = run(unpacked, str(ROOT / "__main__.py"), *prompt), run(unpacked, str(unpacked), *prompt)
    assert (there.returncode, there.stderr) == (0, here.stderr)
    assert json.loads(there.stdout) == json.loads(here.stdout)
    assert "cat" in there.stdout


def test_the_small_world_draws_in_the_archive(unpacked: Path, tmp_path: Path) -> None:
    pictures = []
    for name, program in (("here", ROOT / "__main__.py"), ("there", unpacked)):
        out = tmp_path / f"{name}.png"
        done = run(
            unpacked, str(program), "world", "sample", "a red circle", "--steps", "2", "--count", "1", "--out", str(out)
        )
        assert done.returncode == 0, done.stderr
        pictures.append(out.read_bytes())
    assert pictures[0] == pictures[1]


@pytest.mark.parametrize("arguments", [("parity", "--hosts", "x"), ("bench",)])
def test_commands_that_are_left_out_say_where_they_are(unpacked: Path, arguments: tuple[str, ...]) -> None:
    said = f"{arguments[0]} is not in the archive of the Comfy Registry; it is in the project's repository\n"
    for program, name in ((unpacked, "weighted-clip"), (unpacked / "run.py", "run.py")):
        done = run(unpacked, str(program), *arguments)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{name}: {said}")


@pytest.mark.parametrize("name", ["lab", "train"])
def test_run_py_has_the_lists_of_what_it_installs(unpacked: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(unpacked)
    monkeypatch.delitem(sys.modules, "run", raising=False)
    program = importlib.import_module("run")
    pins = program.read_requirements(unpacked / "requirements" / f"{name}.txt")
    assert pins
    there = {"python": program.PYTHON, "pip": True, "torch": "2.13.0", "site": ""}
    monkeypatch.setattr(program, "probe", lambda: there)
    monkeypatch.setattr(program, "reason_to_rebuild", lambda *_: "")
    monkeypatch.setattr(program, "read_stamp", lambda: {name: program.digest(pins)})
    program.prepare(name, "auto")  # all is there already: nothing is installed
    assert not (unpacked / ".venv").exists()


@pytest.mark.parametrize("command", ["test", "check"])
def test_run_py_refuses_what_is_for_developers(unpacked: Path, command: str) -> None:
    done = run(unpacked, str(unpacked / "run.py"), command)
    assert done.returncode == 1
    assert done.stderr.startswith(f"run.py: {command} is not in the archive of the Comfy Registry; ")
    assert not (unpacked / ".venv").exists()
