"""The lab's tab that draws images of a caption: its handlers on small models, and the page in Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.studio.commands.program import main
from weighted_clip.studio.dalle.config import PriorConfig
from weighted_clip.studio.dalle.full_model import DALLE, save_dalle
from weighted_clip.studio.dalle.pieces import Pieces, clip_pieces
from weighted_clip.studio.dalle.sampling import SampleOptions, bytes_per_image
from weighted_clip.studio.dalle.weight_files import save_dvae
from weighted_clip.web.lab import model_folders as places
from weighted_clip.web.lab import server
from weighted_clip.web.lab.model import SHOWN_SIDE
from weighted_clip.web.lab.tabs import text_to_image
from weighted_clip.web.lab.tabs.text_to_image import MAX_SEED, TextToImageLab, words_in_pieces

from ..dalle.models import TINY_SMALL, nearest_colors, palette, pictures, seeded
from .chromium import Tab
from .conftest import CAPTION, PRIOR, dalle_of
from .handling import pictures_in
from .lab_in_browser import LabPage, running_lab

ROWS, COLUMNS = PRIOR.rows, PRIOR.columns
LENGTH = ROWS * COLUMNS
GREY = 128 / 255
TIMES = SHOWN_SIDE // (4 * COLUMNS)


@pytest.fixture(scope="module")
def dalle() -> DALLE:
    return dalle_of(PRIOR)


@pytest.fixture
def lab(dalle: DALLE) -> TextToImageLab:
    """Tells the page of every token."""
    return TextToImageLab(dalle, clock=lambda: 0.0)


def values(**changes: Any) -> list[Any]:
    chosen: dict[str, Any] = {
        **{"caption": CAPTION, "count": 3, "temperature": 1.0, "top_k": 0, "top_p": 1.0},
        **{"seed": 5, "picture": None, "rows": 1},
    }
    return list((chosen | changes).values())


def drawn(lab: TextToImageLab, job: dict[str, Any] | None = None, **changes: Any) -> list[tuple[bool, str, str | None]]:
    job = {} if job is None else job
    lab.begin(job)
    return list(lab.draw(job, *values(**changes)))


def told(progress: str) -> str:
    return unescape(re.sub("<[^>]*>", "", progress))


def images(markup: str) -> list[np.ndarray]:
    """The pictures in some markup, a value for each pixel of the model."""
    shown = [picture for _, picture in pictures_in(markup)]
    assert all(one.shape == (4 * ROWS * TIMES, 4 * COLUMNS * TIMES, 3) for one in shown)
    return [one[::TIMES, ::TIMES] for one in shown]


def expected(tokens: torch.Tensor, num_drawn: int) -> np.ndarray:
    """An image of plain colours, one for each token ``[LENGTH]``, and grey after the first of them."""
    colors = palette()[tokens].clone()
    colors[num_drawn:] = GREY
    return colors.view(ROWS, COLUMNS, 3).repeat_interleave(4, 0).repeat_interleave(4, 1).numpy()


def check_images(markup: str, tokens: torch.Tensor, num_drawn: list[int]) -> None:
    """Compare with the first tokens, ``[n, rows, columns]``, of each image."""
    shown = images(markup)
    assert len(shown) == len(num_drawn)
    for one, ids, number in zip(shown, tokens.flatten(1), num_drawn, strict=True):
        np.testing.assert_allclose(one, expected(ids, number), atol=1 / 255)


# ---- drawing


def test_images_fill_up_row_by_row_with_what_the_model_draws(lab: TextToImageLab, dalle: DALLE) -> None:
    first, *steps, last = drawn(lab)
    assert first[0] is True
    assert first[2] == ""
    tokens = dalle.tokens(CAPTION, [5, 6, 7])
    assert [told(step[1]) for step in steps] == [
        f"token {number} of {LENGTH}, images 1 to 3 of 3" for number in range(1, LENGTH + 1)
    ]
    sheets = {number: step[2] for number, step in enumerate(steps, 1) if step[2] is not None}
    assert list(sheets) == [1, 4, 8, 12]
    for number, sheet in sheets.items():
        check_images(sheet, tokens, [number] * 3)
    assert re.findall("<figcaption>(.*?)</figcaption>", sheets[12]) == ["seed 5", "seed 6", "seed 7"]
    assert [step[0] for step in (*steps, last)] == [True] * LENGTH + [False]
    assert told(last[1]) == "done: 3 images"
    assert last[2] is None
    widths = [int(width) for step in (*steps, last) for width in re.findall(r"width: (\d+)%", step[1])]
    assert widths == [*(round(100 * number / LENGTH) for number in range(1, LENGTH + 1)), 100]


def test_images_that_memory_does_not_hold_together_come_one_group_after_the_other(
    lab: TextToImageLab, dalle: DALLE, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_to_image, "MEMORY_BUDGET", 2 * bytes_per_image(dalle.prior))
    _, *steps, last = drawn(lab)
    lines = [told(step[1]) for step in steps]
    assert lines[0] == f"token 1 of {LENGTH}, images 1 to 2 of 3"
    assert lines[LENGTH:] == [f"token {number} of {LENGTH}, image 3 of 3" for number in range(1, LENGTH + 1)]
    tokens = dalle.tokens(CAPTION, [5, 6, 7])
    sheets = [step[2] for step in steps if step[2] is not None]
    for sheet, counts in zip(sheets, [(1, 0), (4, 0), (8, 0), (12, 0), (12, 1), (12, 4), (12, 8)], strict=False):
        check_images(sheet, tokens, [counts[0], counts[0], counts[1]])
    check_images(sheets[-1], tokens, [LENGTH] * 3)
    assert "width: 67%" in steps[LENGTH - 1][1]
    assert told(last[1]) == "done: 3 images"


def test_choices_reach_the_model(lab: TextToImageLab, dalle: DALLE) -> None:
    *_, (_, _, sheet), _ = drawn(lab, count=2, temperature=0.5, top_k=7.0, top_p=0.9, seed=11.0)
    tokens = dalle.tokens(CAPTION, [11, 12], SampleOptions(0.5, 7, 0.9))
    assert sheet is not None
    check_images(sheet, tokens, [LENGTH] * 2)
    assert not torch.equal(tokens, dalle.tokens(CAPTION, [11, 12]))
    *_, (_, _, other), _ = drawn(lab, count=2, caption="ring", seed=11)
    assert other is not None
    check_images(other, dalle.tokens("ring", [11, 12]), [LENGTH] * 2)


def test_an_image_is_the_same_whatever_is_drawn_with_it(lab: TextToImageLab) -> None:
    *_, (_, _, three), _ = drawn(lab, seed=5)
    *_, (_, line, alone), _ = drawn(lab, seed=6, count=1)
    assert three is not None
    assert alone is not None
    np.testing.assert_array_equal(images(three)[1], images(alone)[0])
    assert told(line) == f"token {LENGTH} of {LENGTH}, image 1 of 1"


@pytest.mark.parametrize("num_drawn", [1, 6, 11])
def test_cancel_ends_it_after_the_token_and_keeps_what_is_there(
    lab: TextToImageLab, dalle: DALLE, num_drawn: int
) -> None:
    job: dict[str, Any] = {}
    lab.begin(job)
    steps = lab.draw(job, *values())
    for _ in range(num_drawn + 1):
        next(steps)
    lab.cancel(job)
    (last,) = steps
    assert last[0] is False
    assert told(last[1]) == f"cancelled after token {num_drawn} of {LENGTH}, images 1 to 3 of 3"
    assert last[2] is not None
    check_images(last[2], dalle.tokens(CAPTION, [5, 6, 7]), [num_drawn] * 3)
    assert told(drawn(lab, job)[-1][1]) == "done: 3 images"


def test_cancel_ends_it_even_if_the_page_is_not_told_of_every_token(
    dalle: DALLE, monkeypatch: pytest.MonkeyPatch
) -> None:
    job: dict[str, Any] = {}
    now = [0.0]

    def cancelling(*given: Any) -> Iterator[torch.Tensor]:
        for tokens in original(*given):
            job["is_cancelled"] = tokens.shape[1] == 6
            yield tokens

    original = text_to_image.steps
    monkeypatch.setattr(text_to_image, "steps", cancelling)
    lab = TextToImageLab(dalle, clock=lambda: now[0])
    lab.begin(job)
    lines: list[str] = []
    for _, line, _ in lab.draw(job, *values()):
        lines.append(told(line))
        now[0] += 100  # it takes so long to tell the page
    where = "of 12, images 1 to 3 of 3"
    assert lines == ["reading", f"token 1 {where}", f"cancelled after token 6 {where}"]


def test_a_drawing_that_is_cancelled_while_it_waits_never_begins(
    lab: TextToImageLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_to_image, "steps", lambda *_: pytest.fail("it was drawn"))
    job: dict[str, Any] = {}
    assert told(lab.begin(job)) == "waiting for its turn"
    lab.cancel(job)
    ((is_running, line, sheet),) = lab.draw(job, *values())
    assert (is_running, told(line), sheet) == (False, "cancelled before it began", None)


def test_users_do_not_disturb_each_other(lab: TextToImageLab, dalle: DALLE) -> None:
    jobs: list[dict[str, Any]] = [{}, {}]
    for job in jobs:
        lab.begin(job)
    captions = [CAPTION, "ring"]
    runs = [lab.draw(job, *values(caption=one)) for job, one in zip(jobs, captions, strict=True)]
    for _ in range(6):
        for run in runs:
            next(run)
    lab.cancel(jobs[0])
    (cancelled,), rest = (list(run) for run in runs)
    assert "cancelled after token 5" in cancelled[1]
    assert told(rest[-1][1]) == "done: 3 images"
    for (sheet, caption), number in zip([(cancelled[2], CAPTION), (rest[-2][2], "ring")], [5, LENGTH], strict=True):
        assert sheet is not None
        check_images(sheet, dalle.tokens(caption, [5, 6, 7]), [number] * 3)


def test_nothing_more_is_drawn_once_the_page_is_closed(lab: TextToImageLab, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def counting(*given: Any) -> Iterator[torch.Tensor]:
        for tokens in original(*given):
            counts.append(tokens.shape[1])
            yield tokens

    original = text_to_image.steps
    monkeypatch.setattr(text_to_image, "steps", counting)
    job: dict[str, Any] = {}
    lab.begin(job)
    steps = lab.draw(job, *values())
    for _ in range(4):
        next(steps)
    steps.close()  # as gradio does when nobody listens any more
    assert counts == [1, 2, 3]


def test_most_of_the_time_is_for_drawing(dalle: DALLE, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token takes 1 s, to decode 3 s, and to tell the page 2 s."""
    now, telling = [0.0], 0.0
    prior = dalle_of(PriorConfig(**{**vars(PRIOR), "rows": 12, "columns": 12}))

    def drawing(*given: Any) -> Iterator[torch.Tensor]:
        for tokens in original_steps(*given):
            now[0] += 1
            yield tokens

    def decoding(*given: Any) -> Any:
        now[0] += 3
        return original_images(*given)

    original_steps, original_images = text_to_image.steps, text_to_image._pictures
    monkeypatch.setattr(text_to_image, "steps", drawing)
    monkeypatch.setattr(text_to_image, "_pictures", decoding)
    lab, job = TextToImageLab(prior, clock=lambda: now[0]), {}
    lab.begin(job)
    lines: list[str] = []
    sheets = 0
    for _, line, sheet in lab.draw(job, *values(count=1)):
        lines.append(told(line))
        sheets += bool(sheet)
        now[0] += 2
        telling += 2
    numbers = [int(found[1]) for line in lines if (found := re.match(r"token (\d+) of 144", line))]
    assert numbers[0] == 1
    assert numbers[-1] == 144
    assert all(8 <= second - first <= 20 for first, second in pairwise(numbers[:-1]))
    assert sheets > 2
    assert telling + 3 * sheets < now[0] / 3


# ---- completing a picture


def test_images_begin_with_the_top_of_a_picture(lab: TextToImageLab, dalle: DALLE) -> None:
    pixels = pictures(1, 4 * ROWS, 4 * COLUMNS)
    picture = Image.fromarray((pixels[0].movedim(0, -1) * 255).round().byte().numpy())
    _, *steps, _ = drawn(lab, picture=picture, rows=2.0)
    assert [told(step[1]).split(",")[0] for step in steps] == [f"token {number} of {LENGTH}" for number in range(8, 13)]
    given = nearest_colors(torch.from_numpy(np.asarray(picture) / 255).movedim(-1, 0)[None])[0, :2].flatten()
    tokens = dalle.tokens(CAPTION, [5, 6, 7], prefix=given)
    sheet = steps[-1][2]
    assert sheet is not None
    check_images(sheet, tokens, [LENGTH] * 3)
    assert torch.equal(tokens.flatten(1)[:, :8], given.expand(3, -1))
    assert "The top 2 of 3 rows of tokens are the picture's.</p>" in unescape(sheet)


def test_a_picture_of_another_size_is_made_to_fit_and_it_is_said(lab: TextToImageLab, dalle: DALLE) -> None:
    bands = np.zeros((90, 240, 4), dtype=np.uint8)  # three times as wide as it is kept: 160 x 120 is its middle
    bands[..., 3] = 255
    bands[:, 60:180, 0] = 255
    *_, (_, _, sheet), _ = drawn(lab, picture=Image.fromarray(bands), rows=3, count=1)
    assert sheet is not None
    red = images(sheet)[0]
    np.testing.assert_allclose(red, np.broadcast_to([1.0, 0, 0], red.shape), atol=1 / 255)
    assert (
        "The top 3 of 3 rows of tokens are the picture's. It was scaled, and cut at both ends, to 16 x 12"
        in unescape(sheet)
    )


def test_without_kept_rows_the_picture_changes_nothing_and_it_is_said(lab: TextToImageLab, dalle: DALLE) -> None:
    *_, (_, _, sheet), _ = drawn(lab, picture=Image.new("RGB", (16, 12)), rows=0)
    assert sheet is not None
    check_images(sheet, dalle.tokens(CAPTION, [5, 6, 7]), [LENGTH] * 3)
    assert "The top 0 of 3 rows" in sheet


# ---- what cannot be drawn


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"caption": "<b> " * 5}, "the caption '<b> <b> <b> <b> <b> ' has 15 pieces: this model reads at most 12"),
        ({"caption": "a" * 2001}, "has 2,001 characters, at most 2,000 are read"),
        ({"caption": "a \ud800"}, "half of a character"),
        ({"caption": ["a"]}, "Caption must be a text, got ['a']"),
        ({"count": 17}, "Images must be a whole number, 1 to 16; got 17"),
        ({"count": 0}, "Images must be a whole number, 1 to 16; got 0"),
        ({"seed": None}, f"Seed must be a whole number, 0 to {MAX_SEED}; the box is empty"),
        ({"seed": 0.5}, "Seed must be a whole number"),
        ({"temperature": -1}, "Temperature must be a number, 0 to 2; got -1"),
        ({"temperature": float("nan")}, "Temperature must be a number, 0 to 2; got nan"),
        ({"temperature": "hot"}, "Temperature must be a number, 0 to 2; got 'hot'"),
        ({"top_k": 126}, "Top-k must be a whole number, 0 to 125; got 126"),
        ({"top_p": 0}, "Top-p must be a number, 0.05 to 1; got 0"),
        ({"picture": Image.new("RGB", (9, 9)), "rows": 4}, "Rows kept must be a whole number, 0 to 3; got 4"),
    ],
)
def test_what_cannot_be_drawn_is_told(lab: TextToImageLab, changes: dict[str, Any], line: str) -> None:
    _, (is_running, shown, sheet) = drawn(lab, **changes)
    assert line in unescape(shown)
    assert "role='alert'" in shown
    assert "<b>" not in shown
    assert (is_running, sheet) == (False, None)


def test_an_error_nobody_foresaw_is_told_and_logged(
    lab: TextToImageLab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*given: Any) -> Iterator[torch.Tensor]:
        for tokens in original(*given):
            if tokens.shape[1] == 6:
                raise RuntimeError("out of memory")
            yield tokens

    original = text_to_image.steps
    monkeypatch.setattr(text_to_image, "steps", failing)
    *steps, last = drawn(lab)
    assert "RuntimeError: out of memory" in last[1]
    assert last[2] is None  # what was there stays
    assert any(step[2] for step in steps)
    assert caplog.text.count("Traceback") == 1


# ---- pieces


def test_the_pieces_of_each_word_are_shown(lab: TextToImageLab) -> None:
    shown = lab.pieces("A small Ringlet <b>")
    words = re.findall(r"<span>(.*?)</span>", shown)
    found = [[unescape(piece) for piece in re.findall("<i>(.*?)</i>", word)] for word in words]
    assert found[:2] == [["a"], ["small"]]
    assert ["".join(word) for word in found] == ["a", "small", "ringlet", "<", "b", ">"]
    assert len(found[2]) > 1
    assert f"{sum(map(len, found))} of at most 12 pieces" in shown
    assert "role='status'" in shown
    many = lab.pieces("small " * 13)
    assert "13 of at most 12 pieces" in many
    assert "role='alert'" in many
    assert many.count("<span>") == 13
    assert "the caption is empty" in lab.pieces("  ")
    assert "has 2,001 characters" in lab.pieces("b" * 2001)


@pytest.mark.parametrize("pieces", [Pieces([]), clip_pieces()])
@pytest.mark.parametrize("text", ["Crème brûlée, 12 cats!", "🦊 狐 şey", "a\x00b ÿ ~", ""])
def test_pieces_of_words_put_together_are_the_words(pieces: Pieces, text: str) -> None:
    words = words_in_pieces(pieces, text)
    joined = ["".join(word).encode() for word in words]
    plain = [re.sub(rb"\\x(..)", lambda found: bytes.fromhex(found[1].decode()), word).decode() for word in joined]
    spans = default_tokenizer()(text)
    assert "".join(plain) == "".join(text.lower().split())
    if pieces.merges:
        assert sum(map(len, words)) == len(spans)


def test_the_title_says_what_draws(lab: TextToImageLab) -> None:
    assert (
        "images of 16 x 12 pixels: 3 x 4 tokens of 4 x 4 pixels, each of 125 kinds. It reads captions of up to 12 "
        "pieces." in lab.about
    )


# ---- the page


def test_the_command_takes_a_model(dalle: DALLE, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    served: list[dict[str, Any]] = []
    monkeypatch.setattr(server, "serve", lambda source, listening, **given: served.append(given))
    monkeypatch.setattr(places, "hub_file", lambda *, download: None)
    file, other = tmp_path / "dalle.safetensors", tmp_path / "dvae.safetensors"
    save_dalle(dalle, file)
    save_dvae(seeded(TINY_SMALL), other)
    assert main(["lab", "--dalle", str(file)]) == 0
    assert main(["lab", "--dalle", str(file), "--dvae", str(other)]) == 0
    alone, both = served
    assert torch.equal(alone["dalle"].tokens(CAPTION, [3]), dalle.tokens(CAPTION, [3]))
    assert alone["dvae"] is alone["dalle"].dvae
    assert both["dvae"].config == TINY_SMALL
    assert main(["lab", "--dalle", str(other)]) == 1
    assert "dvae.safetensors: this is no DALL·E of ours" in capsys.readouterr().err
    assert len(served) == 2


@pytest.mark.slow
def test_images_are_drawn_and_cancelled_in_the_browser(tmp_path: Path, tab: Tab, small_clip: Path) -> None:
    file = tmp_path / "dalle.safetensors"
    save_dalle(dalle_of(PriorConfig(**{**vars(PRIOR), "rows": 64, "columns": 64})), file)
    with running_lab(tmp_path, "--weights", str(small_clip), "--dalle", str(file)) as address:
        page = LabPage(tab)
        page.open(address)
        page.open_part("Image tokens")
        page.wait_for_text("dvae", "125 tokens")  # the model's own
        page.open_part("Text to image")
        page.wait_for_text("dalle", "64 x 64 tokens")
        page.fill("caption", "small rings")
        assert page.wait_for_text("pieces", "of at most 12 pieces").startswith("small")
        page.click("draw")
        page.wait_for_pictures("drawn", 8)
        page.click("draw_cancel")
        line = page.wait_for_text("draw_progress", "cancelled after")
        assert re.search(r"cancelled after token \d+ of 4096, images 1 to 8 of 8", line)
        assert page.wait_for_pictures("drawn", 8)[0]["alt"] == "small rings, image 1. seed 0"
        page.fill("caption", "small " * 13)
        page.wait_for_text("pieces", "13 of at most 12 pieces")
        page.click("draw")
        assert "has 13 pieces: this model reads at most 12" in page.wait_for_text("draw_progress", "the caption")
        assert tab.complaints() == []
