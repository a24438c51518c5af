"""The names that prompt boxes offer (web/comfyui/ruler/names.js); in a real page: tests/hosts/test_browser_names.py."""

from __future__ import annotations

import re
from pathlib import Path

from weighted_clip.weighting.syntax import SYNTAXES

NAMES = Path(__file__).resolve().parents[2] / "web" / "comfyui" / "ruler" / "names.js"


def test_the_page_knows_the_chunk_rule_of_every_syntax() -> None:
    (table,) = re.findall(r"const RULES = \{(.*?)\};", NAMES.read_text(encoding="utf-8"))
    expected = {name: syntax.chunking.split()[0] for name, syntax in SYNTAXES.items()}
    assert dict(re.findall(r'(\w+): "(\w+)"', table)) == expected
