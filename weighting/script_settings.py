"""Settings of our WebUI script as an image's parameters hold them, and prompts read again by them.

A picture without our script is read as the WebUI itself reads: as the script does with the scheme that is the WebUI's
own. So both are one case.

Source: docs/reference/hosts.md, "In the WebUI"; behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .options import OPTIONS, PLACE_OPTIONS, EncodeOptions, PlaceOptions
from .placing.places import PlacedPhrase, read_places
from .schemes.blend import EMPHASES
from .syntax import syntax_of
from .timed.glides import GLIDES, Glides
from .timed.joining import JOINS, Joins

INFOTEXT = "Weighted CLIP"
"""Prefix of our entries in an image's parameters. The entry of exactly this name is the scheme."""
ACTED_BY = f"{INFOTEXT} acted by"
"""Key in an image's parameters for that by which weights have acted, where it is not the scheme."""
OWN = {"Original": "a1111", "No norm": "a1111_no_norm", "Ignore": "unweighted"}
"""Scheme that does the same as the WebUI by each of its emphasis modes."""
FIXED: Mapping[str, Any] = {"quirks": True, "binds_some": True}
"""Options that the script has no control for, and sets."""
TIMING = ("glides", "joins")
"""Settings about prompts that change with the steps."""
_NEVER_WRITTEN = {*FIXED, "cleaning", "has_tags", "comma_backtrack", "emphasis"}
"""Options that are the WebUI's, and not in our entries."""


def infotext_key(name: str) -> str:
    """Key of a setting in an image's parameters.

    >>> infotext_key("mask_method"), infotext_key("scheme")
    ('Weighted CLIP mask method', 'Weighted CLIP')
    """
    return INFOTEXT if name == "scheme" else f"{INFOTEXT} {name.replace('_', ' ')}"


SETTINGS: Mapping[str, str] = {
    infotext_key(name): name for name in (*OPTIONS, *PLACE_OPTIONS) if name not in _NEVER_WRITTEN
}
"""Names of options by their keys in an image's parameters."""


def read_setting(name: str, text: str) -> Any:
    """Read the value of an option from an image's parameters.

    Args:
        name: Field of `EncodeOptions` or `PlaceOptions`.
        text: Value as it stands there.

    Raises:
        ValueError: If it is not allowed; the message names the allowed values.

    >>> read_setting("bind_strength", "0.5"), read_setting("word_maps", "True")
    (0.5, True)
    """
    kind = PlaceOptions if name in PLACE_OPTIONS else EncodeOptions
    default = getattr(kind, name)
    value: Any = text
    if isinstance(default, bool):
        value = {"True": True, "False": False}.get(text, text)
    elif isinstance(default, (int, float)):
        try:
            value = type(default)(text)
        except ValueError:
            value = math.nan
    kind(**{name: value})
    return read_places(value) if name == "places" else value


def as_emphasized(options: EncodeOptions, mode: str) -> EncodeOptions:
    """Apply the WebUI's setting *Emphasis mode* to options: under ``None`` A1111's brackets are text."""
    if mode == "None":
        options = replace(options, emphasis="Ignore")
        return replace(options, syntax="none", chunking="a1111") if syntax_of(options.syntax).by_webui else options
    return replace(options, emphasis=mode if mode in EMPHASES else "Original")  # a host takes others as that, too


@dataclass(frozen=True)
class PromptSettings:
    """Reading and weighting of a picture's prompt."""

    options: EncodeOptions
    """As the script has them."""
    places: tuple[PlacedPhrase, ...] = ()
    """Phrases that are placed in the picture."""
    is_negative: bool = False
    """Whether it is the negative prompt, where tags and AND are text."""
    is_timed: bool = True
    """Whether edits, alternations and AND are read; other programs than the WebUI have none."""
    glides: Glides = GLIDES[0]
    """Whether forms that glide are read."""
    joins: Joins = JOINS[0]
    """Words that join prompts."""

    @staticmethod
    def of(values: Mapping[str, Any], mode: str, *, is_timed: bool = True) -> tuple[PromptSettings, PromptSettings]:
        """Settings of a picture's prompt and negative prompt.

        Args:
            values: Values by `SETTINGS`' names, as `read_setting` gives them; without a scheme, a picture was
                made without the script.
            mode: The WebUI's emphasis mode.
            is_timed: Whether its prompts have edits and AND.
        """
        option_values = {name: value for name, value in values.items() if name in OPTIONS}
        choices: dict[str, Any] = {"syntax": "a1111", "scheme": "a1111", **option_values, **FIXED, "quirks": is_timed}
        options = as_emphasized(EncodeOptions(**choices), mode)
        if "scheme" not in values:
            options = replace(options, scheme=OWN[options.emphasis])
        negative = replace(options, bind_strength=0.0, has_tags=False)
        timing: dict[str, Any] = {"is_timed": is_timed, **{name: values[name] for name in TIMING if name in values}}
        return (
            PromptSettings(options, values.get("places", ()), **timing),
            PromptSettings(negative, is_negative=True, **timing),
        )

    def applied(self, options: EncodeOptions) -> EncodeOptions:
        """The options, with what a node has of its own: how texts are cleaned, and cut at commas."""
        own = {name: getattr(options, name) for name in ("cleaning", "comma_backtrack", "comments")}
        return replace(self.options, **own)
