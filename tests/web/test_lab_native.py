"""The lab's own encoder: lazy, loaded once, with the numbers of the encoder alone; and the places it is found in."""

import importlib
import os
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from weighted_clip.encoder.files.checkpoint import load_text_models, seeded_text_model
from weighted_clip.encoder.files.tensor_file import CheckpointError
from weighted_clip.encoder.models.config import CLIP_L, TextConfig
from weighted_clip.encoder.models.prefix import encoders_for
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.studio.commands.program import main
from weighted_clip.web.lab import access, native, server
from weighted_clip.web.lab import model_folders as places
from weighted_clip.web.lab.model import LabError, LabModel
from weighted_clip.web.lab.native import RANDOM_WARNING, LoadSettings, NativeLabModel, Shelf, file_model, random_model
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.towers import layout_of

from ..door import encode_prompt

L = TextConfig(hidden_dim=64, num_heads=1, num_layers=3, mlp_dim=128)
G = TextConfig(hidden_dim=128, num_heads=2, num_layers=3, mlp_dim=128, activation="gelu", projection_dim=96, pad_id=0)


def save_towers(path: Path, **configs: TextConfig) -> Path:
    """Small towers as ComfyUI saves them."""
    tensors = {}
    for tower, config in configs.items():
        for name, tensor in seeded_text_model(config).state_dict().items():
            place = "" if name.startswith("text_projection") else "text_model."
            tensors[f"text_encoders.{tower}.transformer.{place}{name}"] = tensor
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)
    return path


@pytest.fixture(scope="module")
def sdxl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_towers(tmp_path_factory.mktemp("sdxl") / "xl.safetensors", clip_l=L, clip_g=G)


# --- the model


@pytest.mark.parametrize("clip_skip", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_encodes_as_the_encoder_alone(sdxl: Path, clip_skip: int, dtype: torch.dtype) -> None:
    model: LabModel = file_model(sdxl, LoadSettings(clip_skip=clip_skip, dtype=dtype))
    options = EncodeOptions(syntax="a1111", scheme="masked_blend")
    found = model.encode("a (cat:0.5)", options)
    encoders = encoders_for(load_text_models(sdxl, dtype=dtype)[0], clip_skip)[1]
    assert list(found) == list(model.readers()) == ["clip_l", "clip_g"]
    for name, encoder in encoders.items():
        read = read_prompt("a (cat:0.5)", options, default_tokenizer(), layout_of(encoder.config))
        expected = encode_prompt(read, encoder, default_tokenizer())
        assert torch.equal(found[name].hidden, expected.hidden)
        assert torch.equal(found[name].pooled, expected.pooled)
    assert model.title.startswith("xl.safetensors (")
    assert model.title.endswith(", clip skip 3") == (clip_skip == 3)
    assert model.warning == ""


def test_weights_are_loaded_once_and_only_to_encode(sdxl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[Path] = []

    def load(path: Path, **others: object):
        loads.append(path)
        return load_text_models(path, **others)

    monkeypatch.setattr(native, "load_text_models", load)
    model = file_model(sdxl, LoadSettings())
    assert [reader.layout.pad_id for reader in model.readers().values()] == [49407, 0]
    assert loads == []
    threads = [threading.Thread(target=model.encode, args=("a cat", EncodeOptions())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loads == [sdxl]


def test_what_is_wrong_with_the_weights_is_told_when_they_are_read(tmp_path: Path) -> None:
    tensors = {f"text_model.{name}": tensor for name, tensor in seeded_text_model(L).state_dict().items()}
    tensors["text_model.final_layer_norm.weight"][3] = float("nan")
    save_file(tensors, tmp_path / "broken.safetensors")
    model = file_model(tmp_path / "broken.safetensors", LoadSettings())
    assert list(model.readers()) == ["clip_l"]
    for _ in range(2):
        with pytest.raises(LabError, match=r"broken\.safetensors .*cannot be loaded: .*final_layer_norm"):
            model.encode("a", EncodeOptions())
    with pytest.raises(CheckpointError, match="there is no such file"):
        file_model(tmp_path / "nowhere.safetensors", LoadSettings())


def test_weights_that_were_refused_are_read_again_only_when_they_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[Path] = []

    def load(path: Path, **others: object):
        loads.append(path)
        return load_text_models(path, **others)

    monkeypatch.setattr(native, "load_text_models", load)
    path = save_towers(tmp_path / "l.safetensors", clip_l=L)
    whole = path.read_bytes()
    path.write_bytes(whole[:-4] + b"\xff\xff\xff\x7f")  # the last number is NaN
    os.utime(path, ns=(10**18, 10**18))
    model = file_model(path, LoadSettings())
    for _ in range(3):
        with pytest.raises(LabError, match=r"l\.safetensors.* cannot be loaded: .* NaN"):
            model.encode("a cat", EncodeOptions())
    assert len(loads) == 1
    path.write_bytes(whole)
    assert model.encode("a cat", EncodeOptions())["clip_l"].hidden.isfinite().all()


def test_random_weights_say_so() -> None:
    model = random_model(LoadSettings(), config=L)
    assert model.warning == RANDOM_WARNING
    assert "random weights, seed 0" in model.title
    assert torch.equal(
        model.encode("a", EncodeOptions())["clip_l"].hidden,
        random_model(LoadSettings(), config=L).encode("a", EncodeOptions())["clip_l"].hidden,
    )
    assert random_model(LoadSettings()).readers()["clip_l"].layout == layout_of(CLIP_L)


@pytest.mark.parametrize("clip_skip", [0, 5])
def test_clip_skip_is_checked_before_anything_is_loaded(clip_skip: int) -> None:
    with pytest.raises(ValueError, match=f"clip_skip {clip_skip} is out of range"):
        random_model(LoadSettings(clip_skip=clip_skip), config=L)


def test_options_out_of_range_are_no_error_of_loading() -> None:
    model = NativeLabModel("small", {"clip_l": L}, lambda: {"clip_l": seeded_text_model(L)}, LoadSettings())
    with pytest.raises(ValueError, match="exactly one token"):
        model.encode("a", EncodeOptions(filler="two words"))


# --- folders of models


def test_a_folder_of_comfyui_is_looked_through(tmp_path: Path) -> None:
    models = tmp_path / "ComfyUI" / "models"
    save_file({"encoder.block.0.weight": torch.zeros(2)}, make(models / "text_encoders" / "a_t5.safetensors"))
    encoder = save_towers(models / "clip" / "clip_l.safetensors", clip_l=L)
    checkpoint = save_towers(models / "checkpoints" / "sub" / "xl.safetensors", clip_l=L, clip_g=G)
    save_file({"clip_l": torch.full((2, 64), 0.1)}, make(models / "embeddings" / "style.safetensors"))
    (models / "checkpoints" / "old.ckpt").write_bytes(b"no")
    found = places.model_folder(models)
    assert list(found.files) == [
        "text_encoders/a_t5.safetensors",
        "clip/clip_l.safetensors",
        "checkpoints/sub/xl.safetensors",
    ]
    assert found.embeddings == (models / "embeddings",)
    assert places.chosen_file(found, None) == encoder
    for name in ("xl", "xl.safetensors", "checkpoints/sub/xl.safetensors", "checkpoints\\sub\\xl"):
        assert places.chosen_file(found, name) == checkpoint
    outside = places.model_folder(tmp_path / "ComfyUI")
    assert list(outside.files.values()) == list(found.files.values())
    assert outside.embeddings == found.embeddings
    model = file_model(encoder, LoadSettings(found.embeddings))
    assert [row[2] for row in rows_of(model, "embedding:style")] == ["style[0]", "style[1]"]


def test_a_folder_of_the_webui_is_looked_through(tmp_path: Path) -> None:
    checkpoint = save_towers(tmp_path / "models" / "Stable-diffusion" / "sd.safetensors", clip_l=L)
    (tmp_path / "embeddings").mkdir()
    for folder in (tmp_path, tmp_path / "models"):
        found = places.model_folder(folder)
        assert list(found.files.values()) == [checkpoint]
        assert [path.resolve() for path in found.embeddings] == [(tmp_path / "embeddings").resolve()]


def test_folders_without_models_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere: there is no such folder"):
        places.model_folder(tmp_path / "nowhere")
    (tmp_path / "pictures").mkdir()
    with pytest.raises(ValueError, match=r"none of text_encoders, .* in it are pictures"):
        places.model_folder(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ValueError, match=r"there is no \.safetensors file in checkpoints"):
        places.model_folder(tmp_path)
    save_file({"lora_a": torch.zeros(2)}, tmp_path / "checkpoints" / "one.safetensors")
    with pytest.raises(ValueError, match=r"no file in it has a CLIP text encoder. checkpoints/one.safetensors: .*LoRA"):
        places.chosen_file(places.model_folder(tmp_path), None)


def test_names_that_fit_no_file_or_several_are_explained(tmp_path: Path) -> None:
    for name in ("checkpoints/a/x", "checkpoints/b/x", "clip/y"):
        make(tmp_path / f"{name}.safetensors").touch()
    found = places.model_folder(tmp_path)
    with pytest.raises(
        ValueError, match=r"--model x: there are several .*checkpoints/a/x\.safetensors, checkpoints/b/x"
    ):
        places.chosen_file(found, "x")
    with pytest.raises(ValueError, match=r"--model z: not in .*; there are clip/y\.safetensors, checkpoints/a/x"):
        places.chosen_file(found, "z")
    for number in range(30):
        (tmp_path / "clip" / f"n{number}.safetensors").touch()
        if number == 16:  # 20 in all
            with pytest.raises(ValueError, match=r"checkpoints/b/x\.safetensors$"):
                places.chosen_file(places.model_folder(tmp_path), "z")
    with pytest.raises(ValueError, match=r"and 13 more$"):
        places.chosen_file(places.model_folder(tmp_path), "z")


# --- Hugging Face


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """huggingface_hub with an empty cache and no network."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    constants = importlib.import_module("huggingface_hub.constants")
    errors = importlib.import_module("huggingface_hub.errors")

    def unreachable(*names: str, revision: str) -> str:
        raise errors.LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
    return huggingface_hub


def test_nothing_is_fetched_without_being_asked_for(hub) -> None:
    assert places.hub_file(download=False) is None
    with pytest.raises(
        ValueError, match=r"--download: model.safetensors of openai/.* cannot be fetched: no connection"
    ):
        places.hub_file(download=True)


def in_cache(folder: Path, revision: str) -> Path:
    """Path of a file of a revision in Hugging Face's cache."""
    return make(folder / "models--openai--clip-vit-large-patch14" / "snapshots" / revision / "model.safetensors")


def test_what_is_in_the_cache_is_taken_from_there_and_of_one_revision_only(hub, tmp_path: Path) -> None:
    other = in_cache(tmp_path, "0" * 40)
    other.touch()
    make(other.parents[2] / "refs" / "main").write_text("0" * 40)
    assert places.hub_file(download=False) is None
    cached = in_cache(tmp_path, "32bd64288804d66eefd0ccbe215aa642df71cc41")
    cached.touch()
    assert places.hub_file(download=False) == places.hub_file(download=True) == cached


@pytest.mark.parametrize("content", [b"abc", b"abd"])
def test_what_is_fetched_is_of_one_revision_and_checked(
    hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    revisions: list[str] = []

    def fetch(repository: str, name: str, *, revision: str) -> str:
        revisions.append(revision)
        blob = make(tmp_path / "blobs" / "one")
        blob.write_bytes(content)
        path = in_cache(tmp_path, revision)
        path.symlink_to(blob)
        return str(path)

    monkeypatch.setattr(hub, "hf_hub_download", fetch)
    of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180's example
    monkeypatch.setattr(places, "HUB_SHA256", of_abc)
    if content == b"abc":
        assert places.hub_file(download=True) == places.hub_file(download=False)
    else:
        with pytest.raises(
            ValueError, match=rf"--download: model.safetensors .* is not the one .* {of_abc}, .*removed"
        ):
            places.hub_file(download=True)
        assert places.hub_file(download=False) is None
        assert list((tmp_path / "blobs").iterdir()) == []
    assert revisions == ["32bd64288804d66eefd0ccbe215aa642df71cc41"]


# --- the command


class Served(list):
    """Arguments that the command would have served the lab with."""

    def __call__(
        self, source, listening, *, open_browser: bool, is_private: bool, dvae: object, dalle: object, shelf: Shelf
    ) -> None:
        assert dvae is dalle is None  # none was asked for
        assert not is_private
        assert shelf.source() is source()
        self.append((source(), listening.getsockname()[1], open_browser))


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    served = Served()
    monkeypatch.setattr(server, "serve", served)
    monkeypatch.setattr(places, "hub_file", lambda *, download: None)
    return served


def test_without_a_command_the_lab_starts(served: Served, capsys) -> None:
    assert main([]) == 0
    ((model, port, open_browser),) = served
    assert port in range(access.FIRST_PORT, access.FIRST_PORT + access.NUM_PORTS)
    assert open_browser
    assert model.warning == RANDOM_WARNING
    assert RANDOM_WARNING in capsys.readouterr().err


def test_the_lab_takes_a_file(served: Served, sdxl: Path, capsys) -> None:
    assert main(["lab", "--weights", str(sdxl), "--port", "7900", "--no-browser", "--clip-skip", "2"]) == 0
    ((model, port, open_browser),) = served
    assert (port, open_browser) == (7900, False)
    assert list(model.readers()) == ["clip_l", "clip_g"]
    assert "Weights: xl.safetensors" in capsys.readouterr().out


def test_the_lab_takes_a_folder_and_lists_it(served: Served, tmp_path: Path, capsys) -> None:
    for name in ("one", "two"):
        save_towers(tmp_path / "clip" / f"{name}.safetensors", clip_l=L)
    make(tmp_path / "embeddings" / "style.png").touch()
    assert main(["lab", "--models", str(tmp_path), "--model", "two"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["  clip/one.safetensors", "* clip/two.safetensors"]
    assert served[0][0].title.startswith("two.safetensors")
    assert served[0][0].readers()["clip_l"].embeddings.folders == ((tmp_path / "embeddings").resolve(),)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--weights", "nowhere.safetensors"], "nowhere.safetensors: there is no such file"),
        (["--models", "nowhere"], "--models nowhere: there is no such folder"),
        (["--model", "x"], "--model x: say where it is with --models DIR"),
        (["--embeddings", "nowhere"], "--embeddings nowhere: there is no such folder"),
        (["--clip-skip", "0"], "clip_skip 0 is out of range"),
    ],
)
def test_what_the_lab_cannot_use_is_said(served: Served, arguments: list[str], message: str, capsys) -> None:
    assert main(["lab", *arguments]) == 1
    assert message in capsys.readouterr().err
    assert served == []


def test_only_one_place_for_weights_can_be_named(served: Served, capsys) -> None:
    with pytest.raises(SystemExit):
        main(["lab", "--weights", "a", "--models", "b"])
    assert "not allowed with" in capsys.readouterr().err


def test_what_the_server_cannot_do_is_said(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def serve(source, listening, **others) -> None:
        raise LabError("gradio is not installed")

    monkeypatch.setattr(server, "serve", serve)
    monkeypatch.setattr(places, "hub_file", lambda *, download: None)
    assert main(["lab"]) == 1
    assert "gradio is not installed" in capsys.readouterr().err


def make(path: Path) -> Path:
    """The path, its folder made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def rows_of(model: LabModel, text: str) -> list[list[str | int | float]]:
    from weighted_clip.web.lab.tabs.study import read, token_rows

    return token_rows(read(model, text, EncodeOptions()), 99).rows
