"""Prompts encoded together are what each is alone, in as few calls as possible."""

from typing import Any

import pytest
import torch
from weighted_clip.encoder.checkpoint import seeded_text_model
from weighted_clip.encoder.config import TextConfig
from weighted_clip.encoder.text_model import TextEncoder
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.batching import encode_prompts
from weighted_clip.weighting.encode import EncodeOptions, ReadPrompt, encode_prompt, read_prompt
from weighted_clip.weighting.schemes import SCHEMES

CONFIG = TextConfig(hidden_dim=32, num_heads=2, num_layers=2, mlp_dim=64)
LONG = ", ".join(["a red fox in deep snow"] * 20)


class Counting:
    """An encoder that counts its calls and their chunks."""

    def __init__(self) -> None:
        self.encode = TextEncoder(seeded_text_model(CONFIG))
        self.chunks: list[int] = []

    def __call__(self, ids: Any, mask: Any = None, *, is_causal: bool = True) -> Any:
        self.chunks.append(len(ids))
        return self.encode(ids, mask, is_causal=is_causal)


def read(text: str, **options: Any) -> ReadPrompt:
    return read_prompt(text, EncodeOptions(**{"syntax": "comfy", **options}), default_tokenizer())


def assert_as_alone(reads: list[ReadPrompt]) -> list[int]:
    """The calls it took."""
    counting, tokenize = Counting(), default_tokenizer()
    together = encode_prompts(reads, counting, tokenize)
    for result, one in zip(together, reads, strict=True):
        alone = encode_prompt(one, counting.encode, tokenize)
        torch.testing.assert_close(result.hidden, alone.hidden, atol=1e-5, rtol=0)
        torch.testing.assert_close(result.pooled, alone.pooled, atol=1e-5, rtol=0)
        assert result.read == alone.read
        assert result.num_encodings == alone.num_encodings
    return counting.chunks


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_in_one_call_or_as_many_as_one_prompt_takes(scheme: str) -> None:
    reads = [read(text, scheme=scheme) for text in ("a (red:1.3) fox", "a (red:0.4) fox", "plain", f"(a:0.7) {LONG}")]
    alone = [Counting() for _ in reads]
    for one, counting in zip(reads, alone, strict=True):
        encode_prompt(one, counting, default_tokenizer())
    assert len(assert_as_alone(reads)) == max(len(counting.chunks) for counting in alone)


def test_one_call_for_prompts_with_different_masks_and_schemes() -> None:
    reads = [
        read("a fox", scheme="comfy"),
        read("a (red:0.5) fox", scheme="masked_blend"),
        read("a fox", padding="mask"),
        read("a red fox in snow", hide="red", hidden_from="the phrases below", from_phrases="fox"),
    ]
    assert len(assert_as_alone(reads)) == 1


def test_causal_and_other_encodings_do_not_mix() -> None:
    assert len(assert_as_alone([read("a fox"), read("a fox", is_causal=False), read("a dog")])) == 2


def test_sections_ask_again_and_all_are_answered() -> None:
    texts = ['("a fox", "a dog").blend(0.3, 0.7)', '("a cat", "a cow").and()', "plain (red)1.3"]
    calls = assert_as_alone([read(text, syntax="compel", scheme="compel", pooled="raw text") for text in texts])
    assert len(calls) == 4  # two prompts, the empty one, and the raw text of all


def test_no_prompts_ask_nothing() -> None:
    assert assert_as_alone([]) == []


def test_a_wrong_filler_is_refused() -> None:
    with pytest.raises(ValueError, match="filler"):
        encode_prompts([read("a fox"), read("a fox", filler="two words")], Counting(), default_tokenizer())
