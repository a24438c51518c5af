"""Full disks, folders that are read-only or not there, and kills: old files stay whole, and what is wrong is said."""

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from weighted_clip.encoder.encoding import Encoding
from weighted_clip.encoder.files.checkpoint import seeded_text_model, seeded_vision_model
from weighted_clip.encoder.models.config import TextConfig, VisionConfig
from weighted_clip.nodes.base import results
from weighted_clip.studio.commands.program import main
from weighted_clip.studio.commands.rerank import _copy
from weighted_clip.studio.output.export import write_conditioning
from weighted_clip.studio.output.files import TEMPORARY_SUFFIX, WriteError, written_whole
from weighted_clip.web.lab.model import LabError
from weighted_clip.web.lab.native import NativeLabModel
from weighted_clip.web.lab.tabs.study import export
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.workshop.bench import page as benchmarks_page
from weighted_clip.workshop.parity import report

from ..patience import SECONDS
from ..transformers_clip import write_clip
from .disks import ROOT, environment, file_limit, filled, mounted, program, read_only, snapshot

TEXT = TextConfig(hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=64, projection_dim=32)
VISION = VisionConfig(image_size=28, hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=64, projection_dim=32)
ROWS = Encoding(torch.ones(1, 77, 64), torch.ones(1, 64))
KIB = 1024


@pytest.fixture(params=["a limit", "a full disk"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator["Disk"]:
    if request.param == "a limit":
        yield Disk(tmp_path / "out", None)
        return
    with mounted(tmp_path / "disk", "512k") as folder:
        yield Disk(folder / "out", folder)


class Disk:
    """A folder in which there is soon no more room."""

    def __init__(self, folder: Path, disk: Path | None) -> None:
        folder.mkdir()
        self.folder, self._disk = folder, disk

    @contextmanager
    def full(self, left: int = 8 * KIB) -> Iterator[None]:
        if self._disk is None:
            with file_limit(left):
                yield
            return
        filled(self._disk, left=left)
        try:
            yield
        finally:
            (self._disk / "filling").unlink()


def encode(weights: Path, out: Path, *arguments: str) -> int:
    return main(["encode", "a (red:1.3) cat", "--weights", str(weights), "--out", str(out), *arguments])


def test_the_old_file_is_whole_and_alone_after_a_full_disk(disk: Disk) -> None:
    path = disk.folder / "prompt.safetensors"
    write_conditioning(path, ROWS, "old", EncodeOptions(), {})
    before = snapshot(disk.folder)
    with disk.full(), pytest.raises(OSError, match=r"prompt\.safetensors cannot be written: "):
        write_conditioning(path, ROWS, "new", EncodeOptions(), {})
    assert snapshot(disk.folder) == before
    assert [entry.name for entry in disk.folder.iterdir()] == [path.name]
    write_conditioning(path, ROWS, "new", EncodeOptions(), {})
    with safe_open(path, "pt") as file:
        assert file.metadata()["prompt"] == "new"


def test_a_new_file_has_the_rights_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    write_conditioning(tmp_path / "prompt.safetensors", ROWS, "", EncodeOptions(), {})
    assert (tmp_path / "prompt.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_of_a_link_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "target.txt", tmp_path / "link.txt"
    target.write_text("old")
    link.symlink_to(target)
    with written_whole(link) as place:
        place.write_text("new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_encode_leaves_tensors_and_pictures_of_one_run(disk: Disk, weights: Path, capsys) -> None:
    assert encode(weights, disk.folder) == 0
    before = snapshot(disk.folder)
    assert len(before) == 3
    for left in (2 * KIB, 16 * KIB):  # no picture has room, or the tensors have none
        with disk.full(left):
            assert encode(weights, disk.folder, "--scheme", "comfy") == 1
        shown, error = capsys.readouterr()
        assert "cannot be written: " in error
        assert "Traceback" not in shown + error
        assert "wrote" not in shown.rpartition("clip_l:")[2]
        assert snapshot(disk.folder) == before
        assert not list(disk.folder.glob(f"*{TEMPORARY_SUFFIX}"))


def test_a_bulk_run_keeps_its_whole_shards(disk: Disk, weights: Path, tmp_path: Path, capsys) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a cat\na dog\n", encoding="utf-8")
    command = ["encode", "--batch", str(prompts), "--weights", str(weights), "--shard-size", "1", "--no-pictures"]
    command += ["--out", str(disk.folder)]
    with disk.full(1 * KIB):
        assert main(command) == 1
    assert "prompts-00000000.safetensors cannot be written: " in capsys.readouterr().err
    assert list(disk.folder.iterdir()) == []
    assert main(command) == 0
    assert len(snapshot(disk.folder)) == 2


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny whole CLIP, and a folder of two pictures."""
    folder = tmp_path_factory.mktemp("images")
    write_clip(folder / "clip.safetensors", seeded_text_model(TEXT), seeded_vision_model(VISION))
    (folder / "pictures").mkdir()
    for name in ("one", "two"):
        noise = Image.frombytes("RGB", (100, 100), os.urandom(30_000))
        noise.save(folder / "pictures" / f"{name}.png")
    return folder / "clip.safetensors", folder / "pictures"


def test_rerank_copies_all_or_none(disk: Disk, images: tuple[Path, Path], capsys) -> None:
    clip, pictures = images
    size = (pictures / "one.png").stat().st_size
    command = ["rerank", "a cat", str(pictures), "--weights", str(clip), "--copy", str(disk.folder)]
    with disk.full(size // 2):
        assert main(command) == 1
    assert "cannot be written: " in capsys.readouterr().err
    assert list(disk.folder.iterdir()) == []
    with disk.full(size + size // 2):
        if disk._disk is not None:  # the first has room, the second has none
            assert main(command) == 1
            assert list(disk.folder.iterdir()) == []
    assert main(command) == 0
    assert len(snapshot(disk.folder)) == 2
    before = snapshot(disk.folder)
    assert main(command) == 0  # the same bytes are there already
    assert "2 were in " in capsys.readouterr().err
    assert snapshot(disk.folder) == before
    copy = next(disk.folder.glob("1-*"))
    copy.write_bytes(b"mine")
    assert main(command) == 1  # never overwrites
    assert f"{copy} exists and is not overwritten" in capsys.readouterr().err
    assert snapshot(disk.folder) == {**before, copy.name: b"mine"}


def test_a_copy_never_takes_the_place_of_a_file_that_came_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "1-cat.png"
    refused = pytest.raises(OSError, match=r"1-cat\.png cannot be written: File exists")
    with refused, written_whole(path, may_replace=False) as place:
        place.write_text("ours")
        path.write_text("theirs")
    assert snapshot(tmp_path) == {"1-cat.png": b"theirs"}


def test_a_picture_that_cannot_be_read_is_named_and_not_its_copies(images: tuple[Path, Path], tmp_path: Path) -> None:
    _, pictures = images
    gone = tmp_path / "gone.png"
    ranked = [(1, 0.9, pictures / "one.png"), (2, 0.8, pictures / "two.png"), (3, 0.7, gone)]
    with pytest.raises(FileNotFoundError) as raised:
        _copy(ranked, tmp_path / "out")
    assert raised.value.filename == str(gone)
    assert not (tmp_path / "out").exists()


def test_what_fails_among_several_files_is_named_alone(tmp_path: Path) -> None:
    refused = pytest.raises(WriteError, match=r"second cannot be written: No space left on device$")
    with refused as raised, ExitStack() as files:
        for name in ("first", "second"):
            place = files.enter_context(written_whole(tmp_path / name))
            place.write_bytes(b"x")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert "first" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="the longest name of a file is another there")
def test_the_longest_names_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / f"{'x' * 251}.png"
    with written_whole(path) as place:
        assert place.suffix == ".png"
        place.write_bytes(b"new")
    assert snapshot(tmp_path) == {path.name: b"new"}


@pytest.mark.skipif(os.name != "posix", reason="only POSIX has such permissions")
def test_a_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "chart.png"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with written_whole(path) as place:
        place.write_bytes(b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_chart_replaces_the_old_one_whole(disk: Disk, images: tuple[Path, Path], capsys) -> None:
    clip, pictures = images
    chart = disk.folder / "chart.png"
    chart.write_bytes(b"the old one")
    with disk.full(2 * KIB):
        assert main(["rerank", "a cat", str(pictures), "--weights", str(clip), "--chart", str(chart)]) == 1
    assert "chart.png cannot be written: " in capsys.readouterr().err
    assert snapshot(disk.folder) == {"chart.png": b"the old one"}


def test_the_lab_says_it_on_its_page(disk: Disk, lab_model: NativeLabModel) -> None:
    with disk.full(), pytest.raises(LabError, match=r"prompt\.safetensors cannot be written: "):
        export(lab_model, "a cat", EncodeOptions(), disk.folder / "prompt.safetensors")
    assert list(disk.folder.iterdir()) == []


def test_a_preview_in_comfyui_leaves_no_half_picture(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    from ..comfy_nodes import fake_comfy

    fake_comfy.install(monkeypatch)
    monkeypatch.setattr(sys.modules["folder_paths"], "get_temp_directory", lambda: str(disk.folder), raising=False)
    noise = Image.frombytes("RGB", (100, 100), os.urandom(30_000))
    with disk.full(), pytest.raises(OSError, match=r"No space left|File too large"):
        results.with_preview({"ui": {}}, noise)
    assert list(disk.folder.iterdir()) == []
    assert results.with_preview({"ui": {}}, noise)["ui"]["images"][0]["type"] == "temp"


def test_pages_of_the_repository_keep_their_old_text(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    page = disk.folder / "PAGE.md"
    blocks = (f"<!-- bench {name} -->\nold\n<!-- end {name} -->\n" for name in ("x", "schemes"))
    page.write_text("".join(blocks), encoding="utf-8")
    monkeypatch.setattr(report, "PAGE", page)
    before = snapshot(disk.folder)
    with disk.full(512 if disk._disk is None else 0):
        with pytest.raises(OSError, match=r"PAGE\.md cannot be written: "):
            benchmarks_page.write({"x": "new" * 2000}, page)
        with pytest.raises(OSError, match=r"PAGE\.md cannot be written: "):
            report.write_page([report.Absence("host", "word" * 2000)], {})
    assert snapshot(disk.folder) == before


KILLED = """
import os, runpy, signal, sys
from pathlib import Path
written_whole = runpy.run_path(sys.argv[2])["written_whole"]
with written_whole(Path(sys.argv[1])) as place:
    place.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no kill")
def test_a_kill_while_writing_leaves_the_old_file_and_the_next_run_cleans_up(tmp_path: Path) -> None:
    path = tmp_path / "prompt.safetensors"
    write_conditioning(path, ROWS, "old", EncodeOptions(), {})
    before = path.read_bytes()
    command = [sys.executable, "-c", KILLED, str(path), str(ROOT / "studio" / "output" / "files.py")]
    assert subprocess.run(command, env=environment(), check=False).returncode == -signal.SIGKILL
    left = path.with_name(path.name + TEMPORARY_SUFFIX)
    assert [path.read_bytes() for path in left.rglob("whole.*")] == [b"half"]
    assert path.read_bytes() == before
    write_conditioning(path, ROWS, "new", EncodeOptions(), {})
    assert list(path.parent.iterdir()) == [path]


def test_an_output_stream_without_room_is_told_and_ends_the_program(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = program("inspect", "a cat", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.strip() == "weighted-clip: [Errno 28] No space left on device"


# ---- folders that cannot be written to


@pytest.mark.parametrize("inner", ["", "new"])
@pytest.mark.parametrize("command", [["a cat"], ["--batch", "prompts.txt"]])
def test_an_output_folder_that_cannot_be_written_to_is_named(
    command: list[str], inner: str, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text("a cat\n", encoding="utf-8")
    out = tmp_path / "out"
    out.mkdir()
    (out / "prompt.safetensors").write_bytes(b"old")
    with read_only(out):
        assert main(["encode", *command, "--weights", str(weights), "--out", str(out / inner)]) == 1
    shown, error = capsys.readouterr()
    assert str(out) in error
    assert "Traceback" not in shown + error
    assert snapshot(out) == {"prompt.safetensors": b"old"}


def test_a_file_in_a_folder_that_cannot_be_written_to_is_named_and_stays(tmp_path: Path) -> None:
    chart = tmp_path / "out" / "chart.png"
    chart.parent.mkdir()
    chart.write_bytes(b"old")
    refused = pytest.raises(OSError, match=r"chart\.png cannot be written: (Read-only|Permission)")
    with read_only(chart.parent), refused, written_whole(chart):
        pytest.fail("there is no place to write at")
    assert snapshot(tmp_path) == {"out/chart.png": b"old"}


PACK = """
import sys
sys.dont_write_bytecode = False
import weighted_clip
from weighted_clip.studio.commands.program import main
assert weighted_clip.NODE_CLASS_MAPPINGS
sys.exit(main(sys.argv[1:]))
"""


def copied_pack(folder: Path) -> Path:
    """The pack as an installer leaves it: no tests, no caches."""
    kept = shutil.ignore_patterns("tests", "docs", "__pycache__", ".*", "out", "example_workflows")
    return Path(shutil.copytree(ROOT, folder / "weighted_clip", ignore=kept))


@pytest.mark.skipif(os.name != "posix", reason="mounts and modes of POSIX")
def test_a_pack_in_a_read_only_folder_works_without_a_home_and_writes_nothing(weights: Path, tmp_path: Path) -> None:
    place = tmp_path / "custom_nodes"
    pack = copied_pack(place)
    before = snapshot(pack)
    nowhere = {name: "/nonexistent" for name in ("HOME", "XDG_CACHE_HOME", "TMPDIR")}
    given = environment(PYTHONPATH=str(place), **nowhere)
    given.pop("PYTHONDONTWRITEBYTECODE")
    command = [
        sys.executable,
        "-c",
        PACK,
        "encode",
        "a (red:1.3) cat",
        "--weights",
        str(weights),
        "--out",
        "out",
    ]
    with read_only(place):
        done = subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert snapshot(pack) == before
    assert len(snapshot(tmp_path / "out")) == 3


def test_the_lab_says_that_there_is_no_place_for_temporary_files(tmp_path: Path) -> None:
    pytest.importorskip("gradio")
    blocker = "import tempfile; tempfile.tempdir = '/nonexistent'; "
    code = f"import sys; {blocker}sys.argv = ['x', 'lab', '--no-browser', '--port', '0']; import runpy; "
    code += f"runpy.run_path({str(ROOT / '__main__.py')!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 1
    assert "weighted-clip: [Errno 2] No such file or directory: '/nonexistent/" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_lack_of_memory_is_said_without_a_traceback(monkeypatch: pytest.MonkeyPatch, weights: Path, capsys) -> None:
    for error in (
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory"),
    ):

        def fail(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr("weighted_clip.encoder.files.checkpoint.load_text_models", fail)
        assert main(["encode", "a cat", "--weights", str(weights)]) == 1
        message = capsys.readouterr().err
        assert message.startswith("weighted-clip: there is not enough memory (")
        assert str(error) in message
    monkeypatch.setattr("weighted_clip.encoder.files.checkpoint.load_text_models", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # a fault of ours is shown as one
        main(["encode", "a cat", "--weights", str(weights)])
