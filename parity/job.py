"""Running a script in the Python of a host, with the host's checkout as working directory."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def run_in_host(
    python: Path, arguments: Sequence[str | Path], *, folder: Path, environment: Mapping[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run a host's Python and wait for it to end.

    Args:
        python: The interpreter of the host's virtual environment.
        arguments: Its arguments.
        folder: The working directory.
        environment: All variables of the process; see `own_environment`.
        seconds: Timeout.

    Returns:
        The finished process; its ``stdout`` holds all output.

    Raises:
        subprocess.TimeoutExpired: If it takes longer.
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
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return {**kept, "PYTHONIOENCODING": "utf-8", "HF_HUB_OFFLINE": "1"}


class HostFailed(RuntimeError):
    """Raised if a program in a host's Python failed or took too long; the message is its output."""


def run_job(
    job: Mapping[str, Any],
    result: Path,
    python: Path,
    script: Path,
    *,
    folder: Path,
    seconds: float,
    launcher: Sequence[str] = (),
    **variables: str,
) -> None:
    """Run one of our programs in a host's Python, with a job file and the path of its result.

    Args:
        job: The job, written as JSON.
        result: Output file.
        python: The interpreter of the host's virtual environment.
        script: The program.
        folder: The working directory.
        seconds: Timeout.
        launcher: Arguments before the script, which launch it.
        variables: Environment variables added to this process's own.

    Raises:
        HostFailed: If there is no result.
    """
    job_file = result.with_name("job.json")
    job_file.write_text(json.dumps(job), encoding="utf-8")
    result.unlink(missing_ok=True)
    environment = {**own_environment(), **variables}
    arguments = ["-B", *launcher, script, job_file, result]
    try:
        done = run_in_host(python, arguments, folder=folder, environment=environment, seconds=seconds)
    except subprocess.TimeoutExpired as error:
        raise HostFailed(f"stopped after {seconds:g} seconds") from error
    if done.returncode or not result.is_file():
        raise HostFailed(done.stdout)
