"""Padding that is left out of the result."""

import pytest
import torch
from weighted_clip.encoder.config import TextConfig
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.text_model import TextEncoder
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.chunks import ChunkLayout
from weighted_clip.weighting.encode import EncodeOptions, read_prompt
from weighted_clip.weighting.towers import Reader, read_for_towers

from ..door import encode_prompt

CONFIG = TextConfig(hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=128)
LONG = "red castle, blue garden. near the river, " * 12


@pytest.fixture(scope="module")
def encoder():
    return TextEncoder(seeded_text_model(CONFIG))


def hidden(encoder, text: str, **options) -> torch.Tensor:
    return encode_prompt(
        read_prompt(text, EncodeOptions(**options), default_tokenizer()), encoder, default_tokenizer()
    ).hidden


@pytest.mark.parametrize("scheme", ["comfy", "a1111", "masked_blend", "compel", "perp"])
@pytest.mark.parametrize("text", ["a (red:1.3) cat", "", "a (red:0.4) cat and a (dog:1.2)"])
def test_the_rows_up_to_eos_stay_as_they_are(encoder, text: str, scheme: str) -> None:
    full = hidden(encoder, text, scheme=scheme)
    kept = read_prompt(text, EncodeOptions(), default_tokenizer()).chunks[0].num_content + 2
    assert torch.equal(hidden(encoder, text, scheme=scheme, padding="drop"), full[:, :kept])


def test_each_chunk_loses_its_own_padding(encoder) -> None:
    chunks = read_prompt(LONG, EncodeOptions(syntax="a1111"), default_tokenizer()).chunks
    sizes = [chunk.num_content + 2 for chunk in chunks]
    assert len(sizes) == 2
    full = hidden(encoder, LONG, syntax="a1111")
    expected = torch.cat([full[:, : sizes[0]], full[:, 77 : 77 + sizes[1]]], dim=1)
    assert torch.equal(hidden(encoder, LONG, syntax="a1111", padding="drop"), expected)


def test_a_blend_keeps_the_rows_of_its_fullest_prompt(encoder) -> None:
    text = '("a red cat", "a").blend(1, 1)'
    assert hidden(encoder, text, syntax="compel", scheme="compel", padding="drop").shape[1] == 5


def test_a_scheme_that_leaves_other_rows_out_keeps_its_rows_and_says_so(encoder) -> None:
    read = read_prompt(LONG, EncodeOptions(scheme="lpw", padding="drop"), default_tokenizer())
    encoded = encode_prompt(read, encoder, default_tokenizer())
    assert encoded.hidden.shape[1] == 75 * 2 + 2
    assert [issue.code for issue in encoded.read.issues] == ["padding-kept"]


def test_towers_keep_the_same_rows() -> None:
    readers = {"clip_l": Reader(default_tokenizer()), "clip_g": Reader(default_tokenizer(), ChunkLayout(pad_id=0))}
    texts = {"clip_l": "a red cat", "clip_g": LONG}
    reads = read_for_towers(texts, EncodeOptions(syntax="a1111", padding="drop"), readers)
    assert reads["clip_l"].kept == reads["clip_g"].kept
    assert [len(read.kept or ()) for read in reads.values()] == [2, 2]
    first, second = reads["clip_g"].kept or (0, 0)
    assert first > second > 2
    assert read_for_towers(texts, EncodeOptions(), readers)["clip_l"].kept is None
