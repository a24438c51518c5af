"""Runs that are resumed from damaged, foreign and hostile checkpoints: a line that names the file, nothing written."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from weighted_clip.studio.training import loop
from weighted_clip.studio.training.objectives import contrastive

from ..fuzz.checkpoints import damages
from .objectives import OBJECTIVES, start, stopping_after

LAST = 3
"""Step after which the runs were stopped."""
OPTIONS = {
    "contrastive": ["--ema", "0.9", "--patience", "9", "--rate-of", "embeddings=0"],
    "mlm": ["--precision", "fp16"],
    "dvae": ["--ema", "0.9"],
}
DAMAGES = dict(damages())
WHOLLY = "prior"
CASES = [
    (objective, name)
    for number, objective in enumerate(OBJECTIVES)
    for name in list(DAMAGES)[slice(None) if objective == WHOLLY else slice(number, None, 8)]
]
"""All damages to one objective, and others in turn to each of the rest, whose checkpoints are read by the same code."""


Stopped = Callable[[str], tuple[Path, Any]]


@pytest.fixture(scope="module")
def stopped(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    """The folder of a run that was stopped, and the run that its command would resume."""

    @cache
    def of(objective: str) -> tuple[Path, Any]:
        folder, runs = tmp_path_factory.mktemp("stopped") / objective, list[Any]()
        with stopping_after(LAST):
            assert start(objective, data, folder, *OPTIONS.get(objective, ())) == 130
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop.Loop, "resume", lambda self: runs.append(self))
            for kind in (contrastive.Run, loop.Loop):
                patch.setattr(kind, "train", lambda self: None)
            assert start(objective, data, folder, "--resume", *OPTIONS.get(objective, ())) == 0
        return folder, runs[0]

    return of


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("objective", "name"), CASES)
def test_a_damaged_checkpoint_is_refused_in_words(
    stopped: Stopped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objective: str, name: str
) -> None:
    whole, resumed = stopped(objective)
    folder = tmp_path / "out"
    shutil.copytree(whole, folder)
    monkeypatch.chdir(tmp_path)
    DAMAGES[name](folder)
    before = content(folder)
    monkeypatch.setattr(resumed, "folder", folder)
    with pytest.raises(ValueError, match=r"(?s).") as caught:
        resumed.resume()
    assert type(caught.value) is ValueError
    told = str(caught.value)
    assert str(folder / ("log.jsonl" if name.startswith("log: ") else "checkpoint.pt")) in told
    assert len(told) < 1500
    assert "\n" not in told
    assert content(folder) == before
    assert not (tmp_path / "run").exists()  # made by code in a file


@pytest.mark.parametrize(
    "name", ["step: 1e9", "weights: nan", "code in a checkpoint", "weights: another shape", "empty"]
)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_command_says_it_in_a_line(
    stopped: Stopped, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], objective: str, name: str
) -> None:
    whole, _ = stopped(objective)
    shutil.copytree(whole, tmp_path / "out")
    DAMAGES[name](tmp_path / "out")
    before = content(tmp_path / "out")
    assert start(objective, data, tmp_path / "out", "--resume", *OPTIONS.get(objective, ())) == 1
    told = capsys.readouterr().err
    assert told.startswith("weighted-clip: ")
    assert str(tmp_path / "out" / "checkpoint.pt") in told
    assert len(told.splitlines()) == 1
    assert content(tmp_path / "out") == before


def changed(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        state = torch.load(path, weights_only=True)
        change(state)
        torch.save(state, path)

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda path: path.write_bytes(b""),
        changed(dict.clear),
        changed(lambda state: state.update(step="x")),
        changed(lambda state: state["trained"].popitem()),
        changed(lambda state: next(iter(state["trained"].values())).fill_(math.nan)),
        changed(lambda state: state["trained"].update(more=torch.ones(2))),
    ],
    ids=["missing", "empty", "nothing", "step", "a weight less", "nan", "a weight more"],
)
def test_the_best_weights_are_looked_at_too(
    stopped: Stopped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None]
) -> None:
    whole, resumed = stopped("contrastive")
    shutil.copytree(whole, tmp_path / "out")
    damage(tmp_path / "out" / "best.pt")
    before = content(tmp_path / "out")
    monkeypatch.setattr(resumed, "folder", tmp_path / "out")
    with pytest.raises(ValueError, match=r"best\.pt"):
        resumed.resume()
    assert content(tmp_path / "out") == before


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: kept.update(step=10**9),
        lambda kept: kept.update(since=-1),
        lambda kept: kept.update(best=math.nan),
        lambda kept: kept.update(best=2.0),
        lambda kept: kept.update(most=1),
        lambda kept: kept.pop("most"),
    ],
)
def test_the_count_of_measurements_is_looked_at_too(
    stopped: Stopped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], object]
) -> None:
    whole, resumed = stopped("contrastive")
    shutil.copytree(whole, tmp_path / "out")
    changed(lambda state: change(state["patience"]))(tmp_path / "out" / "checkpoint.pt")
    monkeypatch.setattr(resumed, "folder", tmp_path / "out")
    with pytest.raises(ValueError, match=r"checkpoint\.pt cannot be gone on with: patience"):
        resumed.resume()


@pytest.mark.parametrize(
    "change",
    [
        lambda scales: scales.update(step=-1),
        lambda scales: scales["scales"].__setitem__(0, math.nan),
        lambda scales: scales["scales"].__setitem__(0, 1e9),
        lambda scales: scales["scales"].pop(),
        lambda scales: scales["divided"].__setitem__(0, 10**9),
        lambda scales: scales["divided"].__setitem__(0, "x"),
        lambda scales: scales.update(divided=None),
    ],
)
def test_gradient_scales_are_looked_at_too(
    stopped: Stopped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], object]
) -> None:
    whole, resumed = stopped("mlm")
    shutil.copytree(whole, tmp_path / "out")
    changed(lambda state: change(state["scales"]))(tmp_path / "out" / "checkpoint.pt")
    monkeypatch.setattr(resumed, "folder", tmp_path / "out")
    with pytest.raises(ValueError, match=r"checkpoint\.pt cannot be gone on with: .*scales"):
        resumed.resume()
