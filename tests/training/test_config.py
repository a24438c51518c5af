"""Options of a run in a file, and the file that each run writes of its own."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import yaml
from weighted_clip.commands.config_file import CONFIG_NAME
from weighted_clip.commands.program import main, make_parser

from .objectives import OBJECTIVES, start, words
from .runs import log_of
from .test_termination import check_same

TRAIN = ("train", "pairs", "--weights", "w", "--out", "o")


def read(file: Path, *given: str) -> dict[str, Any]:
    return vars(make_parser().parse_args([*given, "--config", str(file)]))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_run_s_own_file_repeats_it_to_the_bit(data: Path, tmp_path: Path, objective: str) -> None:
    from accelerate.state import AcceleratorState

    odd = ("--watch", "a: cat", "--watch", "-1", "--precision", "fp32") if objective == "contrastive" else ()
    assert start(objective, data, tmp_path / "one", "--seed", "5", *odd) == 0
    again = words(objective, data, tmp_path / "two")[: 1 if OBJECTIVES[objective][0] == "train" else 2]
    AcceleratorState._reset_state(reset_partial_state=True)
    assert main([*again, "--config", str(tmp_path / "one" / CONFIG_NAME), "--out", str(tmp_path / "two")]) == 0
    check_same(tmp_path / "one", tmp_path / "two", objective)
    assert "moved: a: cat" in log_of(tmp_path / "two")[-1] or not odd
    one, two = (yaml.safe_load((tmp_path / name / CONFIG_NAME).read_text()) for name in ("one", "two"))
    assert {**one, "out": str(tmp_path / "two")} == two


def test_what_is_given_counts_instead_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("data: pictures\nweights: w\nout: o\nrate: 1e-3\nweight_decay: 0\nmirror: true\nshuffle-tags: no\n")
    found = read(file, "train")
    assert (found["data"], found["rate"], found["weight_decay"]) == (Path("pictures"), 1e-3, 0.0)
    assert (found["mirror"], found["shuffle_tags"], found["seed"]) == (True, False, 0)
    found = read(file, "train", "others", "--rate", "2e-3")
    assert (found["data"], found["rate"], found["mirror"]) == (Path("others"), 2e-3, True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("stepps: 5", "'stepps' is no option of this command; did you mean steps?"),
        ("config: a.yaml", "'config' is no option of this command"),
        ("help: true", "'help' is no option of this command"),
        ("steps: 5\nsteps: 6", "'steps' is there twice"),
        ("steps: [5, 6]", "steps: write one number or text, not [5, 6]"),
        ("steps: {a: 1}", "steps: write one number or text, not {'a': 1}"),
        ("steps: true", "steps: write one number or text, not True"),
        ("mirror: 1", "mirror: write true or false, not 1"),
        ("steps: many", "argument --steps: invalid int value: 'many'"),
        ("towers: all", "argument --towers: invalid choice: 'all'"),
        ("steps: 5\nepochs: 5", "not allowed with argument"),
        ("- steps", "write an option a line, such as “steps: 500”"),
        ("", "write an option a line"),
        ("a: !!python/object/apply:os.system [ls]", "cannot be read: could not determine a constructor"),
        ("a: [", "cannot be read: "),
        ("a: 1\n---\nb: 2", "cannot be read: expected a single document"),
        ("a: " + "[" * 5000, "cannot be read: "),
        ("#" * 70_000, "larger than 64 KiB"),
    ],
)
def test_a_file_that_is_none_is_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit, match="2"):
        read(file, *TRAIN)
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_a_file_that_is_not_there_not_text_or_given_twice_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"word: caf\xe9")
    for name, told in (("none.yaml", "No such file"), ("latin.yaml", "codec can't decode"), (".", "Is a directory")):
        with pytest.raises(SystemExit, match="2"):
            read(tmp_path / name, *TRAIN)
        assert told in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        read(tmp_path / "a.yaml", *TRAIN, "--config", "b.yaml")
    assert "--config is given 2 times" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        make_parser().parse_args([*TRAIN, "--config"])
    assert "expected one argument" in capsys.readouterr().err


def test_a_tracker_gets_the_log(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracker of accelerate's, in the place of wandb's."""
    from accelerate import tracking
    from accelerate.utils import LoggerType

    told: list[Any] = []

    class Tracker(tracking.GeneralTracker):
        name, requires_logging_directory = "wandb", False

        def __init__(self, project: str, **named: Any) -> None:
            super().__init__()
            told.append((project, named["name"]))

        @property
        def tracker(self) -> list[Any]:
            return told

        def store_init_configuration(self, values: dict[str, Any]) -> None:
            told.append(values)

        def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
            told.append({"step": step, **values})

        def finish(self) -> None:
            told.append("finished")

    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, "wandb", Tracker)
    monkeypatch.setattr(tracking, "get_available_trackers", lambda: [LoggerType.WANDB])
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: name == "wandb" or find_spec(name, *more))
    assert start("mlm", data, tmp_path / "out", "--track", "wandb") == 0
    assert told[0] == ("weighted-clip", "out")
    assert told[1]["options.batch"] == "4"
    assert told[2:-1] == log_of(tmp_path / "out")
    assert told[-1] == "finished"


def test_a_tracker_that_is_not_installed_is_said(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "wandb" else find_spec(name, *more)
    )
    assert start("mlm", data, tmp_path / "out", "--track", "wandb") == 1
    assert "--track wandb: wandb is not installed: .venv/bin/pip install wandb" in capsys.readouterr().err
