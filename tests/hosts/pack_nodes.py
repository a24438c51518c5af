"""Nodes of other packs that encode prompts, loaded from the packs' own code in ComfyUI's Python.

Of each pack only the module that encodes is loaded; if that wants more than ComfyUI has, only the class or function.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import MagicMock, patch

import torch
from inprocess import CLOSE, ours, pack_of, run_ours
from inprocess_prompt_control import peer
from inprocess_traces import by_smz
from pack_code import definitions, package

BOTH = ("SD1", "SDXL")
OWN_RULE = "its own rule, weights read by our syntax"
OWN_SYNTAX = "its own syntax and rule"
MIXED = "our scheme on the tokens that it makes"
PUT_TOGETHER = "put the tokens of a prompt together"
REPLACED = "has replaced how this CLIP"

Encode = Callable[[Any, str], Any]
"""From a CLIP and a text to a conditioning."""


class PackNode(NamedTuple):
    """A node of another pack."""

    name: str
    """Its id, or the function by which several nodes encode, and its inputs."""
    encode: Encode
    same: Callable[..., Any] | str = ours
    """With a scheme: our own encoding that it equals, from a CLIP, a text and choices; or what acts instead."""
    line: str = ""
    """Part of a line that is told with a scheme; empty: none."""
    families: tuple[str, ...] = BOTH
    limit: float = 0.0
    """Largest difference with a scheme."""


def module_at(name: str, file: Path) -> ModuleType:
    """A module of one file."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec and spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def around(encode: Encode, written: str) -> Encode:
    """An encoding of another text, with the given one in it."""
    return lambda clip, text, **choices: encode(clip, written.format(text), **choices)


def in_parts(separator: str) -> Callable[..., Any]:
    """Our encodings of the parts of a text, one behind the other."""

    def same(clip: Any, text: str, **choices: Any) -> Any:
        parts = [ours(clip, part.strip(), **choices) for part in text.split(separator)]
        ((_, values),) = parts[0]
        return [[torch.cat([rows for part in parts for rows, _ in part], dim=1), values]]

    return same


def two_texts(clip: Any, text: str, text_l: str = "a (dog:1.4)", **choices: Any) -> Any:
    """Our encoding of a text for CLIP-G and another for CLIP-L."""
    return run_ours("WeightedCLIPSDXLEncode", clip=clip, text_g=text, text_l=text_l, **choices)["result"][0]


# ---- packs


def comfyui() -> Iterator[PackNode]:
    from comfy_extras.nodes_clip_sdxl import CLIPTextEncodeSDXL
    from comfy_extras.nodes_photomaker import PhotoMakerEncode

    def photomaker(clip: Any, text: str) -> Any:
        return PhotoMakerEncode.execute(SameRows(), torch.zeros(1, 8, 8, 3), clip, text).result[0]

    def sdxl(clip: Any, text: str) -> Any:
        return CLIPTextEncodeSDXL.execute(clip, 64, 64, 0, 0, 64, 64, text, "a (dog:1.4)").result[0]

    yield PackNode("PhotoMakerEncode, without its word", photomaker, line=PUT_TOGETHER)
    yield PackNode("PhotoMakerEncode", around(photomaker, "a photomaker, {}"), MIXED, PUT_TOGETHER)
    yield PackNode("CLIPTextEncodeSDXL", sdxl, two_texts, families=("SDXL",))


class SameRows:
    """Rows as they came, in place of an encoder that puts a face among them."""

    load_device = torch.device("cpu")

    def __call__(self, prompt_embeds: torch.Tensor, **_: Any) -> torch.Tensor:
        return prompt_embeds


def impact() -> Iterator[PackNode]:
    folder = pack_of("ComfyUI-Impact-Pack") / "modules" / "impact"
    parts = {f"impact.{name}": ModuleType(f"impact.{name}") for name in ("utils", "config")}
    whole = ModuleType("impact")
    vars(whole).update({name.rpartition(".")[2]: part for name, part in parts.items()})
    with patch.dict(sys.modules, {"impact": whole, **parts}):
        wildcards = module_at("impact_wildcards", folder / "wildcards.py")

    def encode(clip: Any, text: str) -> Any:
        return wildcards.process_with_loras(text, None, clip)[2]

    yield PackNode("ImpactWildcardEncode, detailers", encode)
    broken = "a cat BREAK {}"
    yield PackNode("ImpactWildcardEncode, BREAK", around(encode, broken), around(in_parts("BREAK"), broken))


def inspire() -> Iterator[PackNode]:
    file = pack_of("ComfyUI-Inspire-Pack") / "inspire" / "prompt_support.py"
    node = definitions(file, "CLIPTextEncodeWithWeight").CLIPTextEncodeWithWeight

    def encode(clip: Any, text: str, strength: float, add: float) -> Any:
        return node().encode(clip, text, strength, add)[0]

    def halved(clip: Any, text: str, **choices: Any) -> Any:
        """A1111's rule keeps the mean, so that half of all weights, of begin, end and padding too, is the same."""
        return ours(clip, text, **choices) if choices["scheme"] == "a1111" else None

    yield PackNode("CLIPTextEncodeWithWeight 1, 0", partial(encode, strength=1.0, add=0.0))
    yield PackNode("CLIPTextEncodeWithWeight 0.5, 0", partial(encode, strength=0.5, add=0.0), halved, PUT_TOGETHER)
    yield PackNode("CLIPTextEncodeWithWeight 1.3, -0.1", partial(encode, strength=1.3, add=-0.1), MIXED, PUT_TOGETHER)


def adv_clip_emb() -> Iterator[PackNode]:
    package("adv_clip_emb", pack_of("ComfyUI_ADV_CLIP_emb"))
    module = importlib.import_module("adv_clip_emb.nodes")
    node, pair = module.AdvancedCLIPTextEncode, module.AdvancedCLIPTextEncodeSDXL
    yield from advanced("BNK_CLIPTextEncodeAdvanced", lambda *given: node().encode(*given)[0])

    def two(clip: Any, text: str) -> Any:
        return pair().encode(clip, text, text, "none", "comfy", 0.5)[0]  # it takes no texts of unlike lengths

    yield PackNode("BNK_CLIPTextEncodeSDXLAdvanced", two, ours, PUT_TOGETHER, ("SDXL",))


def advanced(name: str, encode: Callable[..., Any], same: Callable[..., Any] = ours) -> Iterator[PackNode]:
    """Nodes by a function with ADV_CLIP_emb's choices of normalization and interpretation."""
    for norm, how in (("none", "comfy"), ("length+mean", "comfy"), ("none", "A1111"), ("none", "comfy++")):
        expected = partial(same, normalization=norm) if how == "comfy" else OWN_RULE
        title = f"{name}, {norm}, {how}"
        yield PackNode(title, lambda clip, text, given=(norm, how): encode(clip, text, *given), expected, PUT_TOGETHER)
    yield PackNode(
        f"{name}, none, compel", lambda clip, text: encode(clip, text, "none", "compel"), MIXED, PUT_TOGETHER
    )


def efficiency() -> Iterator[PackNode]:
    import nodes

    folder = pack_of("efficiency-nodes-comfyui")
    module = module_at("efficiency_encode", folder / "py" / "bnk_adv_encode.py")
    given = {"CLIPSetLastLayer": nodes.CLIPSetLastLayer, "bnk_adv_encode": module}
    prompts = definitions(folder / "efficiency_nodes.py", "encode_prompts", **given).encode_prompts

    def encode(clip: Any, text: str, norm: str, how: str) -> Any:
        return prompts(text, "", norm, how, clip, -2, None, None, None, False, 64, 64, return_type="base")[0]

    def same(clip: Any, text: str, **choices: Any) -> Any:
        return ours(nodes.CLIPSetLastLayer().set_last_layer(clip, -2)[0], text, **choices)

    yield from advanced("encode_prompts", encode, same)


def easy_use() -> Iterator[PackNode]:
    module = module_at("easy_use_encode", pack_of("ComfyUI-Easy-Use") / "py" / "libs" / "adv_encode.py")

    def encode(clip: Any, text: str, norm: str, how: str) -> Any:
        return module.advanced_encode(clip.clone(), text, norm, how, w_max=1.0, apply_to_pooled="enable")

    yield from advanced("advanced_encode", encode)
    broken = "a cat BREAK {}"
    parts = around(in_parts("BREAK"), broken)
    yield PackNode(
        "advanced_encode, BREAK", around(partial(encode, norm="none", how="comfy"), broken), parts, PUT_TOGETHER
    )


def tinyterra() -> Iterator[PackNode]:
    module = module_at("tinyterra_encode", pack_of("ComfyUI_tinyterraNodes") / "ttNpy" / "adv_encode.py")

    def encode(clip: Any, text: str, norm: str, how: str) -> Any:
        rows, pooled = module.advanced_encode(clip, text, norm, how, w_max=1.0, apply_to_pooled="enable")
        return [[rows, {"pooled_output": pooled}]]

    yield from advanced("advanced_encode", encode)


def cutoff() -> Iterator[PackNode]:
    package("cutoff", pack_of("ComfyUI_Cutoff"))
    module = importlib.import_module("cutoff.cutoff")

    def encode(clip: Any, text: str, region: str) -> Any:
        prompt = module.CLIPRegionsBasePrompt().init_prompt(clip, text)[0]
        if region:
            prompt = module.CLIPSetRegion().add_clip_region(prompt, region, region.split()[0], 1.0)[0]
        return module.CLIPRegionsToConditioning().finalize(prompt, "", 1.0, 1.0)[0]

    yield PackNode("BNK_CutoffRegionsToConditioning, no region", partial(encode, region=""), line=PUT_TOGETHER)
    region = partial(encode, region="red cat")
    yield PackNode("BNK_CutoffRegionsToConditioning, a region", region, MIXED, PUT_TOGETHER)


def fizznodes() -> Iterator[PackNode]:
    names = "PoolAnimConditioning", "SDXLencode"
    file = pack_of("ComfyUI_FizzNodes") / "ScheduleFuncs.py"
    module = definitions(file, *names, ScheduleSettings=object)
    sizes = dict.fromkeys(("width", "height", "crop_w", "crop_h", "target_width", "target_height"), 64)

    def single(clip: Any, text: str) -> Any:
        return module.PoolAnimConditioning(text, "", 1, clip)

    def pair(clip: Any, text: str) -> Any:
        return module.SDXLencode(text, "a (dog:1.4)", SimpleNamespace(**sizes), clip)

    yield PackNode("PoolAnimConditioning", single)
    yield PackNode("SDXLencode", pair, two_texts, families=("SDXL",))


def swarmui() -> Iterator[PackNode]:
    extra = "src/BuiltinExtensions/ComfyUIBackend/ExtraNodes/SwarmComfyCommon/SwarmTextHandling.py"
    node = module_at("swarm_text", pack_of("SwarmUI") / extra).SwarmClipTextEncodeAdvanced

    def encode(clip: Any, text: str) -> Any:
        return node().encode(clip, 10, text, 64, 64, 64, 64)[0]

    yield PackNode("SwarmClipTextEncodeAdvanced", encode)
    broken = "a cat<break>{}"
    parts = around(in_parts("<break>"), broken)
    yield PackNode("SwarmClipTextEncodeAdvanced, <break>", around(encode, broken), parts)


def prompt_control() -> Iterator[PackNode]:
    module = peer()

    def encode(clip: Any, text: str) -> Any:
        return module.encode_prompt(clip, text, 0.0, 1.0, {}, None)

    yield PackNode("PCTextEncode", encode)
    broken = "a (blue:1.2) sky BREAK {}"
    joined = around(lambda clip, text, **choices: ours(clip, text, **{**choices, "syntax": "a1111"}), broken)
    yield PackNode("PCTextEncode, BREAK", around(encode, broken), joined, PUT_TOGETHER)
    for style in ("A1111", "comfy, length+mean", "perp"):
        yield PackNode(f"PCTextEncode, STYLE({style})", around(encode, f"STYLE({style}) {{}}"), OWN_RULE, REPLACED)
    yield PackNode("PCTextEncode, CUT", around(encode, "{} [CUT:a red cat:red]"), OWN_RULE, REPLACED)
    yield PackNode("PCTextEncode, TE(l=)", around(encode, "{} TE(l=a (dog:1.4))"), two_texts, "", ("SDXL",))


def ppm() -> Iterator[PackNode]:
    module = module_at("ppm_clip", pack_of("ComfyUI-ppm") / "src" / "nodes_ppm" / "clip_misc.py")

    def broken(clip: Any, text: str) -> Any:
        return module.CLIPTextEncodeBREAK().encode(clip, text)[0]

    def inverted(clip: Any, text: str) -> Any:
        return module.CLIPTextEncodeInvertWeights().encode(clip, text, False)[0]

    yield PackNode("CLIPTextEncodeBREAK", around(broken, "a cat BREAK {}"), around(in_parts("BREAK"), "a cat BREAK {}"))
    yield PackNode("CLIPTextEncodeInvertWeights", inverted, MIXED, PUT_TOGETHER)


def smz() -> Iterator[PackNode]:
    yield PackNode("smZ CLIPTextEncode, comfy", partial(smz_encode, parser="comfy"), by_comfy_syntax, PUT_TOGETHER)
    for parser, families in {"A1111": BOTH, "comfy++": BOTH, "compel": ("SD1",)}.items():
        encode = partial(smz_encode, parser=parser)
        yield PackNode(f"smZ CLIPTextEncode, {parser}", encode, OWN_SYNTAX, REPLACED, families)


def smz_encode(clip: Any, text: str, parser: str) -> Any:
    return by_smz(parser, clip, text)


def by_comfy_syntax(clip: Any, text: str, **choices: Any) -> Any:
    return ours(clip, text, **{**choices, "syntax": "comfy"})


def vector_sculptor() -> Iterator[PackNode]:
    module = module_at("vector_sculptor", pack_of("Vector_Sculptor_ComfyUI") / "nodes.py")
    node, refine = module.vector_sculptor_node, module.refine_token_weight
    known: dict[Any, Any] = {}

    def refined(token: Any, weights: torch.Tensor, *rest: Any) -> Any:  # theirs, which computes long
        key = int(token), weights.shape, *rest
        if key not in known:
            known[key] = refine(token, weights, *rest)
        return known[key][0].clone(), known[key][1]

    module.refine_token_weight = refined

    def encode(clip: Any, text: str, intensity: float) -> Any:
        return node().exec(clip, text, intensity, "forward", "none")[0]

    def same(clip: Any, text: str, **choices: Any) -> Any:
        """Without the pooled vector: nobody finds the end among vectors, as on the host's CLIP."""
        return [[rows, {}] for rows, _ in ours(clip, text, **choices)]

    yield PackNode("CLIP Vector Sculptor text encode, 0", partial(encode, intensity=0.0), same, PUT_TOGETHER)
    yield PackNode("CLIP Vector Sculptor text encode, 1", partial(encode, intensity=1.0), MIXED, PUT_TOGETHER)


def essentials() -> Iterator[PackNode]:
    node = module_at("essentials", pack_of("ComfyUI_essentials") / "conditioning.py").CLIPTextEncodeSDXLSimplified

    def encode(clip: Any, text: str) -> Any:
        return node().execute(clip, 64, 64, 4, text)[0]

    yield PackNode("CLIPTextEncodeSDXL+", encode, families=("SDXL",))


def photomaker_plus() -> Iterator[PackNode]:
    package("photomaker_plus", pack_of("ComfyUI-PhotoMaker-Plus"))
    with patch.dict(sys.modules, {name: MagicMock() for name in ("insightface", "insightface.app")}):
        node = importlib.import_module("photomaker_plus.photomaker").PhotoMakerEncodePlus

    def encode(clip: Any, text: str) -> Any:
        return node().apply_photomaker(clip, SimpleNamespace(num_tokens=1), torch.zeros(1, 8, 8, 3), "zzz", text)[0]

    # it rounds weights to float32
    yield PackNode("PhotoMakerEncodePlus, without its word", encode, line=PUT_TOGETHER, limit=CLOSE)


def mikey() -> Iterator[PackNode]:
    name = "CLIPTextEncodeSDXL_encode"
    encode = getattr(definitions(pack_of("mikey_nodes") / "mikey_nodes.py", name), name)

    def pair(clip: Any, text: str) -> Any:
        return encode(clip, 64, 64, 0, 0, 64, 64, text, "a (dog:1.4)")[0]

    yield PackNode(name, pair, two_texts, families=("SDXL",))


def comfyroll() -> Iterator[PackNode]:
    name = "CR_SDXLBasePromptEncoder"
    file = pack_of("ComfyUI_Comfyroll_CustomNodes") / "nodes" / "nodes_sdxl.py"
    node = getattr(definitions(file, name, MAX_RESOLUTION=8192, icons={}), name)

    def pair(clip: Any, text: str) -> Any:
        return node().encode(clip, text, "a (dog:1.4)", "a", "b", 64, 64, 0, 0, 64, 64, "preset A")[0]

    yield PackNode("CR SDXL Base Prompt Encoder", pair, two_texts, families=("SDXL",))


def mtb() -> Iterator[PackNode]:
    name = "MTB_InterpolateClipSequential"
    file = pack_of("comfy_mtb") / "nodes" / "conditions.py"
    node = getattr(definitions(file, name, log=logging.getLogger(name)), name)

    def encode(clip: Any, text: str) -> Any:
        return node().interpolate_encodings_sequential(text, "cat", clip, 0.0, first="dog")[0]

    yield PackNode("Interpolate Clip Sequential (mtb)", encode)


def omost() -> Iterator[PackNode]:
    import nodes

    folder = pack_of("ComfyUI_omost")
    package("omost", folder)
    bags = importlib.import_module("omost.lib_omost.greedy_encode")
    names = ("CLIPTokens", "EncoderOutput", "SPECIAL_TOKENS", "encode_bag_of_subprompts_greedy")
    given = {name: getattr(bags, name) for name in names}
    given |= {"CLIPTextEncode": nodes.CLIPTextEncode, "logger": logging.getLogger("omost")}
    module = definitions(folder / "omost_nodes.py", "PromptEncoding", **given)

    def greedy(clip: Any, text: str) -> Any:
        return module.PromptEncoding.encode_bag_of_subprompts_greedy(clip, [text], [" on a lawn"])

    def joined(clip: Any, text: str) -> Any:
        return module.PromptEncoding.encode_subprompts(clip, [text], [" on a lawn"])

    yield PackNode("Omost Layout Cond, greedy", greedy, OWN_RULE, PUT_TOGETHER)
    yield PackNode("Omost Layout Cond, original", joined, around(ours, "{} on a lawn"))


def animatediff() -> Iterator[PackNode]:
    folder = pack_of("ComfyUI-AnimateDiff-Evolved") / "animatediff"
    package("animatediff", folder)
    module = importlib.import_module("animatediff.scheduling")

    def encode(clip: Any, text: str) -> Any:
        interpolation = module.InterpolationMethod.LINEAR
        options = module.PromptOptions(interp=interpolation, prepend_text="", append_text="", values_replace=None)
        rows, values = module.evaluate_prompt_schedule(f'"0": "{text}"', 1, clip, options)[0]
        return [[rows, {"pooled_output": values["pooled_output"]}]]

    yield PackNode("ADE_PromptScheduling", encode)


def rgthree() -> Iterator[PackNode]:
    import nodes

    name = "RgthreePowerPromptSimple"
    given = {"RgthreePowerPrompt": object, "get_name": str, "get_category": str}
    file = pack_of("rgthree-comfy") / "py" / "power_prompt_simple.py"
    node = getattr(definitions(file, name, CLIPTextEncode=nodes.CLIPTextEncode, **given), name)

    def encode(clip: Any, text: str) -> Any:
        return node().main(text, clip)[0]

    yield PackNode("Power Prompt", encode)
