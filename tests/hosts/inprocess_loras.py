"""Checks of LoRA tags: model and CLIP get what the stock LoRA loader gives them.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from inprocess import compares, difference, main, make_clip, make_lora, ours, stock
from inprocess_padding import differs, sampled
from inprocess_sampling import make_model
from safetensors.torch import save_file

LAYERS = r"layers\.\d+\.mlp\.fc1\.weight"
ATTENTION = r"attn\d\.to_(v|out\.0)\.weight"
CASES: dict[str, tuple[tuple[str, float, float], ...]] = {
    "<lora:both:0.8>": (("both", 0.8, 0.8),),
    "<lora:both:0.5:-0.7>": (("both", -0.7, 0.5),),
    "<lora:both:0.8><lora:model:0.6>": (("both", 0.8, 0.8), ("model", 0.6, 0.6)),
    "<lora:model:1><lora:gone:1><lora:both:te=0.4:unet=0.9>": (("model", 1.0, 1.0), ("both", 0.9, 0.4)),
}
"""Tags, and the stock loaders in a row that do the same: file, strength for the model, strength for CLIP."""


@contextmanager
def lora_files(model: Any, clip: Any) -> Iterator[None]:
    """The files ``both`` and ``model`` in the host's loras folders."""
    import folder_paths

    of_model = make_lora(model.model, ATTENTION)
    with tempfile.TemporaryDirectory() as folder:
        save_file(of_model, Path(folder, "model.safetensors"))
        save_file(of_model | make_lora(clip.cond_stage_model, LAYERS), Path(folder, "both.safetensors"))
        folder_paths.add_model_folder_path("loras", folder, is_default=True)
        try:
            yield
        finally:
            folder_paths.folder_names_and_paths["loras"][0].remove(folder)
            folder_paths.filename_list_cache.pop("loras", None)


@compares("LoRA tags: CLIP and model, small, with stock loaders")
def check_lora_tags_equal_stock_loaders_on_model_and_clip() -> None:
    import nodes

    for family in ("SD1", "SDXL"):
        clip, model = make_clip(family), make_model()
        positive, negative = (ours(make_clip("SD1"), text) for text in ("a cat", ""))
        plain, _ = sampled(model, positive, negative)
        with lora_files(model, clip):
            for tags, loaders in CASES.items():
                text = f"a {tags} (red:1.3) cat"
                loaded = nodes.NODE_CLASS_MAPPINGS["WeightedCLIPLoadPromptLoras"]().load(model, clip, text)
                our_model, our_clip, bare, _ = loaded["result"]
                assert bare == "a  (red:1.3) cat"
                stock_model, stock_clip = model, clip
                for name, *strengths in loaders:
                    loader = nodes.LoraLoader()
                    stock_model, stock_clip = loader.load_lora(
                        stock_model, stock_clip, f"{name}.safetensors", *strengths
                    )
                expected, (drawn, _) = stock(stock_clip, bare), sampled(stock_model, positive, negative)
                assert not torch.isclose(expected[0][0], stock(clip, bare)[0][0]).all()
                assert differs(drawn, plain)
                difference(stock(our_clip, bare), expected)
                measured, _ = sampled(our_model, positive, negative)
                difference(measured, drawn)


if __name__ == "__main__":
    main(globals())
