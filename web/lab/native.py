"""Our own encoder as the lab's model: from a file, from a host's folder of models, from Hugging Face, or random.

A shelf has those that the page can choose from, or a file dropped on it; all open pages of a lab use the same.

At first only a file's header is read, which gives its towers and their sizes, enough for reading prompts. The weights
are loaded when something is encoded for the first time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...encoder.files.checkpoint import load_text_models, seeded_text_model
from ...encoder.files.config_file import origin_of
from ...encoder.files.safetensors_file import Refusals
from ...encoder.files.tensor_file import open_tensor_file
from ...encoder.models.attention_weights import attention_weights
from ...encoder.models.clip import FullClip, load_full_clip
from ...encoder.models.config import CLIP_L, TextConfig
from ...encoder.models.prefix import encoders_for
from ...encoder.models.text_model import TextEncoder, TextModel, check_clip_skip
from ...encoder.quoting import quote
from ...weighting.encoders import Encoders
from ...weighting.options import EncodeOptions
from ...weighting.pipeline import Check, EncodedPrompt
from ...weighting.plan import Ask, mask_tensor
from ...weighting.towers import Reader, in_folders, native_readers
from .model import LabError, without_folder
from .model_folders import SUFFIX

RANDOM_WARNING = (
    "NO REAL WEIGHTS: a full-size CLIP with seeded random weights. The wiring is real, the numbers mean nothing. "
    "Give real ones with --weights FILE.safetensors"
)
"""Warning shown wherever there are no real weights."""


@dataclass(frozen=True)
class LoadSettings:
    """Settings for loading a model."""

    embeddings: tuple[Path, ...] = ()
    """Folders of textual inversions."""
    clip_skip: int = 1
    """1 = last layer; families that never use it take their own."""
    dtype: torch.dtype = torch.float32
    """Type of the weights and of the computation."""
    device: str = "cpu"
    """``cpu`` or ``cuda``."""


class NativeLabModel:
    """Our own text encoders; a `LabModel`."""

    def __init__(
        self,
        title: str,
        configs: Mapping[str, TextConfig],
        load: Callable[[], Mapping[str, TextModel]],
        settings: LoadSettings,
        *,
        warning: str = "",
        origin: str = "",
        path: Path | None = None,
    ) -> None:
        """Describe the towers without loading them: ``load`` loads them, onto the device of the settings.

        ``origin`` says by what heads and activation are known. ``path`` is the file, where pictures are to be compared
        with texts by its other half.
        """
        for config in configs.values():
            check_clip_skip(settings.clip_skip, config.num_layers)
        self.title = title if settings.clip_skip == 1 else f"{title}, clip skip {settings.clip_skip}"
        self.warning = warning
        self.origin = origin
        self._configs = configs
        self._load = load
        self._settings = settings
        self._path = path
        self._full: FullClip | None = None
        self._lock = threading.Lock()
        self._encoders: Mapping[str, TextEncoder] | None = None
        self._readers = native_readers(configs, in_folders(settings.embeddings))

    def readers(self) -> Mapping[str, Reader]:
        """Prompt readers for each text tower, by name."""
        return self._readers

    def encode(self, text: str, options: EncodeOptions, check: Check | None = None) -> Mapping[str, EncodedPrompt]:
        """Same as in `LabModel`; the first call loads the weights, and raises `LabError` if that fails."""
        return Encoders(self._readers, self._loaded()).prepare([text], options).run(check)[0].prompts

    def sizes(self) -> Mapping[str, TextConfig]:
        """Sizes of each text tower, by name."""
        return self._configs

    def attention(self, tower: str, ask: Ask, layer: int) -> Tensor:
        """The weights ``[heads, positions, positions]`` of a layer, counted from 1, of one encoding of a tower."""
        encoder = self._loaded()[tower]
        device = encoder.model.final_layer_norm.weight.device
        plain, vectors = encoder.split([ask.ids])
        ids = torch.tensor(plain, device=device)
        mask = mask_tensor([ask.visible], len(ask.ids))
        weights = attention_weights(encoder.model, ids, mask, layer=layer, vectors=vectors, is_causal=ask.is_causal)
        return weights[0]

    def full(self) -> FullClip:
        """Both halves, to compare pictures with texts; the first call loads them."""
        if self._path is None:
            raise LabError(
                "Random weights would rank pictures at random. Start the lab with a whole CLIP, such as the "
                "model.safetensors of openai/clip-vit-large-patch14: lab --download, or --weights FILE"
            )
        with self._lock:
            if self._full is None:
                try:
                    self._full = load_full_clip(self._path, dtype=self._settings.dtype, device=self._settings.device)
                except (ValueError, OSError, RuntimeError) as error:  # RuntimeError: memory
                    raise LabError(f"Pictures cannot be compared: {without_folder(error, self._path)}") from error
            return self._full

    def _loaded(self) -> Mapping[str, TextEncoder]:
        with self._lock:
            if self._encoders is None:
                try:
                    self._encoders = encoders_for(self._load(), self._settings.clip_skip)[1]
                except (ValueError, OSError, RuntimeError) as error:  # RuntimeError: memory
                    reason = str(error) if self._path is None else without_folder(error, self._path)
                    raise LabError(f"{self.title} cannot be loaded: {reason}") from error
            return self._encoders


def file_model(path: Path, settings: LoadSettings) -> NativeLabModel:
    """Text encoders of a safetensors file, which may be a checkpoint of Stable Diffusion 1.x, 2.x or SDXL."""
    with open_tensor_file(path) as file:
        towers = file.towers()
        configs = {tower.name: file.config(tower) for tower in towers}
        origin = origin_of(file.properties)
    layouts = ", ".join(dict.fromkeys(tower.location.layout for tower in towers))
    refusals = Refusals()

    def load() -> Mapping[str, TextModel]:
        with refusals.remembered(path):
            return load_text_models(path, dtype=settings.dtype, device=settings.device)[0]

    return NativeLabModel(f"{path.name} ({layouts})", configs, load, settings, origin=origin, path=path)


def random_model(settings: LoadSettings, *, config: TextConfig = CLIP_L) -> NativeLabModel:
    """CLIP-L with seeded random weights, and the warning that they are meaningless."""
    return NativeLabModel(
        "random weights, seed 0 (no meaning)",
        {"clip_l": config},
        lambda: {"clip_l": seeded_text_model(config, seed=0, dtype=settings.dtype).to(settings.device)},
        settings,
        warning=RANDOM_WARNING,
    )


class Shelf:
    """Models by name, one of which is in use. Only headers of files are read until something is encoded."""

    def __init__(self, model: NativeLabModel, name: str, settings: LoadSettings, files: Mapping[str, Path]) -> None:
        self._model = model
        self._settings = settings
        self._files = dict(files)
        self._first = name, model
        self._dropped: tuple[str, Path] | None = None
        self._lock = threading.Lock()
        self.name = name
        """Name of the model in use."""

    def source(self) -> NativeLabModel:
        """The model in use."""
        return self._model

    @property
    def names(self) -> list[str]:
        """Names of all available models."""
        dropped = [] if self._dropped is None else [self._dropped[0]]
        return list(dict.fromkeys([*dropped, self._first[0], *self._files]))

    def choose(self, name: str) -> None:
        """Switch to another model; if its file cannot be used, the previous one stays in use."""
        with self._lock:
            if name == self.name:
                return
            if self._dropped is not None and name == self._dropped[0]:
                model = file_model(self._dropped[1], self._settings)
            elif name == self._first[0]:
                model = self._first[1]
            elif name in self._files:
                model = file_model(self._files[name], self._settings)
            else:
                raise LabError(f"there are no weights named {quote(name)}; there are {', '.join(self.names)}")
            self._model, self.name = model, name

    def drop(self, path: Path) -> None:
        """Use a file dropped on the page, and remove the one dropped before; one that is refused changes nothing."""
        if path.suffix.lower() != SUFFIX:
            raise LabError(f"{path.name}: weights are read from {SUFFIX} files alone")
        with self._lock:
            try:
                model = file_model(path, self._settings)
            except ValueError as error:
                path.unlink(missing_ok=True)
                error.args = (without_folder(error, path),)
                raise
            old, self._dropped = self._dropped, (f"{path.name} (dropped)", path)
            self._model, self.name = model, self._dropped[0]
            if old is not None and old[1] != path:
                old[1].unlink(missing_ok=True)
