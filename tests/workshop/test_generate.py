"""Generated files are as the code makes them now; ``python workshop generate`` writes them anew."""

from pathlib import Path

import pytest
from weighted_clip.workshop import generate

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", generate.MADE)
def test_generated_files_are_current(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == generate.MADE[name](), "run: python workshop generate"


def test_permanent_names_only_grow() -> None:
    kept = {"inputs": {"text": "STRING", "scheme": ["comfy", "a1111"]}, "outputs": ["CONDITIONING"]}
    more = {
        "inputs": {"text": "STRING", "scheme": ["comfy", "new", "a1111"], "seed": "INT"},
        "outputs": ["CONDITIONING", "STRING"],
    }
    assert generate.is_grown(kept, kept) and generate.is_grown(more, kept)
    moved = {"scheme": kept["inputs"]["scheme"], "text": "STRING"}
    for now in (
        None,
        {**kept, "inputs": moved},
        {**kept, "inputs": {**moved, "scheme": ["comfy"]}},
        {**kept, "inputs": {"seed": "INT", **kept["inputs"]}},
        {**kept, "inputs": {**kept["inputs"], "scheme": ["a1111", "comfy"]}},
        {**kept, "inputs": {**kept["inputs"], "text": "FLOAT"}},
        {**kept, "outputs": ["STRING", "CONDITIONING"]},
        {**kept, "outputs": []},
    ):
        assert not generate.is_grown(now, kept), now
