"""Nothing is run, written or sent because of the content of a prompt, a file or a request. See SECURITY.md."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from . import hostile

ALLOWED = {"array.__new__", "builtins.id", "os.listdir", "os.scandir", "os.walk", "open own file to read"}
"""Events that hostile input may cause: looking up what is in the folder of embeddings, and reading a file of it; and
asking the system how much memory is free."""
CONTROLS = {
    "control_eval": {"compile", "exec"},
    "control_command": {"os.system"},
    "control_pickle": {"pickle.find_class", "open"},  # its payload opens a file to write
    "control_write": {"open"},
}
"""Events the hook sees for actions that hostile input must not cause."""


def events(folder: Path, control: str = "") -> set[str]:
    command = [sys.executable, "-P", hostile.__file__, str(folder), *filter(None, [control])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {name for name, _ in json.loads(done.stdout)}


def test_hostile_prompts_files_and_requests_only_look_into_their_folder(tmp_path: Path) -> None:
    assert events(tmp_path) <= ALLOWED
    assert not (tmp_path / hostile.MARKER).exists()
    assert [path.name for path in tmp_path.iterdir()] == ["embeddings"]


@pytest.mark.parametrize("control", CONTROLS)
def test_the_hook_would_see_it(tmp_path: Path, control: str) -> None:
    assert CONTROLS[control] <= events(tmp_path, control) - ALLOWED
    assert (tmp_path / hostile.MARKER).exists() == (control == "control_pickle")
