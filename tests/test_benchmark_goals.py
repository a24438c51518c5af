"""The goals of the page: where they look, and how they judge made-up rows."""

import argparse
from pathlib import Path

import pytest
from weighted_clip.workshop.bench import add_arguments, page, run
from weighted_clip.workshop.bench.goals import GOALS, SECTIONS, goal_block
from weighted_clip.workshop.bench.hosts import PLAN, WAYS, ways_of


def test_goals_of_hosts_look_at_rows_that_there_are() -> None:
    rows_of_hosts = {
        (prompt, f"{name}, {way}", f"{peer}: {setting}" if setting else peer)
        for peer, prompts in PLAN.items()
        for prompt, (setting, names) in prompts.items()
        for name in names
        for way in (WAYS[key] for key in ways_of(peer, prompt, name))
    }
    wanted = [goal.where for goal in GOALS if goal.section == "hosts"]
    assert {(where["Prompt"][0], where["Ours"][0], where["Peer"][0]) for where in wanted} <= rows_of_hosts


def test_goals_stand_under_headings_of_the_page() -> None:
    headings = page.PAGE.read_text(encoding="utf-8").splitlines()
    assert all(f"## {title}" in headings for title in SECTIONS.values())
    assert {goal.section for goal in GOALS} == set(SECTIONS)


def test_goals_are_met_or_missed_by_the_worst_row() -> None:
    def verdicts(blocks: dict[str, str]) -> dict[tuple[str, str], list[str]]:
        return {(row["Goal"], row["Beside"]): [row["Measured"], row[""]] for row in page.table_rows(goal_block(blocks))}

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
    assert found["Four words down in 60 tokens", "compel"] == ["2.00 times", "missed"]
    assert found["Four words down in 60 tokens", "ADV_CLIP_emb"] == ["not measured", ""]
    assert found["Reading 300 characters", "-"] == ["0.19 ms", "met"]
    assert found["A weighted prompt on a GPU", "transformers, eager"] == ["3.00 times", "met"]
    encoded[0] = ["plain", "comfy", "transformers", "100", "97.0", "1.03", "-", "0"]
    parsed[0][2] = "0.2"
    blocks["encode"] = page.table(page.COMPARISON_HEAD, encoded, num_left=3)
    blocks["parse"] = page.table(["Syntax", "Text", "300 characters, ms"], parsed, num_left=2)
    found = verdicts(blocks)
    assert found["A plain prompt", "transformers"] == ["0.97 times", "met"]
    assert found["Reading 300 characters", "-"] == ["0.2 ms", "missed"]


def test_goals_on_the_page_are_judged_by_all_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "PAGE", tmp_path / "BENCHMARKS.md")
    tokens = page.table(["Ours", "Ours, µs", "Peer, µs"], [["ids with places", "50", "100"]], num_left=1)
    sections = {"goals": "-", "machine": "-", "tokens": tokens}
    marked = (f"<!-- bench {name} -->\n{text}\n<!-- end {name} -->" for name, text in sections.items())
    page.PAGE.write_text("\n".join(marked), encoding="utf-8")
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    printed: list[str] = []
    run(parser.parse_args(["--only", "machine", "--write"]), printed.append)
    said = next(row for block in printed for row in page.table_rows(block) if row.get("Goal") == "Tokenizing")
    assert said["Measured"] == "not measured"
    on_page = page.blocks_of(page.PAGE.read_text(encoding="utf-8"))
    assert "CPU core" in on_page["machine"]
    assert on_page["tokens"] == tokens
    written = next(row for row in page.table_rows(on_page["goals"]) if row["Goal"] == "Tokenizing")
    assert (written["Measured"], written[""]) == ("2.00 times", "met")
