"""Settings of the WebUI's script, and their representation in an image's parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ...encoder.option import OptionError
from ...encoder.quoting import quote
from ...weighting.options import OPTIONS, PLACE_OPTIONS, EncodeOptions, PlaceOptions
from ...weighting.placing.places import PlacedPhrase, read_places
from ...weighting.schemes import SCHEMES
from ...weighting.script_settings import ACTED_BY, FIXED, INFOTEXT, infotext_key
from ...weighting.text.prompt import shortened
from .engines import WebUIError

_UNTAKEN = f"{INFOTEXT} not taken"
"""Key in pasted parameters for lines about what was not taken."""


class FirstValue(str):
    """Value with which a menu of a new page begins, where that is not the default of the API.

    If a request names no value, the host inserts the menu's first one, which alone is of this type. A page sends a
    plain string, and Forge converts a pasted value to the type of the menu's, which makes one as well.
    """

    __slots__ = ()

    def __new__(cls, value: str) -> str:
        """Make a plain string."""
        return str(value)

    def __deepcopy__(self, memo: object) -> FirstValue:
        return self


@dataclass(frozen=True)
class Settings:
    """Controls of the script, in the order in which the API takes them; new ones are only ever appended."""

    enabled: bool = False
    scheme: str = "a1111"
    normalization: str = EncodeOptions.normalization
    law: str = EncodeOptions.law
    mask_method: str = EncodeOptions.mask_method
    padding: str = EncodeOptions.padding
    syntax: str = "a1111"
    finest_step: str = EncodeOptions.finest_step
    bind: str = EncodeOptions.bind
    bind_rest: str = EncodeOptions.bind_rest
    bind_strength: float = EncodeOptions.bind_strength
    bind_hide: str = EncodeOptions.bind_hide
    bind_words: str = EncodeOptions.bind_words
    places: str = PlaceOptions.places
    word_maps: bool = PlaceOptions.word_maps
    above_one: str = EncodeOptions.above_one
    attention: str = PlaceOptions.attention
    attention_strength: float = PlaceOptions.attention_strength
    glides: str = PlaceOptions.glides
    joins: str = PlaceOptions.joins
    comments: str = EncodeOptions.comments

    @classmethod
    def of(cls, values: Sequence[Any]) -> Settings:
        """Make settings from the values of all controls or of the first; more values are refused.

        A choice may also be given as the menu, and with it the host's list of scripts, shows it.
        """
        if len(values) > len(NAMES):
            raise WebUIError(f"The script takes {len(NAMES)} values ({', '.join(NAMES)}), got {len(values)}")
        given: dict[str, Any] = {
            name: value for name, value in zip(NAMES, values, strict=False) if not isinstance(value, FirstValue)
        }
        for name, option in {**OPTIONS, **PLACE_OPTIONS}.items():
            if isinstance(given.get(name), str):
                given[name] = option.chosen(given[name])
        return cls(**given)

    def options(self) -> EncodeOptions:
        """Options for encoding prompts. The host cleans its texts itself, and makes several of a prompt.

        It also removes tags itself, but not from a negative prompt, where they are text. A refusal of a value, also of
        a setting that is no option of these, names those that are allowed.
        """
        self.placed()
        choices = {name: value for name, value in vars(self).items() if name not in PLACE_OPTIONS}
        for name, label in (("enabled", "enabled"), ("word_maps", PLACE_OPTIONS["word_maps"].label)):
            if not isinstance(getattr(self, name), bool):
                raise WebUIError(f"{label} must be true or false, got {quote(getattr(self, name))}")
        del choices["enabled"]
        try:
            return EncodeOptions(**choices, **FIXED, cleaning="none", has_tags=False)
        except OptionError as error:
            raise WebUIError(error.on_page) from error

    def placed(self) -> tuple[PlacedPhrase, ...]:
        """Phrases that are placed in the picture; refused as in `options`."""
        try:
            names = ("attention", "attention_strength", "glides", "joins")
            return read_places(PlaceOptions(self.places, **{name: getattr(self, name) for name in names}).places)
        except OptionError as error:
            raise WebUIError(error.on_page) from error
        except ValueError as error:
            raise WebUIError(str(error)) from error

    def unread(self) -> list[str]:
        """Lines about settings that were chosen, and that nothing reads."""
        chosen = {
            name: value for name, value in vars(self).items() if value not in (getattr(Settings, name), FIRST[name])
        }
        readers = {name: scheme for scheme, record in SCHEMES.items() for name in record.options}
        why = {
            name: f"the scheme {self.scheme} does not read it"
            for name, reader in readers.items()
            if reader != self.scheme
        }
        words, phrases = OPTIONS["bind_words"].label, OPTIONS["bind"].label
        if self.bind_hide == "whole phrases":
            why["bind_words"] = f"{OPTIONS['bind_hide'].label} is at whole phrases"
        if self.bind_hide == "cutoff":
            why["bind"] = f"{OPTIONS['bind_hide'].label} is at cutoff, which reads {words}"
        what, label = (self.bind_words, words) if self.bind_hide == "cutoff" else (self.bind, phrases)
        if not what.strip():
            why |= dict.fromkeys(("bind_hide", "bind_rest", "bind_strength"), f"{label} is empty")
        elif self.bind_strength == 0:
            why |= dict.fromkeys(
                ("bind", "bind_words", "bind_hide", "bind_rest"), f"{OPTIONS['bind_strength'].label} is 0"
            )
        idle_settings = {name: f"{OPTIONS[name].label} {_shown(name, chosen[name])}" for name in why if name in chosen}
        return [f"{setting.rstrip()} changes nothing: {why[name]}." for name, setting in idle_settings.items()]

    def infotext(self, *, is_beyond_clip: bool = False) -> dict[str, str | float | bool]:
        """Entries for an image's parameters: the scheme, and what it, or a model beyond CLIP, reads, if no default."""
        entries: dict[str, str | float | bool] = {INFOTEXT: self.scheme}
        unread = {name for scheme, record in SCHEMES.items() if scheme != self.scheme for name in record.options}
        if is_beyond_clip and self.attention != Settings.attention:
            unread.discard("above_one")
        elif not is_beyond_clip or self.attention == Settings.attention:
            unread |= {"attention", "attention_strength"}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("enabled", "scheme", *unread) and value != field.default:
                entries[infotext_key(field.name)] = value
        return entries


NAMES = tuple(field.name for field in fields(Settings))
"""Names of the settings, in the order of the API."""
FIRST: Mapping[str, Any] = {
    **vars(Settings()),
    "scheme": str.__new__(FirstValue, "masked_blend"),
    "above_one": str.__new__(FirstValue, "as the WebUI"),
    "attention": str.__new__(FirstValue, "bias"),
}
"""First values of the controls on a new page, in the order of the API."""
_SAVED = "customscript/weighted_clip.py/"
"""Prefix of our entries in the host's file of defaults that its user has saved."""


def first_values() -> Mapping[str, Any]:
    """`FIRST`, with weights above 1 as ever if the host's user has saved other defaults without a word on those.

    The host itself writes down the first value of every control that it sees.
    """
    try:
        from modules.shared import cmd_opts  # pyright: ignore[reportMissingImports]

        entries: dict[str, Any] = json.loads(Path(cmd_opts.ui_config_file).read_text(encoding="utf-8"))
        values = {key.removesuffix("/value"): value for key, value in entries.items() if key.endswith("/value")}
        saved = {key.rpartition("/")[2]: value for key, value in values.items() if key.startswith(_SAVED)}
    except (ImportError, AttributeError, TypeError, OSError, ValueError):  # another host, or nothing that can be read
        return FIRST
    all_options = {**OPTIONS, **PLACE_OPTIONS}
    first = {all_options[name].label: value for name, value in FIRST.items() if name in all_options}
    is_earlier = bool(saved) and OPTIONS["above_one"].label not in saved
    if is_earlier and any(value != first.get(label, False) for label, value in saved.items()):
        return {**FIRST, "above_one": Settings.above_one}
    return FIRST


def _shown(name: str, value: Any) -> str:
    """A value in a message; nothing for lines of text."""
    return "" if OPTIONS[name].is_lines else f"{value:g}" if OPTIONS[name].kind is float else value


def take(parameters: MutableMapping[str, Any]) -> None:
    """Replace what cannot be used of an image's parameters by defaults. For the host's callback before it pastes them.

    All are text, by key. A line about each one replaced is kept for `untaken`.
    """
    if INFOTEXT not in parameters:
        return
    lines: list[str] = []
    for field in fields(Settings)[1:]:
        try:
            Settings(**{field.name: pasted(field.name, parameters)}).options()
        except WebUIError as error:
            lines.append(f"{error}. {field.default!r} is used instead.")
            parameters[infotext_key(field.name)] = field.default
    known_keys = {*map(infotext_key, NAMES), ACTED_BY}
    unknown = [key for key in parameters if key.startswith(f"{INFOTEXT} ") and key not in known_keys]
    lines += [f"“{shortened(key)}: {shortened(str(parameters[key]))}” is not a setting." for key in unknown]
    parameters[_UNTAKEN] = lines


def untaken(parameters: Mapping[str, Any]) -> list[str]:
    """Lines about what `take` did not take."""
    return parameters.get(_UNTAKEN, [])


def pasted(name: str, parameters: Mapping[str, Any]) -> Any:
    """Value of a setting's control after pasting the parameters of an image; raises `WebUIError` if a number is none.

    If the image was made without us, ``enabled`` is False and others are None, which changes nothing.
    """
    if name == "enabled":
        return INFOTEXT in parameters
    if INFOTEXT not in parameters:
        return None
    default = getattr(Settings, name)
    value = parameters.get(infotext_key(name), default)
    if isinstance(default, bool):
        return {"True": True, "False": False}.get(value, value) if isinstance(value, str) else value
    if not isinstance(default, float):
        return value
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        label = {**OPTIONS, **PLACE_OPTIONS}[name].label
        raise WebUIError(f"{label} must be a number, got {quote(value)}") from None
