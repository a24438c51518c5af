"""Two processes that write one file or folder at once, and processes that are killed: whole files, nothing lost."""

from __future__ import annotations

import argparse
import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from weighted_clip.studio.commands.processes import alone
from weighted_clip.studio.commands.program import main
from weighted_clip.studio.output import files
from weighted_clip.studio.output.files import RUN_LOCK_NAME, TEMPORARY_SUFFIX, alone_in, written_whole

from ..patience import SECONDS
from . import kills
from .disks import ROOT, environment, snapshot

WRITER = """
import runpy, sys
from pathlib import Path
files = runpy.run_path(sys.argv[2])
with files[sys.argv[3]](Path(sys.argv[1])) as place:
    if place is not None:
        place.write_bytes(b"half")
    print("inside", flush=True)
    sys.stdin.read()
    if place is not None:
        place.write_bytes(b"theirs, whole")
"""


@contextmanager
def other_process(path: Path, what: str = "written_whole") -> Iterator[subprocess.Popen[str]]:
    """Another process, in the middle of a file, or of a run in a folder; it goes on when its input is closed."""
    command = [sys.executable, "-c", WRITER, str(path), str(ROOT / "studio" / "output" / "files.py"), what]
    with subprocess.Popen(
        command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "inside\n"
            yield process
        finally:
            process.kill()


def finish(process: subprocess.Popen[str]) -> None:
    """Let another process go on to its end."""
    _, error = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, error


@pytest.mark.parametrize("is_there", [True, False])
def test_of_two_processes_each_puts_its_own_file_there(tmp_path: Path, is_there: bool) -> None:
    path = tmp_path / "file.bin"
    if is_there:
        path.write_bytes(b"old")
    with other_process(path) as process:
        with written_whole(path) as place:
            place.write_bytes(b"ours, whole")
        assert path.read_bytes() == b"ours, whole"
        finish(process)
    assert snapshot(tmp_path) == {"file.bin": b"theirs, whole"}
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_in_the_middle_of_another_is_still_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    with written_whole(path) as place:
        place.write_bytes(b"ha")
        with other_process(path) as process:
            finish(process)
        assert path.read_bytes() == b"theirs, whole"
        place.write_bytes(b"ours, whole")
    assert snapshot(tmp_path) == {"file.bin": b"ours, whole"}


def test_a_file_is_not_moved_for_another_process_that_is_still_writing_it(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    with ExitStack() as stack:
        with written_whole(path) as place:
            place.write_bytes(b"ours, whole")
            process = stack.enter_context(other_process(path))
        assert path.read_bytes() == b"ours, whole"
        finish(process)
    assert snapshot(tmp_path) == {"file.bin": b"theirs, whole"}


def test_what_a_kill_left_goes_and_what_a_living_process_writes_stays(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    temporary = tmp_path / f"file.bin{TEMPORARY_SUFFIX}"
    with other_process(path) as living:
        with other_process(path) as killed:
            assert len([*temporary.rglob("whole.bin")]) == 2
            killed.kill()
            killed.wait()
        with written_whole(path) as place:
            place.write_bytes(b"ours, whole")
        assert len([*temporary.rglob("whole.bin")]) == 1
        finish(living)
    assert snapshot(tmp_path) == {"file.bin": b"theirs, whole"}


@pytest.mark.skipif(os.name != "posix", reason="only POSIX removes a file that is open")
def test_a_folder_that_is_removed_while_it_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.bin"
    temporary = tmp_path / f"file.bin{TEMPORARY_SUFFIX}"
    lock, counted = files._lock, []

    def lock_late(descriptor: int) -> None:
        counted.append(descriptor)
        if len(counted) == 1:  # another cleans up between the making of the lock and its locking
            files._remove_remains(temporary)
            files._remove_empty(temporary)
            assert not temporary.exists()
        lock(descriptor)

    monkeypatch.setattr(files, "_lock", lock_late)
    with written_whole(path) as place:
        assert place.parent.is_dir()
        assert len(counted) > 2
        files._remove_remains(temporary)
        place.write_bytes(b"ours, whole")
    assert snapshot(tmp_path) == {"file.bin": b"ours, whole"}


def test_without_locks_files_are_whole_and_what_is_left_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lock(_: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    path = tmp_path / "file.bin"
    left = tmp_path / f"file.bin{TEMPORARY_SUFFIX}" / "0"
    left.mkdir(parents=True)
    (left / "whole.bin").write_bytes(b"half")
    monkeypatch.setattr(files, "_lock", lock)
    with written_whole(path) as outer:
        outer.write_bytes(b"outer")
        with written_whole(path) as inner:
            inner.write_bytes(b"inner")
        assert path.read_bytes() == b"inner"
    assert path.read_bytes() == b"outer"
    assert (left / "whole.bin").read_bytes() == b"half"
    with alone_in(tmp_path), alone_in(tmp_path):  # nobody can be kept out
        pass


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_that_may_not_be_replaced_is_never_there_unwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    path = tmp_path / "file.bin"
    seen: list[bool] = []
    for name in ("link", "rename", "replace"):
        real = getattr(os, name)

        def moved(source: str, target: str, name: str = name, real=real) -> None:
            if Path(target) == path:
                seen.append(path.exists())
                if name == "link" and not has_links:
                    raise OSError(errno.EPERM, os.strerror(errno.EPERM))
            real(source, target)

        monkeypatch.setattr(os, name, moved)
    with written_whole(path, may_replace=False) as place:
        place.write_bytes(b"whole")
    assert seen
    assert not any(seen)
    assert snapshot(tmp_path) == {"file.bin": b"whole"}
    assert path.stat().st_nlink == 1
    with pytest.raises(OSError, match=r"file\.bin cannot be written: "):  # noqa: SIM117
        with written_whole(path, may_replace=False) as place:
            place.write_bytes(b"another")
    assert snapshot(tmp_path) == {"file.bin": b"whole"}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can exchange two folders")
def test_a_folder_is_replaced_in_one_step_where_the_system_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, is_possible in enumerate((True, True, False)):
        with monkeypatch.context() as patch:
            if number and is_possible:
                patch.setattr(Path, "rename", lambda *_: pytest.fail("in two steps"))
            elif number:
                patch.setattr(files.ctypes, "CDLL", lambda _: None)
            with files.folder_written_whole(tmp_path / "folder", may_replace=True) as whole:
                (whole / str(number)).touch()
        assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["folder", f"folder/{number}"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_hundreds_of_kills_leave_whole_files_only() -> None:
    command = [sys.executable, "-m", "tests.faults.kills", "--count", "200"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(map(int, re.findall(r"(\d+) killed", done.stdout))) > 100
    assert done.stdout.count(" 0 found\n") == len(kills.KINDS)


# ---- runs in one folder

COMMANDS = {
    "encode --batch": ["encode", "--batch", "{gone}", "--out", "{out}"],
    "train": ["train", "{gone}", "--weights", "{gone}", "--out", "{out}"],
    "train --resume": ["train", "{gone}", "--weights", "{gone}", "--out", "{out}", "--resume"],
    "train --objective mlm": ["train", "{gone}", "--weights", "{gone}", "--out", "{out}", "--objective", "mlm"],
    "train --objective classify": [
        "train",
        "{gone}",
        "--weights",
        "{gone}",
        "--out",
        "{out}",
        "--objective",
        "classify",
    ],
    "dalle train-vae": ["dalle", "train-vae", "{gone}", "--out", "{out}"],
    "dalle train": ["dalle", "train", "{gone}", "--dvae", "{gone}", "--out", "{out}"],
    "dalle sample": ["dalle", "sample", "{gone}", "a cat", "--out", "{out}"],
    "dalle demo": ["dalle", "demo", "{out}", "--vae-steps", "0"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_second_run_in_one_folder_is_told(name: str, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    command = [part.format(out=out, gone=tmp_path / "gone") for part in COMMANDS[name]]
    with other_process(out, "alone_in"):
        (out / "log.jsonl").write_text("theirs", encoding="utf-8")
        assert main(command) == 1
        assert f"weighted-clip: {out}: another run is writing there" in capsys.readouterr().err
        assert snapshot(out) == {RUN_LOCK_NAME: b"", "log.jsonl": b"theirs"}


def test_a_killed_run_keeps_nobody_out(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with other_process(out, "alone_in") as process:
        with pytest.raises(ValueError, match="another run is writing there"), alone_in(out):
            pytest.fail("two runs in one folder")
        os.kill(process.pid, signal.SIGTERM if os.name == "nt" else signal.SIGKILL)
        process.wait()
    assert (out / RUN_LOCK_NAME).exists()
    left = out / f"checkpoint.pt{TEMPORARY_SUFFIX}"
    left.mkdir()
    (left / "whole.pt").write_bytes(b"half")
    with alone_in(out):
        assert [path.name for path in out.iterdir()] == [RUN_LOCK_NAME]
    assert list(out.iterdir()) == []


def test_only_the_first_of_several_processes_locks_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = argparse.Namespace(out=tmp_path / "out")
    monkeypatch.setenv("WORLD_SIZE", "2")
    run = alone(lambda given: len([*given.out.iterdir()]))
    for rank, num_files in ((0, 1), (1, 0)):
        monkeypatch.setenv("RANK", str(rank))
        assert run(arguments) == num_files
    with alone_in(arguments.out):
        assert run(arguments) == 1  # the second beside the first
        monkeypatch.setenv("RANK", "0")
        with pytest.raises(ValueError, match="another run is writing there"):
            run(arguments)


def test_a_folder_made_for_nothing_goes_again(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for folder in (tmp_path / "a" / "b", tmp_path / "mine"):
        with pytest.raises(ValueError, match="wrong"), alone_in(folder):
            assert folder.is_dir()
            raise ValueError("wrong")
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]
    with alone_in(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "log").touch()
    assert (tmp_path / "a" / "b" / "log").exists()


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path, capsys) -> None:
    (tmp_path / "out").write_bytes(b"mine")
    assert main(["dalle", "demo", str(tmp_path / "out")]) == 1
    assert f"{tmp_path / 'out'} is a file, and no folder" in capsys.readouterr().err
