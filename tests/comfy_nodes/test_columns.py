"""A bias by place as columns of queries and keys: equal to the table of it, and to a softmax written out in float64."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from weighted_clip.hosts.comfy.families.attention_layers import OVERRIDE, ComfyWeighting, around_attention, takes_scale
from weighted_clip.weighting.placing.field_bias import FieldBias
from weighted_clip.weighting.placing.queries import Queries
from weighted_clip.weighting.placing.shared_attention import SharedAttention
from weighted_clip.workshop.bench.counting import DEVICE, counting

BATCH, TEXT, SIDE, REFERENCES, HEADS, DIM = 2, 6, 4, 3, 2, 16
TOTAL = TEXT + SIDE * SIDE + REFERENCES
INSIDE, OUTSIDE = 1.7, 0.0
TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
OPTIONS = {"transformer_options": {"reference_image_num_tokens": [REFERENCES]}}


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    mask: Tensor | None = None,
    scale: float | None = None,
    skip_output_reshape: bool = False,
    **_: Any,
) -> Tensor:
    parts = [one if one.dim() == 4 else one.unflatten(-1, (heads, -1)).transpose(1, 2) for one in (query, key, value)]
    result = scaled_dot_product_attention(*parts, attn_mask=mask, scale=scale)
    return result if skip_output_reshape else result.transpose(1, 2).flatten(2)


attention.takes_scale = True  # pyright: ignore[reportFunctionMemberAccess]


class InColumns(ComfyWeighting):
    most_of_table = 0


class AsTable(ComfyWeighting):
    most_of_table = 2**30


def left() -> Tensor:
    return torch.cat([torch.ones(SIDE, SIDE // 2), torch.zeros(SIDE, SIDE // 2)], 1)


def weighing_of(kind: type[ComfyWeighting], what: str) -> ComfyWeighting:
    bias = torch.zeros(BATCH, TEXT)
    bias[0, 1], bias[1, 3] = 0.7, -math.inf
    weighing = kind(bias, torch.ones(BATCH, TEXT))
    weighing.queries = Queries((SIDE, SIDE), before=TEXT, text=range(TEXT))
    if what != "regions":
        rows = torch.zeros(BATCH, 1, TEXT)
        rows[0, 0, 2] = 1
        weights = left() * INSIDE + (1 - left()) * OUTSIDE
        least = torch.where(rows[:, 0] > 0, math.log(INSIDE) if OUTSIDE else -math.inf, 0.0)
        weighing.places = FieldBias(weights.expand(BATCH, 1, -1, -1), rows, least)
    if what != "places":
        owners = torch.tensor([[0.0, 0.0, 0.0, 1.0, 1.0, 1.0]] * BATCH)
        shares = torch.stack([1 - 0.75 * left(), 0.75 * left()]).expand(BATCH, -1, -1, -1)
        blending = torch.tensor([[0.0, 1.0]] * BATCH) if what == "blending" else None
        weighing.shared = SharedAttention(owners, shares, blending)
    return weighing


def states(kind: torch.dtype, form: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    drawn = [torch.randn(BATCH, HEADS, TOTAL, DIM, generator=generator, dtype=torch.float64) for _ in range(3)]
    return [(one if form == 4 else one.transpose(1, 2).flatten(2)).to(kind) for one in drawn]


@pytest.mark.parametrize("what", ["places", "regions", "both", "blending"])
@pytest.mark.parametrize("form", [3, 4])
@pytest.mark.parametrize("kind", TOLERANCE)
def test_columns_give_what_the_table_gives(what: str, form: int, kind: torch.dtype) -> None:
    query, key, value = states(kind, form)
    for layer in range(2):  # every second one is another where prompts blend
        found = {}
        for of_kind in (InColumns, AsTable):
            weighing = weighing_of(of_kind, what)
            weighing.num_layers = layer
            found[of_kind] = weighing.attend(attention, query, key, value, HEADS, **OPTIONS)
        exact = weighing_of(AsTable, what)
        exact.num_layers = layer
        wide = exact.attend(attention, query.float(), key.float(), value.float(), HEADS, **OPTIONS)
        assert found[InColumns].shape == found[AsTable].shape
        error = float((found[InColumns].float() - wide).abs().max())
        assert error <= TOLERANCE[kind] * float(wide.abs().max())


def test_columns_are_a_softmax_written_out() -> None:
    query, key, value = states(torch.float64, 4)
    bias = torch.zeros(BATCH, TOTAL, TOTAL, dtype=torch.float64)
    bias[0, :, 1] += 0.7
    bias[1, :, 3] = -math.inf
    places = TEXT + torch.arange(SIDE * SIDE)
    is_left = left().flatten().bool()
    bias[0, :, 2] = -math.inf  # of weight 0 outside, and for what has no place
    bias[0, places[is_left], 2] = math.log(INSIDE)
    logits = query @ key.transpose(-1, -2) * DIM**-0.5 + bias[:, None]
    expected = (logits.softmax(-1) @ value).transpose(1, 2).flatten(2)
    found = weighing_of(InColumns, "places").attend(attention, query, key, value, HEADS, **OPTIONS)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    columns = weighing_of(InColumns, "places").attend(
        attention, query, key, value, HEADS, skip_output_reshape=True, **OPTIONS
    )
    torch.testing.assert_close(columns.transpose(1, 2).flatten(2), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("kind", [InColumns, AsTable])
def test_rows_that_only_fill_up_an_image_are_read_by_nobody(kind: type[ComfyWeighting], layer: int) -> None:
    query, key, value = states(torch.float32, 4)
    weighing = kind(torch.zeros(BATCH, TEXT), torch.ones(BATCH, TEXT))
    weighing.queries, weighing.num_layers = Queries((SIDE, SIDE), before=TEXT, text=range(TEXT)), layer
    owners = torch.tensor([[0.0, 0.0, 0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, -1.0, -1.0, -1.0]])
    first = torch.stack([1 - 0.75 * left(), 0.75 * left()])
    shares = torch.stack([first, torch.stack([torch.ones(SIDE, SIDE), torch.zeros(SIDE, SIDE)])])
    weighing.shared = SharedAttention(owners, shares, torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    found = weighing.attend(attention, query, key, value, HEADS, **OPTIONS)
    kept = [0, 1, 2, *range(TEXT, TOTAL)]
    expected = attention(query[1:, :, kept], key[1:, :, kept], value[1:, :, kept], HEADS)
    torch.testing.assert_close(found[1:, kept], expected, atol=1e-6, rtol=0)


def test_a_table_stays_where_the_scale_is_not_taken_and_where_it_is_small() -> None:
    query, key, value = states(torch.float32, 4)
    masks: list[bool] = []

    def without(query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Tensor | None = None, **_: Any) -> Tensor:
        masks.append(mask is not None and query.shape[-1] == DIM)
        return attention(query, key, value, heads, mask)

    weighing_of(InColumns, "both").attend(without, query, key, value, HEADS, **OPTIONS)
    without.takes_scale = True  # pyright: ignore[reportFunctionMemberAccess]
    weighing_of(ComfyWeighting, "both").attend(without, query, key, value, HEADS, **OPTIONS)
    weighing = weighing_of(InColumns, "both")  # another pack's function may not take what the host's does
    of_others = {OVERRIDE: lambda function, *inputs, **_: without(*inputs)}
    options = around_attention(of_others, weighing.attend, weighing)
    options[OVERRIDE](with_scale, query, key, value, HEADS, **OPTIONS)
    assert masks == [True] * 3


def with_scale(*_: Any, **choices: Any) -> Any:
    return {name: choices[name] for name in ("scale", "enable_gqa") if name in choices}


def test_functions_that_take_a_scale_are_known() -> None:
    def old(*_: Any, **__: Any) -> None: ...

    def attention3_sage(*_: Any, **choices: Any) -> Any:
        return choices.get("scale")

    assert [takes_scale(one) for one in (with_scale, old, attention3_sage)] == [True, False, False]
    assert not takes_scale(SimpleNamespace)  # pyright: ignore[reportArgumentType]


def test_a_large_picture_takes_no_table() -> None:
    """Flux at 2048 x 2048: a table would be 530 MiB."""
    grid, width = (128, 128), 128
    total = 256 + grid[0] * grid[1]
    weighing = ComfyWeighting(torch.zeros(1, 256), torch.ones(1, 256), DEVICE)
    weighing.queries = Queries(grid, before=256, text=range(256))
    rows = torch.zeros(1, 1, 256)
    rows[0, 0, 5] = 1
    weights = torch.ones(1, 1, 256, 256)
    weights[..., :128] = 0
    weighing.places = FieldBias(weights, rows, torch.zeros(1, 256), DEVICE)
    for shape in ((1, 24, total, width), (1, total, 24 * width)):
        query = torch.empty(shape, dtype=torch.bfloat16, device=DEVICE)
        with counting():
            weighing.again().attend(attention, query, query, query, 24)
        with counting() as counts:
            weighing.again().attend(attention, query, query, query, 24)
        with counting() as stock:
            attention(query, query, query, 24)
        assert counts.mask_bytes == 0 and counts.num_waits == 0
        assert counts.num_operators == stock.num_operators + 2
    assert weighing.num_bytes <= 2**20
