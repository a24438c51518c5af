"""The command ``bench`` runs and shows every row. Nothing here looks at how long anything takes."""

import argparse
import sys
from pathlib import Path

import pytest
from weighted_clip.benchmarks import add_options, page, run
from weighted_clip.benchmarks.command import QUICK
from weighted_clip.benchmarks.encoding import PAIRS
from weighted_clip.benchmarks.hosts import ADV, PLAN, STOCK, WAYS, find_places
from weighted_clip.benchmarks.parsing import SYNTAXES
from weighted_clip.benchmarks.reranking import WORKS, memory_rows
from weighted_clip.benchmarks.texts import FOUR_DOWN, PROMPTS, TEXTS, text_of, written
from weighted_clip.benchmarks.timing import times_in_turn
from weighted_clip.encoder.checkpoint import seeded_vision_model
from weighted_clip.encoder.config import VisionConfig
from weighted_clip.encoder.reranking import bytes_per_image
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.encode import EncodeOptions, read_prompt

SECTIONS = ["machine", "parse", "tokens", "encode", "images", "hosts"]


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_options(parser)
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
    return bench()


def test_prints_every_section(sections: dict[str, str]) -> None:
    assert list(sections) == SECTIONS


def test_says_what_the_machine_is(sections: dict[str, str]) -> None:
    for word in ("CPU core", "Python", "torch", "thread", "transformers", "compel"):
        assert word in sections["machine"]


def test_every_text_is_read_in_every_syntax(sections: dict[str, str]) -> None:
    rows = cells(sections["parse"])
    assert [row[:2] for row in rows] == [[syntax, name] for syntax in SYNTAXES for name in TEXTS]
    assert all(float(cell) > 0 for row in rows for cell in row[2:5])
    assert "The largest growth is" in sections["parse"]


def test_tokens_are_those_of_transformers(sections: dict[str, str]) -> None:
    rows = cells(sections["tokens"])
    assert [row[1] for row in rows] == ["ids with places", "text to weighted chunks"]
    assert all(row[-1] == "yes" for row in rows)


def test_every_pair_encodes_and_agrees(sections: dict[str, str]) -> None:
    rows = cells(sections["encode"])
    assert [row[:3] for row in rows] == [[prompt, way, peer] for prompt, way, peer, _ in PAIRS]
    for row, (*_, is_same) in zip(rows, PAIRS, strict=True):
        assert float(row[5]) > 0
        if is_same:
            assert float(row[-1]) <= 1e-5
        else:
            assert row[-1] == "other rule"


def test_images_have_the_features_of_transformers(sections: dict[str, str]) -> None:
    rows = cells(sections["images"])
    assert [row[0] for row in rows] == list(WORKS)
    for row in rows:
        assert float(row[2]) > 0
        assert float(row[3]) > 0
        assert float(row[-1]) <= 1e-6


def test_the_memory_of_images_is_measured_beside_model_and_images(sections: dict[str, str]) -> None:
    (row,) = cells(sections["images"].split("\n\n", 1)[1])
    assert row[:3] == ["6", "64 x 64", "6"]
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
    assert list(bench("--only", "tokens", "machine")) == ["machine", "tokens"]
    found = bench("--only", "images", "--images", "9")["images"]
    assert "|      9 |    64 x 64 |" in found
    with pytest.raises(ValueError, match="--images must be at least 1, got 0"):
        bench("--images", "0")


def test_without_hosts_their_rows_say_so(sections: dict[str, str]) -> None:
    rows = cells(sections["hosts"])
    assert len(rows) == sum(len(ours) * len(WAYS) for prompts in PLAN.values() for _, ours in prompts.values())
    assert {row[2].split(":")[0] for row in rows} == {STOCK, ADV}
    assert {row[-1] for row in rows} == {"not found"}


def test_without_peers_their_rows_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from weighted_clip.benchmarks.encoding import encode_block
    from weighted_clip.benchmarks.tokenizing import token_block
    from weighted_clip.encoder.checkpoint import seeded_text_model
    from weighted_clip.encoder.config import TextConfig

    monkeypatch.setitem(sys.modules, "transformers", None)
    assert [row[-1] for row in cells(bench("--only", "images")["images"])] == ["not found"] * len(WORKS)
    rows = cells(encode_block(seeded_text_model(TextConfig(**QUICK.sizes)), repetitions=1))
    assert [row[-1] for row in rows] == ["not found"] * len(PAIRS)
    assert {row[-1] for row in cells(token_block(repetitions=1, inner=1))} == {"not found"}


@pytest.mark.host
def test_hosts_run_and_agree(request: pytest.FixtureRequest) -> None:
    folder = request.config.getoption("--hosts")
    places = find_places(None if folder is None else Path(folder))
    if STOCK not in places:
        pytest.skip("no host: give --hosts DIR (a folder with a ComfyUI checkout and its venv)")
    for row in cells(bench("--hosts", folder)["hosts"]):
        if row[2].split(":")[0] in places:
            assert row[-1] == "other rule" or float(row[-1]) <= 1e-5, row
        else:
            assert row[-1] == "not found"


def test_finds_the_newest_comfyui_and_adv_clip_emb(tmp_path: Path) -> None:
    for version in ("0.3.64", "0.29.0"):
        python = tmp_path / f"ComfyUI-{version}" / ".venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch()
        (tmp_path / f"ComfyUI-{version}" / "comfyui_version.py").write_text(f'__version__ = "{version}"\n')
    newest = tmp_path / "ComfyUI-0.29.0"
    assert find_places(tmp_path).keys() == {STOCK}
    assert find_places(newest)[STOCK].comfyui == newest

    pack = tmp_path / "ComfyUI_ADV_CLIP_emb"
    pack.mkdir()
    (pack / "adv_encode.py").touch()
    places = find_places(tmp_path)
    assert places[ADV].adv == pack
    assert places[ADV].python == places[STOCK].python == newest / ".venv" / "bin" / "python"

    python = tmp_path / "peers-venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert find_places(tmp_path)[ADV].python == python


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


@pytest.mark.parametrize("length", [300, 10_000])
@pytest.mark.parametrize("name", TEXTS)
def test_texts_have_the_length_they_claim(name: str, length: int) -> None:
    assert all(len(text_of(name, syntax, length)) == length for syntax in SYNTAXES)


@pytest.mark.parametrize("syntax", ["comfy", "compel"])
def test_prompts_carry_the_weights_they_claim(syntax: str) -> None:
    def weights(name: str) -> list[float]:
        read = read_prompt(written(PROMPTS[name], syntax), EncodeOptions(syntax=syntax), default_tokenizer())
        assert len(read.chunks) == 1
        return [fragment.weight for fragment in read.prompt.fragments if fragment.weight != 1.0]

    assert weights("plain") == []
    assert weights("one word up") == [1.4]
    assert weights("four words down") == [0.2, 0.4, 0.6, 0.8]
    assert len(default_tokenizer()(written(FOUR_DOWN, "none"))) == 60


def test_contestants_take_turns_in_both_directions() -> None:
    calls: list[str] = []
    times = times_in_turn(
        {name: lambda name=name: calls.append(name) for name in "ABC"}, repetitions=2, warm_up=1, inner=1
    )
    assert "".join(calls) == "CBAABCCBA"
    assert {name: len(taken) for name, taken in times.items()} == {"A": 2, "B": 2, "C": 2}
