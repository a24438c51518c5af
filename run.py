"""Make a virtual environment next to this file, install what is needed, run Weighted CLIP.

    python run.py [options] [command ...]

Commands:
    test [pytest arguments]  install the development set, run the tests
    check                    install the development set, run ruff, pyright, import-linter and the registry's rules
    nothing                  the same as lab
{commands}

train and the parts of dalle and world that train install the training set first; all others need only that of the lab.
`python run.py inspect --help` shows the help of a command, with examples.

Options, only before the command:
    --torch auto             use a torch >= 2.1 of the Python that runs this file; if it has none,
                             install the pinned one from pip's index (default)
    --torch cpu              install torch without CUDA from PyTorch's own index (small)
    --torch cuda             install torch with CUDA from PyTorch's own index (large)
    --torch skip             install no torch: for a .venv that gets its own from elsewhere
    --help                   show this text
    --version                show the version of Weighted CLIP

A torch that is already in .venv is always kept. Delete .venv to start afresh. If it is a link to an environment, that
is used as it is, or refused, but never changed. Your pip settings apply (index,
proxy, certificates, cache, constraints), except those that make it install nothing, or elsewhere.
"""

import sys

if sys.version_info < (3, 10):
    sys.exit("Weighted CLIP needs Python 3.10 or newer; this is %d.%d, %s" % (*sys.version_info[:2], sys.executable))

import ast
import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
STAMP = VENV / "weighted-clip.json"
LEFT_OUT = {"test": "tests", "check": "tests", "bench": "workshop", "parity": "workshop"}
"""Commands, and what each needs that the archive of the Comfy Registry leaves out."""
TRAINING_PARTS = (["train-vae"], ["train"], ["demo"])
"""Parts of the commands ``dalle`` and ``world`` that need the training set."""
VENV_PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
PYTHON = "%d.%d" % sys.version_info[:2]
TORCH_INDEX = {"cpu": "https://download.pytorch.org/whl/cpu", "cuda": "https://download.pytorch.org/whl/cu130"}
PROBE = """
import importlib.metadata as m, importlib.util as u, json, sys, sysconfig
torch = next((d.version for d in m.distributions(name="torch")), None)
print(json.dumps({"python": "%d.%d" % sys.version_info[:2], "pip": bool(u.find_spec("pip")), "torch": torch,
                  "site": sysconfig.get_path("purelib")}))
"""
ELSEWHERE = ("dry-run", "target", "prefix", "root", "python", "user")
"""Settings of pip that make it install nothing, or outside .venv."""
IMPORTS = ("torch", "numpy", "safetensors", "tokenizers", "PIL", "ftfy")
"""Modules without which nothing runs."""
VERIFY = """
import importlib, importlib.metadata as m, json, sys
from pip._vendor.packaging.requirements import Requirement
wrong = []
for line in sys.stdin.read().splitlines():
    wanted = Requirement(line.partition(" --")[0])
    if wanted.marker is None or wanted.marker.evaluate():
        found = next((d.version for d in m.distributions(name=wanted.name)), None)
        if found is None or not wanted.specifier.contains(found, prereleases=True):
            wrong.append(f"{wanted.name}{wanted.specifier}: {found or 'nothing'} is there")
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        wrong.append(f"import {name}: {type(error).__name__}: {error}")
print(json.dumps(wrong))
"""


class SetupError(Exception):
    """Something the user has to know or do; shown without a traceback."""


def say(text: str) -> None:
    """Write one line to stderr, so that a command's own output stays clean."""
    print(text, file=sys.stderr, flush=True)


def show(text: str) -> None:
    """On a terminal, write text over the text last shown."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"{'      ' + text.strip():<{width}.{width}}", end="\r", file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(number: int, text: str) -> Iterator[None]:
    """Announce a step of the installation and, when it is over, how long it took."""
    say(f"[{number}/3] {text}")
    began = time.monotonic()
    yield
    say(f"      done in {time.monotonic() - began:.1f} s")


def parse_arguments(arguments: list[str]) -> tuple[str, list[str]]:
    """Split off the options of this file: `--torch cpu test -k x` gives `("cpu", ["test", "-k", "x"])`."""
    choice, rest = "auto", list(arguments)
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if option in ("-h", "--help"):
            return "help", []
        if option == "--version":
            return "version", []
        if option != "--torch":
            raise SetupError(f"unknown option {option!r} before the command; --help lists the options of run.py")
        choice = value if equals else rest.pop(0) if rest else ""
        if choice not in ("auto", "cpu", "cuda", "skip"):
            raise SetupError(f"--torch {choice}: choose auto, cpu, cuda or skip")
    return choice, rest


def commands() -> dict[str, str]:
    """The commands and the help of each, read from their source: nothing may be installed yet."""
    help_lines: dict[str, str] = {}
    for path in sorted((ROOT / "studio" / "commands").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Command":
                name, help_line = map(ast.literal_eval, node.args[:2])
                help_lines[name] = help_line
    return {name: help_lines[name] for name in sorted(help_lines) if " " not in name}  # not the parts of dalle


def help_text() -> str:
    """Text of ``--help``."""
    lines = [f"    {name:<24} {help_line}" for name, help_line in commands().items()]
    return (__doc__ or "").strip().replace("{commands}", "\n".join(lines))


def constant(name: str) -> str:
    """A string that __init__.py defines, read from its source."""
    match = re.search(rf'^{name} = "(.+)"', (ROOT / "__init__.py").read_text(encoding="utf-8"), re.MULTILINE)
    return match[1] if match else "unknown"


def read_requirements(path: Path) -> list[str]:
    """List the requirements of a file and of those it names with `-r`, each with its hashes, without comments."""
    lines: list[str] = []
    for line in re.sub(r"\\\n\s*", "", path.read_text(encoding="utf-8")).splitlines():
        requirement = re.sub(r"(^|\s)#.*", "", line).strip()
        if requirement.startswith("-r"):
            lines += read_requirements(path.parent / requirement[2:].strip())
        elif requirement:
            lines.append(requirement)
    return lines


def without_hashes(requirement: str) -> str:
    """Return the requirement alone: `x==1 --hash=sha256:...` gives `x==1`."""
    return requirement.partition(" --hash=")[0]


def digest(requirements: list[str]) -> str:
    """Return a short hash that changes when any requirement does."""
    return hashlib.sha256("\n".join(requirements).encode()).hexdigest()[:16]


def is_usable_torch(version: str | None) -> bool:
    """Say whether a version such as "2.13.0+cpu" is at least 2.1."""
    match = re.match(r"(\d+)\.(\d+)", version or "")
    return match is not None and (int(match[1]), int(match[2])) >= (2, 1)


def pytest_arguments(arguments: list[str], cwd: Path, tests: Path) -> list[str]:
    """Complete the caller's pytest arguments so that tests/pytest.ini holds in any working directory.

    Folders of `--hosts` and `--cases` are made absolute and joined to their option with `=`: otherwise pytest would
    look into them for a conftest.py. `--cov` measures the pack's lines. Without a path inside `tests`, all of it runs.
    """
    result: list[str] = []
    has_path = False
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if result and result[-1] in ("--hosts", "--cases"):
            result[-1] += f"={cwd / argument}"
        elif option in ("--hosts", "--cases") and equals:
            result.append(f"{option}={cwd / value}")
        elif argument == "--cov":
            result += [f"--cov={tests.parent}", f"--cov-config={tests.parent / 'pyproject.toml'}"]
        else:
            path = (cwd / argument.partition("::")[0]).resolve()
            is_value = bool(result) and result[-1] in ("-k", "-m", "-c", "-o", "-p", "-W", "--ignore", "--deselect")
            has_path |= not is_value and not argument.startswith("-") and path.exists() and path.is_relative_to(tests)
            result.append(argument)
    return ["-c", str(tests / "pytest.ini"), "--rootdir", str(tests), *result, *([] if has_path else [str(tests)])]


def probe() -> dict[str, Any] | None:
    """Ask the Python of .venv for its packages; None when there is no working .venv."""
    try:
        return json.loads(
            subprocess.run([VENV_PYTHON, "-E", "-c", PROBE], cwd=VENV, capture_output=True, check=True).stdout
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def read_stamp() -> dict[str, str]:
    """Return what the last installation wrote down; empty when there was none."""
    try:
        content = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    entries = content if isinstance(content, dict) else {}
    return {key: value for key, value in entries.items() if isinstance(value, str)}


def write_stamp(stamp: dict[str, str]) -> None:
    """Write down what an installation has come to; whole or, on a full disk, not at all."""
    written = STAMP.with_suffix(f".{os.getpid()}.tmp")  # another process may write it, too
    try:
        written.write_text(json.dumps(stamp, indent=1), encoding="utf-8")
        written.replace(STAMP)
    finally:
        written.unlink(missing_ok=True)


def reason_to_rebuild(stamp: dict[str, str], probed: dict[str, Any] | None) -> str | None:
    """Say why .venv cannot be used as it is; None when it can."""
    if probed is None or not probed["pip"]:
        return "it is broken or was not finished"
    if probed["python"] != PYTHON:
        return f"it was made with Python {probed['python']} and this is {PYTHON}"
    if stamp.get("place", str(VENV)) not in (str(VENV), str(VENV.resolve())):
        return f"it was made in {stamp['place']}"
    return None


def create_venv(choice: str, reason: str) -> None:
    """Make .venv, with sight of the caller's torch if there is a usable one and the choice is auto."""
    if VENV.exists():
        if any(VENV.iterdir()) and not (VENV / "pyvenv.cfg").exists():
            raise SetupError(f"{VENV} exists and is no virtual environment; move it away")
        if Path(sys.prefix).resolve() == VENV:
            raise SetupError(f"{VENV} has to be made anew ({reason}), but runs this file: use another Python")
        say(f"      the old one is replaced: {reason}")
    torch = next(iter(importlib.metadata.distributions(name="torch")), None)
    keep = choice == "auto" and torch is not None and is_usable_torch(torch.version)
    in_venv = sys.prefix != sys.base_prefix
    try:
        import venv

        see_system = keep and not in_venv
        venv.EnvBuilder(see_system, clear=True, symlinks=os.name == "posix", with_pip=True).create(VENV)
    except (ImportError, subprocess.CalledProcessError):
        advice = "use a full Python or, on Debian and Ubuntu, run: sudo apt install python3-venv"
        raise SetupError(f"{sys.executable} cannot make virtual environments with pip; {advice}") from None
    probed = probe()
    if keep and in_venv and probed and torch:
        # The caller is a virtual environment, which "system" does not mean: a path file leads to its packages instead.
        Path(probed["site"], "weighted_clip_torch.pth").write_text(f"{torch.locate_file('')}\n", encoding="utf-8")


def pip_environment() -> dict[str, str]:
    """Give pip all settings of the caller's variables and files, except those in `ELSEWHERE`."""
    command = [VENV_PYTHON, "-E", "-m", "pip", "config", "list"]
    overrides = {"PIP_QUIET": "0", "PIP_PYTHON": str(VENV_PYTHON)}
    listed = subprocess.run(
        command, env={**os.environ, **overrides}, capture_output=True, encoding="locale", check=False
    )
    if listed.returncode:
        raise SetupError(f"pip cannot read its settings:\n    {listed.stderr.strip()}")
    settings: dict[str, str] = {}
    for section in ("global.", "install.", ":env:."):  # the later counts, as for pip
        lines = [line.removeprefix(section) for line in listed.stdout.splitlines() if line.startswith(section)]
        settings |= {name: ast.literal_eval(value) for name, _, value in (line.partition("=") for line in lines)}
    variables = {
        f"PIP_{name.upper().replace('-', '_')}": value for name, value in settings.items() if name not in ELSEWHERE
    }
    environment = {name: value for name, value in os.environ.items() if not name.upper().startswith("PIP_")}
    return {**environment, **variables, "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def verify(pins: list[str], imports: tuple[str, ...]) -> None:
    """Ask the Python of .venv whether it has the pins and imports the modules; raise SetupError with what it lacks."""
    command = [VENV_PYTHON, "-E", "-c", VERIFY, *imports]
    text: dict[str, Any] = {"input": "\n".join(pins), "encoding": "locale", "errors": "replace"}
    process = subprocess.run(command, cwd=VENV, capture_output=True, check=False, **text)
    wrong = [f"its Python ended with status {process.returncode}", *process.stderr.splitlines()[-1:]]
    if not process.returncode:
        wrong = json.loads(process.stdout.splitlines()[-1])
    if wrong:
        listed = "\n    ".join([*wrong[:8], *([f"and {len(wrong) - 8} more"] if len(wrong) > 8 else [])])
        settings = ", ".join(sorted(name for name in os.environ if name.upper().startswith("PIP_"))) or "none"
        raise SetupError(
            f"pip reported no error, but this is wrong in {VENV}:\n    {listed}\nPerhaps a setting kept pip from "
            f"installing. All settings: {VENV_PYTHON} -m pip config list; variables that are set: {settings}"
        )


def pip_install(arguments: list[str], advice: str) -> None:
    """Run pip in .venv, show its latest line on a terminal, and raise SetupError with its last lines when it fails."""
    # what is never imported, most of it, need not be compiled where the rest is when it is imported
    compiling = [] if sys.dont_write_bytecode else ["--no-compile"]
    command = [str(VENV_PYTHON), "-E", "-m", "pip", "install", *compiling, "--progress-bar", "off", *arguments]
    tail: deque[str] = deque(maxlen=15)
    is_forged = False
    pipe: dict[str, Any] = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "encoding": "locale",
        "errors": "replace",
    }
    with subprocess.Popen(command, env=pip_environment(), **pipe) as process:
        try:
            for line in process.stdout or ():
                is_forged |= "DO NOT MATCH THE HASHES" in line
                if not line.lstrip().startswith("Expected "):  # the hashes that would do, a hundred of some packages
                    tail.append(line.rstrip())
                show(line if line.lstrip().startswith(("Collecting", "Downloading", "Installing")) else "")
        except KeyboardInterrupt:
            process.terminate()
            raise
    show("")
    if is_forged:
        advice = (
            "A file is not the one that was published: its hash is none of those in the list. Nothing of it was run."
        )
    if process.returncode:
        raise SetupError("pip failed; its last lines were:\n    " + "\n    ".join(tail) + f"\n{advice}")


def prepare(name: str, choice: str) -> None:
    """Bring .venv to the state that requirements/NAME.txt describes; do nothing when it is there already."""
    lists = {key: ROOT / "requirements" / f"{key}.txt" for key in ("lab", "train", "dev")}
    pins = {key: read_requirements(path) for key, path in lists.items() if path.exists()}  # the registry leaves out dev
    stamp, probed = read_stamp(), probe()
    reason = reason_to_rebuild(stamp, probed)
    torch = probed["torch"] if probed else None
    if not reason and stamp.get(name) == digest(pins[name]) and (is_usable_torch(torch) or choice == "skip"):
        return
    if VENV.resolve() != VENV:
        why = reason or f"it has not the packages of requirements/{name}.txt"
        raise SetupError(
            f"{VENV} is a link to {VENV.resolve()}, and {why}. Nothing is changed behind a link: remove the link, and "
            "an environment is made here"
        )
    began = time.monotonic()
    say(f"Weighted CLIP: setting up {VENV}")
    with step(1, f"virtual environment with Python {sys.version.split()[0]}"):
        if reason:
            create_venv(choice, reason)
            torch = (probe() or {"torch": None})["torch"]
    write_stamp({"place": str(VENV)})

    # Torch's files differ between the indexes, and with them torchvision's: the lists have hashes for those of PyPI.
    is_elsewhere = choice in TORCH_INDEX and not is_usable_torch(torch)
    unchecked = ("torch==", "torchvision==") if is_elsewhere else ("torch==",)
    torch_pins = [without_hashes(line) for line in pins[name] if line.startswith(unchecked)]
    hashed = [line for line in pins[name] if not line.startswith(unchecked)]
    listed = VENV / f"weighted-clip-{name}.txt"
    listed.write_text("\n".join(hashed) + "\n", encoding="utf-8")
    with step(2, f"packages of requirements/{name}.txt, as pinned there"):
        # The lists are complete, so --no-deps takes nothing away. It keeps pip from choosing a torch of its own.
        advice = f"Check the network and the disk space, then run the same command again. The list is in {listed}."
        pip_install(["--no-deps", "--require-hashes", "-r", str(listed)], advice)
    if is_usable_torch(torch):
        say(f"[3/3] torch {torch} is already there and kept")
    elif choice == "skip":
        say("[3/3] no torch (--torch skip): nothing is encoded until a torch >= 2.1 is in .venv")
    else:
        size = "small, without CUDA" if choice == "cpu" else "several GB where it brings CUDA; smaller: --torch cpu"
        with step(3, f"{torch_pins[0]} ({size})"):
            index = ["--index-url", TORCH_INDEX[choice]] if choice in TORCH_INDEX else []
            advice = f"Choose with --torch auto, cpu, cuda or skip, or install torch >= 2.1 with {VENV_PYTHON} -m pip."
            pip_install([*index, *torch_pins], advice)
    is_installed = choice != "skip" and not is_usable_torch(torch)
    expected = [without_hashes(line) for line in pins[name] if is_installed or not line.startswith("torch==")]
    verify(expected, IMPORTS if is_installed or is_usable_torch(torch) else IMPORTS[1:])
    digests = {key: digest(lines) for key, lines in pins.items() if set(lines) <= set(pins[name])}
    write_stamp({"place": str(VENV), "python": PYTHON, "torch": choice, **digests})
    say(f"Ready after {time.monotonic() - began:.0f} s")


def check() -> int:
    """Run lint, format, types and import rules; return 0 when all of them pass."""
    tools = {
        "ruff check": ["-m", "ruff", "check", "."],
        "ruff format": ["-m", "ruff", "format", "--check", "."],
        "pyright": ["-m", "pyright", "--pythonpath", str(VENV_PYTHON)],
        "archive": ["workshop/archive.py", "--check"],
        "import-linter": ["-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"],
    }
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder, "weighted_clip")  # pyright and import-linter find the package by this name, not by ROOT's
        try:
            link.symlink_to(ROOT, target_is_directory=True)
        except OSError:  # Windows lets only developers make symlinks, but everybody make junctions
            subprocess.run(["cmd", "/c", "mklink", "/J", str(link), str(ROOT)], check=True, capture_output=True)
        environment = {"PYTHONPATH": folder, "PYRIGHT_PYTHON_GLOBAL_NODE": "0", "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
        for name, arguments in tools.items():
            say(f"== {name}")
            if subprocess.run(
                [VENV_PYTHON, *arguments], cwd=ROOT, env={**os.environ, **environment}, check=False
            ).returncode:
                failed.append(name)
    say(f"check: {'failed: ' + ', '.join(failed) if failed else 'all passed'}")
    return bool(failed)


def hand_over(arguments: list[str]) -> int:
    """Run the Python of .venv in the caller's working directory; on POSIX it replaces this process."""
    if os.name == "posix":
        os.execv(VENV_PYTHON, [str(VENV_PYTHON), *arguments])
    return subprocess.run([VENV_PYTHON, *arguments], check=False).returncode


def main(arguments: list[str]) -> int:
    """Prepare .venv for the command and run it; return its exit code."""
    choice, rest = parse_arguments(arguments)
    if choice in ("help", "version"):
        print(help_text() if choice == "help" else f"weighted-clip {constant('__version__')}")
        return 0
    if rest and not (ROOT / LEFT_OUT.get(rest[0], "")).exists():
        raise SetupError(f"{rest[0]} is not in the archive of the Comfy Registry; it is in the project's repository")
    command, rest = (rest[0], rest[1:]) if rest[:1] in (["test"], ["check"]) else ("", rest)
    is_training = rest[:1] == ["train"] or (rest[:1] in (["dalle"], ["world"]) and rest[1:2] in TRAINING_PARTS)
    if sys.version_info < (3, 11) and (command or is_training):
        raise SetupError(f"{command or 'train'} needs Python 3.11 or newer, as its tools do; all else runs on {PYTHON}")
    if not command:
        prepare("train" if is_training else "lab", choice)
        return hand_over([str(ROOT / "__main__.py"), *rest])
    if command == "check" and rest:
        raise SetupError(f"check takes no arguments, but got: {' '.join(rest)}")
    prepare("dev", choice)
    if command == "check":
        return check()
    # -P: the working directory may be this folder or a host's, whose nodes, utils, ... are nothing for sys.path.
    return hand_over(["-P", "-m", "pytest", *pytest_arguments(rest, Path.cwd(), ROOT / "tests")])


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (SetupError, OSError) as error:  # OSError: a full disk or a read-only folder
        sys.exit(f"run.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
