"""The whole model: its file there and back and what is refused, captions, and images that are completed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from weighted_clip.dalle.config import PriorConfig
from weighted_clip.dalle.dalle import DALLE, load_dalle, save_dalle
from weighted_clip.dalle.dvae import DVAE
from weighted_clip.dalle.files import DVAEFileError, save_dvae
from weighted_clip.dalle.pieces import clip_pieces
from weighted_clip.dalle.prior import Prior

from .models import PRIOR, TINY, TINY_SMALL, pictures, seeded, tiny_dalle

CAPTION = "a small red ring"


def test_a_model_that_is_written_and_read_is_the_same(tmp_path: Path) -> None:
    model = tiny_dalle()
    save_dalle(model, tmp_path / "dalle.safetensors", {"by": "a test"})
    again = load_dalle(tmp_path / "dalle.safetensors")
    assert (again.prior.config, again.dvae.config, again.pieces.merges) == (PRIOR, TINY_SMALL, model.pieces.merges)
    tokens = model.tokens(CAPTION, range(4))
    assert torch.equal(again.tokens(CAPTION, range(4)), tokens)
    assert torch.equal(again.images(tokens), model.images(tokens))
    assert len({tuple(one.flatten().tolist()) for one in tokens}) == 4
    assert not torch.equal(model.tokens("a large blue cross", range(4)), tokens)
    assert not any(parameter.requires_grad for parameter in again.parameters())
    wide = load_dalle(tmp_path / "dalle.safetensors", dtype=torch.float64)
    assert {parameter.dtype for parameter in wide.parameters()} == {torch.float64}
    assert wide.prior.mask(0).dtype == torch.bool
    with safe_open(tmp_path / "dalle.safetensors", framework="pt") as file:
        assert file.metadata()["by"] == "a test"


def test_clips_pieces_are_not_written_out(tmp_path: Path) -> None:
    pieces = clip_pieces()
    sizes = PriorConfig(**{**vars(PRIOR), "text_vocab_size": pieces.vocab_size})
    save_dalle(DALLE(Prior(sizes), seeded(TINY_SMALL), pieces), tmp_path / "dalle.safetensors")
    with safe_open(tmp_path / "dalle.safetensors", framework="pt") as file:
        assert file.metadata()["merges"] == "clip"
    assert load_dalle(tmp_path / "dalle.safetensors").pieces.merges == pieces.merges


def test_parts_that_do_not_fit_each_other_are_refused() -> None:
    prior, pieces = Prior(PRIOR), tiny_dalle().pieces
    with pytest.raises(ValueError, match="the prior knows 16 image tokens, the dVAE 512"):
        DALLE(prior, seeded(TINY), pieces)
    with pytest.raises(ValueError, match=r"the prior knows 530 pieces of text, the merges make 49406"):
        DALLE(prior, seeded(TINY_SMALL), clip_pieces())


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


def written(folder: Path, change: Callable[[dict[str, torch.Tensor]], object] | None, metadata: dict[str, str]) -> Path:
    path = folder / "dalle.safetensors"
    save_dalle(tiny_dalle(), path)
    with safe_open(path, framework="pt") as file:
        tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
        about = file.metadata()
    if change is not None:
        change(tensors)
    save_file(tensors, path, {key: value for key, value in (about | metadata).items() if value})
    return path


def sizes_with(**changes: Any) -> str:
    return json.dumps({**vars(PRIOR), **changes})


@pytest.mark.parametrize(
    ("change", "metadata", "message"),
    [
        (lambda tensors: tensors.pop("prior.image_head.bias"), {}, "key 'prior.image_head.bias' is missing"),
        (lambda tensors: tensors.update(x=torch.zeros(1)), {}, "key 'x' is no part of a DALL·E"),
        (lambda tensors: tensors["dvae.encoder.input.bias"].fill_(torch.nan), {}, "values that are NaN or infinite"),
        (None, {"format": "dvae"}, "this is no DALL·E of ours"),
        (None, {"merges": ""}, "this is no DALL·E of ours"),
        (None, {"merges": "a b c"}, "its merges have a line that is no pair: 'a b c'"),
        (None, {"merges": "ab c"}, r"merge \('ab', 'c'\) joins symbols"),
        (None, {"merges": "clip"}, "the prior knows 530 pieces of text, the merges make 49406"),
        (None, {"prior": "[1"}, "the sizes in its metadata cannot be used"),
        (None, {"prior": "{}"}, "expected the entries activation, columns"),
        (None, {"prior": sizes_with(num_layers=10**9)}, "num_layers must be a whole number from 1 to 256"),
        (None, {"prior": sizes_with(activation=["gelu"])}, "activation must be one of quick_gelu, gelu"),
        (None, {"prior": sizes_with(variant={})}, "variant must be one of dalle, rudalle-v2"),
        (None, {"prior": sizes_with(rows=10**4)}, "at most 5,120 are allowed"),
        (None, {"prior": sizes_with(kernel_size=20_001)}, "kernel_size must be at most 11 for 3 x 4 image tokens"),
        (None, {"prior": sizes_with(kernel_size="9" * 5000)}, r"from 1 to 131072, got '9{79}$"),
        (None, {"prior": sizes_with(hidden_dim=32)}, r"has shape .*, expected \[.*32\] by the sizes in its metadata"),
    ],
)
def test_files_that_cannot_be_used_are_refused_by_name(
    change: Callable[[dict[str, torch.Tensor]], object] | None, metadata: dict[str, str], message: str, tmp_path: Path
) -> None:
    path = written(tmp_path, change, metadata)
    with pytest.raises(DVAEFileError, match=message) as caught:
        load_dalle(path)
    assert str(path) in str(caught.value)


def test_no_mask_is_made_of_sizes_that_are_not_those_of_the_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, None, {"prior": sizes_with(rows=2, columns=2_500)})
    monkeypatch.setattr(Prior, "_mask", lambda *_: pytest.fail("made a mask"))
    with pytest.raises(DVAEFileError, match=r"has shape .*, expected \[2, 16\] by the sizes in its metadata"):
        load_dalle(path)


def test_pickles_other_models_and_nothing_are_refused(tmp_path: Path) -> None:
    save_dvae(DVAE(TINY_SMALL), tmp_path / "dvae.safetensors")
    (tmp_path / "x.safetensors").write_bytes(b"nothing")
    for name, message in (
        ("dalle.pkl", "pickled models are not loaded"),
        ("dvae.safetensors", "this is no DALL·E of ours"),
        ("x.safetensors", "x.safetensors: "),
        ("none.safetensors", "there is no such file"),
    ):
        with pytest.raises(DVAEFileError, match=message):
            load_dalle(tmp_path / name)
