"""Our nodes with ComfyUI's own objects in hand, in a process of its Python; see inprocess.py."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from weighted_clip.workshop.find_hosts import Host

from .comfy_server import PACK_FOLDER, link_folder, pack_folder, run_script
from .parity import Figures

pytestmark = pytest.mark.host

NAMES = (
    *("harmless", "checks", "memory", "models", "native", "long", "masks", "padding", "repeat", "loras", "timed"),
    *("levels", "remember", "attention", "attention_joint", "attention_cross", "attention_several", "attention_beside"),
    *("beyond", "bind", "difference", "world"),
)
SCRIPTS = tuple(Path(__file__).with_name(f"inprocess_{name}.py") for name in NAMES)
CHECKS = [
    pytest.param(script, check, id=check)
    for script in SCRIPTS
    for check in re.findall(r"^def (check_\w+)", script.read_text(encoding="utf-8"), re.MULTILINE)
]
PACKS = {
    "kjnodes": "ComfyUI-KJNodes",
    "beside_ppm": "ComfyUI-ppm",
    "beside_prompt_control": "comfyui-prompt-control",
    "beside_forge_couple": "sd-forge-couple",
}
"""Other pack that a check needs, by the end of its name."""
SUBJECTS = {
    "check_every_clip_family_equals_stock": "SD1, SD2 and SDXL, small, clip skip 1 to 3, with stock",
    "check_half_precision_weights_equal_stock": "SDXL, small, weights in fp16 and bf16, with stock",
    "check_the_clip_that_came_in_is_untouched": "Stock on a small CLIP that our nodes used, with before",
    "check_an_exception_while_encoding_leaves_the_host_clean": "Stock and ours after an error in encoding, with before",
    "check_another_packs_patch_stays_on_its_own_clip": "Ours on a small CLIP that another pack patched, with unpatched",
    "check_sdxl_with_two_texts_equals_stock": "SDXL node, small, two texts, clip skip 1 to 3, with stock",
    "check_sdxl_with_a_lora_equals_stock": "SDXL node, small, with a LoRA on both encoders, with stock",
    "check_the_a1111_node_on_sdxl_gives_what_its_choices_give": "A1111 Prompt on SDXL, small, with Text Encode's a1111",
    "check_the_sdxl_node_on_the_refiner_equals_stock": "SDXL's refiner, small, clip skip 1 to 3, with stock",
    "check_clips_with_t5_equal_stock": "Flux and SD3, small, with T5 and without, with stock",
    "check_the_hosts_unet_gives_the_small_worlds_numbers": "U-Net of the small world, random weights, with the host's",
    "check_an_embedding_for_both_towers_of_sdxl_equals_stock": "SDXL, small, embedding for both encoders, with stock",
    "check_an_embedding_of_another_width_is_named_and_left_out": "SDXL, small, embedding of a wrong width, with stock",
    "check_the_native_encoder_of_sd1_equals_stock": "Native encoder, SD1, small, clip skip 1 to 3, with stock",
    "check_the_native_encoder_of_sd2_equals_stock": "Native encoder, SD2, small, clip skip 1 to 3, with stock",
    "check_the_native_encoder_of_sdxl_equals_stock": "Native encoder, SDXL, small, clip skip 1 to 3, with stock",
    "check_the_native_encoder_of_the_refiner_equals_stock": "Native encoder, SDXL's refiner, small, with stock",
    "check_the_native_encoder_in_the_sdxl_node_equals_the_hosts": "Native encoder in the SDXL node, with the host's",
    "check_the_native_encoder_in_the_refiners_node_equals_the_hosts": "Native encoder, refiner, with the host's",
    "check_the_native_encoder_takes_the_hosts_embeddings": "Native encoder, SDXL, small, embedding, with stock",
    "check_long_clip_equals_stock": "Long-CLIP in SD1, in SDXL and in SD3 without T5, small, with stock",
    "check_long_clip_beside_t5_equals_stock": "Long-CLIP in Flux and SD3, small, with stock",
    "check_the_sdxl_node_with_long_clip_equals_stock": "SDXL node, small, with a Long-CLIP, two texts, with stock",
    "check_an_embedding_longer_in_one_tower_equals_stock": "SDXL, small, embedding longer in one encoder, with stock",
    "check_the_native_encoder_of_long_clip_equals_stock": "Native encoder, Long-CLIP in SD1 and SDXL, with stock",
    "check_the_native_long_clip_in_the_sdxl_node_equals_stock": "Native encoder, Long-CLIP, SDXL node, with stock",
    "check_the_native_long_clip_equals_the_hosts_in_every_scheme_and_padding": (
        "Native encoder, Long-CLIP in SDXL, every scheme and padding, with the host's"
    ),
    "check_a_stretched_clip_gives_the_native_encoders_rows": "Native encoder, stretched CLIP-L, small, with stock",
    "check_each_step_uses_its_texts": "Timed prompts, every scheduler: each denoiser call, with its text alone",
    "check_each_step_of_a_part_of_the_way_uses_its_texts": "Timed prompts, second half of the steps, likewise",
    "check_the_prompts_of_the_case_file_step_by_step": "Timed prompts, 100 with the WebUI's own texts, likewise",
    "check_samplers_of_second_order_find_the_texts_of_their_step": "Timed prompts, samplers of second order, likewise",
    "check_without_sigmas_even_steps_use_their_texts": "Timed prompts, no SIGMAS, even schedulers, likewise",
    "check_with_the_model_each_of_its_steps_uses_its_text": "Timed prompts, noise levels of other models, likewise",
    "check_on_a_partly_loaded_clip_ours_equals_stock": "Partly loaded CLIP, SD1 and SDXL, small, LoRA, with stock",
    "check_a_partly_loaded_clip_gives_what_a_whole_one_gives": "Ours on a partly loaded CLIP, with wholly loaded",
    "check_nodes_that_share_a_clip_give_what_each_gives_alone": "Ours on a CLIP that nodes share, with alone",
    "check_stock_between_our_nodes_stays_what_it_is": "Stock and ours in turn on one CLIP, small, with each alone",
    "check_mask_control_that_hides_nothing_equals_stock": "Mask Control with nothing hidden, small, with stock",
    "check_hidden_phrases_equal_the_native_encoder": "Mask Control, hidden phrases, small, with the native encoder",
    "check_rows_before_a_hidden_phrase_keep_their_bits": "Mask Control, rows before the hidden phrase, with stock",
    "check_without_causality_the_host_equals_the_native_encoder": "Causality off, small, with the native encoder",
    "check_dropped_rows_are_the_others_bit_for_bit": "Padding dropped, small: rows that stay, with attended",
    "check_the_towers_of_sdxl_drop_the_same_rows": "Padding dropped, SDXL node, two texts: rows that stay, likewise",
    "check_clean_rows_are_those_of_stocks_empty_prompt_bit_for_bit": "Padding clean, small: words, padding, with stock",
    "check_dropped_rows_equal_masked_keys_in_a_layer_of_full_size": "Dropped rows in cross attention, with masked keys",
    "check_dropped_rows_equal_masked_keys_in_one_call_of_the_unet": "Dropped rows, a call of a U-Net, with masked keys",
    "check_dropped_rows_equal_masked_keys_through_the_sampler": (
        "Dropped rows, KSampler with a small U-Net, with masked keys, relative to the largest"
    ),
    "check_repeated_rows_equal_a_bias_in_one_call_of_the_unet": "Scheme repeat, a call of a U-Net, with ln w as a bias",
    "check_pictures_with_repeated_rows_are_those_of_a_bias": (
        "Scheme repeat, KSampler and a small autoencoder, 8-bit values off from those with ln w as a bias, at most"
    ),
    "check_repeated_rows_equal_a_bias_through_the_sampler": (
        "Scheme repeat, KSampler with a small U-Net, with ln w as a bias, relative to the largest"
    ),
    "check_rows_of_weight_one_and_zero_are_the_unweighted_ones_bit_for_bit": (
        "Scheme repeat, small: weights 1 and 0, padding drop and clean, with unweighted"
    ),
    "check_lora_tags_equal_stock_loaders_on_model_and_clip": "LoRA tags: CLIP and model, small, with stock loaders",
    "check_a_clip_that_remembers_gives_what_it_gives_without": "Remember Encodings, small: ours, with no memory",
    "check_stock_on_a_clip_that_remembers_is_stock": "Stock on a CLIP that remembers, SDXL, small, with before",
    "check_nothing_old_is_given_after_a_change": "Remember Encodings: LoRA, clip skip, new weights, with no memory",
    "check_hooks_on_a_clip_that_remembers_change_its_weights": "Remember Encodings: CLIP hooks, with no memory",
    "check_timed_texts_are_encoded_together": "Remember Encodings: a timed prompt in one batch, with one by one",
    "check_weight_one_gives_the_stock_conditioning_and_model": "Weigh Attention at weight 1, small, with stock",
    "check_weighed_attention_equals_one_written_out": (
        "Weigh Attention on SD1, SD2 and SDXL, small, KSampler, with a softmax written out, relative to the largest"
    ),
    "check_strength_takes_weights_part_of_the_way": "Weigh Attention, strength 0.5, likewise",
    "check_weights_stay_with_their_entry_in_areas_masks_and_time": (
        "Weigh Attention in areas, masks, two conditionings and time ranges, likewise"
    ),
    "check_batches_and_texts_of_other_lengths_are_weighed_alike": "Weigh Attention, batches, long prompts, likewise",
    "check_anothers_function_around_the_attention_is_called_as_well": (
        "Weigh Attention with another pack's attention, likewise"
    ),
    "check_lora_hooks_and_weights_act_together": "Weigh Attention with LoRA hooks, likewise",
    "check_a_compiled_model_is_weighed_as_well": "Weigh Attention in a compiled model, likewise",
    "check_weights_act_beside_nodes_of_the_host_that_change_attention": "Weigh Attention with PAG, SAG, ToMe, likewise",
    "check_rows_of_zeros_have_no_weights": "Weigh Attention, then Zero Out, seven families, small, with stock zeroed",
    "check_weights_act_at_cfg_1_and_in_tiles": "Weigh Attention at CFG 1, whole and in tiles, likewise",
    "check_two_nodes_on_one_model_both_act": "Weigh Attention twice, positive and negative, likewise",
    "check_joint_families_at_weight_one_are_stock": (
        "Weigh Attention at weight 1, Flux, Chroma, Qwen-Image and Z-Image, small, with stock"
    ),
    "check_weighed_joint_attention_equals_one_written_out": (
        "Weigh Attention on Flux, Chroma, Qwen-Image and Z-Image, small, KSampler, with a softmax written out, likewise"
    ),
    "check_refiners_of_equal_shapes_are_told_apart": "The same on Z-Image with as many rows as patches, likewise",
    "check_joint_weights_stay_with_their_entry": (
        "The same in masks, two conditionings, time ranges and batches, likewise"
    ),
    "check_joint_weights_and_lora_hooks_act_together": "The same with LoRA hooks, likewise",
    "check_compiled_joint_families_are_weighed_as_well": "The same in compiled models, likewise",
    "check_a_cache_that_answers_for_steps_is_let_be": "The same on Flux with EasyCache, likewise",
    "check_encoders_that_weigh_rows_equal_stock": "T5 alone, Chroma's and SD3's, small, with stock",
    "check_other_syntaxes_are_weighed_like_the_same_weights_in_comfys": (
        "T5 alone, prompts in A1111's and compel's syntax, with stock and the same weights in its own"
    ),
    "check_encoders_that_read_weights_as_text_get_the_prompt_without_them": (
        "Qwen-Image's Qwen, and Z-Image's where it is there, small, with stock and the prompt without its syntax"
    ),
    "check_rows_of_embeddings_are_counted_and_weighed": (
        "Weigh Attention on Flux, small, with embeddings for T5, with a softmax written out, relative to the largest"
    ),
    "check_embeddings_in_t5_alone_equal_stock": "Chroma's T5, small, with embeddings, with stock",
    "check_prompts_that_change_are_encoded_text_by_text": "T5 and Qwen, timed prompts, with stock and each text",
    "check_unknown_encoders_are_left_to_comfyui": "Mochi's T5, and Ovis's Qwen where it is there, small, with stock",
    "check_cross_families_at_weight_one_are_stock": (
        "Weigh Attention at weight 1, Krea 2, Anima and Wan, small, with stock"
    ),
    "check_weighed_cross_families_equal_one_written_out": (
        "Weigh Attention on Krea 2, Anima and Wan (text, image, VACE and Camera to video), small, KSampler, with a "
        "softmax written out, likewise"
    ),
    "check_an_image_to_be_moved_is_read_without_weights": "The same on Wan with an image that CLIP saw, likewise",
    "check_reference_images_behind_the_text_are_none_of_it": "The same on Krea 2 with a reference image, likewise",
    "check_cross_weights_stay_with_their_entry": (
        "Krea 2, Anima and Wan in masks, two conditionings, time ranges and batches, likewise"
    ),
    "check_each_window_of_a_long_video_is_weighed": "Wan in context windows, likewise",
    "check_cross_weights_and_lora_hooks_act_together": "Krea 2, Anima and Wan with LoRA hooks, likewise",
    "check_two_nodes_and_anothers_attention_all_act": (
        "Krea 2, Anima and Wan, positive and negative weighed, with another pack's attention, likewise"
    ),
    "check_compiled_cross_families_are_weighed_as_well": "Krea 2, Anima and Wan compiled, likewise",
    "check_krea2_equals_the_node_of_kjnodes": (
        "Weigh Attention at krea2 on Krea 2, small, one pass, with Krea2PromptWeight of ComfyUI-KJNodes, likewise"
    ),
    "check_other_families_at_weight_one_are_stock": (
        "Weigh Attention at weight 1, SD3, Lumina 2, Flux 2 and HiDream, small, with stock"
    ),
    "check_weights_in_other_families_equal_ones_written_out": (
        "Weigh Attention on SD3, SD3.5, Lumina 2, Flux 2 and HiDream, small, KSampler, with a softmax written out, "
        "likewise"
    ),
    "check_weights_in_other_families_stay_with_their_entry": (
        "The same in areas, masks, two conditionings, time ranges and batches, likewise"
    ),
    "check_blocks_that_another_pack_leaves_out_do_not_confuse": "The same on SD3.5 with a block left out, likewise",
    "check_a_compiled_stable_diffusion_3_is_weighed_as_well": "The same on SD3.5, compiled, likewise",
    "check_as_many_rows_as_patches_do_not_confuse_lumina": "The same on Lumina 2, as many rows as patches, likewise",
    "check_long_prompts_are_weighed_in_every_chunk": "The same on SD3.5 and HiDream with long prompts, likewise",
    "check_stock_is_stock_afterwards": "Stock after Weigh Attention on the same model and CLIP, with before",
    "check_a_phrase_knows_nothing_of_another": "Bind Phrases, small: a phrase with other words in the other one",
    "check_these_words_of_a_phrase_are_all_that_is_hidden": "Bind Phrases, these words, small: likewise with a colour",
    "check_strength_0_and_no_phrases_are_the_plain_node": "Bind Phrases at strength 0, or without phrases: Text Encode",
    "check_strength_1_takes_rows_from_the_passes_as_they_are": "Bind Phrases, small: rows, with Mask Control's passes",
    "check_cutoff_takes_rows_from_texts_with_underscores": "Bind Phrases as Cutoff, small: rows, with texts with _",
    "check_and_guides_as_the_webui_does": "AND: guidance, with the WebUI's sum of answers, relative to the largest",
}
"""Subjects of comparison of each check, in the words of docs/evidence/parity.md."""
LIMITS = {check: 1e-5 for check in SUBJECTS if re.search("native|masked_keys|a_bias|small_worlds", check)} | {
    "check_weighed_attention_equals_one_written_out": 1e-5,
    "check_weighed_joint_attention_equals_one_written_out": 1e-5,
    "check_joint_weights_stay_with_their_entry": 1e-5,
    "check_refiners_of_equal_shapes_are_told_apart": 1e-5,
    "check_joint_weights_and_lora_hooks_act_together": 1e-5,
    "check_compiled_joint_families_are_weighed_as_well": 1e-5,
    "check_two_nodes_and_anothers_attention_all_act": 1e-5,
    "check_rows_of_embeddings_are_counted_and_weighed": 1e-5,
    "check_a_cache_that_answers_for_steps_is_let_be": 1e-5,
    "check_weighed_cross_families_equal_one_written_out": 1e-5,
    "check_an_image_to_be_moved_is_read_without_weights": 1e-5,
    "check_reference_images_behind_the_text_are_none_of_it": 1e-5,
    "check_cross_weights_stay_with_their_entry": 1e-5,
    "check_each_window_of_a_long_video_is_weighed": 1e-5,
    "check_cross_weights_and_lora_hooks_act_together": 1e-5,
    "check_compiled_cross_families_are_weighed_as_well": 1e-5,
    "check_krea2_equals_the_node_of_kjnodes": 1e-5,
    "check_weights_in_other_families_equal_ones_written_out": 1e-5,
    "check_weights_in_other_families_stay_with_their_entry": 1e-5,
    "check_blocks_that_another_pack_leaves_out_do_not_confuse": 1e-5,
    "check_a_compiled_stable_diffusion_3_is_weighed_as_well": 1e-5,
    "check_as_many_rows_as_patches_do_not_confuse_lumina": 1e-5,
    "check_long_prompts_are_weighed_in_every_chunk": 1e-5,
    "check_pictures_with_repeated_rows_are_those_of_a_bias": 1.0,
    "check_strength_takes_weights_part_of_the_way": 1e-5,
    "check_weights_stay_with_their_entry_in_areas_masks_and_time": 1e-5,
    "check_batches_and_texts_of_other_lengths_are_weighed_alike": 1e-5,
    "check_anothers_function_around_the_attention_is_called_as_well": 1e-5,
    "check_lora_hooks_and_weights_act_together": 1e-5,
    "check_a_compiled_model_is_weighed_as_well": 1e-5,
    "check_weights_act_beside_nodes_of_the_host_that_change_attention": 1e-5,
    "check_weights_act_at_cfg_1_and_in_tiles": 1e-5,
    "check_two_nodes_on_one_model_both_act": 1e-5,
    "check_strength_1_takes_rows_from_the_passes_as_they_are": 1e-5,
    "check_cutoff_takes_rows_from_texts_with_underscores": 1e-5,
    "check_and_guides_as_the_webui_does": 5e-5,
    "check_the_native_long_clip_equals_the_hosts_in_every_scheme_and_padding": 2e-5,
    "check_a_clip_that_remembers_gives_what_it_gives_without": 1e-5,
    "check_nothing_old_is_given_after_a_change": 1e-5,
    "check_timed_texts_are_encoded_together": 1e-5,
    "check_a_partly_loaded_clip_gives_what_a_whole_one_gives": 1e-6,
}
"""The largest difference that a check may find where it is not 0."""


ON_FLUX = (
    "check_rows_of_embeddings_are_counted_and_weighed",
    "check_rows_of_zeros_have_no_weights",
    "check_changed_rows_are_refused_and_others_are_not",
    "check_weights_of_any_size_give_numbers_or_an_error",
)
"""Checks of other scripts that sample with Weigh Attention on Flux."""


@pytest.fixture(scope="module")
def outcomes(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], dict[str, dict[str, Any]]]:
    """Results of each check of a script; a script is run once."""
    found: dict[Path, dict[str, dict[str, Any]]] = {}

    def outcome(script: Path) -> dict[str, dict[str, Any]]:
        if script not in found:
            folder = tmp_path_factory.mktemp("inprocess")
            pack, results = folder / PACK_FOLDER, folder / "results.json"
            link_folder(pack_folder(), pack)
            run_script(host, script, pack, results)
            found[script] = json.loads(results.read_text(encoding="utf-8"))
        return found[script]

    return outcome


@pytest.mark.parametrize(("script", "check"), CHECKS)
def test_with_the_hosts_objects(
    outcomes: Callable[[Path], dict[str, dict[str, Any]]],
    figures: Figures,
    other_pack: Callable[[str, Figures], Path],
    host: Host,
    script: Path,
    check: str,
) -> None:
    if script.stem in ("inprocess_attention_joint", "inprocess_attention_cross") or check in ON_FLUX:
        flux = host.folder / "comfy" / "ldm" / "flux" / "model.py"
        if '"block_type"' not in flux.read_text(encoding="utf-8"):
            pytest.skip("this ComfyUI does not tell its blocks apart: Weigh Attention refuses it")
    for ending in filter(check.endswith, PACKS):
        other_pack(PACKS[ending], figures)
    found = outcomes(script)[check]
    assert "error" not in found, found["error"]
    difference, count = found["difference"], found["comparisons"]
    if check not in SUBJECTS or not count:  # what this ComfyUI has not cannot be compared
        assert difference is None
        return
    limit = LIMITS.get(check, 0.0)
    required = f"at most {limit:g}".replace("e-0", "e-") if limit else "equal, bit for bit"
    figures.add(SUBJECTS[check], difference, required=required, comparisons=count)
    assert difference <= limit
