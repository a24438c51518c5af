"""A tiny seeded text encoder, and prompts that are read and encoded with it."""

from typing import Any

from weighted_clip.encoder.config import TextConfig
from weighted_clip.encoder.encoding import EncodeFn
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.text_model import TextEncoder
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.chunks import ChunkLayout
from weighted_clip.weighting.encoders import Encoders
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.pipeline import EncodedPrompt
from weighted_clip.weighting.reading import ReadPrompt, read_prompt
from weighted_clip.weighting.towers import Reader

MODEL = seeded_text_model(TextConfig(hidden_dim=32, num_heads=2, num_layers=2, mlp_dim=64))
TINY = TextEncoder(MODEL)
READERS = {"clip_l": Reader(default_tokenizer()), "clip_g": Reader(default_tokenizer(), ChunkLayout(pad_id=0))}
"""Readers of SDXL's two towers."""
LONG = "red castle, blue garden. near the river, " * 12
"""A text of two chunks."""


def read(text: str, **options: Any) -> ReadPrompt:
    return read_prompt(text, EncodeOptions(**options), default_tokenizer())


def encode(text: str, encoder: EncodeFn = TINY, **options: Any) -> EncodedPrompt:
    encoders = Encoders({"clip_l": READERS["clip_l"]}, {"clip_l": encoder})
    return encoders.prepare([text], EncodeOptions(**options)).run_tower("clip_l")[0]
