"""Options of a run in a file, and the file that each run writes of its own."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import yaml
from weighted_clip.studio.commands.config_file import CONFIG_NAME, write_config
from weighted_clip.studio.commands.program import COMMANDS, make_parser

from .objectives import OBJECTIVES, start, words
from .runs import log_of, run_anew
from .test_termination import check_same

TRAIN = ("train", "pairs", "--weights", "w", "--out", "o")


def read(file: Path, *given: str) -> dict[str, Any]:
    return vars(make_parser().parse_args([*given, "--config", str(file)]))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_run_s_own_file_repeats_it_to_the_bit(data: Path, tmp_path: Path, objective: str) -> None:
    odd = ("--watch", "a: cat", "--watch", "-1", "--precision", "fp32") if objective == "contrastive" else ()
    assert start(objective, data, tmp_path / "one", "--seed", "5", *odd) == 0
    again = words(objective, data, tmp_path / "two")[: 1 if OBJECTIVES[objective][0] == "train" else 2]
    assert run_anew(*again, "--config", tmp_path / "one" / CONFIG_NAME, "--out", tmp_path / "two") == 0
    check_same(tmp_path / "one", tmp_path / "two", objective)
    assert "moved: a: cat" in log_of(tmp_path / "two")[-1] or not odd
    one, two = (yaml.safe_load((tmp_path / name / CONFIG_NAME).read_text()) for name in ("one", "two"))
    assert {**one, "out": str(tmp_path / "two")} == two


def test_what_is_given_counts_instead_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("data: pictures\nweights: w\nout: o\nrate: 1e-3\nweight_decay: 0\nmirror: true\nshuffle-tags: no\n")
    found = read(file, "train")
    assert (found["data"], found["rate"], found["weight_decay"]) == ("pictures", 1e-3, 0.0)
    assert (found["mirror"], found["shuffle_tags"], found["seed"]) == (True, False, 0)
    found = read(file, "train", "others", "--rate", "2e-3")
    assert (found["data"], found["rate"], found["mirror"]) == ("others", 2e-3, True)


def test_a_value_is_what_would_have_been_typed(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("data: d\nweights: w\nout: o\nword: 0x10\nlora_for: sd1\nwatch: [no, 1:30, 'a: b']\nrate: 1_0\n")
    typed = ["d", "--weights", "w", "--out", "o", "--word", "0x10", "--lora-for", "sd1", "--rate", "1_0"]
    typed += [part for prompt in ("no", "1:30", "a: b") for part in ("--watch", prompt)]
    assert {**read(file, "train"), "config": None} == vars(make_parser().parse_args(["train", *typed]))


@pytest.mark.parametrize(
    ("text", "typed", "expected"),
    [
        ("steps: 5", ["--epochs", "3"], {"steps": None, "epochs": 3}),
        ("epochs: 5", ["--steps", "3"], {"steps": 3, "epochs": 10}),
        ("new: ViT-B-32", ["--weights", "w"], {"new": None, "weights": Path("w")}),
        ("weights: w", ["--new", "ViT-B-32"], {"new": "ViT-B-32", "weights": None}),
        ("weights: w\nseed: 1", ["--see", "2"], {"seed": 2}),
        ("weights: w\nmirror: true\nshard: yes", ["--no-mirror"], {"mirror": False, "shard": True}),
        ("weights: w\nmirror: true", ["--no-mirror", "--mirror"], {"mirror": True}),
        ("weights: w\nmirror:\nsteps: ~", [], {"mirror": False, "steps": None}),
        ("weights: w\nwatch: [a]", ["--watch", "b"], {"watch": ["a", "b"]}),
        ("weights: w\nwatch: [a]", ["--no-watch"], {"watch": []}),
        ("weights: w\nlora: 8\nrate: 1", ["--no-lora", "--no-rate"], {"lora": 0, "rate": 1e-5}),
        ("weights: w\nsteps: 5", ["--no-steps"], {"steps": None, "epochs": 10}),
        ("weights: w\nword: cat\nval: d", ["--no-word", "--word", "dog", "--no-val"], {"word": "dog", "val": None}),
    ],
)
def test_what_is_typed_replaces_what_excludes_it(
    tmp_path: Path, text: str, typed: list[str], expected: dict[str, Any]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"data: d\nout: o\n{text}\n" if "w" in text else f"data: d\nout: o\nweights: w\n{text}\n")
    found = read(file, "train", *typed)
    assert {name: found[name] for name in expected} == expected
    short = vars(make_parser().parse_args(["train", *typed, "--conf", str(file)]))  # as argparse allows
    assert {**short, "config": None} == {**found, "config": None}


def test_the_file_s_place_among_the_words_makes_no_difference(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("data: d\nweights: w\nout: o\n")
    for typed in (["e", "--seed", "5"], ["--seed", "5", "e"], ["--seed", "5", "--", "e"]):
        found = vars(make_parser().parse_args(["train", "--config", str(file), *typed]))
        assert (found["data"], found["seed"]) == ("e", 5)


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("seed: 1\nstepps: 5", 2, "steps"),
        ("config: a.yaml", 1, "config"),
        ("help: true", 1, "help"),
        ("no-mirror: true", 1, "no-mirror"),
        ("steps: 5\n\nsteps: 6", 3, "steps"),
        ("save_every: 5\nsave-every: 6", 2, "save-every"),
        ("steps: [5, 6]", 1, "steps"),
        ("steps: {a: 1}", 1, "steps"),
        ("watch: [a, [b]]", 1, "watch"),
        ("steps: true", 1, "steps"),
        ("steps: 010", 1, "010"),
        ("save_every: 010", 1, "010"),
        ("steps: !!bool foo", 1, "bool"),
        ("seed: 1\nsteps: !!timestamp foo", 2, "timestamp"),
        (f"steps: {'7' * 5000}", 1, "steps"),
        ("steps: &a 5", 1, "&"),
        ("seed: *a", 1, "*"),
        ("mirror: 1", 1, "mirror"),
        ("steps: many", 1, "'many'"),
        ("towers: all", 1, "'all'"),
        ("- steps", 1, "steps: 500"),
        ("", 1, "steps: 500"),
        ("a: 1\n---\nb: 2", 2, ""),
        ("a: [", 1, ""),
        ("seed: 1\nsteps: 5\0", 2, "0x0000"),
    ],
)
def test_a_file_that_is_none_is_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, line: int, told: str
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text.replace("a: ", "watch: "), encoding="utf-8", newline="")
    with pytest.raises(SystemExit, match="2"):
        read(file, *TRAIN)
    error = capsys.readouterr().err
    assert f"--config {file}, line {line}: " in error
    assert told in error.partition(", line ")[2]
    assert error.count("\n") == 1
    assert len(error) < 500


def test_two_options_of_a_file_that_exclude_each_other_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.yaml").write_text("steps: 5\nepochs: 5")
    with pytest.raises(SystemExit, match="2"):
        read(tmp_path / "run.yaml", *TRAIN)
    assert "steps" in (error := capsys.readouterr().err)
    assert "epochs" in error


def parser_of(command: str) -> argparse.ArgumentParser:
    parser = make_parser()
    for word in command.split():
        (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        parser = commands.choices[word]
    return parser


WITH_FILES = [one.name for one in COMMANDS if one.run and "--config" in parser_of(one.name)._option_string_actions]


@pytest.mark.parametrize("command", WITH_FILES)
def test_what_is_written_is_read_back_equal(tmp_path: Path, command: str) -> None:
    """Each option of each command that has such files, at odd values of its kind."""
    parser = parser_of(command)
    odd: dict[Any, Any] = {
        int: 1_000_000_007,
        float: float("1e-07"),
        Path: Path("a #b: 'c'\udcff"),
    }
    for value in (
        "010",
        "~",
        "null",
        "yes",
        "a: b",
        "- x",
        "*a",
        "!x",
        "x\ny\t\x85",
        "🐈\u2028",
        "",
        " ",
        "1:30",
        "é" * 200,
    ):
        odd[None] = value
        written = argparse.Namespace()
        for action in parser._actions:
            if isinstance(action, argparse._StoreTrueAction) and action.dest != "resume":
                setattr(written, action.dest, True)
            elif isinstance(action, (argparse._StoreAction, argparse._AppendAction)) and action.dest != "config":
                one = next(iter(action.choices)) if action.choices else odd.get(action.type, value)
                setattr(written, action.dest, [one, one] if isinstance(action, argparse._AppendAction) else one)
        for group in parser._mutually_exclusive_groups:
            for action in group._group_actions[1:]:
                setattr(written, action.dest, action.default)
        write_config(tmp_path / "run.yaml", written)
        found = vars(make_parser().parse_args([*command.split(), "--config", str(tmp_path / "run.yaml")]))
        assert {name: found[name] for name in vars(written)} == vars(written)


def test_a_file_that_is_not_there_not_text_or_given_twice_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"word: caf\xe9")
    (tmp_path / "large.yaml").write_bytes(b"#" * 70_000)
    told = {"none.yaml": "No such file", "latin.yaml": "UTF-8", "large.yaml": "65,536", ".": "folder"}
    for name, reason in told.items():
        with pytest.raises(SystemExit, match="2"):
            read(tmp_path / name, *TRAIN)
        assert reason in capsys.readouterr().err
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
    named = ("--wandb-project-name", "words", "--name", "first")
    assert start("mlm", data, tmp_path / "other", "--track", "wandb", *named) == 0
    assert told[0] == ("words", "first")
    told.clear()
    assert start("mlm", data, tmp_path / "out", "--track", "wandb") == 0
    assert told[0] == ("weighted-clip", "out")
    assert told[1]["options.batch"] == "4"
    assert told[2:-1] == log_of(tmp_path / "out", is_timed=True)
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


def test_resume_latest_begins_a_run_and_goes_on_with_it(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, latest = tmp_path / "out", ("--resume", "latest")
    assert start("mlm", data, out, *latest) == 0
    assert "goes on" not in capsys.readouterr().out
    assert start("mlm", data, out, *latest) == 0
    assert "goes on after step 8 of 8" in capsys.readouterr().out
    found = vars(make_parser().parse_args(["train", "--resume", "d", *TRAIN[2:]]))
    assert (found["data"], found["resume"]) == ("d", True)  # a flag still takes no value
