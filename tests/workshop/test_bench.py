"""The command ``bench`` runs, and what it compares agrees. Nothing here looks at how long anything takes."""

import argparse
from pathlib import Path

import pytest
import torch
from weighted_clip.workshop.bench import SECTIONS, add_arguments, run
from weighted_clip.workshop.bench.encoding import PAIRS
from weighted_clip.workshop.bench.gpu import NO_DEVICE
from weighted_clip.workshop.bench.hosts import STOCK, find_places
from weighted_clip.workshop.bench.samplings import WAYS

from ..libraries import library


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


def bench(*arguments: str) -> dict[str, str]:
    """The sections that the command prints, by name."""
    printed: list[str] = []
    assert run(options("--quick", *arguments), printed.append) == 0
    parts = "\n".join(printed).split("\n## ")[1:]
    return {name: body for name, body in (part.split("\n\n", 1) for part in parts)}


def cells(section: str) -> list[list[str]]:
    """The rows of a section's table, without its head; of several tables, of the first."""
    lines = [line for line in section[section.find("|") :].split("\n\n")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.fixture(scope="module")
def sections() -> dict[str, str]:
    return bench("--only", "encode")


def test_every_pair_encodes_and_agrees(sections: dict[str, str]) -> None:
    library("transformers", "5")
    library("compel", "2.1")
    rows = cells(sections["encode"])
    assert [row[:3] for row in rows] == [[prompt, way, peer] for prompt, way, peer, _ in PAIRS]
    for row, (*_, is_same) in zip(rows, PAIRS, strict=True):
        assert all(float(cell) >= 0 for cell in row[3:6])  # a ratio may be rounded to 0
        if is_same:
            assert float(row[-1]) <= 1e-5
        else:
            assert row[-1] == "other rule"


def test_every_goal_looks_at_rows_that_there_are(sections: dict[str, str]) -> None:
    library("transformers", "5")
    library("compel", "2.1")
    rows = cells(sections["goals"])
    goals = [(section, goal) for section in SECTIONS for goal in section.goals]
    assert [row[0] for row in rows] == [goal.name for _, goal in goals]
    for row, (section, _) in zip(rows, goals, strict=True):
        is_here = section.name in sections.keys() - {"hosts"} and sections[section.name].strip() != NO_DEVICE
        assert row[4] in (["met", "missed"] if is_here else [""]), row
        assert row[3].startswith("[not measured](#") == (not is_here), row


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> str:
    """The folder of hosts, in which there is a ComfyUI."""
    folder = request.config.getoption("--hosts")
    if folder is None or STOCK not in find_places(Path(folder)):
        pytest.skip("no host: give --hosts DIR (a folder with a ComfyUI checkout and its venv)")
    return folder


@pytest.mark.host
def test_the_part_on_a_gpu_runs_without_one(hosts: str) -> None:
    library("transformers", "5")
    library("compel", "2.1")
    section = bench("--only", "gpu", "--hosts", hosts)["gpu"]
    tables = [[row.split("|")[1:-1] for row in part.splitlines()[2:]] for part in section.split("\n\n") if "|" in part]
    assert [{row[1].strip() for row in rows} for rows in tables[:3]] == [
        {"comfy", "comfy, graphs by hand"},
        {"kernel by kernel", "compiled, CUDA graphs"} if torch.cuda.is_available() else {"kernel by kernel"},
        {"four words down, compel", "4 prompts"},
    ]
    assert {row[2].strip() for row in tables[3]} == set(WAYS)


@pytest.mark.host
def test_sampling_runs_with_the_rows_of_each_way(hosts: str) -> None:
    rows = cells(bench("--only", "sampling", "--hosts", hosts)["sampling"])
    assert [(row[1], row[2]) for row in rows] == [
        (STOCK, "77"),
        ("comfy", "77"),
        ("repeat, steps of 1/2", "155"),
        ("repeat, steps of 1/10", "773"),
        ("Attention Weights", "77"),
        ("Attention Weights, with MODEL", "77"),
        ("Color Bleed", "77"),
        ("Place Phrase", "77"),
        ("Place Phrase, its time over", "77"),
        ("Watch Words", "77"),
        ("Regional Prompt", "77"),
    ]
    assert all(float(row[column]) > 0 for row in rows for column in (3, 5))


@pytest.mark.host
def test_hosts_run_and_agree(hosts: str) -> None:
    places = find_places(Path(hosts))
    for row in cells(bench("--only", "hosts", "--hosts", hosts)["hosts"]):
        if row[2].split(":")[0] in places:
            assert row[-1] == "other rule" or float(row[-1]) <= 1e-5, row
        else:
            assert row[-1] == "not found"
