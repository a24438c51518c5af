"""A training run: from a CLIP and pairs to files that hosts load, stopped and resumed at will."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ....encoder.files.tensor_file import CheckpointError
from ....encoder.models.clip import FullClip
from ....encoder.quoting import quote
from ....encoder.similarity import (
    INITIAL_BIAS,
    INITIAL_SIGMOID_TEMPERATURE,
    MIN_TEMPERATURE,
    ContrastiveLoss,
    SigmoidLoss,
)
from ....encoder.tokenizer import default_tokenizer
from .. import checkpoint
from ..data.captions import NewWord, caption_of, is_too_long, notes_on_cut, notes_on_length, token_ids
from ..data.datasets import Data, summary
from ..data.image_inputs import FEW, Images, Loaded
from ..finetuning.lora import add_lora
from ..finetuning.new_towers import about_clip
from ..finetuning.retention import Keeping
from ..finetuning.textual_inversion import WordVectors
from ..finetuning.wise_ft import FirstWeights, merge
from ..log import number_of
from ..loop import Loop
from ..metrics import BEST_NAME, VAL, Measure, Patience, rows_of
from ..optimizer import factor_of, groups_of, optimizer_of
from ..options import TrainOptions
from ..results import Results
from ..scaling.distributed import over_processes
from ..scaling.grad_cache import MicroBatch, Towers, backward
from .zero_shot import ZeroShot

if TYPE_CHECKING:
    from accelerate import Accelerator


def loss_of(clip: FullClip, options: TrainOptions) -> ContrastiveLoss:
    """The loss at the start of training."""
    if options.loss == "clip":
        return ContrastiveLoss(max(MIN_TEMPERATURE, 1 / clip.logit_scale))
    is_new = bool(options.new) and clip.logit_bias is None
    temperature = INITIAL_SIGMOID_TEMPERATURE if is_new else max(MIN_TEMPERATURE, 1 / clip.logit_scale)
    return SigmoidLoss(temperature, INITIAL_BIAS if clip.logit_bias is None else clip.logit_bias)


class ContrastiveRun(Loop):
    """Training of a CLIP by its contrastive loss."""

    options: TrainOptions
    trained: Towers
    saves_frozen = False
    may_differ = ("merge", "write_for", "new")

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
        val: Data | None = None,
        zero_shot: ZeroShot | None = None,
    ) -> None:
        """Set up the run, which is measured on held-out pairs, on the pairs of ``val``, and by classifying images."""
        super().__init__(folder, options, accelerator, say, clip=options.clip, is_sharded=is_sharded)
        self.clip, self.weights = clip, weights
        self._word = NewWord(options.word, options.word_vectors) if options.word else None
        self._val, self._zero_shot = val, zero_shot
        self._images = Images(clip, options, folder, weights, device=accelerator.device)
        why = ". Training tells pairs from each other, so at least 2 must be left"
        self.hold_out(data, "usable pairs", minimum=2, why=why, images=self._images)
        self._cut: dict[str, None] = {}
        """Names of images whose captions have been cut off so far."""
        if len(self.data.examples) <= FEW:
            for line in notes_on_length(self.data.examples, clip.text.config, self._word):
                say(line)
        self._patience = None if options.patience is None else Patience(options.patience)
        if self._patience and not self.held and not val:
            raise ValueError("--patience stops by the recall of held-out pairs, and none are held out: use --held-out")
        self._check_word()
        self.divide_batches(minimum=2)
        self._images.num_idle = self.batches.per_epoch
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
        line = f"{count:,} of {number_of(len(captions), 'captions')} {have} the word {quote(self.options.word)}"
        self.say(line)

    def _build(self) -> None:
        """Build model, optimizer and average."""
        options = self.options
        is_both = options.towers == "both"
        watched = dict(zip(options.watch, rows_of(self.clip.text, options.watch), strict=True))
        self._measures = [Measure(self.held, self._images, self._ids, options.batch, watched)]
        if self._val:
            val = self._val.examples
            self._measures.append(Measure(val, self._images.of("val"), self._ids, options.batch, {}, VAL))
        self._classified = self._images.of("zero-shot") if self._zero_shot else None
        self._keeping = Keeping(self.clip.text, options.seed) if options.keep else None
        loss = loss_of(self.clip, options)
        self._first = FirstWeights(self.clip, self.weights, options, loss)
        if options.lora:
            add_lora(self.clip.text, options.lora, options.seed)
        text = self.clip.text
        word = WordVectors(text, default_tokenizer(), options.word_vectors, options.word_from) if options.word else None
        towers = Towers(text, self.clip.vision if is_both else None, loss, word)
        for tower in (towers.text, towers.vision):
            if tower is not None:
                tower.encoder.is_checkpointed = options.checkpointing
        if self._is_sharded and word is not None:
            raise ValueError("--shard does not go with --word, which trains a few vectors alone: leave it out")
        self.prepare(towers, groups_of(towers, options.rates, options.unlock_image_layers), optimizer_of(options))

    # ---- training

    def _load(self, pool: ThreadPoolExecutor, step: int) -> Any:
        """Begin to load the images of this process's share of a step."""
        return self.begin_images(pool, step, self._images)

    def _backward(self, loaded: Any) -> dict[str, float]:
        kept_prompts = self._keeping(self.step, self.accelerator.device) if self._keeping else None
        loss, distance = backward(self.accelerator, self.model, self._parts(loaded), kept_prompts, self.options.keep)
        entry = {"loss": over_processes(self.accelerator, loss, "mean")}
        return entry | {"kept": distance} if self._keeping else entry

    def whole_loss(self, entry: Mapping[str, float]) -> float:
        """The contrastive loss, and the weighted change of kept prompts."""
        return entry["loss"] + self.options.keep * entry.get("kept", 0.0)

    def after_update(self) -> None:
        """Keep the temperature in its range."""
        self.trained.loss.clamp_temperature()

    def _train_on(self, loaded: Any) -> dict[str, float]:
        return super()._train_on(loaded) | {"scale": 1 / self.trained.loss.temperature.item()}

    def _parts(self, loaded: tuple[Sequence[Loaded], Sequence[bool]]) -> list[MicroBatch]:
        """Micro-batches of this process's share, on the device."""
        parts: list[MicroBatch] = []
        options, device, (epoch, _) = self.options, self.accelerator.device, self.batches(self.step)
        share = self._images.end(*loaded)
        self.waited = self._images.waited
        for start in range(0, len(share), options.batch):
            batch = share[start : start + options.batch]
            captions = [caption_of(pair, epoch, options.seed, options.captions) for pair, _ in batch]
            ids = self._ids(captions)
            if ids.shape[1] == self.clip.text.config.context_length:
                args = default_tokenizer(), self.clip.text.config, self._word
                named = zip(captions, batch, strict=True)
                self._cut |= dict.fromkeys(pair.name for text, (pair, _) in named if is_too_long(text, *args))
            parts.append(MicroBatch(ids.to(device), torch.stack([image for _, image in batch]).to(device)))
        return parts

    def _ids(self, captions: Sequence[str]) -> Tensor:
        return token_ids(captions, default_tokenizer(), self.clip.text.config, self._word)

    def told(self) -> list[str]:
        """Lines about unreadable images and captions that were cut off."""
        return [*summary(self._images.left_out.problems()), *notes_on_cut([*self._cut], self.clip.text.config)]

    # ---- measuring, stopping early, merging

    def measure(self, *, is_quiet: bool = False) -> dict[str, float]:
        """Recall, ranks and loss on held-out and other pairs, changes of watched prompts, and zero-shot accuracy."""
        result: Towers = self.result
        figures: dict[str, float] = {}
        for measured in self._measures:
            measured_values = measured(result)
            figures |= measured_values
            for line in () if is_quiet else measured.lines(measured_values, self.step):
                self.say(line)
        if self._zero_shot and self._classified:
            measured_values = self._zero_shot(result, self._classified, self._ids, self.options.batch).figures()
            figures |= measured_values
            shares = ", ".join(f"{name} {share:.1%}" for name, share in measured_values.items())
            if not is_quiet:
                self.say(f"{shares} after {self.step:,} steps")
        if len(self.data.examples) <= FEW:
            self._images.drop()
        return figures

    @property
    def is_over(self) -> bool:
        """Whether recall has not improved for as long as the run is patient."""
        return self._patience is not None and self._patience.is_over

    def judged(self, figures: dict[str, float]) -> dict[str, float]:
        """Keep the weights if the measurement is the best so far."""
        patience = self._patience
        if patience and patience.is_better(figures, self.step) and self.accelerator.is_main_process:
            checkpoint.save(self.folder, {"step": self.step, "trained": self._trained()}, BEST_NAME)
        return figures

    def _trained(self) -> dict[str, Tensor]:
        """Trained state, as it is measured and written."""
        trained = {name for name, parameter in self.trained.named_parameters() if parameter.requires_grad}
        return {name: tensor.detach() for name, tensor in self.result.named_parameters() if name in trained}

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

    def _progress(self, entry: Mapping[str, float], speed: float) -> str:
        count = len(self._images.left_out.reasons)
        left_out = f", {number_of(count, 'images')} left out" if count else ""
        return f"loss {entry['loss']:.4f}, scale {entry['scale']:.1f}, {speed:.1f} pairs/s{left_out}"

    def about(self) -> dict[str, Any]:
        """Properties that a resumed run must share with the one it continues; options of output files may differ."""
        return super().about() | about_clip(self.clip, self.options) | {"steps": self.num_steps}

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
        rates = [
            group["initial_lr"] * factor_of(self.options, state["step"], state["about"]["steps"]) for group in groups
        ]
        saved_rates = [group["lr"] for group in state["optimizer"]["param_groups"]]
        checkpoint.check_like(schedule.get("_last_lr"), rates, "schedule._last_lr")
        for found_rates in (saved_rates, schedule["_last_lr"]):
            if not all(math.isclose(*pair, rel_tol=1e-9) for pair in zip(found_rates, rates, strict=True)):
                raise ValueError(f"its learning rates are not those of step {state['step']:,}")
        patience = None if self._patience is None else asdict(self._patience)
        checkpoint.check_like(state["patience"], patience, "patience")
        if self._patience is not None:
            saved_patience = Patience(**state["patience"])
            checkpoint.check_count(saved_patience.step, state["step"], "patience.step")
            checkpoint.check_count(saved_patience.since, state["step"] + 1, "patience.since")
            if saved_patience.most != self._patience.most or not -1 <= saved_patience.best <= 1:
                raise ValueError(f"patience is {saved_patience}, which this run does not write")
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

    def _write(self, result: Towers) -> None:
        """Write the files that hosts load."""
        step = self._patience.step if self._patience else self.step
        Results(self.folder, self.clip, self.weights, self.options, self._images.digest).write(result, step)
