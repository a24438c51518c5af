"""Running a script in the Python of a host, with the host's checkout as working directory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_in_host(
    python: Path, arguments: Sequence[str | Path], *, folder: Path, environment: Mapping[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run a host's Python and wait for its end.

    Args:
        python: The interpreter of the host's virtual environment.
        arguments: What follows it.
        folder: The working directory.
        environment: All of the process's variables; `own_environment` is where to start from.
        seconds: How long it may take.

    Returns:
        The ended process; its ``stdout`` is all that it wrote.

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
    """This process's variables without what would lead another Python to our packages; in UTF-8, and offline."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return {**kept, "PYTHONIOENCODING": "utf-8", "HF_HUB_OFFLINE": "1"}
