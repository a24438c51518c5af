"""Names of settings, samplers and schedules as other programs write them, and the WebUI's names for them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .record import in_line

SETTINGS = {
    "CFG scale": ("cfgscale", "cfg", "guidancescale", "guidance"),
    "Clip skip": ("clipskip",),
    "Denoising strength": ("denoisingstrength", "denoise"),
    "Model": ("model", "stablediffusionmodel", "usestablediffusionmodel", "modelweights"),
    "Model hash": ("modelhash",),
    "Sampler": ("sampler", "samplername", "samplingmethod"),
    "Schedule type": ("scheduletype", "scheduler"),
    "Seed": ("seed", "noiseseed"),
    "Size": ("size",),
    "Steps": ("steps", "numinferencesteps", "samplingsteps"),
    "VAE": ("vae", "usevaemodel", "vaemodel"),
}
"""Other names of settings, in small letters without spaces, by the WebUI's."""
_BY_KEY = {key: name for name, keys in SETTINGS.items() for key in keys}

_SAMPLERS = {
    "Euler a": ("euler_ancestral", "euler_a"),
    "Euler": ("euler",),
    "DPM++ 2M": ("dpmpp_2m",),
    "DPM++ SDE": ("dpmpp_sde",),
    "DPM++ 2M SDE": ("dpmpp_2m_sde",),
    "DPM++ 2M SDE Heun": ("dpmpp_2m_sde_heun",),
    "DPM++ 2S a": ("dpmpp_2s_ancestral", "dpmpp_2s_a"),
    "DPM++ 3M SDE": ("dpmpp_3m_sde",),
    "LMS": ("lms",),
    "Heun": ("heun",),
    "DPM2": ("dpm_2",),
    "DPM2 a": ("dpm_2_ancestral", "dpm_2_a"),
    "DPM fast": ("dpm_fast",),
    "DPM adaptive": ("dpm_adaptive",),
    "LCM": ("lcm",),
    "DDIM": ("ddim",),
    "PLMS": ("plms",),
    "UniPC": ("uni_pc", "unipc"),
}
_SAMPLERS_BY_ID = {key: name for name, keys in _SAMPLERS.items() for key in (*keys, name.replace(" ", "_").lower())}
_SCHEDULES = {
    "karras": "Karras",
    "exponential": "Exponential",
    "polyexponential": "Polyexponential",
    "sgm_uniform": "SGM Uniform",
    "simple": "Simple",
    "normal": "Normal",
    "ddim_uniform": "DDIM",
    "beta": "Beta",
    "kl_optimal": "KL Optimal",
    "align_your_steps": "Align Your Steps",
}
_OLD_ENDS = (" Karras", " Exponential", " Polyexponential")
"""Schedules in names of samplers, before the WebUI had a setting for them."""
_SCHEDULE_BEHIND = re.compile(rf"_({'|'.join(_SCHEDULES)})\Z")
_SUFFIX = re.compile(r"\.(?:safetensors|ckpt|pth|pt|sft|gguf)\Z")
_MAX_LORAS = 10
"""Maximum number of LoRAs in a sentence."""
_SIDE = re.compile(r"\d{1,5}", re.ASCII)
_SIZE = re.compile(r"(\d{1,5})\s*[x×X]\s*(\d{1,5})", re.ASCII)


def webui_settings(settings: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Give settings the WebUI's names, and samplers, schedules and sizes its form.

    Returns:
        The settings, and a sentence for each value that gave way to another of its setting.

    >>> webui_settings({"cfgScale": "7", "width": "512", "height": "768", "sampler": "dpmpp_2m_karras"})[0]
    {'CFG scale': '7', 'Size': '512x768', 'Sampler': 'DPM++ 2M', 'Schedule type': 'Karras'}
    """
    named: dict[str, str] = {}
    problems: list[str] = []

    def put(name: str, value: str, written: str) -> None:
        """Add a value under the WebUI's name; the one that is written under it counts."""
        if name not in settings and name not in named:
            named[name] = value
        elif settings.get(name, named.get(name)) != value:
            problems.append(f"{in_line(written)}: {in_line(value)}: left out, as {name} is given too.")

    sides = {key: value for name, value in settings.items() if (key := _key(name)) in ("width", "height")}
    is_size = len(sides) == 2 and all(_SIDE.fullmatch(side.strip()) for side in sides.values())
    for name, value in settings.items():
        webui_name = _BY_KEY.get(_key(name), name)
        if is_size and _key(name) in sides:
            if _key(name) == "width":
                put("Size", f"{sides['width'].strip()}x{sides['height'].strip()}", "width and height")
        elif webui_name == name:
            named[name] = value
        else:
            put(webui_name, value, name)
    if size := _SIZE.fullmatch(named.get("Size", "").strip()):
        named["Size"] = f"{size[1]}x{size[2]}"
    if re.fullmatch(r"-\d{1,2}", skip := named.get("Clip skip", "")):  # as ComfyUI counts
        named["Clip skip"] = skip[1:]
    _name_sampler(named)
    return named, problems


def _key(name: str) -> str:
    """A name without regard to case, spaces and underlines."""
    return name.replace(" ", "").replace("_", "").lower() if len(name) <= 40 else name


def _name_sampler(settings: dict[str, str]) -> None:
    """Give a sampler and a schedule that are named as in ComfyUI, k-diffusion or NovelAI the WebUI's names."""
    schedule = settings.get("Schedule type", "")
    settings |= {"Schedule type": _SCHEDULES[_id(schedule)]} if _id(schedule) in _SCHEDULES else {}
    sampler = settings.get("Sampler", "")
    if sampler in _SAMPLERS or sampler.endswith(_OLD_ENDS) or len(sampler) > 60:
        return
    key = _id(sampler).removeprefix("sample_").removeprefix("k_")
    suffix = None if key in _SAMPLERS_BY_ID else _SCHEDULE_BEHIND.search(key)
    key = (key[: suffix.start()] if suffix else key).removesuffix("_gpu")
    if key in _SAMPLERS_BY_ID:
        settings["Sampler"] = _SAMPLERS_BY_ID[key]
        if suffix:
            settings.setdefault("Schedule type", _SCHEDULES[suffix[1]])


def _id(name: str) -> str:
    """Name of a sampler or schedule as an identifier."""
    return name.strip().replace(" ", "_").lower()


def file_name(path: str) -> str:
    """Name of a model's file without its folders and suffix, in any system's form."""
    return _SUFFIX.sub("", path.replace("\\", "/").rpartition("/")[2])


def lora_problem(loras: Sequence[tuple[str, object]]) -> list[str]:
    """A sentence about LoRAs that stand beside the prompt, given their files and strengths; none for none.

    >>> lora_problem([("sd15/ink.safetensors", 0.8)])
    ['Its LoRAs are not in the prompt. LoRA Tag Loader loads them if it says: <lora:ink:0.8>']
    """
    strengths = [str(each) if isinstance(each, (int, float, str)) else "1" for _, each in loras[:_MAX_LORAS]]
    files = [in_line(file_name(name)) for name, _ in loras[:_MAX_LORAS]]
    tags = [f"<lora:{file}:{in_line(strength, 10)}>" for file, strength in zip(files, strengths, strict=True)]
    more = f" and {len(loras) - _MAX_LORAS:,} more" if len(loras) > _MAX_LORAS else ""
    said = f"Its LoRAs are not in the prompt. LoRA Tag Loader loads them if it says: {' '.join(tags)}{more}"
    return [said] if tags else []
