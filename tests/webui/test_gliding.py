"""Prompts that glide in the WebUI, on its functions written out: rows by hand, refusals, and what is passed on."""

import sys
from collections import namedtuple
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from weighted_clip.hosts.webui.engines import WebUIError
from weighted_clip.hosts.webui.gliding import is_fusion_active, with_glides
from weighted_clip.hosts.webui.settings import Settings

from .fake_webui import SdConditioning

Scheduled = namedtuple("Scheduled", ["end_at_step", "cond"])


def get_learned_conditioning(
    model: Any, prompts: Any, steps: int, hires_steps: Any = None, use_old_scheduling: bool = False
) -> list[list[Scheduled]]:
    """As the host's function of that name, without editing."""
    model.asked.append((list(prompts), getattr(prompts, "is_negative_prompt", None)))
    return [[Scheduled(hires_steps or steps, model.rows(prompt))] for prompt in prompts]


def get_multicond_learned_conditioning(model: Any, prompts: Any, *rest: Any) -> list[list[Any]]:
    """As the host's function of that name."""
    flat = [part.strip() for prompt in prompts for part in prompt.split("AND")]
    return get_learned_conditioning(model, SdConditioning(flat, copy_from=prompts), *rest)


class Model:
    """A model whose rows tell their text: 77 for each ten characters, of SDXL if it has a vector."""

    def __init__(self, *, has_vector: bool = False) -> None:
        self.asked: list[Any] = []
        self.has_vector = has_vector

    def rows(self, text: str) -> Any:
        generator = torch.Generator().manual_seed(sum(map(ord, text)))
        rows = torch.randn(77 * (1 + len(text) // 10), 4, generator=generator)
        return {"crossattn": rows, "vector": rows.mean(0)} if self.has_vector else rows


def test_each_call_of_a_glide_has_its_mixture_and_other_prompts_are_passed_on() -> None:
    model = Model()
    prompts = SdConditioning(["a [cat:dog:2,6] AND old [hut:barn:0.5]"])
    make = with_glides(get_multicond_learned_conditioning)
    glide, edited = make(model, prompts, 8)
    assert [entry.end_at_step for entry in glide] == [3, 4, 5, 6, 8]
    for number, entry in enumerate(glide):
        share = number / 4
        torch.testing.assert_close(entry.cond, model.rows("a cat") * (1 - share) + model.rows("a dog") * share)
    assert torch.equal(glide[0].cond, model.rows("a cat")) and torch.equal(glide[-1].cond, model.rows("a dog"))
    assert torch.equal(edited[0].cond, model.rows("old [hut:barn:0.5]"))
    assert get_multicond_learned_conditioning.__globals__["get_learned_conditioning"] is get_learned_conditioning


def test_shorter_texts_are_filled_up_and_vectors_are_mixed() -> None:
    model = Model(has_vector=True)
    negatives = SdConditioning(["[a long text of words:a cat:0,8]"], is_negative_prompt=True)
    (schedule,) = with_glides(get_learned_conditioning)(model, negatives, 8)
    half = next(entry for entry in schedule if entry.end_at_step == 5).cond
    long, short, empty = (model.rows(text) for text in ("a long text of words", "a cat", ""))
    filled = torch.cat([short["crossattn"], empty["crossattn"], empty["crossattn"]])
    torch.testing.assert_close(half["crossattn"], long["crossattn"] / 2 + filled / 2)
    torch.testing.assert_close(half["vector"], long["vector"] / 2 + short["vector"] / 2)
    assert all(is_negative for _, is_negative in model.asked)


def test_times_from_one_to_two_glide_in_the_second_pass_and_others_are_over() -> None:
    def made(prompt: str, *steps: int) -> list[Scheduled]:
        (schedule,) = with_glides(get_learned_conditioning)(Model(), SdConditioning([prompt]), *steps)
        return schedule

    first, second = made("a [cat:dog:0.25,0.75]", 8), made("a [cat:dog:1.25,1.75]", 20, 8)
    assert [entry.end_at_step for entry in second] == [2, 3, 4, 5, 8] == [entry.end_at_step for entry in first]
    assert all(torch.equal(one.cond, other.cond) for one, other in zip(first, second, strict=True))
    assert all(torch.equal(entry.cond, Model().rows("a dog")) for entry in made("a [cat:dog:0.25,0.75]", 20, 8))


def test_prompts_that_do_not_glide_are_the_hosts() -> None:
    model = Model()
    prompts = SdConditioning(["a [cat:dog:0.5]", "(b:1.2)"])
    made = with_glides(get_learned_conditioning)(model, prompts, 8)
    assert model.asked == [(list(prompts), False)]
    assert [entry.end_at_step for (entry,) in made] == [8, 8]


def test_what_cannot_glide_is_refused_in_words() -> None:
    with pytest.raises(WebUIError, match="have no sum"):
        with_glides(get_learned_conditioning)(Model(), SdConditioning(["[a:b:1,-1:mean]"]), 8)
    with pytest.raises(WebUIError, match="Glides must be one of"):
        Settings(glides="on").options()


def test_the_extension_reads_its_own_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_fusion_active()
    parser = ModuleType("modules.prompt_parser")
    setattr(parser, "__fusion_hijacker", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "modules.prompt_parser", parser)
    assert is_fusion_active()
