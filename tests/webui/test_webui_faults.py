"""Lack of memory, interrupts and threads while the WebUI's text encoder is ours: the engine is the host's own again."""

import contextlib
import gc
import sys
import threading
from types import ModuleType
from typing import Any

import pytest
import torch
from weighted_clip.hosts.webui.engines import METHODS, WebUIError
from weighted_clip.hosts.webui.generation import arm
from weighted_clip.hosts.webui.script.lab import run_in_queue
from weighted_clip.hosts.webui.settings import Settings

from ..faults.injection import ERRORS, FailingAt, failure, num_operations
from . import fake_webui as fake

TEXT = "a (red:1.3) fox in (deep:0.4) snow"
NUM_PLACES = 20


def engine_of(model: Any) -> Any:
    return getattr(model, "text_processing_engine", None) or model.cond_stage_model


def fixes_owner(engine: Any) -> Any:
    return getattr(engine, "hijack", None) or engine.embeddings


def hooks_of(engine: Any) -> list[Any]:
    holder = getattr(engine, "text_encoder", None) or engine.wrapped
    modules = holder.transformer.modules()
    return [hook for module in modules for hook in module._forward_pre_hooks.values() if is_ours(hook)]


def is_ours(hook: Any) -> bool:
    """transformers leaves hooks of its own."""
    return hook.__module__.startswith("weighted_clip")


def generated(model: Any) -> torch.Tensor:
    return fake.armed(model, "masked_blend", "none", "nested", "attention", "mask").setup_conds(TEXT)[0]


def assert_hosts_own(engine: Any) -> None:
    assert not set(METHODS) & set(vars(engine))
    assert hooks_of(engine) == []
    assert fixes_owner(engine).fixes is None


@pytest.mark.parametrize("kind", ["forge", "a1111"])
def test_an_error_at_any_operation_leaves_the_engine_as_it_was(kind: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(kind)
    engine = engine_of(model)
    expected, stock = generated(model), model.get_learned_conditioning([TEXT])
    count = num_operations(lambda: generated(model))
    for index in range(NUM_PLACES):
        failure(lambda: generated(model), index * count // NUM_PLACES, ERRORS[index % len(ERRORS)])
        assert_hosts_own(engine)
    assert torch.equal(model.get_learned_conditioning([TEXT]), stock)
    assert torch.equal(generated(model), expected)


def test_a_layer_that_takes_no_hook_leaves_none_on_the_others(forge: fake.ForgeModel) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ERRORS[3]

    layers = engine_of(forge).text_encoder.transformer.text_model.encoder.layers
    layers[2].self_attn.register_forward_pre_hook = refuse
    with pytest.raises(KeyboardInterrupt):
        generated(forge)
    assert_hosts_own(engine_of(forge))


def test_token_counters_in_other_threads_get_the_hosts_numbers_all_the_time(forge: fake.ForgeModel) -> None:
    engine = engine_of(forge)
    texts = [TEXT, "one two three", ""]
    expected = [engine.process_texts([text])[1] for text in texts]
    ours = generated(forge)
    is_over, found, start = threading.Event(), [], threading.Barrier(5)

    def count() -> None:
        start.wait()
        while not is_over.is_set():
            found.append([engine.process_texts([text])[1] for text in texts])

    counters = [threading.Thread(target=count) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for counter in counters:
            counter.start()
        start.wait()
        for _ in range(3):
            assert torch.equal(generated(forge), ours)
    finally:
        is_over.set()
        sys.setswitchinterval(interval)
    for counter in counters:
        counter.join()
    assert found
    assert all(one == expected for one in found)
    assert_hosts_own(engine)


def test_an_error_from_the_hosts_queue_keeps_no_tensor_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = ModuleType("modules.call_queue")
    queue.__dict__["wrap_queued_call"] = lambda function: function
    monkeypatch.setitem(sys.modules, queue.__name__, queue)

    def encoding() -> torch.Tensor:
        states = torch.ones(3) * 2
        total = states.sum()
        return total + torch.ones(1)

    gc.collect()
    gc.disable()
    try:
        mode = FailingAt(3, MemoryError())
        with contextlib.suppress(MemoryError), mode:
            run_in_queue(encoding)
        mode.error = None
        assert len(mode.made) == 3
        assert mode.num_alive() == 0
    finally:
        gc.enable()


def test_values_of_a_newer_version_are_refused_by_name(forge: fake.ForgeModel) -> None:
    known = list({**vars(Settings()), "enabled": True}.values())
    for values, message in (
        ([*known, "a new setting"], f"takes {len(known)} values .* got {len(known) + 1}"),
        ([True, "quantum"], "Scheme must be one of: comfy, .*; got 'quantum'"),
        ([True, ["comfy"]], r"Scheme must be one of: comfy, .*; got \['comfy'\]"),
        ([True, "comfy", "none", 7], "Law must be one of: nested, compel; got 7"),
    ):
        generation = fake.Generation(forge)
        arm(generation, values)
        with pytest.raises(WebUIError, match=message):
            generation.setup_conds(TEXT)
        assert_hosts_own(engine_of(forge))
