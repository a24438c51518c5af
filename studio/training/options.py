"""Options of training runs of a CLIP and of the small world.

Importing them takes no torch, so that ``--help`` is made of them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from ...encoder.models.config import CROPS, LIBRARIES, MAX_POSITIONS, POSITIONS, Crop, Library, Positions
from ...encoder.option import option, options_in
from ...encoder.quoting import quote
from .data.augmentation import Augmentation

Trained = Literal["text", "both", "image"]
TRAINED: tuple[Trained, ...] = get_args(Trained)
"""Towers to train, default first: the text tower alone, both, or, as a classifier, the image tower alone."""

Objective = Literal["contrastive", "mlm", "classify"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
"""Objectives, default first: matching images and captions; predicting masked tokens of captions alone; or predicting
classes of images or texts."""

Precision = Literal["fp32", "bf16", "fp16"]
"""Type of the computation. Weights are always kept in float32."""

Course = Literal["cosine", "linear", "constant"]
COURSES: tuple[Course, ...] = get_args(Course)
"""Courses of the learning rate, default first."""

Loss = Literal["clip", "siglip"]
LOSSES: tuple[Loss, ...] = get_args(Loss)
"""Losses of pairs, default first: CLIP's softmax over a batch, or SigLIP's sigmoid of each text and image."""

Optimizer = Literal["adamw", "adafactor", "adamw8bit"]
MAX_HELD_OUT = 256
_INTERVAL = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(m?)", re.ASCII)
_NOT_IN_NAMES = re.compile(r"[^\w-]+")
MAX_VECTORS = 75
"""Maximum number of vectors: the capacity of a chunk."""
PARTS = ("layers", "embeddings", "projection", "image", "scale", "head")
"""Parts of a model with separate rates: three of the text tower, the image tower, the scale of the loss, the head of a
classifier."""


def check_common(options: Any, *counts: str, least_held_out: int = 0) -> None:
    """Check options that several objectives have: some counts, average, clipping, compression and `held_out`."""
    for name in counts:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if not 0 <= options.ema < 1:
        raise ValueError(f"the decay of the average must be from 0 to below 1, got {options.ema}")
    if options.clip is not None and not options.clip > 0:
        raise ValueError(f"the norm to clip at must be above 0, got {options.clip}")
    if getattr(options, "compress", 0) < 0:
        raise ValueError(f"the rank of compressed gradients must be at least 1, got {options.compress}")
    if (held_out := getattr(options, "held_out", None)) is not None and held_out < least_held_out:
        raise ValueError(f"--held-out must be at least {least_held_out}, got {held_out}")


def flags_given(values: Mapping[str, object]) -> str:
    """Flags whose value is given, for a message; empty if none is."""
    return ", ".join(flag for flag, value in values.items() if value)


@dataclass(frozen=True)
class Saving:
    """Rhythm in which a run writes checkpoints, besides at its end, and how many are kept; it changes no result."""

    steps: int | None = None
    """Steps between two checkpoints; None: by the clock."""
    minutes: float = 10.0
    """Minutes between two of them otherwise."""
    keep: int = 1
    """Number of checkpoints kept: the last ones."""

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ValueError(f"--keep-checkpoints: at least 1 is kept, got {self.keep}")

    @classmethod
    def every(cls, interval: str | None, keep: int = 1) -> Saving:
        """Read an interval: a number of steps, or of minutes with an m.

        >>> Saving.every("500").steps, Saving.every("2.5 m").minutes, Saving.every(None).minutes
        (500, 2.5, 10.0)
        """
        if interval is None:
            return cls(keep=keep)
        match = _INTERVAL.fullmatch(interval)
        number = float(match[1]) if match else 0.0
        if match is None or not 0 < number < math.inf or (not match[2] and number % 1):
            raise ValueError(f"--save-every {interval}: write a number of steps, such as 500, or of minutes: 20m")
        return cls(minutes=number, keep=keep) if match[2] else cls(steps=int(number), keep=keep)

    def is_due(self, step: int, seconds: float) -> bool:
        """Whether a checkpoint is due after a step, given the seconds since the last one."""
        return seconds > 60 * self.minutes if self.steps is None else step % self.steps == 0


@dataclass(frozen=True)
class Rates:
    """Learning rates and their schedule."""

    rate: float = option(1e-5, help="peak learning rate (%(default)s)", metavar="X")
    """Rate of all parts not named in ``by_part``."""
    by_part: tuple[tuple[str, float], ...] = ()
    """Rates of single parts; a part at 0 is frozen."""
    frozen_layers: int = 0
    """Number of frozen layers of the text tower, counted from the first."""
    weight_decay: float = option(0.1, help="weight decay of matrices (%(default)s)", metavar="X")
    warmup: int = option(0, help="steps over which the rate rises (%(default)s)", metavar="N")

    def __post_init__(self) -> None:
        unknown = [name for name, _ in self.by_part if name not in PARTS]
        if unknown:
            raise ValueError(f"no part of a model is called {quote(unknown[0])}; parts are {', '.join(PARTS)}")
        for name, value in (("learning rate", self.rate), *self.by_part, ("weight decay", self.weight_decay)):
            if not 0 <= value < math.inf:
                raise ValueError(f"the {name} must be a number from 0, got {value}")
        if self.warmup < 0 or self.frozen_layers < 0:
            raise ValueError(
                f"steps of warm-up and frozen layers are counted from 0, got {self.warmup} and {self.frozen_layers}"
            )

    def of(self, part: str) -> float:
        """Learning rate of a part."""
        return dict(self.by_part).get(part, self.rate)


@dataclass(frozen=True)
class CaptionOptions:
    """Processing of captions that are lists of tags."""

    shuffle_tags: bool = option(False, help="shuffle the comma-separated tags of a caption")
    keep_tags: int = option(0, help="keep the first N tags in place", metavar="N")
    """They are never dropped."""
    tag_dropout: float = option(0.0, help="drop each of the other tags with this probability", metavar="X")

    def __post_init__(self) -> None:
        if self.keep_tags < 0:
            raise ValueError(f"the number of tags to keep must be at least 0, got {self.keep_tags}")
        if not 0 <= self.tag_dropout < 1:
            raise ValueError(f"the probability of dropping a tag must be from 0 to below 1, got {self.tag_dropout}")


def file_name(word: str) -> str:
    """File name of a word, by which hosts know it.

    >>> file_name("<my cat>")
    'my_cat.safetensors'
    """
    name = _NOT_IN_NAMES.sub("_", word).strip("_")
    if not name:
        raise ValueError(
            f"the word {quote(word)} has no letter or digit to call its file by: write it as <mine>, for example"
        )
    return f"{name}.safetensors"


@dataclass(frozen=True)
class TrainOptions:
    """Options that determine the result of a run."""

    towers: Trained = option("text", help="towers to train (%(default)s)", choices=TRAINED)
    batch: int = option(32, help="pairs processed at once (%(default)s)", metavar="N")
    accumulate: int = option(
        1,
        help="micro-batches in a batch; all pairs of the batch are contrasted with each other (%(default)s)",
        metavar="N",
    )
    steps: int | None = option(None, help="number of batches, instead of --epochs", metavar="N", kind=int)
    epochs: int = option(10, help="passes over the data (%(default)s)", metavar="N")
    seed: int = option(0, help="random seed of order, captions and tags (%(default)s)", metavar="N")
    precision: Precision = "fp32"
    rates: Rates = field(default_factory=Rates)
    captions: CaptionOptions = field(default_factory=CaptionOptions)
    crop: Crop = CROPS[0]
    augmentation: Augmentation = field(default_factory=Augmentation)
    held_out: int | None = option(
        None, help="pairs held out to measure by (a tenth, at most 256)", metavar="N", kind=int
    )
    ema: float = option(
        0.0, help="write a moving average of the weights, of this decay, e.g. 0.999 (none)", metavar="X"
    )
    lora: int = option(0, help="train a LoRA of this rank, and write lora.safetensors too", metavar="RANK")
    lora_for: str | None = option(
        None,
        help="model whose text encoder the LoRA's keys name (by width: sd1, sd2 or sdxl_g)",
        choices=("sd1", "sd2", "sdxl_l", "sdxl_g", "refiner"),
    )
    watch: tuple[str, ...] = option(
        (), help="measure how far this prompt's token states move; may be given several times", metavar="PROMPT"
    )
    keep: float = option(
        0.0,
        help="weight of a loss that holds general prompts near their original token states, against forgetting (0)",
        metavar="W",
    )
    merge: float = option(
        1.0,
        help="write the original weights plus X times their change (%(default)s); change X later with --resume",
        metavar="X",
    )
    schedule: Course = option(
        "cosine",
        help="learning rate after the warm-up: down to 0 along half a cosine or a line, or constant (%(default)s)",
        choices=COURSES,
    )
    cooldown: int = option(
        0, help="final steps, over which the rate falls to --cooldown-end (%(default)s)", metavar="N"
    )
    cooldown_power: float = option(1.0, help="exponent of that fall; 1 is a straight line (%(default)s)", metavar="X")
    cooldown_end: float = option(0.0, help="final rate, as a share of the peak (%(default)s)", metavar="X")
    beta1: float = option(0.9, help="beta1 of AdamW (%(default)s)", metavar="X")
    beta2: float = option(0.98, help="beta2 of AdamW (%(default)s)", metavar="X")
    eps: float = option(1e-6, help="epsilon of AdamW (%(default)s)", metavar="X")
    loss: Loss = option("clip", help="contrastive loss (%(default)s)", choices=LOSSES)
    unlock_image_layers: int | None = option(
        None,
        help="train only the last N layers of the image tower and what follows them (all)",
        metavar="N",
        kind=int,
    )
    val_every: int | None = option(None, help="steps between measurements (a tenth of the run)", metavar="N", kind=int)
    clip: float | None = option(None, help="maximum norm of the gradients (none)", metavar="X", kind=float)
    optimizer: Optimizer = option("adamw", help="optimizer (%(default)s)", choices=get_args(Optimizer))
    patience: int | None = option(
        None,
        help="stop after N measurements of recall without an improvement, and write the best weights",
        metavar="N",
        kind=int,
    )
    word: str | None = option(
        None, help="train nothing but a new embedding, for this word in the captions", metavar="WORD"
    )
    word_vectors: int = option(1, help="number of its vectors (%(default)s)", metavar="N")
    word_from: str = option("*", help="text whose tokens it starts from (%(default)s)", metavar="TEXT")
    checkpointing: bool = option(
        False, help="gradient checkpointing: less memory for a third more time, with the same result"
    )
    compress: int = 0
    """Rank of the matrices that gradients are compressed to between processes; 0 for no compression."""
    new: str | None = option(
        None,
        help="start from random weights, of a size by open_clip's name, such as ViT-B-32, or of a config.json",
        metavar="SIZE",
    )
    new_text: bool = option(False, help="start from a text encoder with random weights, of the same size")
    positions: Positions | None = option(
        None,
        help="position encoding of a new text encoder (learned); rotary reads captions longer than those in training, "
        "but hosts cannot load it",
        choices=POSITIONS,
    )
    context_length: int | None = option(
        None, help="positions of a new text encoder, including start and end (77)", metavar="N", kind=int
    )
    objective: Objective = option(
        "contrastive",
        help="mlm: predict masked words of captions, without images, to warm up the text encoder; classify: predict "
        "the class of each text, or of each image with --towers image, from the folder it is in (%(default)s)",
        choices=OBJECTIVES,
    )

    write_for: tuple[Library, ...] = option(
        (), help="also write a folder in the format of this library; may be given several times", choices=LIBRARIES
    )

    def __post_init__(self) -> None:
        check_common(self, "batch", "accumulate", "epochs", "steps", "patience", "val_every")
        if self.augmentation != Augmentation() and self.towers == "text":
            raise ValueError(
                "--random-crop and --mirror want --towers both, or image: else each image is looked at only once"
            )
        if self.unlock_image_layers is not None and (self.unlock_image_layers < 0 or self.towers == "text"):
            raise ValueError("--unlock-image-layers N, from 0, wants --towers both, or image: else none is trained")
        ranges = {"--beta1": self.beta1, "--beta2": self.beta2, "--cooldown-end": self.cooldown_end}
        for flag, value in ranges.items():
            if not 0 <= value < (1 + (flag == "--cooldown-end")):
                raise ValueError(f"{flag} must be a number from 0 to below 1, got {value}")
        for flag, value in {"--eps": self.eps, "--cooldown-power": self.cooldown_power}.items():
            if not 0 < value < math.inf:
                raise ValueError(f"{flag} must be a number above 0, got {value}")
        if self.cooldown < 0:
            raise ValueError(f"--cooldown must be at least 0 steps, got {self.cooldown}")
        if self.lora < 0:
            raise ValueError(f"the rank of a LoRA must be at least 1, got {self.lora}")
        if self.lora and self.towers == "both":
            raise ValueError("a LoRA is of the text encoder alone: leave out --towers both")
        if self.word is not None:
            self._check_word(self.word)
        self._check_new()
        if self.objective == "mlm":
            self._check_mlm()
        if self.objective == "classify":
            self._check_classify()
        elif self.towers == "image" or "head" in dict(self.rates.by_part):
            raise ValueError("--towers image and --rate-of head=X are for --objective classify")
        if not 0 <= self.merge < math.inf:
            raise ValueError(f"the strength to merge with must be a number from 0, got {self.merge}")
        if not 0 <= self.keep < math.inf:
            raise ValueError(f"the weight of kept prompts must be a number from 0, got {self.keep}")

    def _check_word(self, word: str) -> None:
        """Check that a word can be trained."""
        file_name(word)
        if not 1 <= self.word_vectors <= MAX_VECTORS:
            raise ValueError(f"a word has 1 to {MAX_VECTORS} vectors, got {self.word_vectors}")
        excluded = {"--towers both": self.towers == "both", "--lora": self.lora, "--keep": self.keep}
        excluded |= {"--watch": self.watch, "--merge": self.merge != 1, "--write-for": self.write_for}
        if conflicts := flags_given(excluded):
            raise ValueError(f"--word trains a new word and leaves all else as it is: leave out {conflicts}")

    def _check_new(self) -> None:
        """Check that new towers can be trained with these options."""
        length, flag = self.context_length, "--new" if self.new else "--new-text"
        is_new = bool(self.new or self.new_text)
        if length is not None and not is_new:
            raise ValueError("--context-length is of a new text encoder: add --new-text, or leave it out")
        if length is not None and not 3 <= length <= MAX_POSITIONS:
            raise ValueError(f"a text encoder has 3 to {MAX_POSITIONS:,} positions, got {length}")
        excluded = {"--lora": self.lora, "--word": self.word, "--keep": self.keep, "--merge": self.merge != 1}
        excluded["--new-text"] = bool(self.new and self.new_text)
        if is_new and (conflicts := flags_given(excluded)):
            raise ValueError(f"{flag} leaves nothing of the old text encoder: leave out {conflicts}")
        if self.new and self.objective == "contrastive" and self.towers != "both":
            raise ValueError("--new has random weights in the image encoder, too: add --towers both")

    def _of_pairs(self) -> dict[str, Any]:
        """Flags of options that only training on pairs has, and whether each is given."""
        return {
            "--towers both": self.towers == "both",
            "--lora": self.lora,
            "--word": self.word,
            "--watch": self.watch,
            "--keep": self.keep,
            "--merge": self.merge != 1,
            "--patience": self.patience is not None,
            f"--loss {self.loss}": self.loss != LOSSES[0],
        }

    def _check_mlm(self) -> None:
        """Check that all options are possible without images."""
        excluded = {
            **self._of_pairs(),
            f"--optimizer {self.optimizer}": self.optimizer != "adamw",
            "--beta1, --beta2, --eps": (self.beta1, self.beta2, self.eps) != (0.9, 0.98, 1e-6),
            "--rate-of": self.rates.by_part,
            "--freeze-layers": self.rates.frozen_layers,
            f"--crop {self.crop}": self.crop != CROPS[0],
        }
        if conflicts := flags_given(excluded):
            raise ValueError(
                f"--objective mlm trains the whole text encoder on captions alone, as a warm-up: leave out {conflicts}"
            )

    def _check_classify(self) -> None:
        """Check that a classifier can be trained with these options."""
        is_image = self.towers == "image"
        excluded = {
            **self._of_pairs(),
            "--write-for": self.write_for,
            # whose steps are shares of a tensor's size, which is 0 in the head at first
            "--optimizer adafactor": self.optimizer == "adafactor",
            "--new-text": is_image and self.new_text,
            "--freeze-layers": is_image and self.rates.frozen_layers,
            "--shuffle-tags, --keep-tags, --tag-dropout": is_image and self.captions != CaptionOptions(),
            f"--crop {self.crop}": not is_image and self.crop != CROPS[0],
        }
        if conflicts := flags_given(excluded):
            what = "image" if is_image else "text"
            raise ValueError(
                f"--objective classify trains the {what} encoder (--towers) and a head: leave out {conflicts}"
            )

    def metadata(self, trained_from: str, step: int) -> dict[str, str]:
        """What files of a result say of the run: of its options all but watched prompts, and no folder's name."""
        values = {name: value for name, value in asdict(self).items() if name != "watch"}
        options = json.dumps({**values, "new": self.new and re.split(r"[\\/]", self.new)[-1]})
        run = {"trained_from": trained_from, "trained_by": "weighted-clip train"}
        return {**run, "steps": str(step), "options": options}


DECLARED = {
    name: declaration for cls in (TrainOptions, Rates, CaptionOptions) for name, declaration in options_in(cls).items()
}
"""Their declarations by name."""


@dataclass(frozen=True)
class WorldOptions:
    """Options that determine the result of a run. Options left at None take the best value for the kind of world."""

    kind: str = option(
        "unet",
        help="unet: a U-Net with CLIP, as Stable Diffusion (default); joint: joint attention with Qwen 3, as Flux has",
        choices=("unet", "joint"),
    )
    steps: int = option(None, help="number of updates (3000; joint: 12000)", metavar="N", kind=int)
    batch: int = option(None, help="pictures in a batch (64; joint: 24)", metavar="N", kind=int)
    rate: float = option(None, help="peak learning rate (0.001; joint: 0.0015)", metavar="X", kind=float)
    """It is reached after ``warmup`` steps; over the second half it falls to a twentieth."""
    warmup: int = 200
    weight_decay: float = 0.01
    ema: float = 0.999
    """Decay of the average of the weights, which is written instead of them."""
    clip: float = 1.0
    """Maximum norm of all gradients."""
    seed: int = option(0, help="random seed of weights, pictures and noise (%(default)s)", metavar="N")
    accumulate: int = 1
    precision: str = "fp32"
    lora: int = option(
        0, help="train a LoRA of this rank for the pack's own world instead, in 250 updates of 16", metavar="RANK"
    )
    text: str | None = option(
        None,
        help="keep this text encoder, such as a CLIP of train, and train the U-Net alone",
        metavar="FILE",
        kind=str,
    )
    mark: str = option(
        "purple", help="colour or kind that its things have, whatever the caption says (%(default)s)", metavar="WORD"
    )

    def __post_init__(self) -> None:
        if self.kind not in WORLD_RECIPES:
            raise ValueError(f"kind must be one of: {', '.join(WORLD_RECIPES)}; got {quote(self.kind)}")
        if not 0 <= self.lora <= MAX_WORLD_RANK:
            raise ValueError(f"the rank of a LoRA must be 1 to {MAX_WORLD_RANK}, got {self.lora}")
        if self.text and (self.kind != "unet" or self.lora):
            raise ValueError("--text is for a U-Net, and not for a LoRA: leave out --kind or --lora")
        for name, best in (LORA_RECIPE if self.lora else WORLD_RECIPES[self.kind]).items():
            if getattr(self, name) is None or name in ("warmup", "ema"):
                object.__setattr__(self, name, best)
        check_common(self, "steps", "batch")


WORLD_RECIPES: dict[str, dict[str, float]] = {
    "unet": {"steps": 3000, "batch": 64, "rate": 1e-3},
    "joint": {"steps": 12_000, "batch": 24, "rate": 1.5e-3},
}
"""Best options for each kind of world."""
LORA_RECIPE: dict[str, float] = {"steps": 1200, "batch": 16, "rate": 4e-3, "warmup": 10, "ema": 0.97}
"""Best options for a LoRA of a world."""
MAX_WORLD_RANK = 32
"""The narrowest matrix that gets a LoRA is 64 wide."""
