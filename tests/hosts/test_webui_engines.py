"""Our encoding with A1111's own text encoder classes for SDXL and SD2, in a process of its Python: webui_engines.py."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from weighted_clip.workshop.find_hosts import Host
from weighted_clip.workshop.job import run_in_host

from ..patience import SECONDS
from .comfy_server import pack_folder
from .webui_server import ON_THE_CPU, prepare_data_folder

pytestmark = [pytest.mark.host, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("webui_engines.py")
CHECKS = re.findall(r"^def (check_\w+)", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(scope="session")
def outcomes(webui_host: Host, webui_models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Result of each check: nothing, or a traceback."""
    if webui_host.kind != "A1111":
        pytest.skip("Forge has one class of engine for all models, which test_forge.py runs")
    base = tmp_path_factory.mktemp("engines") / "data"
    environment = prepare_data_folder(webui_host, webui_models, base)
    outcome = base / "outcome.json"
    arguments = [SCRIPT, pack_folder(), outcome, *ON_THE_CPU[webui_host.kind], "--data-dir", base]
    done = run_in_host(webui_host.python, arguments, folder=webui_host.folder, environment=environment, seconds=SECONDS)
    assert done.returncode == 0, done.stdout[-6000:]
    return json.loads(outcome.read_text(encoding="utf-8"))


@pytest.mark.parametrize("check", CHECKS)
def test_check(outcomes: dict[str, str], check: str) -> None:
    assert not outcomes[check], outcomes[check]
