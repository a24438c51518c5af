"""The nodes Watch Words and Word Maps on a fake host, and what is said and drawn of maps."""

import base64
import copy
import json
import string
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from weighted_clip.hosts.comfy.attention.recorder import MAX_RECORDS, Maps, Record, Watch
from weighted_clip.hosts.comfy.attention.steps import MARKER
from weighted_clip.hosts.comfy.placing import word_maps
from weighted_clip.hosts.comfy.placing.word_maps import (
    MAX_PICTURES,
    SCALES,
    WordMap,
    maps_of,
    message_of,
    place_of,
    places_of,
    scaled,
    table_of,
)
from weighted_clip.web.pictures import draw_heat, draw_word_maps
from weighted_clip.weighting.placing.fields import means
from weighted_clip.weighting.placing.queries import Queries

from .fake_comfy import defaults, encode, node

TEXT = "a red cat and a blue dog"


def watched(text=TEXT, **inputs):
    conditioning = encode("TextEncode", None, text)["result"][0]
    return node("Watch").watch(**{**defaults("Watch"), "conditioning": conditioning, **inputs})


def sampled(watch, shares, result):
    """Let a watch record constant shares of its words, and an empty step."""
    record = Record(watch, torch.zeros(1, 4, 2, 3), 8)
    record._sums[:] = torch.tensor(shares)[None, :, None, None]
    record._counts[:] = 1
    watch.add(record, result)


def test_words_are_those_of_the_prompt_or_those_asked_for() -> None:
    ((_, values),), watch = watched()
    assert watch.names == ("a", "red", "cat", "and", "blue", "dog")
    (own,) = values["model_conds"][MARKER].watches
    assert own.rows == ((1, 5), (2,), (3,), (4,), (6,), (7,))
    _, few = watched(words="Red  cat\n\n blue\nRed cat")
    assert few.names == ("Red cat", "blue")
    _, by_row = watched(words="red cat\nblue", layers="as DAAM")
    assert by_row.lengths == (2, 1)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"words": "red\ngreen"}, "“green” is not in the prompt"),
        ({"text": ""}, "no words to watch"),
        ({"every": 0}, "every must be 1 or above, got 0"),
        ({"layers": "some"}, "layers must be one of: all, coarse, fine, as DAAM; got 'some'"),
    ],
)
def test_what_cannot_be_watched_is_refused(inputs, message) -> None:
    with pytest.raises(ValueError, match=message):
        watched(**inputs)


def test_without_a_choice_the_first_words_are_watched_and_the_report_says_so() -> None:
    text = " ".join(f"{letter}x" for letter in string.ascii_lowercase)
    _, watch = watched(text)
    assert watch.names == tuple(text.split())[:12]
    result = torch.ones(1, 4, 2, 3)
    sampled(watch, [0.1] * 12, result)
    report = node("WordMaps").show(watch, {"samples": result}, "one for all", "")["result"][3]
    assert report.splitlines()[0].startswith("the first 12 of 26 words")
    _, chosen = watched(text, words="\n".join(text.split()[:20]))
    assert len(chosen.names) == 20 and not chosen.note
    with pytest.raises(ValueError, match="At most 50 words can be watched at a time, got 51"):
        watched(words="\n".join(map(str, range(51))))


@pytest.mark.parametrize(
    ("names", "latent", "layers"),
    [(["a"] * 20, (64, 4, 256, 256), "all"), (["a"], (8, 16, 900, 128, 128), "all")],
)
def test_maps_of_a_sampling_are_bounded_before_they_are_made(names, latent, layers) -> None:
    with pytest.raises(ValueError, match="512 MiB at most are allowed: take fewer words"):
        Record(Watch(names, layers=layers), torch.empty(latent, device="meta"), 8)


def test_as_daam_is_bounded_by_what_it_keeps() -> None:
    watch = Watch(["cat"], layers="as DAAM")
    record = Record(watch, torch.zeros(1, 4, 64, 64), 8)
    maps = Maps(torch.ones(1, 1, 5), torch.zeros(1, 4, 64, 64), ["as DAAM"], has_grids=True)
    maps._finest, maps.by_layer = (64, 64), {1: torch.empty(1, 2**15, 1, 64, 64, device="meta")}
    with pytest.raises(ValueError, match="as DAAM, which keeps those of each layer and head, would take 1,024 MiB"):
        record.add([True], maps, slice(0, 1), slice(0, 1), None)


def test_outputs_that_nobody_uses_are_not_made() -> None:
    watch, result = Watch(["cat", "a"]), torch.ones(1, 4, 2, 3)
    sampled(watch, [0.2, 0.05], result)
    for slot in range(3):
        graph = {"7": {"inputs": {}}, "8": {"inputs": {"images": ["7", slot]}}}
        show = node("WordMaps").show(watch, {"samples": result}, SCALES[0], "", prompt=graph, unique_id="7")
        assert [output.numel() > 3 for output in show["result"][:3]] == [slot == number for number in range(3)]
        pixels = 16 * 24 * 2 * 4 * (1, 0, 3)[slot]
        assert sys.modules["comfy.model_management"].freed[-1] == (pixels, torch.device("cpu"))


def test_masks_and_overlays_of_many_words_are_bounded(monkeypatch) -> None:
    names = list(string.ascii_lowercase)
    watch, result = Watch(names), torch.ones(1, 4, 2, 3)
    sampled(watch, [0.1] * 26, result)
    monkeypatch.setattr(word_maps, "MAX_OUTPUT", 16 * 24 * 16 * 5)
    masks, _, overlays, report = node("WordMaps").show(watch, {"samples": result}, SCALES[0], "")["result"]
    assert len(masks) == len(overlays) == 5
    assert report.splitlines()[0].startswith("masks and overlays: the first 5 of 26 words")
    masks, *_, report = node("WordMaps").show(watch, {"samples": result}, SCALES[0], "z,")["result"]
    assert len(masks) == 1 and "the first" not in report


@pytest.mark.parametrize("words", ["cat", ""])
def test_a_conditioning_of_a_stock_node_is_refused(words) -> None:
    with pytest.raises(ValueError, match="does not say which of its rows are words"):
        node("Watch").watch([[torch.zeros(1, 77, 8), {}]], words, 1, "all")


def test_the_last_samplings_are_kept_and_told_apart() -> None:
    watch = Watch(["cat"])
    results = [torch.full((1, 4, 2, 3), float(number)) for number in range(MAX_RECORDS + 1)]
    for number, result in enumerate(results):
        sampled(copy.deepcopy(watch), [number / 10], result)
    assert float(watch.record_of(results[2]).maps().max()) == pytest.approx(0.2)
    for other in (results[0], results[1][:, :1], torch.full((1, 4, 2, 3), torch.nan)):
        with pytest.raises(ValueError, match="No word maps are known of this LATENT"):
            watch.record_of(other)


def test_a_call_that_a_cache_answers_has_no_maps() -> None:
    watch, latent = Watch(["cat"], layers="coarse"), torch.zeros(1, 4, 2, 3)
    record = Record(watch, latent, 8)
    maps = Maps(torch.ones(1, 1, 5), latent, ["coarse"], has_grids=True)
    record.add([True], maps, slice(0, 1), slice(0, 1), None)
    assert not bool(record.maps().any())

    def read(value):
        return value.mean(2, keepdim=True).expand(-1, -1, 6, -1)

    maps.add(1, Queries((2, 3)), (0, 0), read, torch.zeros(1, 2, 5, 4), 4, None, is_by_row=False)
    with pytest.raises(ValueError, match="This model has no coarse layers"):
        record.add([True], maps, slice(0, 1), slice(0, 1), None)


def test_each_frame_of_a_video_has_the_map_of_the_models_frame() -> None:
    watch, result = Watch(["cat"]), torch.ones(1, 4, 3, 2, 3)
    record = Record(watch, torch.zeros(1, 16, 3, 2, 3), 8, 4)
    record._sums[:] = torch.tensor([0.1, 0.2, 0.3]).view(1, 1, 3, 1, 1)
    record._counts[:] = 1
    watch.add(record, result)
    (alone,), (of_frames,) = maps_of(watch, result), maps_of(watch, result, torch.zeros(9, 20, 30, 3))
    assert alone.at(2).shape == (16, 24) and of_frames.at(8).shape == (20, 30)
    assert [float(of_frames.at(number)[0, 0]) for number in range(9)] == pytest.approx([0.1, *[0.2] * 4, *[0.3] * 4])
    with pytest.raises(ValueError, match="image has 8 pictures, but the LATENT has 3"):
        maps_of(watch, result, torch.zeros(8, 20, 30, 3))


def test_scales() -> None:
    def scaled_maps(shares: list[list[float]], scale: str) -> list[list[float]]:
        maps = [torch.tensor([own]) for own in shares]
        largest = max(float(own.max()) for own in maps)
        return [scaled(own, place_of(own), largest, scale).flatten().tolist() for own in maps]

    shares = [[0.1, 0.4], [0.01, 0.02]]
    assert scaled_maps(shares, "one for all") == [pytest.approx([0.25, 1.0]), pytest.approx([0.025, 0.05])]
    assert scaled_maps(shares, "each its own") == [[0.0, 1.0], [0.0, 1.0]]
    for scale in SCALES:
        assert scaled_maps([[0.0, 0.0]], scale) == [[0.0, 0.0]]


@pytest.mark.parametrize(
    ("num_words", "num_pictures", "size"), [(1, 1, (64, 96)), (32, 8, (512, 512)), (200, 30, (64, 8))]
)
def test_what_the_page_gets_is_small_and_close(num_words, num_pictures, size) -> None:
    shares = torch.rand(num_words, num_pictures, *size, generator=torch.Generator().manual_seed(1)) / num_words
    told = message_of([WordMap(f"word {index}", own) for index, own in enumerate(shares)], is_one_scale=True)
    assert len(json.dumps(told)) < 200_000
    number, cells = min(num_pictures, MAX_PICTURES), told["rows"] * told["columns"]
    levels = torch.frombuffer(bytearray(base64.b64decode(told["maps"])), dtype=torch.uint8)
    found = levels.view(number, num_words, cells) / 255 * torch.tensor(told["largest"])[..., None]
    expected = means(shares[:, :number], (told["rows"], told["columns"])).transpose(0, 1).flatten(2)
    assert told["num_pictures"] == num_pictures
    assert (found - expected).abs().max() <= float(expected.max()) / 500


def test_the_node_gives_what_the_page_draws() -> None:
    watch = Watch(["cat", "a"])
    result = torch.ones(1, 4, 2, 3)
    sampled(watch, [0.2, 0.05], result)
    shown = node("WordMaps").show(watch, {"samples": result}, "each its own", "cat")
    (told,) = shown["ui"]["weighted_clip"]
    assert (told["words"], told["previews"], told["is_one_scale"]) == (["cat", "a"], [None], False)
    assert told["largest"] == [pytest.approx([0.2, 0.05])]
    masks, grid, overlay, report = shown["result"]
    assert masks.shape == (1, 16, 24) and overlay.shape == (1, 16, 24, 3) and grid.shape[-1] == 3
    assert report.splitlines() == shown["ui"]["text"] + report.splitlines()[1:]


@pytest.mark.parametrize("scale", SCALES)
def test_the_grid_says_how_much_1_is(scale: str) -> None:
    grids = []
    for least in (0.05, 0.1):
        watch, result = Watch(["cat", "a"]), torch.ones(1, 4, 2, 3)
        sampled(watch, [4 * least, least], result)
        masks, grid, *_ = node("WordMaps").show(watch, {"samples": result}, scale, "")["result"]
        grids.append((masks, grid))
    (masks, grid), (same_masks, other_grid) = grids
    torch.testing.assert_close(masks, same_masks)
    assert not torch.equal(grid, other_grid)


def test_the_report_says_where_a_word_was_read() -> None:
    corner = torch.zeros(4, 8)
    corner[0, 0] = 0.5
    place = place_of(corner)
    assert (place.across, place.down, place.spread) == pytest.approx((1 / 16, 1 / 8, 0.0), abs=1e-9)
    assert (place.mean, place.largest) == pytest.approx((0.5 / 32, 0.5))
    assert place_of(torch.ones(64, 64)).spread == pytest.approx((2 / 12) ** 0.5, abs=1e-3)
    maps = [WordMap("cat", corner[None]), WordMap("dog", torch.ones(1, 4, 8) / 5)]
    lines = table_of(["cat", "dog"], places_of(maps)).splitlines()
    assert lines[0].startswith("dog: 20.00% of the attention") and lines[1].startswith("cat: 1.56%")


def test_a_map_over_its_picture_keeps_its_colours_where_the_word_was_read() -> None:
    values = np.zeros((10, 20), dtype=np.float32)
    values[:, :10], values[0, 0] = 1, np.nan
    drawn = np.asarray(draw_heat(values, Image.new("RGB", (40, 20), (200, 40, 40))))
    assert drawn.shape == (10, 20, 3)
    assert tuple(drawn[5, 5]) == (200, 40, 40)
    assert len(set(drawn[5, 15])) == 1 and len(set(drawn[0, 0])) == 1
    alone = np.asarray(draw_heat(values))
    assert alone[5, 5].sum() > 600 > alone[5, 15].sum()


def test_the_grid_has_a_tile_for_each_word() -> None:
    maps = [(word, np.full((16, 24), index / 4)) for index, word in enumerate(["cat", "a long phrase " * 5, "", "dog"])]
    few = draw_word_maps(maps[:1], "note")
    many = draw_word_maps(maps * 4, "note", Image.new("RGB", (9, 6)))
    assert many.height > few.height and many.width > few.width
    with pytest.raises(ValueError, match="there must be a map"):
        draw_word_maps([], "note")
