"""The parity command: prompts and subjects, finding hosts, the table and the exit status."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.schemes import SCHEMES
from weighted_clip.weighting.text.embedding_folder import EmbeddingFolder
from weighted_clip.weighting.text.embeddings import EmbeddingVector
from weighted_clip.workshop import peers
from weighted_clip.workshop.parity import command
from weighted_clip.workshop.parity.native import (
    SIZES,
    write_embeddings,
)
from weighted_clip.workshop.parity.prompts import PROMPTS
from weighted_clip.workshop.parity.report import Absence, Result, problems
from weighted_clip.workshop.parity.subjects import HOST_REFERENCES, LIMIT, RATIO_LIMIT, REFERENCES, SUBJECTS

from ..patience import SECONDS
from .test_find_hosts import FORGE, make

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> EmbeddingFolder:
    folder = tmp_path_factory.mktemp("embeddings")
    return write_embeddings(folder / "ours", folder / "theirs")


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


def test_shapes_that_differ_are_infinitely_far_apart() -> None:
    assert command.largest_difference(torch.zeros(1, 77, 4), torch.zeros(1, 154, 4)) == math.inf


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
