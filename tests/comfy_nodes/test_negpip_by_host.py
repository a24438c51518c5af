"""Weigh Attention by NegPip on a text encoder whose model multiplies each row by a weight, as Anima's does."""

from collections.abc import Iterator

import pytest
import torch
from weighted_clip.hosts.comfy.attention import MARKER, _hooks
from weighted_clip.hosts.comfy.attention_layers import in_cross_attention
from weighted_clip.hosts.comfy.families import BY_TOKENIZER, Family, class_of

from .fake_comfy import install, node
from .test_by_host import TextClip

TEXT = "a (red:1.5) cat (dog:-2)"
WEIGHTS = [1.0, 1.5, 1.0, -2.0, 1.0]
"""Weights of its words and of the end."""


class RowWeights(TextClip):
    """Gives the rows and the weight of each; its model pads them to 512."""

    def encode_from_tokens_scheduled(self, tokens, add_dict=None):
        ((rows, values),) = super().encode_from_tokens_scheduled(tokens, add_dict)
        return [[rows, {**values, "t5xxl_ids": rows[0, :, 0], "t5xxl_weights": rows[0, :, 1]}]]


@pytest.fixture
def clip(monkeypatch) -> Iterator[RowWeights]:
    """A host's CLIP of that kind, in the table of encoders."""
    install(monkeypatch)
    _hooks.cache_clear()
    clip = RowWeights(True)
    name = class_of(clip.tokenizer)
    monkeypatch.setitem(BY_TOKENIZER, name, Family("Toy", in_cross_attention, (), {name: "toy"}, has_row_weights=True))
    yield clip
    _hooks.cache_clear()


def run(clip, text, strength=1.0):
    return node("WeighAttention").encode(clip, text, "negpip", strength, syntax="comfy")["result"]


@pytest.mark.parametrize("strength", [1.0, 0.5, 2.0])
def test_rows_are_multiplied_by_absolute_weights_and_values_turned_round(clip, strength) -> None:
    ((rows, values),), report, _ = run(clip, TEXT, strength)
    taken = [1 + strength * (weight - 1) for weight in WEIGHTS]
    assert values["t5xxl_weights"].tolist() == [abs(weight) for weight in taken]
    bias, factor = values["model_conds"][MARKER].cond.view(2, 512)
    assert not bias.any()
    assert factor.tolist() == [*(-1.0 if weight < 0 else 1.0 for weight in taken), *[1.0] * 507]
    assert torch.equal(rows, clip.encode_from_tokens_scheduled(clip.tokenize(TEXT))[0][0])
    assert "'red' 1.5: row 1" in report
    assert "'dog' -2: row 3" in report


def test_with_weights_above_0_it_is_the_hosts_own_conditioning(clip) -> None:
    ((_, values),), _, _ = run(clip, "a (red:1.5) cat")
    assert "model_conds" not in values
    assert values["t5xxl_weights"].tolist() == WEIGHTS[:3] + WEIGHTS[4:]


def test_other_encoders_are_refused_by_name(clip, monkeypatch) -> None:
    name = class_of(clip.tokenizer)
    monkeypatch.setitem(BY_TOKENIZER, name, Family("Toy", in_cross_attention, (), {name: "toy"}))
    with pytest.raises(ValueError, match="and on Anima, as CLIP NegPip of ComfyUI-ppm does, not on Toy"):
        run(clip, TEXT)
