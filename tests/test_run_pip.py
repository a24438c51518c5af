"""run.py with a real pip, packages of our own in a folder, and settings of pip's that lead elsewhere. No network."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = {
    "torch": "torch",
    "numpy": "numpy",
    "safetensors": "safetensors",
    "tokenizers": "tokenizers",
    "pillow": "PIL",
    "ftfy": "ftfy",
}


def write_wheel(folder: Path, name: str, version: str, code: str = "") -> None:
    """A package of one module."""
    about = f"{name}-{version}.dist-info"
    files = {
        f"{MODULES[name]}.py": code,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{about}/RECORD"))
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, f"{about}/RECORD": record}.items():
            wheel.writestr(path, text)


class Project:
    """A folder with run.py, a list of packages that can be had there, and a command that imports them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.wheels, self.elsewhere = folder, folder / "wheels", folder / "elsewhere"
        self.wheels.mkdir()
        (folder / "run.py").write_bytes((ROOT / "run.py").read_bytes())
        (folder / "__main__.py").write_text(
            "import numpy, torch\nprint(f'ran with torch {torch.VERSION}, numpy {numpy.VERSION}')\n", encoding="utf-8"
        )
        self._number = 2

    def next_version(self, torch: str | None = None, *, with_torch: bool = True) -> str:
        """List a new version of every package; torch has the code given. Torch stays where it is once installed."""
        self._number += 1
        version = f"{self._number}.1"
        for name in MODULES:
            if name != "torch" or with_torch:
                write_wheel(
                    self.wheels, name, version, torch if name == "torch" and torch else f"VERSION = '{version}'\n"
                )
        self.pin(version)
        return version

    def pin(self, version: str) -> None:
        """List every package in a version, all but torch with the hash of its wheel."""
        lines = [f"torch=={version}", f"absent==1 ; python_version < '3.0' --hash=sha256:{'0' * 64}"]
        for name in MODULES:
            if name != "torch":
                digest = hashlib.sha256((self.wheels / f"{name}-{version}-py3-none-any.whl").read_bytes()).hexdigest()
                lines.append(f"{name}=={version} ; python_version >= '3.10' --hash=sha256:{digest}")
        (self.folder / "requirements").mkdir(exist_ok=True)
        for name in ("lab", "train", "dev"):
            (self.folder / "requirements" / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")

    @property
    def settings(self) -> dict[str, str]:
        """Settings of pip's by which it finds the packages."""
        return {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels)}

    def run(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run a command with no settings of pip's but those given, and no network."""
        inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith("PIP_")}
        command = [sys.executable, str(self.folder / "run.py"), *(arguments or ("--torch", "cpu", "show"))]
        return subprocess.run(
            command, cwd=self.folder, env={**inherited, **settings}, capture_output=True, text=True, check=False
        )


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """With a .venv that was set up without any odd setting, which shows that the packages can be had."""
    project = Project(tmp_path_factory.mktemp("project"))
    version = project.next_version()
    done = project.run(**project.settings)
    assert done.stdout == f"ran with torch {version}, numpy {version}\n", done.stderr
    return project


SETTINGS = {
    "dry run": {"dry-run": "1"},
    "target": {"target": "{elsewhere}"},
    "prefix": {"prefix": "{elsewhere}"},
    "root": {"root": "{elsewhere}"},
    "user": {"user": "1"},
    "another Python": {"python": sys.executable, "dry-run": "1"},
}


@pytest.mark.parametrize(
    ("odd", "place"), [(odd, ("variables", "a file")[number % 2]) for number, odd in enumerate(SETTINGS)]
)
def test_packages_go_to_the_environment_wherever_pip_is_told_to_put_them(
    project: Project, odd: str, place: str
) -> None:
    version = project.next_version()
    shutil.rmtree(project.elsewhere, ignore_errors=True)
    settings = {name: value.format(elsewhere=project.elsewhere) for name, value in SETTINGS[odd].items()}
    settings |= {"no-index": "1", "find-links": str(project.wheels)}  # these have to count
    if place == "variables":
        given = {f"PIP_{name.upper().replace('-', '_')}": value for name, value in settings.items()}
        given["PIP_CONFIG_FILE"] = os.devnull
    else:
        file = project.folder / "pip.conf"
        file.write_text("[install]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items()), "utf-8")
        given = {"PIP_CONFIG_FILE": str(file)}
    done = project.run(**given)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f", numpy {version}\n")
    assert not project.elsewhere.exists()


def test_a_constraint_of_the_user_still_counts(project: Project) -> None:
    project.next_version()
    limit = project.folder / "limit.txt"
    limit.write_text("numpy<1\n", encoding="utf-8")
    done = project.run(**project.settings, PIP_CONSTRAINT=str(limit), PIP_QUIET="1")
    assert done.returncode == 1
    assert "pip failed" in done.stderr
    assert "numpy" in done.stderr


def test_a_path_of_the_callers_is_no_place_for_packages(project: Project) -> None:
    version = project.next_version()
    beside = project.folder / "beside"
    with zipfile.ZipFile(project.wheels / f"numpy-{version}-py3-none-any.whl") as wheel:
        wheel.extractall(beside)
    assert project.run(**project.settings, PYTHONPATH=str(beside)).returncode == 0
    done = project.run(**project.settings)
    assert done.stdout.endswith(f", numpy {version}\n"), done.stderr


def test_what_is_not_there_after_all_is_named_and_nothing_is_called_ready(project: Project) -> None:
    version = project.next_version()
    broken = project.wheels / f"numpy-{version}-py3-none-any.whl"
    broken.unlink()
    write_wheel(project.wheels, "numpy", version, "raise OSError('no library')")
    project.pin(version)
    for _ in range(2):  # it is not remembered as ready
        done = project.run(**project.settings)
        assert done.returncode == 1
        assert "ran" not in done.stdout
        assert "import numpy: OSError: no library" in done.stderr
        assert "PIP_CONFIG_FILE, PIP_FIND_LINKS, PIP_NO_INDEX" in done.stderr
        assert "Traceback" not in done.stderr
    version = project.next_version()
    assert project.run(**project.settings).stdout.endswith(f", numpy {version}\n")


def test_versions_are_asked_of_the_environment(project: Project) -> None:
    """Needed because pip can do nothing at all and report success."""
    project.next_version()
    pip = next((project.folder / ".venv").rglob("site-packages/pip"))
    start = pip / "__main__.py"
    kept = start.read_bytes()
    start.write_text("import sys\nsys.exit(0)\n", encoding="utf-8")
    try:
        done = project.run(PIP_CONFIG_FILE=os.devnull, PIP_TARGET=str(project.elsewhere))
    finally:
        start.write_bytes(kept)
    assert done.returncode == 1
    assert f"numpy=={project._number}.1: {project._number - 1}.1 is there" in done.stderr
    assert "PIP_TARGET" in done.stderr
    assert "absent" not in done.stderr  # its marker leaves it out
    assert "Traceback" not in done.stderr


def test_without_torch_all_else_is_set_up_and_a_command_says_what_it_lacks(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.next_version(with_torch=False)
    (tmp_path / "__main__.py").write_bytes((ROOT / "__main__.py").read_bytes())
    (tmp_path / "__init__.py").write_text("import numpy, torch\n", encoding="utf-8")  # as what encodes does
    done = project.run("--torch", "skip", "inspect", "a cat", **project.settings)
    assert done.returncode == 1
    assert "Ready after" in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("weighted-clip: ")
    assert "has no torch" in last
    assert "--torch auto, cpu or cuda" in last
    assert "Traceback" not in done.stderr
