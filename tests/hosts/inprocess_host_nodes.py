"""Checks of the host's nodes that encode prompts or change a CLIP, by name, before and behind a Weighted CLIP.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py. Those with templates and pictures of their
own are in inprocess_edit_prompts.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import inprocess_weighted_clip as of_stock_boxes
import torch
from inprocess import (
    T5_SIZES,
    TEXTS,
    compares,
    difference,
    main,
    make_clip,
    make_lora,
    measured,
    note,
    ours,
    run_ours,
    stock,
    with_lora,
)
from inprocess_other_packs import ours_of
from inprocess_traces import LORA, leaves_nothing
from inprocess_weighted_clip import encoders
from safetensors.torch import load_file
from served_clip import effects, served
from toys import ENCODERS, PLAIN, TEXT, Encoder, make_text_encoder, make_umt5, rows_by_hand

FIRST, SECOND = "text for CLIP", "text for the encoder behind it"
"""Stand-ins for texts among a node's inputs."""
OTHER = "a (dog:1.3), (a photo:0.5) of a dog"
OTHER_PLAIN = "a dog, a photo of a dog"


class HostNode(NamedTuple):
    """A node of the host that encodes prompts."""

    module: str
    """Module of the host that has it; an older host may not."""
    name: str
    inputs: Mapping[str, Any]

    def encode(self, clip: Any, first: str, second: str) -> Any:
        """Its conditioning."""
        node = getattr(importlib.import_module(f"comfy_extras.{self.module}"), self.name)
        texts = {FIRST: first, SECOND: second}
        given = {
            key: texts.get(value, value) if isinstance(value, str) else value for key, value in self.inputs.items()
        }
        return node.execute(clip=clip, **given).result[0]


BERT = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 64}
ENCODERS["Hunyuan DiT"] = Encoder(
    "hydit",
    "HyditModel",
    "HyditTokenizer",
    {"hydit_clip": BERT, "mt5xl": {**T5_SIZES, "vocab_size": 320}},
    {"mt5xl.spiece_model": make_umt5},
)
SIZES = {"width": 1216, "height": 832}
SD3_TEXTS = {"clip_l": FIRST, "clip_g": FIRST, "t5xxl": SECOND}
SD3 = tuple(
    HostNode("nodes_sd3", "CLIPTextEncodeSD3", {**SD3_TEXTS, "empty_padding": padding})
    for padding in ("none", "empty_prompt")
)
KANDINSKY = (HostNode("nodes_kandinsky5", "CLIPTextEncodeKandinsky5", {"clip_l": FIRST, "qwen25_7b": SECOND}),)
LUMINA = {"system_prompt": "superior", "user_prompt": SECOND}
NODES: dict[str, tuple[HostNode, ...]] = {
    "Flux": (HostNode("nodes_flux", "CLIPTextEncodeFlux", {"clip_l": FIRST, "t5xxl": SECOND, "guidance": 2.5}),),
    "SD 3": SD3,
    "SD 3 without T5": SD3,
    "HiDream": (
        HostNode(
            "nodes_hidream",
            "CLIPTextEncodeHiDream",
            {"clip_l": FIRST, "clip_g": FIRST, "t5xxl": FIRST, "llama": SECOND},
        ),
    ),
    "Kandinsky 5": KANDINSKY,
    "Kandinsky 5 Image": KANDINSKY,
    "Chroma": (HostNode("nodes_pixart", "CLIPTextEncodePixArtAlpha", {**SIZES, "text": SECOND}),),
    "Z-Image": (HostNode("nodes_zimage", "TextEncodeZImageOmni", {"prompt": SECOND}),),
    "Lumina 2": (HostNode("nodes_lumina2", "CLIPTextEncodeLumina2", LUMINA),),
    "Hunyuan DiT": (HostNode("nodes_hunyuan", "CLIPTextEncodeHunyuanDiT", {"bert": FIRST, "mt5xl": SECOND}),),
    "SDXL refiner": (
        HostNode("nodes_clip_sdxl", "CLIPTextEncodeSDXLRefiner", {**SIZES, "ascore": 6.0, "text": SECOND}),
    ),
}
"""Nodes by families that they encode for; of the nodes that also take pictures, see inprocess_edit_prompts.py."""
AS_STOCK = ("Hunyuan DiT", "SDXL refiner")
"""Families in which the node weighs rows as the host does, unless it is told otherwise."""
OWN_TEMPLATE = ("Lumina 2",)


def nodes_there() -> Iterator[tuple[str, Any, HostNode]]:
    """Families with a small CLIP each, and the nodes for them that this ComfyUI has."""
    for family, some in NODES.items():
        found = [(family, make_clip(family))] if family == "SDXL refiner" else [*encoders(family)]
        for _, clip in found:
            for node in some:
                if importlib.util.find_spec(f"comfy_extras.{node.module}"):
                    yield family, clip, node


@compares("The host's encode nodes by name on a Weighted CLIP, prompts without weights, small, with stock")
def check_prompts_without_weights_equal_stock_by_each_node() -> None:
    pairs = (("", ""), (PLAIN, PLAIN), (OTHER_PLAIN, PLAIN), ("", PLAIN), (PLAIN, ""))
    for family, clip, node in nodes_there():
        for texts in (*pairs, *([(OTHER, TEXT)] if family in AS_STOCK else [])):
            expected = node.encode(clip, *texts)
            with leaves_nothing(clip, f"{node.name}, {texts}"):
                found = node.encode(served(clip), *texts)
            difference(found, expected)
            difference(node.encode(clip, *texts), expected)


def attention_weights(clip: Any, text: str) -> Any:
    return run_ours("WeightedCLIPWeighAttention", clip=clip, text=text, how="value")["result"][0]


@compares("The host's encode nodes by name on a Weighted CLIP, a text for each encoder, small, with Attention Weights")
def check_each_text_is_weighed_in_the_rows_of_its_encoder() -> None:
    for family, clip, node in nodes_there():
        if family in (*AS_STOCK, *OWN_TEMPLATE):
            continue
        work = served(clip, scheme="attention: value")
        for first, second in ((TEXT, TEXT), (OTHER, TEXT), (PLAIN, TEXT), (TEXT, PLAIN)):
            found = node.encode(work, first, second)
            difference(found[0][0], node.encode(clip, plain(first), plain(second))[0][0])
            begin = num_first_rows(family, found)
            one, other = (factors(attention_weights(clip, text)) for text in (first, second))
            size = max(map(len, (one, other)))
            one, other = (some if len(some) else torch.ones(size) for some in (one, other))
            expected = torch.cat([one[:begin], other[begin:]])
            difference(factors(found, size), expected)
            assert PLAIN in (first, second) or expected.unique().numel() > 2, family


def plain(text: str) -> str:
    return {TEXT: PLAIN, OTHER: OTHER_PLAIN}.get(text, text)


def factors(conditioning: Any, size: int = 0) -> torch.Tensor:
    """Factor of each row's value, ``[rows]``; as many ones if nothing acts on them."""
    if not any("model_conds" in values for _, values in conditioning):
        return torch.ones(size)
    return effects(conditioning)[0].view(2, -1)[1]


def num_first_rows(family: str, conditioning: Any) -> int:
    """Number of rows of encoders that read the first text."""
    if family == "SD 3 without T5":
        return conditioning[0][0].shape[1]
    return {"SD 3": 77, "HiDream": conditioning[0][0].shape[1]}.get(family, 0)


# ---- nodes around


def with_options(clip: Any, min_padding: int, min_length: int) -> Any:
    """The CLIP of the node T5 Tokenizer Options."""
    from comfy_extras.nodes_cond import T5TokenizerOptions

    return T5TokenizerOptions.execute(clip, min_padding, min_length).result[0]


@compares("T5 Tokenizer Options before and behind a Weighted CLIP, small: rows with stock, effects with ours")
def check_t5_tokenizer_options_before_and_behind() -> None:
    if importlib.util.find_spec("comfy_extras.nodes_cond") is None:
        return
    for family, clip in encoders("Flux", "SD 3", "Chroma", "Wan", "HiDream", "AuraFlow"):
        lengths = [stock(clip, PLAIN)[0][0].shape[1]]
        for choices in ((150, 0), (0, 300)):
            changed = with_options(clip, *choices)
            expected = stock(changed, PLAIN)
            lengths.append(expected[0][0].shape[1])
            weighed = {"scheme": "attention: value"}
            for work, weighing in (
                (with_options(served(clip), *choices), with_options(served(clip, **weighed), *choices)),
                (served(changed), served(changed, **weighed)),
            ):
                for text in ("", PLAIN):
                    difference(stock(work, text), stock(changed, text))
                found = stock(weighing, TEXT)
                difference(found[0][0], expected[0][0])
                weights = rows_by_hand(family, changed)
                by_hand = torch.tensor([weights.get(row, 1.0) for row in range(len(factors(found)))])
                difference(factors(found), by_hand)
                difference(factors(found), factors(attention_weights(changed, TEXT)))
        assert len({*lengths}) > 1, (family, lengths)


def other_clip(family: str) -> Any:
    """A CLIP of the family with other weights."""
    found = make_text_encoder(family)
    generator = torch.Generator().manual_seed(9)
    for parameter in found.cond_stage_model.parameters():
        parameter.data += 0.02 * torch.randn(parameter.shape, generator=generator)
    return found


MERGES: dict[str, dict[str, Any]] = {
    "CLIPMergeSimple": {"ratio": 0.3},
    "CLIPAdd": {},
    "CLIPSubtract": {"multiplier": 0.4},
}


def merged(name: str, clip1: Any, clip2: Any) -> Any:
    from comfy_extras import nodes_model_merging

    return getattr(nodes_model_merging, name)().merge(clip1, clip2, **MERGES[name])[0]


@compares("Merging CLIPs before and behind a Weighted CLIP, small: stock, Weighted Prompt and Attention Weights")
def check_merge_nodes_before_and_behind() -> None:
    scheme = {"syntax": "a1111", "scheme": "masked_blend"}
    for family in ("SD1", "SDXL", "Flux"):
        one = make_text_encoder(family)
        two = other_clip(family)
        for name in MERGES:
            both = merged(name, one, two)
            assert not torch.equal(stock(both, PLAIN)[0][0], stock(one, PLAIN)[0][0])
            text = PLAIN if family == "Flux" else TEXTS[1]
            for work in (
                served(both),
                merged(name, served(one), two),
                merged(name, one, served(two)),
                merged(name, served(one), served(two)),
            ):
                difference(stock(work, text), stock(both, text))
            # the settings of the first count
            if family == "Flux":
                choices = {"scheme": "attention: value"}
                for work in (served(both, **choices), merged(name, served(one, **choices), two)):
                    found, expected = stock(work, TEXT), attention_weights(both, TEXT)
                    difference(found[0][0], expected[0][0])
                    difference(factors(found), factors(expected))
                continue
            expected = ours(both, TEXTS[1], **scheme)
            for work in (
                served(both, **scheme),
                merged(name, served(one, **scheme), two),
                merged(name, served(one, **scheme), served(two)),
            ):
                difference(stock(work, TEXTS[1]), expected)
        difference(stock(one, PLAIN), stock(make_text_encoder(family), PLAIN))


@contextmanager
def output_folder() -> Iterator[Path]:
    """An empty folder in place of the host's output."""
    import folder_paths

    before = folder_paths.get_output_directory()
    with tempfile.TemporaryDirectory() as folder:
        folder_paths.set_output_directory(folder)
        try:
            yield Path(folder)
        finally:
            folder_paths.set_output_directory(before)


def saved(clip: Any) -> dict[str, dict[str, torch.Tensor]]:
    """Files of the node CLIP Save, by name."""
    from comfy_extras.nodes_model_merging import CLIPSave

    with output_folder() as folder:
        CLIPSave().save(clip, "clip")
        return {file.name: load_file(file) for file in sorted(folder.iterdir())}


@compares("Files that CLIP Save writes of a Weighted CLIP, with a LoRA too, small, with those of the host's")
def check_saved_files_are_those_of_the_host() -> None:
    for family in ("SD1", "SDXL", "Flux"):
        clip = make_text_encoder(family)
        lora = make_lora(clip.cond_stage_model, LORA)
        cases = (
            (clip, served(clip)),
            (with_lora(clip, lora, 0.7), with_lora(served(clip, scheme="comfy"), lora, 0.7)),
            (with_lora(clip, lora, 0.7), served(with_lora(clip, lora, 0.7), scheme="comfy")),
        )
        files = plain_files = saved(clip)
        for expected, found in cases:
            files, others = saved(expected), saved(found)
            assert files.keys() == others.keys()
            for name, tensors in files.items():
                assert tensors.keys() == others[name].keys(), (family, name)
                for key, tensor in tensors.items():
                    note(float((tensor.float() - others[name][key].float()).abs().max()))
        assert any(
            not torch.equal(tensor, plain_files[name][key])
            for name, some in files.items()
            for key, tensor in some.items()
        )


@compares("Prompts encoded one behind the other on one Weighted CLIP, as for a second sampler, small, with ours")
def check_more_prompts_on_one_clip() -> None:
    """A detailer encodes once more, on the same CLIP or on a clone of it, while other conditionings are in use."""
    choices = {"syntax": "a1111", "scheme": "masked_blend"}
    for family in ("SD1", "SDXL"):
        clip = make_clip(family)
        work = served(clip, **choices)
        for _ in range(2):
            for text in (*TEXTS, *reversed(TEXTS)):
                difference(stock(work, text), ours(clip, text, **choices))
                difference(stock(work.clone(), text), ours(clip, text, **choices))
                difference(stock(clip, text), stock(make_clip(family), text))
    for _, clip in encoders("Flux", "Qwen-Image"):
        work = served(clip, scheme="attention: value")
        for text in (TEXT, PLAIN, OTHER, TEXT, OTHER):
            found, expected = stock(work, text), attention_weights(clip, text)
            difference(found[0][0], expected[0][0])
            difference(factors(found, 1), factors(expected, 1))


# ---- faults


def fails(check: Callable[[], None]) -> bool:
    """Whether a check raises or finds a difference."""
    num_before = len(measured)
    try:
        check()
        return any(measured[num_before:])
    except Exception:
        return True
    finally:
        del measured[num_before:]


def check_faults_put_in_on_purpose_are_seen() -> None:
    """Each is what a careless change of the node would do."""
    weighted_clip = ours_of("hosts.comfy.weighted_clip.wrapped_clip")
    encoding = ours_of("hosts.comfy.weighted_clip.encoder_call")
    host_texts = ours_of("hosts.comfy.clip.host_texts")
    host_clip = ours_of("hosts.comfy.clip.host_clip").host_clip
    mixin = weighted_clip._Weighted
    right_parts, right_tokens = encoding.parts_of_rows, mixin.tokenize
    texts: dict[int, Any] = {}

    def from_the_front(clip: Any, family: Any, tokens: Any, num_rows: int, sizes: Any) -> Any:
        if family is None or len(tokens) != 1:
            return right_parts(clip, family, tokens, num_rows, sizes)
        ((key, (chunk,)),) = tokens.items()
        return [[{key: entry} for entry in chunk[:num_rows]]]

    def of_the_first_text(self: Any, text: Any, *rest: Any, **choices: Any) -> Any:
        return right_tokens(self, texts.setdefault(id(self), text), *rest, **choices)

    merging = check_merge_nodes_before_and_behind
    templates = of_stock_boxes.check_templates_of_nodes_keep_rows_and_words_apart
    words = of_stock_boxes.check_words_of_stock_boxes_are_known
    each_text = check_each_text_is_weighed_in_the_rows_of_its_encoder
    faults: dict[str, tuple[Any, tuple[Callable[[], None], ...]]] = {
        "rows counted from the front": (patch.object(encoding, "parts_of_rows", from_the_front), (templates,)),
        "a clone that is the host's": (
            patch.object(mixin, "clone", lambda self, *_, **__: host_clip(self)),
            (merging,),
        ),
        "marks lost": (patch.object(host_texts, "marked_entry", lambda entry, token, prompt: entry), (words,)),
        "wrong text of two": (patch.object(mixin, "tokenize", of_the_first_text), (each_text,)),
    }
    for fault, (change, checks) in faults.items():
        with change:
            for check in checks:
                texts.clear()
                assert fails(check), f"{fault}: {check.__name__} does not see it"


if __name__ == "__main__":
    main(globals())
