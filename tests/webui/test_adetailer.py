"""Messages about ADetailer, which leaves out scripts that its setting does not name; with fakes of its script."""

from types import SimpleNamespace
from typing import Any

import pytest
from weighted_clip.hosts.webui.swap import arm

from . import fake_webui as fake

FIRST = {"ad_model": "face_yolov8n.pt", "ad_tab_enable": True}


class Script:
    """As ADetailer's script: a switch, another, and a dictionary for each of its tabs."""

    args_from, args_to = 2, 6

    def title(self) -> str:
        return "ADetailer"

    def is_ad_enabled(self, *values: Any) -> bool:
        assert len(values) == 4
        return values[0] and any(value["ad_model"] != "None" for value in values[2:])


def told(forge: fake.ForgeModel, *values: Any, script: Any = None, **attributes: Any) -> list[str]:
    """The lines below the image that are about ADetailer."""
    generation: Any = fake.Generation(forge)
    vars(generation).update(attributes)
    generation.scripts = SimpleNamespace(alwayson_scripts=[SimpleNamespace(title=lambda: "Other"), script or Script()])
    generation.script_args = (True, "other's", *values, "behind")
    arm(generation, [True])
    generation.setup_conds("a cat")
    return [comment for comment in generation.comments if "ADetailer" in comment]


def test_it_is_said_where_adetailer_is_on_and_we_are_not_listed(
    forge: fake.ForgeModel, host_options: SimpleNamespace
) -> None:
    off = {"ad_model": "None"}
    for names in (None, "", "negpip,wildcards", "weighted_clip2"):
        if names is not None:
            host_options.ad_script_names = names
        [line] = told(forge, True, False, FIRST, off)
        assert "add weighted_clip to its setting" in line
        assert told(forge, False, False, FIRST, off) == []
        assert told(forge, True, False, off, off) == []
        assert told(forge, True, False, FIRST, off, _ad_disabled=True) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("ad_script_names", "negpip, weighted_clip"), ("ad_only_selected_scripts", False)],
)
def test_nothing_is_said_where_we_take_part(
    forge: fake.ForgeModel, host_options: SimpleNamespace, name: str, value: Any
) -> None:
    setattr(host_options, name, value)
    assert told(forge, True, False, FIRST, FIRST) == []


def test_another_adetailer_stops_nothing(forge: fake.ForgeModel) -> None:
    class Changed(Script):
        def is_ad_enabled(self, *values: Any) -> bool:
            raise TypeError("other values")

    assert told(forge, True, False, FIRST, FIRST, script=Changed()) == []
    assert told(forge, True, False, FIRST, FIRST, script=SimpleNamespace(title=lambda: "ADetailer")) == []


def test_the_name_is_that_of_our_file() -> None:
    from pathlib import Path

    from weighted_clip.hosts.webui.adetailer import SCRIPT

    assert (Path(__file__).parents[2] / "scripts" / f"{SCRIPT}.py").is_file()
