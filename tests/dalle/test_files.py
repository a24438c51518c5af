"""Files of discrete VAEs: there and back, OpenAI's pickles converted without their code, and what is refused."""

from __future__ import annotations

import json
import os
import sys
from collections import OrderedDict
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from weighted_clip.commands.program import main
from weighted_clip.dalle.files import DVAEFileError, load_dvae, save_dvae
from weighted_clip.dalle.published import read_published

from ..libraries import is_torch
from .models import TINY, TINY_SMALL, pictures, reference, seeded

needs_safe_globals = pytest.mark.skipif(not is_torch("2.5"), reason="this torch has no list of allowed globals")

# ---- safetensors


@pytest.mark.parametrize("config", [TINY, TINY_SMALL], ids=["dall-e", "small"])
def test_a_model_that_is_written_and_read_is_the_same(config: object, tmp_path: Path) -> None:
    model = seeded(config)
    save_dvae(model, tmp_path / "dvae.safetensors", {"by": "a test"})
    again = load_dvae(tmp_path / "dvae.safetensors")
    assert again.config == config
    images = pictures(2, 32, 32)
    assert torch.equal(again.tokens(images), model.tokens(images))
    assert torch.equal(again.images(model.tokens(images)), model.images(model.tokens(images)))
    assert not any(parameter.requires_grad for parameter in again.parameters())
    with safe_open(tmp_path / "dvae.safetensors", framework="pt") as file:
        assert file.metadata()["by"] == "a test"
    wide = load_dvae(tmp_path / "dvae.safetensors", dtype=torch.float64)
    assert wide.images(model.tokens(images)).dtype == torch.float64


def written(folder: Path, change: object = None, **metadata: str) -> Path:
    model, path = seeded(TINY_SMALL), folder / "dvae.safetensors"
    save_dvae(model, path)
    with safe_open(path, framework="pt") as file:
        tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
        about = file.metadata()
    if change is not None:
        change(tensors)
    save_file(tensors, path, {key: value for key, value in (about | metadata).items() if value})
    return path


def config_with(**changes: object) -> str:
    return json.dumps({**vars(TINY_SMALL), **changes})


@pytest.mark.parametrize(
    ("change", "metadata", "message"),
    [
        (lambda tensors: tensors.pop("decoder.up.bias"), {}, "key 'decoder.up.bias' is missing"),
        (lambda tensors: tensors.update(x=torch.zeros(1)), {}, "key 'x' is no part of a dVAE"),
        (
            lambda tensors: tensors.update({"encoder.input.bias": torch.zeros(9)}),
            {},
            r"'encoder.input.bias' has shape \[9\], expected \[8\] by the sizes in its metadata",
        ),
        (lambda tensors: tensors["encoder.input.bias"].fill_(torch.nan), {}, "values that are NaN or infinite"),
        (lambda tensors: tensors.update({"encoder.input.bias": torch.ones(8).int()}), {}, "holds I32, expected one of"),
        (None, {"format": ""}, "no dVAE of ours.*python run.py convert-dvae"),
        (None, {"config": "[1"}, "the sizes in its metadata cannot be used"),
        (None, {"config": "{}"}, "expected the entries architecture, hidden_dim"),
        (None, {"config": config_with(vocab_size=10**9)}, "vocab_size must be a whole number from 2 to 65536"),
        (None, {"config": config_with(hidden_dim="16")}, "hidden_dim must be a whole number"),
    ],
)
def test_files_that_cannot_be_used_are_refused_by_name(
    tmp_path: Path, change: object, metadata: dict[str, str], message: str
) -> None:
    with pytest.raises(DVAEFileError, match=rf"(?s)dvae\.safetensors.*{message}"):
        load_dvae(written(tmp_path, change, **metadata))


@pytest.mark.parametrize("name", ["encoder.pkl", "decoder.PT", "dvae.ckpt"])
def test_a_pickle_is_refused_unopened_and_the_command_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()  # which no reader could open
    with pytest.raises(DVAEFileError, match=r"can run code. Convert it first: python run.py convert-dvae ENCODER"):
        load_dvae(tmp_path / name)


def test_a_missing_file_and_a_broken_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DVAEFileError, match="there is no such file"):
        load_dvae(tmp_path / "dvae.safetensors")
    (tmp_path / "dvae.safetensors").write_bytes(b"no file")
    with pytest.raises(DVAEFileError, match="not a readable safetensors file"):
        load_dvae(tmp_path / "dvae.safetensors")


# ---- OpenAI's pickles


@needs_safe_globals
def test_openais_pickled_modules_are_converted_without_their_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    halves = reference(TINY)
    model = seeded(TINY)
    paths = [tmp_path / "encoder.pkl", tmp_path / "decoder.pkl"]
    for half, ours, path in zip(halves, (model.encoder, model.decoder), paths, strict=True):
        half.load_state_dict(ours.state_dict())
        torch.save(half, path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "dall_e"]:
        monkeypatch.setitem(sys.modules, name, None)  # from here on it cannot be imported
    out = tmp_path / "dvae.safetensors"
    assert main(["convert-dvae", *map(str, paths), str(out)]) == 0
    assert "512 tokens, 8 pixels along each side" in capsys.readouterr().out
    again = load_dvae(out)
    assert again.config == TINY
    ours, theirs = model.state_dict(), again.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert main(["convert-dvae", *map(str, paths), str(out)]) == 1
    assert "is there already" in capsys.readouterr().err
    out.write_bytes(b"mine")
    monkeypatch.setattr("weighted_clip.commands.model_files.check_new_file", lambda path: None)
    assert main(["convert-dvae", *map(str, paths), str(out)]) == 1  # as if it had come since
    assert f"{out} cannot be written: File exists" in capsys.readouterr().err
    assert out.read_bytes() == b"mine"
    assert main(["convert-dvae", *map(str, reversed(paths)), str(tmp_path / "b.safetensors")]) == 1
    assert "decoder.pkl: it holds Decoder, expected dall_e's Encoder" in capsys.readouterr().err


class Hostile:
    """Writes a file when it is unpickled by a reader that trusts it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


class Evaluating(Hostile):
    def __reduce__(self) -> tuple[object, ...]:
        return eval, (f"__import__('os').mkdir({str(self.path)!r})",)


def stand_in(module: str, name: str, **attributes: object) -> object:
    """An object that is pickled as one of a class of this name."""
    holder = sys.modules.setdefault(module, ModuleType(module))
    kind = type(name, (), {"__module__": module})
    setattr(holder, name, kind)
    one = kind()
    vars(one).update(attributes)
    return one


@needs_safe_globals
@pytest.mark.parametrize("kind", [Hostile, Evaluating])
@pytest.mark.parametrize("is_hidden", [False, True], ids=["bare", "within an encoder"])
def test_a_hostile_pickle_is_refused_and_runs_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: type[Hostile],
    is_hidden: bool,
) -> None:
    ran, path = tmp_path / "ran", tmp_path / "encoder.pkl"
    given: object = kind(ran)
    if is_hidden:
        for name in ("dall_e", "dall_e.encoder"):  # a pickler imports what a package is in first
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        given = stand_in("dall_e.encoder", "Encoder", _modules=OrderedDict(x=given))
    torch.save(given, path)
    assert main(["convert-dvae", str(path), str(path), str(tmp_path / "out.safetensors")]) == 1
    told = capsys.readouterr().err
    assert "encoder.pkl: refused, because it is not made of the parts of OpenAI's dVAE alone" in told
    assert "add_safe_globals" not in told
    assert len(told.splitlines()) == 1
    assert not ran.exists()
    assert not (tmp_path / "out.safetensors").exists()
    torch.load(path, weights_only=False)  # the file is what it is said to be
    assert ran.exists()


@needs_safe_globals
def test_a_module_of_torch_that_is_not_on_the_list_is_refused(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "encoder.pkl")
    with pytest.raises(DVAEFileError, match=r"refused.*torch\.nn.modules\.linear\.Linear"):
        read_published(tmp_path / "encoder.pkl", tmp_path / "encoder.pkl")


@needs_safe_globals
@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({}, "there is no convolution 'encoder.blocks.output.conv.w'"),
        ({"_parameters": [1]}, "_parameters of .* is no dict by names"),
        ({"_parameters": {"w": "text"}}, "w is no tensor of numbers"),
        ({"_parameters": {"w": torch.tensor([torch.inf])}}, "w holds values that are NaN or infinite"),
        ({"_modules": {"blocks": 3}}, r"blocks\. is no module of OpenAI's"),
    ],
)
def test_a_file_of_allowed_parts_that_is_no_dvae_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attributes: dict[str, object], message: str
) -> None:
    for half in ("Encoder", "Decoder"):
        module = f"dall_e.{half.lower()}"
        for name in ("dall_e", module):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        torch.save(stand_in(module, half, **attributes), tmp_path / f"{half}.pkl")
    with pytest.raises(DVAEFileError, match=message):
        read_published(tmp_path / "Encoder.pkl", tmp_path / "Decoder.pkl")


@needs_safe_globals
def test_what_is_no_pickle_or_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "encoder.pkl"
    with pytest.raises(DVAEFileError, match="there is no such file"):
        read_published(path, path)
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(DVAEFileError, match="no whole file of OpenAI's"):
        read_published(path, path)
    torch.save(nn.ReLU(), path, _use_new_zipfile_serialization=False)
    with pytest.raises(DVAEFileError, match=r"no zip file, as PyTorch has written since 1\.6"):
        read_published(path, path)
