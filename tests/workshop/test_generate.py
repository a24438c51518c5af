"""Generated files are as the code makes them now; ``python workshop generate`` writes them anew."""

from pathlib import Path

import pytest
from weighted_clip.workshop import docs_pictures, generate, help_pictures

ROOT = Path(__file__).resolve().parents[2]
OTHERWISE = {"precision", "xyz-grid"}
"""Pictures drawn by the benchmarks and by a WebUI; besides, all screenshots are."""


@pytest.mark.parametrize("name", generate.MADE)
def test_generated_files_are_current(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == generate.MADE[name](), "run: python workshop generate"


def test_every_picture_of_a_help_page_can_be_drawn_again() -> None:
    folder = ROOT / "web" / "comfyui" / "docs" / "images"
    assert {path.stem for path in folder.glob("*.png")} == help_pictures.PICTURES.keys()
    drawn = docs_pictures.PICTURES.keys()
    assert drawn <= {path.stem for path in (ROOT / "docs" / "images").glob("*.png")}
    assert {*docs_pictures.REGISTRY, *docs_pictures.PHOTOGRAPHS} <= drawn


def test_a_table_is_found_by_its_head() -> None:
    with pytest.raises(ValueError, match=r"no table has the head \| A \|"):
        generate.with_table("| B |\n| - |\n", ["A"], [])
