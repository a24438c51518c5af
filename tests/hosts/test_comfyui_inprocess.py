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
    *("harmless", "traces", "checks", "memory", "native", "masks", "padding", "loras", "timed", "negpip", "beyond"),
    *("attention", "attention_joint", "attention_several", "attention_pictures", "attention_video"),
    *("attention_beside", "places", "regions"),
    *("reserving", "places_beside", "prompt_control", "word_maps", "loras_in_time", "lora_parts"),
    *("samplings", "large_maps", "world", "world_joint", "picture_settings", "weighted_clip", "edit_prompts"),
    *("old_workflows", "other_packs", "edited_tokens", "native_clip", "host_nodes", "t5"),
    *("guidance", "glides", "joints", "launches"),
)
SCRIPTS = tuple(Path(__file__).with_name(f"inprocess_{name}.py") for name in NAMES)
CHECKS = [
    pytest.param(script, check, id=check)
    for script in SCRIPTS
    for check in re.findall(r"^def (check_\w+)", script.read_text(encoding="utf-8"), re.MULTILINE)
]
PACKS = {
    "kjnodes": "ComfyUI-KJNodes",
    "inprocess_negpip": "ComfyUI-ppm",
    "beside_ppm": "ComfyUI-ppm",
    "prompt_control": "comfyui-prompt-control",
    "beside_forge_couple": "sd-forge-couple",
    "equals_daam": "daam",
    "those_of_prompt_control": "comfyui-prompt-control",
    "check_smz": "ComfyUI_smZNodes",
    "check_adv_clip_emb": "ComfyUI_ADV_CLIP_emb",
    "of_cd_tuner": "cd-tuner_negpip-ComfyUI",
    "check_lpw_equals": "sd_embed",
    "nodes_of_impact": "ComfyUI-Impact-Pack",
    "nodes_of_inspire": "ComfyUI-Inspire-Pack",
    "nodes_of_adv_clip_emb": "ComfyUI_ADV_CLIP_emb",
    "nodes_of_efficiency": "efficiency-nodes-comfyui",
    "nodes_of_easy_use": "ComfyUI-Easy-Use",
    "nodes_of_tinyterra": "ComfyUI_tinyterraNodes",
    "nodes_of_cutoff": "ComfyUI_Cutoff",
    "nodes_of_fizznodes": "ComfyUI_FizzNodes",
    "nodes_of_swarmui": "SwarmUI",
    "nodes_of_prompt_control": "comfyui-prompt-control",
    "nodes_of_ppm": "ComfyUI-ppm",
    "beside_negpip": "ComfyUI-ppm",
    "nodes_of_smz": "ComfyUI_smZNodes",
    "nodes_of_vector_sculptor": "Vector_Sculptor_ComfyUI",
    "nodes_of_essentials": "ComfyUI_essentials",
    "nodes_of_photomaker_plus": "ComfyUI-PhotoMaker-Plus",
    "nodes_of_mikey": "mikey_nodes",
    "nodes_of_comfyroll": "ComfyUI_Comfyroll_CustomNodes",
    "nodes_of_mtb": "comfy_mtb",
    "nodes_of_omost": "ComfyUI_omost",
    "nodes_of_animatediff": "ComfyUI-AnimateDiff-Evolved",
    "nodes_of_rgthree": "rgthree-comfy",
}
"""Other pack that a check needs, by a part of the names of its script and itself."""
ON_FLUX = (
    "check_rows_of_embeddings_are_counted_and_weighed",
    "check_rows_of_zeros_have_no_weights",
    "check_changed_rows_are_refused_and_others_are_not",
    "check_weights_of_any_size_give_numbers_or_an_error",
    "check_references_beside_the_picture_count",
    "check_regions_stay_with_their_entry_in_areas_masks_and_batches",
    "check_reference_images_beside_regions",
    "check_references_of_wan",
    "check_each_prompt_keeps_its_mask_of_rows",
    "check_guides_of_ltx_video_are_no_frames_of_the_picture",
)
"""Checks of other scripts that sample with our attention on Flux or later families."""


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
    if script.stem.endswith(("_joint", "_pictures")) or check in ON_FLUX:
        flux = host.folder / "comfy" / "ldm" / "flux" / "model.py"
        if '"block_type"' not in flux.read_text(encoding="utf-8"):
            pytest.skip("this ComfyUI does not tell its blocks apart: Attention Weights refuses it")
    if script.stem == "inprocess_negpip" and not (host.folder / "comfy" / "ldm" / "anima").is_dir():
        pytest.skip("ComfyUI-ppm wants a newer ComfyUI")
    for name, pack in PACKS.items():
        if name in f"{script.stem}.{check}":
            other_pack(pack, figures)
    found = outcomes(script)[check]
    if "skipped" in found:
        pytest.skip(found["skipped"])
    assert "error" not in found, found["error"]
    figures.nodes += found["rows"]
    difference, limit, count = found["difference"], found["limit"], found["comparisons"]
    if not count:  # what this ComfyUI has not cannot be compared
        return
    assert limit is not None, "a check that compares says what it compares"
    required = f"at most {limit:g}".replace("e-0", "e-") if limit else "equal, bit for bit"
    if found["subject"] is not None:
        figures.add(found["subject"], difference, required=required, comparisons=count)
    assert difference <= limit
