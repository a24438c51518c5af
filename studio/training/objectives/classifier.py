"""Fine-tuning of one tower as a classifier: a linear head on the vector of one token, trained together with the tower.

The logits are ``W z + b``, and the loss is their cross-entropy. For images z is the class vector ([CLS]) of the image
tower after its last norm; for texts it is the vector at EOS after the final norm, the only one that sees the whole
text, as the tower reads causally. The towers' projections are left out. W and b begin at 0, so that all classes are
equally probable at first.

Source: J. Devlin et al., "BERT", 2019, section 4.1, the [CLS] vector and a new head; A. Dosovitskiy et al., "An Image
is Worth 16x16 Words", 2021, section 3.2, the same for a vision transformer, with a head of zeros.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ....encoder.files.checkpoint import clip_config, hugging_face_tensors, load_weights, position_metadata
from ....encoder.files.layouts import find_vision_tower
from ....encoder.files.tensor_file import open_tensor_file
from ....encoder.foreign_text import parse_json
from ....encoder.models.clip import FullClip
from ....encoder.models.config import CROPS, Crop
from ....encoder.models.linear import widened
from ....encoder.models.text_model import TextModel
from ....encoder.models.vision_model import VisionModel
from ....encoder.quoting import quote
from ....encoder.tokenizer import default_tokenizer
from ...output.export import write_tensors
from ...output.files import write_text
from ..checkpoint import check_like, check_weights
from ..data.captions import caption_of, notes_on_length, token_ids
from ..data.datasets import Data, DataProblem, summary
from ..data.examples import Example
from ..data.image_inputs import Images, pixels_of, still_readable
from ..finetuning.new_towers import about_clip
from ..log import number_of
from ..loop import Loop
from ..optimizer import groups_of, optimizer_of
from ..options import TrainOptions
from ..results import CONFIG_NAME
from ..scaling.distributed import over_processes

if TYPE_CHECKING:
    from accelerate import Accelerator

CLASSIFIER_NAME = "classifier.safetensors"
HEAD_KEYS = {"classifier.weight": "weight", "classifier.bias": "bias"}
"""Keys of the head in a file, as in transformers' classifiers."""


class Classifier(nn.Module):
    """A tower and a head."""

    def __init__(self, tower: TextModel | VisionModel, num_classes: int) -> None:
        """Put a head of zeros on a tower, which loses its projection."""
        super().__init__()
        self.text = tower if isinstance(tower, TextModel) else None
        self.vision = tower if isinstance(tower, VisionModel) else None
        if self.text is not None:
            self.text.text_projection = None
        if self.vision is not None:
            self.vision.visual_projection = None
        self.head = nn.Linear(tower.config.hidden_dim, num_classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @property
    def tower(self) -> TextModel | VisionModel:
        """The tower of either kind."""
        return cast("TextModel | VisionModel", self.vision if self.text is None else self.text)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits, ``[b, classes]``, of token ids ``[b, s]`` or images ``[b, 3, image_size, image_size]``."""
        return widened(self.head(self.tower(inputs).pooled))


class Batch(NamedTuple):
    """Inputs of a classifier, on any device."""

    inputs: Tensor
    """As in `Classifier.forward`."""
    targets: Tensor
    """``[b]``, int64: numbers of the classes."""


class ClassifierRun(Loop):
    """Fine-tuning of a classifier of images or texts."""

    options: TrainOptions
    trained: Classifier
    may_differ = ("new",)
    counted_as = "examples"

    def __init__(
        self,
        clip: FullClip,
        data: Data,
        folder: Path,
        options: TrainOptions,
        accelerator: Accelerator,
        say: Callable[[str], None],
    ) -> None:
        """Set up the run; all images are opened once."""
        super().__init__(folder, options, accelerator, say, clip=options.clip)
        self.clip, self.images = clip, Images(clip, options, folder) if options.towers == "image" else None
        names = [example.name for example in data.examples if not class_of(example)]
        data = data.without(DataProblem(name, "in no folder, so it has no class") for name in names)
        self.what, advice = ("images", "") if self.images else ("texts", "; --towers image reads the pictures")
        for line in () if self.images else notes_on_length(data.examples, clip.text.config):
            say(line)
        self.hold_out(data, self.what, why=f": none is left to train on{advice}", images=self.images)
        data = self.data
        self.counts = dict(sorted(Counter(class_of(example) for example in data.examples).items()))
        """Number of examples of each class, in the order of the head's rows."""
        self._check_classes()
        self._number = {name: number for number, name in enumerate(self.counts)}
        self.divide_batches()
        tower = clip.vision if options.towers == "image" else clip.text
        whole = Classifier(tower, len(self.counts))
        tower.encoder.is_checkpointed = options.checkpointing
        self.prepare(whole, groups_of(whole, options.rates, options.unlock_image_layers), optimizer_of(options))

    def _check_classes(self) -> None:
        if len(self.counts) < 2:
            raise ValueError(
                f"all {self.what} are of one class, {quote(next(iter(self.counts)))}: give a folder with a folder for "
                "each of two classes or more"
            )
        if lost := self.counts.keys() - {class_of(example) for example in self.examples}:
            name = min(lost)
            raise ValueError(
                f"the class {quote(name)} has {number_of(self.counts[name], self.what)}, all of them held out: "
                "add some, or use --held-out with a smaller number or another --seed"
            )

    # ---- training

    def _load(self, pool: ThreadPoolExecutor, step: int) -> Any:
        """This process's share of a step: images as they come, or texts, with their classes' numbers."""
        if self.images:
            return self.begin_images(pool, step, self.images)
        epoch, examples = self.share_of(step)
        options = self.options
        return [(example, caption_of(example, epoch, options.seed, options.captions)) for _, example in examples]

    def _batch(self, pairs: Sequence[tuple[Example, Any]]) -> Batch:
        """Examples with their images or texts, as the model takes them."""
        examples, contents = zip(*pairs, strict=True)
        if self.options.towers == "image":
            inputs = torch.stack(contents)
        else:
            inputs = token_ids(contents, default_tokenizer(), self.clip.text.config)
        targets = [self._number[class_of(example)] for example in examples]
        device = self.accelerator.device
        return Batch(inputs.to(device), torch.tensor(targets, device=device))

    def _backward(self, loaded: Any) -> dict[str, float]:
        share = self.images.end(*loaded) if self.images else loaded
        self.waited = self.images.waited if self.images else None
        loss = right = 0.0
        for part in self.micro_batches():
            batch = self._batch(share[part])
            logits: Tensor = self.model(batch.inputs)
            part_loss = functional.cross_entropy(logits, batch.targets, reduction="sum") / len(share)
            self.accelerator.backward(part_loss)  # mean over this process's share, then over processes
            loss, right = loss + part_loss.item(), right + num_right(logits, batch) / len(share)
        figures = {"loss": loss, "accuracy": right}
        return {name: over_processes(self.accelerator, value, "mean") for name, value in figures.items()}

    @torch.no_grad()
    def measure(self, *, is_quiet: bool = False) -> dict[str, float]:
        """Mean loss in nats, and share of right classes, of held-out examples."""
        if not self.held:
            return {}
        loss = right = 0.0
        for start in range(0, len(self.held), self.options.batch):
            examples = self.held[start : start + self.options.batch]
            if self.images:
                contents = [still_readable(image) for image in self.images.now(examples)]
            else:
                contents = [example.captions[0] for example in examples]
            batch = self._batch([*zip(examples, contents, strict=True)])
            logits: Tensor = self.result(batch.inputs)
            loss += functional.cross_entropy(logits, batch.targets, reduction="sum").item()
            right += num_right(logits, batch)
        figures = {"held-out loss": loss / len(self.held), "held-out accuracy": right / len(self.held)}
        line = f"{figures['held-out accuracy']:.1%} right, loss {figures['held-out loss']:.4f}"
        return self._measured(figures, line, is_quiet=is_quiet)

    # ---- messages and files

    def _progress(self, entry: Mapping[str, float], speed: float) -> str:
        return f"loss {entry['loss']:.4f}, {entry['accuracy']:.1%} right, {speed:.1f} {self.what}/s"

    def told(self) -> list[str]:
        """Images that turned out to be unreadable."""
        return summary(self.images.left_out.problems()) if self.images else []

    def about(self) -> dict[str, Any]:
        """Properties that a resumed run must share with the one it continues."""
        return super().about() | about_clip(self.clip, self.options) | {"options.steps": json.dumps(self.num_steps)}

    def _write(self, result: Classifier) -> None:
        """Write tower and head into one file, with the names of the classes."""
        head = {key: getattr(result.head, name).detach().cpu().contiguous() for key, name in HEAD_KEYS.items()}
        tensors = {**hugging_face_tensors(result.tower), **head}
        check_weights(tensors)
        metadata = {
            **self.options.metadata(self.clip.name, self.step),
            "classes": json.dumps(list(self.counts)),
            "crop": self.options.crop,
            **(position_metadata(result.text.config) if result.text is not None else {}),
        }
        config = clip_config(self.clip.text.config, self.clip.vision.config)
        write_text(self.folder / CONFIG_NAME, json.dumps(config, indent=2))
        write_tensors(self.folder / CLASSIFIER_NAME, tensors, metadata)


def num_right(logits: Tensor, batch: Batch) -> int:
    """Number of inputs whose most probable class is theirs."""
    return int((logits.argmax(-1) == batch.targets).sum())


# ---- classes


def class_of(example: Example) -> str:
    """Class of an example: its outermost folder within the data or its shard; empty if it is in none.

    >>> class_of(Example("cat/old/1.png", Path(), ())), class_of(Example("1.png", Path(), ()))
    ('cat', '')
    """
    folders = PurePosixPath(example.name).parts[:-1]  # without the "./" that members of a .tar begin with
    return next(iter(folders[example.place is not None :]), "")


def without_examples(path: Path, classes: Mapping[str, int]) -> list[str]:
    """Lines about folders that are no class, because none of their examples is usable."""
    folders = path.iterdir() if path.is_dir() else ()
    names = sorted(folder.name for folder in folders if folder.is_dir() and not folder.name.startswith("."))
    return [f"{name}: nothing in this folder can be used, so it is no class" for name in names if name not in classes]


# ---- classifying


class Trained(NamedTuple):
    """A classifier of a finished run."""

    model: Classifier
    classes: tuple[str, ...]
    """Names, in the order of the logits."""
    crop: Crop
    """Method of making images square."""


def load_classifier(folder: Path) -> Trained:
    """The classifier of a finished run's folder, in evaluation mode.

    Raises:
        ValueError: If the file is missing, damaged, or not of a classifier.
        OSError: If it cannot be read.
    """
    path = folder / CLASSIFIER_NAME
    if not path.is_file():
        raise ValueError(f"{path} is not there: give the folder of a finished run of train --objective classify")
    with open_tensor_file(path) as file:
        seen = find_vision_tower(file.shapes)
        tower_name = file.towers()[0] if seen is None else seen
        with torch.device("meta"):
            tower = TextModel(file.config(tower_name)) if seen is None else VisionModel(file.vision_config(tower_name))
        load_weights(file, tower_name, tower, torch.float32, "cpu")
        head = {name: file.handle.get_tensor(key) for key, name in HEAD_KEYS.items() if key in file.shapes}
        metadata = file.handle.metadata() or {}
    try:
        classes, crop = parse_json(metadata.get("classes", "null")), metadata.get("crop")
        if not isinstance(classes, list) or not all(isinstance(label, str) for label in classes) or crop not in CROPS:
            raise ValueError(f"its metadata name no classes, or no crop of {', '.join(CROPS)}")
        model = Classifier(tower, len(classes))
        check_like(head, model.head.state_dict(), "its head")
    except ValueError as error:
        raise ValueError(f"{path} is no classifier of train --objective classify: {error}") from error
    model.head.load_state_dict(head)
    return Trained(model.eval().requires_grad_(False), tuple(classes), crop)


@torch.no_grad()
def probabilities(trained: Trained, text_or_path: str) -> list[tuple[str, float]]:
    """Classes by descending probability, of a text, or of the image file of that name.

    Raises:
        ValueError: If the image cannot be read.
    """
    tower = trained.model.tower
    if isinstance(tower, VisionModel):
        pixels = pixels_of(Example(text_or_path, Path(text_or_path), ()), tower.config.image_size, trained.crop)
        if isinstance(pixels, DataProblem):
            raise ValueError(f"{text_or_path}: {pixels.reason}")
        inputs = pixels.unsqueeze(0)
    else:
        inputs = token_ids([text_or_path], default_tokenizer(), tower.config)
    values, order = trained.model(inputs)[0].softmax(-1).sort(descending=True, stable=True)
    return [(trained.classes[index], value) for index, value in zip(order.tolist(), values.tolist(), strict=True)]
