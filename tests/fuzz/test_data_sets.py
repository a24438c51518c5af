"""Every set of data_sets.py is read as far as it is whole, and all that is left out of it is named."""

import sys
from pathlib import Path

import pytest

from .data_sets import DataSet, finding, hostile_sets


@pytest.mark.skipif(sys.platform == "win32", reason="links, pipes and odd names are made, which Windows does not have")
@pytest.mark.parametrize("one", [pytest.param(one, id=ascii(one.name)) for one in hostile_sets()])
def test_nothing_is_lost_in_silence(one: DataSet, tmp_path: Path) -> None:
    one.write(tmp_path)
    assert finding(one, tmp_path) == ""
