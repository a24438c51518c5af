"""Time two states of the code in turn: another commit and the working tree, row by row of the benchmarks.

    python workshop/pace.py COMMIT [--pairs 9] [--threads 2] [--only WORDS]

Each state runs in a separate process that waits for its turn, so that a slow moment of the machine affects both. A
ratio above 1 means that the working tree is slower. The interval is the 95 % interval of the mean of the ratios'
logarithms.
"""

from __future__ import annotations

import argparse
import math
import os
import runpy
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

_ORACLE = runpy.run_path(str(Path(__file__).with_name("oracle.py")))  # this file is run as a program
ROOT, checked_out, load_package, part = (_ORACLE[name] for name in ("ROOT", "checked_out", "load_package", "part"))

STUDENT = {8: 2.306, 9: 2.262, 10: 2.228, 14: 2.145, 20: 2.086, 30: 2.042}
"""97.5 % quantiles of Student's distribution, by degrees of freedom."""
TEXTS_READ = 200


def rows() -> dict[str, Callable[[], Any]]:
    """Timed functions by name; each call does the next prompt of a sequence that is in no cache."""
    runs = part("workshop.bench.timing")
    texts = part("workshop.bench.texts")
    model = part("encoder.files.checkpoint").seeded_text_model()
    new_options = part("weighting.options").EncodeOptions
    read_prompt = part("weighting.reading.prompt_reader").read_prompt
    view, strip_items = part("weighting.reading.view").view, part("web.pictures.tokens").strip_items
    tokenize = part("encoder.tokenizer").default_tokenizer()

    def ours(prompt: str, memory: int | None = None, **choices: str) -> Callable[[], Any]:
        encoder = runs.native(model) if memory is None else runs.native(model, memory)
        return runs.ours(encoder, texts.fresh(prompt, choices["syntax"]), **choices)

    def read(syntax: str) -> Callable[[], Any]:
        options, sequence = new_options(syntax=syntax), cycle(islice(texts.fresh(texts.FOUR_DOWN, syntax), 1000))
        return lambda: [strip_items(view(read_prompt(next(sequence), options, tokenize))) for _ in range(TEXTS_READ)]

    first, second = texts.fresh(texts.ONE_UP, "a1111"), texts.fresh(texts.NEGATIVE, "a1111")
    pairs = zip(first, second, strict=True)
    return {
        "plain": ours(texts.PLAIN, syntax="comfy", scheme="comfy"),
        "one word up": ours(texts.ONE_UP, syntax="comfy", scheme="comfy"),
        "one word up, a1111": ours(texts.ONE_UP, syntax="a1111", scheme="a1111"),
        "four words down, compel": ours(texts.FOUR_DOWN, syntax="compel", scheme="compel"),
        "four words down, masked_blend": ours(texts.FOUR_DOWN, syntax="comfy", scheme="masked_blend"),
        "four words down, comfy++": ours(texts.FOUR_DOWN, syntax="comfy", scheme="comfy++"),
        "last word of 3 chunks, remembering": runs.ours(runs.native(model), texts.typed()),
        "last word of 3 chunks, nothing remembered": runs.ours(runs.native(model, 0), texts.typed()),
        "16 prompts with 40 tokens alike": runs.ours_together(runs.native(model), texts.grids(16)),
        "64 prompts with 40 tokens alike": runs.ours_together(runs.native(model, 0), texts.grids(64)),
        "two prompts together": runs.ours_together(runs.native(model), pairs, syntax="a1111", scheme="a1111"),
        **{f"read and cut into chips, {TEXTS_READ} times, {name}": read(name) for name in ("comfy", "a1111", "compel")},
    }


def work(root: Path, threads: int) -> None:
    """Answer each name with the seconds of one call, until an empty line."""
    import torch

    torch.set_num_threads(threads)
    load_package(root)
    with torch.no_grad():
        cases = rows()
        print("\t".join(cases), flush=True)
        for line in sys.stdin:
            if not line.strip():
                break
            start = time.perf_counter()
            cases[line.strip()]()
            print(time.perf_counter() - start, flush=True)


class Worker:
    """One state of the code, in a separate process."""

    def __init__(self, root: Path, threads: int) -> None:
        command = [sys.executable, "-B", __file__, "", "--work", str(root), "--threads", str(threads)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", env=environment, cwd=root
        )
        self.names = self._line().split("\t")

    def seconds(self, name: str) -> float:
        """Run a row once."""
        self._write(name)
        return float(self._line())

    def close(self) -> None:
        """End the process."""
        self._write("")
        self.process.wait(60)

    def _write(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("a worker ended; see above")
        return line.rstrip("\n")


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Geometric mean of ratios, and its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.fmean(logs)
    quantile = STUDENT[max(degrees for degrees in STUDENT if degrees <= len(logs) - 1)]
    half = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def main() -> int:
    """Run the tool."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="what to compare with")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work, arguments.threads)
        return 0
    if arguments.pairs < 9:
        parser.error(f"--pairs {arguments.pairs}: at least 9, or the interval says little")
    with checked_out(arguments.commit) as checkout:
        workers = [Worker(checkout, arguments.threads), Worker(ROOT, arguments.threads)]
        for name in [name for name in workers[1].names if arguments.only in name]:
            for worker in workers:
                worker.seconds(name)
            ratios: list[float] = []
            for number in range(arguments.pairs):
                seconds = {worker: worker.seconds(name) for worker in workers[:: 1 - 2 * (number % 2)]}
                ratios.append(seconds[workers[1]] / seconds[workers[0]])
            middle, low, high = interval(ratios)
            print(f"{name:<45} {middle:.3f}   95 %: {low:.3f} to {high:.3f}", flush=True)
        for worker in workers:
            worker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
