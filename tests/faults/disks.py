"""Disks that are full and folders that cannot be written to: real ones, where there are means."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from weighted_clip.encoder.models.config import TextConfig

from ..patience import SECONDS

ROOT = Path(__file__).resolve().parents[2]
CONFIG = TextConfig(hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=64)
"""Sizes of the tiny text encoder that is written, loaded and run."""


@contextmanager
def mounted(folder: Path, size: str = "1m") -> Iterator[Path]:
    """A file system of its own in a folder, of a size; skips the test where nobody may mount one."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=777", "none", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"this system has no mount: {error}")
    if done.returncode:
        pytest.skip(f"needs the right to mount a file system: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


@contextmanager
def read_only(folder: Path) -> Iterator[Path]:
    """A folder that cannot be written to while the context lasts; for root, whom no mode keeps out, a mount."""
    if os.name == "posix" and os.geteuid() == 0:
        for command in (["mount", "--bind", folder, folder], ["mount", "-o", "remount,ro,bind", folder]):
            done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
            if done.returncode:
                subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)
                pytest.skip(f"needs the right to mount a folder read-only: {done.stderr.strip()}")
        try:
            yield folder
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)
        return
    before = folder.stat().st_mode
    folder.chmod(0o555)
    try:
        if os.access(folder, os.W_OK):
            pytest.skip("this system lets its user write into a folder whose mode forbids it")
        yield folder
    finally:
        folder.chmod(before)


def filled(folder: Path, *, left: int) -> None:
    """Fill a small file system except for some bytes."""
    about = os.statvfs(folder)
    size = about.f_bavail * about.f_frsize - left
    (folder / "filling").write_bytes(b"0" * max(0, size))


@contextmanager
def file_limit(num_bytes: int) -> Iterator[None]:
    """No file of this process may become longer; needs no rights."""
    resource = pytest.importorskip("resource")
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def snapshot(folder: Path) -> dict[str, bytes]:
    """All files of a folder and those in it, by path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def environment(**more: str) -> dict[str, str]:
    """That of a program that shares nothing with this one."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**inherited, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **more}


def program(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    command = [sys.executable, "-P", str(ROOT / "__main__.py"), *map(str, arguments)]
    given = {"env": environment(), "capture_output": True, **options}
    return subprocess.run(command, text=True, check=False, timeout=SECONDS, **given)  # pyright: ignore
