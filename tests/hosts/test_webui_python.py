"""Our programs in a WebUI's own Python, without a server: its classes at small size, and an extension on its engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from weighted_clip.workshop.find_hosts import Host

from .parity import Figures
from .server import TESTS
from .webui_server import run_in_webui

pytestmark = pytest.mark.host

ENGINES = TESTS / "webui_engines.py"
CHECKS = re.findall(r"^def (check_\w+)", ENGINES.read_text(encoding="utf-8"), re.MULTILINE)
CLOSE, REQUIRED = 1e-5, "at most 1e-5"
CUTOFF = "Bind as Cutoff on Forge's text engine, with sd-webui-cutoff, relative to the largest"
REPEATED = "Scheme repeat, a call of a U-Net, with ln w as a bias, relative to the largest"
PLACED = "Places, samplers of Forge on a small U-Net, with a softmax written out, relative to the largest"
MAPPED = "Word maps, samplers of Forge on a small U-Net, with a softmax written out, absolute shares"
JOINT = (
    "Weights, places and word maps in Forge's Flux, Chroma and Stable Diffusion 3.5, small, with a softmax written out"
)
JOINED = (
    "AND_PERP and its like, samplers of Forge on a small U-Net, with neutral-prompt's code, relative to the largest"
)
ROWS = "T5's rows in Forge's Flux under compel and lpw, small, with formulas and the programs' code, relative"
KINDS = ("Flux", "Chroma", "Stable Diffusion 3.5")
PAIRED = "Scheme negpip, a call of a U-Net, with signs written out, relative to the largest"


@pytest.fixture(scope="session")
def outcomes(webui_host: Host, webui_models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Result of each check of webui_engines.py: nothing, or a traceback."""
    if webui_host.kind != "A1111":
        pytest.skip("Forge has one class of engine for all models, which test_forge.py runs")
    return run_in_webui(webui_host, ENGINES, tmp_path_factory.mktemp("engines"), models=webui_models)


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_our_encoding_with_the_encoders_of_sdxl_and_sd2(outcomes: dict[str, str], check: str) -> None:
    assert not outcomes[check], outcomes[check]


@pytest.mark.slow
def test_our_cutoff_is_that_of_the_extension(
    webui_host: Host,
    webui_models: Path,
    webui_figures: Figures,
    other_pack: Callable[[str, Figures], Path],
    tmp_path: Path,
) -> None:
    if webui_host.kind != "Forge":
        pytest.skip("the extension runs on Forge's engine here")
    extension = other_pack("sd-webui-cutoff", webui_figures)
    found = run_in_webui(webui_host, TESTS / "forge_cutoff.py", tmp_path, extension, models=webui_models)
    assert len(found) > 100
    compared = {name: figures for name, figures in found.items() if not isinstance(figures, str)}
    refused = {name: message for name, message in found.items() if name not in compared}
    largest = max(difference for difference, _ in compared.values())
    webui_figures.add(CUTOFF, largest, required=REQUIRED, comparisons=len(compared))
    assert largest <= CLOSE, compared
    assert compared["weighted"][1] > 0.01
    # with “strong” off, the extension leaves many of these prompts as they are
    assert sum(change > 0.01 for _, change in compared.values()) > 0.7 * len(found), compared
    assert not refused


@pytest.fixture(scope="module")
def drawn(webui_host: Host, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Calls of Forge's U-Net: for each scheme texts with their rows, differences, and changes by the weights."""
    if webui_host.kind != "Forge":
        pytest.skip("the U-Net of A1111 is another repository's")
    return run_in_webui(webui_host, TESTS / "forge_unet.py", tmp_path_factory.mktemp("unet"))


def test_repeated_rows_equal_a_bias_in_the_cross_attention(drawn: dict[str, Any], webui_figures: Figures) -> None:
    found = drawn["repeat"]
    assert [rows for _, rows, _, _ in found] == [159, 309, 773, 78, 77]
    largest = max(difference for _, _, difference, _ in found)
    webui_figures.add(REPEATED, largest, required=REQUIRED, comparisons=len(found))
    assert largest <= CLOSE, found
    assert all(change > 1e-3 for _, _, _, change in found[:-1]), found


def test_pairs_equal_signs_written_out_in_the_cross_attention(drawn: dict[str, Any], webui_figures: Figures) -> None:
    assert len(drawn["negpip"]) == 3
    for text, _, difference, change in drawn["negpip"]:
        webui_figures.add(PAIRED, difference, required=REQUIRED)
        assert difference <= CLOSE, text
        assert (change > 1e-3) is ("-" in text), text


@pytest.fixture(scope="module")
def placed(webui_host: Host, webui_models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Pictures with placed phrases: for each case the difference, the change by the places, and what is told."""
    return run_in_forge(webui_host, "places", tmp_path_factory.mktemp("places"), webui_models)


def run_in_forge(host: Host, name: str, folder: Path, models: Path) -> dict[str, Any]:
    """Results by case of a script that runs in Forge alone."""
    if host.kind != "Forge":
        pytest.skip(f"{name} need Forge")
    return run_in_webui(host, TESTS / f"forge_{name}.py", folder, models=models)


def note_cases(cases: dict[str, Any], figures: Figures, subject: str) -> None:
    """Note the largest difference of cases; one that is a text has failed."""
    failed = {name: found for name, found in cases.items() if isinstance(found, str)}
    assert not failed, "\n".join(f"{name}: {found}" for name, found in failed.items())
    largest = max(difference for difference, _, _ in cases.values())
    figures.add(subject, largest, required=REQUIRED, comparisons=len(cases))


def test_placed_phrases_equal_weights_by_place_written_out(placed: dict[str, Any], webui_figures: Figures) -> None:
    note_cases(placed, webui_figures, PLACED)
    assert {name: found for name, found in placed.items() if found[0] > CLOSE or found[1] < 10 * CLOSE} == {}


@pytest.fixture(scope="module")
def mapped(webui_host: Host, webui_models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Word maps: for each case the difference, the largest share, and whether the picture stays to the bit."""
    return run_in_forge(webui_host, "word_maps", tmp_path_factory.mktemp("maps"), webui_models)


def test_word_maps_equal_a_softmax_written_out(mapped: dict[str, Any], webui_figures: Figures) -> None:
    note_cases(mapped, webui_figures, MAPPED)
    assert all(difference <= CLOSE and share > 0.01 and stays for difference, share, stays in mapped.values()), mapped


@pytest.fixture(scope="module")
def joint(webui_host: Host, webui_models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Pictures of models beyond CLIP: for each case the difference, the change, and what is told."""
    return run_in_forge(webui_host, "joint", tmp_path_factory.mktemp("joint"), webui_models)


def test_models_beyond_clip_equal_a_softmax_written_out(joint: dict[str, Any], webui_figures: Figures) -> None:
    note_cases(joint, webui_figures, JOINT)
    kinds = {name.partition(":")[0] for name in joint}
    assert kinds >= {f"{kind}{how}" for kind in KINDS for how in ("", " in 8 bits", " in GGUF")}, kinds
    assert {name: found for name, found in joint.items() if found[0] > CLOSE or found[1] < 10 * CLOSE} == {}
    assert [line for _, _, lines in joint.values() for line in lines if "did not act" in line] == []


def test_rows_of_t5_equal_those_of_compel_and_sd_embed(
    webui_host: Host, webui_models: Path, webui_figures: Figures, tmp_path: Path
) -> None:
    if webui_host.kind != "Forge":
        pytest.skip("of the WebUIs Forge alone has T5")
    compel = find_spec("compel")
    assert compel is not None and compel.origin is not None
    folder = Path(compel.origin).parent
    cases = run_in_webui(webui_host, TESTS / "forge_t5_rows.py", tmp_path, folder, models=webui_models)
    note_cases(cases, webui_figures, ROWS)
    assert {name: found for name, found in cases.items() if found[0] > CLOSE or found[1] < 10 * CLOSE} == {}


def test_joined_prompts_equal_those_of_neutral_prompt(
    webui_host: Host,
    webui_models: Path,
    webui_figures: Figures,
    other_pack: Callable[[str, Figures], Path],
    tmp_path: Path,
) -> None:
    if webui_host.kind != "Forge":
        pytest.skip("joints need Forge")
    extension = other_pack("sd-webui-neutral-prompt", webui_figures)
    cases = run_in_webui(webui_host, TESTS / "forge_joints.py", tmp_path, extension, models=webui_models)
    note_cases(cases, webui_figures, JOINED)
    assert {name: found for name, found in cases.items() if found[0] > CLOSE or found[1] < 10 * CLOSE} == {}
