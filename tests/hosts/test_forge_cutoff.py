"""Binding as Cutoff compared with the extension itself on Forge's text engine, in a process of its Python:
forge_cutoff.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from weighted_clip.workshop.find_hosts import Host
from weighted_clip.workshop.job import run_in_host

from ..patience import SECONDS
from .comfy_server import pack_folder
from .parity import Figures
from .webui_server import ON_THE_CPU, prepare_data_folder

pytestmark = [pytest.mark.host, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("forge_cutoff.py")
CLOSE = 1e-5
SUBJECT = "Bind as Cutoff on Forge's text engine, with sd-webui-cutoff, relative to the largest"


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
    base, outcome = tmp_path / "data", tmp_path / "outcome.json"
    environment = {**prepare_data_folder(webui_host, webui_models, base), "OMP_NUM_THREADS": "1"}
    arguments = [SCRIPT, pack_folder(), extension, outcome, *ON_THE_CPU[webui_host.kind], "--data-dir", base]
    done = run_in_host(webui_host.python, arguments, folder=webui_host.folder, environment=environment, seconds=SECONDS)
    assert done.returncode == 0, done.stdout[-6000:]
    found = json.loads(outcome.read_text(encoding="utf-8"))
    assert len(found) > 100
    compared = {name: figures for name, figures in found.items() if not isinstance(figures, str)}
    refused = {name: message for name, message in found.items() if name not in compared}
    largest = max(difference for difference, _ in compared.values())
    webui_figures.add(SUBJECT, largest, required="at most 1e-5", comparisons=len(compared))
    assert largest <= CLOSE, compared
    assert compared["weighted"][1] > 0.01
    assert sum(change > 0.01 for _, change in compared.values()) > 0.8 * len(found), compared
    assert not refused
