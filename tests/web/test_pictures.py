"""Pictures: colours, places and sizes of the token strip, masks cell by cell.

Pixels are only compared where a flat colour is expected, so any font will do.
"""

import copy
import itertools
import string
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageChops
from weighted_clip.encoder.masks import causal_mask, padding_mask
from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.web.pictures import draw_encoding_masks, draw_tokens, fonts, style
from weighted_clip.web.pictures.canvas import shorten, wrap
from weighted_clip.web.pictures.masks import Grid, draw_masks, make_grid, mask_labels
from weighted_clip.web.pictures.tokens import (
    MAX_MESSAGES,
    Border,
    Chip,
    footer_texts,
    lay_out,
    message_lines,
    place,
    strip_items,
)
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.pipeline import plan_prompt
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.reading.view import view, weight_text
from weighted_clip.weighting.text.chunks import ChunkLayout

from .conftest import count_color

EXAMPLE = "a photo of a (red:1.4) cat and a (dog:0.5) in a [wooden] bowl, chiaroscuro"
TINY = TextConfig(vocab_size=50, context_length=9, hidden_dim=8, num_heads=2, num_layers=3, mlp_dim=16)


def make_view(text, **options):
    return view(read_prompt(text, EncodeOptions(**options), default_tokenizer()))


def chips(view_):
    return [item for item in strip_items(view_) if isinstance(item, Chip)]


def borders(view_):
    return [item.text for item in strip_items(view_) if isinstance(item, Border)]


def chip_places(view_, width=1200):
    """Left, top, right, bottom in the picture of each chip, by its text."""
    return {
        item.item.text: (
            style.MARGIN + item.left,
            style.MARGIN + item.top,
            style.MARGIN + item.left + item.width,
            style.MARGIN + item.top + style.CHIP_HEIGHT,
        )
        for item in lay_out(view_, width).placed
    }


# --- tokens


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_chips_have_the_color_of_their_weight(theme):
    example = make_view(EXAMPLE, syntax="a1111")
    image = draw_tokens(example, theme=theme)
    colors = style.THEMES[theme]
    assert image.mode == "RGB"
    assert image.width == 1200
    assert image.getpixel((2, 2)) == colors.background
    places = chip_places(example)
    weights = {"photo": 1.0, "red": 1.4, "dog": 0.5, "wooden": 1 / 1.1, "bowl": 1.0}
    for text, weight in weights.items():
        left, top, right, _ = places[text]
        # above the letters
        assert image.getpixel((round((left + right) / 2), round(top) + 3)) == style.weight_color(weight, colors), text


def test_warm_is_above_one_and_cool_below():
    red, _, blue = style.weight_color(1.4, style.DARK)
    assert red > blue
    for weight in (0.5, 0.0):  # not violet yet
        red, green, blue = style.weight_color(weight, style.DARK)
        assert blue > green > red
    assert style.weight_color(1.0, style.DARK) == style.DARK.surface
    distances = [style.contrast(style.weight_color(w, style.LIGHT), style.LIGHT.surface) for w in (1.1, 1.3, 1.6, 3)]
    assert distances == sorted(distances)


def test_negative_weights_are_violet_with_a_frame():
    example = make_view("a (red:-0.5) cat", syntax="comfy")
    image = draw_tokens(example)
    left, top, right, _ = (round(value) for value in chip_places(example)["red"])
    fill = style.weight_color(-0.5, style.DARK)
    assert fill[2] > fill[1] and fill[0] > fill[1]
    middle = (left + right) // 2
    assert image.getpixel((middle, top + 3)) == fill
    assert style.contrast(image.getpixel((middle, top)), fill) > 2  # the frame


@pytest.mark.parametrize("name", ["dark", "light"])
def test_every_text_is_readable(name):
    theme = style.THEMES[name]
    for color in (theme.text, theme.muted, theme.problem):
        assert style.contrast(theme.background, color) >= style.MIN_CONTRAST
    for hundredths in range(-300, 400, 3):
        background = style.weight_color(hundredths / 100, theme)
        for wanted in (theme.text, theme.muted):
            assert style.contrast(background, style.readable(background, wanted)) >= style.MIN_CONTRAST


def test_tokens_of_one_word_touch_and_others_do_not():
    items = place(strip_items(make_view(EXAMPLE, syntax="a1111")), 1100)
    by_text = {item.item.text: item for item in items}
    chi, ar, bowl, comma = (by_text[text] for text in ("chi", "ar", "bowl", ","))
    assert chi.left + chi.width == pytest.approx(ar.left)
    assert bowl.left + bowl.width + style.CHIP_GAP == pytest.approx(comma.left)
    assert (chi.is_first, chi.is_last, ar.is_first) == (True, False, False)


def test_a_word_over_several_rows_ends_in_each():
    items = place(strip_items(make_view("pneumonoultramicroscopicsilicovolcanoconiosis")), 160)
    tops = [item.top for item in items]
    assert len(set(tops)) > 1
    assert [item.is_first for item in items] == [
        top != before for before, top in zip([None, *tops], tops, strict=False)
    ]
    assert [item.is_last for item in items] == [
        top != after for top, after in zip(tops, [*tops[1:], None], strict=True)
    ]


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("don't 2024", {"'t", "0", "2", "4"}),
        ("a,b", set()),
        ("cat dog", set()),
        ("[chi]aroscuro", {"osc", "uro"}),  # a bracket is in between
    ],
)
def test_which_tokens_go_on_with_a_word(text, joined):
    assert {chip.text for chip in chips(make_view(text, syntax="a1111")) if chip.joins} == joined


def test_tokens_of_one_character_are_one_chip_with_their_number():
    [chip] = chips(make_view("(猫:1.3)", syntax="a1111"))
    assert (chip.text, chip.num_tokens, chip.note) == ("猫", 3, "×3 1.3")
    assert len(chips(make_view("a a"))) == 2


def test_a_hidden_token_is_struck_through():
    example = make_view("a lighthouse on")
    hidden = copy.deepcopy(example)
    hidden["chunks"][0]["chips"][1]["hidden"] = True
    left, top, right, bottom = chip_places(example)["lighthouse"]
    middle = (top + bottom) / 2
    line = (left + style.CHIP_PADDING, middle - 1, right - style.CHIP_PADDING, middle + 1)
    num_pixels = round(line[2] - line[0]) * 2
    assert count_color(draw_tokens(hidden), style.DARK.muted, line) >= num_pixels * 0.98
    assert count_color(draw_tokens(example), style.DARK.muted, line) == 0
    assert "1 token hidden" in footer_texts(hidden)


def test_a_problem_is_underlined_at_its_place_and_told():
    text = "a red cat on (a green mat"
    example = make_view(text, syntax="a1111")
    assert [chip.text for chip in chips(example) if chip.has_problem] == ["a"]
    drawing = lay_out(example, 1200)
    marked = next(item for item in drawing.placed if item.item.has_problem)
    image = draw_tokens(example)

    def wave_pixels(item):
        left, bottom = style.MARGIN + item.left, style.MARGIN + item.top + style.CHIP_HEIGHT
        part = image.crop((round(left), round(bottom), round(left + item.width), round(bottom) + style.ROW_GAP - 1))
        return sum(part.getpixel(p)[0] > 150 for p in itertools.product(range(part.width), range(part.height)))

    assert wave_pixels(marked) > marked.width
    assert all(wave_pixels(item) == 0 for item in drawing.placed if item is not marked)
    assert [line for line, _ in drawing.messages] == ["1 problem", example["issues"][0]["message"]]
    assert draw_tokens(make_view("a red cat on (a green mat)", syntax="a1111")).height < image.height


def test_a_problem_behind_the_last_token_marks_that():
    example = make_view("a cat (", syntax="a1111")
    assert [chip.has_problem for chip in chips(example)] == [False, True]


def test_many_problems_are_counted():
    issues = [{"message": f"Problem {number}."} for number in range(20)]
    lines = message_lines(issues, 1000)
    assert lines[0] == "20 problems"
    assert lines[-1] == f"… and {20 - MAX_MESSAGES} more"
    assert len(lines) == MAX_MESSAGES + 2
    assert message_lines(issues[:12], 1000) == ["12 problems", *(f"Problem {number}." for number in range(12))]


def test_chunk_borders_say_how_full_the_chunk_is_and_break():
    assert borders(make_view("a b BREAK c", syntax="a1111")) == ["2 / 75  BREAK"]
    assert borders(make_view("a " * 80 + "BREAK b", syntax="a1111")) == ["75 / 75", "5 / 75  BREAK"]
    assert borders(make_view("a BREAK BREAK b", syntax="a1111")) == ["1 / 75  BREAK", "0 / 75  BREAK"]
    assert borders(make_view("a BREAK", syntax="a1111")) == ["1 / 75  BREAK"]
    assert borders(make_view("a")) == []


def test_the_footer_counts():
    assert footer_texts(make_view("a cat", scheme="masked_blend")) == ["2 / 75", "syntax comfy", "scheme masked_blend"]
    long = make_view("a " * 80, syntax="a1111", normalization="mean", padding="mask")
    texts = footer_texts(long)
    assert texts[:2] == ["5 / 75 in chunk 2 of 2", "80 tokens"]
    assert texts[-2:] == ["normalization mean", "padding mask"]


def test_the_meter_is_as_full_as_the_last_chunk():
    def filled(text):
        return count_color(draw_tokens(make_view(text)), style.DARK.accent)

    assert filled("") == 0
    assert filled("a " * 30) * 2 == pytest.approx(filled("a " * 60), rel=0.1)


@pytest.mark.parametrize("width", [160, 333, 1200])
def test_rows_stay_within_the_picture(width):
    example = make_view(EXAMPLE + ", supercalifragilisticexpialidocious " + "a" * 300, syntax="a1111")
    drawing = lay_out(example, width)
    for item in drawing.placed:
        assert item.left >= 0
        assert item.left + item.width <= width - 2 * style.MARGIN + 0.01
    tops = [item.top for item in drawing.placed]
    assert tops == sorted(tops)
    assert len(set(tops)) > 1
    assert draw_tokens(example, width=width).size == (width, drawing.height)


def test_a_long_token_is_cut_with_an_ellipsis():
    example = make_view("a")
    example["chunks"][0]["chips"][0]["text"] = "w" * 9000
    [chip] = chips(example)
    assert chip.text.endswith("…")
    assert fonts.text_width(chip.text, style.FONT_SIZE) <= style.MAX_CHIP_TEXT + 0.1


def test_the_empty_prompt_says_so():
    example = make_view("")
    assert lay_out(example, 1200).note == "This prompt has no tokens."
    assert len(draw_tokens(example).getcolors(10**6)) > 3


def test_pictures_are_the_same_every_time_and_differ_with_the_text():
    first, again = (draw_tokens(make_view(EXAMPLE, syntax="a1111")) for _ in range(2))
    assert first.tobytes() == again.tobytes()
    other = draw_tokens(make_view(EXAMPLE.replace("cat", "cab"), syntax="a1111"))
    assert ImageChops.difference(first, other.resize(first.size)).getbbox() is not None


def test_five_thousand_tokens():
    example = make_view("a cat on the mat, (long:1.2) " * 720, syntax="a1111")
    image = draw_tokens(example)
    assert example["num_tokens"] > 5000
    assert sum(chip.num_tokens for chip in chips(example)) == example["num_tokens"]
    assert image.height > 5000


def test_endless_prompts_are_cut_and_say_so():
    example = make_view("a cat on the mat " * 600)
    drawing = lay_out(example, 160)
    shown = sum(item.item.num_tokens for item in drawing.placed if isinstance(item.item, Chip))
    assert shown < example["num_tokens"]
    assert drawing.note == f"… and {example['num_tokens'] - shown:,} more tokens"


@settings(max_examples=50)
@given(text=st.text(st.characters() | st.sampled_from("()[]: ,a猫\u200d"), max_size=40))
@example(text="\U000e01f0")  # no letter, no mark, and no width in any font
def test_every_token_of_any_text_is_drawn(text):
    example = make_view(text, syntax="a1111")
    drawing = lay_out(example, 300)
    assert sum(item.item.num_tokens for item in drawing.placed if isinstance(item.item, Chip)) == example["num_tokens"]
    assert all(item.item.text and fonts.text_width(item.item.text, 17) > 0 for item in drawing.placed)
    assert draw_tokens(example, width=300).size == (300, drawing.height)


@pytest.mark.parametrize("options", [{"width": 159}, {"theme": "blue"}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        draw_tokens(make_view("a"), **options)


@pytest.mark.parametrize(
    ("weight", "text"),
    [
        (1.1, "1.1"),
        (1 / 1.1, "0.91"),
        (1.004, "1.004"),
        (0.001, "0.001"),
        (0.01, "0.01"),
        (999.5, "999.5"),
        (1000.0, "1e3"),
        (-2.5, "-2.5"),
        (0.0, "0"),
        (-1e30, "-1e30"),
    ],
)
def test_weight_text(weight, text):
    assert weight_text(weight) == text


# --- fonts


def test_tests_draw_with_the_font_that_is_committed_with_its_licence():
    folder = Path(__file__).resolve().parents[1] / "fonts"
    assert fonts.main_font() == fonts.main_font(bold=True) == str(folder / "DejaVuSans.ttf")
    assert "Bitstream Vera Fonts Copyright" in (folder / "LICENSE-DejaVu.txt").read_text(encoding="utf-8")


def test_a_character_without_a_glyph_becomes_its_code_point():
    private = "\U000f1234"  # private use: in no font of the lists
    [run] = fonts.runs(private)
    assert run.text == "U+F1234"
    assert run.scale < 1
    assert [run.text for run in fonts.runs("\n")] == ["U+000A"]
    assert [run.text for run in fonts.runs("\ud800")] == ["U+D800"]
    assert [run.text for run in fonts.runs("\u200d")] == ["U+200D"]


def test_ordinary_text_is_one_run():
    assert [run.text for run in fonts.runs("a red cat")] == ["a red cat"]


def test_without_fonts_the_built_in_one_draws(monkeypatch):
    caches = [fonts.main_font, fonts.runs, fonts.run_width, fonts._exists, fonts._load, fonts._font_of, fonts._glyph]
    with monkeypatch.context() as patch:
        for cache in caches:
            cache.cache_clear()
        patch.setattr(fonts, "_exists", lambda _file: False)
        assert fonts.main_font() == fonts.BUILT_IN
        example = make_view("(red:1.4) 猫 é", syntax="a1111")
        image = draw_tokens(example)
        colors = style.weight_color(1.4, style.DARK)
        assert len(image.getcolors(10**6)) > 20
        assert image.getpixel((style.MARGIN + 30, style.MARGIN + 3)) == colors
    for cache in caches:
        cache.cache_clear()


def test_shorten_and_wrap_fit():
    text = "an extraordinarily long sentence of several words"
    assert shorten(text, 10_000, 17) == text
    assert fonts.text_width(shorten(text, 90, 17), 17) <= 90.1
    lines = wrap(text, 150, 14)
    assert " ".join(lines) == text
    assert all(fonts.text_width(line, 14) <= 150 for line in lines)
    assert wrap("", 100, 14) == [""]


# --- masks


def grid_origin(title: str) -> tuple[float, float]:
    """The top left corner of the first grid of a picture, labels included."""
    return style.MARGIN, style.MARGIN + (style.TITLE_SIZE + 14 if title else 0)


def cell_centre(grid: Grid, row: int, column: int) -> tuple[float, float]:
    """From the grid's top left corner, labels included."""
    return grid.left + (column + 0.5) * grid.cell, grid.top + (row + 0.5) * grid.cell


def assert_cells_are(image: Image.Image, mask, labels, *, title="", visible=None, colors=style.LIGHT):
    grid = make_grid(mask, labels, visible=visible)
    left, top = grid_origin(title)
    for row, values in enumerate(grid.rows):
        for column, keep in enumerate(values):
            x, y = cell_centre(grid, row, column)
            expected = colors.visible if keep else colors.hidden
            assert image.getpixel((int(left + x), int(top + y))) == expected, (row, column)


@pytest.mark.parametrize("title", ["", "a title"])
@pytest.mark.parametrize("length", [1, 5, 20, 77])
def test_every_cell_has_the_color_of_its_mask(length, title):
    mask = torch.rand(length, length, generator=torch.Generator().manual_seed(0)) < 0.5
    labels = [f"t{number}" for number in range(length)]
    image = draw_masks([(title, mask)], labels)
    assert_cells_are(image, mask, labels, title=title)
    assert make_grid(mask, labels).rows == tuple(map(tuple, mask.tolist()))


def test_a_key_mask_holds_for_every_query():
    mask = padding_mask(torch.tensor([[1, 5, 2, 2]]), eos_id=2, pad_id=2)
    grid = make_grid(mask, ["BOS", "x", "EOS", "PAD"])
    assert grid.rows == ((True, True, True, False),) * 4


def test_cells_are_square_and_dots_stand_for_the_rest():
    mask, labels = causal_mask(77)[0], ["x"] * 77
    grid = make_grid(mask, labels, visible=6)
    assert len(grid.rows) == len(grid.rows[0]) == 6
    assert grid.more_rows and grid.more_columns
    assert grid.width - grid.left == grid.height - grid.top == 7 * grid.cell
    image = draw_masks([("", mask)], labels, visible=6)
    assert_cells_are(image, mask, labels, visible=6)
    x, y = cell_centre(grid, 0, 6)  # the middle dot
    left, top = grid_origin("")
    assert image.getpixel((int(left + x), int(top + y))) != style.LIGHT.background
    assert not make_grid(mask, labels, visible=77).more_rows


def test_another_label_makes_another_picture():
    mask = torch.ones(2, 2, dtype=torch.bool)
    assert draw_masks([("", mask)], ["BOS", "cat"]).tobytes() != draw_masks([("", mask)], ["BOS", "cab"]).tobytes()


def test_masks_stand_side_by_side_with_their_signs():
    causal = causal_mask(4)[0]
    labels = ["BOS", "a", "EOS", "PAD"]
    one = draw_masks([("left", causal)], labels)
    two = draw_masks([("left", causal), ("right", ~causal)], labels)
    grid = make_grid(causal, labels)
    assert two.width > one.width + grid.cell * 4
    x, y = cell_centre(grid, 0, 3)  # hidden on the left, visible on the right
    left, top = grid_origin("left")
    right = left + two.width - 2 * style.MARGIN - grid.width
    assert two.getpixel((int(left + x), int(top + y))) == style.LIGHT.hidden
    assert two.getpixel((int(right + x), int(top + y))) == style.LIGHT.visible


@pytest.mark.parametrize(
    ("mask", "labels", "options"),
    [
        ([[True, False]], ["a"], {}),
        ([True, False], ["a", "b"], {}),
        (torch.ones(2, 3, 3, dtype=torch.bool), ["a", "b", "c"], {}),
        ([[True]], ["a"], {"visible": 0}),
    ],
)
def test_masks_that_cannot_be_drawn_are_refused(mask, labels, options):
    with pytest.raises(ValueError, match=r"mask|labels|visible"):
        draw_masks([("", mask)], labels, **options)


@pytest.mark.parametrize("length", [77, 248, 1002])
def test_masks_of_encodings_fill_a_bounded_picture(length):
    """16 masks of as many tokens as a long encoder takes; further positions are dots."""
    text = " ".join(f"{word} cat" for word in string.ascii_lowercase) + " a" * length
    bind = "\n".join(f"{word} cat" for word in string.ascii_lowercase[1:])
    read = read_prompt(text, EncodeOptions(bind=bind), default_tokenizer(), ChunkLayout(length=length))
    variants = plan_prompt(read, default_tokenizer()).variants()
    image = draw_encoding_masks(read, variants)
    assert image.width * image.height < 16_000_000
    few = read_prompt("a cat", EncodeOptions(), default_tokenizer(), ChunkLayout(length=length))
    assert draw_encoding_masks(few, plan_prompt(few, default_tokenizer()).variants()).width < image.width


def test_labels_of_a_chunk():
    text = "(a 猫:1.2) BREAK b"
    chunks = read_prompt(text, EncodeOptions(syntax="a1111"), default_tokenizer()).chunks
    assert mask_labels(chunks[0], text)[:7] == ["BOS", "a", "猫 1/3", "猫 2/3", "猫 3/3", "EOS", "PAD"]
    assert mask_labels(chunks[1], text)[:4] == ["BOS", "b", "EOS", "PAD"]
    assert all(len(mask_labels(chunk, text)) == 77 for chunk in chunks)
