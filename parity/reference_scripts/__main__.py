"""Encode the prompts of a job with one reference, in that reference's own Python, and write the results.

This folder is a program, not a package, and the pack imports nothing from it:

    python reference_scripts JOB.json RESULT.safetensors

A job is JSON: ``reference`` (a module of this folder), ``weights`` (a safetensors file), ``embeddings`` and ``folder``
(folders), and ``subjects``, each with ``key``, ``settings`` and ``prompts``. The result holds a tensor
``key/number`` for each prompt, and versions in its metadata. The working directory is the host's checkout.

Each other module opens one reference: ``open_reference(job)`` returns its versions and a function from ``(settings,
prompt)`` to hidden states ``[1, rows, dim]``. It calls the reference's own functions and reimplements none of them.
"""

from __future__ import annotations

import importlib
import json
import platform
import sys
from pathlib import Path


def main(job_file: str, result_file: str) -> None:
    """Run a job."""
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    sys.argv = sys.argv[:1]  # references read the command line when imported
    reference = importlib.import_module(job["reference"])
    sys.path[0] = str(Path.cwd())  # the reference's checkout instead of this folder

    import torch
    from safetensors.torch import save_file

    tensors: dict[str, torch.Tensor] = {}
    with torch.inference_mode():
        about, encode = reference.open_reference(job)
        for subject in job["subjects"]:
            for number, prompt in enumerate(subject["prompts"]):
                hidden = encode(subject["settings"], prompt)
                tensors[f"{subject['key']}/{number}"] = hidden.detach().clone().float().contiguous()
    about = {**about, "torch": torch.__version__, "Python": platform.python_version()}
    save_file(tensors, result_file, metadata=about)


if __name__ == "__main__":
    main(*sys.argv[1:])
