"""Captions that share rows: features, loss and gradients of transformers' padded ones, from fewer positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from weighted_clip.encoder.files.checkpoint import hugging_face_tensors
from weighted_clip.studio.training.scaling.grad_cache import Packed, Part, pack, projected

from ..libraries import library
from .models import TEXT, divided, gradients, towers

EIGHT = (32, 9, 21, 30, 7, 26, 12, 17)
FORTY = tuple(3 + 5 * number % 29 for number in range(40))


def captions_of(lengths: Sequence[int]) -> Tensor:
    """Random captions of so many positions, with BOS and EOS."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.full((len(lengths), max(lengths)), TEXT.pad_id)
    ids[:, 0] = TEXT.bos_id
    for row, length in zip(ids, lengths, strict=True):
        row[1 : length - 1] = torch.randint(49406, (length - 2,), generator=generator)
        row[length - 1] = TEXT.eos_id
    return ids


# ---- the same numbers


@pytest.mark.parametrize("is_checkpointed", [False, True], ids=["states kept", "checkpointed"])
@pytest.mark.parametrize("lengths", [EIGHT, FORTY, (77, 2, 3, 2)], ids=["eight", "forty", "one as long as can be"])
def test_features_loss_and_gradients_are_those_of_transformers(lengths: tuple[int, ...], is_checkpointed: bool) -> None:
    library("accelerate")
    from .test_grad_cache import reference_of

    model, ids = towers(text=TEXT), captions_of(lengths)
    assert pack(ids, TEXT).captions is not None
    model.text.encoder.is_checkpointed = is_checkpointed
    reference = reference_of(model)
    images = torch.randn(len(ids), TEXT.projection_dim or 0, generator=torch.Generator().manual_seed(1)).double()
    features = reference.get_text_features(input_ids=ids)
    features = getattr(features, "pooler_output", features)
    unit = torch.nn.functional.normalize
    loss = library("open_clip").ClipLoss()(unit(images), unit(features), reference.logit_scale.exp())
    loss.backward()
    theirs = {name: one.grad for name, one in reference.named_parameters() if one.grad is not None}

    model.vision, batch = None, Part(ids, images)
    texts, *_ = found = model(batch)
    assert (texts - features).abs().max() <= 1e-12
    assert model.loss(*found[:2]).item() == pytest.approx(loss.item(), abs=1e-12)
    for parts in ([batch], divided(batch, 2)):
        ours = gradients(model, parts)
        scale = ours.pop("loss.logit_scale")
        of_text = {name.removeprefix("text."): gradient for name, gradient in ours.items()}
        named = {"logit_scale": scale, **hugging_face_tensors(model.text, of_text)}
        assert named.keys() == theirs.keys()
        for name, gradient in named.items():
            assert (gradient - theirs[name]).abs().max() <= 1e-10, name
            assert gradient.abs().max() > 1e-8 or name.endswith("k_proj.bias"), name  # of which softmax sees nothing


def wrong_positions(packed: Packed) -> Packed:
    """Counted on through a row, as without packing."""
    return packed._replace(positions=torch.arange(packed.ids.shape[1]).expand_as(packed.ids))


def neighbours_seen(packed: Packed) -> Packed:
    return packed._replace(captions=torch.zeros_like(packed.ids))


def wrong_ends(packed: Packed) -> Packed:
    return packed._replace(ends=packed.ends - 1)


@pytest.mark.parametrize("fault", [wrong_positions, neighbours_seen, wrong_ends])
def test_what_could_be_wrong_would_be_seen(fault: Callable[[Packed], Packed]) -> None:
    model, ids = towers(text=TEXT).text, captions_of(EIGHT)
    packed = pack(ids, TEXT)
    with torch.no_grad():
        alone = torch.cat([model(row[:length][None]).projected for row, length in zip(ids, EIGHT, strict=True)])
        assert (projected(model, packed) - alone).abs().max() <= 1e-12
        assert (projected(model, fault(packed)) - alone).abs().max() > 1e-3


def test_captions_of_one_length_go_the_plain_way() -> None:
    model, ids = towers(text=TEXT).text, captions_of([9] * 6)
    packed = pack(ids, TEXT)
    assert packed.captions is None
    assert packed.ids is ids
    assert projected(model, packed).equal(model(ids).projected)


def test_more_positions_than_the_tower_has_are_refused() -> None:
    with pytest.raises(ValueError, match=r"up to 77\], got \[2, 78\]"):
        pack(captions_of([78, 2]), TEXT)


# ---- for less


def num_computed(lengths: Sequence[int]) -> int:
    """Positions that go through the linear layers of the tower."""
    model = towers(text=TEXT)
    model.vision = None
    found: list[int] = []
    layers = [layer for layer in model.text.encoder.modules() if isinstance(layer, torch.nn.Linear)]
    for layer in layers:
        layer.register_forward_hook(lambda _, given, __: found.append(given[0][..., 0].numel()))
    model(Part(captions_of(lengths), torch.zeros(len(lengths), 1)))
    assert len(found) == len(layers) == 12
    assert len(set(found)) == 1
    return found[0]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [((9, 3, 6), 18), ((9, 9, 9), 27), ((32, *[16] * 10), 192), ((77, 2, 3, 2), 84), ((5,), 5)],
)
def test_padding_is_not_computed(lengths: tuple[int, ...], expected: int) -> None:
    assert num_computed(lengths) == expected == sum(lengths)


@pytest.mark.parametrize("lengths", [EIGHT, FORTY])
def test_what_is_left_of_it_is_little(lengths: tuple[int, ...]) -> None:
    assert len(lengths) * max(lengths) > 1.5 * sum(lengths)
    assert num_computed(lengths) <= 1.1 * sum(lengths)


@given(lengths=st.lists(st.integers(2, 77), min_size=1, max_size=70), behind=st.integers(0, 3))
def test_every_caption_stands_somewhere_once_and_whole(lengths: list[int], behind: int) -> None:
    ids = torch.nn.functional.pad(captions_of(lengths), (0, behind), value=TEXT.pad_id)[:, :77]
    ids[0, lengths[0] - 1 :] = 5  # one without EOS, taken whole
    lengths = [ids.shape[1], *lengths[1:]]
    packed = pack(ids, TEXT)
    assert packed.ids.numel() <= ids.numel()
    assert packed.ids.shape[1] <= 4 * max(lengths) + 77
    flat = packed.ids.flatten()
    assert packed.ends.shape == (len(lengths),)
    taken: list[int] = []
    for number, (end, length) in enumerate(zip(packed.ends.tolist(), lengths, strict=True)):
        place = slice(end + 1 - length, end + 1)
        assert flat[place].equal(ids[number, :length])
        assert place.start // packed.ids.shape[1] == end // packed.ids.shape[1]  # in one row
        taken += range(place.start, place.stop)
        if packed.captions is not None and packed.positions is not None:
            assert packed.captions.flatten()[place].tolist() == [number] * length
            assert packed.positions.flatten()[place].tolist() == list(range(length))
    assert len(set(taken)) == sum(lengths)
    if packed.captions is not None:
        assert (packed.captions >= 0).sum() == sum(lengths)
    again = pack(ids, TEXT)
    assert again.ids.equal(packed.ids)
    assert again.ends.equal(packed.ends)
