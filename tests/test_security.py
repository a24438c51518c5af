"""Nothing is run, written or sent because of the content of a prompt, a file or a request. See docs/SECURITY.md."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

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


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Output of `hostile.py`."""
    command = [sys.executable, "-P", hostile.__file__, str(tmp_path_factory.mktemp("hostile")), *CONTROLS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def names(events: list[tuple[str, str]]) -> set[str]:
    return {name for name, _ in events}


def test_hostile_prompts_files_and_requests_only_look_into_their_folder(seen: dict[str, dict[str, Any]]) -> None:
    assert names(seen[""]["events"]) <= ALLOWED
    assert seen[""]["new"] == []


@pytest.mark.parametrize("control", CONTROLS)
def test_the_hook_would_see_it(seen: dict[str, dict[str, Any]], control: str) -> None:
    assert CONTROLS[control] <= names(seen[control]["events"]) - ALLOWED
    expected = {"control_pickle": [hostile.MARKER], "control_write": ["written"]}
    assert seen[control]["new"] == expected.get(control, [])
