"""Files of textual-inversion embeddings, and their vectors in the text tower."""

from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from weighted_clip.encoder.files.textual_inversion import (
    MAX_VECTORS,
    MAX_WIDTH,
    EmbeddingFileError,
    read_embedding_file,
)
from weighted_clip.encoder.masks import padding_mask
from weighted_clip.encoder.models.text_model import TextEncoder, TextModel
from weighted_clip.workshop.peers.transformers import transformers_text_model

from ..libraries import library
from .conftest import random_ids


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def save(path: Path, **tensors: Tensor) -> Path:
    save_file(tensors, path)
    return path


ONE, TWO = drawn(3, 8), drawn(2, 8, seed=1)


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ({"emb_params": ONE}, {"": ONE}),
        ({"<my-concept>": ONE}, {"": ONE}),
        ({"any": ONE[0]}, {"": ONE[:1]}),
        ({"string_to_param.*": ONE, "string_to_token.*": torch.tensor(265)}, {"": ONE}),
        ({"clip_l": ONE, "clip_g": TWO}, {"clip_l": ONE, "clip_g": TWO}),
        ({"clip_h": ONE}, {"clip_h": ONE}),
        ({"clip_l": ONE, "t5xxl": TWO}, {"clip_l": ONE}),
        ({"bundle_emb.a.string_to_param.*": ONE, "bundle_emb.b.string_to_param.*": TWO, "lora": ONE + 1}, (ONE, TWO)),
        ({"bundle_emb.a.clip_l": ONE, "bundle_emb.a.clip_g": TWO}, {"clip_l": ONE, "clip_g": TWO}),
    ],
)
def test_reads_every_layout(tmp_path: Path, tensors: dict, expected: dict | tuple) -> None:
    if isinstance(expected, tuple):
        expected = {"": torch.cat(expected)}
    found = read_embedding_file(save(tmp_path / "x.safetensors", **tensors))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[tower], vectors) for tower, vectors in expected.items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_vectors_are_float32_whatever_the_file_has(tmp_path: Path, dtype: torch.dtype) -> None:
    (vectors,) = read_embedding_file(save(tmp_path / "x.safetensors", x=ONE.to(dtype))).values()
    assert vectors.dtype == torch.float32
    assert torch.equal(vectors, ONE.to(dtype).float())


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({}, "no tensor in it"),
        ({"a": ONE, "b": TWO}, "2 tensors, and none is known to be the embedding. First keys: 'a', 'b'"),
        ({"string_to_param.*": ONE, "string_to_param.+": TWO}, "2 tensors"),
        ({"x": torch.ones(3, 8, dtype=torch.int32)}, "holds I32, expected floating point"),
        ({"x": torch.full((1, 8), torch.nan)}, "NaN, infinite or beyond float32"),
        ({"x": torch.full((1, 8), 1e300, dtype=torch.float64)}, "NaN, infinite or beyond float32"),
        ({"x": torch.ones(2, 3, 8)}, r"'x' has shape \[2, 3, 8\], expected \[vectors, width\]"),
        ({"x": torch.tensor(1.0)}, r"shape \[\]"),
        ({"x": torch.ones(0, 8)}, r"shape \[0, 8\]"),
        ({"x": torch.ones(MAX_VECTORS + 1, 2)}, "1001 vectors, at most 1000"),
        (
            {"bundle_emb.a.clip_l": torch.ones(600, 2), "bundle_emb.b.clip_l": torch.ones(600, 2)},
            "1200 vectors, at most",
        ),
        ({"x": torch.ones(1, MAX_WIDTH + 1)}, rf"shape \[1, {MAX_WIDTH + 1}\], at most {MAX_WIDTH} wide"),
        ({"bundle_emb.a.clip_l": ONE, "bundle_emb.b.clip_l": drawn(1, 9)}, "several widths"),
    ],
)
def test_what_holds_no_vectors_is_refused(tmp_path: Path, tensors: dict, reason: str) -> None:
    with pytest.raises(EmbeddingFileError, match=rf"^x\.safetensors: .*{reason}"):
        read_embedding_file(save(tmp_path / "x.safetensors", **tensors))


def test_as_many_vectors_as_allowed_and_as_wide_are_read(tmp_path: Path) -> None:
    for vectors in (torch.rand(MAX_VECTORS, 2), torch.rand(1, MAX_WIDTH)):
        (found,) = read_embedding_file(save(tmp_path / "x.safetensors", x=vectors)).values()
        assert torch.equal(found, vectors)


def test_what_is_no_safetensors_file_is_refused(tmp_path: Path) -> None:
    whole = save(tmp_path / "x.safetensors", x=ONE)
    for size in (7, 20, whole.stat().st_size - 1):
        cut = tmp_path / "cut.safetensors"
        cut.write_bytes(whole.read_bytes()[:size])
        with pytest.raises(EmbeddingFileError, match=r"^cut\.safetensors: not a readable safetensors file"):
            read_embedding_file(cut)
    with pytest.raises(EmbeddingFileError, match=r"^missing\.safetensors: it cannot be read: No such file"):
        read_embedding_file(tmp_path / "missing.safetensors")
    with pytest.raises(EmbeddingFileError, match=r"it cannot be read: it is a folder"):
        read_embedding_file(tmp_path)


@pytest.mark.parametrize(
    ("name", "reason"), [("x.pt", "can run code"), ("x.BIN", "can run code"), ("x.png", "pictures are not read")]
)
def test_other_kinds_of_embedding_are_refused_unopened(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(EmbeddingFileError, match=reason):
        read_embedding_file(tmp_path / name)


def vector(values: Tensor, placeholder: int = 0) -> SimpleNamespace:
    return SimpleNamespace(vector=values, placeholder=placeholder)


def with_vectors(ids: Tensor, places: dict[tuple[int, int], Tensor]) -> list[list[object]]:
    """The ids as lists, with vectors over the ids at some places."""
    chunks: list[list[object]] = ids.tolist()
    for (row, column), values in places.items():
        chunks[row][column] = vector(values, int(ids[row, column]))
    return chunks


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_vectors_equal_further_rows_of_the_token_embedding_in_transformers(shallow: TextModel, attention: str) -> None:
    library("transformers", "4.46")
    reference = transformers_text_model(shallow, attention)
    table = shallow.embeddings.token_embedding.weight
    new = 0.05 * drawn(8, table.shape[1])
    reference.set_input_embeddings(nn.Embedding.from_pretrained(torch.cat([table, new])))
    ids = random_ids(3)
    places = {(0, 1): 0, (0, 2): 1, (1, 5): 2, (1, 6): 3, (1, 40): 2, (2, 75): 4, (2, 76): 5}
    theirs = ids.clone()
    for place, number in places.items():
        theirs[place] = len(table) + number
    theirs[2, 20] = ids[2, 20] = shallow.config.eos_id  # a vector after an EOS does not move it
    mask = padding_mask(ids, eos_id=shallow.config.eos_id, pad_id=shallow.config.pad_id).squeeze(1)
    chunks = with_vectors(ids, {place: new[number] for place, number in places.items()})
    for some_mask in (None, mask):
        with torch.no_grad():
            expected = reference(theirs, None if some_mask is None else some_mask.long())
        found = TextEncoder(shallow)(chunks, some_mask)
        if attention == "sdpa":
            assert torch.equal(found.hidden, expected.last_hidden_state)
            assert torch.equal(found.pooled, expected.pooler_output)
        else:
            torch.testing.assert_close(found.hidden, expected.last_hidden_state, rtol=0, atol=1e-5)


def test_the_vector_of_a_token_is_that_token(tiny: TextModel) -> None:
    ids = random_ids(2)
    table = tiny.embeddings.token_embedding.weight
    places = {(row, column): table[ids[row, column]] for row in (0, 1) for column in range(77)}
    plain, ours = TextEncoder(tiny)(ids.tolist()), TextEncoder(tiny)(with_vectors(ids, places))
    assert torch.equal(ours.hidden, plain.hidden)
    assert torch.equal(ours.pooled, plain.pooled)


def test_the_first_eos_is_found_among_the_ids_beneath(tiny: TextModel) -> None:
    ids = torch.full((1, 77), tiny.config.eos_id)
    ids[0, :3] = torch.tensor([tiny.config.bos_id, 320, 2368])
    encoder = TextEncoder(tiny)
    values = drawn(16)
    over_eos = encoder(with_vectors(ids, {(0, 3): values}))
    assert torch.equal(over_eos.pooled, over_eos.hidden[:, 3])
    assert not torch.equal(over_eos.pooled, encoder(ids.tolist()).pooled)
    ids[0, 1] = 0
    over_word = encoder(with_vectors(ids, {(0, 1): values}))
    assert torch.equal(over_word.pooled, over_word.hidden[:, 3])


def test_a_hidden_vector_is_seen_by_no_other_position(tiny: TextModel) -> None:
    ids = random_ids(1)
    mask = torch.ones(1, 77, dtype=torch.bool)
    mask[0, 1] = False
    found = [TextEncoder(tiny)(with_vectors(ids, {(0, 1): drawn(16, seed=seed)}), mask).hidden for seed in (0, 1)]
    is_equal = (found[0] == found[1]).all(-1)[0]
    assert is_equal.nonzero().flatten().tolist() == [0, *range(2, 77)]


def test_a_vector_of_another_width_is_refused_with_both_widths(tiny: TextModel) -> None:
    for shape in ((1024,), (1, 16)):
        with pytest.raises(ValueError, match=rf"shape \[.*{shape[0]}.*16 wide"):
            TextEncoder(tiny)([[49406, vector(torch.zeros(shape)), 49407]])


def test_vectors_take_the_type_of_the_model(tiny: TextModel) -> None:
    encoder = TextEncoder(tiny)
    chunks = [[49406, vector(drawn(16).double()), 49407]]
    assert torch.equal(encoder(chunks).hidden, encoder([[49406, vector(drawn(16)), 49407]]).hidden)


def test_a_vector_that_the_type_of_the_model_cannot_hold_is_refused_with_what_to_do(tiny: TextModel) -> None:
    large = torch.full((16,), 1e6)  # float16 ends at 65,504
    with pytest.raises(ValueError, match=r"16 of its 16 values are beyond what float16 can hold.* as fp32 or bf16"):
        TextEncoder(deepcopy(tiny).half())([[49406, vector(large), 49407]])
    assert TextEncoder(tiny)([[49406, vector(large), 49407]]).hidden.isfinite().all()
