"""Answers of diffusers' community pipelines named lpw: how they read weights."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import Any

PIPELINES = {"sd": "lpw_stable_diffusion.py", "sdxl": "lpw_stable_diffusion_xl.py"}


def reader(file: str) -> Any:
    """A pipeline's function that reads weights, without what the file imports."""
    tree = ast.parse(Path(os.environ["DIFFUSERS"], "examples", "community", file).read_text(encoding="utf-8"))
    names = {"re_attention", "re_break", "parse_prompt_attention"}
    kept = [
        node
        for node in tree.body
        if getattr(node, "name", None) in names
        or (isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) in names)
    ]
    found: dict[str, Any] = {"re": re}
    exec(compile(ast.Module(kept, []), file, "exec"), found)
    return found["parse_prompt_attention"]


READERS = {name: reader(file) for name, file in PIPELINES.items()}


def parts(name: str, text: str) -> Any:
    """Texts with weights, or None where the pipeline raises."""
    try:
        return [[text, float(weight)] for text, weight in READERS[name](text)]
    except ValueError:
        return None


def parse(name: str, case: dict[str, Any]) -> Any:
    """The cases that were made with it, and those of the WebUI, whose syntax this is."""
    if name == "lpw_syntax":
        return {pipeline: parts(pipeline, case["text"]) for pipeline in PIPELINES}
    if name not in ("a1111_syntax", "comfy_syntax"):
        raise NotImplementedError
    found = parts("sd", case["prompt"])
    if found is None:
        raise ValueError(case["prompt"])
    return found
