"""Model files there and back: discrete VAEs, priors and whole models; what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from weighted_clip.studio.dalle.config import PriorConfig
from weighted_clip.studio.dalle.full_model import DALLE, DALLE_FORMAT, load_dalle, save_dalle
from weighted_clip.studio.dalle.pieces import clip_pieces
from weighted_clip.studio.dalle.prior import Prior
from weighted_clip.studio.dalle.prior_file import PRIOR_FORMAT
from weighted_clip.studio.dalle.weight_files import DVAE_FORMAT, DVAEFileError, Format

from .models import PRIOR, TINY, TINY_SMALL, pictures, seeded, tiny_dalle

Tensors = dict[str, torch.Tensor]
Change = Callable[[Tensors], object] | None
CAPTION = "a small red ring"


class Kind(NamedTuple):
    format: Format[Any]
    make: Callable[[], nn.Module]


KINDS = {
    "dvae": Kind(DVAE_FORMAT, lambda: seeded(TINY_SMALL)),
    "OpenAI's dvae": Kind(DVAE_FORMAT, lambda: seeded(TINY)),
    "prior": Kind(PRIOR_FORMAT, lambda: tiny_dalle().prior),
    "dalle": Kind(DALLE_FORMAT, tiny_dalle),
}


def described(model: Any) -> list[object]:
    """All that a model is, but its weights."""
    if isinstance(model, DALLE):
        return [model.prior.config, model.dvae.config, model.pieces.merges]
    return [model.config]


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_is_written_and_read_is_the_same(kind: str, tmp_path: Path) -> None:
    (form, make), path = KINDS[kind], tmp_path / "model.safetensors"
    model = make()
    form.save(model, path, {"by": "a test"})
    again = form.load(path)
    assert described(again) == described(model)
    ours, theirs = model.state_dict(), again.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert not again.training
    assert not any(parameter.requires_grad for parameter in again.parameters())
    wide = form.load(path, dtype=torch.float64)
    assert {tensor.dtype for tensor in wide.state_dict().values()} == {torch.float64}
    with safe_open(path, framework="pt") as file:
        assert file.metadata()["by"] == "a test"


def test_clips_pieces_are_not_written_out(tmp_path: Path) -> None:
    pieces = clip_pieces()
    sizes = PriorConfig(**{**vars(PRIOR), "text_vocab_size": pieces.vocab_size})
    save_dalle(DALLE(Prior(sizes), seeded(TINY_SMALL), pieces), tmp_path / "dalle.safetensors")
    with safe_open(tmp_path / "dalle.safetensors", framework="pt") as file:
        assert file.metadata()["merges"] == "clip"
    assert load_dalle(tmp_path / "dalle.safetensors").pieces.merges == pieces.merges


# ---- what is refused


def written(kind: str, path: Path, change: Change, metadata: dict[str, str]) -> Path:
    """A file of which tensors or entries are changed; an empty entry is left out."""
    KINDS[kind].format.save(KINDS[kind].make(), path)
    with safe_open(path, framework="pt") as file:
        tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
        about = file.metadata()
    if change is not None:
        change(tensors)
    save_file(tensors, path, {key: value for key, value in (about | metadata).items() if value})
    return path


def dvae_with(**changes: object) -> dict[str, str]:
    return {"config": json.dumps({**vars(TINY_SMALL), **changes})}


def prior_with(**changes: object) -> dict[str, str]:
    return {"prior": json.dumps({**vars(PRIOR), **changes})}


@pytest.mark.parametrize(
    ("kind", "change", "metadata", "message"),
    [
        ("dvae", lambda tensors: tensors.pop("decoder.up.bias"), {}, "key 'decoder.up.bias' is missing"),
        ("dvae", lambda tensors: tensors.update(x=torch.zeros(1)), {}, "key 'x' is no part of a dVAE"),
        (
            "dvae",
            lambda tensors: tensors.update({"encoder.input.bias": torch.zeros(9)}),
            {},
            r"'encoder.input.bias' has shape \[9\], expected \[8\] by the sizes in its metadata",
        ),
        ("dvae", lambda tensors: tensors["encoder.input.bias"].fill_(torch.nan), {}, "values that are NaN or infinite"),
        (
            "dvae",
            lambda tensors: tensors.update({"encoder.input.bias": torch.ones(8).int()}),
            {},
            "holds I32, expected one of",
        ),
        ("dvae", None, {"format": ""}, "no dVAE of ours.*python run.py convert-dvae"),
        ("dvae", None, {"config": "[1"}, "the sizes in its metadata cannot be used"),
        ("dvae", None, {"config": "{}"}, "expected the entries architecture, hidden_dim"),
        ("dvae", None, dvae_with(vocab_size=10**9), "vocab_size must be a whole number from 2 to 65536"),
        ("dvae", None, dvae_with(hidden_dim="16"), "hidden_dim must be a whole number"),
        ("prior", None, {"format": ""}, "this is no prior of ours: its metadata has no sizes of one.*convert-rudalle"),
        ("prior", None, {"prior": '{"rows": 3}'}, "the sizes in its metadata cannot be used: expected the entries"),
        ("dalle", lambda tensors: tensors.pop("prior.image_head.bias"), {}, "key 'prior.image_head.bias' is missing"),
        ("dalle", lambda tensors: tensors.update(x=torch.zeros(1)), {}, "key 'x' is no part of a DALL·E"),
        ("dalle", lambda tensors: tensors["dvae.encoder.input.bias"].fill_(torch.nan), {}, "values that are NaN or"),
        ("dalle", None, {"format": "dvae"}, "this is no DALL·E of ours"),
        ("dalle", None, {"merges": ""}, "this is no DALL·E of ours"),
        ("dalle", None, {"merges": "a b c"}, "its merges have a line that is no pair: 'a b c'"),
        ("dalle", None, {"merges": "ab c"}, r"merge \('ab', 'c'\) joins symbols"),
        ("dalle", None, {"merges": "clip"}, "the prior knows 530 pieces of text, the merges make 49406"),
        ("dalle", None, {"prior": "[1"}, "the sizes in its metadata cannot be used"),
        ("dalle", None, {"prior": "{}"}, "expected the entries activation, columns"),
        ("dalle", None, prior_with(num_layers=10**9), "num_layers must be a whole number from 1 to 256"),
        ("dalle", None, prior_with(activation=["gelu"]), "activation must be one of quick_gelu, gelu"),
        ("dalle", None, prior_with(variant={}), "variant must be one of dalle, rudalle-v2"),
        ("dalle", None, prior_with(rows=10**4), "at most 5,120 are allowed"),
        ("dalle", None, prior_with(kernel_size=20_001), "kernel_size must be at most 11 for 3 x 4 image tokens"),
        ("dalle", None, prior_with(kernel_size="9" * 5000), r"from 1 to 131072, got '9{79}…$"),
        ("dalle", None, prior_with(hidden_dim=32), r"has shape .*, expected \[.*32\] by the sizes in its metadata"),
    ],
)
def test_files_that_cannot_be_used_are_refused_by_name(
    kind: str, change: Change, metadata: dict[str, str], message: str, tmp_path: Path
) -> None:
    path = written(kind, tmp_path / "model.safetensors", change, metadata)
    with pytest.raises(DVAEFileError, match=message) as caught:
        KINDS[kind].format.load(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("name", ["encoder.pkl", "decoder.PT", "dvae.ckpt", "model.bin"])
@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("dvae", r"can run code\. Convert it first: python run\.py convert-dvae ENCODER"),
        ("prior", r"can run code\. Convert ru-DALL-E's first: python run\.py convert-rudalle"),
        ("dalle", "can run code$"),
    ],
)
def test_a_pickle_is_refused_unopened_and_the_command_named(kind: str, advice: str, tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()  # which no reader could open
    with pytest.raises(DVAEFileError, match=rf"{name}: pickled models are not loaded.*{advice}"):
        KINDS[kind].format.load(tmp_path / name)


@pytest.mark.parametrize("kind", ["dvae", "prior", "dalle"])
def test_a_missing_file_and_a_broken_one_are_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(DVAEFileError, match=r"x\.safetensors: there is no such file"):
        KINDS[kind].format.load(path)
    path.write_bytes(bytes(range(90)))
    with pytest.raises(DVAEFileError, match=r"x\.safetensors: not a readable safetensors file"):
        KINDS[kind].format.load(path)


def test_no_mask_is_made_of_sizes_that_are_not_those_of_the_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written("dalle", tmp_path / "model.safetensors", None, prior_with(rows=2, columns=2_500))
    monkeypatch.setattr(Prior, "_mask", lambda *_: pytest.fail("made a mask"))
    with pytest.raises(DVAEFileError, match=r"has shape .*, expected \[2, 16\] by the sizes in its metadata"):
        load_dalle(path)


def test_parts_that_do_not_fit_each_other_are_refused() -> None:
    prior, pieces = Prior(PRIOR), tiny_dalle().pieces
    with pytest.raises(ValueError, match="the prior knows 16 image tokens, the dVAE 512"):
        DALLE(prior, seeded(TINY), pieces)
    with pytest.raises(ValueError, match=r"the prior knows 530 pieces of text, the merges make 49406"):
        DALLE(prior, seeded(TINY_SMALL), clip_pieces())


# ---- a whole model


def test_images_differ_by_caption_and_seed() -> None:
    model = tiny_dalle()
    tokens = model.tokens(CAPTION, range(4))
    assert len({tuple(one.flatten().tolist()) for one in tokens}) == 4
    assert not torch.equal(model.tokens("a large blue cross", range(4)), tokens)
    assert model.prior.mask(0).dtype == torch.bool


def test_a_caption_that_is_too_long_is_refused_and_quoted() -> None:
    with pytest.raises(ValueError, match=r"the caption 'x x x .*' has 13 pieces: this model reads at most 12"):
        tiny_dalle().tokens("x " * 13, [0])


def test_the_top_of_an_image_is_kept() -> None:
    model, [image] = tiny_dalle(), pictures(1, 12, 16)
    given = model.prefix(image, 2)
    assert torch.equal(given, model.dvae.tokens(image[None])[0, :2].flatten())
    tokens = model.tokens(CAPTION, range(3), prefix=given)
    assert torch.equal(tokens[:, :2], given.view(1, 2, 4).expand(3, -1, -1))
    assert model.prefix(image, 0).shape == (0,)
    with pytest.raises(ValueError, match="an image of 24 x 12 pixels cannot be completed: this model draws 16 x 12"):
        model.prefix(pictures(1, 12, 24)[0], 2)
    with pytest.raises(ValueError, match="from 0 to 3 rows of an image can be given, got 4"):
        model.prefix(image, 4)
