"""Readers of the text encoders that the model in memory has: T5 and CLIP. Nothing is loaded or encoded for them.

Source: behaviour of stable-diffusion-webui 1.10 and stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import cast

from ...encoder.tokenizer import CleaningTokenize, default_tokenizer
from ...weighting.chunking.t5 import T5Rule
from ...weighting.options import EncodeOptions
from ...weighting.reading.prompt_reader import ReadPrompt
from ...weighting.towers import Reader, read_for_towers
from .engines import Engine, HostModel, engines_of, host_option
from .t5 import NAME, T5, t5_of

TITLES = {"clip_l": "CLIP-L", "clip_g": "CLIP-G"}
"""Names of CLIP towers for people."""
NOT_LOADED = "no model is loaded yet: the tokens are CLIP-L’s"
LOADS_NEXT = "the next picture loads {}: the tokens are those of the model before it"
POOLED = "of {} the pooled vector alone is read, which weights do not change"
T5_OFF = "T5 reads nothing: the setting “Enable T5” is off"
ENGINE = "text_processing_engine"
"""Beginning of the attributes of Forge's models with a text encoder."""


@dataclass(frozen=True, eq=False)
class ModelReaders:
    """Readers of a model's text encoders."""

    model: HostModel | None
    """The host's; None before any is loaded."""
    clip: Mapping[str, Reader]
    """Those of CLIP by tower, which read the same tokens; before a model is loaded CLIP-L's."""
    t5: T5 | None = None
    """T5, if it encodes."""
    is_t5_off: bool = False
    """Whether the model has a T5 that the host does not ask."""

    @property
    def is_beyond_clip(self) -> bool:
        """Whether the model has a text encoder beside CLIP, or none of CLIP."""
        return self.t5 is not None or self.is_t5_off

    def _read_by_clip(self, text: str, options: EncodeOptions) -> ReadPrompt:
        return next(iter(read_for_towers(text, options, self.clip).values()))

    @property
    def weighs_clip(self) -> bool:
        """Whether rows of CLIP are read, and not its pooled vector alone, which no weight changes."""
        return self.t5 is None or self.t5.is_joined

    def by_title(self, rule: T5Rule | None = None) -> Iterator[tuple[str, Callable[[str, EncodeOptions], ReadPrompt]]]:
        """Readers of a text by the name of the encoder; the encoder of most rows that the picture reads comes first.

        ``rule`` is the program's by which T5's rows are made, if not the host's.
        """
        if self.t5 is not None:
            yield "T5", self.t5.read if rule is None else partial(self.t5.read_by, rule)
        if self.clip:
            title = " + ".join(TITLES.get(tower, tower) for tower in self.clip)
            yield title, self._read_by_clip

    def notes(self) -> Iterator[str]:
        """Notes for a user who may think that these readers read the next picture's prompt."""
        if self.is_t5_off:
            yield T5_OFF
        if (name := _next_name(self.model)) is not None:
            yield LOADS_NEXT.format(name)
        elif self.model is None:
            yield NOT_LOADED


def _next_name(model: HostModel | None) -> str | None:
    """Name of the checkpoint that Forge loads before the next picture; None if it loads none, or that is unknown."""
    from modules.sd_models import model_data  # pyright: ignore[reportMissingImports]

    chosen = getattr(model_data, "forge_loading_parameters", {}).get("checkpoint_info")
    loaded = getattr(model, "sd_checkpoint_info", None)
    if chosen is None or loaded is None or chosen.filename == loaded.filename:
        return None
    return chosen.name_for_extra


def model_in_memory() -> HostModel | None:
    """The host's model, or what stands for it before any is loaded."""
    from modules.sd_models import model_data  # pyright: ignore[reportMissingImports]

    return model_data.sd_model  # the public name would load one


def readers_of(model: HostModel | None) -> ModelReaders:
    """Readers of a model; raises `WebUIError` if it has a text encoder that nobody here knows."""
    if not hasattr(model, "get_learned_conditioning"):  # what stands for a model before any is loaded
        return ModelReaders(None, {"clip_l": Reader(CleaningTokenize(default_tokenizer()))})
    assert model is not None
    t5 = t5_of(model)
    if t5 is None:
        return ModelReaders(model, {tower: engine.reader() for tower, engine in engines_of(model).items()})
    is_off = t5.is_joined and not host_option("sd3_enable_t5", default=True)
    clip = {tower: engine.reader() for tower, engine in clip_engines_of(model).items()}
    return ModelReaders(model, clip, None if is_off else t5, is_off)


def clip_engines_of(model: HostModel) -> dict[str, Engine]:
    """CLIP text encoders of a model with T5, by tower; raises `WebUIError` as `engines_of` does."""
    clip_engines = {name: value for name, value in vars(model).items() if name.startswith(ENGINE) and name != NAME}
    if all(value is None for value in clip_engines.values()):
        return {}
    kind = type(type(model).__name__, (SimpleNamespace,), {})  # which is named where it is unknown
    return engines_of(cast(HostModel, kind(**clip_engines)))
