"""Checks of our native encoder and of the small world's U-Net against ComfyUI's classes, with the same weights.

The second part is about text towers of different lengths: a Long-CLIP, whose chunks have 248 positions, alone and
together with others.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from inprocess import (
    CLOSE,
    OURS,
    PACK,
    TEXTS,
    WIDTHS,
    compares,
    difference,
    issues_in,
    main,
    make_clip,
    ours,
    pack_module,
    refusal,
    run_ours,
    stock,
)
from inprocess_checks import PLAIN, our_sdxl, stock_sdxl
from safetensors.torch import save_file

FAMILIES = {"SD1": "SD15", "SD2": "SD20", "SDXL": "SDXL", "SDXL refiner": "SDXLRefiner"}
"""Families to ComfyUI's names for the models that are saved with such text encoders."""
SDXL_OURS = "WeightedCLIPSDXLEncode"


@contextmanager
def checkpoint(family: str, clip: Any) -> Iterator[str]:
    """A checkpoint with a CLIP's weights in the layout of its family, as our loader lists it."""
    import folder_paths
    from comfy import supported_models

    saved_as = getattr(supported_models, FAMILIES[family])
    state = dict(clip.cond_stage_model.state_dict())
    state = saved_as.process_clip_state_dict_for_saving(None, state)  # it uses nothing of its class
    with tempfile.TemporaryDirectory() as folder:
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, Path(folder, "small.safetensors"))
        folder_paths.add_model_folder_path("checkpoints", folder, is_default=True)
        try:
            yield "checkpoints/small.safetensors"
        finally:
            folder_paths.folder_names_and_paths["checkpoints"][0].remove(folder)


def load(file: str, clip_skip: int = 1) -> Any:
    """The native encoder in a file."""
    import nodes

    return nodes.NODE_CLASS_MAPPINGS["WeightedCLIPLoad"]().load(file, clip_skip, "fp32", "auto")[0]


def conditioning(clip: Any, node: str = OURS, **inputs: Any) -> Any:
    """Result of one of our nodes on either CLIP."""
    return run_ours(node, clip=clip, **inputs)["result"][0]


def compare_with_stock(family: str) -> None:
    """The native encoder of a family against stock, at the clip skips that it allows."""
    clip = make_clip(family)
    with checkpoint(family, clip) as file:
        for clip_skip in (1, 2, 3):
            native = load(file, clip_skip)
            # families that were trained on the penultimate layer count from there, as in the WebUI
            clip.clip_layer(-clip_skip if family == "SD1" else -max(clip_skip, 2))
            for text in TEXTS:
                expected = stock(clip, text)
                assert expected[0][0].abs().mean() > 0.1
                difference(conditioning(native, text=text), expected)


@compares("Native encoder, SD1, small, clip skip 1 to 3, with stock", limit=CLOSE)
def check_the_native_encoder_of_sd1_equals_stock() -> None:
    compare_with_stock("SD1")


@compares("Native encoder, SD2, small, clip skip 1 to 3, with stock", limit=CLOSE)
def check_the_native_encoder_of_sd2_equals_stock() -> None:
    compare_with_stock("SD2")


@compares("Native encoder, SDXL, small, clip skip 1 to 3, with stock", limit=CLOSE)
def check_the_native_encoder_of_sdxl_equals_stock() -> None:
    compare_with_stock("SDXL")


@compares("Native encoder, SDXL's refiner, small, with stock", limit=CLOSE)
def check_the_native_encoder_of_the_refiner_equals_stock() -> None:
    compare_with_stock("SDXL refiner")


@compares("Native encoder in the SDXL node, with the host's", limit=CLOSE)
def check_the_native_encoder_in_the_sdxl_node_equals_the_hosts() -> None:
    clip = make_clip("SDXL")
    with checkpoint("SDXL", clip) as file:
        native = load(file)
    assert tuple(native.encoders) == ("clip_l", "clip_g")
    for text_g in TEXTS:
        for text_l in TEXTS:
            for choices in ({}, {"scheme": "masked_blend", "padding": "mask", "pooled": "weighted"}):
                inputs = {"text_g": text_g, "text_l": text_l, "width": 640, **choices}
                expected, measured = (conditioning(either, SDXL_OURS, **inputs) for either in (clip, native))
                assert measured[0][1]["width"] == 640
                difference(measured, expected)


@compares("Native encoder, refiner, with the host's", limit=CLOSE)
def check_the_native_encoder_in_the_refiners_node_equals_the_hosts() -> None:
    clip = make_clip("SDXL refiner")
    with checkpoint("SDXL refiner", clip) as file:
        native = load(file)
    inputs = {"text_g": TEXTS[1], "text_l": "", "aesthetic_score": 2.5}
    expected, measured = (conditioning(either, SDXL_OURS, **inputs) for either in (clip, native))
    difference(measured, expected)
    assert measured[0][1]["aesthetic_score"] == 2.5


@compares("Native encoder, SDXL, small, embedding, with stock", limit=CLOSE)
def check_the_native_encoder_takes_the_hosts_embeddings() -> None:
    import folder_paths

    with tempfile.TemporaryDirectory() as folder:
        generator = torch.Generator().manual_seed(3)
        file = {f"clip_{tower}": torch.randn(2, WIDTHS[tower], generator=generator) for tower in "lg"}
        save_file(file, Path(folder, "both.safetensors"))
        folder_paths.add_model_folder_path("embeddings", folder, is_default=True)
        clip = make_clip("SDXL", embeddings=Path(folder))
        text = "a (embedding:both:1.2) cat"
        with checkpoint("SDXL", clip) as path:
            result = run_ours(OURS, clip=load(path), text=text)
        assert not issues_in(result)
        difference(result["result"][0], stock(clip, text))
        folder_paths.folder_names_and_paths["embeddings"][0].remove(folder)


def check_the_sdxl_node_refuses_a_native_encoder_without_clip_g() -> None:
    with checkpoint("SD1", make_clip("SD1")) as file:
        native = load(file)
    message = refusal(lambda: conditioning(native, SDXL_OURS, text_g="a", text_l="a"))
    assert "holds clip_l, no clip_g" in message, message


LONG = 248
FULL = "cat " * 240 + "(dog:1.3) bird tree house red blue"
"""Fills a chunk of 248 positions: 246 tokens. Four chunks of 77 hold them, with their last row much later."""
COLORS = ("red", "green", "blue", "black", "white", "brown", "pink", "gray", "golden", "orange")
THINGS = ("cat", "dog", "bird", "tree", "house", "road", "hat", "sun", "car", "boat")
"""All pairs of them are 200 tokens."""
ROWS = {
    **dict.fromkeys([*TEXTS[:2], PLAIN], (248, 77)),
    TEXTS[2]: (248, 231),
    FULL: (248, 248),
    f"{FULL} green": (496, 308),
    TEXTS[2] * 3: (496, 496),
}
"""Texts, and their rows in ComfyUI: with a Long-CLIP alone, and with one together with a CLIP-G of 77."""


@compares("Long-CLIP in SD1, in SDXL and in SD3 without T5, small, with stock")
def check_long_clip_equals_stock() -> None:
    for family in ("SD1", "SDXL", "SD3 without T5"):
        clip = make_clip(family, long_l=LONG)
        for layer in (None, -1, -2):
            clip.clip_layer(layer)
            for text, rows in ROWS.items():
                expected = stock(clip, text)
                assert expected[0][0].shape[1] == rows[family != "SD1"], (family, text, expected[0][0].shape)
                difference(ours(clip, text), expected)


@compares("Long-CLIP in Flux and SD3, small, with stock")
def check_long_clip_beside_t5_equals_stock() -> None:
    for family in ("Flux", "SD3"):
        clip = make_clip(family, long_l=LONG)
        for text in TEXTS:  # of words that the small T5 knows
            difference(ours(clip, text), stock(clip, text))


@compares("SDXL node, small, with a Long-CLIP, two texts, with stock")
def check_the_sdxl_node_with_long_clip_equals_stock() -> None:
    clip = make_clip("SDXL", long_l=LONG)
    for text_g in ROWS:
        for text_l in ROWS:
            expected = stock_sdxl(clip, text_g, text_l)
            difference(our_sdxl(clip, text_g, text_l), expected)


def check_what_stock_cuts_is_named() -> None:
    clip = make_clip("SDXL", long_l=LONG)
    for text, named in (
        (FULL, ["clip_l ends at row 248: the last 5 of clip_g's tokens come after that"]),
        (f"{FULL} green", []),
        (TEXTS[2], []),
    ):
        messages = [issue["message"] for issue in issues_in(run_ours(OURS, clip=clip, text=text))]
        assert len(messages) == len(named), messages
        assert all(part in message for part, message in zip(named, messages, strict=True)), messages
    hidden = {text: ours(clip, text)[0][0] for text in (FULL, FULL.replace(" house red blue", " road hat sun"))}
    one, other = hidden.values()
    border = WIDTHS["l"]
    assert torch.equal(one[..., border:], other[..., border:])  # otherwise visible in CLIP-G's last rows
    assert not torch.isclose(one[..., :border], other[..., :border]).all()


@compares("SDXL, small, embedding longer in one encoder, with stock")
def check_an_embedding_longer_in_one_tower_equals_stock() -> None:
    """Stock cuts here too, with towers of one length: only one of them needs a second chunk."""
    with tempfile.TemporaryDirectory() as folder:
        generator = torch.Generator().manual_seed(4)
        file = {"clip_l": torch.randn(4, WIDTHS["l"], generator=generator)}
        file["clip_g"] = torch.randn(1, WIDTHS["g"], generator=generator)
        save_file(file, Path(folder, "uneven.safetensors"))
        clip = make_clip("SDXL", embeddings=Path(folder))
        text = "cat " * 72 + "(a:1.1) embedding:uneven dog"
        expected = stock(clip, text)
        assert expected[0][0].shape[1] == 77
        result = run_ours(OURS, clip=clip, text=text)
        difference(result["result"][0], expected)
        (message,) = (issue["message"] for issue in issues_in(result))
        assert "clip_g ends at row 77: the last 5 of clip_l's tokens" in message, message
        both = stock_sdxl(clip, text, text)
        assert both[0][0].shape[1] == 154
        difference(our_sdxl(clip, text, text), both)


@compares("Native encoder, Long-CLIP in SD1 and SDXL, with stock", limit=CLOSE)
def check_the_native_encoder_of_long_clip_equals_stock() -> None:
    for family in ("SD1", "SDXL"):
        clip = make_clip(family, long_l=LONG)
        with checkpoint(family, clip) as file:
            for clip_skip in (1, 3):
                native = load(file, clip_skip)
                clip.clip_layer(-clip_skip if family == "SD1" else -max(clip_skip, 2))
                for text in ROWS:
                    expected = stock(clip, text)
                    assert expected[0][0].abs().mean() > 0.1
                    difference(conditioning(native, text=text), expected)


@compares("Native encoder, Long-CLIP, SDXL node, with stock", limit=CLOSE)
def check_the_native_long_clip_in_the_sdxl_node_equals_stock() -> None:
    clip = make_clip("SDXL", long_l=LONG)
    with checkpoint("SDXL", clip) as file:
        native = load(file)
    clip.clip_layer(-2)
    for text_g in ROWS:
        for text_l in ROWS:
            measured, expected = our_sdxl(native, text_g, text_l), stock_sdxl(clip, text_g, text_l)
            difference(measured, expected)


@compares("Native encoder, Long-CLIP in SDXL, every scheme and padding, with the host's", limit=2 * CLOSE)
def check_the_native_long_clip_equals_the_hosts_in_every_scheme_and_padding() -> None:
    import nodes

    required: dict[str, Any] = nodes.NODE_CLASS_MAPPINGS[OURS].INPUT_TYPES()["required"]
    clip = make_clip("SDXL", long_l=LONG)
    with checkpoint("SDXL", clip) as file:
        native = load(file)
    clip.clip_layer(-2)
    short, long = TEXTS[1], "a (photo:1.2) of a (cat:0.5) on a mat, BREAK oil painting, " + "red fox, " * 30
    for choices in (
        # repeat takes towers of one length only
        *({"scheme": scheme} for scheme in required["scheme"][0] if scheme != "repeat"),
        *({"padding": padding} for padding in required["padding"][0]),
    ):
        for text in (short, long):
            inputs = {"text": text, "syntax": "a1111", **choices}
            expected, measured = (conditioning(either, **inputs) for either in (clip, native))
            assert expected[0][0].isfinite().all()
            difference(measured, expected)


@compares("Native encoder, stretched CLIP-L, small, with stock", limit=CLOSE)
def check_a_stretched_clip_gives_the_native_encoders_rows() -> None:
    """Output of the command `stretch`, read by the host's own loader."""
    import comfy.sd
    import folder_paths

    routes = pack_module("nodes.base.routes")
    sizes = {"num_hidden_layers": 4, "hidden_size": WIDTHS["l"], "num_attention_heads": WIDTHS["l"] // 64}
    with tempfile.TemporaryDirectory() as folder:
        folder_paths.add_model_folder_path("text_encoders", folder, is_default=True)
        state = make_clip("SD1").cond_stage_model.clip_l.transformer.state_dict()
        # on a CPU the host keeps text encoders in that type, whatever the file has
        save_file(
            {name: tensor.half().contiguous() for name, tensor in state.items()}, Path(folder, "clip.safetensors")
        )
        for positions in (LONG, 134):
            name = f"clip-{positions}.safetensors"
            command = [PACK / "__main__.py", "stretch", Path(folder, "clip.safetensors"), "--positions", str(positions)]
            subprocess.run([sys.executable, "-P", *map(str, command)], check=True, timeout=900)
            assert routes.positions_in([f"text_encoders/{name}"]) == positions  # what the ruler shows while one types
            options = {"model_config": {**sizes, "intermediate_size": 2 * WIDTHS["l"]}}
            clip = comfy.sd.load_clip([str(Path(folder, name))], model_options=options)
            native = load(f"text_encoders/{name}")
            two_hundred = " ".join(f"{color} {thing}" for color in COLORS for thing in THINGS)
            for text, rows in ((PLAIN, 1), (two_hundred, 1 if positions == LONG else 2), (f"{two_hundred} " * 3, None)):
                tokens = clip.tokenize(text)["l"]
                assert {len(chunk) for chunk in tokens} == {positions}
                expected = stock(clip, text)
                assert expected[0][0].abs().mean() > 0.1
                assert expected[0][0].shape[1] == positions * (rows or len(tokens))
                assert difference(ours(clip, text), expected) == 0
                difference(conditioning(native, text=text), expected)


@compares("U-Net of the small world, random weights, with the host's", limit=CLOSE)
def check_the_hosts_unet_gives_the_small_worlds_numbers() -> None:
    import comfy.ops
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

    unet = pack_module("studio.world.unet")
    config = unet.UNetConfig()
    ours = unet.UNet(config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for parameter in ours.parameters():
        parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    theirs = UNetModel(
        **config.for_host(), dtype=torch.float32, device="cpu", operations=comfy.ops.disable_weight_init
    ).eval()
    theirs.load_state_dict(ours.state_dict(), strict=True)
    latents = torch.randn(3, 12, 16, 20, generator=generator)
    times, rows = torch.tensor([1.0, 500.0, 999.0]), torch.randn(3, 77, 128, generator=generator)
    with torch.no_grad():
        found, expected = ours(latents, times, unet.Text(rows)), theirs(latents, timesteps=times, context=rows)
    assert expected.abs().max() > 0.1
    difference(found, expected)


if __name__ == "__main__":
    main(globals())
