"""Input and output of compatibility.py, limits of an old torch, and that the development set is complete."""

import importlib
import importlib.metadata
import sys
from pathlib import Path

import pytest
import torch
from weighted_clip.commands.program import main

from .compatibility import MARKERS, ROWS, Record, last_error, outcome_of, python_of, table, with_table
from .libraries import COMPARED, library, numbers

REPORT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="a" name="one"/><testcase classname="a" name="two"/>
<testcase classname="a" name="three"><failure message="no">trace</failure></testcase>
<testcase classname="b" name="four"><error message="no">trace</error></testcase>
<testcase classname="b" name="five"><skipped message="no gradio">where</skipped></testcase>
<testcase classname="b" name="six"><skipped message="no gradio">where</skipped></testcase>
<testcase classname="b" name="seven"><skipped message="no compel">where</skipped></testcase>
</testsuite></testsuites>"""


def test_a_report_is_counted_by_outcome() -> None:
    assert outcome_of(REPORT) == (2, ["a::three", "b::four"], {"no gradio": 2, "no compel": 1})


def test_the_newest_python_of_a_version_is_taken(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("3.1.9", "3.10.9", "3.10.13", "3.11.0", "system", "3.10-dev")]
    assert python_of(folders, "3.10") == tmp_path / "3.10.13" / "bin" / "python"
    assert python_of(folders, "3.14") is None


def test_pips_own_reason_is_kept() -> None:
    output = (
        "WARNING: x\nERROR: Could not find a version (from versions: 1)\nERROR: No matching distribution for y==2\n"
    )
    assert last_error(output) == "No matching distribution for y==2"
    assert last_error("Traceback\nOSError: no space") == "OSError: no space"


def test_the_table_tells_versions_counts_failures_and_why_a_row_is_missing() -> None:
    versions = {"python": "3.10.1", "torch": "2.1.0", "numpy": "1.24.0", "compel": "2.0.3"}
    records = {
        "bounds": Record(versions, 5, ["a::three"], {"no gradio": 2}, {"difference": 3.2e-6}),
        "newest": Record(problem="No matching distribution for torch"),
    }
    head, _, row, missing, _, *notes = table(records).splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[0] == f"`bounds`: {ROWS['bounds'].stands_for}"
    assert cells[1:] == [
        *("3.10.1", "2.1.0", "1.24.0", "-", "-, -, -", "compel 2.0.3", "5 passed, 1 failed, 2 skipped", "3.2e-06")
    ]
    assert head.count("|") == row.count("|") == missing.count("|")
    assert notes == ["- `bounds` failed: a::three", "- `newest` could not be had: No matching distribution for torch"]


def test_only_what_is_between_the_markers_is_replaced() -> None:
    page = f"# Head\n\n{MARKERS[0]}\nold\n{MARKERS[1]}\n\nend\n"
    once = with_table(page, "| new |")
    assert once == f"# Head\n\n{MARKERS[0]}\n| new |\n{MARKERS[1]}\n\nend\n"
    assert with_table(once, "| new |") == once
    with pytest.raises(ValueError, match="are missing"):
        with_table("# Head\n", "| new |")


def test_every_row_names_what_it_wants_of_torch() -> None:
    for name, row in ROWS.items():
        assert any(pin.startswith("torch") for pin in row.pins), name
    # has no hash in the list, so pip takes the rest of the list by hash only where it is there already
    pinned = (Path(__file__).parents[1] / "requirements-lab.txt").read_text(encoding="utf-8").splitlines()
    assert ROWS["development"].pins[0] in pinned


def test_the_development_set_skips_no_comparison() -> None:
    """If its tools are installed, so must be everything that tests compare with; otherwise they would be skipped
    unseen.
    """
    if not list(importlib.metadata.distributions(name="import-linter")):
        pytest.skip("these are not the libraries of requirements-dev.txt")
    for name in (*COMPARED, "gradio"):
        importlib.import_module(name)


def test_a_library_that_is_too_old_or_missing_skips_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pytest.skip.Exception, match="compares with compel, which cannot be imported"):
        monkeypatch.setitem(sys.modules, "compel", None)
        library("compel")
    monkeypatch.setitem(sys.modules, "compel", pytest)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.0.3")
    assert library("compel", "2.0") is pytest
    with pytest.raises(pytest.skip.Exception, match=r"compares with compel from 2\.1 on; 2\.0\.3 is installed"):
        library("compel", "2.1")
    assert numbers("2.13.0+cpu") == (2, 13, 0) > numbers("2.9") > numbers("2")


def test_a_torch_without_fp16_on_the_cpu_is_told_of_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As torch 2.1 has it, where the error came out of the middle of the encoder."""
    real = torch.nn.functional.layer_norm

    def layer_norm(states: torch.Tensor, *arguments: object) -> torch.Tensor:
        if states.dtype == torch.float16:
            raise RuntimeError("\"LayerNormKernelImpl\" not implemented for 'Half'")
        return real(states, *arguments)

    monkeypatch.setattr(torch.nn.functional, "layer_norm", layer_norm)
    assert main(["encode", "a cat", "--dtype", "fp16"]) == 1
    assert "has no fp16 arithmetic on the CPU; use --dtype fp32" in capsys.readouterr().err
