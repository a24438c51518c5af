"""Models that are freed, moved or changed while they are in use: right numbers or an error, and nothing kept alive."""

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.models import prefix
from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.encoder.models.prefix import PrefixTextEncoder
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.hosts.comfy.clip.clip import clip as comfy
from weighted_clip.hosts.comfy.models.cache import memory_of
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading.prompt_reader import read_prompt

from ..comfy_nodes import fake_comfy
from ..door import encode_prompt
from ..patience import SECONDS

CONFIG = TextConfig(hidden_dim=64, num_heads=1, num_layers=3, mlp_dim=64)
TEXT = "a (red:1.3) fox in (deep:0.4) snow"
MAX_BYTES = 8 * 2**20


def encoded(encoder: PrefixTextEncoder, text: str = TEXT) -> torch.Tensor:
    read = read_prompt(text, EncodeOptions(scheme="masked_blend"), default_tokenizer())
    return encode_prompt(read, encoder, default_tokenizer()).hidden


def fresh_numbers(encoder: PrefixTextEncoder) -> torch.Tensor:
    return encoded(PrefixTextEncoder(encoder.model, max_bytes=MAX_BYTES))


CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "float64": lambda model: model.double(),
    "bfloat16 and back": lambda model: model.bfloat16().float(),
    "a LoRA": lambda model: [weight.add_(0.1) for weight in model.parameters()],
    "a LoRA through .data": lambda model: [weight.data.add_(0.1) for weight in model.parameters()],
    "other tensors": lambda model: model.load_state_dict(
        {name: tensor + 0.1 for name, tensor in model.state_dict().items()}, assign=True
    ),
}
"""Changes that a host or a program may make to a model between two encodings, by name."""


@pytest.mark.parametrize("name", CHANGES)
def test_after_a_change_the_numbers_are_those_of_the_changed_model(name: str) -> None:
    encoder = PrefixTextEncoder(seeded_text_model(CONFIG), max_bytes=MAX_BYTES)
    before = encoded(encoder)
    with torch.no_grad():
        CHANGES[name](encoder.model)
    assert torch.equal(encoded(encoder), fresh_numbers(encoder))
    assert not torch.equal(encoded(encoder), before)


def test_a_lora_that_is_put_on_and_taken_off_in_place_leaves_no_numbers_behind() -> None:
    encoder = PrefixTextEncoder(seeded_text_model(CONFIG), max_bytes=MAX_BYTES)
    before, saved = encoded(encoder), {name: tensor.clone() for name, tensor in encoder.model.state_dict().items()}
    with torch.no_grad():
        for weight in encoder.model.parameters():
            weight.add_(0.1)
    patched = encoded(encoder)
    encoder.model.load_state_dict(saved)
    assert torch.equal(encoded(encoder), before)
    assert not torch.equal(patched, before)


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "float64"])
def test_what_another_thread_changes_in_the_middle_is_not_remembered(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = PrefixTextEncoder(seeded_text_model(CONFIG), max_bytes=MAX_BYTES)
    saved = {key: tensor.clone() for key, tensor in encoder.model.state_dict().items()}
    expected = fresh_numbers(encoder)
    run, calls = prefix._run_block, []

    def change() -> None:
        with torch.no_grad():
            CHANGES[name](encoder.model)

    def run_block(*arguments: Any) -> Any:
        calls.append(None)
        if len(calls) == 2:  # before the second layer of three
            thread = threading.Thread(target=change)
            thread.start()
            thread.join()
        return run(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(prefix, "_run_block", run_block)
        mixed = encoded(encoder)
    assert not torch.equal(mixed, expected)
    assert len(encoder.encodings) == len(encoder.trunks) == 0
    with torch.no_grad():  # where they were, and what they were
        for key, tensor in encoder.model.state_dict().items():
            tensor.data.copy_(saved[key])
    torch.testing.assert_close(encoded(encoder), expected, atol=1e-6, rtol=0)


def test_a_model_that_is_moved_in_the_middle_fails_or_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = PrefixTextEncoder(seeded_text_model(CONFIG), max_bytes=MAX_BYTES)
    saved = {key: tensor.clone() for key, tensor in encoder.model.state_dict().items()}
    expected = fresh_numbers(encoder)
    run, calls = prefix._run_block, []

    def run_block(*arguments: Any) -> Any:
        calls.append(None)
        if len(calls) == 2:
            encoder.model.to("meta")  # a device that is not the one of the states
        return run(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(prefix, "_run_block", run_block)
        with pytest.raises((RuntimeError, NotImplementedError)):
            encoded(encoder)
    assert len(encoder.encodings) == len(encoder.trunks) == 0
    encoder.model.load_state_dict(saved, assign=True)
    assert torch.equal(encoded(encoder), expected)


def test_a_model_deleted_while_another_thread_encodes_lives_until_that_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder = PrefixTextEncoder(seeded_text_model(CONFIG), max_bytes=MAX_BYTES)
    expected, model = fresh_numbers(encoder), weakref.ref(encoder.model)
    is_within, may_go_on, results = threading.Event(), threading.Event(), []
    run = prefix._run_block

    def run_block(*arguments: Any) -> Any:
        is_within.set()
        may_go_on.wait(SECONDS)
        return run(*arguments)

    monkeypatch.setattr(prefix, "_run_block", run_block)
    thread = threading.Thread(target=lambda encoder=encoder: results.append(encoded(encoder)))
    thread.start()
    assert is_within.wait(SECONDS)
    del encoder
    gc.collect()
    may_go_on.set()
    thread.join()
    del thread
    assert torch.equal(results[0], expected)
    gc.collect()
    assert model() is None


def test_a_memory_keeps_no_model_alive() -> None:
    encoder = PrefixTextEncoder(seeded_text_model(CONFIG), max_bytes=MAX_BYTES)
    encoded(encoder)
    memories, model = (encoder.encodings, encoder.trunks), weakref.ref(encoder.model)
    del encoder
    gc.collect()
    assert all(map(len, memories))
    assert model() is None


def test_the_memory_of_a_clip_of_comfyui_keeps_no_model_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_comfy.install(monkeypatch)
    clip = fake_comfy.remembering()
    comfy.encode_text(clip, TEXT, EncodeOptions())
    memory, model = memory_of(clip), weakref.ref(clip.cond_stage_model)
    assert memory
    del clip
    sys.modules["comfy.model_management"].loaded.clear()  # what the fake was asked to load
    gc.collect()
    assert model() is None


def test_a_clip_of_comfyui_whose_lora_comes_and_goes_has_the_numbers_of_each_time(
    clip: Any,
) -> None:
    weight = clip.cond_stage_model.clip_l.transformer.text_model.encoder.layers.layers[0].mlp.fc1.weight
    plain = fake_comfy.FakeClip(clip.cond_stage_model)
    before = weight.detach().clone()

    def numbers() -> torch.Tensor:
        found = comfy.encode_text(clip, TEXT, EncodeOptions()).conditioning[0][0]
        assert torch.equal(found, comfy.encode_text(plain, TEXT, EncodeOptions()).conditioning[0][0])
        return found

    first = numbers()
    with torch.no_grad():
        for _ in range(3):  # as the host patches and unpatches weights where they are
            weight.add_(0.5)
            assert not torch.equal(numbers(), first)
            weight.copy_(before)
            assert torch.equal(numbers(), first)


def test_a_clip_of_comfyui_remembers_nothing_that_was_changed_in_the_middle(
    clip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = clip.cond_stage_model.clip_l.transformer.text_model.encoder.layers.layers[0].mlp.fc1.weight
    prepare, memory = fake_comfy.Tower.process_tokens, memory_of(clip)
    assert memory is not None

    def changing(self: Any, tokens: Any, device: Any) -> Any:
        with torch.no_grad():
            weight.add_(0.5)
        return prepare(self, tokens, device)

    with monkeypatch.context() as patch:
        patch.setattr(fake_comfy.Tower, "process_tokens", changing)
        comfy.encode_text(clip, TEXT, EncodeOptions())
    assert len(memory) == 0
    comfy.encode_text(clip, TEXT, EncodeOptions())
    assert len(memory) > 0
