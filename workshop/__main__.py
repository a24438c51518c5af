"""Run a tool of the workshop that needs the pack: ``python workshop generate`` or ``python workshop xyz_grid``."""

import importlib
import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    if sys.argv[1:2] not in (["generate"], ["xyz_grid"]):
        sys.exit(__doc__)
    sys.path[0] = ""  # this folder has names of others' packages
    runpy.run_path(str(Path(__file__).resolve().parents[1] / "__main__.py"))["load_package"]()
    importlib.import_module(f"weighted_clip.workshop.{sys.argv[1]}").main(sys.argv[2:])
