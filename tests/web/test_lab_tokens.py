"""The lab's tab for images as tokens: its handlers on a dVAE whose tokens are known, and the page in Chromium."""

from __future__ import annotations

import base64
import io
from html import unescape
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from weighted_clip.web.lab.image_tokens import TokenLab
from weighted_clip.web.lab.model import SHOWN_SIDE
from weighted_clip.web.pictures.token_grid import LEFT, TOP, cell_side

from ..dalle.models import nearest_colors, palette, palette_dvae, pictures
from .handling import pictures_in
from .lab_in_browser import LabPage


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
        ((0, 1, 3), "row must be a whole number, 1 to 8; got 0"),
        ((1, 13, 3), "column must be a whole number, 1 to 12; got 13"),
        ((1, 1, 125), "token must be a whole number, 0 to 124; got 125"),
        ((1.5, 1, 3), "row must be a whole number"),
        ((None, 1, 3), "row must be a whole number, 1 to 8; got None"),
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
    assert "beside the grid" in tokens.point(tokens.encode(picture)[0], 0, (2, 2))[2]
    assert "no side may be shorter than a token" in tokens.encode(Image.new("RGB", (3, 40)))[2]
    none = TokenLab(None)
    for shown in (none.about, none.encode(picture)[2], none.swap(None, 1, 1, 0)):
        assert "No dVAE is loaded. Start the lab with one: python run.py lab --dvae FILE" in shown
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
