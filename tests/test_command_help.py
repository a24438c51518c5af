"""Messages of the command line: its commands, version, examples; errors in one line; progress."""

from __future__ import annotations

import argparse
import json
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
import weighted_clip
from weighted_clip.studio.commands import console
from weighted_clip.studio.commands.program import COMMANDS, EXAMPLES, main, make_parser

from .test_run import run  # noqa: F401
from .test_starting import MISTYPED

ROOT = Path(__file__).resolve().parents[1]


def program(*arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """Output of a command, run as a program."""
    return subprocess.run([python, *arguments], capture_output=True, encoding="utf-8", check=False)


@pytest.mark.parametrize(
    ("name", "examples"), [("", EXAMPLES), *((command.name, command.examples) for command in COMMANDS)]
)
def test_examples_can_be_typed_and_are_shown(name: str, examples: Sequence[str], capsys) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([*name.split(), "--help"], "python run.py")
    lines = [f"  {' '.join(part for part in ('python run.py', name, example) if part)}" for example in examples]
    assert lines
    assert capsys.readouterr().out.splitlines()[-len(lines) - 1 :] == ["examples:", *lines]
    for line in lines:
        words, _, _ = line.removeprefix("  python run.py").partition(" < ")
        if words:
            make_parser().parse_args(shlex.split(words))


def test_the_list_of_run_py_is_that_of_the_program(run: ModuleType) -> None:  # noqa: F811
    (commands,) = (action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction))
    assert run.commands() == {action.dest: action.help for action in commands._choices_actions}


def test_run_py_lists_the_commands_and_its_version_with_nothing_installed() -> None:
    bare = ("-I", "-S", str(ROOT / "run.py"))
    shown = program(*bare, "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    for name in ("inspect", "rerank", "dalle", "test", "check"):
        assert f"\n    {name} " in shown.stdout
    assert program(*bare, "--version").stdout == f"weighted-clip {weighted_clip.__version__}\n"
    assert program(str(ROOT), "--version").stdout == f"weighted-clip {weighted_clip.__version__}\n"


@pytest.mark.parametrize("name", MISTYPED)
def test_what_is_wrong_with_a_command_is_one_line(name: str, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(MISTYPED[name])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("weighted-clip")
    assert line.endswith("--help)")


def test_a_mistyped_option_is_answered_with_the_nearest_of_its_command(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["encode", "a", "--shceme", "comfy", "line\nbreak"])
    assert capsys.readouterr().err == (
        "weighted-clip encode: unrecognized arguments: --shceme comfy line break; did you mean --scheme? "
        "(weighted-clip encode --help)\n"
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["inspct", "a"], "weighted-clip: there is no command 'inspct'; did you mean inspect? "),
        (["xyz", "a"], "weighted-clip: there is no command 'xyz' "),
        (["inspect", "a", "red", "cat"], "unrecognized arguments: red cat; a text of several words needs quotes"),
        (["convert", "a", "cat", "--to", "compel"], "unrecognized arguments: cat; a text of several words"),
    ],
)
def test_a_mistyped_command_and_forgotten_quotes_are_told(given: list[str], told: str, capsys) -> None:
    with pytest.raises(SystemExit):
        main(given)
    assert told in capsys.readouterr().err


def test_json_in_a_pipe_is_alone_there_and_what_was_written_is_said(capsys, monkeypatch) -> None:
    assert main(["inspect", "a cat BREAK [dog", "--json"]) == 0
    written = capsys.readouterr()
    assert json.loads(written.out)["num_tokens"] == 3
    assert written.err == "3 tokens in 2 chunks, 1 problem: written as JSON to the standard output\n"
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True, raising=False)
    assert main(["inspect", "a cat", "--json"]) == 0
    assert capsys.readouterr().err == ""


def test_a_port_that_is_taken_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        weights = str(tmp_path / "nowhere.safetensors")
        done = program("-X", "importtime", str(ROOT), "lab", "--port", str(port), "--weights", weights)
    assert done.returncode == 1
    assert f"weighted-clip: port {port} cannot be used" in done.stderr
    assert "choose another with --port" in done.stderr
    assert not [line for line in done.stderr.splitlines() if line.endswith(("| torch", " torch", " gradio"))]


@pytest.mark.parametrize("port", ["-1", "70000"])
def test_a_port_that_is_none_is_refused(port: str, capsys) -> None:
    assert main(["lab", "--port", port]) == 1
    assert f"a port is a number from 0 to 65535; got {port}" in capsys.readouterr().err


def test_progress_in_a_pipe_is_lines_that_stay(capsys, monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    progress = console.Progress()
    for number in range(12):
        progress.tell(f"{number} of 12")
        now[0] += 2
    progress.clear()
    lines = capsys.readouterr().err
    assert lines == "3 of 12\n6 of 12\n9 of 12\n"


def test_progress_on_a_terminal_is_one_line(capsys, monkeypatch) -> None:
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda self: True, raising=False)
    progress = console.Progress()
    progress.tell("1 of 2")
    progress.tell("2 of 2")
    progress.clear()
    shown = capsys.readouterr().err
    assert "\n" not in shown
    assert [part.strip() for part in shown.split("\r") if part.strip()] == ["1 of 2", "2 of 2"]
