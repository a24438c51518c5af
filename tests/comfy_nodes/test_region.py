"""Regional Prompt on a fake host: what it carries, and what it refuses. tests/hosts/inprocess_regions.py samples."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from weighted_clip.hosts.comfy.attention.fields import Step, Where
from weighted_clip.hosts.comfy.attention.marker import regions_of
from weighted_clip.hosts.comfy.attention.regions import Region
from weighted_clip.hosts.comfy.attention.steps import MARKER
from weighted_clip.hosts.comfy.families.attention_layers import ComfyWeighting
from weighted_clip.weighting.placing.queries import Queries
from weighted_clip.weighting.placing.shared_attention import SharedAttention

from .fake_comfy import defaults, node
from .test_place import conditioning, place


def region(base, prompt, **inputs):
    return node("Region").place(**{**defaults("Region"), "base": base, "region": prompt, **inputs})["result"]


def rows_like(conditioning, width=None, **values):
    """Stock's conditioning of random rows."""
    rows = conditioning[0][0]
    shape = (1, rows.shape[1], width or rows.shape[2])
    return [[torch.randn(shape, generator=torch.Generator().manual_seed(1)), values]]


def test_regions_are_attached_to_copies_and_chained() -> None:
    base, dog = conditioning(text="a meadow"), conditioning(text="a blue dog")
    house = rows_like(base)
    first, report = region(base, dog, area="left half", unique_id="7")
    assert "region 1: 77 rows" in report and "strength 1 in area “left half”" in report
    second, report = region(first, house, mask=torch.ones(16, 16), strength=0.5, start=2, end=4, unit="steps")
    assert "region 2: 77 rows" in report and "strength 0.5 in the mask" in report and "from step 2" in report
    assert "model_conds" not in base[0][1] and "model_conds" not in dog[0][1]
    assert torch.equal(second[0][0], base[0][0])
    assert second[0][1]["pooled_output"] is base[0][1]["pooled_output"]
    one, two = regions_of(second[0][1])
    assert (one.rows, two.rows) == (range(77, 154), range(154, 231))
    assert one.text is dog[0][0] and two.text is house[0][0]
    assert (one.where.node_id, two.strength, two.where.in_steps) == ("7", 0.5, True)
    marker = second[0][1]["model_conds"][MARKER]
    assert marker.num_own == 77 and marker._copy_with(marker.cond).regions == (one, two)


def test_words_weights_and_places_of_a_region_come_along() -> None:
    base = conditioning("WeighAttention", "a (red:2) meadow")
    dog, _ = place(conditioning("WeighAttention", "a (blue:0.5) dog"), "dog", area="top")
    found, _ = region(base, dog, area="left")
    bias, factor = found[0][1]["model_conds"][MARKER].cond.view(2, -1)
    assert torch.allclose(bias[[2, 77 + 2]], torch.tensor([2.0, 0.5]).log()) and bool((factor == 1).all())
    (field,) = found[0][1]["model_conds"][MARKER].fields
    assert field.rows == (77 + 3,)
    # a phrase is found in both
    both, report = place(region(base, conditioning(text="a red dog"))[0], "red", area="left")
    assert both[0][1]["model_conds"][MARKER].fields[0].rows == (2, 77 + 2) and "2 rows" in report


def test_the_page_is_shown_words_phrases_and_regions() -> None:
    base, _ = place(conditioning(text="a red (meadow:1.2)"), "meadow", area="top")
    dog = conditioning("A1111Encode", "a [red:blue:10] dog, don't " + "run " * 20)
    placed, _ = place(dog, "red", area="bottom")
    first, _ = region(base, placed, area="left half", unique_id="7")
    inputs = {"base": first, "region": rows_like(base), "mask": torch.eye(4)[None], "strength": 0.5}
    given = {**defaults("Region"), **inputs, "start": 2, "end": 4, "unit": "steps", "unique_id": "8"}
    shown = node("Region").place(**given)["ui"]
    (view,) = shown["weighted_clip"]
    assert shown["text"] == ["region 2: 77 rows"] and view["text"] == "a red meadow"
    # the base has the word too, but the region's is placed
    assert [chip["places"] for chunk in view["chunks"] for chip in chunk["chips"]] == [[], [], [0]]
    assert [one["name"] for one in view["places"]] == ["“meadow”", "“red”", "region 1", "region 2"]
    one, two = view["places"][2:]
    assert one["words"] == "a red dog, don't run run run run run run…"
    assert (one["strength"], one["area"], one["node"], one["is_own"]) == (1.0, "left half", "7", False)
    assert one["picture"][0] == [1.0] * 8 + [0.0] * 8
    assert (two["words"], two["strength"], two["is_own"], two["has_mask"]) == ("", 0.5, True, True)
    assert (two["start"], two["end"], two["unit"]) == (2, 4, "steps") and two["picture"] == torch.eye(4).tolist()
    # a base of another node has no words that are known, and without a region there is nothing to show
    given |= {"base": rows_like(base), "region": dog, "mask": None}
    (view,) = node("Region").place(**given)["ui"]["weighted_clip"]
    assert view["num_tokens"] == 0 and [one["name"] for one in view["places"]] == ["region 1"]
    assert node("Region").place(**{**given, "strength": 0.0})["ui"]["weighted_clip"] == []


def test_texts_that_follow_each_other_are_one_region() -> None:
    base = conditioning("A1111Encode", "a [red:blue:10] meadow")
    dog = conditioning("A1111Encode", "a [dog:cat:5]")
    found, report = region(base, dog)
    assert "2 texts one after the other" in report
    for rows, values in found:
        one, two = regions_of(values)
        assert one.where is two.where and one.times[1] < two.times[0] and one.rows.stop == two.rows.start
        assert one.rows.start == rows.shape[1]
    assert region(found, dog)[1].startswith("region 2")
    halves = [[rows, {"start_percent": n / 2, "end_percent": (n + 1) / 2}] for n, (rows, _) in enumerate(dog)]
    assert "2 texts one after the other" in region(base, halves)[1]  # the host's nodes leave no gap between them


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(None, None, {1, 2}), (6.0, None, {2}), (None, 6.0, {1}), (9.0, 1.0, {1, 2}), (3.0, 1.0, set())],
)
def test_a_region_acts_where_both_its_entry_and_the_bases_are_sampled(start, end, expected) -> None:
    levels = [9.0, 7.0, 5.0, 3.0, 1.0, 0.0]
    sampling = SimpleNamespace(percent_to_sigma=lambda part: 10 * (1 - part))
    step = Step(SimpleNamespace(model_sampling=sampling), torch.zeros(1, 4, 2, 2), torch.tensor(9.0), levels, {})
    one = Region(torch.zeros(1, 77, 8), range(77, 154), 1.0, Where("region 1"), (0.2, 0.6))  # levels 8 to 4
    assert one.steps(step, start, end) == expected
    own = {index for index, level in enumerate(levels[:-1]) if one.acts(step._replace(sigma=torch.tensor(level)))}
    assert own == {1, 2}


def test_strength_0_attaches_nothing() -> None:
    base = conditioning(text="a meadow")
    same, report = region(base, conditioning(text="a dog"), strength=0.0)
    assert same is base and "conditioning unchanged" in report


@pytest.mark.parametrize(
    ("values", "inputs", "message"),
    [
        ({"width": 32}, {}, "rows of base are 64 wide, those of region 32"),
        ({"mask": torch.ones(1, 4, 4)}, {}, "comes with a mask"),
        ({"area": (1, 1, 0, 0), "control": object()}, {}, "comes with an area, a ControlNet"),
        ({"strength": 0.5}, {}, "comes with the strength 0.5"),
        ({}, {"strength": -1.0}, "strength must be 0 or above, got -1"),
        ({}, {"area": "upstairs"}, "“upstairs” is not understood"),
        ({}, {"mask": torch.zeros(1, 4, 4)}, "The mask is empty"),
        ({}, {"start": 0.6, "end": 0.4}, "start must be before end"),
        ({}, {"unit": "minutes"}, "unit must be one of: percent, steps"),
        ({}, {"blocks": "some"}, "blocks must be one of: all, every other"),
    ],
)
def test_what_cannot_be_a_region_is_refused(values, inputs, message) -> None:
    base = conditioning(text="a meadow")
    with pytest.raises(ValueError, match=message):
        region(base, rows_like(base, **values), **inputs)


def test_several_prompts_at_once_and_regions_of_regions_are_refused() -> None:
    base, dog = conditioning(text="a meadow"), conditioning(text="a dog")
    with pytest.raises(ValueError, match="2 prompts at the same time"):
        region(base, [*dog, *dog])
    with pytest.raises(ValueError, match="2 prompts in one entry"):
        region(base, [[dog[0][0].repeat(2, 1, 1), dog[0][1]]])
    with pytest.raises(ValueError, match="has regions itself"):
        region(base, region(base, dog)[0])
    with pytest.raises(ValueError, match="one of them is empty"):
        region(base, [])
    weighed = conditioning("WeighAttention", "a (dog:2)")
    with pytest.raises(ValueError, match="got 77 rows of text, but the sampler got others"):
        region(base, [[0.5 * weighed[0][0], weighed[0][1]]])


def attention(query, key, value, heads, mask):
    """The host's, for ``[batch, rows, heads * dim]``."""
    q, k, v = (one.unflatten(2, (heads, -1)).transpose(1, 2) for one in (query, key, value))
    return scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)


def test_each_image_reads_its_prompts_apart_and_mixes_them_by_place() -> None:
    """Against a loop over images, places and prompts; the keys of image 1 end with rows that nobody reads."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(3, rows, 8, generator=generator) for rows in (4, 9, 9))
    mask = torch.randn(3, 1, 1, 9, generator=generator)
    owners = torch.tensor([[0] * 4 + [1] * 3 + [2] * 2, [0] * 4 + [1] * 2 + [-1] * 3, [0] * 4 + [-1] * 5]).float()
    shares = torch.rand(3, 3, 2, 2, generator=generator)
    shares[0, 0] = 0.0
    shares[1, 2] = 0.0
    shares[2] = torch.tensor([1.0, 0.0, 0.0])[:, None, None]
    shared = SharedAttention(owners, shares)
    found = shared.attend(Queries((2, 2)), 0, attention, query, key, value, 2, mask)
    for image in range(3):
        for cell in range(4):
            expected = torch.zeros(8)
            for prompt in range(3):
                own = owners[image] == prompt
                if own.any():
                    one = (query[image, cell], key[image, own], value[image, own], mask[image, ..., own])
                    expected += shares[image, prompt].flatten()[cell] * by_hand(*one)
            torch.testing.assert_close(found[image, cell], expected)
    assert (0, [0], slice(0, 4)) not in shared.parts


def test_blocks_are_those_of_each_region() -> None:
    base, dog = conditioning(text="a meadow"), conditioning(text="a blue dog")
    found, report = region(region(base, dog)[0], dog, area="left", blocks="every other")
    assert [one.blends for one in regions_of(found[0][1])] == [False, True] and "in every other block" in report


@pytest.mark.parametrize("blends", [(0.0, 1.0, 0.0), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)])
def test_all_read_the_prompts_that_blend_in_every_second_block(blends) -> None:
    """Three rows of text, of a prompt each, then 2 × 2 places."""
    weighing = ComfyWeighting(torch.zeros(1, 3), torch.ones(1, 3))
    weighing.queries = Queries((2, 2), before=3, text=range(3))
    shares = torch.rand(1, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    weighing.shared = SharedAttention(torch.tensor([[0.0, 1.0, 2.0]]), shares, torch.tensor([blends]))
    seen = []

    def attention(query, key, value, heads, mask):
        seen.append(torch.zeros(7, 7) if mask is None else mask[0, 0])
        return query

    for _ in range(4):
        weighing.attend(attention, *torch.zeros(3, 1, 7, 8), 2)
    masked = torch.zeros(7, 7)
    masked[:3, :3] = -100.0 * (1 - torch.eye(3))
    masked[3:, :3] = shares[0].flatten(1).log().T
    between = masked.clone()
    between[:, :3][:, torch.tensor(blends) > 0] = 0.0
    for found, expected in zip(seen, (masked, between, masked, between), strict=True):
        torch.testing.assert_close(found, expected)


def by_hand(query, key, value, bias):
    """Attention of one query, two heads."""
    read = []
    for own in (slice(0, 4), slice(4, 8)):
        logits = (key[:, own] @ query[own]) / 2 + bias[0, 0]
        shares = logits.exp() / logits.exp().sum()
        read.append(shares @ value[:, own])
    return torch.cat(read)
