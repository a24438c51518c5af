"""Fuzzes the targets with coverage guidance, for minutes or hours; the tests do so for seconds without.

    pip install atheris
    python -m tests.fuzz.campaign syntax reading --seconds 600 --corpus FOLDER --output FILE.json

Run it in the repository's root, on Linux. atheris is not in requirements/dev.txt: it is needed for nothing else, and
there are no files of it for some systems. It ends the process that it runs in, so each target has one of its own, and a
new one after each input that breaks it. Those inputs are kept in the corpus folder as ``TARGET.crash-...``.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .drawing import WORDS, seeds

ROOT = Path(__file__).resolve().parents[2]
MAX_LENGTH = 4096
"""Bytes of an input."""
MAX_CRASHES = 20
"""After which a target is given up."""
COLUMNS = (
    "target",
    "executions",
    "seconds",
    "per second",
    "edges",
    "features",
    "slowest input",
    "peak memory",
    "found",
)
_STATUS = re.compile(r"cov: (\d+) ft: (\d+)")
_STATS = re.compile(r"stat::(\w+):\s+(\d+)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="which (all of them)")
    parser.add_argument("--seconds", type=int, default=180, help="for each target (180)")
    parser.add_argument("--corpus", type=Path, default=Path("out/fuzz"), help="folder of inputs, kept (out/fuzz)")
    parser.add_argument("--output", type=Path, help="a JSON file for the figures")
    parser.add_argument("--timeout", type=int, default=10, help="seconds for one input (10)")
    parser.add_argument("--memory", type=int, default=2048, help="MiB for the process (2048)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _fuzz(options)
    targets = options.targets or _names()
    results = [_campaign(name, options) for name in targets]
    if options.output:
        options.output.write_text(json.dumps(results, indent=2), encoding="utf-8")
    sys.stdout.write(table(results))
    return 1 if any(result["crashes"] for result in results) else 0


def _names() -> list[str]:
    """The targets, asked in a process of its own: this one loads neither the pack nor PyTorch."""
    code = "from tests.fuzz.campaign import load; load(); from tests.fuzz.targets import TARGETS; print(*TARGETS)"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()


def load(root: Path = ROOT) -> None:
    """Load a repository as the package ``weighted_clip``, whatever its folder is called."""
    place = root / "__init__.py"
    spec = importlib.util.spec_from_file_location("weighted_clip", place, submodule_search_locations=[str(root)])
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["weighted_clip"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _fuzz(options: argparse.Namespace) -> None:
    """Fuzz one target in this process, which atheris ends."""
    import atheris

    # by the name of the package: the import hook sees every module that is found below it, also one loaded by its path
    with atheris.instrument_imports(include=["weighted_clip"], enable_loader_override=False):
        load()
        target = importlib.import_module("tests.fuzz.targets").TARGETS[options.child]
        if options.child == "lab":
            importlib.import_module("weighted_clip.web.lab.handlers")
    corpus = options.corpus / options.child
    slowest = options.corpus / f"{options.child}.slowest"
    worst = 0.0

    def timed(data: bytes) -> None:
        nonlocal worst
        start = time.perf_counter()
        target(data)
        seconds = time.perf_counter() - start
        if seconds > worst:
            worst = seconds
            slowest.with_suffix(".seconds").write_text(f"{seconds:.3f}", encoding="utf-8")
            slowest.write_bytes(data)

    arguments = [
        f"-max_total_time={options.seconds}",
        f"-timeout={options.timeout}",
        f"-rss_limit_mb={options.memory}",
        f"-max_len={MAX_LENGTH}",
        f"-dict={options.corpus / 'dictionary'}",
        f"-artifact_prefix={options.corpus / options.child}.",
        "-print_final_stats=1",
        "-len_control=20",
        str(corpus),
    ]
    timed(b"")  # what is loaded at first use is not counted
    worst = 0.0
    atheris.Setup([sys.argv[0], *arguments], timed)
    atheris.Fuzz()


def _campaign(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Fuzz one target for the given time, restarting after each crash; returns the figures."""
    corpus: Path = options.corpus / name
    corpus.mkdir(parents=True, exist_ok=True)
    words = ['"' + "".join(f"\\x{byte:02x}" for byte in word) + '"' for word in WORDS]
    (options.corpus / "dictionary").write_text("\n".join(words) + "\n", encoding="ascii")
    for number, seed in enumerate(seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    result: dict[str, Any] = {"target": name, "executions": 0, "edges": 0, "features": 0, "peak_mb": 0, "crashes": []}
    result["slowest_seconds"] = 0.0
    start = time.monotonic()
    while (left := options.seconds - int(time.monotonic() - start)) > 0 and len(result["crashes"]) < MAX_CRASHES:
        command = [sys.executable, "-m", "tests.fuzz.campaign", "--child", name, "--seconds", str(left)]
        for given in ("corpus", "timeout", "memory"):
            command += [f"--{given}", str(getattr(options, given))]
        log = options.corpus / f"{name}.log"
        with log.open("w", encoding="utf-8") as file:
            status = subprocess.run(command, cwd=ROOT, stdout=file, stderr=file, check=False).returncode
        _add(result, log.read_text(encoding="utf-8", errors="replace"))
        slowest = options.corpus / f"{name}.seconds"
        if slowest.exists():
            result["slowest_seconds"] = max(result["slowest_seconds"], float(slowest.read_text(encoding="utf-8")))
        if status == 0:
            break
    result["seconds"] = round(time.monotonic() - start)
    return result


def _add(result: dict[str, Any], log: str) -> None:
    """Add what one process said."""
    stats = {name: int(value) for name, value in _STATS.findall(log)}
    statuses = [tuple(map(int, found)) for found in _STATUS.findall(log)]
    result["executions"] += stats.get("number_of_executed_units", 0)
    result["peak_mb"] = max(result["peak_mb"], stats.get("peak_rss_mb", 0))
    if statuses:
        result["edges"] = max(result["edges"], *(edges for edges, _ in statuses))
        result["features"] = max(result["features"], *(features for _, features in statuses))
    for artifact in re.findall(r"Test unit written to (\S+)", log):
        error = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt)\b.*|^SUMMARY.*", log, re.MULTILINE)
        result["crashes"].append({"file": Path(artifact).name, "error": error[0][:300] if error else "?"})


def table(results: list[dict[str, Any]]) -> str:
    """The figures as a table of Markdown."""
    rows = [COLUMNS, ("---", *["---:"] * (len(COLUMNS) - 1))]
    for one in results:
        rate = one["executions"] / max(1, one["seconds"])
        rows.append(
            (
                one["target"],
                f"{one['executions']:,}",
                f"{one['seconds']:,}",
                f"{rate:,.0f}",
                f"{one['edges']:,}",
                f"{one['features']:,}",
                f"{one['slowest_seconds']:.2f} s",
                f"{one['peak_mb']:,} MiB",
                str(len(one["crashes"])),
            )
        )
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
