"""A training run: from a CLIP and pairs to files that hosts load, stopped and resumed at will."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..encoder.clip import FullClip
from ..encoder.files.tensor_file import CheckpointError
from ..encoder.quoting import quote
from ..encoder.similarity import MIN_TEMPERATURE, ContrastiveLoss
from ..encoder.tokenizer import default_tokenizer
from . import checkpoint
from .captions import NewWord, caption_of, notes_on_length, token_ids
from .data import Data, Problem
from .distributed import over_processes
from .grad_cache import Part, Towers, backward
from .images import Images, still_readable
from .log import number_of
from .loop import Loop
from .lora import add_lora
from .metrics import BEST_NAME, Measure, Patience, rows_of
from .new_text import about_clip
from .optimizer import OPTIMIZERS, factor, groups_of
from .options import TrainOptions
from .results import Results
from .retention import Keeping
from .textual_inversion import Word
from .wise_ft import FirstWeights, merge

if TYPE_CHECKING:
    from accelerate import Accelerator


class Run(Loop):
    """Training of a CLIP by its contrastive loss."""

    options: TrainOptions
    trained: Towers
    saves_frozen = False

    def __init__(
        self,
        clip: FullClip,
        weights: Path,
        data: Data,
        folder: Path,
        options: TrainOptions,
        accelerator: Accelerator,
        say: Callable[[str], None],
        *,
        is_sharded: bool = False,
    ) -> None:
        """Read the images and set up the run."""
        super().__init__(folder, options, accelerator, say, clip=options.clip, is_sharded=is_sharded)
        self.clip, self.weights = clip, weights
        self._word = NewWord(options.word, options.word_vectors) if options.word else None
        self._images = Images(clip, options)
        data = self._images.read(data, folder, accelerator, say)
        for line in notes_on_length(data, clip.text.config, self._word):
            say(line)
        why = ". Training tells pairs from each other, so at least 2 must be left"
        self.hold_out(data, "usable pairs", least=2, why=why)
        self._patience = None if options.patience is None else Patience(options.patience)
        if self._patience and not self.held:
            raise ValueError("--patience stops by the recall of held-out pairs, and none are held out: use --held-out")
        self._check_word()
        self.divide_batches(least=2)
        self.num_steps = options.steps or options.epochs * self.batches.per_epoch
        self._build()

    def _check_word(self) -> None:
        """Count captions with the new word."""
        if self._word is None:
            return
        captions = [caption for pair in self.examples for caption in pair.captions]
        count = sum(len(self._word.parts_around(caption)) > 1 for caption in captions)
        if not count:
            raise ValueError(
                f"no caption to train on has the word {quote(self.options.word)}: write it into those of the images "
                "that show it"
            )
        have = "have" if count != 1 else "has"
        told = f"{count:,} of {number_of(len(captions), 'captions')} {have} the word {quote(self.options.word)}"
        self.say(told)

    def _build(self) -> None:
        """Build model, optimizer and average."""
        options = self.options
        is_both = options.towers == "both"
        watched = dict(zip(options.watch, rows_of(self.clip.text, options.watch), strict=True))
        self._measured = Measure(self.held, self._images, self._ids, options.batch, watched)
        self._keeping = Keeping(self.clip.text, options.seed) if options.keep else None
        loss = ContrastiveLoss(max(MIN_TEMPERATURE, 1 / self.clip.logit_scale))
        self._first = FirstWeights(self.clip, self.weights, options, loss.logit_scale)
        if options.lora:
            add_lora(self.clip.text, options.lora, options.seed)
        text = self.clip.text
        word = Word(text, default_tokenizer(), options.word_vectors, options.word_from) if options.word else None
        towers = Towers(text, self.clip.vision if is_both else None, loss, word)
        for tower in (towers.text, towers.vision):
            if tower is not None:
                tower.encoder.is_checkpointed = options.checkpointing
        groups = groups_of(towers, options.rates)
        if self._is_sharded and word is not None:
            raise ValueError("--shard does not go with --word, which trains a few vectors alone: leave it out")
        optimizer = options.optimizer
        self.prepare(towers, groups, OPTIMIZERS[optimizer], optimizer=optimizer, compress=options.compress)

    # ---- training

    def factor(self, step: int) -> float:
        """Warm-up, then the schedule."""
        return self._factor(step, self.num_steps)

    def _factor(self, step: int, num_steps: int) -> float:
        return factor(step, self.options.rates.warmup, num_steps, self.options.schedule)

    def _load(self, pool: ThreadPoolExecutor, step: int) -> list[tuple[str, Future[Tensor | Problem]]]:
        """Captions of this process's share of a step, with its images as they come."""
        epoch, pairs = self.share_of(step)
        options = self.options
        return [
            (caption_of(pair, epoch, options.seed, options.captions), pool.submit(self._images.for_epoch, pair, epoch))
            for _, pair in pairs
        ]

    def _backward(self, loaded: Sequence[tuple[str, Future[Tensor | Problem]]]) -> dict[str, float]:
        kept = self._keeping(self.step, self.accelerator.device) if self._keeping else None
        loss, distance = backward(self.accelerator, self.model, self._parts(loaded), kept, self.options.keep)
        entry = {"loss": over_processes(self.accelerator, loss, "mean")}
        return entry | {"kept": distance} if self._keeping else entry

    def whole_loss(self, entry: Mapping[str, float]) -> float:
        """The contrastive loss, and the weighted change of kept prompts."""
        return entry["loss"] + self.options.keep * entry.get("kept", 0.0)

    def after_update(self) -> None:
        """Keep the temperature in its range."""
        self.trained.loss.clamp_temperature()

    def _train_on(self, loaded: Any) -> dict[str, float]:
        return super()._train_on(loaded) | {"scale": self._scale()}

    def _parts(self, loaded: Sequence[tuple[str, Future[Tensor | Problem]]]) -> list[Part]:
        """Parts of a batch on the device."""
        parts: list[Part] = []
        for start in range(0, len(loaded), self.options.batch):
            some = loaded[start : start + self.options.batch]
            images = [still_readable(future.result()) for _, future in some]
            ids = self._ids([caption for caption, _ in some])
            device = self.accelerator.device
            parts.append(Part(ids.to(device), torch.stack(images).to(device)))
        return parts

    def _ids(self, captions: Sequence[str]) -> Tensor:
        return token_ids(captions, default_tokenizer(), self.clip.text.config, self._word)

    # ---- measuring, stopping early, merging

    def measure(self, *, is_quiet: bool = False) -> dict[str, float]:
        """Recall, if pairs are held out, and the change of watched prompts."""
        found = self._measured(self.result)
        for line in () if is_quiet else self._measured.lines(found, self.step):
            self.say(line)
        return found

    @property
    def is_over(self) -> bool:
        """Whether recall has not improved for as long as the run is patient."""
        return self._patience is not None and self._patience.is_over

    def judged(self, found: dict[str, float]) -> dict[str, float]:
        """Keep the weights if the measurement is the best so far."""
        patience = self._patience
        if patience and patience.is_better(found, self.step) and self.accelerator.is_main_process:
            checkpoint.save(self.folder, {"step": self.step, "trained": self._trained()}, BEST_NAME)
        return found

    def _trained(self) -> dict[str, Tensor]:
        """Trained state, as it is measured and written."""
        trained = {name for name, parameter in self.trained.named_parameters() if parameter.requires_grad}
        return {name: one.detach() for name, one in self.result.named_parameters() if name in trained}

    def finish(self) -> bool:
        """Restore the best weights, and merge with the initial ones, as requested."""
        if patience := self._patience:
            self._take_best(patience)
        if is_merged := self.options.merge != 1:
            self._merge(self.options.merge)
        return is_merged or patience is not None

    def _take_best(self, patience: Patience) -> None:
        self.accelerator.wait_for_everyone()
        best = self._best()
        if best["step"] != patience.step:
            raise ValueError(f"{self.folder / BEST_NAME} is of another step than {patience.step:,}, the best one")
        for name, parameter in self._trained().items():
            parameter.copy_(best["trained"][name])
        why = f"no better recall in {patience.since} measurements: stopped after step" if patience.is_over else "after"
        self.say(f"{why} {self.step:,}; the best weights, of step {patience.step:,}, are written")

    def _merge(self, strength: float) -> None:
        try:
            first = self._first()
        except CheckpointError as error:
            raise ValueError(
                f"{error}. So nothing is merged or written. Put the file back, and use --resume"
            ) from error
        merge(self._trained(), first, strength)
        self.say(f"merged: the weights from before and {strength:g} of their change")
        self.measure()

    # ---- messages and files

    def _scale(self) -> float:
        return 1 / self.trained.loss.temperature.item()

    def _progress(self, found: Mapping[str, float], seconds: float) -> str:
        speed = self._share * self.accelerator.num_processes / seconds
        return f"loss {found['loss']:.4f}, scale {found['scale']:.1f}, {speed:.1f} pairs/s"

    def about(self) -> dict[str, Any]:
        """Properties that a resumed run must share with the one it continues; those of its files are not."""
        return {
            "data": self.data.digest,
            "pairs": len(self.data.examples),
            **about_clip(self.clip, self.options),
            "processes": self.accelerator.num_processes,
            "steps": self.num_steps,
            **self._options_listed("merge", "write_for", "new"),
        }

    def _state(self) -> dict[str, Any]:
        self._set_rates()
        rates = [group["lr"] for group in self.optimizer.param_groups]
        return {
            **super()._state(),
            "schedule": {"last_epoch": self.step, "_last_lr": rates},  # under the names of PyTorch's schedules
            "patience": None if self._patience is None else asdict(self._patience),
        }

    def _check(self, state: dict[str, Any]) -> None:
        super()._check(state)
        schedule = state["schedule"]
        if not isinstance(schedule, dict) or schedule.get("last_epoch") != state["step"]:
            raise ValueError("its schedule is not of its step")
        groups = self.optimizer.param_groups
        rates = [group["initial_lr"] * self._factor(state["step"], state["about"]["steps"]) for group in groups]
        found = [group["lr"] for group in state["optimizer"]["param_groups"]]
        checkpoint.check_like(schedule.get("_last_lr"), rates, "schedule._last_lr")
        for some in (found, schedule["_last_lr"]):
            if not all(math.isclose(*pair, rel_tol=1e-9) for pair in zip(some, rates, strict=True)):
                raise ValueError(f"its learning rates are not those of step {state['step']:,}")
        patience = None if self._patience is None else asdict(self._patience)
        checkpoint.check_like(state["patience"], patience, "patience")
        if self._patience is not None:
            kept = Patience(**state["patience"])
            checkpoint.check_count(kept.step, state["step"], "patience.step")
            checkpoint.check_count(kept.since, state["step"] + 1, "patience.since")
            if kept.most != self._patience.most or not -1 <= kept.best <= 1:
                raise ValueError(f"patience is {kept}, which this run does not write")
            self._best()

    def _best(self) -> dict[str, Any]:
        """Read the best weights."""
        best = checkpoint.load(self.folder, BEST_NAME)
        with checkpoint.naming(self.folder / BEST_NAME):
            checkpoint.check_like(best, {"step": 0, "trained": self._trained()}, "the file")
            checkpoint.check_weights(best["trained"])
        return best

    def take(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint of this run."""
        super().take(state)
        if self._patience is not None:
            self._patience = Patience(**state["patience"])

    def write_results(self) -> None:
        """Write the files that hosts load."""
        result = self.result
        if self.accelerator.is_main_process:
            step = self._patience.step if self._patience else self.step
            Results(self.folder, self.clip, self.weights, self.options, self._images.digest).write(result, step)
        self.accelerator.wait_for_everyone()
