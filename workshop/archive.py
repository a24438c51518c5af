"""Write the archive that the Comfy Registry would get from this checkout, and check it.

    python workshop/archive.py [node.zip]     # writes the archive
    python workshop/archive.py --check        # the registry's rules for code

comfy-cli packs the files tracked by git that .comfyignore does not name. Here git itself lists them, so that neither
comfy-cli nor a network is needed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IGNORE_FILE = ".comfyignore"
RULES = ("S102", "S307", "E702", "S603")
"""exec, eval, several statements in a line, subprocesses. `comfy node validate` only warns about the first three;
exceptions, with reasons, are in pyproject.toml, which is in the archive."""


def git(root: Path, *arguments: str) -> list[str]:
    """Run a git command that lists files separated by null bytes."""
    command = ["git", "-C", str(root), *arguments]
    process = subprocess.run(command, capture_output=True, check=True)
    return process.stdout.decode("utf-8").split("\0")[:-1]


def archive_files(root: Path = ROOT) -> list[str]:
    """Files of a checkout's archive, as paths with slashes; tracked but deleted ones are left out, as in comfy-cli."""
    ignored = set(git(root, "ls-files", "-z", "--cached", "--ignored", f"--exclude-from={root / IGNORE_FILE}"))
    return [name for name in git(root, "ls-files", "-z") if name not in ignored and (root / name).exists()]


def write_archive(path: Path, root: Path = ROOT) -> None:
    """Write the archive of a checkout to a file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in archive_files(root):
            archive.write(root / name, name)


def problems(root: Path = ROOT) -> list[str]:
    """Findings of ruff in the code of a checkout's archive, one per line."""
    with tempfile.TemporaryDirectory() as folder:
        path, unpacked = Path(folder, "node.zip"), Path(folder, "unpacked")
        write_archive(path, root)
        with zipfile.ZipFile(path) as archive:
            archive.extractall(unpacked)
        command = [sys.executable, "-m", "ruff", "check", ".", "--quiet", "--no-cache", "--select", ",".join(RULES)]
        process = subprocess.run(
            [*command, "--output-format", "concise"], cwd=unpacked, capture_output=True, encoding="utf-8", check=False
        )
    return (process.stdout + process.stderr).splitlines() if process.returncode else []


def main(arguments: list[str]) -> int:
    """Write the archive, or check it; return the exit status."""
    if arguments != ["--check"]:
        path = Path(*arguments) if arguments else ROOT / "node.zip"
        write_archive(path)
        print(f"{path}: {len(archive_files())} files, {path.stat().st_size:,} bytes")
        return 0
    if not (ROOT / ".git").exists():
        print("not checked: this folder is no checkout by git, which says what belongs to the archive")
        return 0
    findings = problems()
    print("\n".join(findings or ["the archive of the Comfy Registry: all right"]))
    return bool(findings)


if __name__ == "__main__":
    if any(argument.startswith("-") and argument != "--check" for argument in sys.argv[1:]) or len(sys.argv) > 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
