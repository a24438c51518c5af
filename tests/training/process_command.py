"""One of several processes that give commands one after the other: python process_command.py COMMANDS, under torchrun.

COMMANDS is a JSON list of lists: the status that is expected, the step after which the run is stopped or null, and the
command's words.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    runpy.run_path(str(Path(__file__).resolve().parents[2] / "__main__.py"))["load_package"]()

    from accelerate.state import AcceleratorState
    from weighted_clip.studio.commands import program
    from weighted_clip.studio.training.loop import Loop

    given: dict[str, int | None] = {}
    real = Loop._train_on

    def train_on(self: Any, loaded: Any) -> Any:
        self.is_stopped = self.step + 1 == given["stop at"]
        return real(self, loaded)

    Loop._train_on = train_on
    for status, given["stop at"], words in json.loads(sys.argv[1]):
        AcceleratorState._reset_state(reset_partial_state=True)
        assert program.main(words) == status, words


if __name__ == "__main__":
    main()
