"""Functions of ours run in another Python, such as a host's: a job as JSON in, what the function returns as JSON out.

Tensors travel in files that the job names. This file is also the program that the other Python runs; it needs nothing
but the standard library, and loads the pack by path as ``weighted_clip``:

    python job.py MODULE FUNCTION JOB.json RESULT.json
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


class HostFailed(RuntimeError):
    """Raised if a program in a host's Python failed or took too long; the message is its output."""


def run_job(
    function: Callable[[dict[str, Any]], Any],
    job: Mapping[str, Any],
    python: Path,
    *,
    seconds: float,
    folder: Path | None = None,
    **variables: str,
) -> Any:
    """Call one of our functions in another Python.

    Args:
        function: A function of a module of the pack that can be imported in both.
        job: Its argument, as JSON.
        python: The interpreter, such as that of a host's virtual environment.
        seconds: Time after which it is stopped.
        folder: The working directory, from which modules are imported first; None for an empty one.
        variables: Environment variables added to this process's own.

    Returns:
        The value that the function returned, from JSON.

    Raises:
        HostFailed: If it fails or takes too long.
    """
    with tempfile.TemporaryDirectory() as temporary:
        job_file, result = Path(temporary, "job.json"), Path(temporary, "result.json")
        job_file.write_text(json.dumps(job), encoding="utf-8")
        environment = {**own_environment(), **variables}
        arguments = ["-B", __file__, function.__module__, function.__name__, job_file, result]
        try:
            place = folder or Path(temporary)
            process = run_in_host(python, arguments, folder=place, environment=environment, seconds=seconds)
        except subprocess.TimeoutExpired as error:
            raise HostFailed(f"stopped after {seconds:g} seconds") from error
        if process.returncode or not result.is_file():
            raise HostFailed(process.stdout)
        return json.loads(result.read_text(encoding="utf-8"))


def run_in_host(
    python: Path, arguments: Sequence[str | Path], *, folder: Path, environment: Mapping[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run a host's Python with all of its variables and wait for it to end; ``stdout`` holds all output.

    It raises `subprocess.TimeoutExpired`.
    """
    return subprocess.run(
        [str(python), *map(str, arguments)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        timeout=seconds,
        check=False,
    )


def own_environment() -> dict[str, str]:
    """This process's variables without those that would lead another Python to our packages; in UTF-8, and offline."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return {**environment, "PYTHONIOENCODING": "utf-8", "HF_HUB_OFFLINE": "1"}


def main(module: str, name: str, job_file: str, result_file: str) -> None:
    """Call a function with a job and write what it returns."""
    sys.argv = sys.argv[:1]  # hosts read the command line when imported
    sys.path[0] = str(Path.cwd())  # the host's checkout instead of this folder
    runpy.run_path(str(Path(__file__).resolve().parents[1] / "__main__.py"))["load_package"]()
    result = getattr(importlib.import_module(module), name)(json.loads(Path(job_file).read_text(encoding="utf-8")))
    Path(result_file).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
