"""Programs as several processes, which a launcher starts and which talk by gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import distributed

from .libraries import library
from .patience import SECONDS

LAUNCHERS = {
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"],
    "accelerate": ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "1", "--num_processes"],
}


def launched(
    ranks: int, program: Path, *arguments: object, launcher: str = "torchrun"
) -> subprocess.CompletedProcess[str]:
    """Run a program as so many processes. The test is skipped where that cannot be done."""
    library("accelerate")
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    return subprocess.run(
        [sys.executable, *LAUNCHERS[launcher], str(ranks), str(program), *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
