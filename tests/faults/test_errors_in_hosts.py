"""Lack of memory and interrupts while ComfyUI encodes for us: it sees the very error, and its CLIP stays its own."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from weighted_clip.encoder.cache import num_bytes
from weighted_clip.hosts.comfy import clip as comfy
from weighted_clip.hosts.comfy.cache import memory_of
from weighted_clip.weighting.options import EncodeOptions

from ..comfy_nodes import fake_comfy
from .injection import ERRORS, FailingAt, failure, num_operations

pytestmark = pytest.mark.usefixtures("no_collector")

TEXT = "a (red:1.3) fox in (deep:0.4) snow"
NUM_PLACES = 24


def places(work: Callable[[], Any]) -> Iterator[tuple[int, BaseException]]:
    """Operations to fail, spread over some work, each with another error."""
    count = num_operations(work)
    assert count > NUM_PLACES
    for index in range(NUM_PLACES):
        yield index * count // NUM_PLACES, ERRORS[index % len(ERRORS)]


def comfy_encoded(clip: Any) -> torch.Tensor:
    options = EncodeOptions(scheme="masked_blend", padding="mask")
    return comfy.encode_text(clip, TEXT, options).conditioning[0][0]


def stock(clip: Any) -> torch.Tensor:
    tokens = [(token.id, 1.0) for token in fake_comfy.default_tokenizer()("a fox")]
    chunk = [(49406, 1.0), *tokens, *[(49407, 1.0)] * (76 - len(tokens))]
    return clip.encode_from_tokens_scheduled({"l": [chunk]})[0][0]


@pytest.mark.parametrize("mebibytes", [0, 8])
def test_comfyui_sees_the_very_error_and_keeps_its_clip(mebibytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_comfy.install(monkeypatch)
    model = fake_comfy.FakeClip().cond_stage_model

    def fresh() -> Any:
        return fake_comfy.node("Remember").remember(fake_comfy.FakeClip(model), mebibytes)[0]

    expected, expected_stock = comfy_encoded(fresh()), stock(fresh())
    for number, error in places(lambda: comfy_encoded(fresh())):
        clip = fresh()
        mode = failure(lambda clip=clip: comfy_encoded(clip), number, error)
        assert clip.patcher.object_patches == {}
        memory = memory_of(clip)
        if memory is not None:
            assert memory.num_bytes == sum(map(num_bytes, memory._entries.values()))
        if memory is None or not len(memory):
            assert mode.num_alive() == 0
        assert torch.equal(stock(clip), expected_stock)
        assert torch.equal(comfy_encoded(clip), expected)


def test_nothing_of_an_encoding_hangs_on_the_patch_that_comfyui_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_comfy.install(monkeypatch)
    left: list[Any] = []  # the real host sets object patches on the model itself, and takes them off at its next load
    clip = fake_comfy.node("Remember").remember(fake_comfy.FakeClip(), 8)[0]
    add = fake_comfy.Patcher.add_object_patch
    monkeypatch.setattr(
        fake_comfy.Patcher, "add_object_patch", lambda self, name, value: left.append(value) or add(self, name, value)
    )
    with FailingAt() as mode:
        comfy_encoded(clip)
    memory = memory_of(clip)
    assert memory is not None
    assert len(left) == 1
    memory.forget(memory.keys())
    assert mode.num_alive() == 0
    # whoever asks the host's model while the patch is still on it gets the host's own encoding
    tower = clip.cond_stage_model.clip_l
    monkeypatch.setattr(type(tower), "encode_token_weights", lambda self, pairs: (self, pairs), raising=False)
    assert left[0]([[(320, 1.0)]]) == (tower, [[(320, 1.0)]])


def test_a_lack_of_memory_while_weights_are_compared_is_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_comfy.install(monkeypatch)
    clip = fake_comfy.node("Remember").remember(fake_comfy.FakeClip(), 8)[0]

    def none_left(module: object) -> bytes:
        raise ERRORS[0]

    monkeypatch.setattr("weighted_clip.hosts.comfy.cache.state_of", none_left)
    with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
        comfy_encoded(clip)
    assert caught.value is ERRORS[0]
