"""The case files as a data set of its own: its runner sees right answers and wrong ones, and needs nothing of ours."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RUNNER = ROOT / "tests" / "cases" / "conformance.py"


def run(folder: Path, *arguments: str) -> tuple[int, dict[str, tuple[int, int, int]]]:
    """The runner's exit code, and how many cases of each file passed, failed and do not apply."""
    done = subprocess.run(
        [sys.executable, RUNNER, *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr[-2000:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()[2:]]
    return done.returncode, {row[0]: (int(row[1]), int(row[2]), int(row[3])) for row in rows}


def test_our_answers_pass() -> None:
    code, found = run(ROOT, "--parse", "tests.conformance.ours:parse", "--encode", "tests.conformance.ours:encode")
    assert code == 0
    assert [name for name, counts in found.items() if counts[1]] == []
    for name in (
        "a1111_syntax",
        "comfy_syntax",
        "compel_syntax",
        "a1111_schedule",
        "comfy_chunks",
        "weighting_numeric",
    ):
        assert found[name][0] > 20


def test_wrong_answers_fail() -> None:
    module = "tests.conformance.ours"
    code, found = run(ROOT, "--parse", f"{module}:wrong_parse", "--encode", f"{module}:wrong_encode")
    assert code == 1
    for name in ("a1111_syntax", "comfy_syntax", "masked_blend", "weighting_numeric"):
        assert found[name][1] > 10


@pytest.mark.parametrize(
    ("answer", "counts"),
    [
        ("[['a', 1.0]]", (1, 3, 0)),
        ("[['a', 1.0000001]]", (1, 3, 0)),
        ("[['a', float('nan')]]", (0, 4, 0)),
        ("(('a', 1.0),)", (1, 3, 0)),
        ("raised(NotImplementedError)", (0, 0, 4)),
        ("raised(ZeroDivisionError)", (1, 3, 0)),
    ],
)
def test_an_answer_is_compared_whole(answer: str, counts: tuple[int, int, int], tmp_path: Path) -> None:
    cases = [{"expected": [["a", 1.0]]}, {"expected": [["a", 1.5]]}, {"expected": [["a", 1.0], ["b", 1.0]]}]
    (tmp_path / "some.json").write_text(json.dumps({"cases": [*cases, {"prompt": "(", "error": "ValueError"}]}))
    (tmp_path / "conformance.py").write_bytes(RUNNER.read_bytes())
    (tmp_path / "mine.py").write_text(
        "def raised(error):\n    raise error\n\n"
        f"def parse(file, case):\n    assert 'expected' not in case\n    return {answer}\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "conformance.py", "--parse", "mine:parse"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    row = done.stdout.splitlines()[2].split("|")
    assert tuple(int(cell) for cell in row[2:5]) == counts
    assert done.returncode == (counts[1] > 0)
