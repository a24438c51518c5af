"""Helpers of check scripts that run in ComfyUI's own Python: small text encoders, our nodes, and comparisons.

    python SCRIPT.py FOLDER_OF_THE_PACK RESULTS.json [PART_OF_A_NAME ...]

It runs in a checkout of ComfyUI, by its Python. If parts of names follow, only the checks run that have one of them in
theirs. Each ``check_...`` of a script notes the differences it sees, if it `compares` by number, or raises; SkipTest if
it cannot run here. The text encoders are of ComfyUI's real classes with few, narrow layers and random weights.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import math
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any
from unittest import SkipTest

import torch
from safetensors.torch import save_file

PACK = Path(sys.argv[1])
TEXTS = ("", "a (red:1.3) cat on a (mat:0.4), oil painting", "a (photo:1.2) of a (cat (on a:0.6) mat:0.8), " * 18)
OURS = "WeightedCLIPTextEncode"
WIDTHS = {"l": 128, "g": 192, "h": 192}
"""Widths of the small towers; their heads are 64 wide, as in all CLIP towers."""
T5_SIZES = {"num_layers": 2, "d_model": 64, "d_kv": 16, "num_heads": 4, "d_ff": 128}
T5_SIZES_OF_SD3 = {**T5_SIZES, "num_layers": 1, "d_model": 4096, "vocab_size": 8192}
"""Stable Diffusion 3 joins its encoders at a width of 4096. The words of `TEXTS` are among T5's first 8192."""
CLOSE = 1e-5
WORDS = "weighted_clip_words"
"""Key of the words in an entry of our conditionings."""
measured: list[float] = []
"""Differences noted in the current check."""
rows: list[list[str]] = []
"""Rows of a table that the current check makes."""


def make_clip(
    family: str, dtype: torch.dtype = torch.float32, embeddings: Path | None = None, long_l: int | None = None
) -> Any:
    """A small CLIP of a family, seeded as in make_checkpoint.py.

    Args:
        family: Its name.
        dtype: Type of its weights.
        embeddings: A folder of textual inversions.
        long_l: Positions of CLIP-L, for a Long-CLIP: set up as the host sets up a file of such a tower.
    """
    import comfy.sd
    from comfy import sd1_clip, sdxl_clip
    from comfy.text_encoders import flux, sd2_clip, sd3_clip
    from comfy.text_encoders.long_clipl import model_options_long_clip

    model, tokenizer = {
        "SD1": (sd1_clip.SD1ClipModel, sd1_clip.SD1Tokenizer),
        "SD2": (sd2_clip.SD2ClipModel, sd2_clip.SD2Tokenizer),
        "SDXL": (sdxl_clip.SDXLClipModel, sdxl_clip.SDXLTokenizer),
        "Stable Cascade": (sdxl_clip.StableCascadeClipModel, sdxl_clip.StableCascadeTokenizer),
        "SDXL refiner": (sdxl_clip.SDXLRefinerClipModel, sdxl_clip.SDXLTokenizer),
        "SD3": (sd3_clip.sd3_clip(dtype_t5=dtype), sd3_clip.SD3Tokenizer),
        "SD3 without T5": (sd3_clip.sd3_clip(t5=False), sd3_clip.SD3Tokenizer),
        "SD3 with T5 alone": (sd3_clip.sd3_clip(clip_l=False, clip_g=False, dtype_t5=dtype), sd3_clip.SD3Tokenizer),
        "Flux": (flux.flux_clip(dtype_t5=dtype), flux.FluxTokenizer),
    }[family]
    options: dict[str, Any] = {"t5xxl_model_config": T5_SIZES_OF_SD3 if "SD3" in family else T5_SIZES}
    options |= {f"{tower}_model_config": sizes for tower, sizes in tower_sizes().items()}
    tokenizer_data: dict[str, Any] = {}
    if long_l is not None:
        table = torch.empty(long_l, WIDTHS["l"])
        state = {
            "text_model.embeddings.position_embedding.weight": table,
            "text_model.encoder.layers.1.mlp.fc1.weight": 0,
        }
        long_options = {"model_config": options["clip_l_model_config"]}
        tokenizer_data, found = model_options_long_clip(state, {}, long_options)
        options["clip_l_model_config"] = found["clip_l_model_config"]
    clip = comfy.sd.CLIP(
        target=SimpleNamespace(params={}, clip=model, tokenizer=tokenizer),
        embedding_directory=None if embeddings is None else [str(embeddings)],
        tokenizer_data=tokenizer_data,
        model_options={**options, "dtype": dtype},
    )
    for tower, width in WIDTHS.items():
        if hasattr(clip.tokenizer, f"clip_{tower}"):
            getattr(clip.tokenizer, f"clip_{tower}").embedding_size = width
    draw(clip.cond_stage_model)
    return clip


def tower_sizes() -> dict[str, dict[str, int]]:
    """Sizes of the small CLIP towers, by the host's names for them."""
    return {
        f"clip_{tower}": {
            "num_hidden_layers": 4,
            "hidden_size": width,
            "num_attention_heads": width // 64,
            "intermediate_size": 2 * width,
        }
        for tower, width in WIDTHS.items()
    }


def draw(module: torch.nn.Module) -> None:
    """Give a module random weights from a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in sorted(module.named_parameters()):
        values = torch.randn(parameter.shape, generator=generator)
        scale = 0.2 if parameter.dim() < 2 or "embedding" in name else parameter.shape[1:].numel() ** -0.5
        gain = 1 if parameter.dim() == 1 and name.endswith(".weight") else 0
        parameter.data.copy_(gain + scale * values)


def make_lora(model: Any, pattern: str) -> dict[str, torch.Tensor]:
    """A LoRA of rank 4 for the weights whose names match, of a CLIP's or a MODEL's modules, by the host's names."""
    generator = torch.Generator().manual_seed(5)
    prefix = "text_encoders." if hasattr(model, "reset_clip_options") else ""
    state: dict[str, torch.Tensor] = {}
    for name, weight in sorted(model.state_dict().items()):
        if weight.dim() == 2 and re.search(pattern, name) and name.endswith(".weight"):
            key = prefix + name.removesuffix(".weight")
            state[f"{key}.lora_down.weight"] = torch.randn(4, weight.shape[1], generator=generator)
            state[f"{key}.lora_up.weight"] = torch.randn(weight.shape[0], 4, generator=generator) / weight.shape[1]
            state[f"{key}.alpha"] = torch.tensor(4.0)
    assert state, pattern
    return state


def pack_module(name: str) -> Any:
    """A module of our pack, as ComfyUI has loaded it."""
    import nodes

    pack = nodes.NODE_CLASS_MAPPINGS[OURS].__module__.rpartition(".nodes.")[0]
    return importlib.import_module(f"{pack}.{name}")


def with_lora(clip: Any, lora: dict[str, torch.Tensor], strength: float) -> Any:
    """A clone of a CLIP with a LoRA, as the node LoraLoader makes it."""
    import comfy.sd

    return comfy.sd.load_lora_for_models(None, clip, lora, 0.0, strength)[1]


def stock(clip: Any, text: str) -> Any:
    """The stock node's conditioning."""
    import nodes

    return nodes.CLIPTextEncode().encode(clip, text)[0]


def run_ours(node: str, **inputs: Any) -> dict[str, Any]:
    """Result of one of our nodes; widgets not named have their defaults."""
    import nodes

    node_class = nodes.NODE_CLASS_MAPPINGS[node]
    described = node_class.INPUT_TYPES()["required"].items()
    defaults = {name: options["default"] for name, (_, options) in described if "default" in options}
    return node_class().encode(**{**defaults, **inputs})


def ours(clip: Any, text: str, **choices: Any) -> Any:
    """The conditioning of our CLIP Text Encode."""
    return run_ours(OURS, clip=clip, text=text, **choices)["result"][0]


def issues_in(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The problems that a node of ours sends to the front end."""
    return [issue for view in result["ui"]["weighted_clip"] for issue in view["issues"]]


def compares(subject: str | None = None, *, limit: float = 0.0) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Give a check its subject, in the words of docs/evidence/parity.csv, and the largest difference it may find."""

    def mark(check: Callable[[], None]) -> Callable[[], None]:
        check.subject, check.limit = subject, limit  # type: ignore[attr-defined]
        return check

    return mark


def note(found: float) -> float:
    """Count a difference among those of the current check."""
    measured.append(found)
    return found


def difference(one: Any, other: Any) -> float:
    """The largest absolute difference of two tensors or conditionings, noted for the current check."""
    return note(apart(one, other))


def apart(one: Any, other: Any) -> float:
    """The largest absolute difference of two tensors or conditionings; asserts that all else is the same."""
    if isinstance(one, torch.Tensor):
        one, other = [[one, {}]], [[other, {}]]
    assert len(one) == len(other)
    largest = 0.0
    for (hidden_a, values_a), (hidden_b, values_b) in zip(one, other, strict=True):
        # which rows are words is for our nodes alone
        values_a, values_b = ({k: v for k, v in some.items() if k != WORDS} for some in (values_a, values_b))
        assert values_a.keys() == values_b.keys(), (values_a.keys(), values_b.keys())
        pairs = [(hidden_a, hidden_b), *((values_a[key], values_b[key]) for key in values_a)]
        for a, b in pairs:
            if not isinstance(a, torch.Tensor):
                assert a == b, (a, b)
                continue
            assert a.shape == b.shape and a.dtype == b.dtype and a.device == b.device, (a.shape, b.shape)
            distance = float((a - b).abs().max()) if a.numel() else 0.0
            assert not math.isnan(distance)
            largest = max(largest, distance)
    return largest


def identity(value: Any) -> Any:
    """Something that changes when the value is replaced, or, for plain containers, edited."""
    if isinstance(value, FunctionType):
        return id(value), id(value.__code__)
    if isinstance(value, (dict, list, set)):
        text = repr(sorted(map(repr, value.items() if isinstance(value, dict) else value)))
        return id(value), hashlib.sha256(text.encode()).hexdigest()
    return id(value)


def refusal(action: Any) -> str:
    """The message of the ValueError that an action ends in."""
    try:
        action()
    except ValueError as error:
        return str(error)
    raise AssertionError("it was not refused")


def pack_of(name: str) -> Path:
    """Folder of another pack, which is next to ComfyUI or among its custom nodes."""
    return next(folder for folder in (Path.cwd().parent / name, Path("custom_nodes", name)) if folder.is_dir())


@contextmanager
def lora_folder(states: Mapping[str, Mapping[str, torch.Tensor]]) -> Iterator[None]:
    """Files by these names in the host's loras folders."""
    import folder_paths

    with tempfile.TemporaryDirectory() as folder:
        for name, state in states.items():
            save_file({key: value.contiguous() for key, value in state.items()}, Path(folder, f"{name}.safetensors"))
        folder_paths.add_model_folder_path("loras", folder, is_default=True)
        try:
            yield
        finally:
            folder_paths.folder_names_and_paths["loras"][0].remove(folder)
            folder_paths.filename_list_cache.pop("loras", None)


def load_pack() -> None:
    """Let ComfyUI load our nodes."""
    importlib.import_module("utils.extra_config")  # as in main.py, before nodes.py prepends comfy/ to the path
    import nodes

    assert asyncio.run(nodes.load_custom_node(str(PACK)))


def main(script: Mapping[str, Any], *, is_loaded: bool = True) -> None:
    """Run the checks of a script; a failure does not stop the others.

    Args:
        script: Its globals.
        is_loaded: Whether our pack is loaded before the first check.
    """
    sys.path.insert(0, str(Path.cwd()))
    # the checkout's own, not this folder
    sys.path.remove(str(Path(__file__).resolve().parent))
    from comfy.cli_args import args

    args.cpu = True
    outcome: dict[str, dict[str, Any]] = {}
    with torch.inference_mode():
        if is_loaded:
            load_pack()
        parts = sys.argv[3:] or [""]
        for name in [name for name in script if name.startswith("check_") and any(part in name for part in parts)]:
            measured.clear()
            rows.clear()
            check = script[name]
            try:
                check()
                outcome[name] = {
                    "difference": max(measured, default=None),
                    "comparisons": len(measured),
                    "subject": getattr(check, "subject", None),
                    "limit": getattr(check, "limit", None),
                    "rows": [*rows],
                }
            except SkipTest as reason:
                outcome[name] = {"skipped": str(reason)}
            except BaseException:
                outcome[name] = {"error": traceback.format_exc()}
    Path(sys.argv[2]).write_text(json.dumps(outcome), encoding="utf-8")
