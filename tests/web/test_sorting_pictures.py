"""The confusion matrix and the unsure images: numbers, shares, what is left out, labels and images of every kind."""

from __future__ import annotations

import pytest
from PIL import Image
from weighted_clip.web.pictures import style
from weighted_clip.web.pictures.canvas import Canvas
from weighted_clip.web.pictures.matrices import draw_confusion
from weighted_clip.web.pictures.sheets import KEPT_SIDE, Card, draw_unsure

from .test_similarity_pictures import ODD_IMAGES, TEXTS


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every text that is drawn, in order."""
    texts: list[str] = []

    def watched(real):
        def text(self: Canvas, x: float, y: float, text: str, *arguments: object, **options: object):
            texts.append(text)
            return real(self, x, y, text, *arguments, **options)

        return text

    for name in ("text", "upright_text"):
        monkeypatch.setattr(Canvas, name, watched(getattr(Canvas, name)))
    return texts


def test_a_matrix_has_the_counts_by_row_and_what_is_right(written: list[str]) -> None:
    draw_confusion([[3, 1, 0], [0, 7, 5], [0, 0, 0]], ["cat", "dog", "bird"], title="Eleven")
    labels = [text for text in written if text in ("cat", "dog", "bird")]
    assert labels == ["cat", "cat", "dog", "dog", "bird", "bird"]  # above its column and next to its row
    numbers = [text for text in written if text.isdigit() or text.endswith("%") or text == "none"]
    assert numbers == ["3", "1", "0", "75 %", "0", "7", "5", "58 %", "0", "0", "0", "none"]
    assert written[0] == "Eleven"


def test_a_cell_has_the_colour_of_its_share_of_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    fills: list[style.Color] = []
    real = Canvas.box

    def box(self: Canvas, *arguments: float, **options: object) -> None:
        fills.append(options["fill"])
        real(self, *arguments, **options)

    monkeypatch.setattr(Canvas, "box", box)
    draw_confusion([[10, 0], [1, 1]], ["a", "b"])
    light = style.LIGHT
    middle = style.mix(light.surface, light.visible, 0.5)
    assert fills == [light.visible, light.surface, middle, middle]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("count", [1, 2, 9, 17, 40])
def test_any_labels_are_drawn_and_those_that_are_not_are_counted(count: int, theme: str, written: list[str]) -> None:
    labels = [(TEXTS[number] if number < len(TEXTS) else f"label {number}") for number in range(count)]
    picture = draw_confusion([[10**6] * count for _ in labels], labels, title="x " * 90, theme=theme)
    assert picture.mode == "RGB"
    assert max(picture.size) < 1500
    assert ("not drawn: 8 more labels" in written) == (count == 40)


@pytest.mark.parametrize(("counts", "labels"), [([], []), ([[1]], ["a", "b"]), ([[1, 2], [3]], ["a", "b"])])
def test_a_matrix_that_does_not_fit_is_refused(counts: list[list[int]], labels: list[str]) -> None:
    with pytest.raises(ValueError, match="labels need as many rows and columns of counts"):
        draw_confusion(counts, labels)


def test_unsure_images_have_both_labels_their_probabilities_and_the_end_of_their_name(written: list[str]) -> None:
    cards = [Card("x" * 60 + "end.png", (("cat", 0.514), ("dog", 0.486))), Card("b.png", (("dog", 0.9), ("cat", 0.1)))]
    images = [Image.new("RGB", (9, 9), "red"), Image.new("RGB", (9, 9), "blue")]
    picture = draw_unsure(images, cards, "The title")
    assert [text for text in written if not text.startswith("…")] == [
        *("The title", "cat", "51 %", "dog", "49 %"),
        *("dog", "90 %", "cat", "10 %", "b.png"),
    ]
    assert next(text for text in written if text.startswith("…")).endswith("xend.png")
    colors = dict((color, count) for count, color in picture.getcolors(picture.width * picture.height))
    assert colors[255, 0, 0] == colors[0, 0, 255] == KEPT_SIDE * KEPT_SIDE


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_any_images_and_labels_are_drawn(theme: str) -> None:
    cards = [Card(name, ((name, 1.0), (name, 0.0))) for name in TEXTS[: len(ODD_IMAGES)]]
    picture = draw_unsure(ODD_IMAGES, cards, "x", theme=theme)
    assert picture.mode == "RGB"
    assert picture.width < 1000


def test_cards_that_do_not_fit_are_refused() -> None:
    for images in ([], [Image.new("RGB", (3, 3))]):
        with pytest.raises(ValueError, match="images need as many cards, and there must be one"):
            draw_unsure(images, [], "x")
