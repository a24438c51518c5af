"""Checks of LoRAs that change with the steps: weights and texts at each call of the denoiser.

They are compared with those of comfyui-prompt-control for the same prompt, and with strengths written out by hand where
it has no such form. Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from inprocess import (
    apart,
    compares,
    issues_in,
    lora_folder,
    main,
    make_clip,
    make_lora,
    note,
    pack_of,
    refusal,
    run_ours,
    stock,
)
from inprocess_loras import ATTENTION, LAYERS
from inprocess_timed import sigmas_of
from pack_code import package
from safetensors.torch import save_file
from toys import make_model, make_text_encoder, there

STEPS = 20
SIDE = 8
"""Side of the latent picture."""
AS_WRITTEN = "as written"
NEGATIVE = "blurry"
PROMPTS = {
    "a [cat:dog:0.5] [<lora:a:0.8>:<lora:b:1>:0.5]": "",
    "a cat [<lora:a:1>:0.3]": "",
    "a cat [<lora:b:-0.7>::0.6]": "",
    "[[<lora:a:1>:<lora:b:0.5>:0.25]:<lora:a:0.3>:0.6] a [red:blue:0.4] cat": "",
    "<lora:b:0.6> a cat [<lora:a:0.8>:0.5]": "",
    "<lora:a:0.4> a cat [<lora:a:0.6>::0.5]": "",
    "[<lora:a:0.9:0.4>:<lora:b:0.2:1>:0.5] a dog": "[<lora:a:0.4:0.9>:<lora:b:1:0.2>:0.5] a dog",
    "[<lora:a:1>|<lora:b:0.5>] a cat": "[<lora:a:1>|<lora:b:0.5>:0.05] a cat",
    "a cat [<lora:a:1>:<lora:b:1>:7]": "",
}
"""Prompts, and what prompt-control understands in the same way if that is written otherwise: it has the strength for
the diffusion model first, and the length of an alternation's turns in the text. In none does a LoRA stay where another
changes: there b24d93b turns it off for a step."""


class Call(NamedTuple):
    """A call of the denoiser for one side of guidance."""

    weight: torch.Tensor
    """Weight of the watched layer."""
    texts: tuple[torch.Tensor, ...]
    """Cross-attention tensor of each entry that took part."""


class Bench:
    """A small CLIP and model of a family, and LoRAs as files: ``a``, ``b``, and ``model``, which has no text part."""

    def __init__(self, family: str) -> None:
        self.clip, self.model = make_clip(family), make_model(family)
        self.of_model = make_lora(self.model.model, ATTENTION)
        self.of_clip = make_lora(self.clip.cond_stage_model, LAYERS)
        self.layer = next(iter(self.of_model)).split(".lora_")[0] + ".weight"
        self.sigmas = sigmas_of(self.model, "normal", STEPS)

    def weight(self) -> torch.Tensor:
        return self.model.model.state_dict()[self.layer].clone()

    def files(self) -> AbstractContextManager[None]:
        a = self.of_model | self.of_clip
        b = {key: value.roll(1, -1) if value.dim() == 2 else value for key, value in a.items()}
        return lora_folder({"a": a, "b": b, "model": self.of_model})

    def calls(self, positive: Any, negative: Any, model: Any = None, sigmas: Any = None) -> list[tuple[Call, Call]]:
        """Sample as the node SamplerCustom does: positive and negative in every call of the denoiser."""
        import comfy.sample
        import comfy.samplers

        found: list[tuple[Call, Call]] = []
        seen: list[list[Any]] = [[], []]
        spied = (model or self.model).clone()

        def spy(apply_model: Any, arguments: dict[str, Any]) -> Any:
            which = arguments["cond_or_uncond"]
            for row, side in zip(arguments["c"]["c_crossattn"].chunk(len(which)), which, strict=True):
                seen[side].append((spied.model.state_dict()[self.layer].clone(), row.clone()))
            return apply_model(arguments["input"], arguments["timestep"], **arguments["c"])

        def after_a_call(arguments: dict[str, Any]) -> Any:
            found.append(tuple(Call(side[0][0], tuple(row for _, row in side)) for side in seen))
            # where the positive has an area, ComfyUI gives the negative a part with its hooks
            assert all(torch.equal(weight, seen[0][0][0]) for weight, _ in seen[0])
            for side in seen:
                side.clear()
            return arguments["denoised"]

        spied.set_model_unet_function_wrapper(spy)
        spied.set_model_sampler_post_cfg_function(after_a_call)
        latent = torch.zeros(1, 4, SIDE, SIDE)
        noise = comfy.sample.prepare_noise(latent, 1)
        chosen = comfy.samplers.sampler_object("euler")
        levels = self.sigmas if sigmas is None else sigmas
        comfy.sample.sample_custom(
            spied, noise, 4.0, chosen, levels, positive, negative, latent, disable_pbar=True, seed=1
        )
        return found

    def ours(self, text: str, negative: str = NEGATIVE, **inputs: Any) -> list[tuple[Call, Call]]:
        """Calls with LoRA Tag Loader, whose CLIP encodes both prompts."""
        inputs = {"counter": AS_WRITTEN, "sigmas": self.sigmas, **inputs}
        model, clip, bare, _ = loaded(self.model, self.clip, text, **inputs)["result"]
        positive = encoded(clip, bare, **inputs)
        return self.calls(positive, stock(clip, negative), model, inputs["sigmas"])

    def theirs(self, text: str, steps: int) -> list[tuple[Call, Call]]:
        """Calls with prompt-control's nodes."""
        lazy = peer()
        advanced = lazy.PCLazyLoraLoaderAdvanced.execute
        given = {"model": (self.model,), "clip": (self.clip,)}
        model, clip, _ = run_graph(advanced(["model", 0], ["clip", 0], text, num_steps=steps), given)
        encode = lazy.PCLazyTextEncodeAdvanced.execute
        (positive,) = run_graph(encode(["clip", 0], text, num_steps=steps), {"clip": (clip,)})
        return self.calls(positive, stock(clip, NEGATIVE), model)


def loaded(model: Any, clip: Any, text: str, **inputs: Any) -> Any:
    import nodes

    node = nodes.NODE_CLASS_MAPPINGS["WeightedCLIPLoadPromptLoras"]()
    return node.load(model=model, clip=clip, text=text, **{"loras": "in time", **inputs})


def encoded(clip: Any, text: str, **inputs: Any) -> Any:
    return run_ours("WeightedCLIPA1111Encode", clip=clip, text=text, **inputs)["result"][0]


def peer() -> Any:
    """prompt-control's module of nodes that make graphs."""
    package("prompt_control_loras", pack_of("comfyui-prompt-control") / "prompt_control")
    return importlib.import_module("prompt_control_loras.nodes_lazy")


def run_graph(output: Any, given: Mapping[str, tuple[Any, ...]]) -> tuple[Any, ...]:
    """Run the graph that a node of prompt-control expands to, with outputs of nodes outside of it; its own outputs.

    ComfyUI's own node encodes each text, as by ``NODE(CLIPTextEncode)``. Of the entries that hooks make, that of
    prompt-control keeps the last alone (b24d93b).
    """
    from comfy_extras.nodes_hooks import NODE_CLASS_MAPPINGS as HOOKS

    import nodes

    known = dict(given)

    def value(one: Any) -> Any:
        return result(one[0])[one[1]] if isinstance(one, list) else one

    def result(name: str) -> tuple[Any, ...]:
        if name not in known:
            described = output.expand[name]
            inputs = {key: value(one) for key, one in described["inputs"].items()}
            kind = described["class_type"].replace("PCTextEncode", "CLIPTextEncode")
            node = {**HOOKS, **nodes.NODE_CLASS_MAPPINGS}[kind]()
            known[name] = getattr(node, node.FUNCTION)(**inputs)
        return known[name]

    return tuple(map(value, output.args))


def compared(ours: Sequence[tuple[Call, Call]], theirs: Sequence[tuple[Call, Call]]) -> float:
    """Largest difference of weights and texts, step by step, relative to the largest value; asserts the same number."""
    largest = 0.0
    assert len(ours) == len(theirs)
    for sides in zip(ours, theirs, strict=True):
        for own, other in zip(*sides, strict=True):
            assert len(own.texts) == len(other.texts), (len(own.texts), len(other.texts))
            for one, two in zip((own.weight, *own.texts), (other.weight, *other.texts), strict=True):
                largest = max(largest, apart(one, two) / float(two.abs().max()))
    return largest


def different(ours: Sequence[tuple[Call, Call]]) -> int:
    """Number of different weights over all calls."""
    return len({call.weight.numpy().tobytes() for call, _ in ours})


@compares("LoRAs in time on SD1 and SDXL, small: weights and texts at each step, with prompt-control's", limit=2e-6)
def check_weights_and_texts_are_those_of_prompt_control_step_by_step() -> None:
    for family in ("SD1", "SDXL"):
        bench = Bench(family)
        plain = bench.weight()
        with bench.files():
            for text, other in list(PROMPTS.items())[: None if family == "SD1" else 3]:
                ours, theirs = bench.ours(text), bench.theirs(other or text, STEPS if ":7]" in text else 0)
                assert different(theirs) > 1, text
                note(compared(ours, theirs))
        assert torch.equal(bench.weight(), plain)


def by_hand(bench: Bench, strengths: Sequence[tuple[float, float]], text_at: Callable[[int], str]) -> list[Call]:
    """Calls with ``a`` at strengths for the text encoder and the model that are written out for each step."""
    import comfy.sd

    down, up = (bench.of_model[bench.layer.replace("weight", f"lora_{end}.weight")] for end in ("down", "up"))
    calls: list[Call] = []
    for step, (of_clip, of_model) in enumerate(strengths):
        clip = comfy.sd.load_lora_for_models(None, bench.clip, bench.of_clip, 0.0, of_clip)[1]
        rows = run_ours("WeightedCLIPA1111Encode", clip=clip, text=text_at(step))["result"][0][0][0]
        calls.append(Call(bench.weight() + of_model * (up @ down), (rows,)))
    return calls


LINEAR = [0.2, 0.2, 0.2, 7 / 15, 11 / 15, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
"""``0.2@0.2,1@0.5`` in eleven steps, the first of which is 0 and the last 1: 0.3 is a third of the way, 0.4 two."""
BY_HAND: dict[tuple[str, str], list[tuple[float, float]]] = {
    ("a cat <lora:a:0.2@0.2,1@0.5>", AS_WRITTEN): [(one, one) for one in LINEAR],
    ("a cat <lora:a:1@0.5;0.2@0.2>", AS_WRITTEN): [(one, one) for one in LINEAR],  # unsorted
    ("a cat <lora:a:1:0@3,-0.5@5>", AS_WRITTEN): [(1.0, one) for one in (0, 0, 0, -0.25, *[-0.5] * 7)],
    ("a cat <lora:a:te=0@0,1@1:unet=0.5>", AS_WRITTEN): [(step / 10, 0.5) for step in range(11)],
    ("a cat <lora:a:0@0.5,1@0.5>", AS_WRITTEN): [(one, one) for one in [0.0] * 5 + [1.0] * 6],  # a place twice
    ("a cat <lora:a:1@-5,0@5>", AS_WRITTEN): [(one, one) for one in (0.4, 0.3, 0.2, 0.1, *[0.0] * 7)],
    ("a cat [<lora:a:0@0,1@1>::0.5]", AS_WRITTEN): [(one, one) for one in (0, 0.1, 0.2, 0.3, 0.4, *[0.0] * 6)],
    # as sd-webui-loractl: at a call the WebUI's count is that of the call before, and the ninth of eleven counts as 1
    ("a cat <lora:a:0@0,0.9@1>", "as the WebUI counts"): [(one / 10, one / 10) for one in (0, *range(10))],
}
"""Prompts, how steps are counted, and the strengths for text encoder and model in eleven steps."""


@compares("LoRAs in time on SD1 and SDXL, small: strengths written out for each step, relative", limit=2e-6)
def check_strengths_at_steps_are_those_written_out_by_hand() -> None:
    for family in ("SD1", "SDXL"):
        bench = Bench(family)
        sigmas = sigmas_of(bench.model, "karras", 11)
        with bench.files():
            for (text, counter), strengths in list(BY_HAND.items())[: None if family == "SD1" else 3]:
                expected = by_hand(bench, strengths, lambda step: "a cat ")
                found = bench.ours(text, sigmas=sigmas, counter=counter)
                for (own, _), other in zip(found, expected, strict=True):
                    assert len(own.texts) == 1
                    for one, two in zip((own.weight, *own.texts), (other.weight, *other.texts), strict=True):
                        note(apart(one, two) / float(two.abs().max()))


def check_the_prompt_node_has_them_for_its_prompt_alone() -> None:
    bench = Bench("SD1")
    plain, negative = bench.weight(), stock(bench.clip, NEGATIVE)
    with bench.files():
        for text in ("<lora:b:0.5> a [cat:dog:0.5] [<lora:a:0.8>:<lora:a:0@0,1@1>:0.4]", "<lora:model:0.7>a cat"):
            inputs = {"counter": AS_WRITTEN, "sigmas": bench.sigmas, "loras": "in time"}
            result = run_ours("WeightedCLIPA1111Encode", clip=bench.clip, text=text, model=bench.model, **inputs)
            assert {one["code"] for one in issues_in(result)} <= {"other-times"}
            expected = bench.ours(text)
            found = bench.calls(result["result"][0], negative)
            for (own, without), (other, _) in zip(found, expected, strict=True):
                assert torch.equal(without.weight, plain)
                assert torch.equal(without.texts[0], negative[0][0])
                for one, two in zip((own.weight, *own.texts), (other.weight, *other.texts), strict=True):
                    assert torch.isclose(one, two, rtol=1e-5, atol=1e-6).all()
                    assert not torch.equal(one, plain)


def check_hooks_survive_what_other_nodes_do_to_the_conditioning() -> None:
    from comfy_extras.nodes_hooks import PairConditioningCombine

    import nodes

    bench = Bench("SD1")
    with bench.files():
        text = "a cat [<lora:a:1>:<lora:b:1>:0.5]"
        positive = encoded(bench.clip, text, counter=AS_WRITTEN, sigmas=bench.sigmas, loras="in time")
        negative = stock(bench.clip, NEGATIVE)
        expected = bench.calls(positive, negative)
        assert different(expected) == 2
        place = nodes.NODE_CLASS_MAPPINGS["WeightedCLIPPlace"]()
        placed = getattr(place, place.FUNCTION)(
            conditioning=positive, phrase="cat", inside=2.0, outside=1.0, area="", start=0.0, end=1.0, unit="percent"
        )["result"][0]
        for other in (
            nodes.ConditioningCombine().combine(positive, [])[0],
            nodes.ConditioningSetArea().append(positive, 8 * SIDE, 8 * SIDE, 0, 0, 1.0)[0],
            PairConditioningCombine().combine(positive, negative, [], [])[0],
            placed,
        ):
            found = bench.calls(other, negative)
            assert all(torch.equal(own.weight, two.weight) for (own, _), (two, _) in zip(found, expected, strict=True))
        again = bench.calls(positive, negative)  # hooks keep the keyframe of the last step
        assert all(torch.equal(own.weight, two.weight) for (own, _), (two, _) in zip(again, expected, strict=True))


@compares("LoRAs in time, not used: conditioning, weights and text at each step")
def check_unused_nothing_is_loaded_hooked_or_changed() -> None:
    import comfy.utils

    bench = Bench("SD1")
    with bench.files():
        for text, loras in (
            ("a [cat:dog:0.5]", "in time"),
            ("a [cat:dog:0.5] [<lora:a:1>:<lora:b:1>:0.5]", "as A1111"),
            ("a [cat:dog:0.5] <lora:gone:1>", "in time"),
        ):
            inputs = {"counter": AS_WRITTEN, "sigmas": bench.sigmas}
            with patch.object(comfy.utils, "load_torch_file", side_effect=AssertionError("a file was read")):
                found = encoded(bench.clip, text, loras=loras, **inputs)
                model, clip, _, _ = loaded(bench.model, bench.clip, text if loras == "in time" else "a", **inputs)[
                    "result"
                ]
            assert model is bench.model and clip is bench.clip
            expected = encoded(bench.clip, "a [cat:dog:0.5] " if "<" in text else text, **inputs)
            assert not any("hooks" in values for _, values in found)
            note(apart(found, expected))
            for (own, _), (other, _) in zip(*(bench.calls(one, found) for one in (found, expected)), strict=True):
                assert torch.equal(own.weight, bench.weight())
                note(max(apart(one, two) for one, two in zip(own.texts, other.texts, strict=True)))


def check_strengths_of_any_size_and_many_points_end_in_pictures_or_words() -> None:
    bench = Bench("SD1")
    points = ",".join(f"{index % 3 - 1}@{index / 300}" for index in range(300))
    with bench.files():
        for text, issue in (
            ("<lora:a:nan@0,1@1> a cat", "unreadable-strength"),
            ("<lora:a:inf> a [<lora:b:1>::0.5] cat", "unreadable-strength"),
            ("<lora:a:1@nan> a cat", "unreadable-strength"),
            ("<lora:a:1@2@3> a cat", "unreadable-strength"),
            ("<lora:a:1e9@0,-1e9@1> a cat", None),
            ("<lora:a:1e308@-1e308,-1e308@1e308> a cat", "lora-without-step"),  # 0 in the middle of its line
            (f"<lora:a:{points}> a cat", None),
            ("[<lora:gone:1>:<lora:a:1>:0.5] a cat", "unknown-lora"),
        ):
            for node in (loaded(bench.model, bench.clip, text, counter=AS_WRITTEN), None):
                result = node or run_ours("WeightedCLIPA1111Encode", clip=bench.clip, text=text, loras="in time")
                codes = {one["code"] for one in issues_in(result)} - {"uniform-steps"}
                assert codes == ({issue} if issue else set()), (text, codes)
            assert len(bench.ours(text, sigmas=sigmas_of(bench.model, "normal", 6))) == 6
        many = "<lora:a:0@0,1@1>" * 11
        assert "change 1089 times" in refusal(
            lambda: loaded(bench.model, bench.clip, many, steps=100, counter=AS_WRITTEN)
        )


def check_what_cannot_have_them_is_refused_in_words() -> None:
    import folder_paths

    bench = Bench("SD1")
    refused: set[str] = set()
    with bench.files():
        folder = Path(folder_paths.get_folder_paths("loras")[0])
        for family in there("HiDream", "Lumina 2", "LTX-Video", "Chroma", "Qwen-Image", "Wan", "SD 3"):
            clip = make_text_encoder(family)
            save_file(make_lora(clip.cond_stage_model, r"(fc1|wi_0|gate_proj)\.weight"), folder / "text.safetensors")
            folder_paths.filename_list_cache.pop("loras", None)
            text = "a dog [<lora:text:1>::0.5]"
            plain = clip.encode_from_tokens(clip.tokenize("a dog"), return_pooled=True, return_dict=True)
            dropped = plain.keys() - {"cond", "pooled_output"}
            for node in (
                partial(loaded, bench.model, clip, text),
                partial(run_ours, "WeightedCLIPA1111Encode", clip=clip, text=text, loras="in time"),
            ):
                if dropped:
                    message = refusal(node)
                    assert (
                        f"cannot change LoRAs of this text encoder ({type(clip.cond_stage_model).__name__})" in message
                    )
                    assert "Set loras to “as A1111”" in message and all(name in message for name in dropped), message
                    refused.add(family)
                else:
                    assert not {one["code"] for one in issues_in(node())} - {"uniform-steps"}
            # one for the model alone is never in the text encoder's way
            entries = run_ours("WeightedCLIPA1111Encode", clip=clip, text="a [<lora:model:1>:3]", loras="in time")
            assert all(len(values["hooks"].hooks) == 1 for _, values in entries["result"][0])
        assert {"HiDream", "LTX-Video"} <= refused, refused
        model = make_model("SD 3")
        result = loaded(model, bench.clip, "a cat [<lora:model:1>::0.5]")
        assert {one["code"] for one in issues_in(result)} == {"unfitting-lora"}
        assert result["result"][1] is bench.clip


if __name__ == "__main__":
    main(globals())
