"""The lab's page and handlers in this process: a small model, values of the components, and what is in their markup."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable
from functools import cache
from html import unescape
from typing import Any

import numpy as np
import pytest
from PIL import Image
from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.web.lab.model import LabError
from weighted_clip.web.lab.native import NativeLabModel, Settings, random_model
from weighted_clip.weighting.options import EncodeOptions

pytest.importorskip("gradio", reason="gradio is not installed: python run.py test installs it")

from weighted_clip.web.lab.handlers import OPTIONS

CONFIG = TextConfig(hidden_dim=64, num_heads=4, num_layers=3, mlp_dim=128)
BASE = EncodeOptions(syntax="a1111", scheme="a1111")


@cache
def small_model() -> NativeLabModel:
    """A small model of random weights."""
    return random_model(Settings(), config=CONFIG)


def no_model() -> Any:
    """Source of a lab without a model."""
    raise LabError("No model is loaded yet.")


def values_of(base: EncodeOptions, **changes: Any) -> list[Any]:
    """Values of the page's components."""
    return [changes.get(name, getattr(base, name)) for name in OPTIONS]


def noting(calls: list[str]) -> Callable[..., Any]:
    """A `Run` that notes the names of what it calls."""

    def run(function: Any, *arguments: Any) -> Any:
        calls.append(function.__name__)
        return function(*arguments)

    return run


def strip_of(markup: str) -> dict[str, Any]:
    """Drawing instructions for the page's script."""
    found = re.search("data-strip='(.*?)'", markup)
    assert found
    return json.loads(unescape(found[1]))


def pictures_in(markup: str) -> list[tuple[str, np.ndarray]]:
    """Title and content, RGB from 0 to 1, of each picture."""
    found = re.findall(r"<img src='data:image/png;base64,([^']+)'[^>]*alt='([^.]+)\.", markup)
    opened = [(title, Image.open(io.BytesIO(base64.b64decode(data)))) for data, title in found]
    return [(title, np.asarray(picture.convert("RGB")) / 255) for title, picture in opened]
