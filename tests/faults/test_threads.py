"""Many threads at once, switched as often as Python can: the same numbers as one after the other, and nothing twice."""

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from weighted_clip.encoder import tokenizer as tokenizer_module
from weighted_clip.encoder.cache import VARIABLE, num_bytes
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.models.prefix import PrefixTextEncoder
from weighted_clip.encoder.tokenizer import Tokenizer, default_tokenizer
from weighted_clip.hosts.comfy.clip.clip import clip as comfy
from weighted_clip.hosts.comfy.models.cache import memory_of
from weighted_clip.web.lab.native import NativeLabModel, Settings
from weighted_clip.web.pictures import draw_tokens, fonts
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.pipeline import EncodedPrompt
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.reading.view import view
from weighted_clip.weighting.text.embedding_folder import EmbeddingFolder

from ..comfy_nodes import fake_comfy
from ..door import encode_prompt
from ..patience import SECONDS
from .disks import CONFIG

NUM_THREADS = 8
TEXTS = ["a (red:1.3) cat", "(wet:0.4) sand", "one, two, [three]", "((deep)) snow", "by the sea", ""]


@pytest.fixture(autouse=True)
def restless() -> Iterator[None]:
    """Threads are switched after every few steps."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def at_once(work: Callable[[int], Any], number: int = NUM_THREADS) -> list[Any]:
    """Results of some work in several threads that start together, each with its own number."""
    start, results = threading.Barrier(number), [None] * number
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            start.wait()
            results[index] = work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)  # a deadlock should fail
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []
    return results


def encoded(encoder: Any, text: str) -> EncodedPrompt:
    read = read_prompt(text, EncodeOptions(syntax="a1111", scheme="comfy"), default_tokenizer())
    return encode_prompt(read, encoder, default_tokenizer())


@pytest.mark.parametrize("number", [2, 8])
@pytest.mark.parametrize("max_bytes", [0, 300_000, 8 * 2**20])
def test_one_encoder_gives_every_thread_what_it_gives_one(number: int, max_bytes: int) -> None:
    model = seeded_text_model(CONFIG)
    expected = [encoded(PrefixTextEncoder(model, max_bytes=0), text) for text in TEXTS]
    encoder = PrefixTextEncoder(model, max_bytes=max_bytes)

    def work(index: int) -> list[tuple[int, EncodedPrompt]]:
        places = [(index * 5 + step) % len(TEXTS) for step in range(2 * len(TEXTS))]
        return [(place, encoded(encoder, TEXTS[place])) for place in places]

    for result in at_once(work, number):
        for place, one in result:
            if not max_bytes:
                assert torch.equal(one.hidden, expected[place].hidden)
                assert torch.equal(one.pooled, expected[place].pooled)
            # whoever goes on from another's states multiplies other matrices
            torch.testing.assert_close(one[:2], expected[place][:2], atol=1e-5, rtol=0)
    for memory in (encoder.encodings, encoder.trunks):
        assert memory.num_bytes == sum(map(num_bytes, memory._entries.values())) <= max_bytes // 2


def test_threads_that_go_on_from_each_others_states_agree_but_for_rounding() -> None:
    long = "a small fox sits in the deep white snow by the river and waits for "
    texts = [long + end for end in ("spring", "the moon", "you", "another fox", "a (very:1.4) long train")]
    model = seeded_text_model(CONFIG)
    expected = [encoded(PrefixTextEncoder(model, max_bytes=0), text) for text in texts]
    encoder = PrefixTextEncoder(model, max_bytes=2 * 2**20)
    for result in at_once(lambda index: [encoded(encoder, text) for text in texts]):
        for one, other in zip(result, expected, strict=True):
            torch.testing.assert_close(one.hidden, other.hidden, atol=1e-5, rtol=0)


def test_one_clip_of_comfyui_that_remembers_gives_every_thread_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_comfy.install(monkeypatch)
    options = EncodeOptions(scheme="comfy")
    clip = fake_comfy.remembering(mebibytes=1)
    plain = fake_comfy.FakeClip(clip.cond_stage_model)
    expected = [comfy.encode_text(plain, text, options).conditioning[0][0] for text in TEXTS]

    def work(index: int) -> list[torch.Tensor]:
        order = [*range(index % len(TEXTS), len(TEXTS)), *range(index % len(TEXTS))]
        found = {place: comfy.encode_text(clip, TEXTS[place], options).conditioning[0][0] for place in order}
        return [found[place] for place in range(len(TEXTS))]

    for result in at_once(work):
        for one, other in zip(result, expected, strict=True):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=0)  # batches are of other sizes
    memory = memory_of(clip)
    assert memory is not None
    assert memory.num_bytes <= 2**20


def test_the_tokenizer_is_the_same_to_all_who_ask_for_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "default_tokenizer", functools.cache(default_tokenizer.__wrapped__))
    expected = [Tokenizer()(text) for text in TEXTS]
    for found in at_once(lambda index: [tokenizer_module.default_tokenizer()(text) for text in TEXTS], 4):
        assert found == expected


def test_a_folder_of_embeddings_is_read_alike_while_it_changes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_file({"emb_params": torch.full((2, 8), 0.5)}, tmp_path / f"{name}.safetensors")
    folder = EmbeddingFolder([tmp_path], "clip_l", 8)

    def work(index: int) -> list[Any]:
        if index == 0:
            for number in range(20):
                save_file({"emb_params": torch.full((1, 8), 0.5)}, tmp_path / f"new-{number}.safetensors")
            return []
        return [(folder.find("one"), set(folder.names()) >= {"one", "two"}) for _ in range(20)]

    for result in at_once(work)[1:]:
        for found, are_listed in result:
            assert are_listed
            assert torch.equal(torch.stack(found), torch.full((2, 8), 0.5))
    assert len(folder.names()) == 22


def test_pictures_drawn_at_once_with_fonts_that_nobody_has_loaded_are_equal() -> None:
    read = read_prompt("a (réd:1.4) 狐 🦊 in the [snow]", EncodeOptions(syntax="a1111"), default_tokenizer())
    shown = view(read)
    expected = draw_tokens(shown).tobytes()
    for _ in range(2):
        for value in vars(fonts).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()
        assert all(drawn == expected for drawn in at_once(lambda index: draw_tokens(shown).tobytes(), 4))


def test_a_model_that_eight_sessions_ask_for_first_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0")  # so that nobody goes on from another's states
    loaded: list[int] = []

    def load() -> dict[str, Any]:
        loaded.append(threading.get_ident())
        return {"clip_l": seeded_text_model(CONFIG)}

    model = NativeLabModel("tiny", {"clip_l": CONFIG}, load, Settings())
    results = at_once(lambda index: model.encode("a cat", EncodeOptions())["clip_l"].hidden)
    assert len(loaded) == 1
    assert all(torch.equal(result, results[0]) for result in results)


def test_a_model_that_could_not_be_loaded_is_loaded_at_the_next_try() -> None:
    problems: list[BaseException] = [KeyboardInterrupt(), MemoryError(), torch.OutOfMemoryError("CUDA out of memory")]

    def load() -> dict[str, Any]:
        if problems:
            raise problems.pop()
        return {"clip_l": seeded_text_model(CONFIG)}

    model = NativeLabModel("tiny", {"clip_l": CONFIG}, load, Settings())
    with pytest.raises(RuntimeError, match="tiny cannot be loaded: CUDA out of memory"):
        model.encode("a cat", EncodeOptions())
    for kind in (MemoryError, KeyboardInterrupt):
        with pytest.raises(kind):
            model.encode("a cat", EncodeOptions())
    assert model.encode("a cat", EncodeOptions())["clip_l"].hidden.shape == (1, 77, 64)
