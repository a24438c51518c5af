"""Models with several towers: lengths, joined rows, and SDXL as the compel library and as ComfyUI encode it."""

from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import pytest
import torch
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.encoder.models.prefix import encoders_for
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.encoders import Encoders
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.text.chunks import ChunkLayout, close_chunk
from weighted_clip.weighting.towers import Reader, joined, num_chunks, read_for_towers
from weighted_clip.workshop.peers.transformers import (
    transformers_projected_model,
    transformers_text_model,
    transformers_tokenizer,
)

from .. import libraries
from ..door import encode_prompt
from .tiny import LONG, READERS

L = TextConfig(hidden_dim=128, num_heads=2, num_layers=4, mlp_dim=256)
G = TextConfig(hidden_dim=192, num_heads=3, num_layers=5, mlp_dim=384, activation="gelu", projection_dim=160, pad_id=0)


@pytest.fixture(scope="module")
def models():
    return {"clip_l": seeded_text_model(L, seed=1), "clip_g": seeded_text_model(G, seed=2)}


def encode(models, texts: dict[str, str], options: EncodeOptions):
    _, encoders = encoders_for(models)
    reads = read_for_towers(texts, options, READERS)
    return {name: encode_prompt(read, encoders[name]) for name, read in reads.items()}


def both(text: str) -> dict[str, str]:
    return dict.fromkeys(READERS, text)


@pytest.fixture(scope="module")
def library(models):
    """compel on transformers' models with the same weights, set up as its users do for SDXL."""
    libraries.library("compel")
    from compel import Compel, ReturnedEmbeddingsType

    tokenizer_g = transformers_tokenizer()
    tokenizer_g.pad_token = "!"
    assert tokenizer_g.pad_token_id == 0
    return Compel(
        tokenizer=[transformers_tokenizer(), tokenizer_g],
        text_encoder=[transformers_text_model(models["clip_l"]), transformers_projected_model(models["clip_g"])],
        returned_embeddings_type=ReturnedEmbeddingsType.PENULTIMATE_HIDDEN_STATES_NON_NORMALIZED,
        requires_pooled=[False, True],
        truncate_long_prompts=False,
    )


@pytest.mark.parametrize(
    "text",
    ["a red cat", "", "a (red)1.4 cat and a (dog)0.5 in a bowl++", "(a)0.3 (b)0.6 c", LONG, f"({LONG})0.7 (sea)1.3"],
)
def test_sdxl_equals_the_compel_library(models, library, text: str) -> None:
    with torch.no_grad():
        expected, pooled = library(text)
    options = EncodeOptions(syntax="compel", scheme="compel", pooled="raw text")
    rows = joined(encode(models, both(text), options))
    torch.testing.assert_close(rows.hidden, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(rows.pooled, pooled, rtol=0, atol=1e-5)


def test_pooled_of_the_raw_text_reads_weights_as_text(models) -> None:
    def pooled(text: str, **options) -> torch.Tensor:
        return joined(encode(models, both(text), EncodeOptions(**options))).pooled

    weighted = {"syntax": "compel", "scheme": "compel"}
    torch.testing.assert_close(pooled("a (red)1.4", **weighted), pooled("a red", **weighted), rtol=0, atol=1e-5)
    raw = pooled("a (red)1.4", **weighted, pooled="raw text")
    as_text = pooled("a (red)1.4", syntax="none", pooled="raw text")
    torch.testing.assert_close(raw, as_text, rtol=0, atol=1e-5)
    assert not torch.allclose(raw, pooled("a red", **weighted), atol=1e-2)


@pytest.mark.parametrize(
    ("text_l", "text_g", "syntax", "chunks"),
    [
        ("a cat", "a dog", "comfy", 1),
        (LONG, "a dog", "comfy", 2),
        ("", LONG, "comfy", 2),
        ("a BREAK b BREAK c", "d", "a1111", 3),
        (f'("{LONG}", "b").blend(1, 2)', "a cat", "compel", 2),
        ('("a", "b", "c").and()', f'("{LONG}", "b").blend(1, 2)', "compel", 3),
    ],
)
def test_the_shorter_prompt_is_filled_with_empty_chunks(
    models, text_l: str, text_g: str, syntax: str, chunks: int
) -> None:
    texts, options = {"clip_l": text_l, "clip_g": text_g}, EncodeOptions(syntax=syntax)
    reads = read_for_towers(texts, options, READERS)
    assert [num_chunks(read) for read in reads.values()] == [chunks, chunks]
    encoded = encode(models, texts, options)
    assert {prompt.hidden.shape[1] for prompt in encoded.values()} == {77 * chunks}
    for name, config in (("clip_l", L), ("clip_g", G)):
        _, encoders = encoders_for(models)
        alone = read_for_towers({name: texts[name]}, options, {name: READERS[name]})
        rows = encode_prompt(alone[name], encoders[name]).hidden
        empty = encoders[name]([close_chunk([], READERS[name].layout).ids]).hidden
        expected = torch.cat([rows, *[empty] * (chunks - rows.shape[1] // 77)], dim=1)
        assert expected.shape == (1, 77 * chunks, config.hidden_dim)
        torch.testing.assert_close(encoded[name].hidden, expected, rtol=0, atol=2e-5)


def test_a_single_tower_is_joined_to_nothing(models) -> None:
    readers = {"clip_g": READERS["clip_g"]}
    family, encoders = encoders_for({"clip_g": models["clip_g"]})
    assert family.name == "SDXL refiner"
    read = read_for_towers({"clip_g": "a cat"}, EncodeOptions(), readers)["clip_g"]
    prompt = encode_prompt(read, encoders["clip_g"])
    rows = joined({"clip_g": prompt})
    assert torch.equal(rows.hidden, prompt.hidden)
    assert torch.equal(rows.pooled, prompt.pooled)


def test_long_position_tables_make_long_chunks() -> None:
    config = replace(L, context_length=248)
    reader = Reader(default_tokenizer(), ChunkLayout(length=248))
    read = read_for_towers({"clip_l": "cat " * 200}, EncodeOptions(), {"clip_l": reader})["clip_l"]
    _, encoders = encoders_for({"clip_l": seeded_text_model(config)})
    assert encode_prompt(read, encoders["clip_l"]).hidden.shape == (1, 248, 128)


LONG_L = replace(L, context_length=248)
LONG_READERS = {"clip_l": Reader(default_tokenizer(), ChunkLayout(length=248)), "clip_g": READERS["clip_g"]}


@pytest.fixture(scope="module")
def long_models(models):
    """As in `models`, with a Long-CLIP for CLIP-L."""
    return {**models, "clip_l": seeded_text_model(LONG_L, seed=1)}


@pytest.fixture(scope="module")
def their_long_models(long_models) -> list[Any]:
    """The same by transformers."""
    libraries.library("transformers")
    return [transformers_text_model(long_models["clip_l"]), transformers_projected_model(long_models["clip_g"])]


def filled(ids: list[int], length: int, pad_id: int) -> list[list[int]]:
    """The chunks of a text that is one long group: ComfyUI fills one after the other."""
    some = [ids[start : start + length - 2] for start in range(0, max(len(ids), 1), length - 2)]
    return [[49406, *part, 49407, *[pad_id] * (length - 2 - len(part))] for part in some]


@pytest.mark.parametrize(
    ("num_words", "num_rows"), [(0, 77), (9, 77), (75, 77), (76, 154), (240, 248), (246, 248), (247, 308), (600, 616)]
)
@pytest.mark.parametrize("weight", [1.0, 1.3, 0.4])
def test_a_long_tower_beside_a_short_one_is_cut_as_in_comfyui(
    long_models, their_long_models, num_words: int, num_rows: int, weight: float
) -> None:
    """Each tower by transformers, weights by ComfyUI's formula; what the shorter one lacks is cut off, not filled."""
    text = " ".join(islice(cycle(["red", "cat", "dog", "mat", "old"]), num_words))
    ids = [token_id for token_id, _, _ in default_tokenizer()(text)]
    assert len(ids) == num_words
    expected: list[torch.Tensor] = []
    outputs: Any = None
    for model, (length, pad_id) in zip(their_long_models, ((248, 49407), (77, 0)), strict=True):
        chunks = torch.tensor([*filled(ids, length, pad_id), *filled([], length, pad_id)])
        outputs = model(chunks, output_hidden_states=True)
        *rows, empty = outputs.hidden_states[-2]
        ends = [min(max(len(ids) - index * (length - 2), 0), length - 2) for index in range(len(rows))]
        for chunk, end in zip(rows, ends, strict=True):
            chunk[1 : end + 1] = empty[1 : end + 1] + (chunk[1 : end + 1] - empty[1 : end + 1]) * weight
        expected.append(torch.cat(rows))
    encoded = Encoders.of_models(long_models).prepare([f"({text}:{weight})" if text else ""], syntax="comfy")
    (one,) = encoded.run()
    assert one.hidden.shape[1] == num_rows
    hidden = torch.cat([rows[:num_rows] for rows in expected], dim=-1).unsqueeze(0)
    torch.testing.assert_close(one.hidden, hidden, rtol=0, atol=1e-5)
    torch.testing.assert_close(one.pooled, outputs.text_embeds[:1], rtol=0, atol=1e-5)


def told(texts: str | dict[str, str], **options) -> list[tuple[str, str, int]]:
    """The codes and messages of what a pair of a Long-CLIP and CLIP-G does not encode, and where it starts."""
    reads = read_for_towers(texts, EncodeOptions(**options), LONG_READERS)
    found = dict.fromkeys(issue for read in reads.values() for issue in read.issues)
    return [(issue.code, issue.message, issue.span.start) for issue in found]


def test_tokens_behind_the_rows_of_the_shorter_tower_are_named() -> None:
    text = "cat " * 245
    ((code, message, start),) = told(text)
    assert (code, start) == ("rows-cut", text.index("cat", 4 * 241))  # 75 a chunk, so row 248 is in the fourth at 16
    assert message.startswith("clip_l ends at row 248: the last 4 of clip_g's tokens come after that and are left out")
    assert told("cat " * 241) == told("cat " * 247) == []
    ((code, message, start),) = told("a cat BREAK a dog, much", syntax="a1111")
    assert (code, start) == ("rows-cut", len("a cat BREAK "))
    assert message.startswith("clip_g ends at row 154: the last 4 of clip_l's tokens")
    assert told("a cat BREAK " + "dog " * 80, syntax="a1111")[0][1].startswith("clip_g ends at row 231: the last 80 of")
    ((code, message, start),) = told({"clip_l": "cat " * 100, "clip_g": "a dog"})
    assert (code, start) == ("rows-cut", 4 * 76)
    assert message.startswith("clip_g ends at row 77: the last 24 of clip_l's tokens")
    blend = f'("a dog", "{text}").blend(1, 2)'
    assert told(blend, syntax="compel")[0][::2] == ("rows-cut", blend.index(text) + 4 * 241)
    assert told(f'("a dog", "{"cat " * 100}").and()', syntax="compel")[0][1].startswith(
        "clip_g ends at row 231: the last"
    )


def test_two_texts_have_the_same_number_of_chunks_and_one_text_as_many_as_each_tower_needs() -> None:
    text = "cat " * 100
    reads = read_for_towers(text, EncodeOptions(), LONG_READERS)
    assert [num_chunks(read) for read in reads.values()] == [1, 2]
    reads = read_for_towers({"clip_l": text, "clip_g": text}, EncodeOptions(), LONG_READERS)
    assert [num_chunks(read) for read in reads.values()] == [2, 2]


def test_padding_is_dropped_where_both_have_one_chunk_and_else_kept(long_models) -> None:
    encoders = Encoders.of_models(long_models)
    (dropped, attended) = (encoders("a (red:1.2) cat", padding=padding).hidden for padding in ("drop", "attend"))
    assert torch.equal(dropped, attended[:, :5])
    long = "a (red:1.2) cat, " * 30
    (dropped, attended) = (encoders(long, padding=padding).hidden for padding in ("drop", "attend"))
    assert torch.equal(dropped, attended)
    assert [code for code, *_ in told(long, padding="drop")] == ["padding-kept"]
    texts = {"clip_l": "cat " * 100, "clip_g": "a dog"}
    assert [code for code, *_ in told(texts, padding="drop")] == ["rows-cut"]
    (one,) = encoders.prepare([texts], padding="drop").run()
    assert one.hidden.shape[1] == 77
