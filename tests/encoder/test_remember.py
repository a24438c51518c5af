"""The cache of an encoder: its size, lifetime and keys."""

import threading
from collections.abc import Iterator
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
