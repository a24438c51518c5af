"""The parity command: stored figures of host runs, finding hosts, the table and the exit status.

tests/parity_data/host_figures.safetensors holds one number for each row of hidden states that ComfyUI,
ComfyUI_ADV_CLIP_emb, prompt-control and Forge computed from the seeded full-size model. The command
``parity --hosts DIR --write`` writes it.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.embedding_folder import EmbeddingFolder
from weighted_clip.weighting.embeddings import EmbeddingVector
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading import read_prompt
from weighted_clip.weighting.schemes import SCHEMES
from weighted_clip.workshop import peers
from weighted_clip.workshop.parity import add_arguments, command
from weighted_clip.workshop.parity.native import (
    DATA,
    SIZES,
    digest_of_prompts,
    encode_natively,
    row_figures,
    seeded_model,
    write_embeddings,
)
from weighted_clip.workshop.parity.prompts import PROMPTS
from weighted_clip.workshop.parity.report import Absence, Result, block, problems, table
from weighted_clip.workshop.parity.subjects import HOST_REFERENCES, LIMIT, RATIO_LIMIT, REFERENCES, SUBJECTS

from ..patience import SECONDS
from .test_find_hosts import FORGE, make

ROOT = Path(__file__).resolve().parents[2]
CHOSEN = {
    "comfy": ("((inner override", "a (negative", "(storm clouds"),
    "a1111": ("((cat:1.2)", "crossed (one", "a wall BREAK", "(一只猫"),
    "embeddings": ("(zqeight:1.3)", "zqone, an old"),
    "embeddings moved": ("(zqone:1.2)",),
}
"""Starts of the prompts whose figures are computed again here: few, because the model has its full size."""
NUMBERS = [
    (family, number)
    for family, starts in CHOSEN.items()
    for number, prompt in enumerate(PROMPTS[family])
    if prompt.startswith(starts)
]


@pytest.fixture(scope="module")
def model():
    return seeded_model()


@pytest.fixture(scope="module")
def stored():
    with safe_open(DATA, framework="pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, dict(file.metadata())  # noqa: SIM118


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> EmbeddingFolder:
    folder = tmp_path_factory.mktemp("embeddings")
    return write_embeddings(folder / "ours", folder / "theirs")


@pytest.mark.parametrize(("family", "number"), NUMBERS)
def test_equals_the_figures_of_the_hosts(model, stored, embeddings, family: str, number: int) -> None:
    figures, _ = stored
    subjects = [s for s in SUBJECTS if s.prompts == family and f"{s.key}/{number}" in figures]
    assert {s.reference for s in subjects} == (set(HOST_REFERENCES) - {"forge"} if family == "comfy" else {"forge"})
    hidden = encode_natively(model, PROMPTS[family][number], [subject.options for subject in subjects], embeddings)
    for subject, ours in zip(subjects, hidden, strict=True):
        theirs = figures[f"{subject.key}/{number}"]
        # on another processor the encoder rounds otherwise, and a ratio of means makes more of it
        limit = RATIO_LIMIT if subject.options["scheme"].startswith("a1111") else subject.limit
        torch.testing.assert_close(
            row_figures(ours), theirs, rtol=0, atol=limit, msg=lambda text, key=subject.key: f"{key}: {text}"
        )


def test_the_figures_are_of_these_prompts_and_name_their_versions(stored) -> None:
    figures, about = stored
    assert about["prompts"] == digest_of_prompts(), (
        "the prompts changed: run the parity command with --hosts and --write"
    )
    told = {name: words for name, words in about.items() if name != "prompts"}
    assert any(name.startswith("ComfyUI 0.") for name in told) and any(name.startswith("Forge") for name in told)
    assert all("torch " in words for words in told.values())
    # both packs compute what they mean to only under numpy 1
    packs = [words for name, words in told.items() if name.startswith(("ComfyUI_ADV", "prompt-control"))]
    assert len(packs) == 2 and all("numpy 1." in words for words in packs)
    expected = {
        f"{s.key}/{number}"
        for s in SUBJECTS
        if s.reference in HOST_REFERENCES
        for number in range(len(PROMPTS[s.prompts]))
    }
    assert figures.keys() == expected


def test_a_row_figure_sees_every_row_and_scales_with_its_error() -> None:
    hidden = torch.randn(1, 154, 768, generator=torch.Generator().manual_seed(1))
    noise = 1e-3 * torch.randn(hidden.shape, generator=torch.Generator().manual_seed(2))
    moved = (row_figures(hidden + noise) - row_figures(hidden)).abs()
    assert moved.shape == (154,)
    assert 1e-3 < moved.max() < 5e-3
    one = hidden.clone()
    one[0, 100] *= 1.001
    assert (row_figures(one) != row_figures(hidden)).nonzero().flatten().tolist() == [100]


def test_each_syntax_has_forty_prompts_and_every_scheme_of_a_program_is_compared() -> None:
    assert {name: len(set(prompts)) for name, prompts in PROMPTS.items()} == {
        "comfy": 40,
        "a1111": 40,
        "cleaned": 11,
        "compel": 40,
        "compel long": 10,
        "embeddings": 15,
        "embeddings moved": 4,
    }
    assert len({subject.key for subject in SUBJECTS}) == len(SUBJECTS)
    compared = {subject.options["scheme"] for subject in SUBJECTS}
    assert compared == {name for name, scheme in SCHEMES.items() if scheme.is_compared}
    assert all(subject.limit in (LIMIT, RATIO_LIMIT) for subject in SUBJECTS)


@pytest.mark.parametrize("family", PROMPTS)
def test_quirks_matter_where_the_comma_rule_moves_an_embedding(embeddings: EmbeddingFolder, family: str) -> None:
    for prompt in PROMPTS[family]:
        quirky, right = (
            read_prompt(
                prompt, EncodeOptions(syntax="a1111", quirks=quirks), default_tokenizer(), embeddings=embeddings
            )
            for quirks in (True, False)
        )
        assert (quirky.chunks != right.chunks) == (family == "embeddings moved")
        names = {token.name for chunk in right.chunks for token in chunk.ids if isinstance(token, EmbeddingVector)}
        assert names <= SIZES.keys() and bool(names) == family.startswith("embeddings")


def test_what_is_missing_is_said_and_what_fails_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command.torch, "set_num_threads", lambda number: None)
    monkeypatch.setattr(command, "seeded_model", lambda: None)
    monkeypatch.setattr(command, "save_model", lambda model, path: None)
    monkeypatch.setattr(command, "_tokenizers", lambda: [])
    monkeypatch.setattr(command, "_native", lambda *arguments: {})
    monkeypatch.setattr(peers, "version_of", lambda name: None)
    assert command.compare_all(None, is_quick=True, is_written=False) == 0
    assert command.compare_all(tmp_path, is_quick=True, is_written=False) == 0
    printed = capsys.readouterr().out
    for name in HOST_REFERENCES:
        assert f"| {REFERENCES[name]} | not looked for: no --hosts |" in printed
        assert f"| {REFERENCES[name]} | not found, or without a Python of its own |" in printed
    assert "| compel | not installed |" in printed and "| transformers | not installed |" in printed

    python = make(tmp_path / "forge", FORGE, "f2") / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to(sys.executable)
    assert command.compare_all(tmp_path, is_quick=True, is_written=True) == 1
    out, err = capsys.readouterr()
    assert "| Forge | " in out
    assert "Forge did not run:" in err and "Error" in err


def _result(difference: float, limit: float | None = 1e-5) -> Result:
    return Result("Forge 2", "Original | x", "a1111", "native", 40, limit, difference, "a cat")


def test_a_difference_above_its_limit_is_a_problem() -> None:
    assert problems([_result(0.0), _result(1e-5), _result(3.0, None), Absence("compel", "not installed")]) == []
    for difference in (2e-5, math.inf, math.nan):
        (problem,) = problems([_result(difference)])
        assert "Original" in problem and "'a cat'" in problem
    assert problems([Absence("Forge", "boom", is_failure=True)]) == ["Forge did not run:\nboom"]


def test_the_table_is_markdown() -> None:
    lines = table([_result(3.25e-6), _result(0.0, None), Absence("compel", "not installed")]).splitlines()
    assert lines[2] == "| Forge 2 | Original \\| x | a1111 | native | 40 | 1.0e-5 | 3.2e-6 |"
    assert lines[3].endswith("| none: numpy 2 | 0 |")
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1


def test_the_page_has_a_table_for_each_reference_and_a_column_for_each_encoder() -> None:
    wide, host = replace(_result(2e-5), name="Wide", limit=3e-5), replace(_result(0.0), encoder="the host's", limit=0.0)
    given = [_result(3.25e-6), host, wide, _result(0.5, None), Absence("compel", "not installed")]
    found = block(given, {"Forge 2": "Forge 2, torch 2"})
    assert found.splitlines() == [
        "### Forge 2",
        "",
        "With torch 2.",
        "",
        "Without a limit: a1111 5.0e-1.",
        "",
        "| Its name      | Ours  | Prompts |  native, at most 1.0e-5 | the host's, at most 0 |",
        "| ------------- | ----- | ------: | ----------------------: | --------------------: |",
        "| Original \\| x | a1111 |      40 |                  3.2e-6 |                     0 |",
        "| Wide          | a1111 |      40 | 2.0e-5 (at most 3.0e-5) |                     - |",
        "",
        "### compel",
        "",
        "not installed",
    ]


def test_shapes_that_differ_are_infinitely_far_apart() -> None:
    assert command.largest_difference(torch.zeros(1, 77, 4), torch.zeros(1, 154, 4)) == math.inf


def test_the_option_parser() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert parser.parse_args([]).hosts is None
    given = parser.parse_args(["--hosts", "x", "--quick"])
    assert given.hosts == Path("x") and given.quick and not given.write


def test_a_host_that_loads_the_pack_never_imports_it() -> None:
    code = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('p', {str(ROOT / '__init__.py')!r}, "
        f"submodule_search_locations=[{str(ROOT)!r}])\n"
        "module = sys.modules['p'] = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "assert not [name for name in sys.modules if name.startswith('p.workshop')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=SECONDS)


def test_a_library_that_does_not_import_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_library.py").write_text("raise ImportError('it needs another')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="it needs another"):
        peers.version_of("broken_library")
    assert peers.version_of("no_such_library") is None
