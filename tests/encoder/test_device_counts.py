"""What a prompt asks of a GPU, counted on a pretended one: no more than transformers' pass, one copy, and no wait."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from weighted_clip.encoder.encoding import EncodeFn, Encoding
from weighted_clip.encoder.models import whole
from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.encoder.models.text_model import TextModel
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.studio.training.scaling.distributed import declare_missing_operators
from weighted_clip.weighting.encoders import Encoders, Prepared
from weighted_clip.weighting.schemes import SCHEMES
from weighted_clip.weighting.schemes.scheme import sent
from weighted_clip.weighting.towers import Reader
from weighted_clip.workshop.bench.counting import DEVICE, Counts, OnDevice, counting
from weighted_clip.workshop.bench.timing import native
from weighted_clip.workshop.launches import PROMPTS
from weighted_clip.workshop.peers.transformers import transformers_text_model

IDS = [[49406, 320, 2368, *[49407] * 74]]


def of_prompt(model: TextModel, masks: torch.Tensor | None = None) -> Counts:
    encode = native(model)
    with counting() as counts:
        encode(IDS, masks)
    return counts


def prepared(encode: EncodeFn, text: str, **choices: str) -> Prepared:
    return Encoders({"clip_l": Reader(default_tokenizer())}, {"clip_l": encode}).prepare([text], **choices)


@pytest.fixture(scope="module")
def peer() -> Counts:
    declare_missing_operators()
    with torch.device(DEVICE):
        model = transformers_text_model(TextModel(TextConfig()), "sdpa")
    with counting() as counts:
        model(input_ids=torch.tensor(IDS).to(DEVICE))
    return counts


@pytest.mark.parametrize(("kind", "most"), [(torch.float32, 0.9), (torch.float16, 1.05), (torch.bfloat16, 1.05)])
@pytest.mark.parametrize("is_masked", [False, True])
def test_a_prompt_takes_as_many_operators_as_transformers_pass(
    peer: Counts, kind: torch.dtype, most: float, is_masked: bool
) -> None:
    with torch.device(DEVICE):
        model = TextModel(TextConfig()).to(kind)
    masks = torch.ones(1, 77, dtype=torch.bool)
    masks[0, 2] = not is_masked
    counts = of_prompt(model, masks if is_masked else None)
    assert counts.num_operators <= most * peer.num_operators + 2 * is_masked
    assert counts.num_waits == 0
    assert counts.copied == 8 * (77 + 1) + 77 * 80 * kind.itemsize * is_masked


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", PROMPTS)
def test_a_weighted_prompt_takes_hardly_more_and_waits_when_its_issues_are_read(
    peer: Counts, name: str, kind: torch.dtype
) -> None:
    with torch.device(DEVICE):
        encode = native(TextModel(TextConfig()).to(kind))
    text, choices = PROMPTS[name]
    with counting() as counts:
        encoded = prepared(encode, text, **choices).run_tower("clip_l")[0]
    assert counts.num_operators <= 1.1 * peer.num_operators
    assert counts.num_waits == 0
    assert counts.num_copies == 1
    with counting() as counts:
        assert not encoded.read.issues and not encoded.read.issues
    assert counts.num_waits == counts.num_operators == (choices["scheme"] == "a1111" and name != "plain")


CHOICES = ({}, {"padding": "drop"}, {"padding": "clean"}, {"eos_rows": "mean"}, {"pooled": "weighted"})


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("choices", CHOICES, ids=" ".join)
def test_no_scheme_waits(scheme: str, choices: dict[str, str]) -> None:
    with torch.device(DEVICE):
        encode = native(TextModel(TextConfig(num_layers=1)))
    with counting() as counts:
        prepared(encode, "(red:1.4) (cat:0.3)" + 80 * " dog", scheme=scheme, **choices).run_tower("clip_l")
    assert counts.num_waits == 0, counts.waits


def test_a_copy_that_is_waited_for_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def apart(tensors: Sequence[Tensor], *, is_pinned: bool) -> tuple[Tensor, Callable[[Tensor], list[Tensor]]]:
        return tensors[0], lambda received: [tensor.to(received.device) for tensor in tensors]

    together = whole.packed_bytes
    monkeypatch.setattr(whole, "packed_bytes", apart)
    with torch.device(DEVICE):
        model = TextModel(TextConfig(num_layers=1))
    assert of_prompt(model).num_waits == 2
    monkeypatch.setattr(whole, "packed_bytes", together)
    assert of_prompt(model).num_waits == 0


def test_numbers_of_python_that_are_put_on_the_device_are_seen() -> None:
    like = torch.empty(2, device=DEVICE)
    with counting() as counts:
        made = like.new_tensor([1.0, 2.0])
    assert counts.num_waits == counts.num_copies == 1 and counts.copied == 8
    assert made.device == DEVICE and made.dtype == like.dtype


WORDS = [1.0] * 3 + [0.3] * 2 + [1.0] * 2 + [1e39, math.nan, -0.0]


@pytest.mark.parametrize(
    ("numbers", "dtype", "num_copies"),
    [
        (WORDS, torch.float32, 0),
        (WORDS, torch.float16, 0),
        ([WORDS, [2.0, 3.0, *WORDS[2:]]], torch.float32, 1),
        ([[True, False], [False, False]], torch.bool, 0),
        ([], torch.long, 0),
        (range(9), torch.long, 1),
    ],
)
def test_few_numbers_that_differ_are_filled_in_on_the_device(numbers: Any, dtype: torch.dtype, num_copies: int) -> None:
    with counting() as counts:
        made = sent(numbers, torch.empty(1, device=DEVICE), dtype)
    assert counts.num_copies == num_copies and counts.num_waits == 0
    torch.testing.assert_close(made.numbers, torch.tensor(numbers, dtype=dtype), rtol=0, atol=0, equal_nan=True)


def test_versions_that_are_moved_together_equal_those_moved_one_by_one() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, pooled = torch.randn(16, 77, 8, generator=generator), torch.randn(16, 8, generator=generator)
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    text = " ".join(f"({word}){0.05 + 0.09 * number:g}" for number, word in enumerate(words))

    def encoded(moved: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        def encode(ids: Sequence[object], *_: object, **__: object) -> Encoding:
            return Encoding(moved(hidden[: len(ids)]), moved(pooled[: len(ids)]))

        return prepared(encode, text, syntax="compel", scheme="compel", pooled="weighted").run_tower("clip_l")[0][:2]

    expected = encoded(Tensor.clone)
    with counting() as counts:
        found = encoded(lambda tensor: OnDevice(tensor.clone()))
    for there, here in zip(found, expected, strict=True):
        torch.testing.assert_close(there.numbers, here, rtol=1e-6, atol=1e-6)
    assert counts.operators["aten::where"] == 2
