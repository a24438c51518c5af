"""Other programs that encode prompts, each behind one function; nothing of theirs is reimplemented.

A module opens one program by ``open_peer``, which returns a function from ``(settings, prompt)`` to hidden states
``[1, rows, dim]``. A library that runs in this process is given our model. A program that lives in a host is given the
job below, runs in the host's own Python with the host's checkout as working directory, and also returns its versions,
and a function from ``(options, prompt)`` to our result in that host, with fields of `EncodeOptions`.

A job has ``reference`` (a key of `OPENERS`), ``weights`` (a safetensors file), ``embeddings`` and ``folder`` (folders),
``subjects``, each with ``settings`` (or ``options`` in them, for our result) and ``prompts`` by key, and ``tensors``,
the safetensors file to be written: a tensor for each key.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import platform
from collections.abc import Callable
from typing import Any

from . import comfyui, forge

OPENERS = {
    "comfyui": comfyui.open_peer,
    "adv_clip_emb": comfyui.open_adv_clip_emb,
    "prompt_control": comfyui.open_prompt_control,
    "ppm": comfyui.open_ppm,
    "forge": forge.open_peer,
}
"""Programs in hosts."""
PACKAGES = {"open_clip": "open_clip_torch"}
"""Names of distributions that are not those of their modules."""


def version_of(module: str) -> str | None:
    """Version of a library, or None if it is not installed; an error of its import is raised as it is."""
    from ...studio.training.scaling.distributed import declare_missing_operators

    if importlib.util.find_spec(module) is None:
        return None
    declare_missing_operators()
    importlib.import_module(module)
    return importlib.metadata.version(PACKAGES.get(module, module))


def ids_of_open_clip() -> Callable[[str], list[int]]:
    """open_clip's tokenizer."""
    return importlib.import_module("open_clip.tokenizer").SimpleTokenizer().encode


def run(job: dict[str, Any]) -> dict[str, str]:
    """Encode the prompts of a job with a program in a host, write the results, and return the versions."""
    import torch
    from safetensors.torch import save_file

    tensors: dict[str, torch.Tensor] = {}
    with torch.inference_mode():
        versions, encode, encode_here = OPENERS[job["reference"]](job)
        for subject in job["subjects"]:
            settings = subject["settings"]
            for key, prompt in subject["prompts"].items():
                hidden = encode_here(settings["options"], prompt) if "options" in settings else encode(settings, prompt)
                tensors[key] = hidden.detach().clone().float().contiguous()
    save_file(tensors, job["tensors"])
    return dict(sorted({**versions, "torch": torch.__version__, "Python": platform.python_version()}.items()))
