"""The command, with a fault in one of several processes: python faulty.py FAULT RANK STEP ARGUMENTS, under a launcher.

There is a checkpoint after each step. Faults: ``kill`` and ``freeze`` (signals that no program handles), ``interrupt``
(Ctrl-C), ``terminate`` and ``terminate all`` (SIGTERM for the process, and for the launcher), ``full`` (the disk),
``nan`` (in a gradient of this process), ``clock`` (a checkpoint is due after this step alone, by this process's clock).
"""

from __future__ import annotations

import errno
import os
import runpy
import signal
import sys
import time
from pathlib import Path

SIGNALS = {"kill": "SIGKILL", "freeze": "SIGSTOP", "interrupt": "SIGINT", "terminate": "SIGTERM"}


def spoil_gradients(run) -> None:
    """Make a gradient NaN after the next backward pass, by which processes have exchanged their gradients."""
    backward = run.accelerator.backward

    def spoiled(loss) -> None:
        backward(loss)
        run.accelerator.backward = backward
        gradient = next(one.grad for one in run.model.parameters() if one.grad is not None and one.ndim == 2)
        getattr(gradient, "to_local", lambda: gradient)()[0, 0] = float("nan")

    run.accelerator.backward = spoiled


def main() -> int:
    root = Path(__file__).resolve().parents[2]
    runpy.run_path(str(root / "__main__.py"))["load_package"]()
    from weighted_clip.studio.commands import processes, program
    from weighted_clip.studio.training import loop, options

    fault, rank, step, arguments = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), [*sys.argv[4:], "--save-every", "1"]
    if fault == "freeze":
        processes.SECONDS_BETWEEN_BEATS = 0.25
    if fault == "clock":
        options.Saving.is_due = lambda self, now, _: now == step and int(os.environ["RANK"]) == rank
        return program.main(sys.argv[4:])
    if int(os.environ["RANK"]) != rank:
        return program.main(arguments)
    real = loop.Loop._train_on

    def train_on(self, loaded):
        if self.step + 1 == step:
            if fault == "full":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))
            if fault == "nan":
                spoil_gradients(self)
            elif fault == "terminate all":
                os.kill(os.getppid(), signal.SIGTERM)
                while not self.is_stopped:  # until the launcher has passed it on
                    time.sleep(0.01)
            else:
                os.kill(os.getpid(), getattr(signal, SIGNALS[fault]))
        return real(self, loaded)

    loop.Loop._train_on = train_on
    return program.main(arguments)


if __name__ == "__main__":
    status = main()
    from weighted_clip.studio.commands.processes import end

    end(status)
