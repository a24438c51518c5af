"""run.py's pure functions, and the lists that have to agree with one another. Installs nothing."""

import hashlib
import importlib.util
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"


@pytest.fixture(scope="module")
def run() -> ModuleType:
    """run.py, loaded by path."""
    spec = importlib.util.spec_from_file_location("weighted_clip_run", ROOT / "run.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def project() -> dict:
    """pyproject.toml."""
    tomllib = pytest.importorskip("tomllib")
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("arguments", "choice", "rest"),
    [
        ([], "auto", []),
        (["inspect", "--torch", "cpu"], "auto", ["inspect", "--torch", "cpu"]),
        (["--torch", "cpu", "test", "-k", "x"], "cpu", ["test", "-k", "x"]),
        (["--torch=skip"], "skip", []),
        (["--help", "--nonsense"], "help", []),
        (["test", "--help"], "auto", ["test", "--help"]),
    ],
)
def test_options_stand_before_the_command(run: ModuleType, arguments: list[str], choice: str, rest: list[str]) -> None:
    assert run.parse_arguments(arguments) == (choice, rest)


@pytest.mark.parametrize("arguments", [["--torch"], ["--torch", "rocm"], ["--touch", "cpu"], ["-x"]])
def test_wrong_options_are_refused_by_name(run: ModuleType, arguments: list[str]) -> None:
    with pytest.raises(run.SetupError, match=r"--torch|--touch|-x"):
        run.parse_arguments(arguments)


def test_requirements_follow_files_and_drop_comments(run: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("# head\n-r b.txt\nx==1  # why\n\ny==2 ; python_version < '3.11'\n")
    (tmp_path / "b.txt").write_text("z[extra]==3\n")
    assert run.read_requirements(tmp_path / "a.txt") == ["z[extra]==3", "x==1", "y==2 ; python_version < '3.11'"]


def test_hashes_in_the_lines_below_belong_to_a_requirement(run: ModuleType, tmp_path: Path) -> None:
    one, two = (f"--hash=sha256:{digit * 64}" for digit in "12")
    (tmp_path / "a.txt").write_text(
        f"x==1 ; python_version < '3.11' \\\n    {one} \\\n    {two}\n# why\ny==2 \\\n    {two}\n"
    )
    first, second = run.read_requirements(tmp_path / "a.txt")
    assert (first, second) == (f"x==1 ; python_version < '3.11' {one} {two}", f"y==2 {two}")
    assert run.without_hashes(first) == "x==1 ; python_version < '3.11'"
    assert run.digest([first]) != run.digest([run.without_hashes(first)])


def test_all_that_is_installed_but_torch_is_pinned_by_hash(run: ModuleType) -> None:
    lines = run.read_requirements(ROOT / "requirements/dev.txt")
    assert [line for line in lines if not re.search(r" --hash=sha256:[0-9a-f]{64}( |$)", line)] == ["torch==2.13.0"]
    assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", part) for line in lines for part in line.split(" --hash=")[1:])


@pytest.mark.parametrize(
    ("choice", "has_torch", "checked", "unchecked"),
    [
        ("auto", False, ["pillow", "torchvision"], ["torch"]),
        ("cpu", False, ["pillow"], ["torch", "torchvision"]),
        ("cuda", False, ["pillow"], ["torch", "torchvision"]),
        ("cpu", True, ["pillow", "torchvision"], []),
        ("skip", False, ["pillow", "torchvision"], []),
    ],
)
def test_only_torch_and_what_is_built_for_it_is_installed_without_a_hash(
    run: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    choice: str,
    has_torch: bool,
    checked: list[str],
    unchecked: list[str],
) -> None:
    lines = ["torch==2.13.0", *(f"{name}==1 \\\n    --hash=sha256:{'0' * 64}" for name in ("pillow", "torchvision"))]
    (tmp_path / "requirements").mkdir()
    for name in ("lab", "train", "dev"):
        (tmp_path / "requirements" / f"{name}.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / ".venv").mkdir()
    found = {"python": run.PYTHON, "pip": True, "torch": "2.13.0" if has_torch else None}
    calls: list[list[str]] = []
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(run, "STAMP", tmp_path / ".venv" / "stamp.json")
    monkeypatch.setattr(run, "probe", lambda: found)
    verified: list[str] = []
    monkeypatch.setattr(run, "pip_install", lambda arguments, advice: calls.append(arguments))
    monkeypatch.setattr(run, "verify", lambda pins, imports: verified.extend(pins))
    run.prepare("dev", choice)
    assert verified == ["torch==2.13.0"] * ("torch" in unchecked) + ["pillow==1", "torchvision==1"]
    assert {"--no-deps", "--require-hashes"} <= set(calls[0])
    listed = run.read_requirements(Path(calls[0][calls[0].index("-r") + 1]))
    assert listed == [f"{name}==1 --hash=sha256:{'0' * 64}" for name in checked]
    versions = {"torch": "torch==2.13.0", "torchvision": "torchvision==1"}
    assert [call[-len(unchecked) :] for call in calls[1:]] == [[versions[name] for name in unchecked]] * bool(unchecked)
    assert not any("hash" in argument for call in calls[1:] for argument in call)


def test_a_file_whose_hash_is_not_in_the_list_is_refused_in_words(
    run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "zqone-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("zqone-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: zqone\nVersion: 1\n")
        wheel.writestr("zqone-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("zqone-1.dist-info/RECORD", "")
    others = "".join(f" --hash=sha256:{number:064x}" for number in range(40))
    (tmp_path / "list.txt").write_text(f"zqone==1{others}\n")
    monkeypatch.setattr(run, "VENV_PYTHON", Path(sys.executable))
    where = ["--target", str(tmp_path / "installed"), "--no-index", "--find-links", str(tmp_path)]
    with pytest.raises(run.SetupError) as caught:
        run.pip_install([*where, "--no-deps", "--require-hashes", "-r", str(tmp_path / "list.txt")], "Try again.")
    published = hashlib.sha256((tmp_path / "zqone-1-py3-none-any.whl").read_bytes()).hexdigest()
    assert re.search(rf"zqone==1 from [^\n]*\n.*Got +{published}", str(caught.value))
    assert str(caught.value).endswith("is none of those in the list. Nothing of it was run.")
    assert not (tmp_path / "installed").exists()


@pytest.mark.parametrize(
    ("version", "usable"),
    [("2.1.0", True), ("2.13.0+cpu", True), ("10.0", True), ("2.0.1+cu118", False), ("1.13", False), (None, False)],
)
def test_torch_versions_compare_as_numbers(run: ModuleType, version: str | None, usable: bool) -> None:
    assert run.is_usable_torch(version) is usable


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], [str(TESTS)]),
        (["-k", "blend"], ["-k", "blend", str(TESTS)]),
        (["--hosts", "hosts dir", "-x"], [f"--hosts={ROOT / 'hosts dir'}", "-x", str(TESTS)]),
        (["--cases=tests"], [f"--cases={TESTS}", str(TESTS)]),
        (["--cases", "tests"], [f"--cases={TESTS}", str(TESTS)]),
        (["tests/test_run.py::test_x", "-v"], ["tests/test_run.py::test_x", "-v"]),
        (["-k", "tests"], ["-k", "tests", str(TESTS)]),
        (["--cov", "tests"], [f"--cov={ROOT}", f"--cov-config={ROOT / 'pyproject.toml'}", "tests"]),
    ],
)
def test_pytest_gets_absolute_folders_and_a_default_path(
    run: ModuleType, arguments: list[str], expected: list[str]
) -> None:
    result = run.pytest_arguments(arguments, ROOT, TESTS)
    assert result == ["-c", str(TESTS / "pytest.ini"), "--rootdir", str(TESTS), *expected]


def test_venv_is_rebuilt_only_for_a_reason(run: ModuleType) -> None:
    found = {"python": run.PYTHON, "pip": True, "torch": None}
    assert run.reason_to_rebuild({}, found) is None
    assert run.reason_to_rebuild({"place": str(run.VENV)}, found) is None
    assert "broken" in run.reason_to_rebuild({}, None)
    assert "broken" in run.reason_to_rebuild({}, {**found, "pip": False})
    assert "3.9" in run.reason_to_rebuild({}, {**found, "python": "3.9"})
    assert "/elsewhere" in run.reason_to_rebuild({"place": "/elsewhere"}, found)


def linked(run: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[Path, bytes]]:
    """A checkout whose .venv is a link to a finished environment of another one: its place, and what is in it."""
    other, root = folder / "other" / ".venv", folder / "this"
    other.mkdir(parents=True)
    root.mkdir()
    (root / ".venv").symlink_to(other, target_is_directory=True)
    (root / "requirements").mkdir()
    (root / "requirements/lab.txt").write_text("a==1\n")
    monkeypatch.setattr(run, "ROOT", root)
    monkeypatch.setattr(run, "VENV", root / ".venv")
    monkeypatch.setattr(run, "STAMP", root / ".venv" / "weighted-clip.json")
    monkeypatch.setattr(run, "pip_install", lambda arguments, advice: (root / ".venv" / "new").touch())
    (other / "pyvenv.cfg").write_text("home = elsewhere\n")
    (other / "weighted-clip.json").write_text(json.dumps({"place": str(other), "lab": run.digest(["a==1"])}))
    return other, {path: path.read_bytes() for path in other.iterdir()}


def test_an_environment_behind_a_link_is_used_as_it_is(
    run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, files = linked(run, tmp_path, monkeypatch)
    monkeypatch.setattr(run, "probe", lambda: {"python": run.PYTHON, "pip": True, "torch": "2.13.0"})
    run.prepare("lab", "auto")
    assert {path: path.read_bytes() for path in other.iterdir()} == files


@pytest.mark.parametrize("fault", ["broken", "of another Python", "other packages", "no target"])
def test_an_environment_behind_a_link_is_never_changed(
    run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    other, files = linked(run, tmp_path, monkeypatch)
    python = "3.9" if fault == "of another Python" else run.PYTHON
    found = {"python": python, "pip": True, "torch": "2.13.0"}
    monkeypatch.setattr(run, "probe", lambda: None if fault in ("broken", "no target") else found)
    if fault == "other packages":
        (run.ROOT / "requirements/lab.txt").write_text("a==2\n")
    if fault == "no target":
        other.rename(tmp_path / "gone")
        other, files = tmp_path / "gone", {tmp_path / "gone" / path.name: text for path, text in files.items()}
    with pytest.raises(run.SetupError, match=r"is a link to .*other.*remove the link"):
        run.prepare("lab", "auto")
    assert {path: path.read_bytes() for path in other.iterdir()} == files
    assert run.VENV.is_symlink()


def test_no_package_is_pinned_in_two_files(run: ModuleType) -> None:
    lab, train, dev = (run.read_requirements(ROOT / "requirements" / f"{name}.txt") for name in ("lab", "train", "dev"))
    assert train[: len(lab)] == lab
    assert dev[: len(train)] == train
    names = [{line.partition("==")[0].lower() for line in part} for part in (lab, train[len(lab) :], dev[len(train) :])]
    assert "gradio" in names[0]
    assert "accelerate" in names[1]
    assert "pytest" in names[2]
    assert len(names[0] | names[1] | names[2]) == sum(map(len, names))


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["train", "--help"], "train"),
        (["dalle", "train-vae", "data"], "train"),
        (["dalle", "train", "data"], "train"),
        (["dalle", "demo", "out"], "train"),
        (["world", "train", "out"], "train"),
        (["world", "sample", "world"], "lab"),
        (["dalle", "sample", "model"], "lab"),
        (["dalle"], "lab"),
        (["dalle", "shapes", "out"], "lab"),
        (["lab"], "lab"),
        (["check"], "dev"),
    ],
)
def test_a_command_gets_the_packages_that_it_needs(
    run: ModuleType, monkeypatch: pytest.MonkeyPatch, command: list[str], name: str
) -> None:
    prepared: list[str] = []
    monkeypatch.setattr(run, "prepare", lambda name, choice: prepared.append(name))
    monkeypatch.setattr(run, "hand_over", lambda arguments: 0)
    monkeypatch.setattr(run, "check", lambda: 0)
    assert run.main(command) == 0
    assert prepared == [name]


def test_training_on_an_old_python_is_refused_in_words(run: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.sys, "version_info", (3, 10, 9))
    with pytest.raises(run.SetupError, match=r"train needs Python 3\.11 or newer"):
        run.main(["train", "data"])


def test_a_larger_set_of_packages_stands_for_the_smaller_ones(
    run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "requirements").mkdir()
    for name, text in {"lab": "a==1\n", "train": "-r lab.txt\nb==1\n", "dev": "c==1\n"}.items():
        (tmp_path / "requirements" / f"{name}.txt").write_text(text)
    (tmp_path / ".venv").mkdir()
    calls: list[list[str]] = []
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(run, "STAMP", tmp_path / ".venv" / "stamp.json")
    monkeypatch.setattr(run, "probe", lambda: {"python": run.PYTHON, "pip": True, "torch": "2.13.0"})
    monkeypatch.setattr(run, "pip_install", lambda arguments, advice: calls.append(arguments))
    monkeypatch.setattr(run, "verify", lambda pins, imports: None)
    for name in ("train", "lab", "train"):
        run.prepare(name, "auto")
    assert len(calls) == 1
    run.prepare("dev", "auto")
    assert len(calls) == 2


def test_project_depends_on_what_requirements_txt_lists(run: ModuleType, project: dict) -> None:
    assert project["project"]["dependencies"] == run.read_requirements(ROOT / "requirements.txt")


def test_stand_alone_pins_cover_the_requirements_of_the_pack(run: ModuleType) -> None:
    pinned = {line.partition("==")[0] for line in run.read_requirements(ROOT / "requirements/lab.txt")}
    wanted = {line.partition(">=")[0].lower() for line in run.read_requirements(ROOT / "requirements.txt")}
    assert wanted <= pinned


def test_every_package_folder_is_built(project: dict) -> None:
    tops = (
        "encoder",
        "studio",
        "weighting",
        "hosts",
        "nodes",
        "web",
        "workshop",
    )
    folders = [init.parent.relative_to(ROOT) for top in tops for init in (ROOT / top).rglob("__init__.py")]
    names = {".".join(["weighted_clip", *folder.parts]) for folder in folders}
    assert set(project["tool"]["setuptools"]["packages"]) == {"weighted_clip", *names}


def test_installed_files_are_there_and_say_that_there_are_types(project: dict) -> None:
    files = project["tool"]["setuptools"]["package-data"]
    assert "py.typed" in files["weighted_clip"]
    for name, patterns in files.items():
        folder = ROOT.joinpath(*name.split(".")[1:])
        assert {pattern for pattern in patterns if not any(folder.glob(pattern))} == set()


def test_web_folder_is_registered_in_one_place_only(project: dict) -> None:
    assert "web" not in project["tool"]["comfy"]


@pytest.mark.parametrize(
    ("content", "known"),
    [
        (b"", {}),
        (b"\xff\x00\xfe", {}),
        (b"[" * 100_000, {}),
        (b"7", {}),
        (b'["place"]', {}),
        (b'[["place", "/elsewhere"]]', {}),
        (
            b'{"place": {"path": "/elsewhere"}, "python": 3.11, "lab": null, "torch": "cpu", "news": [1]}',
            {"torch": "cpu"},
        ),
    ],
)
def test_a_broken_or_newer_record_is_no_reason_to_install_anew(
    run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, known: dict[str, str]
) -> None:
    monkeypatch.setattr(run, "STAMP", tmp_path / "stamp.json")
    run.STAMP.write_bytes(content)
    assert run.read_stamp() == known
    assert run.reason_to_rebuild(run.read_stamp(), {"python": run.PYTHON, "pip": True, "torch": None}) is None


def test_the_record_is_replaced_whole(run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(run, "STAMP", tmp_path / "stamp.json")
    run.write_stamp({"lab": "old"})
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, old[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            run.write_stamp({"lab": "new" * 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert run.read_stamp() == {"lab": "old"}
    assert [path.name for path in tmp_path.iterdir()] == ["stamp.json"]
    run.write_stamp({"lab": "new"})
    assert run.read_stamp() == {"lab": "new"}


def test_two_processes_write_the_record_at_once(
    run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = f"""
import importlib.util, pathlib
spec = importlib.util.spec_from_file_location("run", {str(ROOT / "run.py")!r})
run = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run)
run.STAMP = pathlib.Path({str(tmp_path / "stamp.json")!r})
run.write_stamp({{"lab": "theirs"}})
"""
    real = Path.replace

    def replace(path: Path, target: Path) -> Path:
        assert subprocess.run([sys.executable, "-c", other], check=False).returncode == 0
        assert run.read_stamp() == {"lab": "theirs"}
        return real(path, target)

    monkeypatch.setattr(run, "STAMP", tmp_path / "stamp.json")
    monkeypatch.setattr(Path, "replace", replace)
    run.write_stamp({"lab": "ours"})
    assert run.read_stamp() == {"lab": "ours"}
    assert [path.name for path in tmp_path.iterdir()] == ["stamp.json"]


def test_a_folder_that_cannot_be_written_to_is_said_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_bytes((ROOT / "run.py").read_bytes())
    (tmp_path / "requirements").mkdir()
    for name in ("lab", "train", "dev"):
        (tmp_path / "requirements" / f"{name}.txt").write_text("torch==2.13.0\n", encoding="utf-8")
    (tmp_path / ".venv").write_text("a file where the environment shall be", encoding="utf-8")
    done = subprocess.run([sys.executable, tmp_path / "run.py", "inspect"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("run.py: ")
    assert str(tmp_path / ".venv") in done.stderr.splitlines()[-1]
