"""The helpers of host tests: another front end, another copy of our pack, and the page that they write."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import parity
from .comfy_server import FRONT_END, ComfyServer, front_end_folder
from .host_table import MARKERS, HostTable
from .pack_table import write_packs
from .parity import Figures
from .server import PACK, REPOSITORY, pack_folder


@pytest.mark.parametrize("place", ["", "static", "comfyui_frontend_package/static"])
def test_the_folder_is_found_where_pip_or_an_archive_puts_it(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FRONT_END, raising=False)
    assert front_end_folder() is None
    monkeypatch.setenv(FRONT_END, str(tmp_path))
    with pytest.raises(AssertionError, match=r"no index\.html"):
        front_end_folder()
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    (tmp_path / place / "index.html").touch()
    assert front_end_folder() == tmp_path / place


@pytest.mark.host
def test_the_server_serves_it(ruler_server: ComfyServer) -> None:
    folder = front_end_folder()
    if folder is None:
        pytest.skip(f"the front end is the host's own: {FRONT_END} is not set")
    status, page = ruler_server.request("/")
    assert status == 200
    assert page == (folder / "index.html").read_bytes()


def test_the_folder_is_the_repository_or_the_one_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PACK, raising=False)
    assert pack_folder() == REPOSITORY
    monkeypatch.setenv(PACK, str(tmp_path))
    with pytest.raises(AssertionError, match="our pack is not in it"):
        pack_folder()
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "__init__.py").touch()
    assert pack_folder() == tmp_path


@pytest.mark.host
def test_comfyui_has_our_pack_from_there(ruler_server: ComfyServer) -> None:
    (ours,) = (
        path for path in (ruler_server.base / "custom_nodes").iterdir() if path.resolve() == pack_folder().resolve()
    )
    node = ruler_server.get("/object_info/WeightedCLIPTextEncode")["WeightedCLIPTextEncode"]
    assert node["python_module"] == f"custom_nodes.{ours.name}"
    script = "ruler.js"
    status, served = ruler_server.request(f"/extensions/{ours.name}/{script}")
    assert status == 200
    assert served == (pack_folder() / "web" / "comfyui" / script).read_bytes()


def test_a_run_writes_the_columns_of_its_own_hosts_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench hosts -->\n<!-- end hosts -->\nafter\n", encoding="utf-8")
    monkeypatch.setattr(parity, "PAGE", page)
    runs = (
        ("Forge 2", "Pixels", 0.5),
        ("ComfyUI 1", "Pixels", 0.25),
        ("ComfyUI 2", "Rows", 0.0),
        ("Forge 2", "Pixels", 0.125),
        ("ComfyUI 2", "Pixels, again", 0.5),
    )
    for host, subject, difference in runs:
        figures = Figures()
        figures.of(host).about["torch"] = "2"
        figures.of(host).add(subject, difference, required="at most 1", comparisons=3)
        if subject == "Pixels, again":
            figures.of(host).add("Pixels", 0.25, required="at most 1")
        parity.write_parity(figures)
    assert (
        page.with_suffix(".csv").read_text(encoding="utf-8")
        == """\
Compared,Required,ComfyUI 1,ComfyUI 2,Forge 2
Versions,,torch 2,torch 2,torch 2
Pixels,at most 1,3: 2.5e-01,1: 2.5e-01,3: 1.2e-01
"Pixels, again",at most 1,,3: 5.0e-01,
"""
    )
    assert (
        page.read_text(encoding="utf-8")
        == """\
before
<!-- bench hosts -->

- ComfyUI 1: torch 2
- ComfyUI 2: torch 2
- Forge 2: torch 2

| Compared | Required  |  ComfyUI 1 |  ComfyUI 2 |    Forge 2 |
| -------- | --------- | ---------: | ---------: | ---------: |
| Pictures | at most 1 | 3: 2.5e-01 | 4: 5.0e-01 | 3: 1.2e-01 |

<!-- end hosts -->
after
"""
    )


def test_the_table_of_packs_numbers_what_is_said(tmp_path: Path) -> None:
    place = tmp_path / "page.md"
    place.write_text("before\n<!-- bench packs -->\n<!-- end packs -->\nafter\n", encoding="utf-8")
    figures = Figures(about={"Pack": "1a2b"})
    figures.nodes += [["Pack", "One", "tokenize", "0", "as ours", ""], ["Pack", "Two|2", "tower", "0", "own", "b\na"]]
    figures.nodes.append(["Host", "Three", "tower", "0", "own", "a"])
    write_packs(figures, place)
    _, block, _ = place.read_text(encoding="utf-8").split("\n\n", 2)
    rows = [[cell.strip() for cell in line.split(" | ")] for line in block.splitlines()[2:]]
    assert [row[0].removeprefix("| ") for row in rows] == ["Pack 1a2b", "Pack 1a2b", "Host"]
    assert [row[5].removesuffix("|").strip() for row in rows] == ["", "(1) (2)", "(2)"]
    assert place.read_text(encoding="utf-8").endswith("(1) b\n\n(2) a\n\n<!-- end packs -->\nafter\n")


def test_the_summary_has_a_place_for_all_that_was_compared() -> None:
    lines = list(parity.Measured.read(parity.PAGE.with_suffix(".csv")).lines())
    assert not [line for line in lines if "All else" in line]
    assert "\n".join(lines) in parity.PAGE.read_text(encoding="utf-8")


def test_the_table_of_hosts_keeps_the_rows_of_those_that_were_not_there(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{MARKERS[0]}\n{MARKERS[1]}\nafter\n", encoding="utf-8")
    first, second = HostTable(), HostTable()
    first.note("tests/hosts/test_browser.py::test_a[canvas-ComfyUI 0.3.64-x]", "passed")
    first.note("tests/hosts/test_browser.py::test_a[Nodes 2.0-ComfyUI 0.3.64-x]", "skipped")
    first.note("tests/hosts/test_same_picture.py::test_b[Forge 2.0.1v1.10.1-ComfyUI 0.29.0]", "failed")
    first.note("tests/hosts/test_forge.py::test_c[no host]", "skipped")
    first.note("tests/hosts/test_forge.py::test_c[Forge Classic classic]", "passed")
    first.write(page)
    second.note("tests/hosts/test_comfyui_inprocess.py::test_d[check_all-ComfyUI 0.29.0]", "passed")
    second.write(page)
    start, *rows, end = page.read_text(encoding="utf-8").replace(MARKERS[0], "").replace(MARKERS[1], "").split("\n| ")
    cells = {row.split(" | ")[0]: row.strip(" |\n").split(" | ")[2:] for row in [*rows[2:], end.partition("\n")[0]]}
    assert (start, end.partition("\n")[2]) == ("before\n", "\nafter\n")
    assert cells == {
        "ComfyUI 0.29.0": ["1", "0", "0", "0", "none"],
        "ComfyUI 0.3.64": ["0", "1", "0, 1 skipped", "0", "none"],
        "Forge Classic classic": ["0", "0", "0", "1", "none"],
        "Forge 2.0.1v1.10.1": ["0", "0", "0", "0", "`test_same_picture.py::test_b[ComfyUI 0.29.0]`"],
    }
