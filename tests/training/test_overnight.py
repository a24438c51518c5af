"""Checkpoints at intervals, kept ones, lengthened runs, schedules, and the norm of the gradients."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from weighted_clip.studio.training import checkpoint
from weighted_clip.studio.training.loop import Loop
from weighted_clip.studio.training.optimizer import factor
from weighted_clip.studio.training.options import Saving, TrainOptions

from ..launching import launched
from .objectives import OBJECTIVES, kinds, start, words
from .runs import log_of
from .test_termination import FAULTY, check_same

# ---- checkpoints


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_last_checkpoints_are_kept_and_an_earlier_one_goes_on_to_the_same_bits(
    data: Path, tmp_path: Path, objective: str
) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    assert start(objective, data, whole) == 0
    assert start(objective, data, out, "--save-every", "3", "--keep-checkpoints", "2") == 0
    assert sorted(path.name for path in out.glob("checkpoint*")) == ["checkpoint-6.pt", "checkpoint.pt"]
    assert [torch.load(out / name)["step"] for name in ("checkpoint.pt", "checkpoint-6.pt")] == [8, 6]
    (out / "checkpoint-6.pt").replace(out / "checkpoint.pt")
    assert start(objective, data, out, "--resume", "--keep-checkpoints", "3") == 0
    check_same(whole, out, objective)
    assert checkpoint.kept_steps(out) == [6]


def test_checkpoints_are_kept_where_there_are_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    for step in (2, 4, 10):
        checkpoint.save(tmp_path, {"step": step})
        if step == 4:
            monkeypatch.setattr(checkpoint.os, "link", refuse)
        checkpoint.keep(tmp_path, step)
    (tmp_path / "checkpoint-x.pt").touch()
    assert [torch.load(tmp_path / f"checkpoint-{step}.pt")["step"] for step in (2, 4, 10)] == [2, 4, 10]
    checkpoint.remove_kept(tmp_path, 10, 1)  # those of a run that went further are left
    assert checkpoint.kept_steps(tmp_path) == [4, 10]


def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, given = tmp_path / "out", ("--save-every", "2", "--keep-checkpoints", "3")
    real = torch.save

    def save(state: Any, place: Any) -> None:
        if state["step"] == 6:
            raise MemoryError
        real(state, place)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", save)
        assert start("contrastive", data, out, *given) == 1
    assert torch.load(out / checkpoint.NAME)["step"] == 4
    assert checkpoint.kept_steps(out) == [2, 4]
    assert start("contrastive", data, out, "--resume", *given) == 0
    assert checkpoint.kept_steps(out) == [4, 6]
    assert start("contrastive", data, tmp_path / "whole") == 0
    check_same(tmp_path / "whole", out, "contrastive")


@pytest.mark.parametrize("given", ["", "0", "-5", "1.5", "m", "0m", "nanm", "1h", "1e3", "9" * 400 + "m", "٣"])
def test_an_interval_that_is_none_is_quoted(given: str) -> None:
    with pytest.raises(ValueError, match="write a number of steps, such as 500, or of minutes: 20m") as caught:
        Saving.every(given)
    assert given in str(caught.value)


def test_a_checkpoint_is_due_by_steps_or_by_the_clock() -> None:
    steps, minutes = Saving.every("4"), Saving.every("1.5m")
    assert [step for step in range(1, 10) if steps.is_due(step, 1e9)] == [4, 8]
    assert [minutes.is_due(1, seconds) for seconds in (89.0, 91.0)] == [False, True]
    with pytest.raises(ValueError, match="at least 1 is kept, got 0"):
        Saving.every(None, 0)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_the_clock_of_the_first_process_counts(data: Path, tmp_path: Path, rank: int) -> None:
    """In one of two processes, a checkpoint is due after step 3."""
    out = tmp_path / "out"
    done = launched(2, FAULTY, "clock", rank, 3, *words("contrastive", data, out, "--keep-checkpoints", "2"))
    assert done.returncode == 0, done.stderr
    assert checkpoint.kept_steps(out) == ([3] if rank == 0 else [])


# ---- longer runs


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_finished_run_is_lengthened_to_the_bits_of_one_that_was_that_long(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objective: str
) -> None:
    """Its first rates are those of the short run, which a run in one piece is given here."""
    recipe = ("--recipe", "paper", "--accumulate", "1") if objective == "dvae" else ()
    factors: dict[int, float] = {}
    with monkeypatch.context() as patch:
        for kind in kinds():

            def noted(self: Any, step: int, real: Any = kind.factor) -> float:
                factors[step] = real(self, step)
                return factors[step]

            patch.setattr(kind, "factor", noted)
        assert start(objective, data, tmp_path / "out", *recipe, "--steps", "4") == 0
    assert start(objective, data, tmp_path / "out", *recipe, "--resume", "--steps", "8") == 0
    for kind in kinds():

        def given(self: Any, step: int, real: Any = kind.factor) -> float:
            return factors[step] if step < 4 else real(self, step)

        monkeypatch.setattr(kind, "factor", given)
    assert start(objective, data, tmp_path / "whole", *recipe, "--steps", "8") == 0
    check_same(tmp_path / "whole", tmp_path / "out", objective, has_same_log=False)


def test_with_a_constant_rate_a_stopped_run_is_lengthened_as_if_it_had_always_been_so(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--schedule", "constant", "--warmup", "2", "--ema", "0.5")
    assert start("contrastive", data, tmp_path / "whole", *given) == 0
    assert start("contrastive", data, tmp_path / "out", *given, "--steps", "3") == 0
    capsys.readouterr()
    more = ("--watch", "a red cat", "--checkpointing", "--save-every", "1", "--keep-checkpoints", "9")
    assert start("contrastive", data, tmp_path / "out", *given, "--resume", *more) == 0
    assert "goes on after step 3 of 8" in capsys.readouterr().out
    check_same(tmp_path / "whole", tmp_path / "out", "contrastive", has_same_log=False)
    assert checkpoint.kept_steps(tmp_path / "out") == [3, 4, 5, 6, 7]
    assert "moved: a red cat" in log_of(tmp_path / "out")[-1]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_run_is_not_shortened_to_less_than_it_has_done_nor_lengthened_with_other_options(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], objective: str
) -> None:
    assert start(objective, data, tmp_path / "out", "--steps", "4") == 0
    assert start(objective, data, tmp_path / "out", "--resume", "--steps", "3") == 1
    assert "is at step 4 of 3; raise --steps" in capsys.readouterr().err
    assert start(objective, data, tmp_path / "out", "--resume", "--steps", "6", "--seed", "7") == 1
    assert "is of a run with other seed (0 then, 7 now)" in capsys.readouterr().err
    if objective == "dvae":  # which may differ in a longer run alone
        assert start(objective, data, tmp_path / "out", "--resume", "--steps", "4", "--kl-weight", "2") == 1


def test_a_checkpoint_from_before_an_option_goes_on_and_one_with_a_damaged_length_does_not(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start("contrastive", data, tmp_path / "out", "--steps", "4") == 0
    state = checkpoint.load(tmp_path / "out")
    del state["about"]["options.clip"], state["about"]["options.schedule"]
    checkpoint.save(tmp_path / "out", state)
    assert start("contrastive", data, tmp_path / "out", "--resume", "--steps", "5", "--clip", "1") == 1
    assert "is of a run with other clip (null then, 1.0 now)" in capsys.readouterr().err
    assert start("contrastive", data, tmp_path / "out", "--resume", "--steps", "5") == 0
    for length in ("8", None, math.inf, [8]):
        state["about"]["steps"] = length
        checkpoint.save(tmp_path / "out", state)
        assert start("contrastive", data, tmp_path / "out", "--resume", "--steps", "5") == 1
        assert "is of a run with other steps" in capsys.readouterr().err


# ---- rates and gradients


@pytest.mark.parametrize("objective", ["contrastive", "mlm", "classify texts", "classify images"])
def test_parts_of_a_batch_add_up_to_it(data: Path, tmp_path: Path, objective: str) -> None:
    for name, *options in (("one", "--batch", "12"), ("three", "--batch", "4", "--accumulate", "3", "--checkpointing")):
        assert start(objective, data, tmp_path / name, "--steps", "3", *options) == 0
    one, three = log_of(tmp_path / "one"), log_of(tmp_path / "three")
    assert len([entry for entry in one if "loss" in entry]) == 3
    for these, those in zip(one, three, strict=True):
        assert these == pytest.approx(those, rel=1e-4, abs=1e-4)


def test_schedules_are_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    for course in ("cosine", "linear", "constant"):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        name = "constant_with_warmup" if course == "constant" else course
        schedule = transformers.get_scheduler(name, optimizer, 3, 12)
        for step in range(12):
            ours = factor(step, 3, 12, course)
            # theirs begins at 0, so that its first update does nothing
            theirs = (step + 1) / 3 if step < 3 else schedule.get_last_lr()[0]
            assert ours == pytest.approx(theirs, abs=1e-12)
            schedule.optimizer.step()
            schedule.step()


@pytest.mark.parametrize("clip", [None, 0.01])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_norm_of_all_gradients_is_logged_and_clipped(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objective: str, clip: float | None
) -> None:
    before, after = list[float](), list[float]()
    real, make = Loop._train_on, Loop.prepare

    def norm(run: Any) -> float:
        gradients = [one.grad.double() for one in run.model.parameters() if one.grad is not None]
        return math.sqrt(sum(float((one * one).sum()) for one in gradients))

    def train_on(self: Any, loaded: Any) -> Any:
        backward = self._backward
        monkeypatch.setattr(self, "_backward", lambda given: (backward(given), before.append(norm(self)))[0])
        found = real(self, loaded)
        monkeypatch.setattr(self, "_backward", backward)
        return found

    def prepare(self: Any, *given: Any, **named: Any) -> None:
        make(self, *given, **named)
        self.optimizer.optimizer.register_step_pre_hook(lambda *_: after.append(norm(self)))

    monkeypatch.setattr(Loop, "_train_on", train_on)
    monkeypatch.setattr(Loop, "prepare", prepare)
    given = () if clip is None else ("--clip", str(clip))
    assert start(objective, data, tmp_path / "out", *given) == 0
    logged = [entry["gradient norm"] for entry in log_of(tmp_path / "out") if "loss" in entry]
    assert logged == pytest.approx(before, rel=1e-4)  # summed up in float32
    most = clip or (1.0 if objective in ("dvae", "prior") else math.inf)  # of the small recipe
    assert after == pytest.approx([min(one, most) for one in before], rel=1e-4)
    if clip:
        assert min(before) > clip
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert 'src="norm.png"' in page


def test_a_norm_to_clip_at_is_above_0() -> None:
    for clip in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="the norm to clip at must be above 0"):
            TrainOptions(clip=clip)
