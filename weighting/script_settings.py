"""Settings of our WebUI script as an image's parameters hold them, and what the WebUI's own settings are among ours.

Source: docs/reference/hosts.md, "In the WebUI"; behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .options import EncodeOptions
from .schemes.blend import EMPHASES
from .syntax import syntax_of

INFOTEXT = "Weighted CLIP"
"""Prefix of our entries in an image's parameters. The entry of exactly this name is the scheme."""
OWN = {"Original": "a1111", "No norm": "a1111_no_norm", "Ignore": "unweighted"}
"""Scheme that does the same as the WebUI by each of its emphasis modes."""
FIXED: Mapping[str, Any] = {"quirks": True, "binds_some": True}
"""Options that the script has no control for, and sets."""


def infotext_key(name: str) -> str:
    """Key of a setting in an image's parameters.

    >>> infotext_key("mask_method"), infotext_key("scheme")
    ('Weighted CLIP mask method', 'Weighted CLIP')
    """
    return INFOTEXT if name == "scheme" else f"{INFOTEXT} {name.replace('_', ' ')}"


def as_emphasized(options: EncodeOptions, mode: str) -> EncodeOptions:
    """Apply the WebUI's setting *Emphasis mode* to options: under ``None`` A1111's brackets are text."""
    if mode == "None":
        options = replace(options, emphasis="Ignore")
        return replace(options, syntax="none", chunking="a1111") if syntax_of(options.syntax).by_webui else options
    return replace(options, emphasis=mode if mode in EMPHASES else "Original")  # a host takes others as that, too
