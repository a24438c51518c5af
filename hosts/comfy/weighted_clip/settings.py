"""Settings of the node Weighted CLIP, and what they mean for a CLIP."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ....encoder.quoting import checked, quote
from ....weighting.attention import WAYS, way_of
from ....weighting.guidance import GUIDANCE, scheme_of_rows
from ....weighting.options import EncodeOptions
from ....weighting.schemes import SCHEMES
from ....weighting.timed.glides import GLIDES, Glides
from ....weighting.timed.joining import JOINS, Joins
from ....weighting.timed.schedule import COUNTERS, MAX_STEPS, Counter
from ..clip.clip import is_stable_diffusion
from ..clip.towers import has_towers
from ..families.families import ModelFamily, text_family
from ..types import Clip

AUTO = "auto"
"""Choice of the scheme ``comfy`` for Stable Diffusion 1, 2 and XL, and of the attention for all other models."""
ATTENTION = "attention: "
"""Beginning of the choices of weights in the attention."""
CHOICES = (
    *(AUTO, *SCHEMES),
    *(f"{ATTENTION}{way}" for way in WAYS if not SCHEMES[way_of(way).scheme].is_weighing),
    GUIDANCE,
)
"""Effects of a weight: `AUTO`, a scheme, a way of weighing in the attention, or by guidance."""


@dataclass(frozen=True)
class ClipSettings:
    """Settings of the node.

    Raises:
        ValueError: If one is out of range.
    """

    options: EncodeOptions = field(default_factory=EncodeOptions)
    """Options for reading and encoding; the scheme is that of ``choice``."""
    choice: str = AUTO
    """One of `CHOICES`."""
    strength: float = 1.0
    """Scale of weights in the attention."""
    is_timed: bool = False
    """Whether prompts may change while an image is sampled, and have parts joined by AND."""
    steps: int = 20
    """The sampler's steps, for such prompts."""
    counter: Counter = COUNTERS[0]
    """Way of counting them."""
    glides: Glides = GLIDES[0]
    """Whether forms that glide are read."""
    joins: Joins = JOINS[0]
    """Words that join prompts."""

    def __post_init__(self) -> None:
        checked("scheme", self.choice, CHOICES)
        if not math.isfinite(self.strength):
            raise ValueError(f"strength must be a finite number, got {quote(self.strength)}")
        if not 1 <= self.steps <= MAX_STEPS:
            raise ValueError(f"steps must be 1 to {MAX_STEPS}, got {quote(self.steps)}")

    @property
    def way(self) -> str | None:
        """Way of weighing in the attention that was chosen, or `GUIDANCE`, if one was."""
        is_scheme = self.choice == AUTO or self.choice in SCHEMES
        return None if is_scheme else self.choice.removeprefix(ATTENTION)


class Method(NamedTuple):
    """Way of reading and weighting the prompts of a CLIP."""

    options: EncodeOptions
    """Options for CLIP text towers, whose scheme leaves rows alone if weights act in the attention."""
    way: str | None
    """Way of weighing in the attention, or `GUIDANCE`; None if rows are weighted."""
    family: ModelFamily | None
    """Family of the CLIP's text encoders, if it is known and has others than CLIP."""
    has_readers: bool
    """Whether its CLIP text towers read prompts by our rules, not by the host's."""

    @property
    def is_stock(self) -> bool:
        """Whether CLIP text towers encode as the host does."""
        return self.options == EncodeOptions(syntax=self.options.syntax, scheme=self.options.scheme) and (
            self.way is not None or self.options.scheme == EncodeOptions().scheme
        )


def method_for(clip: Clip, settings: ClipSettings) -> Method:
    """Method of a host's CLIP.

    Raises:
        ValueError: If weights are to act in the attention of a model that nobody knows.
    """
    family = text_family(clip)
    towers = has_towers(clip)
    has_only_clip = towers and is_stable_diffusion(clip)
    way = settings.way
    if settings.choice == AUTO and not has_only_clip and family is not None:
        way = next(iter(WAYS))
    is_unknown = family is None and not has_only_clip
    if is_unknown and way is not None and (towers or way != GUIDANCE):
        raise ValueError(
            f"Weighted CLIP does not know which rows are a word's in this CLIP "
            f"({type(clip.cond_stage_model).__name__}), so weights cannot act in the attention: choose auto."
        )
    scheme = EncodeOptions().scheme if settings.choice == AUTO else settings.choice
    if way is not None:
        scheme = scheme_of_rows(way)
    options = replace(settings.options, scheme=scheme, strength=settings.strength)
    if is_unknown:
        way = None
    return Method(options, way, family, has_only_clip if way else towers)
