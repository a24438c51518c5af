"""A training run: from a CLIP and pairs to files that hosts load, stopped and resumed at will."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ..encoder.contrastive import MIN_TEMPERATURE, ContrastiveLoss
from ..encoder.files.tensor_file import CheckpointError
from ..encoder.full_clip import FullClip
from ..encoder.tokenizer import default_tokenizer
from . import checkpoint, log, powersgd
from .batches import Batches, held_out
from .board import board
from .captions import NewWord, caption_of, is_too_long, token_ids
from .checkpoint import NotFiniteError
from .data import Data, Problem, summary
from .evaluation import rows_of
from .features import NUM_THREADS
from .images import Images
from .keeping import Keeping
from .lora import add_lora
from .measuring import Measure
from .merging import FirstWeights, merge
from .optimizer import OPTIMIZERS, factor, groups_of, schedule
from .options import TrainOptions
from .patience import BEST_NAME, Patience
from .results import Results
from .scales import GradientScales
from .sharding import sharding_for
from .step import Losses, Part, Towers, backward, over_processes
from .updates import Updates
from .word import Word

if TYPE_CHECKING:
    from accelerate import Accelerator

SECONDS_BETWEEN_CHECKPOINTS = 600.0
NUM_EVALUATIONS = 10
"""Number of evaluations in a run, besides the initial one."""


class Run:
    """Training of a CLIP. A run is created, optionally resumed, and trained to its end."""

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
        """Read the images and set up the run.

        Args:
            clip: Model to train in place. If the image tower is not trained, its weights are dropped once its features
                are known.
            weights: File it was read from.
            data: The pairs.
            folder: Existing folder for all output.
            options: Options of the run.
            accelerator: Accelerator of the run.
            say: Called with each line of output.
            is_sharded: Whether processes divide the model among themselves, by `Sharding`.

        Raises:
            ValueError: If too few pairs are left for training, or the model cannot be sharded.
            OSError: If the features of the images cannot be written.
        """
        self.clip, self.weights, self.folder, self.options, self.say = clip, weights, folder, options, say
        self.accelerator, self._is_sharded = accelerator, is_sharded
        self.step = 0
        self.is_stopped = False
        """Set to True to end the run after the current step, with a checkpoint."""
        self._word = NewWord(options.word, options.word_vectors) if options.word else None
        self._images = Images(clip, options)
        self.data = self._images.read(data, folder, accelerator, say)
        self._say_what_is_cut()
        count = options.num_held_out(len(self.data.examples))
        if len(self.data.examples) - count < 2:
            left_out = "; ".join(summary(self.data.problems))
            raise ValueError(
                f"{len(self.data.examples)} usable pairs{f': {left_out}' if left_out else ''}, {count} of them held "
                "out. Training tells pairs from each other, so at least 2 must be left"
            )
        self.pairs, self.held = held_out(self.data.examples, count, options.seed)
        self._patience = None if options.patience is None else Patience(options.patience)
        if self._patience and not self.held:
            raise ValueError("--patience stops by the recall of held-out pairs, and none are held out: use --held-out")
        self._check_word()
        self._share = self._size_of_share()
        self.batches = Batches(self.pairs, self._share * accelerator.num_processes, options.seed)
        self.num_steps = options.steps or options.epochs * self.batches.per_epoch
        self._build()

    def _say_what_is_cut(self) -> None:
        """Name captions that are cut off for the tower."""
        config = self.clip.text.config
        captions = [(pair.name, caption) for pair in self.data.examples for caption in pair.captions]
        cut = [name for name, caption in captions if is_too_long(caption, default_tokenizer(), config, self._word)]
        if cut:
            self.say(
                f"{len(cut)} captions have more than {config.context_length - 2} tokens, and are read up to there "
                f"({', '.join(cut[:3])}{', ...' if len(cut) > 3 else ''})"
            )

    def _check_word(self) -> None:
        """Count captions with the new word."""
        if self._word is None:
            return
        captions = [caption for pair in self.pairs for caption in pair.captions]
        count = sum(len(self._word.parts_around(caption)) > 1 for caption in captions)
        if not count:
            raise ValueError(
                f"no caption to train on has the word {self.options.word!r}: write it into those of the images that "
                "show it"
            )
        self.say(f"{count:,} of {len(captions):,} captions have the word {self.options.word!r}")

    def _size_of_share(self) -> int:
        """This process's share of a batch; smaller than requested if there are not enough pairs."""
        processes = self.accelerator.num_processes
        asked = self.options.batch * self.options.accumulate
        share = min(asked, sum(pair.repeats for pair in self.pairs) // processes)
        if share < asked:
            self.say(f"batch of {share * processes} pairs, as there are no more than {len(self.pairs)}")
        if share * processes < 2:
            raise ValueError(f"{len(self.pairs)} pairs are too few for {processes} processes")
        return share

    def _build(self) -> None:
        """Build model, optimizer, schedule and average."""
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
        self.towers = Towers(text, self.clip.vision if is_both else None, loss, word)
        for tower in (self.towers.text, self.towers.vision):
            if tower is not None:
                tower.encoder.is_checkpointed = options.checkpointing
        groups = groups_of(self.towers, options.rates)
        # before the accelerator changes the model, so that the copy is of the model alone
        self.average = None
        if options.ema:
            of_weights = get_ema_multi_avg_fn(options.ema)
            self.average = AveragedModel(self.towers, self.accelerator.device, multi_avg_fn=of_weights)
        self._sharding = None
        if self._is_sharded:
            if word is not None:
                raise ValueError("--shard does not go with --word, which trains a few vectors alone: leave it out")
            self._sharding = sharding_for(self.accelerator, self.towers, options.precision, options.optimizer, self.say)
        if self._sharding:
            groups = self._sharding.divide(self.towers, groups)
            if self.average is not None:
                self._sharding.divide(self.average.module)
        self._make_optimizer = OPTIMIZERS[options.optimizer]
        plain = self._make_optimizer(groups)
        prepare = self._sharding.prepare if self._sharding else self.accelerator.prepare
        self.model, self.optimizer = prepare(self.towers, plain)
        self.schedule = schedule(plain, options.rates.warmup, self.num_steps)
        self.scales = None
        if options.precision == "fp16":  # after the average, whose model gets no hooks
            self.scales = GradientScales(self.towers, self.accelerator.num_processes)
        self.compression = powersgd.compression_of(self.accelerator, self.model, options.compress, self.scales)
        self._updates = Updates(self)

    # ---- training

    def train(self) -> dict[str, float]:
        """Train to the end, and write the results.

        Returns:
            Final measurements: recall, if pairs are held out, and the change of watched prompts.

        Raises:
            KeyboardInterrupt: If it was stopped. The checkpoint holds all progress.
            ValueError: If losses, gradients or weights are not finite. The last good weights are written.
            OSError: If a file cannot be written.
        """
        try:
            with board(self.folder, self.step) if self.accelerator.is_main_process else nullcontext() as self._on_board:
                self._train()
            self.save()
        except NotFiniteError as error:
            raise self._updates.end(error) from error
        self._take_best()
        self._merge()
        self.write_results()
        if self.compression is not None:
            self.say(self.compression.line())
        return self._measured(self._result)

    def _train(self) -> None:
        """Train the remaining steps."""
        if self.step == 0:
            self._log({"step": 0, **self._judged(self._measure())})
        every = max(1, self.num_steps // NUM_EVALUATIONS)
        began, first = time.monotonic(), self.step
        saved = said = began
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            following = self._load(pool, self.step)
            while self.step < self.num_steps and not self._is_over:
                parts = self._parts(following)
                if self.step + 1 < self.num_steps:
                    following = self._load(pool, self.step + 1)
                rate, (loss, distance) = float(self.schedule.get_last_lr()[0]), self._train_on(parts)
                self.step += 1
                now = time.monotonic()
                kept = {"kept": distance} if self._keeping else {}
                kept |= self._updates.log()
                self._log({"step": self.step, "loss": loss, **kept, "rate": rate, "scale": self._scale()})
                if now - said > 5 or self.step in (first + 1, self.num_steps):
                    said = now
                    self.say(self._progress(loss, (now - began) / (self.step - first)))
                if self.step % every == 0 or self.step == self.num_steps:
                    self._log({"step": self.step, **self._judged(self._measure())})
                if self._all_stop():
                    self.save()
                    self.say(f"stopped after step {self.step:,} of {self.num_steps:,}: --resume goes on from here")
                    raise KeyboardInterrupt
                if now - saved > SECONDS_BETWEEN_CHECKPOINTS:
                    self.save()
                    saved = time.monotonic()

    def _merge(self) -> None:
        """Merge with the initial weights as requested, and measure again."""
        strength = self.options.merge
        if strength == 1:
            return
        try:
            first = self._first()
        except CheckpointError as error:
            raise ValueError(
                f"{error}. So nothing is merged or written. Put the file back, and use --resume"
            ) from error
        merge(self._trained(), first, strength)
        self.say(f"merged: the weights from before and {strength:g} of their change")
        self._measure()

    # ---- early stopping

    @property
    def _is_over(self) -> bool:
        return self._patience is not None and self._patience.is_over

    def _trained(self) -> dict[str, Tensor]:
        """Trained state, as it is measured and written."""
        trained = {name for name, parameter in self.towers.named_parameters() if parameter.requires_grad}
        return {name: one.detach() for name, one in self._result.named_parameters() if name in trained}

    def _judged(self, found: dict[str, float]) -> dict[str, float]:
        """Record a measurement, keeping the weights if it is the best so far."""
        patience = self._patience
        if patience and patience.is_better(found, self.step) and self.accelerator.is_main_process:
            checkpoint.save(self.folder, {"step": self.step, "trained": self._trained()}, BEST_NAME)
        return found

    def _take_best(self) -> None:
        """Restore the best weights."""
        patience = self._patience
        if patience is None:
            return
        self.accelerator.wait_for_everyone()
        best = self._best()
        if best["step"] != patience.step:
            raise ValueError(f"{self.folder / BEST_NAME} is of another step than {patience.step:,}, the best one")
        for name, parameter in self._trained().items():
            parameter.copy_(best["trained"][name])
        why = f"no better recall in {patience.since} measurements: stopped after step" if patience.is_over else "after"
        self.say(f"{why} {self.step:,}; the best weights, of step {patience.step:,}, are written")

    def _train_on(self, parts: Sequence[Part]) -> Losses:
        """Perform one step; return the losses of the whole batch."""
        kept = self._keeping(self.step, self.accelerator.device) if self._keeping else None
        loss, distance = backward(self.accelerator, self.model, parts, kept, self.options.keep)
        loss = over_processes(self.accelerator, loss, "mean")
        is_updated = self._updates(loss + self.options.keep * distance)
        self.schedule.step()
        if is_updated:
            self.towers.loss.clamp_temperature()
            if self.average is not None:
                self.average.update_parameters(self.towers)
            if self._sharding:
                self._sharding.forget()
        return Losses(loss, distance)

    def _load(self, pool: ThreadPoolExecutor, step: int) -> list[tuple[str, Future[Tensor | Problem]]]:
        """Captions of this process's share of a step, with its images as they come."""
        epoch, indices = self.batches(step)
        first = self.accelerator.process_index * self._share
        own = [self.pairs[index] for index in indices[first : first + self._share]]
        return [
            (
                caption_of(pair, epoch, self.options.seed, self.options.captions),
                pool.submit(self._images.for_epoch, pair, epoch),
            )
            for pair in own
        ]

    def _parts(self, loaded: Sequence[tuple[str, Future[Tensor | Problem]]]) -> list[Part]:
        """Parts of a batch on the device."""
        parts: list[Part] = []
        for start in range(0, len(loaded), self.options.batch):
            some = loaded[start : start + self.options.batch]
            images: list[Tensor] = []
            for _, future in some:
                image = future.result()
                if isinstance(image, Problem):
                    raise ValueError(f"{image.name} could be read before, and cannot now: {image.reason}")
                images.append(image)
            ids = self._ids([caption for caption, _ in some])
            device = self.accelerator.device
            parts.append(Part(ids.to(device), torch.stack(images).to(device)))
        return parts

    def _ids(self, captions: Sequence[str]) -> Tensor:
        return token_ids(captions, default_tokenizer(), self.clip.text.config, self._word)

    def _all_stop(self) -> bool:
        """Whether any process should stop."""
        return bool(over_processes(self.accelerator, float(self.is_stopped), "sum"))

    # ---- messages and files

    def _scale(self) -> float:
        return 1 / self.towers.loss.temperature.item()

    def _progress(self, loss: float, seconds: float) -> str:
        """Progress line of a step."""
        per_step = self._share * self.accelerator.num_processes
        left = log.duration(seconds * (self.num_steps - self.step))
        return (
            f"step {self.step:,} of {self.num_steps:,}: loss {loss:.4f}, scale {self._scale():.1f}, "
            f"{per_step / seconds:.1f} pairs/s, {left} left{self._updates.note}"
        )

    @property
    def _result(self) -> Towers:
        """The model that is measured and written: the average, if any. If sharded, all processes must call this."""
        result = self.towers if self.average is None else self.average.module
        return cast("Towers", self._sharding.whole(result) if self._sharding else result)

    def _measure(self) -> dict[str, float]:
        """Measure and report the current result."""
        found = self._measured(self._result)
        for line in self._measured.lines(found, self.step):
            self.say(line)
        return found

    def _log(self, entry: Mapping[str, float]) -> None:
        """Append a line to the log, on the first process only."""
        if self.accelerator.is_main_process and len(entry) > 1:
            log.append(self.folder, entry)
            if self._on_board:
                self._on_board(entry)

    def about(self) -> dict[str, Any]:
        """Properties that a resumed run must share with the one it continues; merging is not among them."""
        options = {name: value for name, value in self.options.as_dict().items() if name != "merge"}
        return {
            "data": self.data.digest,
            "pairs": len(self.data.examples),
            "weights": self.clip.name,
            "processes": self.accelerator.num_processes,
            "steps": self.num_steps,
            **{f"options.{name}": json.dumps(value) for name, value in options.items()},
        }

    def save(self) -> None:
        """Write the checkpoint.

        Raises:
            NotFiniteError: If a weight is not finite; the last one is kept.
            OSError: If it cannot be written; the last one is kept.
        """
        self._updates.check_weights()
        state = self._state()
        if self._sharding:
            state = self._sharding.gathered(state)
        with powersgd.saved(self.compression, self.folder, self.step, self.accelerator):
            if self.accelerator.is_main_process:
                checkpoint.save(self.folder, state)
            self.accelerator.wait_for_everyone()

    def _state(self) -> dict[str, Any]:
        """State for the checkpoint; tensors of a sharded model are sharded."""
        scaler = self.accelerator.scaler
        return {
            "about": self.about(),
            "step": self.step,
            "model": checkpoint.trained_state(self.towers),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "average": None if self.average is None else checkpoint.trained_state(self.average),
            "patience": None if self._patience is None else asdict(self._patience),
            "scaler": None if scaler is None else scaler.state_dict(),
            "scales": None if self.scales is None else self.scales.state_dict(),
        }

    def resume(self) -> None:
        """Continue from the checkpoint.

        Raises:
            ValueError: If there is none, it has other data, weights or options, or a file of it is damaged.
        """
        is_main = self.accelerator.is_main_process
        state = checkpoint.load_same(self.folder, self._state(), self._check, self.say, is_main_process=is_main)
        if state is None:
            return
        self.take(state)
        if self.accelerator.is_main_process:
            log.cut_after(self.folder, self.step)
        self.say(f"goes on after step {self.step:,} of {self.num_steps:,}")

    def _check(self, state: dict[str, Any]) -> None:
        """Check a checkpoint of a run with the same properties, and take options from the current run."""
        like = self._state()
        checkpoint.check_state(state, like, self.num_steps, self._make_optimizer, self.optimizer, self.scales)
        course, own = state["schedule"], like["schedule"]
        if not isinstance(course, dict) or course.get("last_epoch") != state["step"]:
            raise ValueError("its schedule is not of its step")
        # other PyTorchs have other keys
        state["schedule"] = {key: course.get(key, value) for key, value in own.items()} | {"base_lrs": own["base_lrs"]}
        checkpoint.check_like(state["schedule"], own, "schedule")
        rates = [rate * factor(state["step"], self.options.rates.warmup, self.num_steps) for rate in own["base_lrs"]]
        found = [group["lr"] for group in state["optimizer"]["param_groups"]]
        for some in (found, state["schedule"]["_last_lr"]):
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
        self.step = state["step"]
        if self._sharding:
            self._sharding.divide_state(state, self.towers, self.optimizer, self.average)
        checkpoint.load_trained_state(self.towers, state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        if self.average is not None:
            checkpoint.load_trained_state(self.average, state["average"])
        if self._patience is not None:
            self._patience = Patience(**state["patience"])
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        if self.scales is not None:
            self.scales.load_state_dict(state["scales"])
        if self.compression is not None:
            self.compression.load(self.folder, self.step, self.accelerator)

    def write_results(self) -> None:
        """Write the files that hosts load.

        Raises:
            OSError: If a file cannot be written.
            ValueError: If the image tower cannot be read again; all but the whole CLIP is written.
        """
        result = self._result
        if self.accelerator.is_main_process:
            step = self._patience.step if self._patience else self.step
            Results(self.folder, self.clip, self.weights, self.options, self._images.digest).write(result, step)
        self.accelerator.wait_for_everyone()
