"""The command ``bench`` runs and shows every row. Nothing here looks at how long anything takes."""

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from weighted_clip.encoder.config import VisionConfig
from weighted_clip.encoder.files.checkpoint import seeded_vision_model
from weighted_clip.encoder.images import bytes_per_image
from weighted_clip.encoder.text_model import TextEncoder
from weighted_clip.workshop.bench import SECTIONS, add_arguments, gpu, images, page, run
from weighted_clip.workshop.bench.encoding import (
    FADED,
    GRID,
    PAIR,
    PAIRS,
    SYNTAXES,
    TIMES,
    TYPED,
    encode_block,
    sharing_block,
    token_block,
)
from weighted_clip.workshop.bench.gpu import ATTENTIONS, NO_DEVICE, TYPES, gpu_block, gpu_section
from weighted_clip.workshop.bench.hosts import ADV, HOSTS, NODES, PLAN, STOCK, WAYS, find_places, ways_of
from weighted_clip.workshop.bench.images import WORKS, image_block, memory_rows
from weighted_clip.workshop.bench.page import NOT_FOUND, Request, goal_block, table_rows
from weighted_clip.workshop.bench.processors import HEAD, WEIGHTED, merged
from weighted_clip.workshop.bench.processors import WORKS as OF_PROCESSORS
from weighted_clip.workshop.bench.scale import QUICK
from weighted_clip.workshop.bench.texts import TEXTS
from weighted_clip.workshop.bench.timing import processor, times_in_turn

from ..libraries import library
from ..patience import SECONDS

ROOT = Path(__file__).resolve().parents[2]

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


def test_says_what_the_machine_is(sections: dict[str, str]) -> None:
    for word in ("CPU core", "Python", "torch", "thread", "transformers", "compel"):
        assert word in sections["machine"]


def test_the_normal_and_the_slowest_text_of_every_syntax_are_shown(sections: dict[str, str]) -> None:
    rows = cells(sections["parse"])
    for number, syntax in enumerate(SYNTAXES):
        normal, slowest = rows[2 * number : 2 * number + 2]
        assert normal[:2] == [syntax, "normal"]
        assert slowest[0] == syntax
        assert slowest[1] in TEXTS.keys() - {"normal"}
    assert len(rows) == 2 * len(SYNTAXES)
    assert all(float(cell) > 0 for row in rows for cell in row[2:5])
    assert "The largest growth is" in sections["parse"]


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


def test_positions_in_common_are_run_once(sections: dict[str, str]) -> None:
    rows = cells(sections["sharing"].split("\n\n", 1)[1])
    by_name = {(row[0], row[1]): [float(cell) for cell in row[2:]] for row in rows}
    for (prompt, way), (encodings, positions, new, part) in by_name.items():
        assert positions == 77 * encodings
        assert 77 < new < positions
        assert part == pytest.approx(new / positions, abs=0.005), (prompt, way)
    # BOS and 40 tokens once, then 36 positions for each of the four prompts, but where they begin alike by chance
    assert 41 + 4 * 36 - 8 <= by_name[GRID, "4 in one call"][2] <= 41 + 4 * 36
    # the prompt with nothing absent, and one encoding for each of four words
    assert by_name[FADED, "masked_blend, law nested"][0] == 5


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


def test_a_gpu_is_measured_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, where a pass is traced as for a graph, but nothing is captured or generated."""
    library("transformers", "5")
    passes = {"kernel by kernel": None, "CUDA graphs": ("eager", None), "compiled": ("aot_eager", None)}
    monkeypatch.setattr(gpu, "PASSES", passes)
    rows = gpu_rows()
    whole = len(TYPES) * len(ATTENTIONS)
    assert [(row[0], row[2]) for row in rows[:whole]] == [
        (kind, f"transformers, {attention}") for kind in TYPES for attention in ATTENTIONS
    ]
    assert [tuple(row[:3]) for row in rows[whole:]] == [
        (kind, name, "transformers, sdpa") for kind in TYPES for name in passes
    ]
    for row in rows:
        assert float(row[-2]) <= (1e-5 if row[0] == "float32" else 0.5), row
        assert float(row[-1]) >= 0


def test_without_a_compiler_the_row_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    library("transformers", "5")

    def backend(graph: object, inputs: object) -> None:
        raise RuntimeError("no compiler here\nand more")

    monkeypatch.setattr(gpu, "PASSES", {"compiled": (backend, None)})
    monkeypatch.setattr(gpu, "TYPES", ("float32",))
    *_, row = gpu_rows()
    assert row[:4] == ["float32", "compiled", "transformers, sdpa", "-"]
    assert "no compiler here" in row[-2]
    assert "and more" not in row[-2]


def test_a_captured_pass_keeps_what_it_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph writes each result to the same memory."""
    memory: dict[int, torch.Tensor] = {}

    def captured(graph: Callable[..., Any], inputs: object) -> Callable[..., Any]:
        def replayed(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            results = graph(*given)
            for number, result in enumerate(results):
                memory.setdefault(number, torch.empty_like(result)).copy_(result)
            return tuple(memory[number] for number in range(len(results)))

        return replayed

    model = QUICK.model()
    encode = gpu.whole_passes(model, (captured, None))
    chunks = [[49406, word, *[49407] * 75] for word in (320, 1929)]
    found = [encode([chunk]) for chunk in chunks]
    assert memory
    for chunk, encoding in zip(chunks, found, strict=True):
        expected = TextEncoder(model)([chunk])
        torch.testing.assert_close(encoding.hidden, expected.hidden, rtol=0, atol=1e-6)
        torch.testing.assert_close(encoding.pooled, expected.pooled, rtol=0, atol=1e-6)


def test_a_library_that_is_installed_is_found_by_the_command_itself() -> None:
    library("transformers")
    command = [sys.executable, str(ROOT / "__main__.py"), "bench", "--quick", "--only", "tokens"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, check=True
    )  # without tests/conftest.py
    assert "transformers" in done.stdout
    assert NOT_FOUND not in done.stdout


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


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux, to measure the peak of memory")
def test_the_measure_of_memory_sees_a_batch_that_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(2**18))  # glibc: what is freed goes back at once
    config = VisionConfig(hidden_dim=256, num_heads=4, num_layers=6, mlp_dim=1024, projection_dim=64)
    ((_, _, batch, model, images, peak, _),) = memory_rows(config, 24, 128)
    assert int(batch) == 24
    assert float(model) == pytest.approx(sum(p.nbytes for p in seeded_vision_model(config).parameters()) / 2**20, abs=1)
    assert float(images) == pytest.approx(24 * 128 * 128 * 3 * 4 / 2**20, abs=1)
    states = 24 * 7 * 257 * 256 * 4 / 2**20  # at least the states of all layers, which are held to the end
    assert states < float(peak) <= 24 * bytes_per_image(config, 4, 128, 128) / 2**20


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


def test_refuses_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such folder"):
        find_places(tmp_path / "nothing")


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
        page.write({}, tmp_path / "BENCHMARKS.md")


def test_contestants_take_turns_in_both_directions() -> None:
    calls: list[str] = []
    times = times_in_turn(
        {name: lambda name=name: calls.append(name) for name in "ABC"}, repetitions=2, warm_up=1, inner=1
    )
    assert "".join(calls) == "CBAABCCBA"
    assert {name: len(taken) for name, taken in times.items()} == {"A": 2, "B": 2, "C": 2}


# ---- goals


def test_goals_of_hosts_look_at_rows_that_there_are() -> None:
    rows_of_hosts = {
        (prompt, f"{name}, {way}", f"{peer}: {setting}" if setting else peer)
        for peer, prompts in PLAN.items()
        for prompt, (setting, names) in prompts.items()
        for name in names
        for way in (WAYS[key] for key in ways_of(peer, prompt, name))
    }
    wanted = [goal.where for goal in HOSTS.goals]
    assert {(where["Prompt"][0], where["Ours"][0], where["Peer"][0]) for where in wanted} <= rows_of_hosts


def test_goals_stand_under_headings_of_the_page() -> None:
    headings = page.PAGE.read_text(encoding="utf-8").splitlines()
    assert all(f"## {section.title}" in headings for section in SECTIONS if section.goals)


def test_goals_are_met_or_missed_by_the_worst_row() -> None:
    def verdicts(blocks: dict[str, str]) -> dict[tuple[str, str], list[str]]:
        return {
            (row["Goal"], row["Beside"]): [row["Measured"].strip("[").partition("]")[0], row[""]]
            for row in page.table_rows(goal_block(SECTIONS, blocks))
        }

    encoded = [
        page.missing("plain", "comfy", "transformers"),
        ["plain", "comfy, bit for bit", "transformers", "100", "10.0", "10.00", "-", "0"],
        ["four words down", "compel", "compel", "50.0", "99.9", "0.50", "-", "0"],
    ]
    parsed = [["a1111", "normal", "0.1"], ["comfy", "normal", "0.19"], ["comfy", "hostile", "9.0"]]
    gpu = [["float32", "x", "transformers, eager", "1.0", "4.0"], ["float16", "x", "transformers, eager", "2.0", "6.0"]]
    blocks = {
        "encode": page.table(page.COMPARISON_HEAD, encoded, num_left=3),
        "parse": "Words.\n\n" + page.table(["Syntax", "Text", "300 characters, ms"], parsed, num_left=2),
        "gpu": page.table(["Weights", "Ours", "Peer", "Ours, ms", "Peer, ms"], gpu, num_left=3) + "\n\nWords.",
    }
    found = verdicts(blocks)
    assert found["A plain prompt", "transformers"] == ["not measured", ""]
    assert found["Four words down in 60 tokens", "compel"] == ["2.00", "missed"]
    assert found["Four words down in 60 tokens", "ADV_CLIP_emb"] == ["not measured", ""]
    assert found["Reading 300 characters", "-"] == ["0.19 ms", "met"]
    assert found["A weighted prompt on a GPU", "transformers, eager"] == ["3.00", "met"]
    encoded[0] = ["plain", "comfy", "transformers", "100", "99.0", "1.01", "1.00 to 1.03", "0"]
    parsed[0][2] = "0.2"
    blocks["encode"] = page.table(page.COMPARISON_HEAD, encoded, num_left=3)
    blocks["parse"] = page.table(["Syntax", "Text", "300 characters, ms"], parsed, num_left=2)
    found = verdicts(blocks)
    assert found["A plain prompt", "transformers"] == ["0.97", "met"]
    assert found["Reading 300 characters", "-"] == ["0.2 ms", "missed"]


def test_goals_on_the_page_are_judged_by_all_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "PAGE", tmp_path / "BENCHMARKS.md")
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
