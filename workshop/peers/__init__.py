"""References that live in hosts, each run in its own Python by job.py, with the host's checkout as working directory.

A job has ``reference`` (a module of this folder), ``weights`` (a safetensors file), ``embeddings`` and ``folder``
(folders), ``subjects``, each with ``key``, ``settings`` and ``prompts``, and ``tensors``, the safetensors file to be
written: a tensor ``key/number`` for each prompt. The result is a dict of versions.

Each module opens one reference: ``open_reference(job)`` returns its versions and a function from ``(settings, prompt)``
to hidden states ``[1, rows, dim]``. It calls the reference's own functions and reimplements none of them.
"""

from __future__ import annotations

import importlib
import platform
from typing import Any


def run(job: dict[str, Any]) -> dict[str, str]:
    """Encode the prompts of a job with one reference, write the results, and return the versions."""
    reference = importlib.import_module(f".{job['reference']}", __name__)

    import torch
    from safetensors.torch import save_file

    tensors: dict[str, torch.Tensor] = {}
    with torch.inference_mode():
        about, encode = reference.open_reference(job)
        for subject in job["subjects"]:
            for number, prompt in enumerate(subject["prompts"]):
                hidden = encode(subject["settings"], prompt)
                tensors[f"{subject['key']}/{number}"] = hidden.detach().clone().float().contiguous()
    save_file(tensors, job["tensors"])
    return dict(sorted({**about, "torch": torch.__version__, "Python": platform.python_version()}.items()))
