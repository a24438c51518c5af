"""Choices on their way between the script in txt2img and img2img and the tab, as what stands in fields of the page.

A request is a JSON object of texts by the name of their field. A menu's text is a choice as it is shown; fields that
are no setting are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ....encoder.option import Option
from ....encoder.quoting import quote
from ....weighting.options import OPTIONS, PLACE_OPTIONS, EncodeOptions
from ....weighting.script_settings import OWN
from ..engines import WebUIError, as_emphasized
from ..settings import NAMES, Settings
from .lab import base_options

SHARED = tuple(name for name in NAMES if name in OPTIONS)
"""Settings of the script that are options of the tab as well."""
ALONE = ("chunking", "hide", "hidden_from", "from_phrases")
"""Options of the tab that the script does not have."""
MAX_CHARACTERS = 256 * 1024
"""Maximum length of a request."""


def options_for_tab(request: str) -> EncodeOptions:
    """Options by which the next picture's prompt will be encoded, for the tab; ``request`` has the script's fields.

    Raises `WebUIError` if a field holds what is not allowed, or nothing can be read.
    """
    fields = _read(request)
    if not fields.get("enabled"):
        return _host_options()
    options = settings_of(fields, SHARED).options()
    return as_emphasized(replace(base_options(), **{name: getattr(options, name) for name in SHARED}))


def values_for_script(request: str) -> tuple[dict[str, Any], list[str]]:
    """Values for the script, and lines about what it does not have; ``request`` has the tab's fields.

    The script is switched off if the WebUI does by itself what the tab shows. Raises as `options_for_tab` does.
    """
    fields = _read(request)
    host_options = _host_options()
    named = {name: _value(name, fields[name]) for name in (*SHARED, *ALONE) if name in fields}
    settings = Settings(True, **{name: value for name, value in named.items() if name in SHARED})
    settings.options()
    lines = [
        f"{OPTIONS[name].label} is only in the tab; the script does not have it."
        for name in ALONE
        if named.get(name, getattr(host_options, name)) != getattr(host_options, name)
    ]
    if all(getattr(settings, name) == getattr(host_options, name) for name in SHARED):
        return {"enabled": False}, lines
    return {name: getattr(settings, name) for name in ("enabled", *SHARED)}, lines


def _host_options() -> EncodeOptions:
    """Options that do what the WebUI does by itself."""
    options = as_emphasized(base_options())
    return replace(options, scheme=OWN[options.emphasis])


def _read(request: object) -> dict[str, Any]:
    try:
        if not isinstance(request, str) or len(request) > MAX_CHARACTERS:
            raise ValueError
        fields = json.loads(request)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise WebUIError(f"These are not fields of the page: {quote(request)}")
    return fields


def settings_of(fields: Mapping[str, Any], names: Iterable[str] = NAMES) -> Settings:
    """Settings that the script's fields show; the defaults if the script is switched off."""
    if not fields.get("enabled"):
        return Settings()
    chosen = {name: _value(name, fields[name]) for name in names if name in fields and name != "enabled"}
    return Settings(True, **chosen)


def _value(name: str, content: object) -> Any:
    """Value of a field, as far as it can be read; `Settings` refuses what is not allowed."""
    option: Option = {**OPTIONS, **PLACE_OPTIONS}[name]
    if not isinstance(content, str):
        return content
    if option.kind is float:
        try:
            return float(content)
        except ValueError:
            return content
    return option.chosen(content) if option.choices else content
