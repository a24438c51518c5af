"""The lab's tabs for pictures: those that fit a prompt best, and one as tokens; and weights taken while it runs."""

from __future__ import annotations

import base64
import io
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from weighted_clip.encoder.files.tensor_file import CheckpointError
from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.web.lab.model import SHOWN_SIDE, LabError
from weighted_clip.web.lab.native import LoadSettings, Shelf, file_model, random_model
from weighted_clip.web.lab.tabs.image_tokens import TokenLab
from weighted_clip.web.lab.tabs.ranking import MAX_PICTURES, MAX_TEXTS, SOFTMAX, RankingLab
from weighted_clip.web.pictures.token_grid import LEFT, TOP, cell_side
from weighted_clip.weighting.options import EncodeOptions

from ..dalle.models import nearest_colors, palette, palette_dvae, pictures
from ..transformers_clip import Reference
from .conftest import SMALL, VISION, save_clip, save_pictures
from .handling import pictures_in
from .lab_in_browser import LabPage

CONFIG = TextConfig(hidden_dim=64, num_heads=1, num_layers=3, mlp_dim=128)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_clip(tmp_path_factory.mktemp("clip") / "whole.safetensors")


@pytest.fixture
def ranking(weights: Path) -> RankingLab:
    model = file_model(weights, LoadSettings())
    return RankingLab(lambda: model)


def ids_of(text: str) -> list[int]:
    ids = [49406, *(token.id for token in default_tokenizer()(text))]
    return ids + [49407] * (77 - len(ids))


def number(text: str) -> float:
    return float(text.removesuffix(" %").replace("−", "-").replace("<", "")) / (100 if "%" in text else 1)


@pytest.mark.parametrize("softmax", SOFTMAX)
def test_pictures_are_ranked_and_compared_as_by_transformers(
    ranking: RankingLab, weights: Path, tmp_path: Path, softmax: str
) -> None:
    paths = save_pictures(tmp_path)
    texts = ["a red cat", "a dog", "something else"]
    reference = Reference(weights, SMALL, VISION)
    images, vectors = reference.features(reference.pixels(paths), [ids_of(text) for text in texts])
    cosines = vectors @ images.T
    scaled = cosines * torch.tensor(4.0).exp()
    expected = {"cosines": cosines, "over texts": scaled.softmax(0), "over pictures": scaled.softmax(1)}[softmax]
    markup = unescape(
        ranking.rank([*map(str, paths)], "a dog\n\n something else ", softmax, "a (red:1.4) cat", "a1111")
    )
    order = cosines[0].argsort(descending=True).tolist()
    sheet = re.findall(r"<figcaption>([0-9]). ([-0-9.]+) (\w+).png</figcaption>", markup)
    assert [(int(rank), name) for rank, _, name in sheet] == [(i, paths[k].stem) for i, k in enumerate(order, 1)]
    assert [float(score) for _, score, _ in sheet] == pytest.approx(cosines[0, order].tolist(), abs=6e-5)
    rows = re.findall(r"<th scope='row'>(\w+).png</th>(.*?)</tr>", markup)
    assert [name for name, _ in rows] == [paths[k].stem for k in order]
    for index, (_, cells) in zip(order, rows, strict=True):
        values = [number(one) for one in re.findall(r"<td [^>]*>([^<]+)</td>", cells.replace("><0", ">0"))]
        assert values == pytest.approx(expected[:, index].tolist(), abs=6e-3 if softmax != "cosines" else 6e-4)
    assert "Prompt, at 3: Similarity has no weights" in markup
    assert "3 pictures" in markup


def test_as_many_texts_as_are_compared_are_ranked(ranking: RankingLab, tmp_path: Path) -> None:
    paths = [str(path) for path in save_pictures(tmp_path)]
    markup = ranking.rank(paths, "\n".join("bcdefgh"), "cosines", "a", "none")
    assert re.findall(r"<th scope='col'>(\w)</th>", markup) == list("abcdefgh")


def test_what_cannot_be_ranked_is_said(ranking: RankingLab, weights: Path, tmp_path: Path) -> None:
    paths = [str(path) for path in save_pictures(tmp_path)]
    (tmp_path / "text.png").write_text("no picture")
    some = ranking.rank([*paths, str(tmp_path / "text.png")], "", "cosines", "a <b>", "none")
    assert "text.png: no image of a kind that is read" in some
    assert "3 pictures" in some
    assert "<b>" not in some
    assert str(tmp_path) not in some
    for given, told in (
        ((None, "", "cosines", "a", "none"), "Choose pictures first"),
        (([], "", "cosines", "a", "none"), "Choose pictures first"),
        ((paths * MAX_PICTURES, "", "cosines", "a", "none"), f"at most {MAX_PICTURES} are ranked"),
        ((paths, "x\n" * MAX_TEXTS, "cosines", "a", "none"), f"at most {MAX_TEXTS - 1} are compared"),
        ((paths, "", "cosines", "a" * 30_000, "none"), "longer than 20,000 characters"),
        ((paths, "", "no such", "a", "none"), "choose among cosines, over texts, over pictures"),
        ((paths, "", "cosines", "a", "no such"), "and a syntax"),
        (([str(tmp_path / "text.png")], "", "cosines", "a", "none"), "no image of a kind that is read"),
    ):
        assert told in ranking.rank(*given)
    random = random_model(LoadSettings(), config=CONFIG)
    assert "Random weights would rank pictures at random" in RankingLab(lambda: random).rank(
        paths, "", "cosines", "a", "none"
    )
    half = file_model(save_clip(tmp_path / "half.safetensors", is_whole=False), LoadSettings())
    assert "Pictures cannot be compared: " in RankingLab(lambda: half).rank(paths, "", "cosines", "a", "none")
    assert "Pictures cannot be compared: " in RankingLab(lambda: half).rank(None, "", "cosines", "a", "none")


# --- weights


def test_weights_are_chosen_by_name_and_dropped(weights: Path, tmp_path: Path) -> None:
    other = save_clip(tmp_path / "other.safetensors", CONFIG, is_whole=False)
    first = random_model(LoadSettings(), config=CONFIG)
    shelf = Shelf(first, "random weights", LoadSettings(), {"clip/whole.safetensors": weights})
    assert shelf.names == ["random weights", "clip/whole.safetensors"]
    assert shelf.source() is first
    shelf.choose("clip/whole.safetensors")
    assert shelf.source().title.startswith("whole.safetensors (")
    shelf.drop(other)
    assert shelf.name == "other.safetensors (dropped)"
    assert shelf.names == ["other.safetensors (dropped)", "random weights", "clip/whole.safetensors"]
    assert shelf.source().encode("a cat", EncodeOptions())["clip_l"].hidden.shape == (1, 77, 64)
    shelf.choose("random weights")
    assert shelf.source() is first
    shelf.choose("other.safetensors (dropped)")
    assert shelf.source().title.startswith("other.safetensors")


def test_a_file_that_cannot_be_used_changes_nothing_and_goes(tmp_path: Path) -> None:
    shelf = Shelf(random_model(LoadSettings(), config=CONFIG), "random weights", LoadSettings(), {})
    before = shelf.source()
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"no such file at all")
    with pytest.raises(CheckpointError, match=r"bad\.safetensors"):
        shelf.drop(bad)
    assert not bad.exists()
    pickle = tmp_path / "model.ckpt"
    pickle.write_bytes(b"")
    with pytest.raises(LabError, match=r"model\.ckpt: weights are read from \.safetensors files alone"):
        shelf.drop(pickle)
    with pytest.raises(LabError, match="no weights named 'x'; there are random weights"):
        shelf.choose("x")
    assert (shelf.source(), shelf.name, shelf.names) == (before, "random weights", ["random weights"])


def test_only_the_last_dropped_file_is_kept(tmp_path: Path) -> None:
    shelf = Shelf(random_model(LoadSettings(), config=CONFIG), "random weights", LoadSettings(), {})
    one, two = (save_clip(tmp_path / f"{name}.safetensors", CONFIG, is_whole=False) for name in ("one", "two"))
    shelf.drop(one)
    shelf.drop(two)
    assert (one.exists(), two.exists()) == (False, True)
    assert shelf.names == ["two.safetensors (dropped)", "random weights"]


# --- in a browser


def test_pictures_are_dropped_ranked_and_their_texts_kept(lab: LabPage, tmp_path: Path, small_lab: str) -> None:
    lab.open_part("Pictures")
    lab.give_files("pictures", save_pictures(tmp_path))
    lab.fill_new("other_texts", "a green thing")
    lab.click("rank")
    shown = lab.wait_for_text("ranked", "3 pictures")
    assert "a green thing" in shown
    assert len(lab.wait_for_pictures("ranked", 3)) == 3
    lab.tab.wait("return decodeURIComponent(location.hash).includes('a green thing')")
    lab.tab.open("about:blank")
    lab.open(small_lab)
    lab.open_part("Pictures")
    lab.wait_for_value("other_texts", "a green thing")


def test_weights_are_chosen_and_dropped_on_the_page(lab: LabPage, tmp_path: Path) -> None:
    lab.tab.run("document.querySelector('#weighted_clip_other_weights button').click()")
    lab.tab.wait("return !!document.querySelector('#weighted_clip_weights input')?.offsetParent")
    lab.choose("weights", "clip/text.safetensors")
    lab.wait_for_text("model", "text.safetensors")
    lab.give_files("dropped_weights", [save_clip(tmp_path / "mine.safetensors", CONFIG)])
    lab.wait_for_text("model", "mine.safetensors")
    lab.wait_for_text("weights_told", "Weights: mine.safetensors")
    lab.open_part("Attention")
    lab.wait_for_text("attention", "layer 1 of 3")
    lab.choose("weights", "clip/small.safetensors")
    lab.wait_for_text("attention", "layer 1 of 2")
    lab.wait_for_text("model", "small.safetensors")


@pytest.fixture(scope="module")
def tokens() -> TokenLab:
    return TokenLab(palette_dvae())


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    return Image.fromarray((pictures(1, 32, 48)[0].movedim(0, -1) * 255).round().byte().numpy())


def pixels_of(picture: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.asarray(picture) / 255).float().movedim(-1, 0).unsqueeze(0)


def figures(markup: str) -> dict[str, np.ndarray]:
    """The pictures in some markup, by their titles."""
    return dict(pictures_in(markup))


def mosaic(ids: torch.Tensor, times: int) -> np.ndarray:
    """Decoding of tokens, with every pixel repeated."""
    return palette()[ids[0]].repeat_interleave(4 * times, 0).repeat_interleave(4 * times, 1).numpy()


def test_a_picture_is_shown_with_its_grid_and_what_its_tokens_decode_to(tokens: TokenLab, picture: Image.Image) -> None:
    encoded, grid, shown = tokens.encode(picture)
    ids = nearest_colors(pixels_of(picture))
    assert encoded is not None
    assert torch.equal(encoded.tokens, ids)
    assert grid is not None
    assert grid.width > 12 * cell_side(8, 12)
    times = SHOWN_SIDE // 48
    np.testing.assert_allclose(figures(shown)["reconstruction"], mosaic(ids, times), atol=1 / 255)
    assert "weighted-clip-drawing" not in shown + tokens.swap(encoded, 1, 1, 0)  # whose colours dark pages change
    assert f"8 x 12 tokens, {len(ids.unique())} of them different. Click one" in shown


def test_pointing_at_a_token_shows_what_it_changes_and_nothing_else(tokens: TokenLab, picture: Image.Image) -> None:
    encoded, *_ = tokens.encode(picture)
    assert encoded is not None
    side, ids = cell_side(8, 12), encoded.tokens.clone()
    place = (LEFT + 6.5 * side, TOP + 2.2 * side)
    row, column, shown = tokens.point(encoded, 124, place)
    assert (row, column) == (3, 7)
    before = ids[0, 2, 6].item()
    ids[0, 2, 6] = 124
    found, times = figures(shown), SHOWN_SIDE // 48
    assert list(found) == ["reconstruction", "swapped", "difference", "grid"]
    np.testing.assert_allclose(found["swapped"], mosaic(ids, times), atol=1 / 255)
    bright = np.zeros((32 * times, 48 * times, 3))
    bright[8 * times : 12 * times, 24 * times : 28 * times] = 1
    np.testing.assert_allclose(found["difference"], bright, atol=1 / 255)
    change = 100 * (palette()[124] - palette()[before]).abs().max()
    assert f"row 3, column 7: {before} -&gt; 124" in shown
    assert f"by up to {change:.0f} % of the whole range" in shown
    assert "lie within 4 x 4" in shown
    assert tokens.swap(encoded, 3, 7, 124) == shown
    assert encoded.tokens[0, 2, 6] == before


def test_a_token_swapped_for_itself_changes_nothing(tokens: TokenLab, picture: Image.Image) -> None:
    encoded, *_ = tokens.encode(picture)
    assert encoded is not None
    shown = tokens.swap(encoded, 1, 1, float(encoded.tokens[0, 0, 0]))
    assert "Nothing changes." in shown
    assert figures(shown)["difference"].max() == 0


def test_large_and_odd_pictures_are_made_to_fit_and_it_is_said(tokens: TokenLab) -> None:
    large = Image.linear_gradient("L").resize((1000, 603))
    encoded, _, shown = tokens.encode(large)
    assert encoded is not None
    assert tuple(encoded.tokens.shape) == (1, 38, 64)
    assert "It was made smaller, 256 x 154 pixels. Cut at both ends to 256 x 152 pixels." in shown
    assert "made smaller" not in tokens.encode(Image.new("RGBA", (16, 8)))[2]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ((0, 1, 3), "Row must be a whole number, 1 to 8; got 0"),
        ((1, 13, 3), "Column must be a whole number, 1 to 12; got 13"),
        ((1, 1, 125), "Swap for token must be a whole number, 0 to 124; got 125"),
        ((1.5, 1, 3), "Row must be a whole number"),
        ((None, 1, 3), "Row must be a whole number, 1 to 8; the box is empty"),
        (("<b>", 1, 3), "got '<b>'"),
        ((float("nan"), 1, 3), "got nan"),
        ((float("inf"), 1, 3), "got inf"),
    ],
)
def test_what_is_no_place_or_no_token_is_told(
    tokens: TokenLab, picture: Image.Image, values: tuple[Any, ...], told: str
) -> None:
    shown = tokens.swap(tokens.encode(picture)[0], *values)
    assert told in unescape(shown)
    assert "<b>" not in shown


def test_what_is_missing_is_told(tokens: TokenLab, picture: Image.Image) -> None:
    assert "Choose a picture first." in tokens.encode(None)[2]
    assert "Make tokens of a picture first." in tokens.point(None, 0, (50, 50))[2]
    assert "Make tokens of a picture first." in tokens.swap(None, 1, 1, 0)
    assert "outside the grid" in tokens.point(tokens.encode(picture)[0], 0, (2, 2))[2]
    assert "no side may be shorter than a token" in tokens.encode(Image.new("RGB", (3, 40)))[2]
    assert "125 tokens of 4 x 4 pixels" in tokens.about


def test_an_error_nobody_foresaw_is_told_and_logged(
    picture: Image.Image, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dvae = palette_dvae()

    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(dvae, "tokens", fail)
    assert "RuntimeError: out of memory" in TokenLab(dvae).encode(picture)[2]
    assert caplog.text.count("Traceback") == 1


# ---- the page


@pytest.mark.slow
def test_a_token_is_swapped_in_the_browser(picture: Image.Image, lab: LabPage) -> None:
    buffer = io.BytesIO()
    picture.resize((960, 640)).save(buffer, "BMP")  # 1.8 MB: longer than any other request may be
    data = base64.b64encode(buffer.getvalue()).decode()
    lab.open_part("Image tokens")
    lab.wait_for_text("dvae", "125 tokens")
    lab.tab.wait("return !!document.querySelector('#weighted_clip_picture input[type=file]')")
    lab.tab.run(
        "const bytes = Uint8Array.from(atob(args[0]), (one) => one.charCodeAt(0));"
        "const files = new DataTransfer();"
        "files.items.add(new File([bytes], 'some.bmp', {type: 'image/bmp'}));"
        "const input = document.querySelector('#weighted_clip_picture input[type=file]');"
        "input.files = files.files; input.dispatchEvent(new Event('change', {bubbles: true}))",
        data,
    )
    lab.wait_for_pictures("picture", 1)
    lab.click("make_tokens")
    lab.wait_for_text("token_change", "42 x 64 tokens")
    lab.wait_for_pictures("token_grid", 1)
    lab.fill("token_number", "124")
    side = cell_side(42, 64)
    lab.tab.run(
        "const image = document.querySelector('#weighted_clip_token_grid img');"
        "const box = image.getBoundingClientRect(), scale = box.width / image.naturalWidth;"
        "const place = {clientX: box.left + args[0] * scale, clientY: box.top + args[1] * scale, bubbles: true};"
        "image.dispatchEvent(new MouseEvent('click', place))",
        *(LEFT + 4.5 * side, TOP + 9.5 * side),
    )
    assert "row 10, column 5:" in lab.wait_for_text("token_change", "row 10, column 5:")
    assert len(lab.wait_for_pictures("token_change", 4)) == 4
    assert lab.value("token_row") == "10"
