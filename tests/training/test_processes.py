"""Training by several processes, of which one is killed, stuck, out of disk or interrupted; and resumed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from ..launching import launched
from .objectives import words
from .runs import Start, log_of, run_anew, tensors_of
from .test_termination import COMMANDS, check_same

PROGRAM = Path(__file__).resolve().parents[2] / "__main__.py"
FAULTY = Path(__file__).with_name("faulty.py")
OPTIONS = ["--device", "cpu", "--batch", "16", "--accumulate", "1", "--rate", "1e-3", "--held-out", "4", "--steps", "8"]


@pytest.fixture(scope="module")
def whole(weights: Path, pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Runs of so many processes that were never stopped."""

    @cache
    def of(ranks: int) -> Path:
        folder = tmp_path_factory.mktemp("whole") / str(ranks)
        usual = ["train", str(pairs), "--weights", str(weights), *OPTIONS, "--out", str(folder)]
        done = launched(ranks, PROGRAM, *usual)
        assert done.returncode == 0, done.stderr
        # 16 pairs for each process were asked for
        assert f"batch of {28 // ranks * ranks} pairs, as there are no more than 28" in done.stdout
        assert "Warning" not in done.stderr
        return folder

    return of


def is_left(folder: Path) -> bool:
    """Whether a process of a run is still there."""
    found = subprocess.run(["ps", "-ewwo", "args="], capture_output=True, text=True, check=True).stdout
    return any(str(folder) in line for line in found.splitlines())


ENDS = "ends after step {}: "
AGAIN = "The same command with --resume goes on from the last checkpoint"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "ranks", "fault", "rank", "step"),
    [
        pytest.param("torchrun", 3, "kill", 1, 6, marks=pytest.mark.long),
        pytest.param("accelerate", 3, "kill", 0, 6, marks=pytest.mark.long),
        pytest.param("torchrun", 2, "full", 1, 6, marks=pytest.mark.long),
        pytest.param("torchrun", 2, "freeze", 1, 6, marks=pytest.mark.long),
        ("torchrun", 2, "kill", 0, 1),
    ],
)
def test_the_end_of_one_process_ends_the_others_with_a_line_and_the_run_resumes_to_the_same_bits(
    weights: Path,
    pairs: Path,
    tmp_path: Path,
    whole: Callable[[int], Path],
    launcher: str,
    ranks: int,
    fault: str,
    rank: int,
    step: int,
) -> None:
    faulty = tmp_path / "faulty"
    usual = ["train", str(pairs), "--weights", str(weights), *OPTIONS, "--out", str(faulty)]
    broken = launched(ranks, FAULTY, fault, rank, step, *usual, launcher=launcher)
    assert broken.returncode != 0
    assert not is_left(faulty)
    told = [line for line in broken.stderr.splitlines() if line.startswith("weighted-clip: ")]
    others = [line for line in told if AGAIN in line]
    assert others, broken.stderr
    assert all(ENDS.format(step - 1) in line and f"process {rank + 1} of" not in line for line in others)
    if fault == "freeze":
        assert f"nothing was heard of process {rank + 1} for " in others[0]
    if fault == "full":
        assert any("No space left on device" in line for line in told)
    of_ours = broken.stderr.partition("torch/distributed/elastic")[0]  # what follows is the launcher's
    assert "Traceback" not in of_ours, broken.stderr

    resumed = launched(ranks, PROGRAM, *usual, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    goes_on = f"goes on after step {step - 1} of 8" if step > 1 else "begins again, as the run had no checkpoint"
    assert goes_on in resumed.stdout
    assert log_of(faulty) == log_of(whole(ranks))
    once, again = (tensors_of(folder / "clip.safetensors") for folder in (whole(ranks), faulty))
    assert once.keys() == again.keys()
    assert all(torch.equal(once[name], again[name]) for name in once)


@pytest.mark.slow
def test_ctrl_c_for_one_process_stops_all_and_other_numbers_of_processes_do_not_go_on(
    start: Start,
    weights: Path,
    pairs: Path,
    tmp_path: Path,
    whole: Callable[[int], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    usual = ["train", str(pairs), "--weights", str(weights), *OPTIONS, "--out", str(tmp_path / "out")]
    stopped = launched(2, FAULTY, "interrupt", 1, 4, *usual, launcher="torchrun")
    assert stopped.returncode != 0
    assert "stopped after step 4 of 8: --resume goes on from here" in stopped.stdout
    assert start(*OPTIONS, "--resume") == 1
    assert "is of a run with other processes (2 then, 1 now)" in capsys.readouterr().err
    assert launched(2, PROGRAM, *usual, "--resume").returncode == 0
    once, again = (tensors_of(folder / "clip.safetensors") for folder in (whole(2), tmp_path / "out"))
    assert all(torch.equal(once[name], again[name]) for name in once)


@pytest.mark.slow
def test_a_process_that_ends_before_training_ends_the_others_with_a_line(
    weights: Path, pairs: Path, tmp_path: Path
) -> None:
    """The first one cannot write the features, for which the other one waits."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "features").write_text("in the way", encoding="utf-8")
    usual = ["train", str(pairs), "--weights", str(weights), *OPTIONS, "--out", str(tmp_path / "out")]
    done = launched(2, PROGRAM, *usual, launcher="torchrun")
    assert done.returncode != 0
    told = [line for line in done.stderr.splitlines() if line.startswith("weighted-clip: ")]
    assert told
    assert "Traceback" not in done.stderr.partition("torch/distributed/elastic")[0], done.stderr


ENDS_LATE = """
import atexit, runpy, sys
import torch
runpy.run_path(sys.argv[1])["load_package"]()
from weighted_clip.studio.commands.processes import end
atexit.register(print, "late")
if sys.argv[2:] == ["together"]:
    torch.distributed.init_process_group("gloo")
print("written", end="")
end(3)
"""


@pytest.mark.parametrize(("words", "told"), [(["together"], "written"), ([], "writtenlate\n")])
def test_processes_that_were_connected_end_at_once(tmp_path: Path, words: list[str], told: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(ENDS_LATE, encoding="utf-8")
    done = launched(1, program, PROGRAM, *words)
    assert (done.returncode, done.stdout) == (3, told), done.stderr


MEASURES = {
    "mlm": ("loss", "right", "held-out loss"),
    "classify images": ("loss", "accuracy", "held-out loss"),
}


@pytest.mark.parametrize("objective", MEASURES)
def test_two_processes_equal_one_and_go_on_to_the_same_bits(data: Path, tmp_path: Path, objective: str) -> None:
    def words_of(folder: str, *more: str) -> list[str]:
        options = ("--steps", "4", "--accumulate", "2", "--ema", "0.5", "--batch", "2")
        return words(objective, data, tmp_path / folder, *options, *more)

    runs = [(0, None, words_of("two")), (130, 2, words_of("cut")), (0, None, words_of("cut", "--resume"))]
    done = launched(2, COMMANDS, json.dumps(runs))
    assert done.returncode == 0, done.stdout + done.stderr
    assert run_anew(*words_of("one", "--batch", "4")) == 0
    one, two = log_of(tmp_path / "one"), log_of(tmp_path / "two")
    for name in MEASURES[objective]:
        found = [[entry[name] for entry in entries if name in entry] for entries in (one, two)]
        assert len(found[0]) >= 4
        assert found[0] == pytest.approx(found[1], abs=1e-4), name
    check_same(tmp_path / "two", tmp_path / "cut", objective)


SHARDED = Path(__file__).with_name("sharded.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--towers", "both", "--ema", "0.5", "--patience", "9"], id="both with an average"),
        pytest.param(["--lora", "2", "--merge", "0.5", "--keep", "3"], id="a LoRA", marks=pytest.mark.long),
    ],
)
def test_a_divided_run_goes_on_divided_or_not(weights: Path, pairs: Path, tmp_path: Path, options: list[str]) -> None:
    usual = ["train", pairs, "--weights", weights, "--device", "cpu", "--batch", "4", "--accumulate", "2"]
    usual += ["--rate", "1e-4", "--held-out", "4", "--steps", "6", *options]

    done = launched(2, SHARDED, tmp_path, *usual)
    assert done.returncode == 0, done.stderr
    assert "stopped after step 3 of 6" in done.stdout
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert all(type(tensor) is torch.Tensor for tensor in state["model"].values())
    plain, divided, resumed, on_plain = (tmp_path / name for name in ("plain", "divided", "stopped", "on plain"))
    for name, of in ((resumed, divided), (on_plain, plain), (divided, plain)):
        for file in of.glob("*.safetensors"):
            expected, found = tensors_of(file), tensors_of(name / file.name)
            assert expected.keys() == found.keys()
            for key, tensor in expected.items():
                if name == resumed:
                    assert torch.equal(tensor, found[key]), key
                assert (tensor - found[key]).abs().max() < 4e-5, key  # true gradients of 0 are steps of AdamW
    for ours, theirs in zip(log_of(divided), log_of(plain), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)


def test_one_process_has_nothing_to_divide(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    assert start("--steps", "1", "--shard") == 0
    assert "--shard: there is one process, so nothing is divided" in capsys.readouterr().out
