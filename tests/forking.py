"""Processes of a program that divide its work, forked by one that has imported what they need: python forking.py.

A line of its input is a JSON object: the program, its arguments, the environment of each process, and the file that
each of these writes its output to, and its errors. It answers with a line, the exit status of the first that failed
or 0. After a failure the others are killed.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

IMPORTED = (
    "accelerate",
    "torch._dynamo",
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
    "torch.distributed.fsdp",
    "torch.onnx",
    "weighted_clip.studio.commands.program",
    *(
        f"weighted_clip.studio.training.objectives.{name}"
        for name in ("classifier", "contrastive", "dvae", "mlm", "prior")
    ),
)
"""Modules that each process would import."""


def main() -> None:
    del sys.path[0]  # this folder
    runpy.run_path(str(Path(__file__).resolve().parents[1] / "__main__.py"))["load_package"]()
    for name in IMPORTED:
        import_module(name)
    for line in sys.stdin:
        given = json.loads(line)
        processes: set[int] = set()
        for environment in given["environments"]:
            if not (process := os.fork()):
                return become(environment, **given)
            processes.add(process)
        status = 0
        while processes:
            process, ended = os.wait()
            processes.remove(process)
            if ended and not status:
                status = os.waitstatus_to_exitcode(ended)
                for other in processes:
                    os.kill(other, signal.SIGKILL)
        sys.stdout.write(f"{status}\n")
        sys.stdout.flush()


def become(environment: dict[str, str], program: str, arguments: list[str], out: str, errors: str, **_: Any) -> None:
    """Run the program in this process, and end."""
    from weighted_clip.studio.commands.processes import end

    for number, path, how in ((0, os.devnull, os.O_RDONLY), (1, out, os.O_WRONLY), (2, errors, os.O_WRONLY)):
        os.dup2(os.open(path, how | os.O_APPEND | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")
    end(0)


if __name__ == "__main__":
    main()
