"""Folders that cannot be written to, and folders that are not there: said without a traceback, or no matter at all."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from weighted_clip.commands.program import main
from weighted_clip.encoder.config import TextConfig
from weighted_clip.output.files import written_whole

from ..patience import SECONDS
from .disks import ROOT, environment, read_only, snapshot

CONFIG = TextConfig(hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=64)


@pytest.mark.parametrize("inner", ["", "new"])
@pytest.mark.parametrize("command", [["a cat"], ["--batch", "prompts.txt"]])
def test_an_output_folder_that_cannot_be_written_to_is_named(
    command: list[str], inner: str, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text("a cat\n", encoding="utf-8")
    out = tmp_path / "out"
    out.mkdir()
    (out / "prompt.safetensors").write_bytes(b"old")
    with read_only(out):
        assert main(["encode", *command, "--weights", str(weights), "--out", str(out / inner)]) == 1
    shown, error = capsys.readouterr()
    assert str(out) in error
    assert "Traceback" not in shown + error
    assert snapshot(out) == {"prompt.safetensors": b"old"}


def test_a_file_in_a_folder_that_cannot_be_written_to_is_named_and_stays(tmp_path: Path) -> None:
    chart = tmp_path / "out" / "chart.png"
    chart.parent.mkdir()
    chart.write_bytes(b"old")
    refused = pytest.raises(OSError, match=r"chart\.png cannot be written: (Read-only|Permission)")
    with read_only(chart.parent), refused, written_whole(chart):
        pytest.fail("there is no place to write at")
    assert snapshot(tmp_path) == {"out/chart.png": b"old"}


PACK = """
import sys
sys.dont_write_bytecode = False
import weighted_clip
from weighted_clip.commands.program import main
assert weighted_clip.NODE_CLASS_MAPPINGS
sys.exit(main(sys.argv[1:]))
"""


def copied_pack(folder: Path) -> Path:
    """The pack as an installer leaves it: no tests, no caches."""
    kept = shutil.ignore_patterns("tests", "docs", "__pycache__", ".*", "out", "example_workflows")
    return Path(shutil.copytree(ROOT, folder / "weighted_clip", ignore=kept))


@pytest.mark.skipif(os.name != "posix", reason="mounts and modes of POSIX")
def test_a_pack_in_a_read_only_folder_works_without_a_home_and_writes_nothing(weights: Path, tmp_path: Path) -> None:
    place = tmp_path / "custom_nodes"
    pack = copied_pack(place)
    before = snapshot(pack)
    nowhere = {name: "/nonexistent" for name in ("HOME", "XDG_CACHE_HOME", "TMPDIR")}
    given = environment(PYTHONPATH=str(place), **nowhere)
    given.pop("PYTHONDONTWRITEBYTECODE")
    command = [
        sys.executable,
        "-c",
        PACK,
        "encode",
        "a (red:1.3) cat",
        "--weights",
        str(weights),
        "--figures",
        "--out",
        "out",
    ]
    with read_only(place):
        done = subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert snapshot(pack) == before
    assert len(snapshot(tmp_path / "out")) == 5


def test_the_lab_says_that_there_is_no_place_for_temporary_files(tmp_path: Path) -> None:
    pytest.importorskip("gradio")
    blocker = "import tempfile; tempfile.tempdir = '/nonexistent'; "
    code = f"import sys; {blocker}sys.argv = ['x', 'lab', '--no-browser', '--port', '0']; import runpy; "
    code += f"runpy.run_path({str(ROOT / '__main__.py')!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 1
    assert "weighted-clip: [Errno 2] No such file or directory: '/nonexistent/" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_lack_of_memory_is_said_without_a_traceback(monkeypatch: pytest.MonkeyPatch, weights: Path, capsys) -> None:
    for error in (
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory"),
    ):

        def fail(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr("weighted_clip.encoder.files.checkpoint.load_text_models", fail)
        assert main(["encode", "a cat", "--weights", str(weights)]) == 1
        message = capsys.readouterr().err
        assert message.startswith("weighted-clip: there is not enough memory (")
        assert str(error) in message
    monkeypatch.setattr("weighted_clip.encoder.files.checkpoint.load_text_models", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # a fault of ours is shown as one
        main(["encode", "a cat", "--weights", str(weights)])
