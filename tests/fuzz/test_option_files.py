"""Hostile files of options, every fifth of them, each read by the command in little time and memory."""

import sys
from pathlib import Path

import pytest

from .limited import Limited
from .option_files import MEMORY, option_files, words, wrong


@pytest.mark.skipif(sys.platform != "linux", reason="the process's limits of memory, and devices, are Linux's")
def test_each_is_refused_in_a_line_or_read(tmp_path: Path) -> None:
    with Limited(60, MEMORY) as process:
        process.run(["train", "--help"])
        for number, one in enumerate(option_files()):
            if number % 5 == 0 or number > 340:  # the last ones are no files
                path = tmp_path / f"{number}.yaml"
                one.write(path)
                assert wrong(one, path, process.run(words(path))) == "", one.name
