"""Checks that our nodes leave nothing on the host's objects, and that other packs and stock work beside each of them.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py. What stands on an object is looked at part
by part: the attributes of every module, and those of the host's patcher, with their values.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from types import SimpleNamespace
from typing import Any
from unittest import SkipTest
from unittest.mock import patch

import torch
from inprocess import (
    WIDTHS,
    compares,
    difference,
    issues_in,
    main,
    make_clip,
    make_lora,
    ours,
    pack_of,
    refusal,
    run_ours,
    stock,
    with_lora,
)
from inprocess_harmless import snapshot
from inprocess_prompt_control import entries_of_peer
from pack_code import package
from toys import NEGATIVE, make_model, make_text_encoder, sampled

TEXT = "a (red:1.3) cat on a (mat:0.4), oil painting"
LORA = r"(l|h|g).*layers\.1\.mlp"
PARSERS = {"SD1": ("comfy", "comfy++", "A1111", "compel"), "SDXL": ("comfy++", "A1111")}
"""Modes of smZNodes' CLIP Text Encode++."""
ENCODES = ("Encode", "Blend", "Control", "Phrases", "Attention")
"""Ends of the names of our nodes that return a CONDITIONING alone."""
Traces = dict[tuple[str, str], Any]
"""Attributes of a host's object, by part and name."""


def our_nodes() -> list[str]:
    """Every node of ours that takes a CLIP and needs nothing else that is not text or a widget."""
    import nodes

    return [
        name
        for name, node in nodes.NODE_CLASS_MAPPINGS.items()
        if name.startswith("WeightedCLIP") and "clip" in (required := node.INPUT_TYPES()["required"])
        if "model" not in required
    ]


def run_node(name: str, clip: Any, text: str = TEXT) -> Any:
    """Result of a node of ours, with its widgets at their defaults."""
    import nodes

    node = nodes.NODE_CLASS_MAPPINGS[name]
    text = "a (cat:0.5..1:2) on a mat" if name == "WeightedCLIPSweep" else text
    given: dict[str, Any] = {}
    for key, (kind, options) in node.INPUT_TYPES()["required"].items():
        is_text = kind == "STRING" and "default" not in options
        given[key] = text if is_text else clip if "CLIP" in kind else options["default"]
    return getattr(node(), node.FUNCTION)(**given)


def nodes_for(family: str) -> list[str]:
    names = [name for name in our_nodes() if family in ("SDXL", "SDXL refiner") or "SDXL" not in name]
    return [name for name in names if family == "SDXL" or name != "WeightedCLIPAdvEncodeSDXL"]


def traces(patcher: Any) -> Traces:
    """All that stands on a host's patcher, on its model and on each part of it."""
    parts = {"patcher": patcher, **{f"model {name}": part for name, part in patcher.model.named_modules()}}
    return {
        (part, name): dict(value) if isinstance(value, dict) else value
        for part, thing in parts.items()
        for name, value in vars(thing).items()
    }


def changed(before: Traces, after: Traces) -> list[str]:
    """Names of what is new, gone or another."""

    def is_same(one: Any, other: Any) -> bool:
        if isinstance(one, dict) and isinstance(other, dict):
            return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
        if isinstance(one, (tuple, list)) and type(one) is type(other):
            return len(one) == len(other) and all(map(is_same, one, other))
        if isinstance(one, torch.Tensor) and type(one) is type(other):
            return one is other or torch.equal(one, other)  # under hooks the host copies weights anew each time
        return one is other or (isinstance(one, (int, float, str, set, torch.device)) and one == other)

    absent = object()
    names = [
        key for key in before.keys() | after.keys() if not is_same(before.get(key, absent), after.get(key, absent))
    ]
    return sorted(" ".join(name) for name in names)


@contextmanager
def leaves_nothing(clip: Any, what: str) -> Iterator[None]:
    before = traces(clip.patcher)
    yield
    assert not (left := changed(before, traces(clip.patcher))), f"{what}: {left}"


def hooked(clip: Any, is_scheduled: bool) -> Any:
    """A clone of a CLIP with a LoRA as a hook, on its own schedule of the sampling or the same all the time."""
    import comfy.hooks
    from comfy_extras.nodes_hooks import SetClipHooks

    hooks = comfy.hooks.create_hook_lora(make_lora(clip.cond_stage_model, LORA), 0.0, 0.8)
    keyframes = comfy.hooks.HookKeyframeGroup()
    keyframes.add(comfy.hooks.HookKeyframe(1.0, 0.0))
    keyframes.add(comfy.hooks.HookKeyframe(0.4, 0.5))
    hooks.set_keyframes_on_hooks(keyframes)
    return SetClipHooks().apply_hooks(clip, schedule_clip=is_scheduled, apply_to_conds=True, hooks=hooks)[0]


def versions(family: str) -> dict[str, Any]:
    """CLIPs of a family as workflows make them."""
    clip = make_clip(family)
    skipped = clip.clone()
    skipped.clip_layer(-2)
    found = {"plain": clip, "last layer": skipped, "LoRA": with_lora(clip, make_lora(clip.cond_stage_model, LORA), 0.7)}
    if family in ("SD1", "SDXL"):
        found |= {f"hooks {schedule}": hooked(clip, schedule) for schedule in (False, True)}
    return found


@compares("Stock on a small CLIP before and after each node of ours, plain, with clip skip, LoRA and hooks")
def check_nothing_stays_on_a_clip() -> None:
    for family in ("SD1", "SD2", "SDXL", "SDXL refiner", "SD3", "SD3 without T5", "Flux"):
        for title, clip in versions(family).items():
            expected = stock(clip, TEXT)
            for name in nodes_for(family):
                with leaves_nothing(clip, f"{family}, {title}, {name}"):
                    run_node(name, clip)
                difference(stock(clip, TEXT), expected)


@compares("Stock on a small CLIP that only nodes of ours have used, with a fresh one")
def check_nothing_stays_on_a_fresh_clip() -> None:
    for family in ("SD1", "SDXL"):
        expected = stock(make_clip(family), TEXT)
        for name in nodes_for(family):
            clip = make_clip(family)
            names = {part: set(vars(module)) for part, module in clip.cond_stage_model.named_modules()}
            choices = vars(clip.cond_stage_model.clip_l).copy()
            run_node(name, clip)
            for part, module in clip.cond_stage_model.named_modules():
                more = set(vars(module)) - names[part]
                assert not more - {"comfy_patched_weights"}, (family, name, part, more)  # by the host, as it loads
            assert vars(clip.cond_stage_model.clip_l).keys() >= choices.keys()
            difference(stock(clip, TEXT), expected)


def check_nothing_stays_on_text_encoders_of_other_kinds() -> None:
    for family in ("Anima", "Qwen-Image", "Z-Image", "Wan", "LTX-Video", "HiDream"):
        clip = make_text_encoder(family)
        stock(clip, "a red cat")
        for name in ("WeightedCLIPTextEncode", "WeightedCLIPWeighAttention"):
            with leaves_nothing(clip, f"{family}, {name}"):
                run_node(name, clip, "a (red:1.2) cat")


def check_nothing_stays_after_an_error_or_an_interruption() -> None:
    import comfy.model_management

    for family in ("SD1", "SDXL"):
        clip = make_clip(family)
        stock(clip, TEXT)
        block = clip.cond_stage_model.clip_l.transformer.text_model.encoder.layers[2]

        def fail(*_: Any) -> None:
            raise RuntimeError("out of something")

        for name in nodes_for(family):
            handle = block.register_forward_pre_hook(fail)
            before = traces(clip.patcher)
            try:
                run_node(name, clip)
            except RuntimeError as error:
                assert str(error) == "out of something"
            else:
                assert name in ("WeightedCLIPRemember", "WeightedCLIP"), f"{name}: the error was swallowed"
            assert not (left := changed(before, traces(clip.patcher))), (name, left)
            handle.remove()
            with leaves_nothing(clip, f"{name}, interrupted"):
                comfy.model_management.interrupt_current_processing()
                with suppress(comfy.model_management.InterruptProcessingException):
                    run_node(name, clip)
                comfy.model_management.interrupt_current_processing(False)


def functions() -> dict[str, Any]:
    """Functions of the host's modules and classes."""
    return {name: found for name, found in snapshot().items() if isinstance(found, tuple) and isinstance(found[1], int)}


def check_nothing_stays_on_a_model_or_in_the_hosts_modules() -> None:
    before = functions()
    weigh = "WeightedCLIPWeighAttention"
    for family in ("SD1", "SDXL"):
        clip, model = make_clip(family), make_model(family)
        negative = stock(clip, NEGATIVE)
        encoded = [
            run_ours(weigh, clip=clip, text=TEXT, how="bias")["result"][0],
            ours(clip, "a cat, (dog:-1)", scheme="negpip"),
            placed(ours(clip, TEXT)),
        ]
        encoded.append(watched(encoded[-1]))
        sampled(model, encoded[0], negative)
        expected = sampled(model, stock(clip, TEXT), negative)
        for number, one in enumerate(encoded):
            with leaves_nothing(SimpleNamespace(patcher=model), f"{family}, {number}"):
                sampled(model, one, negative)
            assert torch.equal(sampled(model, stock(clip, TEXT), negative), expected)
        _, _, ready = run_ours(weigh, clip=clip, text=TEXT, how="value", model=model)["result"]
        with leaves_nothing(SimpleNamespace(patcher=model), f"{family}, its own model"):
            sampled(ready, encoded[0], negative)
            sampled(model, stock(clip, TEXT), negative)
    after = functions()
    assert not (others := sorted(name for name in before if after.get(name) != before[name])), others


def placed(conditioning: Any) -> Any:
    import nodes

    place = nodes.NODE_CLASS_MAPPINGS["WeightedCLIPPlace"]
    return run_with(place, conditioning=conditioning, phrase="cat", area="left")["result"][0]


def watched(conditioning: Any) -> Any:
    import nodes

    return run_with(nodes.NODE_CLASS_MAPPINGS["WeightedCLIPWatch"], conditioning=conditioning)[0]


def run_with(node: Any, **given: Any) -> Any:
    described = node.INPUT_TYPES()["required"].items()
    defaults = {name: options["default"] for name, (_, options) in described if "default" in options}
    return getattr(node(), node.FUNCTION)(**{**defaults, **given})


# ---- other packs


@cache
def smz_node() -> Any:
    """SmZNodes' CLIP Text Encode++, without the pack's own ``__init__``, which installs packages."""
    try:
        importlib.import_module("lark")
        importlib.import_module("compel")
    except ImportError as error:
        raise SkipTest(f"ComfyUI_smZNodes needs {error.name} in ComfyUI's environment") from error
    server = importlib.import_module("server").PromptServer
    package("smz_nodes", pack_of("ComfyUI_smZNodes"))
    with patch.object(server, "instance", None, create=True):  # asked for a handler of requests, which runs none here
        return importlib.import_module("smz_nodes.nodes").smZ_CLIPTextEncode


def by_smz(parser: str, clip: Any, text: str = TEXT) -> Any:
    """The conditioning of their node."""
    given = {
        "ascore": 6.0,
        "width": 64,
        "height": 64,
        "crop_w": 0,
        "crop_h": 0,
        "target_width": 64,
        "target_height": 64,
    }
    flags = {"mean_normalization": True, "multi_conditioning": False, "use_old_emphasis_implementation": False}
    return smz_node()().encode(clip, text, parser, **flags, with_SDXL=False, **given, text_g="", text_l="")[0]


def by_cd_tuner(clip: Any) -> tuple[Any, Any]:
    """MODEL and CLIP of cd-tuner's node Apply Negpip."""
    package("cd_tuner", pack_of("cd-tuner_negpip-ComfyUI"))
    model = SimpleNamespace(clone=lambda: SimpleNamespace(set_model_attn2_patch=lambda _: None))
    return importlib.import_module("cd_tuner.negpip").Negpip().apply(model, clip)


def tensors_of(conditioning: Any) -> Any:
    """Rows and pooled vectors of a conditioning, without what packs note beside them."""
    return [[rows, {"pooled_output": values["pooled_output"]}] for rows, values in conditioning]


def is_as_fresh(family: str, others: Mapping[str, Callable[[Any], Any]]) -> None:
    """Compare what each of others gives right behind each of our nodes with what it gives on a fresh CLIP; and ours."""
    fresh = {title: tensors_of(encode(make_clip(family))) for title, encode in others.items()}
    clip = make_clip(family)
    for name in nodes_for(family):
        alone = run_node(name, make_clip(family))["result"][0] if name.endswith(ENCODES) else None
        for title, encode in others.items():
            result = run_node(name, clip)
            if alone is not None:
                difference(tensors_of(result["result"][0]), tensors_of(alone))
            difference(tensors_of(encode(clip)), fresh[title])
    for title, encode in others.items():  # and behind each other
        difference(tensors_of(encode(clip)), fresh[title])


@compares("Modes of smZNodes and stock on one small CLIP with each node of ours in between, with fresh CLIPs")
def check_smz_and_stock_beside_each_of_our_nodes() -> None:
    for family, parsers in PARSERS.items():
        others = {parser: partial(by_smz, parser) for parser in parsers}
        is_as_fresh(family, {**others, "stock": partial(stock, text=TEXT)})


@compares("Prompt-control and stock on one small CLIP with each node of ours in between, with fresh CLIPs")
def check_prompt_control_and_stock_beside_each_of_our_nodes() -> None:
    texts = (TEXT, f"{TEXT} BREAK a dog", f"STYLE(perp) {TEXT}", f"STYLE(A1111, mean) {TEXT}")
    others = {text: partial(entries_of_peer, prompt=text) for text in texts}
    for family in ("SD1", "SDXL"):
        is_as_fresh(family, {**others, "stock": partial(stock, text=TEXT)})


@compares("smZNodes, prompt-control and stock on one small CLIP with each node of ours in between, with fresh CLIPs")
def check_smz_prompt_control_and_stock_beside_each_of_our_nodes() -> None:
    others = {
        "smz": partial(by_smz, "A1111"),
        "prompt_control": partial(entries_of_peer, prompt=TEXT),
        "stock": partial(stock, text=TEXT),
    }
    for family in ("SD1", "SDXL"):
        is_as_fresh(family, others)


@compares("Ours on small CLIPs whose encoding another pack has replaced, with stock on them")
def check_another_packs_rule_acts_and_is_said() -> None:
    for family in ("SD1", "SDXL"):
        clip = make_clip(family)
        clip.clip_layer(-2)
        expected = stock(clip, TEXT)
        rows = {tower: torch.full((1, 77, WIDTHS[tower]), 3.0) for tower in "lg"}
        patched = clip.clone()
        for tower in ("l", "g") if family == "SDXL" else ("l",):
            answer = rows[tower], torch.full((1, WIDTHS[tower]), 4.0)
            patched.patcher.add_object_patch(f"clip_{tower}.encode_token_weights", lambda _, answer=answer: answer)
        whole = clip.clone()
        model = clip.cond_stage_model
        whole.patcher.add_object_patch("encode_token_weights", partial(type(model).encode_token_weights, model))
        for other in (patched, whole):
            by_other = stock(other, TEXT)
            for name in ("WeightedCLIPTextEncode", "WeightedCLIPMaskedBlend", "WeightedCLIPMaskControl"):
                with leaves_nothing(other, f"{family}, {name}"):
                    result = run_node(name, other)
                difference(tensors_of(result["result"][0]), tensors_of(by_other))
                assert [issue["code"] for issue in issues_in(result)][:1] == ["other-rule"], issues_in(result)
                message = refusal(lambda: placed(result["result"][0]))  # noqa: B023
                assert "another pack" in message, message
            hides = partial(run_ours, "WeightedCLIPMaskControl", clip=other, text=TEXT, hide="cat")
            assert "hides words" in refusal(hides)
            difference(stock(clip, TEXT), expected)
            assert not issues_in(run_node("WeightedCLIPTextEncode", clip))


@compares("Ours on a small CLIP from cd-tuner's NegPip, with stock on it", limit=0.0)
def check_the_rule_of_cd_tuner_acts_on_the_model_it_is_left_on() -> None:
    for family in ("SD1", "SDXL"):
        clip = make_clip(family)
        _, patched = by_cd_tuner(clip)
        for other in (patched, clip):  # it is written on what both share
            result = run_node("WeightedCLIPTextEncode", other)
            difference(tensors_of(result["result"][0]), tensors_of(stock(other, TEXT)))
            assert [issue["code"] for issue in issues_in(result)][:1] == ["other-rule"]
        assert "154 rows" in refusal(partial(run_node, "WeightedCLIPWeighAttention", patched))


if __name__ == "__main__":
    main(globals())
