"""Free memory by made-up files of Linux, in machines, services and containers; and here."""

import sys
from pathlib import Path

import pytest
from weighted_clip.encoder.fast import free_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells so much")

GIB = 2**30
UNLIMITED = 9223372036854771712
"""Limit of version 1 where none is set."""


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """Folders for /proc, with 8 GiB available, and for /sys/fs/cgroup."""
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: {16 * 2**20} kB\nMemFree: 5 kB\nMemAvailable: {8 * 2**20} kB\n")
    groups.mkdir()
    return proc, groups


def group(folder: Path, limit: object, used: int, cached: int, version: int = 2) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    one = version == 1
    (folder / ("memory.limit_in_bytes" if one else "memory.max")).write_text(f"{limit}\n")
    (folder / ("memory.usage_in_bytes" if one else "memory.current")).write_text(f"{used}\n")
    active, total = cached // 4, "total_" if one else ""
    files = f"{total}inactive_file {cached - active}\n{total}active_file {active}\n"
    (folder / "memory.stat").write_text(f"anon 77\ninactive_file_else 3\n{files}")


def test_without_groups_the_machine_counts(places: tuple[Path, Path]) -> None:
    assert free_bytes(*places) == 8 * GIB
    (places[0] / "self" / "cgroup").write_text("0::/\n1:cpu:/x\n")
    assert free_bytes(*places) == 8 * GIB


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("line", "path"),
    [("/", ""), ("/system.slice/host.service", "system.slice/host.service"), ("/outside/of/a/container", "")],
    ids=["root", "service", "container"],
)
def test_a_limit_counts_with_the_file_cache_that_can_be_dropped(
    places: tuple[Path, Path], line: str, path: str, version: int
) -> None:
    proc, groups = places
    (proc / "self" / "cgroup").write_text(f"9:name=systemd:/\n{'4:memory' if version == 1 else '0:'}:{line}\n")
    group(groups / ("memory" if version == 1 else "") / path, 4 * GIB, 3 * GIB, GIB // 2, version)
    assert free_bytes(*places) == GIB + GIB // 2


def test_the_tightest_limit_counts(places: tuple[Path, Path]) -> None:
    proc, groups = places
    (proc / "self" / "cgroup").write_text("0::/a/b\n")
    group(groups / "a" / "b", "max", 5 * GIB, 0)
    group(groups / "a", 6 * GIB, 5 * GIB, 0)
    group(groups, 100 * GIB, GIB, 0)
    assert free_bytes(*places) == GIB
    group(groups / "a" / "b", 2 * GIB, 2 * GIB, 7)
    assert free_bytes(*places) == 7


def test_no_limit_is_no_limit(places: tuple[Path, Path]) -> None:
    proc, groups = places
    (proc / "self" / "cgroup").write_text("0::/\n4:memory:/\n")
    group(groups, "max", 5 * GIB, 0)
    group(groups / "memory", UNLIMITED, 5 * GIB, 0, version=1)
    assert free_bytes(*places) == 8 * GIB


def test_a_system_that_does_not_tell(places: tuple[Path, Path]) -> None:
    (places[0] / "meminfo").write_text("MemTotal: 5 kB\n")
    assert free_bytes(*places) is None
    (places[0] / "meminfo").unlink()
    assert free_bytes(*places) is None


def test_here_there_is_some() -> None:
    found = free_bytes()
    assert found is None or 0 < found < 2**50
