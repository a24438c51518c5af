"""The cache of an encoder: its size, lifetime and keys; and free memory, by made-up files of Linux and here."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from weighted_clip.encoder.cache import (
    MEBIBYTE,
    VARIABLE,
    Attempt,
    Memory,
    chunk_keys,
    default_bytes,
    remembering,
    state_of,
)
from weighted_clip.encoder.encoding import Encoding
from weighted_clip.encoder.models.fast_layers import free_bytes

KIB = torch.zeros(256)


def test_the_least_used_goes_first() -> None:
    memory = Memory(3 * 1024)
    for name in "abc":
        memory.put(name, (KIB,))
    assert memory.get("a") is not None
    memory.put("d", (KIB,))
    assert memory.keys() == ["c", "a", "d"]
    assert (memory.get("b"), memory.num_bytes) == (None, 3 * 1024)


def test_bytes_are_counted_over_all_tensors_of_an_entry() -> None:
    memory = Memory(3 * 1024)
    memory.put("two", (KIB, KIB))
    memory.put("two", (KIB,))  # instead of the first
    assert memory.num_bytes == 1024
    memory.put("too large", (KIB, KIB, KIB, KIB))
    assert memory.keys() == ["two"]
    memory.forget(memory.keys())
    assert (len(memory), memory.num_bytes) == (0, 0)


def test_an_entry_as_large_as_the_memory_is_remembered() -> None:
    memory = Memory(1024)
    memory.put("a", (KIB,))
    assert memory.keys() == ["a"]
    memory.put("b", (KIB,))
    assert (memory.keys(), memory.num_bytes) == (["b"], 1024)


def test_nothing_is_remembered_in_no_bytes() -> None:
    memory = Memory(0)
    memory.put("a", (KIB,))
    assert memory.get("a") is None
    with pytest.raises(ValueError, match="-1 bytes"):
        Memory(-1)


def test_many_threads_leave_the_count_right() -> None:
    memory = Memory(20 * 1024)

    def work(seed: int) -> None:
        for number in range(500):
            memory.put((seed * number) % 37, (KIB,))
            memory.get(number % 37)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert memory.num_bytes == 1024 * len(memory) <= 20 * 1024


class Asked:
    """An encoder whose hidden states are its ids, with the chunks and masks that it was asked for."""

    def __init__(self) -> None:
        self.ids: list[Any] = []
        self.masks: list[Any] = []

    def __call__(self, ids: Any, mask: torch.Tensor | None, is_causal: bool, attempt: Attempt) -> Encoding:
        self.ids.append(list(ids))
        self.masks.append(mask)
        rows = torch.tensor(ids, dtype=torch.float32)
        return Encoding(rows.unsqueeze(-1), rows[:, :1])


def test_only_different_chunks_that_are_not_remembered_are_asked_for() -> None:
    asked = Asked()
    encode = remembering(asked, Memory(MEBIBYTE), lambda: "the same")
    for ids in ([[1, 2], [1, 3], [1, 2]], [[1, 3], [1, 4], [1, 2]]):
        assert encode(ids).hidden.squeeze(-1).tolist() == ids
    mask = torch.tensor([[[True, True]], [[True, False]]])
    encode([[1, 2], [1, 2]], mask)  # the first hides nothing, so it is known
    assert asked.ids == [[[1, 2], [1, 3]], [[1, 4]], [[1, 2]]]
    assert asked.masks[2].tolist() == [[[True, False], [True, False]]]


def test_nothing_is_remembered_of_a_call_in_which_the_scope_changes() -> None:
    memory: Memory[Any] = Memory(MEBIBYTE)
    scopes: Iterator[int] = iter(range(10))
    encode = remembering(Asked(), memory, lambda: next(scopes))
    assert encode([[1, 2]]).hidden.flatten().tolist() == [1, 2]
    assert len(memory) == 0


def test_without_a_scope_all_is_asked_for_just_as_it_comes() -> None:
    memory: Memory[Any] = Memory(MEBIBYTE)
    asked = Asked()
    mask = torch.ones(3, 1, 2, dtype=torch.bool)
    remembering(asked, memory, lambda: None)([[1, 2], [1, 2], [1, 3]], mask)
    assert asked.ids == [[[1, 2], [1, 2], [1, 3]]]
    assert asked.masks[0] is mask
    assert len(memory) == 0


def test_the_environment_says_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert default_bytes() == 64 * MEBIBYTE
    monkeypatch.setenv(VARIABLE, " 5 ")
    assert default_bytes() == 5 * MEBIBYTE
    monkeypatch.setenv(VARIABLE, "")
    assert default_bytes() == 64 * MEBIBYTE
    for wrong in ("-1", "much", "1.5"):
        monkeypatch.setenv(VARIABLE, wrong)
        with pytest.raises(ValueError, match=f"{VARIABLE}={wrong}"):
            default_bytes()


def test_keys_tell_of_what_is_hidden_from_a_position_and_no_more() -> None:
    ids = [[1, 2, 3]]
    mask = torch.ones(1, 1, 3, dtype=torch.bool)
    (plain,) = chunk_keys(ids, None, is_causal=True)
    assert chunk_keys(ids, mask, is_causal=True) == [plain]
    assert chunk_keys(ids, mask, is_causal=False) != [plain]
    mask[0, 0, 2] = False  # later positions are hidden from the first two anyhow
    (hides_last,) = chunk_keys(ids, mask, is_causal=True)
    assert hides_last.positions[:2] == plain.positions[:2]
    assert hides_last.positions[2] != plain.positions[2]
    (seen_by_all,) = chunk_keys(ids, mask, is_causal=False)
    assert all(key != token for key, token in zip(seen_by_all.positions, ids[0], strict=True))


def test_the_state_of_equal_weights_in_one_place_is_equal() -> None:
    module = torch.nn.Linear(20, 30)
    assert state_of(module) == state_of(module)
    assert state_of(torch.nn.Linear(20, 30)) != state_of(module)
    with torch.inference_mode():
        other = torch.nn.Linear(20, 30)
        before = state_of(other)
        other.weight.mul_(2)
        assert state_of(other) != before


# --- free memory


GIB = 2**30
UNLIMITED = 9223372036854771712
"""Limit of version 1 where none is set."""


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """Folders for /proc, with 8 GiB available, and for /sys/fs/cgroup."""
    if sys.platform != "linux":
        pytest.skip("Linux alone tells so much")
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
