"""The command ``bench`` runs and shows every row. Nothing here looks at how long anything takes."""

import argparse
import sys
from pathlib import Path

import pytest
import torch
from weighted_clip.workshop.bench import SECTIONS, add_arguments, gpu, images, page, run
from weighted_clip.workshop.bench.encoding import (
    FADED,
    GRID,
    PAIR,
    PAIRS,
    TIMES,
    TYPED,
    encode_block,
    sharing_block,
    token_block,
)
from weighted_clip.workshop.bench.gpu import ATTENTIONS, NO_DEVICE, TYPES, gpu_block, gpu_section
from weighted_clip.workshop.bench.hosts import ADV, NODES, PLAN, STOCK, find_places, ways_of
from weighted_clip.workshop.bench.images import WORKS, image_block
from weighted_clip.workshop.bench.page import Request, table_rows
from weighted_clip.workshop.bench.processors import HEAD, WEIGHTED, merged
from weighted_clip.workshop.bench.processors import WORKS as OF_PROCESSORS
from weighted_clip.workshop.bench.scale import QUICK
from weighted_clip.workshop.bench.timing import processor

from ..libraries import library

NAMES = [section.name for section in SECTIONS]
SHARING = [
    (TYPED, "remembering", "ours, nothing remembered"),
    (TYPED, "remembering", "transformers, a batch of 3"),
    (GRID, "4 in one call", "transformers, batches of "),
    (FADED, "masked_blend, law nested", "ours, bit for bit"),
    (FADED, "masked_blend, law compel", "ours, bit for bit"),
    (PAIR, "together", "ours, one by one"),
    (TIMES, "together", "ours, one by one"),
]


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
    return bench("--images", "9")


def test_prints_every_section(sections: dict[str, str]) -> None:
    assert list(sections) == [*NAMES, "goals"]


def test_tokens_are_those_of_transformers(sections: dict[str, str]) -> None:
    library("transformers", "5")
    rows = cells(sections["tokens"])
    assert [row[1] for row in rows] == ["ids with places", "text to weighted chunks"]
    assert all(row[-1] == "yes" for row in rows)


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


def test_what_is_computed_once_agrees_with_what_is_not(sections: dict[str, str]) -> None:
    library("transformers", "5")
    rows = cells(sections["sharing"])
    assert len(rows) == len(SHARING)
    for row, (prompt, way, peer) in zip(rows, SHARING, strict=True):
        assert row[:2] == [prompt, way]
        assert row[2].startswith(peer)
        assert float(row[-1]) <= 1e-5, row


def test_each_processor_has_a_column(sections: dict[str, str]) -> None:
    library("transformers", "5")
    library("compel", "2.1")
    (*figures, date, version) = table_rows(sections["processors"])
    assert [row["Work"] for row in figures] == [work.name for work in OF_PROCESSORS]
    (own,) = (head for head in date if head.endswith(processor()))
    for row in figures:
        speed, _, slow = row[own].partition(" ")
        assert speed == "not" if row["Work"] == WEIGHTED.name else float(speed) >= 0, row
        assert not slow or row["Work"] == WEIGHTED.name or float(slow.strip("()")) >= 0, row
    assert "torch" in version[own]
    others = [head for head in date if head not in (*HEAD, own)]
    assert merged(sections["processors"], own, {row["Work"]: row[own] for row in (*figures, date, version)}) == (
        sections["processors"].strip()
    )
    two = merged(sections["processors"], "Another", {OF_PROCESSORS[0].name: "9.99"})
    (first, *_) = table_rows(two)
    assert list(first)[-1] == "Another"
    assert set(first) == {*HEAD, *others, own, "Another"}
    assert first["Another"] == "9.99"


def gpu_rows() -> list[list[str]]:
    """Rows of both tables, measured on the CPU."""
    return [list(row.values()) for row in table_rows(gpu_block(QUICK, "cpu"))]


def test_says_that_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_section(Request(QUICK)) == NO_DEVICE


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


def test_images_have_the_features_of_transformers(sections: dict[str, str]) -> None:
    library("transformers", "5")
    rows = cells(sections["images"])
    assert [row[0] for row in rows] == list(WORKS)
    for row in rows:
        assert float(row[2]) > 0
        assert float(row[3]) > 0
        assert float(row[-1]) <= 1e-6


def test_the_memory_of_images_is_measured_beside_model_and_images(sections: dict[str, str]) -> None:
    (row,) = cells(sections["images"].split("\n\n", 1)[1])
    assert row[:3] == ["9", "64 x 64", "9"]
    assert row[-1] == "512"
    if Path("/proc/self/clear_refs").exists():
        assert 0 <= float(row[-2]) <= 64  # the tiny model and images of --quick
    else:
        assert row[-2] == "not measured"


def test_one_section_can_be_measured_alone() -> None:
    assert list(bench("--only", "tokens", "machine")) == ["machine", "tokens", "goals"]
    with pytest.raises(ValueError, match="--images must be at least 1, got 0"):
        bench("--images", "0")


def test_without_hosts_their_rows_say_so(sections: dict[str, str]) -> None:
    rows = cells(sections["hosts"])
    ways = [
        ways_of(peer, prompt, name)
        for peer, prompts in PLAN.items()
        for prompt, (_, names) in prompts.items()
        for name in names
    ]
    assert len(rows) == sum(map(len, ways))
    assert sum("memory" in keys for keys in ways) == 1
    assert {row[2].split(":")[0] for row in rows} == {STOCK, ADV}
    assert {row[-1] for row in rows} == {"not found"}
    rows = cells(sections["sampling"])
    assert [tuple(row[:2]) for row in rows] == [*NODES]
    assert {row[-1] for row in rows} == {"not found"}


def test_without_peers_their_rows_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setattr(images, "memory_rows", lambda *_: [])
    assert [row[-1] for row in cells(image_block(Request(QUICK)))] == ["not found"] * len(WORKS)
    rows = cells(encode_block(Request(QUICK)))
    assert [row[-1] for row in rows] == ["not found"] * len(PAIRS)
    rows = [row for row in cells(sharing_block(Request(QUICK))) if row[2].startswith("transformers")]
    assert [row[-1] for row in rows] == ["not found"] * 2
    rows = gpu_rows()
    assert [row[-2] for row in rows] == ["not found"] * len(TYPES) * (len(ATTENTIONS) + len(gpu.PASSES))
    assert {row[-1] for row in cells(token_block(Request(QUICK)))} == {"not found"}


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> str:
    """The folder of hosts, in which there is a ComfyUI."""
    folder = request.config.getoption("--hosts")
    if folder is None or STOCK not in find_places(Path(folder)):
        pytest.skip("no host: give --hosts DIR (a folder with a ComfyUI checkout and its venv)")
    return folder


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


def test_quick_figures_are_not_written_down() -> None:
    with pytest.raises(ValueError, match="--quick"):
        run(options("--quick", "--write"), print)


def test_figures_go_between_the_markers_of_the_page(sections: dict[str, str], tmp_path: Path) -> None:
    written_page = tmp_path / page.PAGE.name
    written_page.write_text(page.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    page.write(sections, written_page)
    once = written_page.read_text(encoding="utf-8")
    assert all(body.strip() in once for body in sections.values())
    assert "Not measured yet" not in once
    page.write(sections, written_page)
    assert written_page.read_text(encoding="utf-8") == once


def test_a_page_without_a_marker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="bench machine"):
        page.fill("# Benchmarks\n", {"machine": "x"})
    with pytest.raises(ValueError, match="checkout"):
        page.write({}, tmp_path / "benchmarks.md")


# ---- goals


def test_goals_stand_under_headings_of_the_page() -> None:
    headings = page.PAGE.read_text(encoding="utf-8").splitlines()
    assert all(f"## {section.title}" in headings for section in SECTIONS if section.goals)


def test_goals_on_the_page_are_judged_by_all_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "PAGE", tmp_path / "benchmarks.md")
    tokens = page.table(["Ours", "Ours, µs", "Peer, µs"], [["ids with places", "50", "100"]], num_left=1)
    sections = {"goals": "-", "machine": "-", "tokens": tokens}
    marked = (f"<!-- bench {name} -->\n{text}\n<!-- end {name} -->" for name, text in sections.items())
    page.PAGE.write_text("\n".join(marked), encoding="utf-8")
    printed: list[str] = []
    run(options("--only", "machine", "--write"), printed.append)
    said = next(row for block in printed for row in page.table_rows(block) if row.get("Goal") == "Tokenizing")
    assert said["Measured"] == "[not measured](#from-text-to-tokens)"
    on_page = page.blocks_of(page.PAGE.read_text(encoding="utf-8"))
    assert "CPU core" in on_page["machine"]
    assert on_page["tokens"] == tokens
    written = next(row for row in page.table_rows(on_page["goals"]) if row["Goal"] == "Tokenizing")
    assert (written["Measured"], written[""]) == ("[2.00](#from-text-to-tokens)", "met")
