"""Problems on Windows that other systems can detect: consoles, file names, files held open, access.

Nothing here has run on Windows. Its consoles are replaced by streams of their encodings, its paths by
`PureWindowsPath`, and a file that it would refuse to replace by one that is still mapped into memory.
"""

from __future__ import annotations

import ast
import errno
import io
import json
import re
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import ModuleType

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from weighted_clip.encoder.encoding import Encoding
from weighted_clip.encoder.files.checkpoint import load_text_models, seeded_text_model, seeded_vision_model
from weighted_clip.encoder.files.textual_inversion import read_embedding_file
from weighted_clip.encoder.models.clip import load_full_clip
from weighted_clip.encoder.models.config import TextConfig, VisionConfig
from weighted_clip.hosts.comfy.clip.loras import find_loras, load_loras
from weighted_clip.nodes.base import routes
from weighted_clip.studio.commands.bulk import check_name
from weighted_clip.studio.commands.program import main
from weighted_clip.studio.output.shards import ShardHead, read_head, read_shards, shard_path, write_shard
from weighted_clip.studio.training.data.datasets import _in_order, read_captions, read_data
from weighted_clip.web.lab import access
from weighted_clip.weighting.text.tags import read_loras, take_tags
from weighted_clip.weighting.timed.loras import constant

from .encoder.files import hugging_face, write
from .encoder.test_vision_model import vision_tensors

ROOT = Path(__file__).resolve().parents[1]
CONSOLES = ("cp1252", "cp437", "cp932", "ascii")
"""Western and Japanese Windows, the old console, and none at all."""
PROMPT = "日本 (red:1.4) café “x” 🐱 (open"
SMALL = TextConfig(hidden_dim=128, num_heads=2, num_layers=2, mlp_dim=256, projection_dim=32)
SMALL_IMAGE = VisionConfig(image_size=42, hidden_dim=128, num_heads=2, num_layers=2, mlp_dim=256, projection_dim=32)


# --- consoles


class Console:
    """The streams of a process on a console, or in a pipe, of some encoding."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, encoding: str, given: bytes = b"") -> None:
        self.encoding = encoding
        self.out, self.err = io.BytesIO(), io.BytesIO()
        for name, stream in (("stdout", self.out), ("stderr", self.err)):
            errors = "strict" if name == "stdout" else "backslashreplace"
            monkeypatch.setattr(sys, name, io.TextIOWrapper(stream, encoding=encoding, errors=errors, newline="\r\n"))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given), encoding=encoding))

    def run(self, *arguments: str) -> str:
        """Output of a command, which succeeds."""
        assert main(arguments) == 0, self.err.getvalue()
        sys.stdout.flush()
        return self.out.getvalue().decode(self.encoding)


@pytest.mark.parametrize("encoding", CONSOLES)
def test_a_console_that_lacks_characters_gets_escapes_for_them(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Console(monkeypatch, encoding).run("inspect", PROMPT)
    assert "1.4" in shown
    assert "is never closed" in shown
    assert "\\U0001f431" in shown  # the cat, in none of these encodings
    assert ("café" in shown.lower()) == (encoding in ("cp1252", "cp437"))


@pytest.mark.parametrize("encoding", CONSOLES)
def test_json_is_whole_on_any_console(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    everywhere = json.loads(Console(monkeypatch, "utf-8").run("inspect", PROMPT, "--json"))
    assert everywhere["text"] == PROMPT
    assert json.loads(Console(monkeypatch, encoding).run("inspect", PROMPT, "--json")) == everywhere


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["bare", "with a byte order mark"])
def test_a_prompt_from_a_file_is_utf_8_whatever_the_console(mark: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    given = mark + PROMPT.encode() + b",\r\ncat\r\n"
    view = json.loads(Console(monkeypatch, "cp1252", given).run("inspect", "-", "--json"))
    assert view["text"] == f"{PROMPT},\ncat\n"


def test_a_prompt_that_is_no_utf_8_is_in_the_consoles_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    view = json.loads(Console(monkeypatch, "cp1252", "a café".encode("cp1252")).run("inspect", "-", "--json"))
    assert view["text"] == "a café"


def test_no_escape_sequence_is_written_to_terminals() -> None:
    sources = product_files()
    assert len(sources) > 100
    assert [path for path in sources if re.search(r"\\033\[|\\x1b\[|\\e\[", path.read_text(encoding="utf-8"))] == []


# --- text in files


def product_files() -> list[Path]:
    """Our modules, without those that run in a host."""
    names = (
        "studio",
        "encoder",
        "hosts",
        "nodes",
        "web",
        "weighting",
        "workshop/bench",
        "workshop/parity",
        "scripts",
    )
    files = [path for name in names for path in sorted((ROOT / name).rglob("*.py"))]
    return [*files, ROOT / "run.py", ROOT / "__init__.py", ROOT / "__main__.py"]


def text_calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls that open a file or a pipe as text."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        is_binary = any(
            isinstance(value, ast.Constant) and isinstance(value.value, str) and "b" in value.value
            for value in (*call.args, *named.values())
        )
        is_path = owner is not None and name in ("read_text", "write_text")
        is_file = is_path or (name == "open" and not is_binary)
        is_other = isinstance(owner, ast.Name) and owner.id in ("Image", "os")
        is_pipe = name in ("run", "Popen", "check_output") and ("text" in named or "universal_newlines" in named)
        if (is_file or is_pipe) and not is_other and "encoding" not in named:
            yield call


def test_every_text_file_and_pipe_has_its_encoding() -> None:
    """Windows has another default than the systems that this was written on."""
    assert list(text_calls(ast.parse("Path(x).read_text(); open(x); run(y, text=True)")))[2:]
    for path in product_files():
        found = [call.lineno for call in text_calls(ast.parse(path.read_text(encoding="utf-8")))]
        assert found == [], path


# --- names


RESERVED = {"con", "prn", "aux", "nul", *(f"{name}{number}" for name in ("com", "lpt") for number in range(10))}


def is_windows_name(name: str) -> bool:
    """Whether Windows lets a file be called so."""
    stem = name.partition(".")[0].rstrip().lower()
    return stem not in RESERVED and not re.search(r'[<>:"/\\|?*\x00-\x1f]|[. ]$', name)


def test_the_repository_can_be_checked_out() -> None:
    assert not any(map(is_windows_name, ("nul.py", "a:b", "a.", "COM1", 'a"b')))
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
    if done.returncode or not done.stdout:
        pytest.skip("this is no git checkout")
    names = done.stdout.strip("\0").split("\0")
    assert [name for name in names if not all(map(is_windows_name, name.split("/")))] == []
    assert len({name.lower() for name in names}) == len(names)
    assert max(map(len, names)) < 100  # of 260, besides the path of custom_nodes


def test_the_names_of_shards_are_names_on_windows() -> None:
    assert all(is_windows_name(shard_path(Path("out"), first).name) for first in (0, 256, 10**9))


@pytest.mark.parametrize("name", ["a:b", "con", "sub/NUL", "com1.x", 'a"b', "what?", "C:\\x"])
def test_a_name_by_which_windows_would_write_elsewhere_is_refused_there(name: str) -> None:
    with pytest.raises(ValueError, match="Windows has no such files"):
        check_name(name, "nt")
    check_name(name, "posix")


@pytest.mark.parametrize("name", ["prompt", "a red cat", "sub/x", "console", "com12", "été"])
def test_other_names_are_allowed_there(name: str) -> None:
    check_name(name, "nt")


def test_the_ruler_knows_embeddings_as_the_front_end_of_windows_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = ModuleType("folder_paths")
    paths.__dict__["get_filename_list"] = lambda kind: ["style.pt", "sub\\ink.safetensors"]
    monkeypatch.setitem(sys.modules, "folder_paths", paths)
    monkeypatch.setattr(routes, "PurePath", PureWindowsPath)
    assert routes.embedding_names() == [
        *("ink", "style", "style.pt", "sub/ink", "sub/ink.safetensors", "sub\\ink", "sub\\ink.safetensors")
    ]


@pytest.mark.parametrize("written", ["sub\\ink", "sub/ink", "ink", "SUB/Ink"])
def test_a_lora_is_found_as_windows_lists_it(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, nodes = ModuleType("folder_paths"), ModuleType("nodes")
    paths.__dict__["get_filename_list"] = lambda kind: ["sub\\ink.safetensors", "other.safetensors"]

    class LoraLoader:
        def load_lora(self, model: list[str], clip: str, name: str, *strengths: float) -> tuple[list[str], str]:
            return [*model, name], clip

    nodes.__dict__["LoraLoader"] = LoraLoader
    for module in (paths, nodes):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    loras, _ = read_loras(take_tags(f"<lora:{written}:1>")[1])
    files = find_loras([constant(lora) for lora in loras]).loras
    assert load_loras([], "clip", files).model == ["sub\\ink.safetensors"]  # as the host called it


# --- the order and the endings of names


LISTED = ("glob", "rglob", "iterdir")
ORDERED = ("encoder", "studio", "weighting")
"""Folders where the order of files decides what is computed or written."""


def unordered(tree: ast.Module) -> Iterator[int]:
    """Lines that sort the paths of a folder as the system compares paths."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != "sorted" or call.keywords:
            continue
        (given,) = call.args
        sources = [given]
        if isinstance(given, ast.GeneratorExp | ast.ListComp):  # of the paths themselves, not of their names
            sources = [part.iter for part in given.generators] if isinstance(given.elt, ast.Name) else []
        if any(re.search(rf"\.(?:{'|'.join(LISTED)})\(", ast.unparse(source)) for source in sources):
            yield call.lineno


def test_files_are_sorted_alike_on_every_system() -> None:
    """Windows sorts paths without regard to case, so that a seed would draw other examples there."""
    bad = 'sorted(x.glob("*"))\nsorted(p for p in x.iterdir() if p)\nsorted(p.name for p in x.iterdir())'
    assert list(unordered(ast.parse(bad))) == [1, 2]
    for folder in ORDERED:
        for path in (ROOT / folder).rglob("*.py"):
            assert list(unordered(ast.parse(path.read_text(encoding="utf-8")))) == [], path


def test_data_are_read_in_the_order_of_other_systems() -> None:
    names = ["b.png", "A.png", "a.png", "B/c.png", "a/b.png", "a-b.png"]
    given = [PureWindowsPath(name) for name in names]
    assert sorted(given) != [PureWindowsPath(path) for path in sorted(map(PurePosixPath, names))]  # what is mended
    assert [path.as_posix() for path in _in_order(given)] == [str(path) for path in sorted(map(PurePosixPath, names))]


def test_endings_in_capitals_are_read_on_every_system(tmp_path: Path) -> None:
    (tmp_path / "captions").mkdir()
    (tmp_path / "captions" / "ALL.TXT").write_text("a cat\na dog\n", encoding="utf-8")
    assert [one.captions for one in read_captions(tmp_path / "captions").examples] == [("a cat",), ("a dog",)]
    with tarfile.open(tmp_path / "SHARD.TAR", "w") as shard:
        for name, content in (("1.png", png()), ("1.txt", b"a cat")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            shard.addfile(info, io.BytesIO(content))
    assert [one.captions for one in read_data(tmp_path).examples] == [("a cat",)]


def png() -> bytes:
    """A small image."""
    written = io.BytesIO()
    Image.new("RGB", (4, 4)).save(written, "PNG")
    return written.getvalue()


# --- files that are held


def is_held(path: Path) -> bool:
    """Whether a file is still open or mapped by this process, so that Windows would refuse to replace it."""
    if not Path("/proc/self/maps").exists():
        pytest.skip("only Linux tells which files a process holds")
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return str(path) in Path("/proc/self/maps").read_text(encoding="utf-8") or any(
        link.exists() and link.resolve() == path for link in links
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_loaded_encoder_does_not_hold_its_file(dtype: torch.dtype, tmp_path: Path) -> None:
    expected = dict(seeded_text_model(SMALL, dtype=dtype).state_dict())
    path = write(tmp_path / "model.safetensors", hugging_face(expected, ""))
    models, _ = load_text_models(path, dtype=dtype)
    assert not is_held(path)
    # nor does another file written over it change the model, or end the process
    path.write_bytes(b"")
    state = models["clip_l"].state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[key], tensor) for key, tensor in expected.items())


def test_a_loaded_clip_does_not_hold_its_file(tmp_path: Path) -> None:
    path = tmp_path / "clip.safetensors"
    text = hugging_face(dict(seeded_text_model(SMALL).state_dict()), "")
    write(path, {**vision_tensors(seeded_vision_model(SMALL_IMAGE)), **text, "logit_scale": torch.tensor(4.6)})
    clip = load_full_clip(path)
    assert clip.text.config == SMALL
    assert not is_held(path)


def test_a_read_embedding_does_not_hold_its_file(tmp_path: Path) -> None:
    path = tmp_path / "ink.safetensors"
    save_file({"emb_params": torch.ones(2, 8)}, path)
    vectors = read_embedding_file(path)
    assert not is_held(path)
    assert torch.equal(vectors[""], torch.ones(2, 8))


def test_read_prompts_do_not_hold_their_shard(tmp_path: Path) -> None:
    path = shard_path(tmp_path, 0)
    write_shard(path, ShardHead(0, ("a",), {}), [Encoding(torch.ones(3, 4), torch.zeros(4))])
    head, lines = read_head(path), list(read_shards(tmp_path))
    assert not is_held(path)
    assert head.texts == ("a",)
    assert torch.equal(lines[0].hidden, torch.ones(3, 4))


# --- ports


def refused_ports(monkeypatch: pytest.MonkeyPatch, error: OSError, number: int) -> list[int]:
    """Let so many ports be refused from now on; those that are asked for."""
    asked: list[int] = []

    class Socket:
        def setsockopt(self, *arguments: int) -> None: ...

        def bind(self, place: tuple[str, int]) -> None:
            asked.append(place[1])
            if len(asked) <= number:
                raise error

        def listen(self, backlog: int) -> None: ...

        def close(self) -> None: ...

    monkeypatch.setattr(socket, "socket", Socket)
    return asked


def test_a_port_that_windows_keeps_for_itself_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hyper-V reserves ranges of ports; asking for one of them is refused, not answered with “in use”."""
    error = PermissionError(errno.EACCES, "an attempt was made to access a socket in a forbidden way")
    asked = refused_ports(monkeypatch, error, 2)
    assert isinstance(access.listen(None), socket.socket)
    assert asked == [access.FIRST_PORT, access.FIRST_PORT + 1, access.FIRST_PORT + 2]
    asked.clear()
    with pytest.raises(ValueError, match="port 80 cannot be used: an attempt was made"):
        access.listen(80)


def test_twenty_ports_are_tried_before_none_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = refused_ports(monkeypatch, OSError(errno.EADDRINUSE, "Address already in use"), 20)
    with pytest.raises(ValueError, match="no port from 7867 to 7886 is free; choose one with --port"):
        access.listen(None)
    assert asked == list(range(7867, 7887))
