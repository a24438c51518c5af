"""Families of diffusion models whose words Attention Weights weights: one record each, and the tables made of them.

A family is known by classes of the host: its diffusion model's class says where it reads text, its tokenizer's class
which rows of a CONDITIONING are a word's. A test in the host verifies each.

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Weights in the attention".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

from torch import Tensor

from ..contract import checked_object
from ..titles import PLACE_PHRASE, REGIONAL_PROMPT, WATCH_WORDS
from ..types import Clip
from . import attention_orders, queries
from .attention_hooks import by_hooks, in_cross_attention_without_mask
from .attention_layers import (
    WeightingFunction,
    before_three_texts,
    behind_refiners,
    behind_text_fusion,
    in_cross_attention,
    in_joint_attention,
    in_joint_blocks,
    in_masked_cross_attention,
    in_wan_cross_attention,
)
from .connectors import Connect, rows_of_connectors, without_rows
from .kinds import changes, known_class, name_of, overridden

IM_END = 151645
"""Id of the end of a turn in Qwen's tokenizer, by which the host finds the end of a template."""
LLAMA_USER, TURN_END = (128006, 882, 128007), 128009
"""Ids of Llama 3's tokenizer by which the host finds the user's turn in the template of Hunyuan Video."""
MASK = "attention_mask"
"""Name of the mask of rows among the values of an entry, and among a model's inputs."""
TOKENIZE = "tokenize_with_weights"
"""The method of the host's tokenizers that gives a text its template and its tokens."""
ANIMA_ROWS = 512
"""Minimum number of rows read by Anima's model: those made from T5's ids, then zeros."""

Part = tuple[str, ...] | int
"""Rows of a conditioning: of one encoder, of two that share rows, or a number of rows without words."""


def _longcat_suffix(ids: Sequence[int | bytes]) -> int:
    """Number of tokens from the last end of a turn on, which are the end of LongCat-Image's template."""
    return next((number for number, token_id in enumerate(reversed(ids), 1) if token_id == IM_END), 0)


def _hunyuan_suffix(ids: Sequence[int | bytes]) -> int:
    """Number of tokens after the user's last turn in Hunyuan Video's template."""
    starts = [place for place in range(len(ids)) if tuple(ids[place : place + 3]) == LLAMA_USER]
    ends = [place for place in range(starts[-1], len(ids)) if ids[place] == TURN_END] if starts else []
    return len(ids) - 1 - ends[0] if ends else 0


def rows_of_anima(num_rows: int) -> int:
    """Number of rows that Anima's model reads for a number of T5's ids."""
    return max(num_rows, ANIMA_ROWS)


def _is_loaded(clip: Clip, encoder: str) -> bool:
    """Whether a CLIP has one of its text encoders, by its name there; a lone tokenizer counts as having all."""
    loaded = getattr(clip, "cond_stage_model", None)
    return loaded is None or getattr(loaded, encoder) is not None


def _sd3_parts(clip: Clip) -> tuple[Part, ...]:
    """Rows of CLIP-L and CLIP-G side by side, then those of T5; each may be missing."""
    towers = tuple(key for key in ("l", "g") if _is_loaded(clip, f"clip_{key}"))
    parts = [part for part in (towers, ("t5xxl",) if _is_loaded(clip, "t5xxl") else ()) if part]
    if not parts:
        raise ValueError("This CLIP holds no text encoder of Stable Diffusion 3: load CLIP-L, CLIP-G or T5.")
    return tuple(parts)


def _hidream_parts(clip: Clip) -> tuple[Part, ...]:
    """Rows of T5, then those of Llama; the host puts zeros for a missing one."""
    has_t5, has_llama = _is_loaded(clip, "t5xxl"), _is_loaded(clip, "llama")
    if not (has_t5 or has_llama):
        raise ValueError("This CLIP holds no text encoder of HiDream whose rows are read: load T5 or Llama.")
    return ("t5xxl",) if has_t5 else 128, ("llama",) if has_llama else 1


@dataclass(frozen=True)
class ModelFamily:
    """A family of models that read text in the same way."""

    title: str
    """Its name in messages."""
    weigh: WeightingFunction
    """Method for getting weights into its attention: of ``attention_layers.py`` if the host says which layer reads
    text, of ``attention_orders.py`` if only the order of the layers tells, of ``attention_hooks.py`` if the host passes
    its attention no options."""
    layout: queries.Layout | None
    """Layout of the queries of that attention; None if it is unknown, so that words have no places there."""
    networks: tuple[str, ...]
    """Classes of its diffusion model. Families may share one if they have the same method and layout."""
    tokenizers: Mapping[str, str]
    """Name of its text encoder among the host's tokens, by class of the tokenizer. Each class is in one family; none if
    this one has CLIP text towers alone, or if all of its tokenizers are another family's, as those of Cosmos 1."""
    loader: str | None = None
    """Loader and its type setting that most likely mean the first of its tokenizers; None if it has none. The file
    decides which one it is; so types used for several models, such as ``lumina2``, are left out."""
    num_left_out_behind: Callable[[Sequence[int | bytes]], int] = lambda ids: 0
    """Function from its ids to the number of last rows that the host leaves out."""
    filled_up: Callable[[int], int] = int
    """Function from its number of rows to the number that its model reads, with rows without words at the end."""
    parts: Callable[[Clip], tuple[Part, ...]] | None = None
    """Function that gives the order of rows of several encoders; None if there is one encoder."""
    has_row_weights: bool = False
    """Whether its conditioning holds a weight for each row, by which the model multiplies it."""
    takes_embeddings: bool = True
    """Whether a prompt may contain an embedding; not if a model takes ids, or several encoders read it."""
    connect: Connect | None = None
    """Function for layers of its model that join the rows before the first step, so that some rows are not read."""
    filled_in_front: tuple[str, ...] = ()
    """Classes of host models that pad the text's rows to their own length, with rows of zeros at the front."""
    moved_by_rows: tuple[str, ...] = ()
    """Classes of host models that place the picture by the number of all rows, so that a region would move it."""

    def parts_of(self, clip: Clip) -> tuple[Part, ...]:
        """Order of the rows of a CLIP's text encoders."""
        return ((self.encoder_of(clip),),) if self.parts is None else self.parts(clip)

    def names_of(self, clip: Clip) -> tuple[str, ...]:
        """Text encoders of a CLIP whose rows its model reads, the one that shows a prompt first."""
        names = [name for part in self.parts_of(clip) if not isinstance(part, int) for name in part]
        return tuple(sorted(names, key=lambda name: name != self.encoder_of(clip)))

    def encoder_of(self, clip: Clip) -> str:
        """Name of a CLIP's text encoder among the host's tokens."""
        tokenizer_class = known_class(clip.tokenizer, self.tokenizers)
        assert tokenizer_class is not None  # it is of this family
        return self.tokenizers[name_of(tokenizer_class)]


FAMILIES = (
    ModelFamily(
        "Stable Diffusion 1, 2 and XL",
        in_cross_attention,
        queries.told_by_layer,
        ("comfy.ldm.modules.diffusionmodules.openaimodel.UNetModel",),
        {},
    ),
    ModelFamily(
        "Flux 1",
        in_joint_attention,
        queries.text_in_front,
        ("comfy.ldm.flux.model.Flux",),
        {"comfy.text_encoders.flux.FluxTokenizer": "t5xxl"},
        loader="DualCLIPLoader flux",
    ),
    ModelFamily(
        "Chroma",
        in_joint_attention,
        queries.text_in_front,
        ("comfy.ldm.chroma.model.Chroma", "comfy.ldm.chroma_radiance.model.ChromaRadiance"),
        {"comfy.text_encoders.pixart_t5.PixArtTokenizer": "t5xxl"},
        loader="CLIPLoader chroma",
    ),
    ModelFamily(
        "Qwen-Image",
        in_joint_attention,
        queries.text_in_front,
        ("comfy.ldm.qwen_image.model.QwenImageTransformer2DModel",),
        {"comfy.text_encoders.qwen_image.QwenImageTokenizer": "qwen25_7b"},
        loader="CLIPLoader qwen_image",
    ),
    ModelFamily(
        "Z-Image",
        behind_refiners,
        queries.text_in_front_padded,
        ("comfy.ldm.lumina.model.NextDiT", "comfy.ldm.lumina.model.NextDiTPixelSpace"),
        {"comfy.text_encoders.z_image.ZImageTokenizer": "qwen3_4b"},
    ),
    ModelFamily(
        "Krea 2",
        behind_text_fusion,
        queries.text_in_front,
        ("comfy.ldm.krea2.model.SingleStreamDiT",),
        {"comfy.text_encoders.krea2.Krea2Tokenizer": "qwen3vl_4b"},
        loader="CLIPLoader krea2",
    ),
    ModelFamily(
        "Anima",
        in_cross_attention,
        queries.picture_alone,
        ("comfy.ldm.anima.model.Anima",),
        {"comfy.text_encoders.anima.AnimaTokenizer": "t5xxl"},
        filled_up=rows_of_anima,
        has_row_weights=True,
        takes_embeddings=False,
    ),
    ModelFamily(
        "Wan",
        in_wan_cross_attention,
        queries.between_references,
        (
            "comfy.ldm.wan.model.WanModel",
            "comfy.ldm.wan.model.VaceWanModel",
            "comfy.ldm.wan.model.CameraWanModel",
            "comfy.ldm.wan.model.HumoWanModel",
            "comfy.ldm.wan.model.WanModel_S2V",
            "comfy.ldm.wan.model.SCAILWanModel",
            "comfy.ldm.wan.model.SCAIL2WanModel",
            "comfy.ldm.wan.model_animate.AnimateWanModel",
            "comfy.ldm.wan.model_wandancer.WanDancerModel",
        ),
        {"comfy.text_encoders.wan.WanT5Tokenizer": "umt5xxl"},
    ),
    ModelFamily(
        "LTX-Video",
        in_masked_cross_attention,
        queries.before_guides,
        ("comfy.ldm.lightricks.model.LTXVModel",),
        {"comfy.text_encoders.lt.LTXVT5Tokenizer": "t5xxl"},
        loader="CLIPLoader ltxv",
    ),
    ModelFamily(
        "LTX-2",
        in_masked_cross_attention,
        None,
        ("comfy.ldm.lightricks.av_model.LTXAVModel",),
        {"comfy.text_encoders.lt.LTXAVGemmaTokenizer": "gemma3_12b"},
        filled_up=rows_of_connectors,
        connect=without_rows,
    ),
    ModelFamily(
        "Stable Diffusion 3",
        in_joint_blocks,
        queries.text_in_front,
        ("comfy.ldm.modules.diffusionmodules.mmdit.OpenAISignatureMMDITWrapper",),
        {"comfy.text_encoders.sd3_clip.SD3Tokenizer": "t5xxl"},
        parts=_sd3_parts,
        takes_embeddings=False,
    ),
    ModelFamily(
        "Lumina 2",
        behind_refiners,
        queries.text_in_front_padded,
        ("comfy.ldm.lumina.model.NextDiT",),
        {
            "comfy.text_encoders.lumina2.LuminaTokenizer": "gemma2_2b",
            "comfy.text_encoders.lumina2.NTokenizer": "gemma3_4b",
        },
    ),
    ModelFamily(
        "Flux 2",
        in_joint_attention,
        queries.text_in_front,
        ("comfy.ldm.flux.model.Flux",),
        {
            "comfy.text_encoders.flux.KleinTokenizer": "qwen3_4b",
            "comfy.text_encoders.flux.KleinTokenizer8B": "qwen3_8b",
            "comfy.text_encoders.flux.Flux2Tokenizer": "mistral3_24b",
        },
        filled_in_front=("comfy.model_base.Flux2",),
    ),
    ModelFamily(
        "HiDream",
        before_three_texts,
        queries.text_behind,
        ("comfy.ldm.hidream.model.HiDreamImageTransformer2DModel",),
        {"comfy.text_encoders.hidream.HiDreamTokenizer": "llama"},
        parts=_hidream_parts,
        takes_embeddings=False,
    ),
    ModelFamily(
        "Mage-Flow",
        in_joint_attention,
        queries.text_in_front,
        ("comfy.ldm.mage_flow.model.MageFlowTransformer2DModel",),
        {"comfy.text_encoders.mage_flow.MageFlowTokenizer": "qwen3vl_4b"},
        loader="CLIPLoader mage",
    ),
    ModelFamily(
        "Boogu",
        attention_orders.behind_refiners_apart,
        queries.text_before_references,
        ("comfy.ldm.boogu.model.BooguTransformer2DModel",),
        {"comfy.text_encoders.boogu.BooguTokenizer": "qwen3vl_8b"},
        loader="CLIPLoader boogu",
    ),
    ModelFamily(
        "Ideogram 4",
        attention_orders.in_every_attention,
        queries.text_before_cells,
        ("comfy.ldm.ideogram4.model.Ideogram4Transformer2DModel",),
        {
            "comfy.text_encoders.ideogram4.Ideogram4Tokenizer": "qwen3vl_8b",
            "comfy.text_encoders.ideogram4.Ideogram4Qwen3VLTokenizer": "qwen3vl_8b",
        },
        loader="CLIPLoader ideogram4",
    ),
    ModelFamily(
        "OmniGen 2",
        attention_orders.behind_refiners_apart,
        queries.text_before_references,
        ("comfy.ldm.omnigen.omnigen2.OmniGen2Transformer2DModel",),
        {"comfy.text_encoders.omnigen2.Omnigen2Tokenizer": "qwen25_3b"},
        loader="CLIPLoader omnigen2",
    ),
    ModelFamily(
        "HiDream-O1",
        attention_orders.in_language_model,
        None,
        ("comfy.ldm.hidream_o1.model.HiDreamO1Transformer",),
        {"comfy.text_encoders.hidream_o1.HiDreamO1Tokenizer": "hidream_o1"},
        takes_embeddings=False,
    ),
    ModelFamily(
        "Ernie-Image",
        by_hooks,
        None,
        ("comfy.ldm.ernie.model.ErnieImageModel",),
        {"comfy.text_encoders.ernie.ErnieTokenizer": "ministral3_3b"},
    ),
    ModelFamily(
        "LongCat-Image",
        in_joint_attention,
        queries.text_in_front,
        ("comfy.ldm.flux.model.Flux",),
        {"comfy.text_encoders.longcat_image.LongCatImageTokenizer": "qwen25_7b"},
        loader="CLIPLoader longcat_image",
        num_left_out_behind=_longcat_suffix,
        takes_embeddings=False,
        moved_by_rows=("comfy.model_base.LongCatImage",),
    ),
    ModelFamily(
        "Lens",
        attention_orders.behind_picture,
        queries.text_behind_cells,
        ("comfy.ldm.lens.model.LensTransformer2DModel",),
        {"comfy.text_encoders.gpt_oss.LensTokenizer": "gpt_oss"},
        takes_embeddings=False,
    ),
    ModelFamily(
        "JoyImage",
        attention_orders.behind_picture,
        queries.text_behind_references,
        ("comfy.ldm.joyimage.model.JoyImageTransformer3DModel",),
        {"comfy.text_encoders.joyimage.JoyImageTokenizer": "qwen3vl_8b"},
        loader="CLIPLoader joyimage",
    ),
    ModelFamily(
        "PixelDiT",
        attention_orders.before_pixels,
        None,
        ("comfy.ldm.pixeldit.model.PixDiT_T2I", "comfy.ldm.pixeldit.pid.PidNet"),
        {"comfy.text_encoders.pixeldit.PixelDiTGemma2Tokenizer": "gemma2_2b"},
    ),
    ModelFamily(
        "Ovis-Image",
        in_joint_attention,
        queries.text_in_front,
        ("comfy.ldm.flux.model.Flux",),
        {"comfy.text_encoders.ovis.OvisTokenizer": "qwen3_2b"},
        loader="CLIPLoader ovis",
    ),
    ModelFamily(
        "NewBie",
        behind_refiners,
        queries.text_in_front_padded,
        ("comfy.ldm.lumina.model.NextDiT",),
        {"comfy.text_encoders.newbie.NewBieTokenizer": "gemma"},
        takes_embeddings=False,
    ),
    ModelFamily(
        "AuraFlow",
        attention_orders.behind_registers,
        None,
        ("comfy.ldm.aura.mmdit.MMDiT",),
        {"comfy.text_encoders.aura_t5.AuraT5Tokenizer": "pile_t5xl"},
    ),
    ModelFamily(
        "Cosmos 1",
        attention_orders.in_every_second_attention,
        queries.picture_alone,
        ("comfy.ldm.cosmos.model.GeneralDIT",),
        {},
    ),
    ModelFamily(
        "Cosmos Predict 2",
        in_cross_attention,
        queries.picture_alone,
        ("comfy.ldm.cosmos.predict2.MiniTrainDIT",),
        {"comfy.text_encoders.cosmos.CosmosT5Tokenizer": "t5xxl"},
    ),
    ModelFamily(
        "Hunyuan Video",
        attention_orders.behind_token_refiner,
        None,
        ("comfy.ldm.hunyuan_video.model.HunyuanVideo",),
        {"comfy.text_encoders.hunyuan_video.HunyuanVideoTokenizer": "llama"},
        loader="DualCLIPLoader hunyuan_video",
        num_left_out_behind=_hunyuan_suffix,
        takes_embeddings=False,
    ),
    ModelFamily(
        "Hunyuan Video 1.5 and Image 2.1",
        attention_orders.behind_token_refiner,
        None,
        ("comfy.ldm.hunyuan_video.model.HunyuanVideo",),
        {
            "comfy.text_encoders.hunyuan_video.HunyuanVideo15Tokenizer": "qwen25_7b",
            "comfy.text_encoders.hunyuan_image.HunyuanImageTokenizer": "qwen25_7b",
        },
        loader="DualCLIPLoader hunyuan_video_15",
        takes_embeddings=False,
    ),
    ModelFamily(
        "Kandinsky 5",
        attention_orders.behind_text_blocks,
        None,
        ("comfy.ldm.kandinsky5.model.Kandinsky5",),
        {
            "comfy.text_encoders.kandinsky5.Kandinsky5Tokenizer": "qwen25_7b",
            "comfy.text_encoders.kandinsky5.Kandinsky5TokenizerImage": "qwen25_7b",
        },
        loader="DualCLIPLoader kandinsky5",
        takes_embeddings=False,
    ),
    ModelFamily(
        "CogVideoX",
        attention_orders.in_every_attention,
        None,
        ("comfy.ldm.cogvideo.model.CogVideoXTransformer3DModel",),
        {"comfy.text_encoders.cogvideo.CogVideoXTokenizer": "t5xxl"},
        loader="CLIPLoader cogvideox",
    ),
    ModelFamily(
        "Mochi",
        attention_orders.behind_video,
        None,
        ("comfy.ldm.genmo.joint_model.asymm_models_joint.AsymmDiTJoint",),
        {"comfy.text_encoders.genmo.MochiT5Tokenizer": "t5xxl"},
        loader="CLIPLoader mochi",
    ),
    ModelFamily(
        "PixArt",
        in_cross_attention_without_mask,
        queries.picture_alone,
        ("comfy.ldm.pixart.pixartms.PixArtMS",),
        {},  # its tokenizer is Chroma's
    ),
)
"""All families, in the order in which messages name them."""

WITHOUT_OPTIONS = "ComfyUI passes its attention neither options nor a mask"
OUT_OF_REACH = {
    "comfy.ldm.hydit.models.HunYuanDiT": WITHOUT_OPTIONS,
    "comfy.ldm.wan.ar_model.CausalWanModel": "it draws a video part by part, and ComfyUI passes it no options there",
    "comfy.ldm.cascade.stage_c.StageC": "its CLIP's own schemes weigh there, such as comfy",
}
"""Reasons why weights cannot act in a diffusion model, by its class."""

BY_TOKENIZER = {name: family for family in FAMILIES for name in family.tokenizers}
"""Families by class of the host's tokenizer."""
WEIGHERS = {name: family.weigh for family in FAMILIES for name in family.networks}
"""Methods for getting weights into the attention, by class of the diffusion model."""
SHARING = in_joint_attention, in_joint_blocks, behind_text_fusion, before_three_texts
"""Methods of joint attention in which the number of rows of text moves nothing."""
APART = (
    in_cross_attention,
    in_wan_cross_attention,
    in_masked_cross_attention,
    attention_orders.in_every_second_attention,
    in_cross_attention_without_mask,
)
"""Methods of cross attention in which entries with other prompts share a batch."""
LAYOUTS = {name: layout for family in FAMILIES if (layout := family.layout) is not None for name in family.networks}
"""Layouts of queries, by class of the diffusion model."""
CONNECTORS = {name: family.connect for family in FAMILIES for name in family.networks if family.connect is not None}
"""Functions for layers that join rows before the first step, by class of the diffusion model."""
FILLED_IN_FRONT = {name for family in FAMILIES for name in family.filled_in_front}
"""Classes of host models that pad the text's rows at the front."""
MOVED_BY_ROWS = {name for family in FAMILIES for name in family.moved_by_rows}
"""Classes of host models that a region would move."""


def text_family(clip: Clip) -> ModelFamily | None:
    """Family of a CLIP's text encoder, or None if its rows are unknown."""
    tokenizer_class = known_class(clip.tokenizer, BY_TOKENIZER)
    if tokenizer_class is None or TOKENIZE in overridden(type(clip.tokenizer), tokenizer_class):
        return None
    return BY_TOKENIZER[name_of(tokenizer_class)]


def _network_of(model: Any) -> Any:
    return getattr(model.diffusion_model, "_orig_mod", model.diffusion_model)  # compiled by torch.compile


def _name_of_network(model: Any) -> str:
    """Name of the known class that a host's model has a network of; empty if it is of none."""
    network_class = known_class(_network_of(model), WEIGHERS)
    return "" if network_class is None else name_of(network_class)


def is_known(model: Any) -> bool:
    """Whether it is known where a model of the host reads text."""
    return bool(_name_of_network(model))


def is_filled_in_front(model: Any) -> bool:
    """Whether a model of the host pads the text's rows at the front."""
    return known_class(model, FILLED_IN_FRONT) is not None


def check_regions(model: Any) -> None:
    """Refuse regions in a model of the host that is unknown, or whose picture they would move."""
    weighting_function(model)
    if known_class(model, MOVED_BY_ROWS) is not None:
        raise ValueError(
            f"{REGIONAL_PROMPT} would move the picture of this model ({type(model).__name__}), which places it by the "
            f"number of all rows of text. Write one prompt, and give its phrases places with {PLACE_PHRASE}."
        )


def reads_apart(model: Any) -> bool:
    """Whether a host's model reads text by a cross attention, in which entries with other prompts share a batch."""
    return WEIGHERS.get(_name_of_network(model)) in APART


def shares_calls(model: Any) -> bool:
    """Whether entries with regions share calls of a host's model with others.

    Not where further rows of text would be mixed with an entry's own, or move its picture. Rows that only fill up a
    text are put before it in models that place the picture behind the text, where positions count by their differences;
    but Z-Image's rows that fill up its picture have a position of their own.
    """
    weigh = WEIGHERS.get(_name_of_network(model))
    if weigh is behind_refiners:
        return queries.pad_multiple(_network_of(model)) == 1
    return reads_apart(model) or weigh in SHARING


def fills_in_front(model: Any) -> bool:
    """Whether rows that only fill up a text with fewer regions are put before it."""
    return WEIGHERS.get(_name_of_network(model)) is behind_refiners


def reads_masks(model: Any) -> bool:
    """Whether a host's model takes a mask of the text's rows."""
    return MASK in signature(_network_of(model).forward).parameters


def weighting_function(model: Any) -> WeightingFunction:
    """Method for getting weights into the attention of a host's model (``comfy.model_base.BaseModel``).

    A ValueError says that it is unknown where this model reads text.
    """
    network = _network_of(model)
    network_class = known_class(network, WEIGHERS)
    changed = "" if network_class is None else changes(network, network_class)
    if network_class is None or changed:
        out = known_class(network, OUT_OF_REACH)
        why = f": it is a {network_class.__name__} with {changed}" if network_class is not None else ""
        why = why if out is None else f": {OUT_OF_REACH[name_of(out)]}"
        raise ValueError(
            f"Attention Weights, {PLACE_PHRASE} and {REGIONAL_PROMPT} do not know where this model "
            f"({type(model).__name__}, {type(network).__name__}) reads text{why}. For this model, encode without them."
        )
    checked_object(network, name_of(network_class))
    return WEIGHERS[name_of(network_class)]


def has_layout(model: Any) -> bool:
    """Whether the layout of the queries of a host's model is known."""
    return _name_of_network(model) in LAYOUTS


def layout_of(model: Any) -> queries.Layout:
    """Layout of the queries of a host's model; a ValueError says that it is unknown."""
    if not has_layout(model):
        raise ValueError(
            f"{PLACE_PHRASE}, {REGIONAL_PROMPT} and {WATCH_WORDS} do not know where in the picture the places of this "
            f"model ({type(model).__name__}) are. Weights act in it: take out these nodes."
        )
    return LAYOUTS[_name_of_network(model)]


def connector_of(model: Any) -> Callable[[Tensor, Tensor], Tensor] | None:
    """`Connect` for the layers of a host's model that join rows before the first step, or None if it has none."""
    connect = CONNECTORS.get(_name_of_network(model))
    return None if connect is None else partial(connect, _network_of(model))
