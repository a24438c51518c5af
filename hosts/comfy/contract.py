"""Every name of ComfyUI's that this pack uses, in one place, with a clear message if a ComfyUI lacks one.

The lists were compared with each ComfyUI named in docs/compatibility.md. The tables are organised by the module that
defines a name, so that a new version can be checked against them: ``python workshop/contract.py DIR``.

Source: ComfyUI 0.3.64 and 0.29.0.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, TypeVar

Thing = TypeVar("Thing")

MODULES: Mapping[str, tuple[str, ...]] = {
    "comfy.conds": ("CONDRegular",),
    "comfy.controlnet": ("ControlBase",),
    "comfy.hooks": (
        *("EnumHookScope", "EnumHookType", "EnumWeightTarget", "HookGroup", "HookKeyframe", "HookKeyframeGroup"),
        *("TransformerOptionsHook", "WeightHook", "create_hook_lora", "set_hooks_for_conditioning"),
    ),
    "comfy.lora": ("load_lora", "model_lora_keys_clip", "model_lora_keys_unet"),
    "comfy.lora_convert": ("convert_lora",),
    "comfy.latent_formats": ("LatentFormat",),
    "comfy.k_diffusion.sampling": (
        *("sample_dpm_2", "sample_dpm_2_ancestral", "sample_dpmpp_2m", "sample_dpmpp_2m_sde"),
        *("sample_dpmpp_2s_ancestral", "sample_dpmpp_3m_sde", "sample_dpmpp_sde", "sample_euler"),
        *("sample_euler_ancestral", "sample_heun", "sample_lcm", "sample_lms"),
    ),
    "comfy.ldm.modules.attention": ("attention_pytorch", "optimized_attention"),
    "comfy.ldm.pixart.blocks": ("optimized_attention",),
    "comfy.model_base": ("Flux", "ModelType"),
    "comfy.model_management": (
        *("get_torch_device", "unet_offload_device", "vae_device", "vae_offload_device"),
        *("text_encoder_device", "text_encoder_offload_device", "intermediate_device"),
        *("VRAMState", "free_memory", "load_models_gpu", "throw_exception_if_processing_interrupted", "vram_state"),
    ),
    "comfy.model_patcher": ("ModelPatcher",),
    "comfy.ops": ("cast_to",),
    "comfy.samplers": ("KSAMPLER",),
    "comfy.sd": ("CLIP", "VAE"),
    "comfy.sd1_clip": (
        *("SD1ClipModel", "SD1Tokenizer", "SDTokenizer", "escape_important", "load_embed", "token_weights"),
        "unescape_important",
    ),
    "comfy.sdxl_clip": ("SDXLClipModel", "SDXLRefinerClipModel", "SDXLTokenizer"),
    "comfy.supported_models_base": ("BASE",),
    "comfy.text_encoders.sd2_clip": ("SD2ClipModel", "SD2Tokenizer"),
    "comfy.text_encoders.z_image": ("Qwen3_4BModel", "ZImageTokenizer", "te"),
    "comfy.utils": ("ProgressBar", "load_torch_file"),
    "comfy_api.latest": ("io",),
    "folder_paths": (
        *("get_filename_list", "get_folder_paths", "get_full_path", "get_full_path_or_raise", "get_input_directory"),
        "get_temp_directory",
    ),
    "comfy_extras.nodes_hooks": ("SetClipHooks",),
    "comfy_execution.utils": ("get_executing_context",),
    "nodes": ("LoraLoader", "NODE_CLASS_MAPPINGS"),
}
"""Names by module that `host` provides. Nothing else of ComfyUI is imported, and nothing when the pack is."""

CLIP = "comfy.sd.CLIP"
PATCHER = "comfy.model_patcher.ModelPatcher"
TOKENIZER = "comfy.sd1_clip.SDTokenizer"
TOWER = "comfy.sd1_clip.SDClipModel"

OBJECTS: Mapping[str, tuple[str, ...]] = {
    CLIP: (
        *("apply_hooks_to_conds", "clone", "cond_stage_model", "encode_from_tokens", "encode_from_tokens_scheduled"),
        *("patcher", "tokenize", "tokenizer"),
    ),
    PATCHER: (
        *("clone", "get_model_object", "model", "object_patches", "patches_uuid"),
        *("add_hook_patches", "add_patches", "add_wrapper_with_key", "remove_wrappers_with_key", "set_attachments"),
    ),
    TOKENIZER: (
        *("embedding_directory", "embedding_key", "embedding_size", "end_token", "max_length", "pad_token"),
        *("start_token", "tokenizer", "tokenizer_adds_end_token", "tokens_start"),
    ),
    TOWER: (
        *("encode", "encode_token_weights", "layer", "layer_idx", "layer_norm_hidden_state", "process_tokens"),
        *("return_projected_pooled", "transformer"),
    ),
    "comfy.clip_model.CLIPTextModel": ("get_input_embeddings", "text_model", "text_projection"),
    "comfy.clip_model.CLIPTextModel_": ("embeddings", "encoder", "final_layer_norm"),
    "comfy.conds.CONDRegular": ("_copy_with", "cond", "process_cond"),
    "comfy.controlnet.ControlBase": ("inference_memory_requirements",),
    "comfy.hooks.EnumHookScope": ("AllConditioning",),
    "comfy.hooks.HookGroup": ("add", "combine_all_hooks", "hooks", "set_keyframes_on_hooks"),
    "comfy.hooks.HookKeyframeGroup": ("add",),
    "comfy.hooks.EnumHookType": ("Weight",),
    "comfy.hooks.EnumWeightTarget": ("Clip",),
    "comfy.hooks.WeightHook": ("add_hook_patches", "clone", "hook_type", "should_register", "weights"),
    "comfy.model_management.VRAMState": ("LOW_VRAM", "NO_VRAM"),
    "comfy_extras.nodes_hooks.SetClipHooks": ("apply_hooks",),
    "comfy.model_base.BaseModel": (
        "diffusion_model",
        "extra_conds",
        "get_dtype",
        "manual_cast_dtype",
        "model_sampling",
    ),
    # the small world
    "comfy.latent_formats.LatentFormat": ("latent_channels", "latent_rgb_factors"),
    "comfy.model_base.ModelType": ("FLOW",),
    "comfy.sd.VAE": ("downscale_ratio", "first_stage_model", "latent_channels", "patcher", "upscale_ratio"),
    "comfy.supported_models_base.BASE": (
        *("get_model", "inpaint_model", "latent_format", "model_type", "sampling_settings", "set_inference_dtype"),
        *("supported_inference_dtypes", "unet_config"),
    ),
    "comfy.model_sampling.ModelSamplingDiscrete": ("log_sigmas", "percent_to_sigma", "sigmas"),
    "comfy.patcher_extension.WrapperExecutor": ("class_obj",),
    "comfy.samplers.CFGGuider": ("conds", "model_options"),
    "comfy.samplers.KSAMPLER": ("max_denoise",),
    "comfy.samplers.KSamplerX0Inpaint": ("inner_model", "latent_image", "noise"),
    "comfy.sd1_clip.SD1Tokenizer": ("tokenize_with_weights",),
    "comfy_execution.utils.ExecutionContext": ("node_id", "prompt_id"),
    "comfy.utils.ProgressBar": ("update_absolute",),
    "nodes.LoraLoader": ("load_lora",),
    "execution.PromptQueue": ("currently_running",),
    "server.PromptServer": (
        *("add_on_prompt_handler", "client_id", "instance", "prompt_queue", "routes", "send_sync"),
    ),
    # Attention Weights: attributes of each network
    "comfy.ldm.modules.diffusionmodules.openaimodel.UNetModel": (),
    "comfy.ldm.flux.model.Flux": ("patch_size",),
    "comfy.ldm.chroma.model.Chroma": ("patch_size",),
    "comfy.ldm.qwen_image.model.QwenImageTransformer2DModel": ("patch_size",),
    "comfy.ldm.lumina.model.NextDiT": ("context_refiner", "patch_size"),
    "comfy.ldm.krea2.model.SingleStreamDiT": ("patch", "txtfusion"),
    "comfy.ldm.krea2.model.TextFusionTransformer": ("layerwise_blocks", "refiner_blocks"),
    "comfy.ldm.anima.model.Anima": ("patch_spatial",),
    "comfy.ldm.wan.model.WanModel": ("blocks", "model_type", "patch_size"),
    "comfy.ldm.wan.model.VaceWanModel": ("blocks", "model_type", "patch_size"),
    "comfy.ldm.wan.model.CameraWanModel": ("blocks", "model_type", "patch_size"),
    "comfy.ldm.wan.model.HumoWanModel": ("audio_proj", "blocks", "model_type", "patch_size"),
    "comfy.ldm.wan.model.WanModel_S2V": ("blocks", "frame_packer", "model_type", "patch_size"),
    "comfy.ldm.wan.model.SCAILWanModel": ("blocks", "model_type", "patch_embedding_pose", "patch_size"),
    "comfy.ldm.wan.model.SCAIL2WanModel": ("blocks", "model_type", "patch_embedding_pose", "patch_size"),
    "comfy.ldm.wan.model_animate.AnimateWanModel": ("blocks", "model_type", "patch_size"),
    "comfy.ldm.wan.model_wandancer.WanDancerModel": ("blocks", "img_emb_refimage", "model_type", "patch_size"),
    "comfy.ldm.wan.ar_model.CausalWanModel": ("forward_block",),
    "comfy.ldm.wan.model.WanAttentionBlock": ("cross_attn",),
    "comfy.ldm.hunyuan_video.model.HunyuanVideo": (
        *("byt5_in", "cond_type_embedding", "double_blocks", "single_blocks", "txt_in"),
    ),
    "comfy.ldm.hunyuan_video.model.TokenRefiner": ("individual_token_refiner",),
    "comfy.ldm.hunyuan_video.model.IndividualTokenRefiner": ("blocks",),
    "comfy.ldm.kandinsky5.model.Kandinsky5": ("text_transformer_blocks", "visual_transformer_blocks"),
    "comfy.ldm.cogvideo.model.CogVideoXTransformer3DModel": (),
    "comfy.ldm.genmo.joint_model.asymm_models_joint.AsymmDiTJoint": (),
    "comfy.ldm.lightricks.model.LTXVModel": ("transformer_blocks",),
    "comfy.ldm.lightricks.model.BasicTransformerBlock": ("attn2",),
    "comfy.ldm.lightricks.av_model.LTXAVModel": (
        *("audio_embeddings_connector", "preprocess_text_embeds", "transformer_blocks", "video_embeddings_connector"),
    ),
    "comfy.ldm.lightricks.av_model.BasicAVTransformerBlock": ("attn2", "audio_attn2"),
    "comfy.ldm.lightricks.embeddings_connector.Embeddings1DConnector": ("transformer_1d_blocks",),
    "comfy.ldm.modules.diffusionmodules.mmdit.OpenAISignatureMMDITWrapper": (
        *("context_processor", "joint_blocks", "patch_size"),
    ),
    "comfy.ldm.hidream.model.HiDreamImageTransformer2DModel": ("patch_size",),
    "comfy.ldm.aura.mmdit.MMDiT": ("register_tokens",),
    "comfy.ldm.boogu.model.BooguTransformer2DModel": (
        *("context_refiner", "double_stream_layers", "noise_refiner", "ref_image_refiner", "single_stream_layers"),
        "patch_size",
    ),
    "comfy.ldm.chroma_radiance.model.ChromaRadiance": ("patch_size",),
    "comfy.ldm.cascade.stage_c.StageC": (),
    "comfy.ldm.cosmos.model.GeneralDIT": ("blocks", "patch_spatial"),
    "comfy.ldm.cosmos.predict2.MiniTrainDIT": ("patch_spatial",),
    "comfy.ldm.ernie.model.ErnieImageModel": ("layers",),
    "comfy.ldm.ernie.model.ErnieImageSharedAdaLNBlock": ("self_attention",),
    "comfy.ldm.ernie.model.ErnieImageAttention": ("heads", "to_v"),
    "comfy.ldm.hidream_o1.model.HiDreamO1Transformer": (),
    "comfy.ldm.hydit.models.HunYuanDiT": (),
    "comfy.ldm.ideogram4.model.Ideogram4Transformer2DModel": (),
    "comfy.ldm.joyimage.model.JoyImageTransformer3DModel": ("patch_size",),
    "comfy.ldm.lens.model.LensTransformer2DModel": (),
    "comfy.ldm.lumina.model.NextDiTPixelSpace": ("context_refiner", "patch_size"),
    "comfy.ldm.mage_flow.model.MageFlowTransformer2DModel": ("patch_size",),
    "comfy.ldm.omnigen.omnigen2.OmniGen2Transformer2DModel": (
        *("context_refiner", "layers", "noise_refiner", "patch_size", "ref_image_refiner"),
    ),
    "comfy.ldm.pixart.pixartms.PixArtMS": ("blocks", "patch_size"),
    "comfy.ldm.pixart.pixartms.PixArtMSBlock": ("cross_attn",),
    "comfy.ldm.pixart.blocks.MultiHeadCrossAttention": ("kv_linear", "num_heads", "proj", "q_linear"),
    "comfy.ldm.pixeldit.model.PixDiT_T2I": ("patch_blocks", "txt_max_length"),
    "comfy.ldm.pixeldit.pid.PidNet": ("patch_blocks", "txt_max_length"),
    "comfy.model_base.Flux2": (),
    "comfy.model_base.LongCatImage": (),
    "comfy_api.latest._io.NodeReplace": (),
    # text encoders other than CLIP, by class of their tokenizer or model
    "comfy.text_encoders.flux.FluxTokenizer": (),
    "comfy.text_encoders.flux.KleinTokenizer": (),
    "comfy.text_encoders.flux.KleinTokenizer8B": (),
    "comfy.text_encoders.flux.Flux2Tokenizer": (),
    "comfy.text_encoders.pixart_t5.PixArtTokenizer": (),
    "comfy.text_encoders.qwen_image.QwenImageTokenizer": ("llama_template",),
    "comfy.text_encoders.z_image.ZImageTokenizer": ("llama_template",),
    "comfy.text_encoders.krea2.Krea2Tokenizer": ("llama_template",),
    "comfy.text_encoders.anima.AnimaTokenizer": (),
    "comfy.text_encoders.wan.WanT5Tokenizer": (),
    "comfy.text_encoders.hunyuan_video.HunyuanVideoTokenizer": ("llama_template",),
    "comfy.text_encoders.hunyuan_video.HunyuanVideo15Tokenizer": ("llama_template",),
    "comfy.text_encoders.hunyuan_image.HunyuanImageTokenizer": ("llama_template",),
    "comfy.text_encoders.kandinsky5.Kandinsky5Tokenizer": ("llama_template",),
    "comfy.text_encoders.kandinsky5.Kandinsky5TokenizerImage": ("llama_template",),
    "comfy.text_encoders.cogvideo.CogVideoXTokenizer": (),
    "comfy.text_encoders.genmo.MochiT5Tokenizer": (),
    "comfy.text_encoders.lt.LTXVT5Tokenizer": (),
    "comfy.text_encoders.lt.LTXAVGemmaTokenizer": (),
    "comfy.text_encoders.sd3_clip.SD3Tokenizer": (),
    "comfy.text_encoders.sd3_clip.SD3ClipModel": ("clip_g", "clip_l", "t5xxl"),
    "comfy.text_encoders.lumina2.LuminaTokenizer": (),
    "comfy.text_encoders.hidream.HiDreamTokenizer": (),
    "comfy.text_encoders.aura_t5.AuraT5Tokenizer": (),
    "comfy.text_encoders.boogu.BooguTokenizer": ("llama_template",),
    "comfy.text_encoders.cosmos.CosmosT5Tokenizer": (),
    "comfy.text_encoders.ernie.ErnieTokenizer": (),
    "comfy.text_encoders.gpt_oss.LensTokenizer": (),
    "comfy.text_encoders.hidream_o1.HiDreamO1Tokenizer": (),
    "comfy.text_encoders.ideogram4.Ideogram4Tokenizer": ("llama_template",),
    "comfy.text_encoders.ideogram4.Ideogram4Qwen3VLTokenizer": ("llama_template",),
    "comfy.text_encoders.joyimage.JoyImageTokenizer": ("llama_template",),
    "comfy.text_encoders.longcat_image.LongCatImageTokenizer": (),
    "comfy.text_encoders.lumina2.NTokenizer": (),
    "comfy.text_encoders.mage_flow.MageFlowTokenizer": ("llama_template",),
    "comfy.text_encoders.newbie.NewBieTokenizer": (),
    "comfy.text_encoders.omnigen2.Omnigen2Tokenizer": ("llama_template",),
    "comfy.text_encoders.ovis.OvisTokenizer": ("llama_template",),
    "comfy.text_encoders.pixeldit.PixelDiTGemma2Tokenizer": (),
    "comfy.text_encoders.spiece_tokenizer.SPieceTokenizer": ("serialize_model", "tokenizer"),
    "comfy.text_encoders.hidream.HiDreamTEModel": ("llama", "t5xxl"),
    "comfy.sdxl_clip.StableCascadeClipModel": (),
    "comfy.sdxl_clip.SDXLClipG": (  # towers of the native encoder
        *("layer", "layer_idx", "layer_norm_hidden_state", "num_layers", "options_default", "return_projected_pooled"),
        *("special_tokens", "transformer"),
    ),
}
"""Attributes and methods used of objects, by class."""

OPTIONAL: Mapping[str, tuple[str, ...]] = {
    PATCHER: ("current_hooks", "forced_hooks", "get_attachment", "injections", "load_device"),
    TOKENIZER: ("disable_weights", "pad_left", "tokenize_with_weights"),
    TOWER: ("execution_device",),
    "comfy.sd1_clip.SD1ClipModel": ("disable_offload",),
    "comfy.model_base.BaseModel": ("model_config",),
    "comfy.latent_formats.LatentFormat": ("spacial_downscale_ratio", "temporal_downscale_ratio"),
    "comfy.samplers.KSAMPLER": ("sampler_function", "extra_options"),
    "comfy.ldm.lumina.model.NextDiT": ("pad_tokens_multiple",),
    "comfy.ldm.wan.model.WanModel": ("ref_conv",),
    "nodes.LoraLoader": ("NOT_IDEMPOTENT",),  # of any class of nodes
    "server.PromptServer": ("node_replace_manager",),
    "app.node_replace_manager.NodeReplaceManager": ("register",),
}
"""The same for names that are optional."""

KEYS: Mapping[str, tuple[str, ...]] = {
    "comfy.patcher_extension": (
        *("apply_model", "calc_cond_batch", "outer_sample", "prepare_sampling", "sampler_sample"),
    ),
    "comfy.ldm.modules.attention": (
        "activations_shape",
        "block",
        "attn1_patch",
        "attn2",
        "attn2_patch",
        "optimized_attention_override",
    ),
    "comfy.ldm.flux.model": ("block_type", "double", "post_input", "reference_image_num_tokens", "single"),
    "comfy.ldm.lightricks.model": ("attention_mask",),
    "comfy.ldm.lightricks.av_model": ("attention_mask", "v_context"),
    "comfy.ldm.modules.diffusionmodules.mmdit": ("dit", "double_block", "original_block", "patches_replace", "txt"),
    "comfy.samplers": ("model_conds", "sample_sigmas", "transformer_options", "uuid", "uuids"),
    "comfy.context_windows": ("context_window",),
    "comfy.model_base": (
        *("attention_mask", "c_crossattn", "cross_attn", "denoise_mask", "encoder_hidden_states_llama3"),
        *("clip_fea", "keyframe_idxs", "num_tokens", "ref_latents", "t5xxl_ids", "t5xxl_weights", "txt_byt5"),
        "unprocessed_ltxav_embeds",
    ),
}
"""Keys of dictionaries that are used, by module."""


class HostError(RuntimeError):
    """Raised if this ComfyUI lacks something that the pack uses; the message names it."""


def host_version() -> str:
    """Version of the running ComfyUI, as stated by itself."""
    return getattr(sys.modules.get("comfyui_version"), "__version__", "of an unknown version")


def running_server() -> Any | None:
    """The host's server, if it has loaded one; nothing is imported for it."""
    return getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)


def host(module: str) -> Any:
    """A module of ComfyUI, restricted to the names in `MODULES`.

    Args:
        module: Its name.

    Returns:
        A proxy with the module's attributes.

    Raises:
        HostError: If there is no such module; on access, if the module lacks an attribute.
    """
    names = MODULES[module]
    try:
        imported = import_module(module)
    except ImportError as error:
        raise _missing(module, f"it cannot be imported: {error}") from error
    return _HostModule(module, imported, names)


class _HostModule:
    """Names of a module that are in the contract."""

    def __init__(self, name: str, module: Any, names: tuple[str, ...]) -> None:
        self._name, self._module, self._names = name, module, names

    def __getattr__(self, name: str) -> Any:
        if name not in self._names:
            raise AttributeError(f"{self._name}.{name} is not in hosts/comfy/contract.py")
        try:
            return getattr(self._module, name)
        except AttributeError as error:
            raise _missing(f"{self._name}.{name}") from error


def checked_object(thing: Thing, kind: str, *names: str) -> Thing:
    """Return an object of the host if it has the attributes used; otherwise raise `HostError`.

    Without names, all that `OBJECTS` has for its class ``kind`` are looked for.
    """
    absent = [name for name in names or OBJECTS[kind] if not hasattr(thing, name)]
    if absent:
        raise _missing(f"{', '.join(absent)} of {kind}", f"its {type(thing).__name__} is without")
    return thing


def _missing(what: str, why: str = "") -> HostError:
    reason = f" ({why})" if why else ""
    return HostError(
        f"Weighted CLIP does not fit this ComfyUI ({host_version()}): it has no {what}{reason}. Update whichever of "
        "the two is older; docs/compatibility.md says which versions were tried."
    )
