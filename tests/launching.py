"""Programs as several processes, which talk by gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import cache
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
    ranks: int, program: Path, *arguments: object, launcher: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program as so many processes. The test is skipped where that cannot be done.

    Without a launcher they are forked, as each new Python takes two seconds to import torch and accelerate.
    """
    library("accelerate")
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    if launcher is None and hasattr(os, "fork"):
        return _forked(ranks, environment, [str(program), *map(str, arguments)])
    return subprocess.run(
        [sys.executable, *LAUNCHERS[launcher or "torchrun"], str(ranks), str(program), *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def _forked(ranks: int, environment: dict[str, str], command: list[str]) -> subprocess.CompletedProcess[str]:
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    # what torchrun sets
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(ranks)}
    place |= {"LOCAL_WORLD_SIZE": str(ranks), "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    server = _server()
    assert server.stdin and server.stdout
    with tempfile.TemporaryDirectory() as folder:
        out, errors = Path(folder, "out"), Path(folder, "errors")
        given = {
            "program": command[0],
            "arguments": command[1:],
            "environments": [
                {**environment, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)
            ],
            "out": str(out),
            "errors": str(errors),
        }
        print(json.dumps(given), file=server.stdin, flush=True)
        status = int(server.stdout.readline())  # pytest.ini says when it hangs
        told = (path.read_text(encoding="utf-8") for path in (out, errors))
        return subprocess.CompletedProcess(command, status, *told)


@cache
def _server() -> subprocess.Popen[str]:
    """One that ends with this process, whose end of the pipe closes then."""
    program = Path(__file__).with_name("forking.py")
    return subprocess.Popen(
        [sys.executable, str(program)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
