"""Padding that is left out of the result, or whose rows are those of the empty prompt."""

import pytest
import torch
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.encoders import Encoders
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.schemes import SCHEMES
from weighted_clip.weighting.text.chunks import ChunkLayout
from weighted_clip.weighting.towers import read_for_towers
from weighted_clip.workshop.peers.transformers import transformers_text_model

from ..door import encode_prompt, encode_prompts
from .tiny import LONG, MODEL, READERS, TINY, encode, read


def hidden(text: str, **options) -> torch.Tensor:
    return encode(text, **options).hidden


@pytest.mark.parametrize("scheme", ["comfy", "a1111", "masked_blend", "compel", "perp"])
@pytest.mark.parametrize("text", ["a (red:1.3) cat", "", "a (red:0.4) cat and a (dog:1.2)"])
def test_the_rows_up_to_eos_stay_as_they_are(text: str, scheme: str) -> None:
    full = hidden(text, scheme=scheme)
    kept = read(text).chunks[0].num_content + 2
    assert torch.equal(hidden(text, scheme=scheme, padding="drop"), full[:, :kept])


def test_each_chunk_loses_its_own_padding() -> None:
    sizes = [chunk.num_content + 2 for chunk in read(LONG, syntax="a1111").chunks]
    assert len(sizes) == 2
    full = hidden(LONG, syntax="a1111")
    expected = torch.cat([full[:, : sizes[0]], full[:, 77 : 77 + sizes[1]]], dim=1)
    assert torch.equal(hidden(LONG, syntax="a1111", padding="drop"), expected)


def test_a_blend_keeps_the_rows_of_its_fullest_prompt() -> None:
    text = '("a red cat", "a").blend(1, 1)'
    assert hidden(text, syntax="compel", scheme="compel", padding="drop").shape[1] == 5


def test_a_scheme_that_leaves_other_rows_out_keeps_its_rows_and_says_so() -> None:
    encoded = encode(LONG, scheme="lpw", padding="drop")
    assert encoded.hidden.shape[1] == 75 * 2 + 2
    assert [issue.code for issue in encoded.read.issues] == ["padding-kept"]


def test_towers_keep_the_same_rows() -> None:
    texts = {"clip_l": "a red cat", "clip_g": LONG}
    reads = read_for_towers(texts, EncodeOptions(syntax="a1111", padding="drop"), READERS)
    assert reads["clip_l"].kept == reads["clip_g"].kept
    assert [len(read.kept or ()) for read in reads.values()] == [2, 2]
    first, second = reads["clip_g"].kept or (0, 0)
    assert first > second > 2
    assert read_for_towers(texts, EncodeOptions(), READERS)["clip_l"].kept is None


# ---- clean

BOS, EOS = 49406, 49407
CLEAN = {"clean": 1, "clean EOS too": 0}
"""Policies, with the number of rows kept after the content."""


def rows_of_transformers(model, contents: list[list[int]], pad_id: int, kept: int) -> torch.Tensor:
    """The rows of chunks one after another, by transformers, padding taken from the empty prompt by hand."""
    rows = []
    for content in contents:
        prompt, empty = ([BOS, *ids, EOS] for ids in (content, []))
        found = [
            model(torch.tensor([ids + [pad_id] * (77 - len(ids))])).last_hidden_state[0] for ids in (prompt, empty)
        ]
        stays = 1 + len(content) + kept
        rows.append(torch.cat([found[0][:stays], found[1][stays:]]))
    return torch.cat(rows)


@pytest.mark.parametrize("padding", CLEAN)
@pytest.mark.parametrize("pad_id", [EOS, 0])
@pytest.mark.parametrize("text", ["a red cat", "", "a red castle, " * 30])
def test_clean_rows_are_those_of_the_empty_prompt_by_transformers(text: str, pad_id: int, padding: str) -> None:
    tokenize = default_tokenizer()
    options = EncodeOptions(syntax="none", scheme="comfy", chunking="compel brutal", padding=padding)
    encoded = encode_prompt(read_prompt(text, options, tokenize, ChunkLayout(pad_id=pad_id)), TINY)

    ids = [token for token, _, _ in tokenize(text)]
    contents = [ids[start : start + 75] for start in range(0, max(1, len(ids)), 75)]
    expected = rows_of_transformers(transformers_text_model(MODEL), contents, pad_id, CLEAN[padding])
    torch.testing.assert_close(encoded.hidden[0], expected, rtol=0, atol=2e-6)

    attend = read_prompt(text, EncodeOptions(syntax="none"), tokenize, ChunkLayout(pad_id=pad_id))
    pooled = encode_prompt(attend, TINY).pooled
    torch.testing.assert_close(encoded.pooled, pooled, rtol=0, atol=2e-6)


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name != "repeat"])  # see test_repeat.py
@pytest.mark.parametrize("padding", CLEAN)
@pytest.mark.parametrize("text", ["a (red:1.3) cat and a (dog:0.4)", "", LONG + "(river:1.2) and a (sea:0.3)"])
def test_words_keep_their_bits_in_a_hosts_calls_and_every_scheme(text: str, padding: str, scheme: str) -> None:
    """A host's own call is made as without the policy, and the empty prompt encoded besides, once."""
    calls = []

    def spy(ids, mask=None, *, is_causal=True):
        calls.extend(map(tuple, ids))
        return TINY(ids, mask, is_causal=is_causal)

    results = []
    for policy in ("attend", padding):
        calls.clear()
        one = read(text, syntax="a1111", scheme=scheme, padding=policy)
        results += encode_prompts([one], spy, keeps_calls=True)
    plain, clean = results
    empty = (BOS, *[EOS] * 76)
    assert calls.count(empty) == 1
    assert clean.hidden.shape == plain.hidden.shape
    assert torch.equal(clean.pooled, plain.pooled)
    ends = [chunk.num_content + 1 + CLEAN[padding] for chunk in clean.read.chunks]
    places = range(77 * len(ends))
    if scheme == "lpw":
        places = [0, *(row for row in places if row % 77 not in (0, 76)), 77 * len(ends) - 1]
    if not SCHEMES[scheme].is_padded:
        places = [77 * chunk + row for chunk, count in enumerate(clean.read.kept) for row in range(count)]
    is_word = torch.tensor([place % 77 < ends[place // 77] for place in places])
    assert torch.equal(clean.hidden[:, is_word], plain.hidden[:, is_word])
    of_empty = TINY([empty]).hidden[0][torch.tensor(list(places)) % 77]
    torch.testing.assert_close(clean.hidden[0][~is_word], of_empty[~is_word], rtol=0, atol=1e-6)


def test_texts_of_one_image_in_the_webui_are_cleaned_each_by_its_own_length() -> None:
    """The WebUI encodes column by column; the mean that it restores is that of all rows, as it was."""
    texts = ["a (cat:1.5)", "a (dog:0.5) on a mat, " * 20]
    door = Encoders({"clip_l": READERS["clip_l"]}, {"clip_l": TINY}, keeps_calls=True)
    attend, clean = (
        door.prepare_together(texts, EncodeOptions(syntax="a1111", scheme="a1111", padding=padding)).run()
        for padding in ("attend", "clean")
    )
    empty = TINY([(BOS, *[EOS] * 76)]).hidden
    for one, other in zip(attend, clean, strict=True):
        chunks = other.prompts["clip_l"].read.chunks
        assert len(chunks) == 2
        for index, chunk in enumerate(chunks):
            first, stays = 77 * index, chunk.num_content + 2
            assert torch.equal(other.hidden[:, first : first + stays], one.hidden[:, first : first + stays])
            torch.testing.assert_close(other.hidden[:, first + stays : first + 77], empty[:, stays:], rtol=0, atol=1e-6)


def test_prompts_of_a_blend_are_cleaned_before_they_are_mixed() -> None:
    text = '("a red cat", "a dog").blend(3, 1)'
    cat, dog = (hidden(one, padding="clean") for one in ("a red cat", "a dog"))
    blended = hidden(text, syntax="compel", scheme="compel", padding="clean")
    torch.testing.assert_close(blended, 0.75 * cat + 0.25 * dog, rtol=0, atol=1e-6)
    torch.testing.assert_close(blended[:, 5:], hidden("")[:, 5:], rtol=0, atol=1e-6)


def test_clean_is_the_empty_prompt_without_causality_too() -> None:
    clean = hidden("a red cat", padding="clean", is_causal=False)
    torch.testing.assert_close(clean[:, 5:], hidden("", is_causal=False)[:, 5:], rtol=0, atol=1e-6)
    assert not torch.allclose(clean[:, 5:], hidden("")[:, 5:], atol=1e-3)
