"""Generation data in the manner of each program that writes some, and with the accidents of copying.

Texts are of our own making, after each program's documentation; what is expected was written by hand.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from weighted_clip.weighting.infotext import read_infotext

LINE = "Steps: 20, Sampler: Euler a, Seed: 7, CFG scale: 7, Size: 512x768"
SETTINGS = {"Steps": "20", "Sampler": "Euler a", "Seed": "7", "CFG scale": "7", "Size": "512x768"}
FORGE = (
    "Steps: 20, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 7, Seed: 965400086, Size: 512x768, "
    'Model hash: 45dee52b, Model: seeded, Lora hashes: "x: 0123, y: 4567", Version: f2.0.1v1.10.1'
)


class Case(NamedTuple):
    """A text and what it says."""

    text: str
    prompt: str = "a cat"
    negative: str = ""
    settings: dict[str, str] = SETTINGS
    problems: tuple[str, ...] = ()
    """Words of each problem, in order."""
    writer: str = ""


def as_json(**values: Any) -> str:
    return json.dumps(values)


CIVITAI_LIST = json.dumps([{"type": "checkpoint", "modelVersionId": 1, "modelName": "a, b: c"}])
GRAPH = {
    "3": {
        "class_type": "KSampler",
        "inputs": {
            **{"seed": 7, "steps": 20, "cfg": 7.5, "sampler_name": "dpmpp_2m", "scheduler": "karras", "denoise": 1.0},
            **{"model": ["4", 0], "positive": ["6", 0], "negative": ["7", 0], "latent_image": ["5", 0]},
        },
    },
    "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "sd15/seeded.v2.safetensors"}},
    "5": {"class_type": "EmptyLatentImage", "inputs": {"width": 512, "height": 768, "batch_size": 1}},
    "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "a cat", "clip": ["4", 1]}},
    "7": {"class_type": "CLIPTextEncode", "inputs": {"text": "blurry", "clip": ["4", 1]}},
    "8": {"class_type": "SaveImage", "inputs": {"images": ["3", 0], "filename_prefix": "x"}},
}
COMFY_SETTINGS = {
    **{"Steps": "20", "Sampler": "DPM++ 2M", "Schedule type": "Karras", "CFG scale": "7.5", "Seed": "7"},
    **{"Size": "512x768", "Model": "seeded.v2"},
}

CASES = {
    # A1111 and Forge
    "Forge": Case(
        f"a cat\nNegative prompt: blurry\n{FORGE}",
        negative="blurry",
        settings={
            **{"Steps": "20", "Sampler": "DPM++ 2M", "Schedule type": "Karras", "CFG scale": "7", "Seed": "965400086"},
            **{"Size": "512x768", "Model hash": "45dee52b", "Model": "seeded", "Lora hashes": "x: 0123, y: 4567"},
            "Version": "f2.0.1v1.10.1",
        },
    ),
    "prompts of several lines": Case(
        f"a cat,\n\na dog\nNegative prompt: blurry,\nbad\n{LINE}", "a cat,\n\na dog", "blurry,\nbad"
    ),
    "Windows' line ends": Case(f"a cat\r\nNegative prompt: blurry\r\n{LINE}\r\n", negative="blurry"),
    "old Macs' line ends": Case(f"a cat\rNegative prompt: blurry\r{LINE}", negative="blurry"),
    "no prompt": Case(f"Negative prompt: blurry\n{LINE}", "", "blurry", problems=("prompt is empty",)),
    "settings alone": Case(LINE, "", problems=("prompt is empty",)),
    "a quoted line break": Case(
        f'a cat\n{LINE}, Hires prompt: "b, c\\nd: e"', settings={**SETTINGS, "Hires prompt": "b, c\nd: e"}
    ),
    "a prompt of weights": Case("(red:1.2), (cat:1.3), (dog:1.1)", "(red:1.2), (cat:1.3), (dog:1.1)", settings={}),
    "a prompt with colons": Case("stairs, steps: 20, 16:9", "stairs, steps: 20, 16:9", settings={}),
    # lost line breaks
    "one line, full stop": Case(f"a cat, a dog. {LINE}", "a cat, a dog.", problems=("within a line, at “Steps: 20",)),
    "one line, all three": Case(
        f"a cat Negative prompt: blurry {LINE}", negative="blurry", problems=("does not begin a line", "within a line")
    ),
    "settings behind the negative prompt": Case(
        f"a cat\nNegative prompt: blurry, {LINE}", negative="blurry,", problems=("within a line",)
    ),
    "parts that end in signs": Case(
        f"a cat,. Negative prompt: blurry,. {LINE}",
        "a cat,.",
        "blurry,.",
        problems=("does not begin a line", "within a line"),
    ),
    "signs before a line": Case(f"a cat,.\nNegative prompt: blurry,.\n{LINE}", "a cat,.", "blurry,."),
    "only the first break lost": Case(
        f"a cat Negative prompt: blurry\n{LINE}", negative="blurry", problems=("does not begin a line",)
    ),
    "weights in one line": Case(
        f"a (cat:1.2), [dog] <lora:x:0.5>, {LINE}", "a (cat:1.2), [dog] <lora:x:0.5>,", problems=("within a line",)
    ),
    "a sampler first": Case(
        "a cat. Sampler: Euler a, Steps: 20, Seed: 7",
        "a cat.",
        settings={"Sampler": "Euler a", "Steps": "20", "Seed": "7"},
        problems=("within a line, at “Sampler",),
    ),
    "two negative prompts in one line": Case(
        f"a cat. Negative prompt: b. Negative prompt: c. {LINE}",
        "a cat. Negative prompt: b. Negative prompt: c.",
        problems=("it is unclear", "within a line"),
    ),
    "settings without commas": Case(
        "a cat\nSteps: 20 Sampler: Euler a Seed: 7",
        "a cat\nSteps: 20 Sampler: Euler a Seed: 7",
        settings={},
        problems=("cannot be split",),
    ),
    "bars": Case(
        "a cat | Steps: 20 | Sampler: Euler a | Seed: 7",
        "a cat | Steps: 20 | Sampler: Euler a | Seed: 7",
        settings={},
        problems=("cannot be split",),
    ),
    "full-width signs": Case(
        "a cat\nSteps：20，Seed：7", "a cat\nSteps：20，Seed：7", settings={}, problems=("cannot be split",)
    ),
    "settings before the negative prompt": Case(
        f"a cat\n{LINE}\nNegative prompt: blurry", negative="blurry", problems=("after the settings",)
    ),
    "settings before the negative prompt, one line": Case(
        f"a cat. {LINE} Negative prompt: blurry", "a cat.", "blurry", problems=("after the settings", "within a line")
    ),
    "a negative prompt in a setting": Case(
        f'a cat\nNegative prompt: blurry\n{LINE}, Wildcard negative: "Negative prompt: b, c"',
        negative="blurry",
        settings={**SETTINGS, "Wildcard negative": "Negative prompt: b, c"},
    ),
    "a heading": Case(f"parameters\n\na cat\n{LINE}", problems=("“parameters” before",)),
    "a page without colons": Case(
        "a cat\nSteps\n20\nSampler\nEuler a\nSeed\n7",
        "a cat\nSteps\n20\nSampler\nEuler a\nSeed\n7",
        settings={},
        problems=("cannot be split",),
    ),
    "labels of the WebUI's page": Case(
        "a cat\nSampling steps: 20, Sampling method: euler a, Seed: 7, Guidance: 7, Width: 512, Height: 768"
    ),
    "other signs in numbers": Case(
        "a cat\nSteps: 20, Sampler: Euler A, Seed: 7, CFG scale: 7, Size: 512 × 768, Clip skip: -2",
        settings={**SETTINGS, "Clip skip": "2"},
    ),
    "another case": Case(
        f"a cat\nnegative prompt: blurry\n{LINE}", "a cat\nnegative prompt: blurry", problems=("is text of the prompt",)
    ),
    "labels": Case(f"Prompt: a cat\nNegative Prompt: blurry\n{LINE}", negative="blurry", problems=("“Prompt:”",)),
    # line breaks in settings
    "a setting a line": Case(
        "a cat\nNegative prompt: blurry\nSteps: 20\nSampler: Euler a\nSeed: 7\nCFG scale: 7\nSize: 512x768",
        negative="blurry",
    ),
    "a line break in the last setting": Case(
        f"a cat\n{LINE}, Note: one\ntwo", settings={**SETTINGS, "Note": "one\ntwo"}, problems=("Note",)
    ),
    "a line break in the middle": Case(
        "a cat\nSteps: 20, Sampler: Euler a, Note: one\ntwo, Seed: 7, CFG scale: 7, Size: 512x768",
        settings={**SETTINGS, "Note": "one\ntwo"},
        problems=("Note",),
    ),
    "a quoted value with a line break": Case(
        f'a cat\n{LINE}, Wildcard prompt: "one, x\ntwo: 3", Model: x',
        settings={**SETTINGS, "Wildcard prompt": "one, x\ntwo: 3", "Model": "x"},
    ),
    "an unquoted list": Case(
        f"a cat\n{LINE}, Hires prompt: b, c, Model: x",
        settings={**SETTINGS, "Hires prompt": "b", "Model": "x"},
        problems=("“c”, behind Hires prompt",),
    ),
    "a line behind the settings": Case(f"a cat\n{LINE}\nmade at home", problems=("“made at home”, behind Size",)),
    # dynamic prompts
    "templates as lines": Case(
        f"a cat\nNegative prompt: blurry\n{LINE}\nTemplate: a {{cat|dog}}, (x:1.2)\n__y__\n"
        "Negative Template: blurry, {z|}",
        negative="blurry",
        settings={**SETTINGS, "Template": "a {cat|dog}, (x:1.2)\n__y__", "Negative Template": "blurry, {z|}"},
    ),
    "a negative template": Case(
        f"a cat\n{LINE}\nNegative Template: a, b: c", settings={**SETTINGS, "Negative Template": "a, b: c"}
    ),
    "templates as settings": Case(
        f'a cat\n{LINE}, Template: "a {{cat|dog}}, x", Negative Template: y',
        settings={**SETTINGS, "Template": "a {cat|dog}, x", "Negative Template": "y"},
    ),
    # Civitai
    "Civitai's page": Case(
        f"a cat\nNegative prompt: blurry\n{LINE}, Clip skip: 2, Created Date: 2024-05-01T10:20:30.456Z, "
        f"Civitai resources: {CIVITAI_LIST}, Civitai metadata: {{}}",
        negative="blurry",
        settings={
            **{**SETTINGS, "Clip skip": "2", "Created Date": "2024-05-01T10:20:30.456Z"},
            **{"Civitai resources": CIVITAI_LIST, "Civitai metadata": "{}"},
        },
    ),
    "Civitai's keys": Case(
        "a cat\nNegative prompt: blurry\n"
        "steps: 20, sampler: Euler a, seed: 7, cfgScale: 7, clipSkip: 2, width: 512, height: 768",
        negative="blurry",
        settings={**SETTINGS, "Clip skip": "2"},
    ),
    "width and height against a size": Case(
        f"a cat\n{LINE}, width: 1024, height: 1024", problems=("width and height: 1024x1024: left out",)
    ),
    "one side alone": Case(f"a cat\n{LINE}, width: 64", settings={**SETTINGS, "width": "64"}),
    "Civitai's API": Case(
        as_json(
            prompt="a cat",
            negativePrompt="blurry",
            steps=20,
            sampler="Euler a",
            seed=7,
            cfgScale=7,
            Size="512x768",
            clipSkip=2,
            Model="x",
            hashes={"model": "01"},
        ),
        negative="blurry",
        settings={**SETTINGS, "Clip skip": "2", "Model": "x", "hashes": '{"model": "01"}'},
        writer="Civitai",
    ),
    "an answer of Civitai's API": Case(
        as_json(items=[{"id": 1, "meta": {"prompt": "a cat", "cfgScale": 7, "steps": 20, "seed": 7}}, {"id": 2}]),
        settings={"CFG scale": "7", "Steps": "20", "Seed": "7"},
        problems=("first of 2 pictures",),
        writer="Civitai",
    ),
    # savers of ComfyUI and other programs that write A1111's form
    "an image saver": Case(
        f"a cat\nNegative prompt: blurry\n{LINE}, Clip skip: 2, Model hash: 01, Model: x, "
        'Hashes: {"model":"01","lora:y":"02"}, Version: ComfyUI',
        negative="blurry",
        settings={
            **{**SETTINGS, "Clip skip": "2", "Model hash": "01", "Model": "x"},
            **{"Hashes": '{"model":"01","lora:y":"02"}', "Version": "ComfyUI"},
        },
    ),
    "a saver with ComfyUI's names": Case(
        "a cat\nNegative prompt: blurry\n"
        "Steps: 20, Sampler: euler_ancestral_karras, CFG Scale: 7, Seed: 7, Size: 512x768, "
        "Model hash: 01, Model: x, Version: ComfyUI",
        negative="blurry",
        settings={**SETTINGS, "Schedule type": "Karras", "Model hash": "01", "Model": "x", "Version": "ComfyUI"},
    ),
    "a saver with a scheduler": Case(
        "a cat\nSteps: 20, Sampler: dpmpp_2m_sde_gpu_karras, Scheduler: sgm_uniform, CFG scale: 7, Seed: 7",
        settings={
            "Steps": "20",
            "Sampler": "DPM++ 2M SDE",
            "Schedule type": "SGM Uniform",
            "CFG scale": "7",
            "Seed": "7",
        },
    ),
    "a sampler nobody knows": Case(
        "a cat\nSteps: 20, Sampler: res_multistep_karras, Seed: 7",
        settings={"Steps": "20", "Sampler": "res_multistep_karras", "Seed": "7"},
    ),
    "SD.Next": Case(
        "a cat\nNegative prompt: blurry\n"
        "Steps: 20, Size: 512x768, Sampler: Euler a, Seed: 7, CFG scale: 7, App: SD.Next, "
        "Version: 8dd05ef, Pipeline: StableDiffusionPipeline, Operations: txt2img",
        negative="blurry",
        settings={
            **{**SETTINGS, "App": "SD.Next", "Version": "8dd05ef", "Pipeline": "StableDiffusionPipeline"},
            "Operations": "txt2img",
        },
    ),
    "Fooocus in A1111's form": Case(
        "a cat\nNegative prompt: blurry\n"
        "Steps: 30, Sampler: DPM++ 2M SDE Karras, Seed: 7, Size: 1024x1024, CFG scale: 4, Model: j, "
        "Version: Fooocus v2.5.0",
        negative="blurry",
        settings={
            **{"Steps": "30", "Sampler": "DPM++ 2M SDE Karras", "Seed": "7", "Size": "1024x1024", "CFG scale": "4"},
            **{"Model": "j"},
        },
        problems=("Written by Fooocus", "not read: Version"),
        writer="Fooocus",
    ),
    # JSON of other programs
    "NovelAI": Case(
        as_json(
            Software="NovelAI",
            Description="a cat",
            width=64,
            height=96,
            Comment=as_json(
                steps=28, sampler="k_euler_ancestral", seed=7, strength=0.7, scale=11.0, uc="blurry", sm=False
            ),
        ),
        negative="blurry",
        settings={
            **{"Steps": "28", "Sampler": "Euler a", "Seed": "7", "CFG scale": "11.0", "ENSD": "31337"},
            **{"Clip skip": "2", "Size": "64x96"},
        },
        problems=("Written by NovelAI", "not read: strength"),
        writer="NovelAI",
    ),
    "InvokeAI": Case(
        as_json(
            generation_mode="txt2img",
            positive_prompt="a cat",
            negative_prompt="blurry",
            width=512,
            height=768,
            seed=7,
            cfg_scale=7.5,
            steps=20,
            scheduler="euler_a",
            clip_skip=1,
            model={"key": "k", "name": "m"},
            loras=[],
        ),
        negative="blurry",
        settings={
            **{"Size": "512x768", "Seed": "7", "CFG scale": "7.5", "Steps": "20", "Sampler": "Euler a"},
            **{"Clip skip": "2", "Model": "m"},
        },
        problems=("Written by InvokeAI", "generation_mode"),
        writer="InvokeAI",
    ),
    "InvokeAI 2": Case(
        as_json(
            model="stable diffusion",
            model_weights="m",
            app_id="invoke-ai/InvokeAI",
            app_version="2.2.4",
            image={
                **{"prompt": [{"prompt": "a cat [blurry]", "weight": 1.0}], "steps": 20, "cfg_scale": 7.5, "seed": 7},
                **{"width": 512, "height": 768, "sampler": "k_lms", "type": "txt2img"},
            },
        ),
        negative="blurry",
        settings={
            **{"Steps": "20", "CFG scale": "7.5", "Seed": "7", "Size": "512x768", "Sampler": "LMS", "Model": "m"},
        },
        problems=("Written by InvokeAI", "type"),
        writer="InvokeAI",
    ),
    "InvokeAI's command": Case(
        as_json(Dream='"a cat [blurry]" -s 20 -S 7 -W 512 -H 768 -C 7.5 -A k_euler_a'),
        negative="blurry",
        settings={"Steps": "20", "Seed": "7", "Size": "512x768", "CFG scale": "7.5", "Sampler": "Euler a"},
        problems=("Written by InvokeAI",),
        writer="InvokeAI",
    ),
    "Draw Things": Case(
        as_json(
            c="a cat",
            uc="blurry",
            model="sd_v1.5_f16.ckpt",
            sampler="DPM++ 2M Karras",
            scale=7.5,
            seed=7,
            seed_mode="Scale Alike",
            size="512x768",
            steps=20,
            strength=1,
            lora=[],
        ),
        negative="blurry",
        settings={
            **{"Model": "sd_v1.5_f16.ckpt", "Sampler": "DPM++ 2M Karras", "CFG scale": "7.5", "Seed": "7"},
            **{"Size": "512x768", "Steps": "20"},
        },
        problems=("Written by Draw Things", "seed_mode, strength"),
        writer="Draw Things",
    ),
    "SwarmUI": Case(
        as_json(
            sui_image_params={
                **{"prompt": "a cat", "negativeprompt": "blurry", "model": "sd/x.safetensors", "seed": 7, "steps": 20},
                **{"cfgscale": 7.5, "aspectratio": "1:1", "width": 512, "height": 768, "sampler": "dpmpp_2m"},
                **{"scheduler": "karras", "swarm_version": "0.9"},
            },
            sui_extra_data={"date": "2024-01-01"},
        ),
        negative="blurry",
        settings={
            **{"Model": "x", "Seed": "7", "Steps": "20", "CFG scale": "7.5", "Size": "512x768", "Sampler": "DPM++ 2M"},
            "Schedule type": "Karras",
        },
        problems=("Written by SwarmUI", "aspectratio, swarm_version"),
        writer="SwarmUI",
    ),
    "Fooocus": Case(
        as_json(
            prompt="a cat",
            negative_prompt="blurry",
            performance="Speed",
            resolution="(1024, 768)",
            guidance_scale=4.0,
            sharpness=2.0,
            base_model="j",
            sampler="dpmpp_2m_sde_gpu",
            scheduler="karras",
            seed="7",
            steps=30,
            version="Fooocus v2.5.0",
            full_prompt=["a cat", "cinematic"],
        ),
        negative="blurry",
        settings={
            **{"CFG scale": "4.0", "Model": "j", "Sampler": "DPM++ 2M SDE", "Schedule type": "Karras", "Seed": "7"},
            **{"Steps": "30", "Size": "1024x768"},
        },
        problems=("Written by Fooocus", "full_prompt, performance, sharpness, version"),
        writer="Fooocus",
    ),
    "Easy Diffusion": Case(
        as_json(
            prompt="a cat",
            negative_prompt="blurry",
            seed=7,
            num_inference_steps=20,
            guidance_scale=7.5,
            width=512,
            height=768,
            sampler_name="euler_a",
            clip_skip=True,
            use_stable_diffusion_model="C:\\models\\x.ckpt",
        ),
        negative="blurry",
        settings={
            **{"Seed": "7", "Steps": "20", "CFG scale": "7.5", "Size": "512x768", "Sampler": "Euler a"},
            **{"Model": "x", "Clip skip": "2"},
        },
        problems=("Written by Easy Diffusion",),
        writer="Easy Diffusion",
    ),
    "Easy Diffusion's labels": Case(
        json.dumps(
            {
                **{"Prompt": "a cat", "Negative Prompt": "blurry", "Seed": "7", "Steps": "20", "Guidance Scale": "7.5"},
                **{"Width": "512", "Height": "768", "Sampler": "ddim", "Stable Diffusion model": "x"},
            }
        ),
        negative="blurry",
        settings={
            **{"Seed": "7", "Steps": "20", "CFG scale": "7.5", "Size": "512x768", "Sampler": "DDIM", "Model": "x"},
        },
        problems=("Written by Easy Diffusion",),
        writer="Easy Diffusion",
    ),
    "Tensor.Art": Case(
        as_json(
            prompt="a cat",
            negativePrompt="blurry",
            width=512,
            height=768,
            seed="7",
            steps=20,
            cfgScale=7,
            samplerName="euler_a",
            clipSkip=2,
            models=[{"type": "BASE_MODEL"}],
        ),
        negative="blurry",
        settings={**SETTINGS, "Clip skip": "2", "models": '[{"type": "BASE_MODEL"}]'},
        writer="Tensor.Art",
    ),
    "ComfyUI": Case(
        json.dumps(GRAPH),
        negative="blurry",
        settings=COMFY_SETTINGS,
        problems=("Written by ComfyUI",),
        writer="ComfyUI",
    ),
    "ComfyUI without a sampler": Case(
        json.dumps({"8": GRAPH["8"]}),
        "",
        settings={},
        problems=("Written by ComfyUI", "nothing is read"),
        writer="ComfyUI",
    ),
    "JSON cut off": Case(
        '{"steps": 20, "seed": 7', '{"steps": 20, "seed": 7', settings={}, problems=("cannot be split",)
    ),
    "another object": Case('{"a": {"b": 1}}', '{"a": {"b": 1}}', settings={}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_text_says_what_its_writer_meant(case: Case) -> None:
    data = read_infotext(case.text)
    assert (data.prompt, data.negative, data.settings) == (case.prompt, case.negative, case.settings)
    assert len(data.problems) == len(case.problems), data.problems
    assert all(words in problem for words, problem in zip(case.problems, data.problems, strict=True)), data.problems
    assert data.writer == case.writer
    assert all("\n" not in problem for problem in data.problems)
