"""The settings of the WebUI's script, and how they are written into an image's parameters and read from them again."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ...weighting.encode import EncodeOptions

INFOTEXT = "Weighted CLIP"
"""First words of our entries in an image's parameters. The entry of this name alone is the scheme."""


class FirstScheme(str):
    """The scheme with which the script's menu begins, which is another than the default of the API.

    Where a request names no scheme the host puts in what the menu begins with: this object. From a page comes a plain
    string.
    """

    __slots__ = ()


FIRST_SCHEME = FirstScheme("masked_blend")


@dataclass(frozen=True)
class Settings:
    """The controls of the script, in the order in which the API takes them; new ones are only ever appended."""

    enabled: bool = False
    scheme: str = "a1111"
    normalization: str = "none"
    law: str = "nested"
    mask_method: str = "attention"
    padding: str = "attend"
    syntax: str = "a1111"
    finest_step: str = "auto"
    bind: str = ""
    bind_rest: str = "full"
    bind_strength: float = 1.0
    bind_hide: str = "whole phrases"
    bind_words: str = ""

    @classmethod
    def of(cls, values: Sequence[Any]) -> Settings:
        """The settings from the values of the controls.

        Raises:
            ValueError: If there are more than there are settings.
        """
        names = [field.name for field in fields(cls)]
        if len(values) > len(names):
            raise ValueError(f"{INFOTEXT} takes {len(names)} values ({', '.join(names)}), got {len(values)}")
        given = [cls.scheme if isinstance(value, FirstScheme) else value for value in values]
        return cls(*given)

    def options(self) -> EncodeOptions:
        """How prompts are read and encoded. The host cleans its texts itself, and makes several of a prompt.

        It also takes tags out of them itself, but not out of a negative prompt, where they are text.

        Raises:
            ValueError: If a choice is not one of those allowed; the message lists them.
        """
        choices = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "enabled"}
        for name in ("bind", "bind_words"):
            if not isinstance(choices[name], str):
                raise ValueError(f"{name} must be a text, got {choices[name]!r}")
        if not isinstance(self.bind_strength, (int, float)):
            raise ValueError(f"bind_strength must be a number, got {self.bind_strength!r}")
        return EncodeOptions(**choices, quirks=True, cleaning="none", has_tags=False, binds_some=True)

    def infotext(self) -> dict[str, str | float]:
        """What is written into an image's parameters: the scheme, and whatever differs from its default."""
        entries: dict[str, str | float] = {INFOTEXT: self.scheme}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("enabled", "scheme") and value != field.default:
                entries[infotext_key(field.name)] = value
        return entries


def infotext_key(name: str) -> str:
    """The key of a setting in an image's parameters.

    >>> infotext_key("mask_method"), infotext_key("scheme")
    ('Weighted CLIP mask method', 'Weighted CLIP')
    """
    return INFOTEXT if name == "scheme" else f"{INFOTEXT} {name.replace('_', ' ')}"


def pasted(name: str, parameters: Mapping[str, Any]) -> Any:
    """What the control of a setting becomes when the parameters of an image are pasted.

    Returns:
        Its value; None, which changes nothing, where the image was made without us. ``enabled`` is then False.
    """
    if name == "enabled":
        return INFOTEXT in parameters
    if INFOTEXT not in parameters:
        return None
    default = getattr(Settings, name)
    value = parameters.get(infotext_key(name), default)
    if isinstance(default, float):
        with contextlib.suppress(TypeError, ValueError):  # what is no number is the host's to refuse
            return float(value)
    return value
