"""The nodes of the discrete VAE on a fake host, with a model whose tokens are known: the nearest of 125 colours."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from weighted_clip.dalle import dvae as module
from weighted_clip.dalle.config import DVAEConfig
from weighted_clip.dalle.files import save_dvae
from weighted_clip.dalle.tokens import write_tokens

from ..dalle.models import nearest_colors, palette, palette_dvae, seeded
from .fake_comfy import install, node


@pytest.fixture
def dvae(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    files = {name: str(tmp_path / name) for name in ("colors.safetensors", "decoder.pkl", "small.safetensors")}
    save_dvae(palette_dvae(), Path(files["colors.safetensors"]))
    save_dvae(seeded(DVAEConfig("small", vocab_size=16, hidden_dim=8)), Path(files["small.safetensors"]))
    Path(files["decoder.pkl"]).write_bytes(b"\x80\x04.")
    install(monkeypatch, {"vae": files})
    sys.modules["folder_paths"].__dict__["get_temp_directory"] = lambda: str(tmp_path / "temp")
    management = sys.modules["comfy.model_management"].__dict__
    management["vae_device"] = management["vae_offload_device"] = lambda: torch.device("cpu")
    management["loaded"] = loaded = []
    management["load_models_gpu"] = loaded.extend
    utils = ModuleType("comfy.utils")

    class ProgressBar:
        seen: list[tuple[int, int]] = []  # noqa: RUF012

        def __init__(self, total: int) -> None:
            self.total = total

        def update_absolute(self, count: int) -> None:
            ProgressBar.seen.append((count, self.total))

    utils.__dict__["ProgressBar"] = ProgressBar
    monkeypatch.setitem(sys.modules, "comfy.utils", utils)
    monkeypatch.setattr(sys.modules["comfy"], "utils", utils, raising=False)
    [found] = node("LoadDVAE").load("vae/colors.safetensors", "fp32", "auto")
    return found


def some_images(count: int, height: int = 24, width: int = 16, channels: int = 3) -> Tensor:
    return torch.rand(count, height, width, channels, generator=torch.Generator().manual_seed(0))


def mosaic(ids: Tensor) -> Tensor:
    """Expected decoding of tokens, ``[b, h, w, 3]``."""
    return palette()[ids].repeat_interleave(4, 1).repeat_interleave(4, 2)


def test_an_image_goes_to_tokens_and_back(dvae: Any, tmp_path: Path) -> None:
    images = some_images(2)
    result = node("ImageToTokens").encode(dvae, images)
    tokens, grid, numbers, report = result["result"]
    expected = nearest_colors(images.movedim(-1, 1))
    assert torch.equal(tokens.ids, expected)
    assert (tokens.downsampling, tokens.vocab_size) == (4, 125)
    assert numbers == write_tokens(expected)
    different = len(expected.unique())
    assert report == f"2 images, each 6 x 4 tokens of 4 x 4 pixels\n{different} different tokens of 125"
    assert grid.shape[0] == 2
    assert not torch.equal(grid[0], grid[1])
    [preview] = result["ui"]["images"]
    with Image.open(tmp_path / "temp" / preview["filename"]) as picture:
        assert picture.size == (grid.shape[2], grid.shape[1])
    image, same, told = node("TokensToImage").decode(dvae, "", tokens)["result"]
    assert image.dtype == torch.float32
    torch.testing.assert_close(image, mosaic(expected), rtol=0, atol=1e-6)
    assert torch.equal(same.ids, expected)
    assert told == "nothing swapped"
    assert sys.modules["comfy.model_management"].__dict__["loaded"] == [dvae.patcher] * 2


def test_swapped_tokens_change_their_squares_alone(dvae: Any) -> None:
    images = some_images(1)
    tokens, *_ = node("ImageToTokens").encode(dvae, images)["result"]
    result = node("TokensToImage").decode(dvae, "2, 3 = 124\n5-6, 1 = 0", tokens)
    image, changed, report = result["result"]
    expected = nearest_colors(images.movedim(-1, 1))
    before = expected[0, 1, 2].item()
    expected[0, 1, 2] = 124
    expected[0, 4:6, 0] = 0
    torch.testing.assert_close(image, mosaic(expected), rtol=0, atol=1e-6)
    assert torch.equal(changed.ids, expected)
    assert report.splitlines()[0] == f"row 2, column 3: {before} -> 124"
    assert result["ui"]["text"] == report.splitlines()
    assert torch.equal(tokens.ids, nearest_colors(images.movedim(-1, 1))), "what came in stays as it was"


def test_tokens_can_be_typed(dvae: Any) -> None:
    image, tokens, _ = node("TokensToImage").decode(dvae, "1, 1 = 7", numbers="0 1 2\n122 123 124")["result"]
    assert tokens.ids.tolist() == [[[7, 1, 2], [122, 123, 124]]]
    torch.testing.assert_close(image, mosaic(tokens.ids), rtol=0, atol=1e-6)


def test_what_is_cut_off_is_said(dvae: Any) -> None:
    images = some_images(1, 27, 18)
    result = node("ImageToTokens").encode(dvae, images)
    tokens, *_, report = result["result"]
    assert torch.equal(tokens.ids, nearest_colors(images[:, 1:25, 1:17].movedim(-1, 1)))
    told = "cut from 18 x 27 to 16 x 24 pixels, multiples of 4, at both ends"
    assert report.splitlines()[-1] == told
    assert result["ui"]["text"] == [told]


@pytest.mark.parametrize("channels", [1, 4])
def test_images_with_alpha_and_of_one_channel_are_taken(dvae: Any, channels: int) -> None:
    images = some_images(1, channels=channels)
    tokens, *_ = node("ImageToTokens").encode(dvae, images)["result"]
    assert torch.equal(tokens.ids, nearest_colors(images[..., :3].expand(-1, -1, -1, 3).movedim(-1, 1)))


def test_of_many_images_some_grids_are_drawn_and_all_are_encoded(dvae: Any) -> None:
    tokens, grid, _, report = node("ImageToTokens").encode(dvae, some_images(18))["result"]
    assert len(tokens.ids) == 18
    assert len(grid) == 16
    assert report.splitlines()[-1] == "of 18 images the grids of the first 16 are drawn"


def test_other_types_of_weights_change_little(dvae: Any) -> None:
    [half] = node("LoadDVAE").load("vae/colors.safetensors", "bf16", "cpu")
    assert {parameter.dtype for parameter in half.model.parameters()} == {torch.bfloat16}
    image, *_ = node("TokensToImage").decode(half, "", numbers="0 62 124")["result"]
    assert image.dtype == torch.float32
    torch.testing.assert_close(image, mosaic(torch.tensor([[[0, 62, 124]]])), rtol=0, atol=0.02)


def test_what_cannot_be_is_refused_in_words(dvae: Any) -> None:
    with pytest.raises(ValueError, match=r"decoder\.pkl: pickled.*python run\.py convert-dvae"):
        node("LoadDVAE").load("vae/decoder.pkl", "fp32", "auto")
    with pytest.raises(ValueError, match="the batch is empty"):
        node("ImageToTokens").encode(dvae, some_images(0))
    with pytest.raises(ValueError, match="no side may be shorter than a token, 4 pixels"):
        node("ImageToTokens").encode(dvae, some_images(1, 3, 40))
    tokens, *_ = node("ImageToTokens").encode(dvae, some_images(1))["result"]
    decode = node("TokensToImage").decode
    with pytest.raises(ValueError, match="there are no tokens: connect"):
        decode(dvae, "")
    with pytest.raises(ValueError, match="disconnect the link or empty numbers"):
        decode(dvae, "", tokens, "1 2")
    with pytest.raises(ValueError, match="swap, line 1, “7, 1 = 3”: there is no row 7; this grid has rows 1 to 6"):
        decode(dvae, "7, 1 = 3", tokens)
    [other] = node("LoadDVAE").load("vae/small.safetensors", "fp32", "auto")
    with pytest.raises(ValueError, match="of a dVAE with 125 tokens of 4 pixels; this one has 16 tokens of 4 pixels"):
        decode(other, "", tokens)
    with pytest.raises(ValueError, match="dtype must be one of: fp32, fp16, bf16; got 'int8'"):
        node("LoadDVAE").load("vae/colors.safetensors", "int8", "auto")


def test_progress_is_shown_and_an_interrupt_ends_the_work(dvae: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PIXELS", 24 * 16 // 32)  # one image at once, of this narrow model
    seen = sys.modules["comfy.utils"].__dict__["ProgressBar"].seen
    seen.clear()
    tokens, *_ = node("ImageToTokens").encode(dvae, some_images(3))["result"]
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]

    def interrupt() -> None:
        raise InterruptedError

    monkeypatch.setattr(sys.modules["comfy.model_management"], "throw_exception_if_processing_interrupted", interrupt)
    with pytest.raises(InterruptedError):
        node("ImageToTokens").encode(dvae, some_images(3))
    with pytest.raises(InterruptedError):
        node("TokensToImage").decode(dvae, "", tokens)


def test_the_loader_lists_the_folder_of_vaes(dvae: Any) -> None:
    files = type(node("LoadDVAE")).INPUT_TYPES()["required"]["file"][0]
    assert files == ["vae/colors.safetensors", "vae/decoder.pkl", "vae/small.safetensors"]
