"""Forge's T5 engine and the models that have one, small, after its contract (specs of Forge dfdcbab6), not its code.

The tokenizer is transformers' class for files such as T5's, with a vocabulary of a few pieces: all that stands in none
of them is unknown.
"""

from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import Unigram

from . import fake_webui as fake

transformers = pytest.importorskip("transformers", reason="the tokenizer is of a class of transformers")

WORDS = ("▁a", "▁red", "▁cat", "▁dog", "▁fox", "▁and", "▁in", "▁the", "▁bird", "ish", "▁AND", "▁BREAK", "▁+", "▁empty")
MARKS = ("(", ")", "[", "]", ":", ",", ".", "<", ">", "1", "4", "\\")
PIECES = ("<pad>", "</s>", "<unk>", "▁", *MARKS, *WORDS, *"abcdefghijklmnopqrstuvwxyz")
"""Pieces by id."""


def tokenizer() -> Any:
    """A tokenizer of T5's kind."""
    made = Tokenizer(Unigram([(piece, -2.0 if piece in WORDS else -4.0) for piece in PIECES], unk_id=2))
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip(left=False)])
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first")
    made.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="first")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )


class T5Engine:
    """The host's T5."""

    id_end, id_pad = 1, 0

    def __init__(self, min_length: int = 256) -> None:
        self.tokenizer, self.min_length = tokenizer(), min_length

    def tokenize(self, texts: list[str]) -> list[list[int]]:
        return self.tokenizer(texts, truncation=False, add_special_tokens=False)["input_ids"]


def model(name: str, **attributes: Any) -> Any:
    """A model of the host of one of its classes: Flux, Chroma or StableDiffusion3."""
    parts: dict[str, Any] = {"get_learned_conditioning": None, "text_processing_engine_t5": T5Engine()}
    if name == "Chroma":
        parts["text_processing_engine_t5"] = T5Engine(1)
    else:
        parts["text_processing_engine_l"] = fake.ForgeEngine(fake.text_model())
    if name == "StableDiffusion3":
        parts["text_processing_engine_g"] = fake.ForgeEngine(fake.text_model(1), "clip_g", pooled=True)
        parts["is_sd3"] = True
    return type(name, (SimpleNamespace,), {})(**{**parts, **attributes})
