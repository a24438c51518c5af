"""Settings of the WebUI's script, and their representation in an image's parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ...weighting.encode import EncodeOptions

INFOTEXT = "Weighted CLIP"
"""Prefix of our entries in an image's parameters. The entry of exactly this name is the scheme."""


class FirstScheme(str):
    """First scheme in the script's menu, which differs from the default of the API.

    If a request names no scheme, the host inserts the menu's first value: `FIRST_SCHEME`, the only object of this type.
    A page sends a plain string, and Forge converts a pasted value to the type of the menu's, which makes one as well.
    """

    __slots__ = ()

    def __new__(cls, value: str) -> str:
        """Make a plain string."""
        return str(value)

    def __deepcopy__(self, memo: object) -> FirstScheme:
        return self


FIRST_SCHEME = str.__new__(FirstScheme, "masked_blend")


@dataclass(frozen=True)
class Settings:
    """Controls of the script, in the order in which the API takes them; new ones are only ever appended."""

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
        """Make settings from the values of the controls.

        Raises:
            ValueError: If there are more values than settings.
        """
        names = [field.name for field in fields(cls)]
        if len(values) > len(names):
            raise ValueError(f"{INFOTEXT} takes {len(names)} values ({', '.join(names)}), got {len(values)}")
        given: list[Any] = [cls.scheme if isinstance(value, FirstScheme) else value for value in values]
        return cls(*given)

    def options(self) -> EncodeOptions:
        """Options for encoding prompts. The host cleans its texts itself, and makes several of a prompt.

        It also removes tags itself, but not from a negative prompt, where they are text.

        Raises:
            ValueError: If a choice is not allowed; the message lists the choices.
        """
        choices = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "enabled"}
        for name in ("bind", "bind_words"):
            if not isinstance(choices[name], str):
                raise ValueError(f"{name} must be a text, got {choices[name]!r}")
        if not isinstance(self.bind_strength, (int, float)):
            raise ValueError(f"bind_strength must be a number, got {self.bind_strength!r}")
        return EncodeOptions(**choices, quirks=True, cleaning="none", has_tags=False, binds_some=True)

    def infotext(self) -> dict[str, str | float]:
        """Entries for an image's parameters: the scheme, and everything that differs from its default."""
        entries: dict[str, str | float] = {INFOTEXT: self.scheme}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("enabled", "scheme") and value != field.default:
                entries[infotext_key(field.name)] = value
        return entries


def infotext_key(name: str) -> str:
    """Key of a setting in an image's parameters.

    >>> infotext_key("mask_method"), infotext_key("scheme")
    ('Weighted CLIP mask method', 'Weighted CLIP')
    """
    return INFOTEXT if name == "scheme" else f"{INFOTEXT} {name.replace('_', ' ')}"


def pasted(name: str, parameters: Mapping[str, Any]) -> Any:
    """Value of a setting's control after pasting the parameters of an image.

    Returns:
        Its value, or None, which changes nothing, if the image was made without us. ``enabled`` is then False.
    """
    if name == "enabled":
        return INFOTEXT in parameters
    if INFOTEXT not in parameters:
        return None
    default = getattr(Settings, name)
    value = parameters.get(infotext_key(name), default)
    if isinstance(default, float):
        with contextlib.suppress(TypeError, ValueError):  # refusing values that are not numbers is left to the host
            return float(value)
    return value
