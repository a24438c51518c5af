"""SIGTERM, by which docker, job managers and ``timeout`` end a program: it leaves a checkpoint, as Ctrl-C does."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from weighted_clip.studio.commands import processes
from weighted_clip.studio.commands.program import main
from weighted_clip.studio.training.loop import Loop

from ..dalle.models import shrink_demo
from ..launching import launched
from ..libraries import library
from ..patience import SECONDS
from .objectives import OBJECTIVES, RESULTS, start, words
from .runs import log_of, tensors_of

PROGRAM = Path(__file__).resolve().parents[2] / "__main__.py"
FAULTY = Path(__file__).with_name("faulty.py")
COMMANDS = Path(__file__).with_name("process_command.py")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM that a program can handle")


def check_same(one: Path, other: Path, objective: str, *, has_same_log: bool = True) -> None:
    """Check that two runs have written the same bits, and logged the same numbers."""
    for name in RESULTS[objective]:
        whole, resumed = tensors_of(one / name), tensors_of(other / name)
        assert whole.keys() == resumed.keys()
        assert all(torch.equal(whole[key], resumed[key]) for key in whole)
    assert log_of(one) == log_of(other) or not has_same_log


def signalling(monkeypatch: pytest.MonkeyPatch, step: int, *signals: signal.Signals) -> None:
    """Send signals to this process in a step, counted from 1."""
    real = Loop._train_on

    def train_on(self: Any, loaded: Any) -> Any:
        if self.step + 1 == step:
            for one in signals:
                os.kill(os.getpid(), one)
        return real(self, loaded)

    monkeypatch.setattr(Loop, "_train_on", train_on)


PAPER = ("--recipe", "paper", "--accumulate", "2", "--ema", "0.9")


@pytest.mark.parametrize(
    ("objective", "options"),
    [
        *((objective, ()) for objective in OBJECTIVES),
        ("dvae", (*PAPER, "--tokens", "12")),
        ("prior", (*PAPER, "--warmup", "3", "--bpe-dropout", "0.3")),
    ],
)
def test_a_terminated_run_writes_a_checkpoint_and_resumes_to_the_same_bits(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    objective: str,
    options: tuple[str, ...],
) -> None:
    """In a run's middle, twice at once as ``timeout`` does: to the process, and to its group."""
    assert start(objective, data, tmp_path / "whole", *options) == 0
    with monkeypatch.context() as patch:
        signalling(patch, 5, signal.SIGTERM, signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert start(objective, data, tmp_path / "out", *options) == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    told = capsys.readouterr().out
    assert "stopping after this step, with a checkpoint" in told
    assert "stopped after step 5 of 8: --resume goes on from here" in told
    assert start(objective, data, tmp_path / "out", *options, "--resume") == 0
    assert "goes on after step 5 of 8" in capsys.readouterr().out
    check_same(tmp_path / "whole", tmp_path / "out", objective)


@pytest.mark.slow
def test_the_demo_goes_on_where_it_was_terminated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In its second part, and once more before that part has a checkpoint, as a kill would end it."""
    library("accelerate")
    real, ends = Loop._train_on, [signal.SIGTERM, signal.SIGKILL]

    def train_on(self: Any, loaded: Any) -> Any:
        if self.step == 1 and ends:
            if ends.pop() == signal.SIGKILL:
                raise MemoryError
            signal.raise_signal(signal.SIGTERM)
        return real(self, loaded)

    def demo() -> int:
        steps = ["--vae-steps", "3", "--clip-steps", "2", "--prior-steps", "2", "--captions", "1"]
        return main(["dalle", "demo", str(tmp_path / "demo"), *steps])

    shrink_demo(monkeypatch)
    monkeypatch.setattr(Loop, "_train_on", train_on)
    assert [demo(), demo(), demo()] == [1, 143, 0]
    told = capsys.readouterr().out
    assert told.index("begins again, as the run had no checkpoint yet") < told.index("goes on after step 2 of 3")
    assert (tmp_path / "demo" / "index.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["contrastive", "dvae"])
def test_another_process_terminates_a_run(data: Path, tmp_path: Path, objective: str) -> None:
    long = ["--steps", "100000"]
    command = [sys.executable, str(PROGRAM), *words(objective, data, tmp_path / "out", *long)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(line.startswith("step 1 of 100,000: ") for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        told, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 143, errors
    assert not errors
    state = torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)
    assert f"stopped after step {state['step']:,} of 100,000: --resume goes on from here" in told
    assert log_of(tmp_path / "out")[-1]["step"] == state["step"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "fault"),
    [
        ("contrastive", "terminate all"),
        pytest.param("contrastive", "terminate", marks=pytest.mark.long),
        pytest.param("prior", "terminate all", marks=pytest.mark.long),
    ],
)
def test_processes_that_are_terminated_stop_at_one_step_and_resume_to_the_same_bits(
    data: Path, tmp_path: Path, objective: str, fault: str
) -> None:
    """By their launcher, which is sent the signal itself, or one of them alone; then resumed, after a whole run."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    stopped = launched(2, FAULTY, fault, 1, 4, *words(objective, data, out), launcher="torchrun")
    assert stopped.returncode != 0
    assert "stopped after step 4 of 8: --resume goes on from here" in stopped.stdout, stopped.stderr
    assert not [line for line in stopped.stderr.splitlines() if line.startswith("weighted-clip: ")]
    assert [entry["step"] for entry in log_of(out) if "loss" in entry][-1] == 4
    commands = [(0, None, words(objective, data, whole)), (0, None, words(objective, data, out, "--resume"))]
    resumed = launched(2, COMMANDS, json.dumps(commands))
    assert resumed.returncode == 0, resumed.stderr
    assert "goes on after step 4 of 8" in resumed.stdout
    check_same(whole, out, objective)


def test_a_terminal_that_closes_ends_a_run_as_ctrl_c_does(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signalling(monkeypatch, 3, signal.SIGHUP)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also under nohup
    try:
        assert start("dvae", data, tmp_path / "out") == 143
    finally:
        signal.signal(signal.SIGHUP, before)
    assert torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)["step"] == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("behind", "status", "steps"), [("| head -n 3", 143, None), ("> /dev/full", 0, 8)], ids=["closed", "full"]
)
def test_output_that_cannot_be_written(data: Path, tmp_path: Path, behind: str, status: int, steps: int | None) -> None:
    """A closed pipe ends a run with a checkpoint; a full disk is no reason to end."""
    if behind.startswith(">") and not Path("/dev/full").exists():
        pytest.skip("only Linux has /dev/full")
    given = words("dvae", data, tmp_path / "out", *(["--steps", "100000"] if steps is None else []))
    code = f"{shlex.join([sys.executable, str(PROGRAM), *given])} {behind}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    step = torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)["step"]
    assert step == steps if steps else step >= 1


def test_a_second_signal_ends_a_process_at_once() -> None:
    """It counts as another one only after a while."""
    code = (
        "import runpy, signal, time\n"
        f"runpy.run_path({str(PROGRAM)!r})['load_package']()\n"
        "from weighted_clip.studio.commands import processes\n"
        "processes.SECONDS_OF_ONE_SIGNAL = 0.2\n"
        "with processes.terminable(), processes.holding_interrupt(lambda: print('held', flush=True)):\n"
        "    for _ in range(3):\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
        "    time.sleep(0.3)\n"
        "    print('still there', flush=True)\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "    print('not reached', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.stdout.split("\n") == ["held", "still there", ""], done.stderr
    assert done.returncode == -signal.SIGTERM


def test_a_signal_that_others_handle_or_ignore_stays_theirs() -> None:
    for theirs in (signal.SIG_IGN, lambda *_: None):
        before = signal.signal(signal.SIGTERM, theirs)
        try:
            with processes.terminable():
                assert signal.getsignal(signal.SIGTERM) is theirs
            assert signal.getsignal(signal.SIGTERM) is theirs
        finally:
            signal.signal(signal.SIGTERM, before)


def test_a_program_that_a_shell_runs_in_the_background_is_interrupted_too() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with processes.terminable() as termination, pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        assert termination.came is not None
    finally:
        signal.signal(signal.SIGINT, before)
