"""Shared prefixes against full passes, which states are computed, and the layer of each model family."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from weighted_clip.encoder import cache as memory
from weighted_clip.encoder.cache import ChunkKey
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.masks import MaskError
from weighted_clip.encoder.models import linear, prefix
from weighted_clip.encoder.models.config import FAMILIES, OPENCLIP_H, TOWERS, TextConfig
from weighted_clip.encoder.models.kernels import VARIABLE
from weighted_clip.encoder.models.linear import ONEDNN
from weighted_clip.encoder.models.prefix import PrefixTextEncoder, bytes_per_chunk, encoders_for, num_shared, share
from weighted_clip.encoder.models.text_model import TextEncoder, TextModel
from weighted_clip.weighting.text.embeddings import EmbeddingVector
from weighted_clip.workshop.peers.transformers import transformers_text_model

from ..libraries import is_torch, library
from .conftest import TINY, random_ids

CHUNK = [49406, *range(300, 360), *[49407] * 16]
MIB = 2**20


def variants(count: int, seed: int = 0) -> tuple[list[list[int]], Tensor]:
    """One prompt of 60 tokens, each time with other tokens of it hidden; the first with none."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.ones(count, 1, 77, dtype=torch.bool)
    for row in range(1, count):
        start = int(torch.randint(1, 60, (1,), generator=generator))
        mask[row, 0, start : start + 3] = False
    return [CHUNK] * count, mask


def edited(place: int, token: int = 9) -> list[int]:
    """The prompt with another token."""
    return [*CHUNK[:place], token, *CHUNK[place + 1 :]]


def assert_same(encoders: tuple[TextEncoder, TextEncoder], *given: Any, tolerance: float = 1e-5, **more: Any) -> None:
    one, other = (encoder(*given, **more) for encoder in encoders)
    torch.testing.assert_close(one.hidden, other.hidden, atol=tolerance, rtol=0)
    torch.testing.assert_close(one.pooled, other.pooled, atol=tolerance, rtol=0)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """A function that says how many states were computed since it was last asked."""
    counts: list[int] = []
    share = prefix.share

    def watched(*given: Any) -> Any:
        shared = share(*given)
        counts.append(len(shared.fresh))
        return shared

    def since() -> int:
        total = sum(counts)
        counts.clear()
        return total

    monkeypatch.setattr(prefix, "share", watched)
    yield since


@pytest.mark.parametrize("max_bytes", [0, MIB])
@pytest.mark.parametrize("options", [{}, {"clip_skip": 2}, {"clip_skip": 2, "final_norm": False}, {"projected": True}])
def test_equals_full_passes_for_every_choice_of_layer(tiny: TextModel, options: dict[str, Any], max_bytes: int) -> None:
    encoders = TextEncoder(tiny, **options), PrefixTextEncoder(tiny, **options, max_bytes=max_bytes)
    ids, mask = variants(6)
    per_query = mask.expand(-1, 77, -1).clone()
    per_query[2, 30:40, 5:9] = False
    for _ in range(2):  # the second time much of it is remembered
        assert_same(encoders, ids, mask)
        assert_same(encoders, random_ids(4).tolist())
        assert_same(encoders, ids, per_query)
        assert_same(encoders, ids, mask, is_causal=False)
        assert_same(encoders, ids[:2], None, is_causal=False)
        assert_same(encoders, ids[:1], mask[:1])
        assert_same(encoders, [edited(40), CHUNK, edited(70), edited(40)])


def test_embeddings_alone_can_be_asked_for(tiny: TextModel) -> None:
    layer = TINY.num_layers + 1
    assert_same((TextEncoder(tiny, clip_skip=layer), PrefixTextEncoder(tiny, clip_skip=layer)), [CHUNK, edited(9)])


def test_full_size_encoder_stays_within_1e_5_of_transformers(clip_l: TextModel) -> None:
    library("transformers")
    reference, encode = transformers_text_model(clip_l), PrefixTextEncoder(clip_l)
    ids, mask = variants(5)
    shared = [[*CHUNK[:40], *row[40:]] for row in random_ids(4, seed=3).tolist()]
    for chunks, keys in ((ids, mask[:, 0]), (shared, torch.ones(4, 77)), (shared[:1], None), ([edited(55)], None)):
        with torch.no_grad():
            expected = reference(torch.tensor(chunks), attention_mask=None if keys is None else keys.long())
        found = encode(chunks, None if keys is None else keys.bool())
        torch.testing.assert_close(found.hidden, expected.last_hidden_state, atol=1e-5, rtol=0)
        torch.testing.assert_close(found.pooled, expected.pooler_output, atol=1e-5, rtol=0)


def test_every_state_is_computed_once(tiny: TextModel, computed: Callable[[], int]) -> None:
    encode = PrefixTextEncoder(tiny, max_bytes=0)
    encode([edited(40, token) for token in range(5)])
    assert computed() == 40 + 5 * 37
    mask = torch.ones(3, 1, 77, dtype=torch.bool)
    mask[1, 0, 20] = mask[2, 0, 20] = mask[2, 0, 50] = False
    encode([CHUNK] * 3, mask)
    assert computed() == 77 + 57 + 27
    encode([CHUNK, CHUNK, edited(76)], None)
    assert computed() == 77 + 1
    encode([CHUNK, CHUNK, edited(76)], None, is_causal=False)
    assert computed() == 77 + 77


@pytest.mark.skipif(ONEDNN is None, reason="needs oneDNN on x86")
def test_few_shapes_of_matrices_are_multiplied(tiny: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "onednn")  # for each of them it keeps 0.6 MiB
    sizes: set[int] = set()
    run = prefix._run_block

    def watched(block: Any, hidden: Tensor, *rest: Any) -> Any:
        sizes.add(len(hidden))
        return run(block, hidden, *rest)

    monkeypatch.setattr(prefix, "_run_block", watched)
    encode = PrefixTextEncoder(tiny, max_bytes=0)
    for place in range(1, 77):
        encode([CHUNK, edited(place)])
    assert len(sizes) <= 10
    assert 77 + 76 <= max(sizes) <= 1.1 * (77 + 76)


def test_what_is_remembered_is_not_computed_again(tiny: TextModel, computed: Callable[[], int]) -> None:
    encode = PrefixTextEncoder(tiny, max_bytes=8 * MIB)
    encode([CHUNK, random_ids(1).tolist()[0]])
    assert computed() == 2 * 77 - 1  # both begin with BOS
    encode([CHUNK])
    assert computed() == 0
    encode([edited(60), CHUNK])  # goes on from what is remembered of the prompt
    assert computed() == 17
    encode([edited(60, 10), edited(30)])
    assert computed() == 17 + 47
    encode([[49406, 5, *CHUNK[2:]]])  # one position in common is not worth it
    assert computed() == 77
    encode([edited(60, 11), [49406, 6, *CHUNK[2:]]])  # but another chunk's beginning is
    assert computed() == 17 + 76
    encode([CHUNK[:70]])  # a shorter one has no states in common that are looked for
    assert computed() == 70
    encode([CHUNK], is_causal=False)
    assert computed() == 77
    visible = torch.ones(1, 77, dtype=torch.bool)
    encode([CHUNK], visible)  # hides nothing, so it is the same
    assert computed() == 0
    visible[0, 50] = False
    encode([CHUNK], visible)
    assert computed() == 27
    forgetful = PrefixTextEncoder(tiny, max_bytes=0)
    for _ in range(2):
        forgetful([CHUNK])
        assert computed() == 77


def test_what_was_encoded_last_is_gone_on_from_however_much_is_remembered(
    tiny: TextModel, computed: Callable[[], int]
) -> None:
    encode = PrefixTextEncoder(tiny, max_bytes=8 * MIB)
    for chunk in random_ids(prefix.MAX_TRUNKS + 1).tolist():
        encode([chunk])
    encode([CHUNK])
    assert len(encode.trunks) > prefix.MAX_TRUNKS
    computed()
    encode([edited(60)])
    assert computed() == 17


@pytest.mark.parametrize("clip_skip", [1, 2, 3])
@pytest.mark.parametrize("final_norm", [True, False])
def test_on_a_gpu_chunks_are_encoded_whole(
    tiny: TextModel, clip_skip: int, final_norm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU stands for a GPU; nothing is remembered there, so changed weights need not be noticed."""
    assert prefix.is_wholly_encoded("cuda") and not prefix.is_wholly_encoded("cpu")
    monkeypatch.setattr(prefix, "is_wholly_encoded", lambda device: True)
    choices = {"clip_skip": clip_skip, "final_norm": final_norm}
    encode, whole = PrefixTextEncoder(tiny, max_bytes=8 * MIB, **choices), TextEncoder(tiny, **choices)
    ids, mask = variants(4)
    for masks in (mask, mask[:1].expand(4, -1, -1), torch.ones_like(mask), None):
        assert_same((whole, encode), ids, masks, tolerance=1e-6)
        is_not = [each(ids, masks, is_causal=False) for each in (whole, encode)]
        torch.testing.assert_close(is_not[0].hidden, is_not[1].hidden, atol=1e-6, rtol=0)
    monkeypatch.setattr(prefix, "BATCH_BYTES", 1)
    assert_same((whole, encode), ids, mask, tolerance=1e-6)
    assert len(encode.encodings) == len(encode.trunks) == 0


def test_a_known_beginning_gives_the_whole_encoding_again_when_only_states_are_left(tiny: TextModel) -> None:
    encode = PrefixTextEncoder(tiny, max_bytes=8 * MIB)
    expected = encode([CHUNK, edited(30)])
    encode.encodings.forget(encode.encodings.keys())
    found = encode([CHUNK, edited(30)])
    torch.testing.assert_close(found.hidden, expected.hidden, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.pooled, expected.pooled, atol=1e-5, rtol=0)


def _in_place(model: TextModel) -> None:
    with torch.no_grad():
        model.encoder.layers[1].mlp.fc1.weight[3, 4] += 1.0


def _through_data(model: TextModel) -> None:
    model.encoder.layers[0].self_attn.q_proj.weight.data.mul_(1.5)


def _loaded(model: TextModel) -> None:
    model.load_state_dict(seeded_text_model(TINY, seed=9).state_dict())


def _replaced(model: TextModel) -> None:
    model.final_layer_norm.weight = torch.nn.Parameter(torch.full_like(model.final_layer_norm.weight, 2.0))


def _embedding(model: TextModel) -> None:
    with torch.no_grad():
        model.embeddings.token_embedding.weight[300] += 1.0


def _type(model: TextModel) -> None:
    model.to(torch.bfloat16)


@pytest.mark.parametrize("change", [_in_place, _through_data, _loaded, _replaced, _embedding, _type])
def test_nothing_stale_is_given_after_the_weights_change(change: Callable[[TextModel], None]) -> None:
    if change is _type and not is_torch("2.3"):
        pytest.skip(f"in torch {torch.__version__} attention in bfloat16 rounds by the number of positions")
    model = seeded_text_model(TINY, seed=1)
    encode = PrefixTextEncoder(model)
    before = encode([CHUNK])
    change(model)
    assert not torch.equal(encode([CHUNK]).hidden, before.hidden)
    for chunks in ([CHUNK], [edited(50)]):
        assert_same((PrefixTextEncoder(model, max_bytes=0), encode), chunks)


@pytest.mark.parametrize("change", [{"clip_skip": 2}, {"final_norm": False}, {"projected": False}])
def test_nothing_stale_is_given_with_other_layers(tiny: TextModel, change: dict[str, Any]) -> None:
    options: dict[str, Any] = {"clip_skip": 1, "final_norm": True, "projected": True}
    encode, expected = PrefixTextEncoder(tiny, **options), TextEncoder(tiny, **{**options, **change})
    encode([CHUNK])
    for name, value in change.items():
        setattr(encode, name, value)
    for chunks in ([CHUNK], [edited(60)]):  # the second shares 60 states with what is remembered
        assert_same((expected, encode), chunks)


def test_vectors_of_embeddings_part_prefixes_where_they_differ(tiny: TextModel, computed: Callable[[], int]) -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = [torch.randn(TINY.hidden_dim, generator=generator) for _ in range(2)]
    # both are called the same: a file that was replaced
    ids: list[list[Any]] = [CHUNK, *([*CHUNK[:20], EmbeddingVector("one", 0, v), *CHUNK[21:]] for v in vectors)]
    assert_same((TextEncoder(tiny), PrefixTextEncoder(tiny)), [*ids, ids[1]])
    encode = PrefixTextEncoder(tiny)
    computed()
    for chunk, count in zip(ids, (77, 57, 57), strict=True):
        assert_same((TextEncoder(tiny), encode), [chunk])
        assert computed() == count


def test_an_eos_beneath_a_vector_ends_its_own_chunk_alone(tiny: TextModel) -> None:
    vector = torch.randn(TINY.hidden_dim, generator=torch.Generator().manual_seed(0))
    ids = [[*CHUNK[:20], EmbeddingVector("one", 0, vector, beneath), *CHUNK[21:]] for beneath in (300, TINY.eos_id)]
    assert_same((TextEncoder(tiny), PrefixTextEncoder(tiny)), ids)
    encode = PrefixTextEncoder(tiny)
    for chunk in ids:  # the second is not the first, which is remembered
        assert_same((TextEncoder(tiny), encode), [chunk])


@pytest.mark.parametrize("config", [TINY, TextConfig(hidden_dim=64, num_heads=1, num_layers=3, mlp_dim=128)])
def test_memory_is_bounded(config: TextConfig) -> None:
    encode = PrefixTextEncoder(seeded_text_model(config), max_bytes=2 * MIB)
    for seed in range(40):
        encode(random_ids(3, seed=seed).tolist())
        assert encode.encodings.num_bytes <= MIB
        assert encode.trunks.num_bytes <= MIB
    assert len(encode.encodings) > 10
    assert len(encode.trunks) > 1


def test_large_calls_are_divided(tiny: TextModel, monkeypatch: pytest.MonkeyPatch, computed: Callable[[], int]) -> None:
    calls: list[int] = []
    run = PrefixTextEncoder._run
    monkeypatch.setattr(prefix, "BATCH_BYTES", 3 * bytes_per_chunk(TINY))
    monkeypatch.setattr(
        PrefixTextEncoder,
        "_run",
        lambda self, ids, *rest, **more: calls.append(len(ids)) or run(self, ids, *rest, **more),
    )
    ids, mask = variants(8)
    assert_same((TextEncoder(tiny), PrefixTextEncoder(tiny, max_bytes=0)), [*ids, ids[0]], torch.cat([mask, mask[:1]]))
    assert len({tuple(row) for row in mask.flatten(1).tolist()}) == 7
    assert calls == [3, 3, 1]  # the different ones
    assert computed() > 0


@given(st.lists(st.text("ab", min_size=8, max_size=8), min_size=1, max_size=6, unique=True), st.data())
def test_states_are_shared_just_where_everything_before_is_the_same(rows: list[str], data: st.DataObject) -> None:
    trunks = data.draw(st.lists(st.sampled_from(rows) | st.text("ab", min_size=8, max_size=8), max_size=2, unique=True))
    shared = share(*([ChunkKey(tuple(row), True) for row in texts] for texts in (rows, trunks)))
    known_beginnings = [
        text[: place + 1] for text, count in zip(trunks, shared.num_known, strict=True) for place in range(count)
    ]
    used = {node for nodes in shared.nodes for node in nodes}
    ends = [count - 1 for count in accumulate(shared.num_known)]
    assert all(end in used for end, count in zip(ends, shared.num_known, strict=True) if count)  # and no more
    new_beginnings = [rows[row][: place + 1] for row, place in shared.fresh]
    beginnings = [*known_beginnings, *new_beginnings]
    for row, nodes in zip(rows, shared.nodes, strict=True):
        assert [beginnings[node] for node in nodes] == [row[: place + 1] for place in range(8)]
    assert len(set(new_beginnings)) == len(new_beginnings)
    assert not {text for text in new_beginnings if len(text) < 8} & {
        trunk[:place] for trunk in trunks for place in range(8)
    }


def test_counts_what_two_chunks_share() -> None:
    one, other = ChunkKey((1, 2, 3), True), ChunkKey((1, 2, 4), True)
    assert (num_shared(one, other), num_shared(one, one)) == (2, 3)


def test_masks_are_checked_as_ever(tiny: TextModel) -> None:
    ids, mask = variants(3)
    mask[1, 0, 0] = False
    with pytest.raises(MaskError):
        PrefixTextEncoder(tiny)(ids, mask)


def test_float64_stays_float64() -> None:
    model = seeded_text_model(TINY, dtype=torch.float64)
    ids, mask = variants(4)
    assert_same((TextEncoder(model), PrefixTextEncoder(model)), ids, mask, tolerance=1e-12)
    assert PrefixTextEncoder(model)(ids, mask).hidden.dtype == torch.float64


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 5e-3), (torch.bfloat16, 5e-2)])
def test_low_precision_is_near_float32(dtype: torch.dtype, tolerance: float) -> None:
    model = seeded_text_model(TINY)
    expected = TextEncoder(model)([CHUNK, edited(9)]).hidden
    encode = PrefixTextEncoder(model.to(dtype))
    for _ in range(2):
        found = encode([CHUNK, edited(9)]).hidden
        assert found.dtype == torch.float32
        assert float((found - expected).pow(2).mean().sqrt()) < tolerance


def test_types_that_the_processor_lacks_are_widened(monkeypatch: pytest.MonkeyPatch) -> None:
    model = seeded_text_model(TINY).to(torch.bfloat16)
    monkeypatch.setattr(linear, "_lacking", lambda: {torch.bfloat16})
    found = PrefixTextEncoder(model)([CHUNK]).hidden
    assert_close = torch.testing.assert_close
    assert_close(found, TextEncoder(model.float())([CHUNK]).hidden, atol=2e-2, rtol=0)


def test_a_callers_autocast_changes_nothing(tiny: TextModel) -> None:
    encode = PrefixTextEncoder(tiny)
    with torch.autocast("cpu", torch.bfloat16):
        found = encode([CHUNK])
    assert torch.equal(found.hidden, PrefixTextEncoder(tiny, max_bytes=0)([CHUNK]).hidden)


def test_keys_of_vectors_are_short(tiny: TextModel) -> None:
    vector = torch.zeros(4096)
    (key,) = memory.chunk_keys([[1, EmbeddingVector("one", 0, vector)]], None, is_causal=True)
    assert len(repr(key)) < 1000
    assert len(memory.state_of(tiny)) == 64


# --- the layer that each model family conditions on


def tiny_tower(tower: str, *, projection_dim: int | None = 12, num_layers: int = 3) -> TextModel:
    sizes = replace(TINY, projection_dim=projection_dim, num_layers=num_layers)
    return seeded_text_model(
        replace(sizes, pad_id=TOWERS[tower].pad_id, activation=TOWERS[tower].activation),
        seed=list(TOWERS).index(tower),
    )


TINY_TOWERS = {tower: tiny_tower(tower) for tower in TOWERS}


@pytest.mark.parametrize(
    ("towers", "clip_skip", "family", "used_skip", "final_norm", "projected"),
    [
        (["clip_l"], 1, "SD 1.x", 1, True, False),
        (["clip_l"], 2, "SD 1.x", 2, True, False),
        (["clip_h"], 1, "SD 2.x", 2, True, True),
        (["clip_h"], 3, "SD 2.x", 3, True, True),
        (["clip_l", "clip_g"], 1, "SDXL", 2, False, True),
        (["clip_g", "clip_l"], 2, "SDXL", 2, False, True),
        (["clip_l", "clip_g"], 3, "SDXL", 3, False, True),
        (["clip_g"], 1, "SDXL refiner", 2, False, True),
    ],
)
def test_each_family_has_its_layer(
    towers: list[str], clip_skip: int, family: str, used_skip: int, final_norm: bool, projected: bool
) -> None:
    found, encoders = encoders_for({tower: TINY_TOWERS[tower] for tower in towers}, clip_skip)
    assert found.name == family
    assert tuple(encoders) == found.towers
    for tower, encoder in encoders.items():
        assert encoder.model is TINY_TOWERS[tower]
        ids = random_ids(2, pad_id=encoder.config.pad_id)
        output = encoder.model(ids, clip_skip=used_skip, final_norm=final_norm)
        encoding = encoder(ids.tolist())
        torch.testing.assert_close(encoding.hidden, output.hidden, atol=1e-5, rtol=0)
        pooled = output.projected if projected else output.pooled
        torch.testing.assert_close(encoding.pooled, pooled, atol=1e-5, rtol=0)


def test_without_a_projection_pooled_vectors_stay_as_they_are() -> None:
    # the first tower of an SDXL checkpoint
    _, encoders = encoders_for({"clip_l": tiny_tower("clip_l", projection_dim=None), "clip_g": TINY_TOWERS["clip_g"]})
    ids = random_ids(1).tolist()
    assert encoders["clip_l"](ids).pooled.shape == (1, 16)
    assert encoders["clip_g"](ids).pooled.shape == (1, 12)


def test_the_last_layer_that_diffusers_cuts_off_is_counted() -> None:
    whole = tiny_tower("clip_h", num_layers=OPENCLIP_H.num_layers)
    cut = tiny_tower("clip_h", num_layers=OPENCLIP_H.num_layers - 1)
    cut.load_state_dict(whole.state_dict(), strict=False)
    ids = random_ids(1, pad_id=0).tolist()
    for clip_skip in (1, 2, 3):
        expected, found = (encoders_for({"clip_h": model}, clip_skip)[1]["clip_h"](ids) for model in (whole, cut))
        assert torch.equal(found.hidden, expected.hidden)


@pytest.mark.parametrize("towers", [[], ["clip_h", "clip_l"], ["clip_l", "clip_g", "clip_h"]])
def test_towers_of_no_family_are_refused_with_what_is_allowed(towers: list[str]) -> None:
    with pytest.raises(ValueError, match=r"no model family has the text encoders .*; allowed are") as caught:
        encoders_for({tower: TINY_TOWERS[tower] for tower in towers})
    for family in FAMILIES:
        assert f"{' + '.join(family.towers)} ({family.name})" in str(caught.value)


@pytest.mark.parametrize("clip_skip", [0, -1, 5])
def test_a_clip_skip_out_of_range_is_refused(clip_skip: int) -> None:
    with pytest.raises(ValueError, match=f"clip_skip {clip_skip} is out of range"):
        encoders_for({"clip_g": TINY_TOWERS["clip_g"]}, clip_skip)
