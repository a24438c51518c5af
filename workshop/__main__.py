"""Run ``generate`` with the pack: ``python workshop generate``."""

import importlib
import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    if sys.argv[1:2] != ["generate"]:
        sys.exit(__doc__)
    sys.path[0] = ""  # this folder has names of others' packages
    runpy.run_path(str(Path(__file__).resolve().parents[1] / "__main__.py"))["load_package"]()
    importlib.import_module("weighted_clip.workshop.generate").main(sys.argv[2:])
