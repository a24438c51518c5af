"""Published weights, converted without their code: OpenAI's pickled modules, ru-DALL-E's tensors; what is refused."""

from __future__ import annotations

import os
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn
from weighted_clip.encoder.models.config import MaskVariant
from weighted_clip.encoder.sparse_masks import column_mask, convolutional_mask, row_mask
from weighted_clip.studio.commands import model_files
from weighted_clip.studio.commands.program import main
from weighted_clip.studio.dalle import published as module
from weighted_clip.studio.dalle.prior_file import load_prior
from weighted_clip.studio.dalle.published import VARIANTS, prior_of, read_published, read_rudalle
from weighted_clip.studio.dalle.weight_files import DVAEFileError, load_dvae

from ..libraries import is_torch
from .models import TINY, reference, seeded
from .rudalle import SIZES, formula_ids, formula_state, their_logits, their_model
from .test_rudalle import both, expected

needs_safe_globals = pytest.mark.skipif(not is_torch("2.5"), reason="this torch has no list of allowed globals")


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
    monkeypatch.setattr("weighted_clip.studio.commands.model_files.check_new_file", lambda path: None)
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


# ---- ru-DALL-E

HEADS = SIZES["num_attention_heads"]
TEXT, SIDE = SIZES["text_seq_length"], SIZES["image_tokens_per_dim"]
State = dict[str, Tensor]


def masks(variant: MaskVariant, dtype: torch.dtype = torch.bool) -> State:
    """Additional entries in a state dict of their model."""
    grid = (SIDE, SIDE)
    return {
        "transformer.row_mask": row_mask(TEXT, grid)[0].to(dtype),
        "transformer.col_mask": column_mask(TEXT, grid)[0].to(dtype),
        "transformer.conv_mask": convolutional_mask(TEXT, grid, variant=variant)[0].to(dtype),
    }


def written(path: Path, state: object) -> Path:
    torch.save(state, path)
    return path


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_rudalle_saves_is_converted_and_gives_its_logits(
    variant: MaskVariant, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = their_model(variant, formula_state())
    given = written(tmp_path / "pytorch_model.bin", model.state_dict())  # masks and all
    out = tmp_path / "rudalle.safetensors"
    assert main(["convert-rudalle", str(given), str(out), "--heads", str(HEADS)]) == 0
    assert f"{variant}, 0.00 billion parameters, 7 layers, 6 positions of text, 8 x 8 image" in capsys.readouterr().out
    theirs = expected(variant, their_logits(model, formula_ids()))
    for mine, other in zip(both(load_prior(out), formula_ids()), theirs, strict=True):
        assert (mine - other).abs().max() <= 1e-5


def test_a_file_that_has_come_meanwhile_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given, out = written(tmp_path / "a.bin", OrderedDict(formula_state())), tmp_path / "b.safetensors"
    out.write_bytes(b"mine")
    monkeypatch.setattr(model_files, "check_new_file", lambda path: None)  # it was not there then
    assert main(["convert-rudalle", str(given), str(out), "--variant", VARIANTS[0], "--heads", str(HEADS)]) == 1
    assert f"{out} cannot be written: File exists" in capsys.readouterr().err
    assert out.read_bytes() == b"mine"


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_every_weight_comes_through_the_file_to_the_bit(
    dtype: torch.dtype, variant: MaskVariant, tmp_path: Path
) -> None:
    state = OrderedDict(formula_state(dtype=dtype))
    given, out = written(tmp_path / "a.bin", state), tmp_path / "b.safetensors"
    assert main(["convert-rudalle", str(given), str(out), "--variant", variant, "--heads", str(HEADS)]) == 0
    again, direct = load_prior(out, dtype=dtype), prior_of(state, variant, HEADS)
    assert again.config == direct.config
    assert again.config.variant == variant
    assert again.config.activation == "gelu_tanh"
    ours, whole = again.state_dict(), direct.state_dict()
    assert ours.keys() == whole.keys()
    assert all(torch.equal(ours[key], whole[key]) and ours[key].dtype == dtype for key in ours)
    # and none is left: all numbers of theirs but one row of version 3, which nothing reads
    count = sum(tensor.numel() for tensor in state.values()) - (SIZES["hidden_size"] if variant == "rudalle-v3" else 0)
    assert sum(tensor.numel() for tensor in ours.values()) == count


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_masks_in_a_file_say_of_which_version_it_is(variant: MaskVariant, dtype: torch.dtype) -> None:
    state = formula_state(1) | masks(variant, dtype)
    assert prior_of(state, num_heads=HEADS).config.variant == variant
    assert prior_of(state, variant, HEADS).config.variant == variant
    [other] = set(VARIANTS) - {variant}
    with pytest.raises(ValueError, match=f"its masks are those of {variant}, not of {other}"):
        prior_of(state, other, HEADS)
    state["transformer.col_mask"] = state["transformer.row_mask"]
    with pytest.raises(ValueError, match="its masks are those of no version of ru-DALL-E"):
        prior_of(state, num_heads=HEADS)
    with pytest.raises(ValueError, match="choose one of rudalle-v2, rudalle-v3"):
        prior_of(formula_state(1), num_heads=HEADS)
    with pytest.raises(ValueError, match="variant must be one of rudalle-v2, rudalle-v3, got 'dalle'"):
        prior_of(formula_state(1), "dalle", HEADS)


def test_the_heads_of_published_widths_are_known() -> None:
    """Malevich and its kin have 16, Kandinsky 60."""
    state = formula_state(1)
    wide = {
        name: torch.zeros([2048 // 32 * size if size % 32 == 0 else size for size in tensor.shape])
        for name, tensor in state.items()
    }
    assert prior_of(wide, "rudalle-v3").config.num_heads == 16
    assert module.HEADS[3840] == 60
    with pytest.raises(ValueError, match="a width of 32 is none of the published models: say how many attention heads"):
        prior_of(state, "rudalle-v3")


def without(state: State, name: str) -> object:
    return {key: tensor for key, tensor in state.items() if key != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s: without(s, "to_logits.0.weight"),
            "there is nothing for 'head_layer_norm.weight'; the file looks inc",
        ),
        (
            lambda s: without(s, "text_pos_embeddings.weight"),
            "there is no matrix 'text_pos_embeddings.weight': this is",
        ),
        (
            lambda s: s | {"transformer.layers.0.attention.bias": torch.zeros(3)},
            r"'transformer.layers.0.attention.bias' is no part",
        ),
        (
            lambda s: s | {"to_logits.0.gain": torch.zeros(32)},
            r"it has something for 'head_layer_norm.gain', which is no part",
        ),
        (
            lambda s: s | {"to_logits.0.bias": torch.zeros(33)},
            r"for 'head_layer_norm.bias' it has shape \[33\], expected \[32\]",
        ),
        (
            lambda s: s | {"image_embeddings.weight": torch.full((13, 32), torch.nan)},
            "'image_embeddings.weight' holds values that",
        ),
        (
            lambda s: s | {"image_embeddings.weight": torch.zeros(13, 32).long()},
            "'image_embeddings.weight' is no tensor of num",
        ),
        (lambda s: s | {"version": 3}, "'version' is no tensor of numbers"),
        (lambda s: list(s.values()), "it holds no tensors by name"),
        (lambda s: {"model": s}, "'model' is no tensor of numbers"),
        (lambda s: {}, "there is no matrix 'text_pos_embeddings.weight'"),
    ],
)
def test_files_of_something_else_are_refused_by_name(
    change: Callable[[State], object], message: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "model.bin", change(formula_state(1)))
    with pytest.raises(DVAEFileError, match=f"model.bin: {message}"):
        read_rudalle(path, "rudalle-v3", HEADS)


def test_a_hostile_file_of_tensors_is_refused_and_runs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = tmp_path / "ran"
    path = written(tmp_path / "model.bin", {**formula_state(1), "more": Hostile(ran)})
    out = tmp_path / "out.safetensors"
    assert main(["convert-rudalle", str(path), str(out), "--variant", "rudalle-v3", "--heads", "4"]) == 1
    told = capsys.readouterr().err
    assert "model.bin: refused, because it holds more than tensors, which could run code" in told
    assert len(told.splitlines()) == 1
    assert not ran.exists()
    assert not out.exists()
    torch.load(path, weights_only=False)  # the file is what it is said to be
    assert ran.exists()


def test_what_is_no_file_of_pytorchs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    with pytest.raises(DVAEFileError, match="there is no such file"):
        read_rudalle(path)
    with pytest.raises(DVAEFileError, match="a folder, a pipe or a device"):
        read_rudalle(tmp_path)
    torch.save(formula_state(1), path, _use_new_zipfile_serialization=False)
    with pytest.raises(DVAEFileError, match="no zip file, as PyTorch has written since"):
        read_rudalle(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "no model")
    with pytest.raises(DVAEFileError, match="no whole file of PyTorch's"):
        read_rudalle(path)
    written(path, formula_state(1))
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(DVAEFileError, match="no whole file of PyTorch's"):
        read_rudalle(path)


def test_the_command_overwrites_nothing_and_asks_for_a_safetensors_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "model.bin", formula_state(1))
    assert main(["convert-rudalle", str(path), str(tmp_path / "out.bin"), "--variant", "rudalle-v2"]) == 1
    assert "out.bin: the name of the file to write must end in .safetensors" in capsys.readouterr().err
    (tmp_path / "out.safetensors").write_bytes(b"mine")
    assert main(["convert-rudalle", str(path), str(tmp_path / "out.safetensors"), "--variant", "rudalle-v2"]) == 1
    assert "is there already" in capsys.readouterr().err
    assert (tmp_path / "out.safetensors").read_bytes() == b"mine"
    assert model_files.VARIANTS == VARIANTS
