"""The host's modules, as far as ours import them, and one of each kind of model."""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from . import fake_webui as fake
else:
    # without transformers the modules of tests, which import it too, are skipped; pytest takes that from no conftest
    with contextlib.suppress(pytest.skip.Exception):
        from . import fake_webui as fake


@pytest.fixture(autouse=True)
def host_options(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The host's settings, without any; and its modules."""
    options = SimpleNamespace()
    modules = {name: ModuleType(name) for name in ("modules", "modules.shared", "modules.devices")}
    modules["modules.shared"].__dict__["opts"] = options
    modules["modules.devices"].__dict__["device"] = "cpu"
    modules["modules"].__dict__["devices"] = modules["modules.devices"]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(fake.Generation, "cached_c", [None, None, None])
    monkeypatch.setattr(fake.Generation, "cached_uc", [None, None, None])
    return options


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The host's holder of the model, which is empty."""
    module = ModuleType("modules.sd_models")
    module.__dict__["model_data"] = SimpleNamespace(sd_model=None)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__dict__["model_data"]


@pytest.fixture
def forge() -> fake.ForgeModel:
    return fake.ForgeModel(fake.ForgeEngine(fake.text_model()))


@pytest.fixture
def a1111() -> fake.A1111Model:
    hijack = SimpleNamespace(fixes=None, embedding_db=fake.Database())
    return fake.A1111Model(fake.A1111Engine(fake.text_model(), hijack))


@pytest.fixture
def forge_xl() -> fake.ForgeXLModel:
    return fake.ForgeXLModel(
        fake.ForgeEngine(fake.text_model()), fake.ForgeEngine(fake.text_model(1), "clip_g", pooled=True)
    )


@pytest.fixture
def a1111_xl() -> fake.A1111XLModel:
    hijack = SimpleNamespace(fixes=None, embedding_db=fake.Database())
    return fake.A1111XLModel(
        fake.A1111Engine(fake.text_model(), hijack), fake.OpenClipEngine(fake.text_model(1), hijack)
    )
