"""Our pack in a reference's Python, for our way through the reference's own encoder."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

PACK = "weighted_clip"
"""Name it is loaded under."""


def load_pack(job: dict[str, Any]) -> None:
    """Load the pack by path, once."""
    if PACK in sys.modules:
        return
    root = Path(job["pack"])
    spec = importlib.util.spec_from_file_location(PACK, root / "__init__.py", submodule_search_locations=[str(root)])
    assert spec is not None
    assert spec.loader is not None
    sys.modules[PACK] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[PACK])
