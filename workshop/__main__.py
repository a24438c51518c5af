"""Run a maintainer's command with the pack: ``python workshop generate``, ``python workshop coverage``."""

import importlib
import runpy
import sys
from pathlib import Path

COMMANDS = {"generate": "generate", "coverage": "coverage", "glides": "pictures.glides"}
"""Module of each command."""

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        sys.exit(__doc__)
    sys.path[0] = ""  # this folder has names of others' packages
    runpy.run_path(str(Path(__file__).resolve().parents[1] / "__main__.py"))["load_package"]()
    importlib.import_module(f"weighted_clip.workshop.{COMMANDS[sys.argv[1]]}").main(sys.argv[2:])
