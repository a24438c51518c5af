"""Pictures as programs write them: a function a program, with its names of fields, its JSON and its places in a file.

Source: InvokeAI 6 (invokeai/app/invocations/metadata.py), SwarmUI (src/Text2Image/T2IParamInput.cs, src/Media), Fooocus
2.5.5 (modules/meta_parser.py), Easy Diffusion 3.5 (ui/easydiffusion/utils/save_utils.py) and Draw Things
(Libraries/LocalImageGenerator/Sources/ImageConverter.swift), read in 2026-11; pictures of NovelAI of 2023 and 2025;
ComfyUI 0.29.0; stable-diffusion-webui-forge dfdcbab6 (modules/stealth_infotext.py). Values are ours.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from .picture_files import ASCII, USER_COMMENT, exif_block, hidden_bits, png, saved, with_hidden_bits, xmp

STEPS, CFG, WIDTH, HEIGHT = 25, 6.5, 512, 768
UNICODE = b"UNICODE\0"
MAKER_NOTE = 0x927C


class Said(NamedTuple):
    """Prompts and seed that a picture has."""

    prompt: str
    negative: str
    seed: int


def stealth(text: str, channels: str, *, is_compressed: bool) -> bytes:
    """A PNG with a text in the lowest bits of its pixels."""
    bits = hidden_bits(text, channels, is_compressed=is_compressed)
    return saved("PNG", with_hidden_bits(bits, channels, (300, 300)))


def in_comment(text: str, kind: str = "JPEG", encoding: str = "utf-16-be") -> bytes:
    """A picture with a text as EXIF's user comment."""
    return saved(kind, exif=exif_block(UNICODE + text.encode(encoding)))


def webui(said: Said, number: int) -> bytes:
    """The WebUI's stealth text, in colours or alpha, compressed or not."""
    negative = f"\nNegative prompt: {said.negative}" if said.negative else ""
    settings = f"Steps: {STEPS}, Sampler: Euler a, CFG scale: {CFG}, Seed: {said.seed}, Size: {WIDTH}x{HEIGHT}"
    channels = ("RGB", "A")[number % 2]
    return stealth(f"{said.prompt}{negative}\n{settings}", channels, is_compressed=number % 4 > 1)


def invokeai(said: Said, number: int) -> bytes:
    """InvokeAI's PNG: a text of JSON, without what is not set."""
    values = {
        "generation_mode": "txt2img",
        **{"positive_prompt": said.prompt, "negative_prompt": said.negative, "seed": said.seed},
        **{"width": WIDTH, "height": HEIGHT, "rand_device": "cpu", "cfg_scale": CFG, "steps": STEPS},
        "scheduler": ("euler_a", "dpmpp_2m_k", "deis", "kdpm_2_a")[number % 4],
        "cfg_rescale_multiplier": 0,
        "model": {"key": "k", "hash": "blake3:0", "name": "seeded", "base": "sd-1", "type": "main"},
        "loras": [{"model": {"key": "l", "name": "ink"}, "weight": 0.75}] if number % 2 else [],
        "app_version": "6.0.0",
    }
    return png(invokeai_metadata=json.dumps(values), invokeai_graph="{}")


def swarmui(said: Said, number: int) -> bytes:
    """SwarmUI's PNG, JPEG, WebP or stealth text: JSON with indents in ASCII."""
    values = {
        "sui_image_params": {
            **{"prompt": said.prompt, "negativeprompt": said.negative, "model": "sd15/seeded", "images": 1},
            **{"seed": said.seed, "steps": STEPS, "cfgscale": CFG, "aspectratio": "2:3", "width": WIDTH},
            **{"height": HEIGHT, "sampler": "euler_ancestral", "scheduler": "karras", "automaticvae": True},
            **({"loras": ["ink"], "loraweights": ["0.75"]} if number % 2 else {}),
            "swarm_version": "0.9.7.0",
        },
        "sui_extra_data": {"date": "2026-01-01", "generation_time": "1.00 sec"},
    }
    text = json.dumps(values, indent=2)
    containers: list[Callable[[], bytes]] = [
        lambda: png(parameters=text),
        lambda: in_comment(text, "JPEG", "utf-16-le"),
        lambda: in_comment(text, "WEBP", "utf-16-le"),
        lambda: stealth(text, "A", is_compressed=True),
    ]
    return containers[number % 4]()


def fooocus(said: Said, number: int) -> bytes:
    """Fooocus' two schemes, in PNG and JPEG."""
    styles = "['Fooocus V2', 'Fooocus Enhance']" if number % 2 else "[]"
    full = [said.prompt, "cinematic still"] if number % 2 else [said.prompt]
    if number % 4 < 2:
        values = {
            **{"prompt": said.prompt, "negative_prompt": said.negative, "prompt_expansion": "", "styles": styles},
            **{"performance": "Speed", "steps": STEPS, "resolution": str((WIDTH, HEIGHT)), "guidance_scale": CFG},
            **{"sharpness": 2.0, "adm_guidance": "(1.5, 0.8, 0.3)", "base_model": "seeded", "base_model_hash": "0"},
            **{"refiner_model": "None", "refiner_switch": 0.5, "sampler": "dpmpp_2m_sde_gpu", "scheduler": "karras"},
            **{"vae": "Default (model)", "seed": str(said.seed), "lora_combined_1": "ink : 0.75"},
            **{"metadata_scheme": "fooocus", "version": "Fooocus v2.5.5", "full_prompt": full},
            **{"full_negative_prompt": [said.negative], "loras": [["ink", 0.75, "0"]]},
        }
        text, scheme = json.dumps(dict(sorted(values.items()))), "fooocus"
    else:

        def quoted(value: object) -> object:
            return json.dumps(value, ensure_ascii=False) if set(",\n:") & set(str(value)) else value

        settings = {
            **{"Steps": STEPS, "Sampler": "DPM++ 2M SDE Karras", "Seed": said.seed, "Size": f"{WIDTH}x{HEIGHT}"},
            **{"CFG scale": CFG, "Sharpness": 2.0, "ADM Guidance": "(1.5, 0.8, 0.3)", "Model": "seeded"},
            **{"Model hash": "0", "Performance": "Speed", "Scheduler": "karras", "VAE": "Default (model)"},
            **{"Raw prompt": said.prompt, "Raw negative prompt": said.negative, "Lora hashes": "ink: 0"},
            **{"Lora weights": "ink: 0.75", "Version": "Fooocus v2.5.5"},
        }
        line = ", ".join(f"{name}: {quoted(value)}" for name, value in settings.items())
        negative = f"\nNegative prompt: {said.negative}" if said.negative else ""
        text, scheme = f"{', '.join(full)}{negative}\n{line}", "a1111"
    if number % 3:
        return png(parameters=text, fooocus_scheme=scheme)
    first = {USER_COMMENT: (ASCII, text.encode() + b"\0"), MAKER_NOTE: (ASCII, scheme.encode() + b"\0")}
    return saved("JPEG", exif=exif_block(first=first))


def novelai(said: Said, number: int) -> bytes:
    """NovelAI's PNG with texts, or the same as stealth text, of version 3 and 4."""
    comment: dict[str, Any] = {
        **{"prompt": said.prompt, "steps": STEPS, "height": HEIGHT, "width": WIDTH, "scale": CFG},
        **{"uncond_scale": 0.0, "cfg_rescale": 0.0, "seed": said.seed, "n_samples": 1, "hide_debug_overlay": False},
        **{"noise_schedule": ("karras", "native")[number % 2], "legacy_v3_extend": False, "uc": said.negative},
        **{"sampler": "k_euler_ancestral", "sm": False, "request_type": "PromptGenerateRequest", "signed_hash": "="},
    }
    if number % 2:
        characters = [{"char_caption": "girl, {red hair}", "centers": [{"x": 0.5, "y": 0.5}]}]
        caption = {"base_caption": said.prompt, "char_captions": characters}
        comment["v4_prompt"] = {"caption": caption, "use_coords": False, "use_order": True}
        comment["v4_negative_prompt"] = {"caption": {"base_caption": said.negative, "char_captions": []}}
    texts = {
        **{"Title": "AI generated image", "Description": said.prompt, "Software": "NovelAI"},
        **{"Source": "NovelAI Diffusion V4 37442FCA", "Generation time": "2.5", "Comment": json.dumps(comment)},
    }
    if number % 4 < 2:
        return png(with_hidden_bits("", "RGB", (WIDTH, HEIGHT)), **{k.replace(" ", "__"): v for k, v in texts.items()})
    return stealth(json.dumps(texts), "A", is_compressed=True)


def draw_things(said: Said, number: int) -> bytes:
    """Draw Things' PNG: its JSON as XMP, or as the text Comment beside a description in words."""
    values = {
        **{"c": said.prompt, "uc": said.negative, "steps": STEPS, "sampler": "Euler A", "scale": CFG},
        **{"seed": said.seed, "size": f"{WIDTH}x{HEIGHT}", "model": "seeded_f16.ckpt", "strength": 1},
        **{
            "seed_mode": ("NVIDIA GPU Compatible", "Scale Alike")[number % 2],
            "v2": {"seed": said.seed, "batchSize": 1},
        },
        **({"lora": [{"model": "ink_lora_f16.ckpt", "weight": 0.75}]} if number % 2 else {}),
    }
    text = json.dumps(values, sort_keys=True, ensure_ascii=False)
    if number % 2:
        return png(**{"XML:com.adobe.xmp": xmp(exif_UserComment=html.escape(text))})
    negative = f"-{said.negative}\n" if said.negative else ""
    description = (
        f"{said.prompt}\n{negative}Steps: {STEPS}, Sampler: Euler A, Guidance Scale: {CFG}, Seed: {said.seed}, Size: "
        f"{WIDTH}x{HEIGHT}, Model: seeded_f16.ckpt, Strength: 1.0, Seed Mode: NVIDIA GPU Compatible"
    )
    return png(Description=description, Comment=text, Software="Draw Things")


def easy_diffusion(said: Said, number: int) -> bytes:
    """Easy Diffusion's PNG, with a text a setting, or JPEG, by names of its fields or by labels."""
    values: dict[str, Any] = {
        **{"prompt": said.prompt, "negative_prompt": said.negative, "seed": said.seed},
        **{"use_stable_diffusion_model": "sd15/seeded", "clip_skip": bool(number % 2), "use_vae_model": None},
        **{"sampler_name": "euler_a", "width": WIDTH, "height": HEIGHT, "num_inference_steps": STEPS},
        **{"guidance_scale": CFG, "use_lora_model": ["ink"], "lora_alpha": [0.75], "tiling": None},
    }
    if number % 4 > 1:
        labels = {
            **{"prompt": "Prompt", "negative_prompt": "Negative Prompt", "seed": "Seed", "clip_skip": "Clip Skip"},
            **{"use_stable_diffusion_model": "Stable Diffusion model", "use_vae_model": "VAE model", "width": "Width"},
            **{"sampler_name": "Sampler", "height": "Height", "num_inference_steps": "Steps"},
            **{"guidance_scale": "Guidance Scale", "use_lora_model": "LoRA model", "lora_alpha": "LoRA Strength"},
        }
        listed = {
            key: ", ".join(map(str, value)) if isinstance(value, list) else value for key, value in values.items()
        }
        values = {label: listed[key] for key, label in labels.items()}
    if number % 2:
        return in_comment(json.dumps(values))
    return png(**{name.replace(" ", "__"): str(value) for name, value in values.items()})


def comfyui(said: Said, number: int) -> bytes:
    """ComfyUI's PNG or WebP, with graphs of several kinds."""
    graph = GRAPHS[number % len(GRAPHS)](said)
    if number % 3:
        return png(prompt=json.dumps(graph), workflow=json.dumps({"nodes": [], "links": []}))
    block = exif_block(first={0x0110: (ASCII, b"prompt:" + json.dumps(graph).encode() + b"\0")})
    return saved("WEBP", exif=block)


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    """A node of ComfyUI's graph."""
    return {"class_type": kind, "inputs": inputs, "_meta": {"title": kind}}


def basic(said: Said) -> dict[str, Any]:
    """The default workflow."""
    return {
        "3": node(
            "KSampler",
            **{"seed": said.seed, "steps": STEPS, "cfg": CFG, "sampler_name": "euler_ancestral", "scheduler": "karras"},
            **{"denoise": 1.0, "model": ["4", 0], "positive": ["6", 0], "negative": ["7", 0], "latent_image": ["5", 0]},
        ),
        "4": node("CheckpointLoaderSimple", ckpt_name="sd15/seeded.safetensors"),
        "5": node("EmptyLatentImage", width=WIDTH, height=HEIGHT, batch_size=1),
        "6": node("CLIPTextEncode", text=said.prompt, clip=["4", 1]),
        "7": node("CLIPTextEncode", text=said.negative, clip=["4", 1]),
        "8": node("VAEDecode", samples=["3", 0], vae=["4", 2]),
        "9": node("SaveImage", images=["8", 0], filename_prefix="ComfyUI"),
    }


def linked(said: Said) -> dict[str, Any]:
    """The same with texts, seed and size from other nodes, a LoRA, and a ControlNet before the sampler."""
    graph = basic(said)
    graph["6"]["inputs"]["text"], graph["7"]["inputs"]["text"] = ["20", 0], ["21", 0]
    half = len(said.prompt) // 2
    graph["20"] = node("StringConcatenate", string_a=["22", 0], string_b=said.prompt[half:], delimiter="")
    graph["21"] = node("PrimitiveStringMultiline", value=said.negative)
    graph["22"] = node("PrimitiveString", value=said.prompt[:half])
    graph["23"] = node("PrimitiveInt", value=said.seed)
    graph["24"] = node("LoraLoader", lora_name="ink.safetensors", strength_model=0.75, model=["4", 0], clip=["4", 1])
    graph["25"] = node("ControlNetApplyAdvanced", positive=["6", 0], negative=["7", 0], control_net=["26", 0])
    graph["26"] = node("ControlNetLoader", control_net_name="x.pth")
    graph["3"]["inputs"] |= {"seed": ["23", 0], "positive": ["25", 0], "negative": ["25", 1], "model": ["24", 0]}
    return graph


def custom(said: Said) -> dict[str, Any]:
    """A sampler of parts, and guidance between text and guider."""
    graph = basic(said)
    graph["3"] = node(
        "SamplerCustomAdvanced",
        **{
            "noise": ["30", 0],
            "guider": ["31", 0],
            "sampler": ["32", 0],
            "sigmas": ["33", 0],
            "latent_image": ["5", 0],
        },
    )
    graph["30"] = node("RandomNoise", noise_seed=said.seed)
    graph["31"] = node("CFGGuider", model=["4", 0], positive=["34", 0], negative=["7", 0], cfg=CFG)
    graph["32"] = node("KSamplerSelect", sampler_name="euler_ancestral")
    graph["33"] = node("BasicScheduler", model=["4", 0], scheduler="karras", steps=STEPS, denoise=1.0)
    graph["34"] = node("FluxGuidance", conditioning=["6", 0], guidance=3.5)
    return graph


def two_passes(said: Said) -> dict[str, Any]:
    """SDXL's text node, a picture scaled and sampled again by another prompt; the second sampler stands first."""
    graph = basic(said)
    graph["6"] = node("CLIPTextEncodeSDXL", text_g=said.prompt, text_l=said.prompt, clip=["4", 1], width=1, height=1)
    graph["2"] = node(
        "KSampler", **{**graph["3"]["inputs"], "latent_image": ["40", 0], "denoise": 0.5, "seed": 1234567}
    )
    graph["2"]["inputs"] |= {"positive": ["41", 0], "steps": 11}
    graph["40"] = node("LatentUpscale", samples=["3", 0], upscale_method="bicubic", width=1024, height=1536, crop="off")
    graph["41"] = node("CLIPTextEncode", text="another prompt", clip=["4", 1])
    graph["8"]["inputs"]["samples"] = ["2", 0]
    return {"2": graph.pop("2"), **graph}


GRAPHS: list[Callable[[Said], dict[str, Any]]] = [basic, linked, custom, two_passes]
WRITERS: dict[str, tuple[Callable[[Said, int], bytes], str]] = {
    "": (webui, ""),
    "InvokeAI": (invokeai, "compel"),
    "SwarmUI": (swarmui, "comfy"),
    "Fooocus": (fooocus, "comfy"),
    "NovelAI": (novelai, "novelai"),
    "Draw Things": (draw_things, "a1111"),
    "Easy Diffusion": (easy_diffusion, "compel"),
    "ComfyUI": (comfyui, "comfy"),
}
"""Functions that write a picture, and the syntax of its prompts, by the writer's name; the WebUI's is empty."""
