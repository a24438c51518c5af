"""Lack of memory and interrupts at every operation of an encoding: the error arrives, and nothing of it stays."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from weighted_clip.encoder.cache import Memory, num_bytes
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.models.prefix import PrefixTextEncoder
from weighted_clip.encoder.models.text_model import TextModel
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.hosts.comfy.clip.clip import clip as comfy
from weighted_clip.hosts.comfy.models.cache import memory_of
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.pipeline import EncodedPrompt
from weighted_clip.weighting.reading.prompt_reader import read_prompt

from ..comfy_nodes import fake_comfy
from ..door import encode_prompt, encode_prompts
from .disks import CONFIG
from .injection import ERRORS, FailingAt, failure, interrupted_at, num_operations

pytestmark = pytest.mark.usefixtures("no_collector")

MAX_BYTES = 8 * 2**20
LONG = "a (red:1.3) fox in (deep:0.4) snow by the old river, " * 7
"""Two chunks, which are encoded with words hidden, and with the empty prompt."""
OPTIONS = EncodeOptions(syntax="a1111", scheme="masked_blend", padding="mask")


@pytest.fixture(scope="module")
def model() -> TextModel:
    return seeded_text_model(CONFIG)


def fresh(model: TextModel) -> PrefixTextEncoder:
    return PrefixTextEncoder(model, max_bytes=MAX_BYTES)


def encoded(encoder: PrefixTextEncoder, text: str = LONG, options: EncodeOptions = OPTIONS) -> EncodedPrompt:
    return encode_prompt(read_prompt(text, options, default_tokenizer()), encoder, default_tokenizer())


def assert_equal(one: EncodedPrompt, other: EncodedPrompt) -> None:
    assert torch.equal(one.hidden, other.hidden)
    assert torch.equal(one.pooled, other.pooled)


def assert_sound(memory: Memory) -> None:
    """Nobody holds its lock, and its bytes are those of its entries."""
    assert memory._lock.acquire(blocking=False)
    memory._lock.release()
    assert memory.num_bytes == sum(map(num_bytes, memory._entries.values())) <= memory.max_bytes


def entries(encoder: PrefixTextEncoder) -> list[Any]:
    return [encoder.encodings.keys(), encoder.trunks.keys()]


def test_an_error_at_any_operation_leaves_an_encoder_as_new(model: TextModel) -> None:
    expected = encoded(fresh(model))
    count = num_operations(lambda: encoded(fresh(model)))
    assert count > 100
    for number in range(0, count, count // 40):
        encoder = fresh(model)
        mode = failure(lambda encoder=encoder: encoded(encoder), number, ERRORS[number % len(ERRORS)])
        # the prompt's chunks may be whole by then: what failed was the scheme's arithmetic, and their next use is equal
        is_encoded = bool(len(encoder.encodings))
        assert is_encoded or entries(encoder) == [[], []]
        for memory in (encoder.encodings, encoder.trunks):
            assert_sound(memory)
        if not is_encoded:
            assert mode.num_alive() == 0, number
        if number % 3 == 0:
            assert_equal(encoded(encoder), expected)


def test_what_was_remembered_before_an_error_is_still_there_and_nothing_more(model: TextModel) -> None:
    before = "a (cat:1.2)"
    other = fresh(model)
    encoded(other, before)
    known = entries(other)
    expected = encoded(other)
    count = num_operations(lambda: encoded(fresh(model)))
    for number in range(3, count // 2, count // 20):
        encoder = fresh(model)
        encoded(encoder, before)
        failure(lambda encoder=encoder: encoded(encoder), number, ERRORS[number % len(ERRORS)])
        assert entries(encoder) == known
        assert_equal(encoded(encoder), expected)


def test_an_error_in_the_second_batch_takes_the_first_one_back(
    model: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weighted_clip.encoder.models.prefix.BATCH_BYTES", 1)  # a chunk each
    expected = encoded(fresh(model))
    count = num_operations(lambda: encoded(fresh(model)))
    for number in range(count // 3, count, count // 9):
        encoder = fresh(model)
        failure(lambda encoder=encoder: encoded(encoder), number, ERRORS[0])
        for memory in (encoder.encodings, encoder.trunks):
            assert_sound(memory)
        assert_equal(encoded(encoder), expected)


def test_prompts_encoded_together_are_as_before_after_an_error(model: TextModel) -> None:
    texts = ["a (red:0.5) cat", "a (dog:1.4) on [grass]", "((wet)) sand"]
    schemes = ["masked_blend", "a1111", "down_weight"]
    reads = [
        read_prompt(text, EncodeOptions(syntax="a1111", scheme=scheme), default_tokenizer())
        for text, scheme in zip(texts, schemes, strict=True)
    ]

    def work(encoder: PrefixTextEncoder) -> list[EncodedPrompt]:
        return encode_prompts(reads, encoder, default_tokenizer())

    expected = work(fresh(model))
    count = num_operations(lambda: work(fresh(model)))
    for number in range(0, count, count // 8):
        encoder = fresh(model)
        failure(lambda encoder=encoder: work(encoder), number, ERRORS[number % len(ERRORS)])
        for memory in (encoder.encodings, encoder.trunks):
            assert_sound(memory)
        if number < count // 3:  # nothing was encoded yet, so there is nothing that may stay
            assert entries(encoder) == [[], []]
            for one, other in zip(work(encoder), expected, strict=True):
                assert_equal(one, other)


def test_ctrl_c_at_any_step_of_a_change_leaves_the_bytes_right() -> None:
    functions = (Memory.put, Memory.forget, Memory._drop, num_bytes)
    codes = {function.__code__ for function in functions}
    tensor = torch.zeros(256)

    def filled() -> Memory[str]:
        memory: Memory[str] = Memory(3 * tensor.nbytes)
        for name in "abc":
            memory.put(name, (tensor,))
        return memory

    works = [
        lambda memory: memory.put("d", (tensor, tensor)),
        lambda memory: memory.put("a", (tensor,)),
        lambda memory: memory.forget(["a", "c"]),
    ]
    num_interrupts = 0
    for work in works:
        for step in range(1000):
            memory = filled()
            with interrupted_at(step, codes) as count:
                try:
                    work(memory)
                except KeyboardInterrupt:
                    num_interrupts += 1
            assert_sound(memory)
            memory.put("e", (tensor, tensor, tensor))  # still has room for all that it may hold
            assert memory.keys() == ["e"]
            if count[0] <= step:
                break
    assert num_interrupts > 30


# ---- while ComfyUI encodes for us: it sees the very error, and its CLIP stays its own

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
        return fake_comfy.remembering(fake_comfy.FakeClip(model), mebibytes)

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


def test_nothing_of_an_encoding_hangs_on_the_clip(clip: fake_comfy.FakeClip) -> None:
    comfy_encoded(clip)  # constants are made once
    memory = memory_of(clip)
    assert memory is not None
    memory.forget(memory.keys())
    with FailingAt() as mode:
        comfy_encoded(clip)
    assert len(memory)
    memory.forget(memory.keys())
    assert mode.num_alive() == 0


def test_a_lack_of_memory_while_weights_are_compared_is_the_hosts(
    clip: fake_comfy.FakeClip, monkeypatch: pytest.MonkeyPatch
) -> None:

    def none_left(module: object) -> bytes:
        raise ERRORS[0]

    monkeypatch.setattr("weighted_clip.hosts.comfy.models.cache.state_of", none_left)
    with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
        comfy_encoded(clip)
    assert caught.value is ERRORS[0]
