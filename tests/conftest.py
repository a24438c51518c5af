"""Loads the repository as the package ``weighted_clip``, whatever its folder is called, and defines the options.

--cases DIR   read the case files from another folder than tests/cases
--hosts DIR   a folder with real hosts in it, for the tests marked ``host``
--long        the tests marked ``long`` at their full length, which takes minutes to an hour
"""

import gc
import importlib.util
import json
import os
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
FIRST = ("training", "web", "dalle", "world", "workshop", "faults", "fuzz", ".")
"""Rooms whose files start processes and browsers or train: started last, one of them would keep one worker long."""


gc.disable()  # until all is collected and imported, which stays; looking for garbage would take a third of that time

runpy.run_path(str(ROOT / "__main__.py"))["load_package"]()

from weighted_clip.studio.training.scaling.distributed import declare_missing_operators  # noqa: E402 - loaded above

declare_missing_operators()

from weighted_clip.encoder.models.kernels import VARIABLE  # noqa: E402 - loaded above
from weighted_clip.encoder.models.linear import ONEDNN  # noqa: E402

if TYPE_CHECKING:
    from weighted_clip.encoder.models.clip import FullClip

# not measured: the same numbers in every run, and no files in the user's folders
os.environ.setdefault(VARIABLE, "plain" if ONEDNN is None else "onednn")


FONT = TESTS / "fonts" / "DejaVuSans.ttf"
"""The font that tests draw with, so that pictures are the same everywhere; its licence is next to it."""


@pytest.fixture(autouse=True, scope="session")
def _font() -> Iterator[None]:
    if importlib.util.find_spec("PIL") is None:
        yield
        return
    from weighted_clip.web.pictures import fonts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fonts, "REGULAR_FONTS", (str(FONT),))
        patch.setattr(fonts, "BOLD_FONTS", ())
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk() -> Iterator[None]:
    """What tests write need not outlast a power cut: most of it is gone again before a disk would have it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session")
def trained_clip(tmp_path_factory: pytest.TempPathFactory) -> "FullClip":
    """A CLIP that has learned coloured shapes; nobody may change it. One worker trains it, the others read its file."""
    from filelock import FileLock  # which torch requires

    from .encoder.trained_clip import read_clip, train_clip

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # that of all workers
    path = folder / "trained_clip.pt"
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            train_clip(path)
    return read_clip(path)


# a slow machine is not a failure
settings.register_profile("weighted_clip", deadline=None)
settings.load_profile("weighted_clip")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", default=str(TESTS / "cases"), metavar="DIR", help="folder of case files (tests/cases)")
    parser.addoption("--hosts", default=None, metavar="DIR", help="folder with real ComfyUI or Forge checkouts")
    parser.addoption(
        "--long", action="store_true", help="also run what is long: thousands of encodings, hundreds of prompts"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put rooms with long files first; skip what is long unless asked for.

    Hosts and what is long have limits of time of their own.
    """
    order = {TESTS / room: place for place, room in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(item.path.parent, len(FIRST)))
    for item in items:
        if any(item.get_closest_marker(name) is not None for name in ("host", "long")):
            item.add_marker(pytest.mark.timeout(0))
        if item.get_closest_marker("long") is not None and not config.getoption("--long"):
            item.add_marker(pytest.mark.skip(reason="long: give --long, which takes minutes to an hour"))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test marked ``cases("file")`` each case of that file as ``case``, and the file's name as ``case_file``."""
    for marker in metafunc.definition.iter_markers("cases"):
        folder = Path(metafunc.config.getoption("--cases"))
        cases: list[tuple[object, str]] = []
        ids: list[str] = []
        for name in marker.args:
            path = folder / f"{name}.json"
            if not path.is_file():
                raise pytest.UsageError(f"{path}: there is no such case file; --cases takes a folder of them")
            for index, case in enumerate(json.loads(path.read_text(encoding="utf-8"))["cases"]):
                only: dict[str, list[str]] = marker.kwargs.get("only", {})
                is_left_out = any(key in case for key in marker.kwargs.get("without", ()))
                if not is_left_out and all(case[key] in allowed for key, allowed in only.items()):
                    cases.append((case, name))
                    ids.append(f"{name}-{index}")
        if "case_file" in metafunc.fixturenames:
            metafunc.parametrize(("case", "case_file"), cases, ids=ids)
        else:
            metafunc.parametrize("case", [case for case, _ in cases], ids=ids)
