"""The ruler with a text encoder whose chunks do not have 77 positions: they are as long as the file says."""

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from safetensors.torch import save_file
from weighted_clip import NODE_CLASS_MAPPINGS
from weighted_clip.encoder.config import TextConfig
from weighted_clip.encoder.files.checkpoint import hugging_face_tensors, seeded_text_model
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.nodes import routes
from weighted_clip.nodes.routes import ruler_nodes
from weighted_clip.web.inspection import MAX_FILES, RequestError, files_of, inspect, request_of
from weighted_clip.weighting.chunks import ChunkLayout
from weighted_clip.weighting.encoders import Encoders
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading import read_prompt
from weighted_clip.weighting.syntax import SYNTAXES
from weighted_clip.weighting.view import view

NODES = ruler_nodes(NODE_CLASS_MAPPINGS)
SMALL = TextConfig(hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=64)
PROMPT = "a (red:1.2) cat, " * 100
"""400 tokens."""


def write(path: Path, *, positions: int, tower: str = "", hidden_dim: int = 64) -> Path:
    config = replace(SMALL, context_length=positions, hidden_dim=hidden_dim, num_heads=hidden_dim // 64)
    tensors = hugging_face_tensors(seeded_text_model(config))
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({tower + key: tensor for key, tensor in tensors.items()}, path)
    return path


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The host's folder of models."""
    paths = ModuleType("folder_paths")

    def get_full_path(folder: str, name: str) -> str | None:
        path = tmp_path / folder / name
        return str(path) if path.is_file() else None

    paths.__dict__.update(get_full_path=get_full_path, get_filename_list=lambda kind: [])
    monkeypatch.setitem(routes.sys.modules, "folder_paths", paths)
    return tmp_path


@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize("positions", [134, 248])
def test_chunks_are_those_of_an_encoder_of_that_length(syntax: str, positions: int) -> None:
    (found,) = inspect({"text": PROMPT, "syntax": syntax}, positions=positions)["views"]
    options = EncodeOptions(syntax=syntax)
    layout = ChunkLayout(length=positions)
    expected = view(read_prompt(PROMPT, options, default_tokenizer(), layout))
    assert {**found, "encodings": ""} == expected
    assert {chunk["capacity"] for chunk in found["chunks"]} == {positions - 2}
    encoder = Encoders.of_models({"clip_l": seeded_text_model(replace(SMALL, context_length=positions))})
    read = encoder.prepare([PROMPT], options).reads["clip_l"][0]
    assert [chunk["num_tokens"] for chunk in found["chunks"]] == [chunk.num_content for chunk in read.chunks]


def test_nothing_changes_for_77_positions() -> None:
    request = {"text": PROMPT, "syntax": "a1111", "scheme": "masked_blend"}
    assert inspect(request) == inspect(request, positions=77)
    assert [chunk["capacity"] for chunk in inspect(request)["views"][0]["chunks"]] == [75] * 6


def test_encodings_are_counted_in_longer_chunks_up_to_a_bound() -> None:
    request = {"text": "a (red:0.5) cat, (small:0.3) and (old:0.8)", "scheme": "masked_blend"}
    told = [inspect(request, positions=positions)["views"][0]["encodings"] for positions in (77, 248, 1025)]
    assert told == ["4 encodings", "4 encodings", ""]


def test_the_files_tell_how_long_chunks_are(models: Path) -> None:
    write(models / "text_encoders" / "long.safetensors", positions=248)
    write(models / "text_encoders" / "short.safetensors", positions=77)
    write(models / "text_encoders" / "g.safetensors", positions=77, hidden_dim=1280)
    write(models / "checkpoints" / "sd.safetensors", positions=134, tower="cond_stage_model.transformer.")
    (models / "text_encoders" / "old.pt").write_bytes(b"pickled")
    (models / "text_encoders" / "cut.safetensors").write_bytes(b"cut")
    for files, positions in (
        (["text_encoders/long.safetensors"], 248),
        (["text_encoders/short.safetensors"], 77),
        (["checkpoints/sd.safetensors"], 134),
        # the first tower's, in whatever order the loader has them, as in the view of a run
        (["text_encoders/g.safetensors", "text_encoders/long.safetensors"], 248),
        (["text_encoders/g.safetensors"], 77),
        (["text_encoders/old.pt"], 77),
        (["text_encoders/cut.safetensors"], 77),
        (["text_encoders/none.safetensors"], 77),
        (["text_encoders/long.safetensors\0"], 77),
        (["loras/long.safetensors"], 77),
        (["long.safetensors"], 77),
        ([], 77),
    ):
        assert routes.positions_in(files) == positions, files


def test_a_file_that_was_replaced_is_read_again(models: Path) -> None:
    path = write(models / "text_encoders" / "one.safetensors", positions=248)
    assert routes.positions_in(["text_encoders/one.safetensors"]) == 248
    path.unlink()
    assert routes.positions_in(["text_encoders/one.safetensors"]) == 77
    write(path, positions=134)
    assert routes.positions_in(["text_encoders/one.safetensors"]) == 134


def test_a_request_names_the_files(models: Path) -> None:
    write(models / "text_encoders" / "long.safetensors", positions=248)
    asked = {"node": "WeightedCLIPTextEncode", "text": PROMPT, "values": {}}
    answers = [
        json.loads(routes._read(json.dumps(request).encode(), NODES))["views"][0]
        for request in (asked, {**asked, "files": ["text_encoders/long.safetensors"]})
    ]
    assert [[chunk["capacity"] for chunk in answer["chunks"]] for answer in answers] == [[75] * 6, [246] * 2]


@pytest.mark.parametrize("files", ["a", None, 1, {}, [1], ["a"] * (MAX_FILES + 1), [["a"]]])
def test_other_names_are_refused(files: object) -> None:
    asked = {"node": "WeightedCLIPTextEncode", "text": "a", "values": {}, "files": files}
    assert request_of(asked, NODES)
    with pytest.raises(RequestError, match="files must be a list of at most 4 strings, got "):
        files_of(asked)


def test_a_file_without_rights_is_no_error(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(models / "text_encoders" / "one.safetensors", positions=248)

    def stat(path: Path) -> SimpleNamespace:
        raise PermissionError(13, "denied", str(path))

    monkeypatch.setattr(routes, "Path", lambda path: SimpleNamespace(stat=lambda: stat(path)))
    assert routes.positions_in(["text_encoders/one.safetensors"]) == 77
