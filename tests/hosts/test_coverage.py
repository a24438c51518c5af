"""Coverage of ComfyUI's own templates, by the ComfyUI they come with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from weighted_clip.workshop import coverage
from weighted_clip.workshop.find_hosts import Host
from weighted_clip.workshop.template_models import MODELS, model_of

from .comfy_server import TESTS, run_script

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def templates(host: Host) -> tuple[str, list[coverage.TemplateRow]]:
    """Version and rows of the templates that are installed with the host."""
    (folder,) = host.python.parents[1].glob("lib/python3*/site-packages")
    return coverage.read_templates(folder)


def test_rows_of_its_templates_are_those_that_are_kept(templates: tuple[str, list[coverage.TemplateRow]]) -> None:
    version, rows = templates
    kept = coverage.read_data()
    if version not in kept:
        pytest.skip(f"templates.csv has no version {version}")
    assert sorted(rows) == sorted(kept[version])


def test_text_encoders_have_the_tokenizers_that_its_loader_chooses(
    host: Host, templates: tuple[str, list[coverage.TemplateRow]], tmp_path: Path
) -> None:
    if templates[0] not in coverage.read_data():
        pytest.skip(f"templates.csv has no version {templates[0]}")
    models = {row.text_encoder: model_of(row.text_encoder, row.file) for row in templates[1]}
    expected = {
        loader: f"comfy.text_encoders.{model.tokenizer}"
        for loader, model in models.items()
        if model is not None and not loader.startswith("Checkpoint")
    }
    assert len(expected) > 30
    classes = [f"comfy.ldm.{model.network}" for model in MODELS if not model.never]
    classes += [f"comfy.text_encoders.{model.tokenizer}" for model in MODELS if model.tokenizer]
    asked = tmp_path / "asked.json"
    asked.write_text(json.dumps({"loaders": list(expected), "classes": classes}), encoding="utf-8")
    found = json.loads(run_script(host, TESTS / "loaded_tokenizers.py", asked).splitlines()[-1])
    assert found == {"tokenizers": expected, "missing": []}
