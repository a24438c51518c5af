"""What weights ask of a GPU in a sampling's later steps, counted on a pretended one: no wait, hardly an operator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from weighted_clip.hosts.comfy.attention.recorder import Maps
from weighted_clip.hosts.comfy.families.attention_layers import ComfyWeighting
from weighted_clip.weighting import key_weights
from weighted_clip.weighting.placing.field_bias import FieldBias
from weighted_clip.weighting.placing.queries import Queries
from weighted_clip.weighting.placing.shared_attention import SharedAttention
from weighted_clip.workshop.bench.counting import ATTENTION, DEVICE, Counts, counting

BATCH, KEYS, SIDE, HEADS, DIM = 2, 12, 8, 2, 16
LAYERS = 3
ONE_IMAGE = 4 * SIDE * SIDE * 8
"""Bytes of the masks of an image that reads two regions."""


def attention(query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Tensor | None = None) -> Tensor:
    parts = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in (query, key, value))
    return scaled_dot_product_attention(*parts, attn_mask=mask).transpose(1, 2).flatten(2)


def half(side: int) -> Tensor:
    return torch.cat([torch.ones(side, side // 2), torch.zeros(side, side // 2)], 1)


def fields() -> FieldBias:
    rows = torch.zeros(BATCH, 1, KEYS)
    rows[0, 0, 2:4] = 1
    return FieldBias(half(SIDE).expand(BATCH, 1, -1, -1), rows, torch.zeros(BATCH, KEYS), DEVICE)


def prompts(soft: float = 0.0) -> SharedAttention:
    """Of the first image two regions, a half each; the second reads its base."""
    owners = torch.zeros(BATCH, KEYS)
    owners[0, 4:8], owners[0, 8:] = 1, 2
    owners[1, 4:] = -1
    left = half(SIDE) * (1 - soft)
    first = torch.stack([torch.zeros(SIDE, SIDE), left, 1 - left])
    second = torch.stack([torch.ones(SIDE, SIDE), torch.zeros(SIDE, SIDE), torch.zeros(SIDE, SIDE)])
    return SharedAttention(owners, torch.stack([first, second]), None, DEVICE)


def words() -> Tensor:
    flags = torch.zeros(BATCH, 3, KEYS)
    flags[0, :, 2] = 1
    return flags


def weighting(kind: str) -> ComfyWeighting:
    bias, factor = torch.zeros(BATCH, KEYS), torch.ones(BATCH, KEYS)
    if kind == "bias":
        bias[0, 2] = 0.4
    if kind == "value":
        factor[0, 2] = 1.7
    made = ComfyWeighting(bias, factor, DEVICE)
    made.places = fields() if kind == "places" else None
    made.shared = prompts(0.3 if kind == "soft regions" else 0.0) if "regions" in kind else None
    return made


def steps(
    kind: str,
    forget: Callable[[ComfyWeighting], None] = lambda _: None,
    fault: Callable[[Tensor], object] = lambda _: None,
) -> list[Counts]:
    """Counts of two steps of some layers, then of stock's; a fault is put into each layer of ours."""
    query, key = (torch.empty(BATCH, number, HEADS * DIM, device=DEVICE) for number in (SIDE * SIDE, KEYS))
    found: list[Counts] = []
    weights, kept = weighting(kind), {}
    for step in range(3):
        work = weights.again()
        work.queries = Queries((SIDE, SIDE))
        if kind == "words":
            latent = torch.empty(BATCH, 4, SIDE, SIDE, device=DEVICE)
            work.maps = Maps(words(), latent, ["all"], has_grids=True, kept=kept)
        with pytest.MonkeyPatch.context() as patch, counting() as counts:
            if kind == "large regions":
                patch.setattr(key_weights, "JOINED_BYTES", ONE_IMAGE)
            for _ in range(LAYERS):
                if step == 2:
                    attention(query, key, key, HEADS)
                else:
                    fault(work.attend(attention, query, key, key, HEADS))
        found.append(counts)
        forget(weights)
    return found


MOST = {"bias": 0, "places": 0, "regions": 0, "value": 2, "words": 3, "large regions": 2, "soft regions": 2 + 4}
"""Most operators more than stock's for each attention: a multiplication and a look at the result for values; for words
an attention, a mean and a sum; for two regions at many places another attention, for the image without them; with soft
edges two attentions more and four to mix them."""
ATTENTIONS = {"words": 2, "large regions": 2, "soft regions": 3}


def check(kind: str, first: Counts, later: Counts, stock: Counts) -> None:
    assert later.num_waits == 0 and later.copied == 0
    more = later.num_operators - stock.num_operators
    assert more <= MOST[kind] * LAYERS, later.operators
    assert first.num_operators >= later.num_operators
    assert later.operators[ATTENTION] == LAYERS * ATTENTIONS.get(kind, 1)


@pytest.mark.parametrize("kind", MOST)
def test_later_steps_wait_for_nothing_and_take_few_operators(kind: str) -> None:
    check(kind, *steps(kind))


FAULTS: dict[str, Callable[[Tensor], object]] = {
    "a number that is read": lambda result: result.sum().item(),
    "an operator more": lambda result: result + 1,
    "a copy to the device": lambda result: torch.zeros(2).to(result.device),
    "an index that is looked for": lambda result: (result > 0).nonzero(),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", MOST)
def test_a_fault_in_a_layer_is_seen(kind: str, fault: str) -> None:
    with pytest.raises(AssertionError):
        check(kind, *steps(kind, fault=FAULTS[fault]))


@pytest.mark.parametrize("kind", ["places", "regions"])
def test_a_mask_that_is_made_at_each_step_is_seen(kind: str) -> None:
    with pytest.raises(AssertionError):
        check(kind, *steps(kind, lambda weights: weights._kept.clear()))


@pytest.mark.parametrize("kind", ["bias", "places", "regions"])
def test_what_is_made_again_at_each_step_is_seen(kind: str) -> None:
    _, later, stock = steps(kind, lambda weights: weights._kept.clear())
    assert later.num_waits > 0
    assert later.num_operators > stock.num_operators or kind == "bias"  # made on the processor


@pytest.mark.parametrize("most", [key_weights.JOINED_BYTES, ONE_IMAGE])
def test_prompts_in_one_softmax_equal_prompts_apart(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_weights, "JOINED_BYTES", most)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(BATCH, n, HEADS * DIM, generator=generator) for n in (SIDE * SIDE, KEYS, KEYS))
    results: list[Tensor] = []
    for joins in (False, True):
        work = ComfyWeighting(torch.zeros(BATCH, KEYS), torch.ones(BATCH, KEYS))
        shared = prompts()
        work.shared, work.joins_prompts, work.queries = shared, joins, Queries((SIDE, SIDE))
        shared._device = "cpu"
        results.append(work.attend(attention, query, key, value, HEADS))
    torch.testing.assert_close(results[1], results[0], atol=1e-6, rtol=0)
    wide = (each.double().unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (query, key, value))
    q, k, v = wide
    allowed = torch.zeros(BATCH, 1, SIDE * SIDE, KEYS, dtype=torch.bool)
    places = half(SIDE).flatten().bool()
    allowed[0, 0, places, 4:8] = allowed[0, 0, ~places, 8:] = True
    allowed[1, 0, :, :4] = True
    logits = (q @ k.transpose(-1, -2) / DIM**0.5).masked_fill(~allowed, -torch.inf)
    by_hand = (logits.softmax(-1) @ v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(results[1].double(), by_hand, atol=1e-6, rtol=0)
