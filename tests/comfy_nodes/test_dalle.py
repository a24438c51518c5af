"""The nodes of DALL·E on a fake host, with a tiny model of random weights; those of its discrete VAE with a model whose
tokens are known: the nearest of 125 colours.
"""

import json
import sys
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from weighted_clip.hosts.comfy.models import dalle as hosts_dalle
from weighted_clip.studio.dalle import dvae as hosts_dvae
from weighted_clip.studio.dalle.config import DVAEConfig
from weighted_clip.studio.dalle.full_model import DALLE, save_dalle
from weighted_clip.studio.dalle.sampling import SampleOptions, bytes_per_image, sample
from weighted_clip.studio.dalle.tokens import write_tokens
from weighted_clip.studio.dalle.weight_files import save_dvae

from ..dalle.models import PRIOR, TINY_SMALL, nearest_colors, palette, palette_dvae, pictures, seeded, tiny_dalle
from .fake_comfy import FakeProgressBar, defaults, install, interrupt, node, progress

CAPTION = "a large Red disc"
LENGTH = PRIOR.num_image_tokens
F = TINY_SMALL.downsampling
HEIGHT, WIDTH = PRIOR.rows * F, PRIOR.columns * F


@pytest.fixture
def model() -> DALLE:
    return tiny_dalle()


@pytest.fixture
def hosted(model: DALLE, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    files = {name: str(tmp_path / name) for name in ("dalle.safetensors", "dvae.safetensors", "sd.ckpt")}
    save_dalle(model, Path(files["dalle.safetensors"]))
    save_dvae(seeded(TINY_SMALL), Path(files["dvae.safetensors"]))
    Path(files["sd.ckpt"]).write_bytes(b"\x80\x04.")
    install(monkeypatch, {"checkpoints": files})
    found, _ = node("LoadDalle").load("checkpoints/dalle.safetensors", "fp32", "auto")
    return found


TOO_MANY_ROWS = {"prefix_image": torch.zeros(1, HEIGHT, WIDTH, 3), "prefix_rows": 4}


def sampled(hosted: Any, text: str = CAPTION, **changed: Any) -> dict[str, Any]:
    """Result of the node; widgets not named have their default values."""
    return node("DalleSample").sample(hosted, text, **{**defaults("DalleSample"), "count": 2, "seed": 5, **changed})


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.5}, {"temperature": 2.0, "top_k": 9, "top_p": 0.9}]
)
def test_images_are_those_of_the_model_itself(hosted: Any, model: DALLE, options: dict[str, Any]) -> None:
    images, tokens, _ = sampled(hosted, count=3, **options)["result"]
    expected = model.tokens(CAPTION, [5, 6, 7], SampleOptions(**options))
    assert torch.equal(tokens.ids, expected)
    assert (tokens.downsampling, tokens.vocab_size) == (F, PRIOR.image_vocab_size)
    assert images.dtype == torch.float32
    assert torch.equal(images, model.images(expected).movedim(1, -1))
    assert tuple(images.shape) == (3, HEIGHT, WIDTH, 3)
    assert len({image.numpy().tobytes() for image in images}) == 3


def test_an_image_is_the_same_however_many_are_drawn_with_it(hosted: Any) -> None:
    _, many, _ = sampled(hosted, count=16, seed=2)["result"]
    for index in (0, 9):
        _, one, _ = sampled(hosted, count=1, seed=2 + index)["result"]
        assert torch.equal(one.ids[0], many.ids[index])


def test_seeds_begin_anew_behind_the_last(hosted: Any, model: DALLE) -> None:
    _, tokens, report = sampled(hosted, seed=2**64 - 1)["result"]
    assert torch.equal(tokens.ids, model.tokens(CAPTION, [2**64 - 1, 0]))
    assert report.splitlines()[0].endswith("drawn by seeds 18446744073709551615 to 0")


def test_the_report_has_every_piece_of_the_caption(hosted: Any, model: DALLE) -> None:
    result = sampled(hosted, "Red! ü", top_k=3, top_p=0.25, temperature=0.5)
    *heading, divided = result["result"][2].split("\n", 3)
    assert heading == [
        f"2 images of {WIDTH} x {HEIGHT} pixels, drawn by seeds 5 to 6",
        "temperature 0.5, top_k 3, top_p 0.25",
        "caption: 6 pieces, of at most 12",
    ]
    found = [line.split(maxsplit=2) for line in divided.splitlines()]
    assert [int(number) for _, number, _ in found] == model.pieces("Red! ü")
    assert [(place, text) for place, _, text in found] == [
        *(("1", "'r' +"), ("2", "'e' +"), ("3", "'d'"), ("4", "'!'")),
        *(("5", r"b'\xc3' +"), ("6", r"b'\xbc'")),
    ]
    assert result["ui"] == {"text": []}
    assert sampled(hosted, "", count=1)["result"][2].splitlines()[0].endswith("drawn by seed 5")
    assert sampled(hosted, "")["result"][2].splitlines()[-1] == "caption: 0 pieces, of at most 12"


def test_images_go_on_from_the_top_of_another(hosted: Any, model: DALLE) -> None:
    given = pictures(2, HEIGHT, WIDTH)
    result = sampled(hosted, prefix_image=given.movedim(1, -1), prefix_rows=2)
    _, tokens, report = result["result"]
    rows = model.dvae.tokens(given[:1])[0, :2]
    expected = model.tokens(CAPTION, [5, 6], prefix=rows.flatten())
    assert torch.equal(tokens.ids, expected)
    assert torch.equal(tokens.ids[1, :2], rows)
    assert "2 of 3 rows of tokens are those of prefix_image" in report.splitlines()
    assert result["ui"]["text"] == ["of the 2 images of prefix_image only the first is used"]
    assert result["ui"]["text"][0] in report.splitlines()
    whole, *_ = sampled(hosted, prefix_image=given[:1].movedim(1, -1), prefix_rows=3)["result"]
    kept = model.images(model.dvae.tokens(given[:1]))[0].movedim(0, -1)
    torch.testing.assert_close(whole[1], kept, rtol=0, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 4])
def test_an_image_to_begin_with_may_have_other_channels(hosted: Any, model: DALLE, channels: int) -> None:
    given = torch.rand(1, HEIGHT, WIDTH, channels, generator=torch.Generator().manual_seed(0))
    _, tokens, _ = sampled(hosted, prefix_image=given, prefix_rows=1)["result"]
    colored = given[..., :3].expand(-1, -1, -1, 3).movedim(-1, 1)
    assert torch.equal(tokens.ids[0, 0], model.dvae.tokens(colored)[0, 0])


def test_at_temperature_0_the_node_says_that_all_images_are_the_same(hosted: Any) -> None:
    result = sampled(hosted, temperature=0.0)
    images, _, report = result["result"]
    assert torch.equal(images[0], images[1])
    (note,) = result["ui"]["text"]
    assert "all images are the same" in note
    assert note in report
    assert sampled(hosted, temperature=0.0, count=1)["ui"]["text"] == []


def test_the_dvae_of_the_model_decodes_its_tokens(hosted: Any) -> None:
    found, dvae = node("LoadDalle").load("checkpoints/dalle.safetensors", "fp32", "cpu")
    images, tokens, _ = sampled(found)["result"]
    again, *_ = node("TokensToImage").decode(dvae, "", tokens)["result"]
    assert torch.equal(again, images)
    assert dvae.patcher is found.patcher


def test_the_host_makes_room_for_the_model_and_its_keys_and_values(hosted: Any, model: DALLE) -> None:
    loaded = sys.modules["comfy.model_management"].__dict__["loaded"]
    sampled(hosted, count=3)
    assert loaded == [
        ([hosted.patcher], {"memory_required": 3 * bytes_per_image(model.prior), "force_full_load": True})
    ]


def test_progress_counts_the_tokens_of_all_images(hosted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sampled(hosted, count=3)
    told = [(3 * k, 3 * LENGTH) for k in (*range(1, LENGTH + 1), LENGTH)]  # at last with the images
    assert [(value, total) for value, total, _ in progress()] == told
    progress().clear()
    monkeypatch.setitem(sample.__kwdefaults__, "memory_budget", 0)  # one image after the other
    sampled(hosted, count=2, prefix_image=pictures(1, HEIGHT, WIDTH).movedim(1, -1), prefix_rows=1)
    one = [*range(PRIOR.columns, LENGTH + 1)]
    assert [value for value, *_ in progress()] == [*one, *(LENGTH + value for value in one), 2 * LENGTH]


def test_an_interrupt_ends_it_within_a_token(hosted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for after in (0, 4, LENGTH):  # the last while the images are decoded
        asked = interrupt(monkeypatch, after)
        with pytest.raises(InterruptedError):
            sampled(hosted)
        assert len(asked) == after + 1
    with monkeypatch.context() as patch:
        interrupt(patch)
        patch.setattr(type(hosted.model), "tokens", lambda *_, **__: pytest.fail("it went on"))
        with pytest.raises(InterruptedError):
            sampled(hosted, prefix_image=pictures(1, HEIGHT, WIDTH).movedim(1, -1), prefix_rows=1)


@pytest.mark.parametrize("count", [1, 3, 20])
def test_previews_show_the_images_grow(hosted: Any, model: DALLE, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts_dalle, "PREVIEW_SECONDS", 0)
    monkeypatch.setattr(hosts_dalle, "monotonic", lambda: 1.0)
    monkeypatch.setattr(hosts_dalle, "MAX_PREVIEWED", 5)
    images, tokens, _ = sampled(hosted, count=count)["result"]
    shown = {value // count: preview for value, _, preview in progress() if preview}
    assert list(shown) == [PRIOR.columns * row for row in (1, 2, 3)]
    across, down = {1: (1, 1), 3: (2, 2), 20: (3, 2)}[count]
    for number, (kind, picture, size) in shown.items():
        assert (kind, size, picture.size) == ("JPEG", 512, (across * WIDTH, down * HEIGHT))
        cells = cut(picture, across, down)
        decoded = model.images(tokens.ids[:, : number // PRIOR.columns]).movedim(1, -1)
        for index, cell in enumerate(cells):
            drawn = decoded[index] if index < min(count, 5) else decoded[0, :0]
            torch.testing.assert_close(cell[: len(drawn)], drawn, rtol=0, atol=0.51 / 255)
            assert set(cell[len(drawn) :].unique().tolist()) <= {np.float32(128 / 255)}
    whole = cut(shown[LENGTH][1], across, down)[0]
    torch.testing.assert_close(whole, images[0], rtol=0, atol=0.51 / 255)


def cut(picture: Any, across: int, down: int) -> list[Tensor]:
    """A picture in parts of the same size, row by row."""
    pixels = torch.from_numpy(np.asarray(picture, dtype=np.float32) / np.float32(255))
    return [part for row in pixels.chunk(down) for part in row.chunk(across, 1)]


@pytest.mark.parametrize(
    ("seconds", "decoding", "shown"), [(0.0, 0.0, 3), (1.5, 0.0, 2), (inf, 0.0, 1), (0.0, 1.5, 2), (0.0, 9.0, 1)]
)
def test_previews_take_a_tenth_of_the_time_at_most(
    hosted: Any, seconds: float, decoding: float, shown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock that goes on by a second where a row is drawn, and where it is decoded as given."""
    now = [100.0]
    monkeypatch.setattr(hosts_dalle, "monotonic", lambda: now[0])
    monkeypatch.setattr(hosts_dalle, "PREVIEW_SECONDS", seconds)
    monkeypatch.setattr(hosts_dalle, "PREVIEW_SHARE", 1.0)
    images = type(hosted.model).images

    def slow(model: DALLE, tokens: Tensor, check: Any = None) -> Tensor:
        now[0] += decoding
        return images(model, tokens, check)

    monkeypatch.setattr(type(hosted.model), "images", slow)
    update = FakeProgressBar.update_absolute

    def passing(bar: FakeProgressBar, value: int, total: int | None = None, preview: Any = None) -> None:
        now[0] += 1 / PRIOR.columns
        update(bar, value, total, preview)

    monkeypatch.setattr(FakeProgressBar, "update_absolute", passing)
    sampled(hosted, count=1)
    *growing, (*_, last) = progress()
    assert sum(preview is not None for *_, preview in growing) == shown
    assert last is not None


def test_other_types_of_weights_are_drawn_from_too(hosted: Any) -> None:
    half, dvae = node("LoadDalle").load("checkpoints/dalle.safetensors", "bf16", "cpu")
    assert {parameter.dtype for parameter in half.model.parameters()} == {torch.bfloat16}
    assert dvae.model is half.model.dvae
    images, tokens, _ = sampled(half)["result"]
    assert images.dtype == torch.float32
    assert tuple(tokens.ids.shape) == (2, *PRIOR.grid)


def test_what_cannot_be_is_refused_in_words(hosted: Any) -> None:
    load = node("LoadDalle").load
    with pytest.raises(ValueError, match=r"dvae\.safetensors: this is no DALL·E of ours.*dalle train"):
        load("checkpoints/dvae.safetensors", "fp32", "auto")
    with pytest.raises(ValueError, match=r"sd\.ckpt: pickled models are not loaded"):
        load("checkpoints/sd.ckpt", "fp32", "auto")
    with pytest.raises(ValueError, match="device must be one of: auto, cpu; got 'gpu'"):
        load("checkpoints/dalle.safetensors", "fp32", "gpu")
    with pytest.raises(ValueError, match=r"the caption 'xylophone.*has 18 pieces: this model reads at most 12"):
        sampled(hosted, "xylophone xylophone")
    image = pictures(1, HEIGHT, WIDTH).movedim(1, -1)
    with pytest.raises(ValueError, match=r"has 16 x 8 pixels; this model draws 16 x 12\. Put the node Upscale Image"):
        sampled(hosted, prefix_image=image[:, :8], prefix_rows=1)
    with pytest.raises(ValueError, match=r"prefix_rows must be from 1 to 3, the rows of .*; got 4"):
        sampled(hosted, prefix_image=image, prefix_rows=4)
    with pytest.raises(ValueError, match="the batch of prefix_image is empty"):
        sampled(hosted, prefix_image=image[:0])
    with pytest.raises(ValueError, match="top_p must be above 0"):
        sampled(hosted, top_p=0.0)


def test_a_kernel_larger_than_its_images_is_refused(hosted: Any, tmp_path: Path) -> None:
    path = tmp_path / "dalle.safetensors"
    with safe_open(path, framework="pt") as file:
        tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
        about = file.metadata()
    save_file(tensors, path, about | {"prior": json.dumps(json.loads(about["prior"]) | {"kernel_size": 20_001})})
    with pytest.raises(
        ValueError, match=r"dalle\.safetensors: .*kernel_size must be at most 11 for 3 x 4 image tokens"
    ):
        node("LoadDalle").load("checkpoints/dalle.safetensors", "fp32", "auto")


def test_what_is_refused_takes_no_memory(hosted: Any) -> None:
    for wrong in (
        {"text": "xylophone " * 9},
        {"prefix_image": torch.zeros(1, 8, 8, 3), "prefix_rows": 1},
        TOO_MANY_ROWS,
    ):
        with pytest.raises(ValueError, match="this model"):
            sampled(hosted, **wrong)
    assert sys.modules["comfy.model_management"].__dict__["loaded"] == []


def test_the_loader_lists_what_can_be_one(hosted: Any) -> None:
    files = type(node("LoadDalle")).INPUT_TYPES()["required"]["file"][0]
    assert files == ["checkpoints/dalle.safetensors", "checkpoints/dvae.safetensors"]


# ---- the discrete VAE alone


@pytest.fixture
def dvae(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    files = {name: str(tmp_path / name) for name in ("colors.safetensors", "decoder.pkl", "small.safetensors")}
    save_dvae(palette_dvae(), Path(files["colors.safetensors"]))
    save_dvae(seeded(DVAEConfig("small", vocab_size=16, hidden_dim=8)), Path(files["small.safetensors"]))
    Path(files["decoder.pkl"]).write_bytes(b"\x80\x04.")
    install(monkeypatch, {"vae": files}, tmp_path / "temp")
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
    assert sys.modules["comfy.model_management"].__dict__["loaded"] == [([dvae.patcher], {})] * 2


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


def test_other_types_of_weights_of_a_dvae_change_little(dvae: Any) -> None:
    [half] = node("LoadDVAE").load("vae/colors.safetensors", "bf16", "cpu")
    assert {parameter.dtype for parameter in half.model.parameters()} == {torch.bfloat16}
    image, *_ = node("TokensToImage").decode(half, "", numbers="0 62 124")["result"]
    assert image.dtype == torch.float32
    torch.testing.assert_close(image, mosaic(torch.tensor([[[0, 62, 124]]])), rtol=0, atol=0.02)


def test_tokens_that_cannot_be_are_refused_in_words(dvae: Any) -> None:
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
    monkeypatch.setattr(hosts_dvae, "MAX_PIXELS", 24 * 16 // 32)  # one image at once, of this narrow model
    progress().clear()
    tokens, *_ = node("ImageToTokens").encode(dvae, some_images(3))["result"]
    assert [(value, total) for value, total, _ in progress()] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    interrupt(monkeypatch)
    with pytest.raises(InterruptedError):
        node("ImageToTokens").encode(dvae, some_images(3))
    with pytest.raises(InterruptedError):
        node("TokensToImage").decode(dvae, "", tokens)


def test_the_loader_lists_the_folder_of_vaes(dvae: Any) -> None:
    files = type(node("LoadDVAE")).INPUT_TYPES()["required"]["file"][0]
    assert files == ["vae/colors.safetensors", "vae/decoder.pkl", "vae/small.safetensors"]
