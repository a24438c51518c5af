"""Training on two machines: two network namespaces of Linux, with a process each, which talk by gloo over a cable."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from weighted_clip.studio.training import checkpoint

from ..launching import launched
from ..libraries import library
from ..patience import SECONDS
from .objectives import words
from .test_processes import PROGRAM
from .test_termination import FAULTY, check_same

pytestmark = pytest.mark.long

ADDRESSES = ("10.213.77.1", "10.213.77.2")
OPTIONS = ("--save-every", "1", "--keep-checkpoints", "3")


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def machines() -> Iterator[list[str]]:
    """Names of two namespaces that are connected; their interfaces are called as they are."""
    names = [f"wc{os.getpid()}{letter}" for letter in "ab"]
    if shutil.which("ip") is None:
        pytest.skip("there is no command ip")
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", names[0], "netns", names[0], "type", "veth", "peer", "name", names[1], "netns", names[1])
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", name)
            for interface in (name, "lo"):
                ip("-n", name, "link", "set", interface, "up")
        yield names
    except subprocess.CalledProcessError as error:
        pytest.skip(f"namespaces cannot be made here: {error.stderr.strip()}")
    finally:
        for name in names:
            with suppress(subprocess.CalledProcessError, ProcessLookupError):
                for process_id in ip("netns", "pids", name).split():  # left by a test that failed
                    os.kill(int(process_id), signal.SIGKILL)
                ip("netns", "delete", name)


def together(machines: Sequence[str], program: Path, *arguments: object) -> list[tuple[int, str, str]]:
    """Run a program on both, by torchrun: status, output and errors of each."""
    library("accelerate")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    launcher += ["--master-addr", ADDRESSES[0], "--master-port", "29517", "--node-rank"]
    running = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, *launcher, str(rank), str(program), *map(str, arguments)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": name},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, name in enumerate(machines)
    ]
    try:
        told = [one.communicate(timeout=SECONDS) for one in running]
    finally:
        for one in running:
            one.kill()
    return [(one.returncode, *texts) for one, texts in zip(running, told, strict=True)]


def ended(found: Sequence[tuple[int, str, str]]) -> list[str]:
    """Lines by which our program ends."""
    return [line for _, _, errors in found for line in errors.splitlines() if line.startswith("weighted-clip: ")]


def test_two_machines_equal_two_processes_and_one_that_is_killed_costs_no_step(
    data: Path, tmp_path: Path, machines: list[str]
) -> None:
    """Before the kill as well as after it: all steps are in the log and in the weights."""
    whole = words("contrastive", data, tmp_path / "whole")
    assert launched(2, PROGRAM, *whole).returncode == 0

    killed = words("contrastive", data, tmp_path / "killed", *OPTIONS)
    found = together(machines, FAULTY, "kill", 1, 5, *killed)
    assert all(status for status, _, _ in found)
    (line,) = ended(found)
    assert "process 1 of 2 ends after step 4: " in line and "--resume goes on from the last checkpoint" in line
    assert checkpoint.load(tmp_path / "killed")["step"] == 4
    found = together(machines, PROGRAM, *killed, "--resume")
    assert [status for status, _, _ in found] == [0, 0], found
    check_same(tmp_path / "whole", tmp_path / "killed", "contrastive")


def test_machines_whose_cable_is_pulled_end_with_a_line_each(data: Path, tmp_path: Path, machines: list[str]) -> None:
    out = tmp_path / "out"
    began = time.monotonic()

    def pull(name: str, folder: Path) -> None:
        while not (folder / checkpoint.NAME).is_file() and time.monotonic() - began < SECONDS:
            time.sleep(0.1)
        ip("-n", name, "link", "set", name, "down")

    thread = threading.Thread(target=pull, args=(machines[1], out))
    thread.start()
    found = together(machines, PROGRAM, *words("contrastive", data, out, "--steps", "100000", *OPTIONS))
    thread.join()
    assert all(status for status, _, _ in found)
    assert any("nothing was heard of process" in line or "has ended" in line for line in ended(found))
    assert checkpoint.load(out)["step"] > 0
