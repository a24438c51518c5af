"""Runs of the command, divided and not, stopped and resumed: python sharded.py FOLDER ARGUMENTS, under torchrun."""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import sys
from pathlib import Path

STOPPED = 3
"""Step in which Ctrl-C is pressed."""


def main() -> None:
    runpy.run_path(str(Path(__file__).resolve().parents[2] / "__main__.py"))["load_package"]()
    from torch import distributed
    from weighted_clip.studio.commands import program
    from weighted_clip.studio.training.objectives.contrastive import Run

    folder, arguments = Path(sys.argv[1]), sys.argv[2:]

    def done(name: str, *more: str) -> int:
        status = program.main([*arguments, "--out", str(folder / name), *more])
        distributed.barrier()
        return status

    assert done("plain") == done("divided", "--shard") == 0
    real = Run._train_on

    def train_on(self, *given):
        if self.step + 1 == STOPPED:
            os.kill(os.getpid(), signal.SIGINT)
        return real(self, *given)

    Run._train_on = train_on
    assert done("stopped", "--shard") == 130
    Run._train_on = real
    if os.environ["RANK"] == "0":
        shutil.copytree(folder / "stopped", folder / "on plain")
        shutil.copy(folder / "stopped" / "checkpoint.pt", folder)
    distributed.barrier()
    assert done("stopped", "--shard", "--resume") == done("on plain", "--resume") == 0


if __name__ == "__main__":
    main()
