"""Our pack in a reference's Python, for our path through the reference's own encoder."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def load_pack() -> None:
    """Load the pack by path as ``weighted_clip``, once."""
    if "weighted_clip" not in sys.modules:
        runpy.run_path(str(Path(__file__).resolve().parents[2] / "__main__.py"))["load_package"]()
