"""Hostile files of strangers, given to the commands that read them: refused in words, in little memory and time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from weighted_clip.studio.commands.program import main

from ..fuzz.limited import Limited, Outcome, refused
from ..fuzz.model_files import ModelFile, controls, hostile_files
from ..libraries import is_torch
from ..patience import SECONDS

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process"),
    pytest.mark.skipif(not is_torch("2.5"), reason="this torch has no list of allowed globals"),
]

COMMANDS = ("convert-dvae", "convert-rudalle", "dalle sample")
READ = {
    "convert-rudalle: 60,000 entries",
    "dalle sample: a key twice",
    "dalle sample: merges that double",
}
"""Files that are unusual, and no more than that."""


@pytest.fixture(scope="module")
def limited() -> Iterator[Limited]:
    with Limited(SECONDS) as process:
        yield process


def outcome(file: ModelFile, limited: Limited, folder: Path) -> Outcome:
    folder.mkdir()
    return limited.run(file.written(folder))


def test_hostile_files_are_refused_in_words(limited: Limited, tmp_path: Path) -> None:
    """Those that the commands of DALL·E read: other files are the campaign's."""
    wrong: dict[str, Outcome] = {}
    names: list[str] = []
    for number, file in enumerate(hostile_files()):  # once: to make them takes as long as to refuse them
        names.append(file.name)
        if file.name.partition(": ")[0] in COMMANDS:
            end = outcome(file, limited, tmp_path / str(number))
            is_right = end.status == 0 if file.name in READ else refused(end) and "model." in end.told
            if not is_right or len(end.told) > 1500:
                wrong[file.name] = end
    assert not wrong
    assert len(names) == len(set(names)) >= 250


@pytest.mark.parametrize("command", COMMANDS)
def test_files_of_the_same_makers_that_are_in_order_are_read(command: str, limited: Limited, tmp_path: Path) -> None:
    [file] = [file for file in controls() if file.name == command]
    assert outcome(file, limited, tmp_path / "folder").status == 0


def test_a_command_that_ends_its_process_or_never_ends_is_seen(tmp_path: Path) -> None:
    with Limited(SECONDS) as process:
        assert process.run(["inspect", "a cat"]).status == 0
        assert process.run(["inspect", "--none"]).status == 2
    with Limited(0.01) as process:
        assert process.run(["inspect", "a cat"]).status == "never ended"


def test_the_message_on_memory_names_only_what_the_command_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("weighted_clip.studio.dalle.published.read_published", no_memory)
    monkeypatch.setattr("weighted_clip.studio.dalle.full_model.load_dalle", no_memory)
    monkeypatch.setattr("weighted_clip.studio.training.data.datasets.read_data", no_memory)
    for command, advice in (
        (["convert-dvae", "a", "b", str(tmp_path / "c.safetensors")], "close other programs"),
        (
            ["dalle", "sample", "a", "b", "--out", "c"],
            "close other programs, or choose --dtype fp16, or choose --device cpu",
        ),
        (
            ["dalle", "train-vae", "a", "--out", str(tmp_path)],
            "close other programs, or choose a smaller --batch, or choose --device cpu",
        ),
    ):
        assert main(command) == 1
        assert capsys.readouterr().err.strip().endswith(f"not enough memory (none left): {advice}")
