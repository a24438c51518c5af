"""Real hosts for the tests marked ``host``: found in ``--hosts DIR``, started once, and their figures written down.

With WEIGHTED_CLIP_WRITE_PARITY=1 in the environment, a run in which every test passed writes the parts of
docs/evidence/parity.csv and parity.md on the hosts that it had; with WEIGHTED_CLIP_WRITE_HOSTS=1 every run writes their
rows of docs/evidence/README.md, with WEIGHTED_CLIP_WRITE_PACKS=1 one that passed writes docs/evidence/other-packs.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from weighted_clip.workshop.find_hosts import WEBUIS, Host, find_hosts, find_packs

from ..web.chromium import Tab, running_chromium
from .browser import running_browser
from .comfy_server import CACHE_FOLDER, CACHE_VERSION, CHECKPOINT, ComfyServer, make_models, running_server
from .host_table import HostTable
from .make_checkpoint import write_more_embeddings
from .pack_table import write_packs
from .parity import Figures, revision_of, write_parity
from .ruler_page import WEB_FOLDER, RulerPage
from .stock import StockOutputs, run_stock
from .webui_server import WebUIServer, native_encoder, running_webui

WRITE_PARITY = "WEIGHTED_CLIP_WRITE_PARITY"
WRITE_HOSTS = "WEIGHTED_CLIP_WRITE_HOSTS"
WRITE_PACKS = "WEIGHTED_CLIP_WRITE_PACKS"
EARLIER = "WEIGHTED_CLIP_EARLIER"
NO_HOST = "no host: give --hosts DIR (a folder with a ComfyUI checkout and its venv)"
NO_WEBUI = "no WebUI: give --hosts DIR (a folder with a checkout of Forge or A1111 and its venv)"
FIGURES = pytest.StashKey[Figures]()
HOST_TABLE = HostTable()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test that uses a host on each ComfyUI there is, or each WebUI."""
    if "webui_host" in metafunc.fixturenames:
        _run_on_webuis(metafunc)
    if "host" not in metafunc.fixturenames:
        return
    folder = metafunc.config.getoption("--hosts")
    if folder is None:
        hosts: list[Any] = [pytest.param(None, marks=pytest.mark.skip(reason=NO_HOST), id="no host")]
    else:
        found = find_hosts(Path(folder), "ComfyUI")
        hosts = [pytest.param(host, id=f"ComfyUI {host.version}") for host in found]
        hosts = hosts or [pytest.param(None, id="none found")]
    metafunc.parametrize("host", hosts, indirect=True, scope="session")


def _run_on_webuis(metafunc: pytest.Metafunc) -> None:
    folder = metafunc.config.getoption("--hosts")
    hosts: list[Any] = [
        pytest.param(host, id=f"{host.kind} {host.version}")
        for host in (find_hosts(Path(folder), *WEBUIS) if folder is not None else ())
    ]
    hosts = hosts or [pytest.param(None, marks=pytest.mark.skip(reason=NO_WEBUI), id="no WebUI")]
    metafunc.parametrize("webui_host", hosts, indirect=True, scope="session")


@pytest.fixture(scope="session")
def host(request: pytest.FixtureRequest) -> Host:
    """A ComfyUI checkout with its virtual environment."""
    if request.param is None:
        folder = request.config.getoption("--hosts")
        pytest.fail(f"no ComfyUI with a virtual environment (.venv or venv) in --hosts {folder}", pytrace=False)
    return request.param


@pytest.fixture(scope="session")
def models(host: Host, request: pytest.FixtureRequest) -> Path:
    """The folder with the seeded models; kept in --hosts for the next run."""
    return make_models(host, Path(request.config.getoption("--hosts")).resolve() / CACHE_FOLDER)


@pytest.fixture(scope="session")
def webui_host(request: pytest.FixtureRequest) -> Host:
    """A WebUI checkout with its virtual environment."""
    return request.param


@pytest.fixture(scope="session")
def webui_models(request: pytest.FixtureRequest) -> Path:
    """The folder with the seeded models, which only a ComfyUI can make."""
    folder = Path(request.config.getoption("--hosts")).resolve()
    models = folder / CACHE_FOLDER / f"models-{CACHE_VERSION}"
    if (models / "complete").exists():
        write_more_embeddings(models)
        return models
    hosts = find_hosts(folder, "ComfyUI")
    if not hosts:
        pytest.skip(f"the seeded models are not in {folder}, and there is no ComfyUI to make them with")
    return make_models(hosts[-1], folder / CACHE_FOLDER)


@pytest.fixture(scope="module")
def webui(webui_host: Host, webui_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebUIServer]:
    """A running WebUI with our extension."""
    base = tmp_path_factory.mktemp("webui") / "data"
    with running_webui(webui_host, webui_models, base, with_ours=True) as server:
        yield server


@pytest.fixture(scope="module")
def webui_tab(webui: WebUIServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """The WebUI's page in a browser, when its prompt box is there."""
    with running_chromium(tmp_path_factory.mktemp("browser"), width=1280, height=1800) as tab:
        tab.open(webui.address)
        tab.wait("return !!document.querySelector('#txt2img_prompt textarea')?.offsetParent")
        tab.wait("return document.readyState === 'complete'")
        yield tab


@pytest.fixture(scope="session")
def native(webui_models: Path) -> Any:
    """Our own encoder on the checkpoint: a function from a text and options to hidden states, ``[positions, dim]``."""
    return native_encoder(webui_models / "checkpoints" / CHECKPOINT)


@pytest.fixture(scope="session")
def fresh_server(
    host: Host, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ComfyServer, StockOutputs]]:
    """A server with our pack, and what stock nodes gave in it before any node of ours ran."""
    with running_server(host, models, tmp_path_factory.mktemp("comfyui"), with_pack=True) as server:
        yield server, run_stock(server, number=0)


@pytest.fixture(scope="session")
def server(fresh_server: tuple[ComfyServer, StockOutputs]) -> ComfyServer:
    """A running ComfyUI with our pack in a folder with an awkward name."""
    return fresh_server[0]


@pytest.fixture(scope="session")
def stock_before(fresh_server: tuple[ComfyServer, StockOutputs]) -> StockOutputs:
    """Results of stock nodes before any node of ours ran."""
    return fresh_server[1]


@pytest.fixture(scope="session")
def figures(host: Host, request: pytest.FixtureRequest) -> Figures:
    """Collects what was measured in a ComfyUI."""
    return request.config.stash.setdefault(FIGURES, Figures()).of(f"ComfyUI {host.version}")


@pytest.fixture(scope="session")
def webui_figures(webui_host: Host, request: pytest.FixtureRequest) -> Figures:
    """Collects what was measured in a WebUI."""
    return request.config.stash.setdefault(FIGURES, Figures()).of(f"{webui_host.kind} {webui_host.version}")


@pytest.fixture(scope="session")
def ruler_server(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyServer]:
    """A server of our own, as ComfyUI serves no files of a folder with a space in its name."""
    models, base = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("comfyui") / "base"
    with running_server(host, models, base, with_pack=True, folder=WEB_FOLDER) as server:
        server.request("/settings", {"Comfy.TutorialCompleted": True})  # no dialog on the first visit
        yield server


@pytest.fixture(scope="session")
def ruler_browser(ruler_server: ComfyServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RulerPage]:
    """A browser that has seen nothing yet."""
    with running_browser(tmp_path_factory.mktemp("browser")) as driver:
        yield RulerPage(driver, ruler_server.port)


@pytest.fixture(params=[False, True], ids=["canvas", "Nodes 2.0"])
def page(ruler_browser: RulerPage, request: pytest.FixtureRequest) -> RulerPage:
    """The page, freshly loaded, with nodes drawn in either way."""
    ruler_browser.open_drawn(is_nodes_2=request.param)
    return ruler_browser


@pytest.fixture(scope="session")
def earlier() -> str:
    """The commit or tag of an earlier state of the pack, which the environment names."""
    commit = os.environ.get(EARLIER)
    if not commit:
        pytest.skip(f"{EARLIER}=COMMIT is not set")
    return commit


@pytest.fixture(scope="session")
def other_pack(request: pytest.FixtureRequest) -> Callable[[str, Figures], Path]:
    """Finds the checkout of another pack in --hosts by its name, and notes its revision; skips if it is not there."""

    def find(name: str, figures: Figures) -> Path:
        folder = Path(request.config.getoption("--hosts"))
        packs = find_packs(folder, find_hosts(folder, "ComfyUI"), name)
        if not packs:
            pytest.skip(f"there is no {name} in --hosts")
        figures.about[name] = revision_of(packs[0])
        return packs[0]

    return find


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count a test, once it has run or could not."""
    if report.when == "call" or not report.passed:
        HOST_TABLE.note(report.nodeid, report.outcome)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write what ran down if that was asked for, and the figures if all is well."""
    if os.environ.get(WRITE_HOSTS) == "1":
        HOST_TABLE.write()
    figures = session.config.stash.get(FIGURES, None)
    if os.environ.get(WRITE_PARITY) == "1" and figures and exitstatus == pytest.ExitCode.OK:
        write_parity(figures)
    if os.environ.get(WRITE_PACKS) == "1" and figures and exitstatus == pytest.ExitCode.OK:
        for measured in figures.hosts.values():
            if measured.nodes:
                write_packs(measured)
