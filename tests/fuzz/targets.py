"""Every target by name: a function of any bytes that raises nothing unless something is wrong."""

from __future__ import annotations

from collections.abc import Callable

from .file_targets import FILE_TARGETS
from .front_targets import FRONT_TARGETS
from .text_targets import TEXT_TARGETS

TARGETS: dict[str, Callable[[bytes], None]] = {**TEXT_TARGETS, **FILE_TARGETS, **FRONT_TARGETS}
