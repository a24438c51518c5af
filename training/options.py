"""Options of a training run."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from ..encoder.config import CROPS, Crop, Positions
from ..encoder.files.tensor_file import MAX_POSITIONS
from .augmentation import Augmentation
from .captions import CaptionOptions
from .optimizer import Optimizer, Rates
from .textual_inversion import MAX_VECTORS, file_name

Trained = Literal["text", "both"]
TRAINED: tuple[Trained, ...] = get_args(Trained)
"""Towers to train, default first: the text tower alone, or both."""

Objective = Literal["contrastive", "mlm"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
"""Objectives, default first: matching images and captions; or predicting masked tokens of captions alone."""

Precision = Literal["fp32", "bf16", "fp16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
"""Types of the computation, default first. Weights are always kept in float32."""

MAX_HELD_OUT = 256


@dataclass(frozen=True)
class TrainOptions:
    """Options that determine the result of a run.

    Raises:
        ValueError: If a number is out of range.
    """

    towers: Trained = "text"
    batch: int = 32
    """Pairs in one part of a batch, which has to fit into memory."""
    accumulate: int = 1
    """Parts in a batch. Pairs are negatives of each other across all parts."""
    steps: int | None = None
    """Steps of the run. None: as many as ``epochs`` have."""
    epochs: int = 10
    seed: int = 0
    precision: Precision = "fp32"
    rates: Rates = field(default_factory=Rates)
    captions: CaptionOptions = field(default_factory=CaptionOptions)
    crop: Crop = CROPS[0]
    augmentation: Augmentation = field(default_factory=Augmentation)
    held_out: int | None = None
    """Pairs held out of training to measure recall. None: a tenth, at most 256."""
    ema: float = 0.0
    """Decay of the moving average of the weights, which is written instead of them; 0 for none."""
    lora: int = 0
    """Rank of a LoRA, trained instead of the text tower's weights; 0 for none."""
    lora_for: str | None = None
    """Model the LoRA is for, a key of `LORA_NAMES`. None: inferred from the tower's width."""
    watch: tuple[str, ...] = ()
    """Prompts whose change is measured."""
    keep: float = 0.0
    """Loss weight for the change of general prompts; 0 for none."""
    merge: float = 1.0
    """Share of the change that is kept when merging with the initial weights; 1 for no merging."""
    optimizer: Optimizer = "adamw"
    patience: int | None = None
    """Number of measurements of recall without improvement that end the run, with the best weights. None: no early
    stop."""
    word: str | None = None
    """A new word in captions, of which only the vectors are trained, or None."""
    word_vectors: int = 1
    word_from: str = "*"
    """Text whose token embeddings initialise the word."""
    checkpointing: bool = False
    """Whether layers are recomputed in the backward pass, to save memory."""
    compress: int = 0
    """Rank of the matrices that gradients are compressed to between processes; 0 for no compression."""
    new_text: bool = False
    """Whether to start with a text tower of random weights, in the size of the file's."""
    positions: Positions | None = None
    """Kind of positions of the text tower. None: as in the file, or learned in a new tower."""
    context_length: int | None = None
    """Positions of a new text tower, including BOS and EOS. None: as many as in the file."""
    objective: Objective = "contrastive"

    def __post_init__(self) -> None:
        counted = {"batch": self.batch, "accumulate": self.accumulate, "epochs": self.epochs}
        for name in ("steps", "patience"):
            if getattr(self, name) is not None:
                counted[name] = getattr(self, name)
        for name, value in counted.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.held_out is not None and self.held_out < 0:
            raise ValueError(f"the number of pairs to hold out must be at least 0, got {self.held_out}")
        if self.augmentation != Augmentation() and self.towers != "both":
            raise ValueError("--random-crop and --mirror want --towers both: else each image is looked at only once")
        if self.compress < 0:
            raise ValueError(f"the rank of compressed gradients must be at least 1, got {self.compress}")
        if self.lora < 0:
            raise ValueError(f"the rank of a LoRA must be at least 1, got {self.lora}")
        if self.lora and self.towers == "both":
            raise ValueError("a LoRA is of the text encoder alone: leave out --towers both")
        if self.word is not None:
            self._check_word(self.word)
        self._check_new_text()
        if self.objective == "mlm":
            self._check_mlm()
        if not 0 <= self.merge < math.inf:
            raise ValueError(f"the strength to merge with must be a number from 0, got {self.merge}")
        if not 0 <= self.keep < math.inf:
            raise ValueError(f"the weight of kept prompts must be a number from 0, got {self.keep}")
        if not 0 <= self.ema < 1:
            raise ValueError(f"the decay of the average must be from 0 to below 1, got {self.ema}")

    def _check_word(self, word: str) -> None:
        """Check that a word can be trained."""
        file_name(word)
        if not 1 <= self.word_vectors <= MAX_VECTORS:
            raise ValueError(f"a word has 1 to {MAX_VECTORS} vectors, got {self.word_vectors}")
        others = {"--towers both": self.towers == "both", "--lora": self.lora, "--keep": self.keep}
        others |= {"--watch": bool(self.watch), "--merge": self.merge != 1}
        if given := [name for name, is_given in others.items() if is_given]:
            raise ValueError(f"--word trains a new word and leaves all else as it is: leave out {', '.join(given)}")

    def _check_new_text(self) -> None:
        """Check that a new text tower can be trained with these options."""
        length = self.context_length
        if length is not None and not self.new_text:
            raise ValueError("--context-length is of a new text encoder: add --new-text, or leave it out")
        if length is not None and not 3 <= length <= MAX_POSITIONS:
            raise ValueError(f"a text encoder has 3 to {MAX_POSITIONS:,} positions, got {length}")
        others = {"--lora": self.lora, "--word": self.word, "--keep": self.keep, "--merge": self.merge != 1}
        if self.new_text and (given := [name for name, is_given in others.items() if is_given]):
            raise ValueError(f"--new-text leaves nothing of the old text encoder: leave out {', '.join(given)}")

    def _check_mlm(self) -> None:
        """Check that all options are possible without images."""
        others = {
            "--towers both": self.towers == "both",
            "--lora": self.lora,
            "--word": self.word,
            "--watch": self.watch,
            "--keep": self.keep,
            "--merge": self.merge != 1,
            "--patience": self.patience is not None,
            f"--optimizer {self.optimizer}": self.optimizer != "adamw",
            "--rate-of": self.rates.by_part,
            "--freeze-layers": self.rates.frozen_layers,
            f"--crop {self.crop}": self.crop != CROPS[0],
        }
        if given := [name for name, is_given in others.items() if is_given]:
            raise ValueError(
                "--objective mlm trains the whole text encoder on captions alone, as a warm-up: leave out "
                f"{', '.join(given)}"
            )

    def num_held_out(self, num_pairs: int) -> int:
        """Number of pairs held out, given their total."""
        return min(MAX_HELD_OUT, num_pairs // 10) if self.held_out is None else self.held_out

    def as_dict(self) -> dict[str, Any]:
        """The options as a dict, for a record."""
        return asdict(self)
