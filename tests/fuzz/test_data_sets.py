"""Every set of data_sets.py is read as far as it is whole, and all that is left out of it is named."""

import shutil
import sys
from pathlib import Path

import pytest

from .data_sets import finding, hostile_sets


@pytest.mark.skipif(sys.platform == "win32", reason="links, pipes and odd names are made, which Windows does not have")
def test_nothing_is_lost_in_silence(tmp_path: Path) -> None:
    found: dict[str, str] = {}
    for one in hostile_sets():
        folder = tmp_path / "data"
        folder.mkdir()
        one.write(folder)
        found[ascii(one.name)] = finding(one, folder)
        shutil.rmtree(folder)
    assert len(found) > 1000
    assert {name: told for name, told in found.items() if told} == {}
