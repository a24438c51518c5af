"""Forge's models beyond CLIP, in which text and picture share an attention: which they are, and what acts in them.

Source: docs/reference/beyond-clip.md, "What acts"; behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from ....weighting.chunking.t5 import T5Rule
from ....weighting.options import AS_HOST, OPTIONS, PLACE_OPTIONS
from ....weighting.schemes import SCHEMES
from ....weighting.script_settings import INFOTEXT
from ....weighting.syntax import syntax_of
from ..engines import HostModel, UnknownEncodersError, WebUIError, engines_of
from ..model_readers import readers_of
from ..settings import Settings

CANNOT = ("normalization", "padding")
"""Options of rows that cannot act beside T5; the first can where a scheme weighs T5's rows."""


class JointFamily(NamedTuple):
    """A kind of model whose attention is known."""

    title: str
    network: str
    """Class of its network, with the module."""
    module: str
    """Module of the host in which its attention is called."""
    function: str
    """Name there of the function that it calls for each attention, with the text's rows first."""
    blocks: str = ""
    """Attribute with those blocks of which only the first attention reads text; empty if all do."""
    t5_model: str = ""
    """Its name in the rules of schemes for T5's rows; empty if none but the host's is known for it."""

    @property
    def row_schemes(self) -> tuple[str, ...]:
        """Schemes other than the host's own that weigh its T5's rows as their programs do."""
        return tuple(
            name
            for name, scheme in SCHEMES.items()
            if name != Settings.scheme and scheme.t5 is not None and self.t5_model in scheme.t5.models
        )


FAMILIES = (
    JointFamily(
        "Flux",
        "backend.nn.flux.IntegratedFluxTransformer2DModel",
        "backend.nn.flux",
        "attention_function",
        t5_model="Flux 1",
    ),
    JointFamily(
        "Chroma", "backend.nn.chroma.IntegratedChromaTransformer2DModel", "backend.nn.flux", "attention_function"
    ),
    JointFamily("Stable Diffusion 3.5", "backend.nn.mmditx.MMDiTX", "backend.nn.mmditx", "attention", "joint_blocks"),
)


def network_of(model: HostModel) -> Any:
    """The host's network of a loaded model; None if it has none that is known to be there."""
    owner = getattr(getattr(getattr(model, "forge_objects", None), "unet", None), "model", None)
    return getattr(owner, "diffusion_model", None)


def family_of(model: HostModel) -> JointFamily | None:
    """Family of a loaded model; None for a U-Net, and for a model whose attention or text encoder is unknown."""
    network = network_of(model)
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(network).__mro__}
    family = next((candidate for candidate in FAMILIES if candidate.network in kinds), None)
    if family is None or getattr(network, "register_length", 0):
        return None
    if not hasattr(sys.modules.get(family.module), family.function):
        return None
    try:
        readers_of(model)
    except WebUIError:  # nobody can tell which rows are words
        return None
    return family


def is_beyond_clip(model: HostModel | None) -> bool:
    """Whether a loaded model has a text encoder other than CLIP, or none that is known."""
    try:
        if model is not None:
            engines_of(model)
    except UnknownEncodersError:
        return True
    except WebUIError:
        return False
    return False


def title_of(model: HostModel) -> str:
    """Name of a model beyond CLIP for people."""
    family = family_of(model)
    return type(model).__name__ if family is None else family.title


def t5_rule(settings: Settings, model: HostModel) -> T5Rule | None:
    """Rule by which the scheme weighs T5's rows in a model; None if it does not act, or is the host's own."""
    family = family_of(model)
    if family is None or settings.attention != AS_HOST or settings.scheme not in family.row_schemes:
        return None
    return SCHEMES[settings.scheme].t5


def idle_lines(settings: Settings, model: HostModel) -> Iterator[str]:
    """Lines about settings that cannot act in a model beyond CLIP; the generation runs without them."""
    family, title = family_of(model), title_of(model)
    if family is None:
        yield f"{INFOTEXT} does not know this WebUI's {title}, so this picture is the WebUI's own, as without it."
        return
    weighs, schemes = settings.attention != AS_HOST, family.row_schemes
    beyond = PLACE_OPTIONS["attention"].label
    acts = not weighs and settings.scheme in schemes
    if weighs and settings.scheme in schemes:
        yield (
            f"The scheme {settings.scheme} acts in {title} only while {beyond} is at {AS_HOST}: here weights act in "
            "the attention."
        )
    if not weighs and not acts and settings.scheme != Settings.scheme:
        others = f"; at {AS_HOST} the schemes {' and '.join(schemes)} act as well" if schemes else ""
        yield (
            f"The scheme {settings.scheme} cannot act in {title}, whose text encoder T5 is no CLIP: weights are the "
            f"WebUI's own. What can act there is under {beyond}{others}."
        )
    if not weighs and not acts and not syntax_of(settings.syntax).by_webui:
        others = f" and the scheme is not {' or '.join(schemes)}" if schemes else ""
        yield f"The syntax {settings.syntax} is not read in {title} while {beyond} is at {AS_HOST}{others}."
    for name in CANNOT[acts:]:
        if getattr(settings, name) != getattr(Settings, name):
            yield f"{OPTIONS[name].label} {getattr(settings, name)} cannot act in {title}."
    what = settings.bind_words if settings.bind_hide == "cutoff" else settings.bind
    if what.strip() and settings.bind_strength > 0:
        yield f"{OPTIONS['bind'].label} cannot act in {title}: its text encoder T5 reads a prompt as a whole."


def acted_by(settings: Settings, *, is_known: bool) -> str:
    """Name of that by which weights have acted in a model beyond CLIP, for an image's parameters."""
    way = settings.attention if is_known else AS_HOST
    return "the WebUI's own weights" if way == AS_HOST else f"attention {way}"
