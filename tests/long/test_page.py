"""Criteria for the runs, and the page they write."""

import mmap
from pathlib import Path

import pytest

from . import page
from .course import Point, growth, resident_bytes, tenths


def test_growth_leaves_the_warming_up_out() -> None:
    warm = [Point(step, 1000.0 * step) for step in range(10)]
    flat = [Point(step, 9000.0) for step in range(10, 50)]
    assert growth([*warm, *flat]) == (9000.0, 9000.0, 0.0)
    rising = [Point(step, 5.0 * step) for step in range(10, 50)]
    assert growth([*warm, *rising]) == pytest.approx((5 * 14.5, 5 * 44.5, 5.0))
    assert [point.step for point in tenths([*warm, *flat])] == list(range(4, 50, 5))


def test_a_process_has_memory_and_more_of_it_when_it_holds_more() -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("only Linux has /proc")
    before, size = resident_bytes(), 2**26
    # a mapping of its own, as the heap may have room that is resident already
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held:
        held.write(b"x" * size)
        assert resident_bytes() - before > size / 2


def test_a_run_writes_its_own_part_of_the_page_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "page.md"
    monkeypatch.setattr(page, "PAGE", file)
    monkeypatch.delenv(page.VARIABLE, raising=False)
    page.write_part("The lab", ["not asked for"])
    assert not file.exists()
    monkeypatch.setenv(page.VARIABLE, "1")
    page.write_part("The lab", ["old"])
    page.write_part("Encodings, full size", ["full"])
    page.write_part("Encodings", ["one " * 40, "| two |"])
    page.write_part("The lab", ["new"])
    text = file.read_text(encoding="utf-8")
    assert text.startswith(page.HEAD)
    first = f"{'one ' * 29}one\n{'one ' * 9}one"
    expected = f"## Encodings\n\n{first}\n\n| two |\n\n## Encodings, full size\n\nfull\n\n## The lab\n\nnew\n"
    assert text.removeprefix(page.HEAD) == f"\n{expected}"
