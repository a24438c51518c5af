"""Answers of this repository, through what its own tests use; and wrong ones, which must be seen."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

runpy.run_path(str(Path(__file__).resolve().parents[2] / "__main__.py"))["load_package"]()

import numpy as np  # noqa: E402 - loaded above
import torch  # noqa: E402
from weighted_clip.hosts.comfy.a1111.brownian import BrownianPath  # noqa: E402
from weighted_clip.hosts.comfy.a1111.noise import A1111Noise  # noqa: E402
from weighted_clip.hosts.comfy.a1111.schedules import LcmSigmas, make_sigmas  # noqa: E402
from weighted_clip.weighting.normalization import normalize  # noqa: E402
from weighted_clip.weighting.schemes.scheme import SchemeOptions  # noqa: E402
from weighted_clip.weighting.syntax import parse as parse_syntax  # noqa: E402
from weighted_clip.weighting.text.chunks import CLIP_L_LAYOUT, ChunkLayout  # noqa: E402
from weighted_clip.weighting.timed.schedule import schedule, split_and  # noqa: E402

from ..comfy_nodes.test_a1111 import sd_sigmas  # noqa: E402
from ..door import apply_scheme  # noqa: E402
from ..toy import case_chunks, toy_encode  # noqa: E402
from ..weighting.test_chunks import CLIP_L, chunks_of_sdxl, comfy_chunks  # noqa: E402
from ..weighting.test_schemes import OURS  # noqa: E402
from ..weighting.test_syntax import as_case, as_compel_case  # noqa: E402

CHUNKINGS = {"comfy_chunks": "comfy segment", "comfy_chunks_words": "comfy word"}


def parse(name: str, case: dict[str, Any]) -> Any:
    """Texts with weights, tokens, times, noise."""
    if name.endswith("_syntax") and "prompt" in case:
        syntax = name.removesuffix("_syntax")
        prompt = parse_syntax(case["prompt"], syntax, strict=True)
        if syntax == "compel":
            return as_compel_case(prompt)
        return [[text, str(x) if abs(x) == np.inf or x != x else x] for text, x in as_case(prompt)]
    if name in CHUNKINGS:
        return comfy_chunks(case, CHUNKINGS[name], CLIP_L)
    if name == "a1111_sdxl_embeddings":
        return chunks_of_sdxl(case)
    if name == "a1111_and":
        return [[case["prompt"][slice(*part.span)], part.weight] for part in split_and(case["prompt"])]
    if name == "a1111_schedule":
        rule = case["use_old_scheduling"]
        texts = schedule(case["prompt"], case["steps"], hires_steps=case["hires_steps"], old_rule=rule)
        return [[text.last_step, text.text] for text in texts]
    if name == "webui_noise":
        noise, shape = A1111Noise(**case["noise"]), [case["batch"], *case["shape"]]
        draw = noise.step_noise(shape)
        return [x.flatten().tolist() for x in (noise.generate_noise({"samples": torch.zeros(shape)}), draw(), draw())]
    if name == "webui_sigmas":
        sigmas = sd_sigmas(is_sdxl=case["model"] == "SDXL")
        return make_sigmas(
            case["schedule"], LcmSigmas(sigmas) if case["model"] == "LCM" else sigmas, case["steps"]
        ).tolist()
    if name == "webui_brownian":
        path = BrownianPath(case["seed"], case["source"], tuple(case["ends"]), (2, 2, 3))
        return [path.between(*times).flatten().tolist() for times in case["times"]]
    raise NotImplementedError


def encode(name: str, case: dict[str, Any]) -> Any:
    """Rows of a scheme."""
    if name == "lpw_numeric":
        raise NotImplementedError
    scheme = OURS.get(case["scheme"], case["scheme"])
    if name == "masked_blend":
        options = SchemeOptions(law=case["law"], mask_method=case["method"])
    elif case["scheme"] in OURS:
        options = SchemeOptions(layout=ChunkLayout(pad_id=0) if case["scheme"] == "comfy_pad0" else CLIP_L_LAYOUT)
    else:
        raise NotImplementedError
    chunks = normalize(case_chunks(case), case.get("normalization", "none"))
    return apply_scheme(scheme, chunks, toy_encode, options).hidden[0].tolist()


def wrong_parse(name: str, case: dict[str, Any]) -> Any:
    """Answers with a weight that is a thousandth too large."""
    answer = parse(name, case)
    return json.loads(json.dumps(answer).replace("1.1]", "1.101]"))


def wrong_encode(name: str, case: dict[str, Any]) -> Any:
    """Rows without the weights."""
    return encode(name, {**case, "weights": [[1.0] * len(row) for row in case["tokens"]]})
