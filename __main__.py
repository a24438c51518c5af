"""The program: ``weighted-clip COMMAND``.

Run it through ``run.py``, as ``python -m weighted_clip``, or as the installed ``weighted-clip``. The commands are in
``studio/commands/``.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

NEEDED = ("torch", "numpy", "safetensors", "tokenizers", "PIL")
"""Imports of the packages in requirements.txt. A missing other module is our own error."""


ROOT = Path(__file__).resolve().parent
NAME = "weighted_clip"


def load_package() -> None:
    """Load the package by path, whatever its folder is called; for other programs too, by ``runpy.run_path``."""
    spec = importlib.util.spec_from_file_location(NAME, ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
    assert spec is not None
    assert spec.loader is not None
    package = sys.modules[NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)


def run() -> None:
    """Load the package, run a command, and end with its exit status."""
    global __package__
    is_file = __package__ in (None, "")  # or a folder: started by run.py, or as it would
    if is_file:
        sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]
        load_package()
        __package__ = NAME
    from .studio.commands.processes import end
    from .studio.commands.program import PROGRAM, main

    end(main(program="python run.py" if is_file else PROGRAM))


if __name__ == "__main__":
    try:
        run()
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        advice = "python run.py installs what is needed; --torch auto, cpu or cuda says which torch"
        sys.exit(f"weighted-clip: {sys.executable} has no {error.name}. {advice}")
