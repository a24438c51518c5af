"""The program: ``weighted-clip COMMAND``.

Run it through ``run.py``, as ``python -m weighted_clip``, or as the installed ``weighted-clip``. The commands are in
``commands/``.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

if __package__ in (None, ""):  # started as a file or a folder: load the package by path, whatever the folder is called
    root = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != root]
    spec = importlib.util.spec_from_file_location(
        "weighted_clip", root / "__init__.py", submodule_search_locations=[str(root)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = sys.modules["weighted_clip"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    __package__ = "weighted_clip"

from .commands import main

if __name__ == "__main__":
    sys.exit(main())
