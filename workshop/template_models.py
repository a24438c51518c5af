"""Models that ComfyUI's templates load: which text encoder and which diffusion model of the host a pair of files is.

A text encoder is known by its loader, with the files and the type that it is set to, a diffusion model by its file. The
classes are those that ComfyUI 0.29 makes of them (``load_text_encoder_state_dicts``, ``model_base``).
"""

from __future__ import annotations

import re
from typing import NamedTuple

WAN_T5, WAN = "wan.WanT5Tokenizer", "wan.model.WanModel"
QWEN_IMAGE, QWEN_IMAGE_DIT = "qwen_image.QwenImageTokenizer", "qwen_image.model.QwenImageTransformer2DModel"
HUNYUAN = "hunyuan_video.model.HunyuanVideo"
UNET = "modules.diffusionmodules.openaimodel.UNetModel"
CLIP = ""
"""In place of a tokenizer: CLIP text towers alone."""


class Entry(NamedTuple):
    """A text encoder with a diffusion model."""

    title: str
    """Name of the model."""
    text_encoder: str
    """Pattern of the loader's class, files and type; empty: a checkpoint, whose file is the diffusion model's."""
    file: str
    """Pattern of the beginning of the diffusion model's file, without capitals."""
    tokenizer: str = ""
    """Class of the text encoder's tokenizer, below ``comfy.text_encoders``; `CLIP` for CLIP text towers alone."""
    network: str = ""
    """Class of the diffusion model, below ``comfy.ldm``."""
    never: str = ""
    """Reason why no weight can act, whatever families are known."""


NEWER = "newer than ComfyUI 0.29"

MODELS = (
    Entry("Stable Diffusion 1", "", "v1-5|dreamshaper_8", CLIP, UNET),
    Entry("SDXL", "", "sd_xl_", CLIP, UNET),
    Entry(
        "Stable Diffusion 3.5",
        "",
        "sd3.5",
        "sd3_clip.SD3Tokenizer",
        "modules.diffusionmodules.mmdit.OpenAISignatureMMDITWrapper",
    ),
    Entry("Flux 1", "", "flux1-(dev|schnell)", "flux.FluxTokenizer", "flux.model.Flux"),
    Entry("Flux 1", "dual.* flux", "flux.?1", "flux.FluxTokenizer", "flux.model.Flux"),
    Entry("Flux 2", "cliploader mistral_3.* flux2", "flux2", "flux.Flux2Tokenizer", "flux.model.Flux"),
    Entry("Flux 2 Klein", "cliploader qwen_3_4b.* flux2", "flux-2-klein", "flux.KleinTokenizer", "flux.model.Flux"),
    Entry("Flux 2 Klein", "cliploader qwen_3_8b.* flux2", "flux-2-klein", "flux.KleinTokenizer8B", "flux.model.Flux"),
    Entry("Chroma", "cliploader t5xxl.* chroma", "chroma1", "pixart_t5.PixArtTokenizer", "chroma.model.Chroma"),
    Entry(
        "Chroma Radiance",
        "cliploader t5xxl.* chroma",
        "chroma-radiance",
        "pixart_t5.PixArtTokenizer",
        "chroma_radiance.model.ChromaRadiance",
    ),
    Entry(
        "Qwen-Image",
        "cliploader qwen_2.5_vl_7b.* qwen_image",
        "qwen_image_(2512|fp8|layered)",
        QWEN_IMAGE,
        QWEN_IMAGE_DIT,
    ),
    Entry(
        "Qwen-Image-Edit",
        "cliploader qwen_2.5_vl_7b.* qwen_image",
        "qwen_image_edit|firered-image-edit",
        QWEN_IMAGE,
        QWEN_IMAGE_DIT,
    ),
    Entry(
        "Z-Image",
        "cliploader qwen_3_4b.* lumina2",
        "z_image_(turbo_)?(bf16|int8)",
        "z_image.ZImageTokenizer",
        "lumina.model.NextDiT",
    ),
    Entry("Krea 2", "cliploader qwen3vl_4b.* krea2", "krea2", "krea2.Krea2Tokenizer", "krea2.model.SingleStreamDiT"),
    Entry("Anima", "cliploader qwen_3_06b.* stable_diffusion", "anima-", "anima.AnimaTokenizer", "anima.model.Anima"),
    Entry("Lumina 2", "", "netayume", "lumina2.LuminaTokenizer", "lumina.model.NextDiT"),
    Entry(
        "HiDream",
        "quadruple.*",
        "hidream_[ie]1",
        "hidream.HiDreamTokenizer",
        "hidream.model.HiDreamImageTransformer2DModel",
    ),
    Entry("HiDream-O1", "", "hidream_o1", "hidream_o1.HiDreamO1Tokenizer", "hidream_o1.model.HiDreamO1Transformer"),
    Entry("LTX-Video", "cliploader t5xxl.* ltxv", "ltx-video-2b", "lt.LTXVT5Tokenizer", "lightricks.model.LTXVModel"),
    Entry(
        "LTX-2", "ltxav.* gemma_3_12b.*", r"ltx-2(\.3)?-", "lt.LTXAVGemmaTokenizer", "lightricks.av_model.LTXAVModel"
    ),
    Entry("Wan VACE", "cliploader umt5.* wan", r"wan2\.1_vace", WAN_T5, "wan.model.VaceWanModel"),
    Entry("Wan Fun Camera", "cliploader umt5.* wan", r"wan2\.[12]_fun_camera", WAN_T5, "wan.model.CameraWanModel"),
    Entry("Wan", "cliploader umt5.* wan", r"wan2[._][12]_(fun_(control|inp)|flf2v|i2v|t2v|ti2v|bernini)", WAN_T5, WAN),
    Entry("Wan", "cliploader umt5.* wan", "wan21-wanmove|wan2_1-i2v|chrono_edit", WAN_T5, WAN),
    Entry("Wan Causal Forcing", "cliploader umt5.* wan", "causal_forcing", WAN_T5, "wan.ar_model.CausalWanModel"),
    Entry("Wan HuMo", "cliploader umt5.* wan", "humo_", WAN_T5, "wan.model.HumoWanModel"),
    Entry("Wan SCAIL 2", "cliploader umt5.* wan", r"wan2\.1_14b_scail_2", WAN_T5, "wan.model.SCAIL2WanModel"),
    Entry("Wan S2V", "cliploader umt5.* wan", r"wan2\.2_s2v", WAN_T5, "wan.model.WanModel_S2V"),
    Entry("Wan Dancer", "cliploader umt5.* wan", r"wan2\.2_dancer", WAN_T5, "wan.model_wandancer.WanDancerModel"),
    Entry("Hunyuan Video", "dual.* hunyuan_video", "hunyuan_video_t2v", "hunyuan_video.HunyuanVideoTokenizer", HUNYUAN),
    Entry(
        "Hunyuan Video 1.5",
        "dual.* hunyuan_video_15",
        r"hunyuanvideo1\.5|capybara",
        "hunyuan_video.HunyuanVideo15Tokenizer",
        HUNYUAN,
    ),
    Entry(
        "Kandinsky 5",
        "dual.* kandinsky5",
        "kandinsky5lite_[it]2v",
        "kandinsky5.Kandinsky5Tokenizer",
        "kandinsky5.model.Kandinsky5",
    ),
    Entry(
        "Kandinsky 5",
        "dual.* kandinsky5_image",
        "kandinsky5lite_t2i",
        "kandinsky5.Kandinsky5TokenizerImage",
        "kandinsky5.model.Kandinsky5",
    ),
    Entry(
        "Ideogram 4",
        "cliploader qwen3vl_8b.* ideogram4",
        "ideogram4",
        "ideogram4.Ideogram4Qwen3VLTokenizer",
        "ideogram4.model.Ideogram4Transformer2DModel",
    ),
    Entry(
        "OmniGen 2",
        "cliploader qwen_2.5_vl_fp16.* omnigen2",
        "omnigen2",
        "omnigen2.Omnigen2Tokenizer",
        "omnigen.omnigen2.OmniGen2Transformer2DModel",
    ),
    Entry(
        "Boogu",
        "cliploader qwen3vl_8b.* boogu",
        "boogu_image",
        "boogu.BooguTokenizer",
        "boogu.model.BooguTransformer2DModel",
    ),
    Entry(
        "Mage-Flow",
        "cliploader qwen3vl_4b.* mage",
        "mage_flow",
        "mage_flow.MageFlowTokenizer",
        "mage_flow.model.MageFlowTransformer2DModel",
    ),
    Entry(
        "JoyImage",
        "cliploader qwen3vl_8b.* joyimage",
        "joyai_image",
        "joyimage.JoyImageTokenizer",
        "joyimage.model.JoyImageTransformer3DModel",
    ),
    Entry(
        "LongCat-Image",
        "cliploader qwen_2.5_vl_7b.* longcat_image",
        "longcat_image",
        "longcat_image.LongCatImageTokenizer",
        "flux.model.Flux",
    ),
    Entry("Lens", "cliploader gpt_oss.* lens", "lens_", "gpt_oss.LensTokenizer", "lens.model.LensTransformer2DModel"),
    Entry(
        "PixelDiT",
        "cliploader gemma_2_2b.* pixeldit",
        "pixeldit",
        "pixeldit.PixelDiTGemma2Tokenizer",
        "pixeldit.model.PixDiT_T2I",
    ),
    Entry("PiD", "cliploader gemma_2_2b.* pixeldit", "pid_", "pixeldit.PixelDiTGemma2Tokenizer", "pixeldit.pid.PidNet"),
    Entry("Ovis", "cliploader ovis.* ovis", "ovis_image", "ovis.OvisTokenizer", "flux.model.Flux"),
    Entry(
        "ERNIE-Image",
        "cliploader ministral-3-3b.* flux2",
        "ernie-image",
        "ernie.ErnieTokenizer",
        "ernie.model.ErnieImageModel",
    ),
    Entry("NewBie", "dual.* newbie", "newbie-image", "newbie.NewBieTokenizer", "lumina.model.NextDiT"),
    Entry(
        "CogVideoX",
        "cliploader t5xxl.* cogvideox",
        "void_pass",
        "cogvideo.CogVideoXTokenizer",
        "cogvideo.model.CogVideoXTransformer3DModel",
    ),
    Entry(
        "Stable Audio",
        "cliploader t5-base.* stable_audio",
        "stable-audio-open",
        "sa_t5.SAT5Tokenizer",
        "audio.dit.AudioDiffusionTransformer",
    ),
    Entry(
        "Stable Audio 3",
        "cliploader t5gemma.* stable_audio",
        "stable_audio_3",
        "sa3.SAT5GemmaTokenizer",
        "audio.dit.AudioDiffusionTransformer",
    ),
    Entry("SAM 3", "", "sam3", never="finds things by words, and draws nothing"),
    Entry("Wan Animate 2", "cliploader umt5.* wan", "wan_animate_2", never=NEWER),
    Entry("LTX-2.5", "cliploader gemma4.* ltxv", r"ltx-2\.5", never=NEWER),
    Entry("Flux 3 Klein", "cliploader .* flux3", "flux3", never=NEWER),
    Entry("Qwen-Image 2.1", "cliploader qwen3vl_8b.* qwen_image", r"qwen_image_2\.1", never=NEWER),
    Entry("Ming-Image", "cliploader ming_image.*", "ming_image", never=NEWER),
    Entry("MOSS-Image", "cliploader .* moss_image", "moss_image", never=NEWER),
    Entry("FIBO 2", "cliploader .* fibo2", "fibo2", never=NEWER),
    Entry("MiniMax", "cliploader .* minimax", "minimax", never=NEWER),
)
"""All that are known; the first that fits counts."""


def model_of(text_encoder: str, file: str) -> Entry | None:
    """The model that a text encoder and a diffusion model's file make, or None if they are not known.

    >>> model_of("CLIPLoader umt5_xxl_fp16.safetensors wan", "wan2.1_vace_14B_fp16.safetensors").title
    'Wan VACE'
    >>> model_of("CheckpointLoaderSimple sd_xl_base_1.0.safetensors", "sd_xl_base_1.0.safetensors").title
    'SDXL'
    """
    for model in MODELS:
        expected = model.text_encoder or f"checkpointloader.* {re.escape(file.lower())}"
        if re.match(model.file, file.lower()) and re.fullmatch(expected, text_encoder.lower()):
            return model
    return None
