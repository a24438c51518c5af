"""Pin what `run.py` installs by hash: write next to each requirement the SHA-256 of all its files on PyPI.

    python workshop/pin.py INDEX [requirements/lab.txt ...]

INDEX is the address of PyPI's package index, as in pip's --index-url. Run it after changing a version; without a name
it takes all lists. Old hashes are replaced; comments, order and markers are kept. torch gets none: its files differ
between PyPI and PyTorch's own indexes.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HASHES = re.compile(r"( \\\n +--hash=\S+)+")
REQUIREMENT = re.compile(r"^(?!torch==)([\w.-]+)(?:\[[^]]*\])?==([^\s;]+).*", re.MULTILINE)


def version_of(filename: str) -> str:
    """Version in the name of a wheel or source archive.

    >>> version_of("pyyaml-6.0.3-cp311-cp311-win_amd64.whl"), version_of("open-clip_torch-3.3.0.tar.gz")
    ('6.0.3', '3.3.0')
    """
    if filename.endswith(".whl"):
        return filename.split("-")[1]
    return re.sub(r"\.(tar\.\w+|zip)$", "", filename).rpartition("-")[2]


def hashes_of(files: Iterable[dict], version: str) -> list[str]:
    """Sorted SHA-256 of each file of a version, from an index's answer about the package."""
    return sorted(file["hashes"]["sha256"] for file in files if version_of(file["filename"]) == version)


def published(index: str, name: str) -> list[dict]:
    """All files of a package in the index."""
    request = urllib.request.Request(
        f"{index.rstrip('/')}/{name}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["files"]


def pinned(text: str, files_of: Callable[[str], Iterable[dict]]) -> str:
    """A list of requirements with the hashes of all their files."""

    def with_hashes(match: re.Match[str]) -> str:
        hashes = hashes_of(files_of(match[1]), match[2])
        if not hashes:
            raise SystemExit(f"{match[0]}: the index has no file of this version")
        return " \\\n".join([match[0].rstrip(), *(f"    --hash=sha256:{digest}" for digest in hashes)])

    return REQUIREMENT.sub(with_hashes, HASHES.sub("", text))


if __name__ == "__main__":
    if not sys.argv[1:] or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    for path in map(Path, sys.argv[2:] or sorted(ROOT.glob("requirements/*.txt"))):
        text = pinned(path.read_text(encoding="utf-8"), partial(published, sys.argv[1]))
        path.write_text(text, encoding="utf-8")
