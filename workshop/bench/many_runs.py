"""Contestants of the section on many prompts, each in a process of its own, on files with a prompt in each line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .reranking import MAIN

OUR_PROGRAM = """
import runpy, sys
runpy.run_path(sys.argv[1])["load_package"]()
from weighted_clip.workshop.bench.many_process import watched
from weighted_clip.commands import bulk
from weighted_clip.commands.program import main
bulk.Report = watched(bulk.Report, sys.argv[2])
sys.exit(main(sys.argv[3:]))
"""
PEER_PROGRAM = """
import runpy, sys
runpy.run_path(sys.argv[1])["load_package"]()
from weighted_clip.workshop.bench.many_process import serve
serve(sys.argv[2])
"""
Job = Callable[[dict[str, Any]], dict[str, Any]]


def write_prompts(texts: Sequence[str], path: Path) -> Path:
    """Write a file with a prompt in each line; return its path."""
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8", newline="\n")
    return path


def ours(prompts: Path, weights: Path, folder: Path, shard_size: int) -> dict[str, Any]:
    """Run ``encode --batch`` in a new process, and remove what it wrote.

    Args:
        prompts: File of prompts.
        weights: File with the text encoder.
        folder: Folder for temporary files.
        shard_size: Prompts in each file it writes.

    Returns:
        ``seconds`` and ``peak`` as in `many_process.Watch`; ``disk``, bytes of the files written; and ``prompts``, the
        number of prompts in them.

    Raises:
        ValueError: If the command fails.
    """
    from ...output.shards import read_head, shard_files

    out, result = folder / "ours", folder / "ours.json"
    arguments = ["encode", "--batch", prompts, "--weights", weights, "--out", out, "--shard-size", shard_size]
    command = [sys.executable, "-c", OUR_PROGRAM, MAIN, result, *arguments]
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=_environment(),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise ValueError(f"{prompts.name} could not be encoded:\n{done.stderr[-3000:]}")
    num_prompts = sum(len(read_head(path).texts) for _, path in shard_files(out))
    found = {**json.loads(result.read_text(encoding="utf-8")), "disk": _size(out), "prompts": num_prompts}
    shutil.rmtree(out)
    return found


@contextmanager
def transformers_process(weights: Path, folder: Path) -> Iterator[Job | None]:
    """Start a process with transformers' text model, and end it afterwards.

    Args:
        weights: File with the text encoder.
        folder: Folder for temporary files.

    Yields:
        A function that has a job done, see `many_process.serve`, and removes what was written; it adds ``disk``, the
        bytes of that. None if transformers is not installed.
    """
    if find_spec("transformers") is None:
        yield None
        return
    errors, out = folder / "errors.txt", folder / "theirs"
    command = [sys.executable, "-c", PEER_PROGRAM, str(MAIN), str(weights)]
    with (
        errors.open("w", encoding="utf-8") as stream,
        subprocess.Popen(
            command,
            cwd=folder,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stream,
            encoding="utf-8",
        ) as process,
    ):
        to_process, from_process = process.stdin, process.stdout
        assert to_process is not None
        assert from_process is not None

        def run(job: dict[str, Any]) -> dict[str, Any]:
            out.mkdir()
            try:
                to_process.write(json.dumps({**job, "out": str(out)}) + "\n")
                to_process.flush()
                answer = from_process.readline()
            except BrokenPipeError:
                answer = ""
            if not answer:
                process.wait()
                said = errors.read_text(encoding="utf-8", errors="replace")
                raise ValueError(f"transformers did not run:\n{said[-3000:]}")
            found = {**json.loads(answer), "disk": _size(out)}
            shutil.rmtree(out)
            return found

        try:
            yield run
        except BaseException:
            process.kill()
            raise


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONIOENCODING": "utf-8", "HF_HUB_OFFLINE": "1"}


def _size(folder: Path) -> int:
    """Bytes of the files of a folder."""
    return sum(path.stat().st_size for path in folder.iterdir())
