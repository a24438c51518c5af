"""Events seen by Python's audit hooks while the pack handles hostile prompts, files and requests; for test_security.py.

A program of its own, because an audit hook cannot be taken away again. The first argument is a folder to work in. The
others are names of controls, which run after the hostile input, to show that the hook sees them. The output is JSON:
for "" and each control the events, a list of [name, arguments], and the names that are new in the folder. Everything
runs once with harmless input before the hook is set, so that what Python and PyTorch load at first use is not counted.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import runpy
import sys
import zipfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parents[1]
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
MARKER = "was-run"
"""A file that appears if any of the payloads runs."""
FREE_MEMORY = (Path("/proc/meminfo"), Path("/proc/self/cgroup"))
SYSTEM = Path("/sys/fs/cgroup")
HARMLESS = "a (red:1.2) cat and a (dog:0.5) [in|on] a [bowl:10], embedding:good BREAK <lora:good:1> AND (dog)++"
PROMPTS = (
    "__import__('os').system('touch {marker}')",
    "(cat:__import__('os').system('touch {marker}')) [a:b:__import__('os')] (dog:1.0if exec('1')else 2)",
    "('a', 'b').blend(__import__('os').system('touch {marker}'), 1)  (cat)eval('1')",
    "{{{{ ''.__class__.__mro__[1].__subclasses__() }}}} ${{7*7}} #{{7*7}} <%= 7*7 %> %(x)s %n%s {{0.__class__}}",
    "`touch {marker}`; $(touch {marker}) | touch {marker} && touch {marker}\n\r\0touch {marker}",
    "</span><script>alert(1)</script><img src=x onerror=alert(1)> javascript:alert(1)",
    "embedding:../../../../etc/passwd embedding:/etc/passwd embedding:C:\\Windows\\win.ini embedding:pickled",
    "embedding:zipped embedding:evil.pt <lora:../../../etc/passwd:1> <lyco:evil:__import__('os')> ../evil.pt",
    "http://127.0.0.1:9/x \\\\127.0.0.1\\share\\x file:///etc/passwd embedding:http://127.0.0.1:9/x.safetensors",
)


class Payload:
    """Runs a command when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def write_files(folder: Path) -> list[Path]:
    """A good embedding in ``folder/embeddings``, and files that run code where they are unpickled."""
    embeddings = folder / "embeddings"
    embeddings.mkdir()
    save_file({"emb_params": torch.ones(2, 64)}, embeddings / "good.safetensors")
    payload = pickle.dumps(Payload(folder / MARKER))
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as file:
        file.writestr("archive/data.pkl", payload)
    head = json.dumps({"__metadata__": {"format": payload.decode("latin-1"), "x": "__import__('os')"}}).encode()
    contents = {"pickled": payload, "zipped": zipped.getvalue(), "titled": len(head).to_bytes(8, "little") + head}
    paths: list[Path] = []
    for name, content in contents.items():
        for suffix in (".safetensors", ".pt", ".ckpt", ".bin", ".png", ""):
            paths.append(embeddings / (name + suffix))
            paths[-1].write_bytes(content)
    (embeddings / "evil.pt").write_bytes(payload)
    return paths


def actions(folder: Path) -> dict[str, Callable[[str], Any]]:
    """Everything that takes a prompt, by name."""
    import ftfy  # noqa: F401  # else the first prompt that is cleaned would import it
    from weighted_clip.encoder.models.config import TextConfig
    from weighted_clip.encoder.tokenizer import default_tokenizer
    from weighted_clip.hosts.webui.engines import WebUIError
    from weighted_clip.hosts.webui.settings import Settings, pasted
    from weighted_clip.studio.commands.program import main
    from weighted_clip.web.inspection import RequestError, inspect
    from weighted_clip.web.lab import markup
    from weighted_clip.web.lab.native import LoadSettings as LabSettings
    from weighted_clip.web.lab.native import random_model
    from weighted_clip.weighting.options import EncodeOptions
    from weighted_clip.weighting.reading.convert import TARGETS, convert
    from weighted_clip.weighting.reading.prompt_reader import read_prompt
    from weighted_clip.weighting.schemes import SCHEMES
    from weighted_clip.weighting.schemes.repeat import RepeatError
    from weighted_clip.weighting.syntax import SYNTAXES
    from weighted_clip.weighting.text.embedding_folder import EmbeddingFolder
    from weighted_clip.weighting.text.tags import read_loras, take_tags
    from weighted_clip.weighting.timed.schedule import read_timed

    tiny = TextConfig(hidden_dim=64, num_layers=2, num_heads=1, mlp_dim=128, projection_dim=64)
    model = random_model(LabSettings((folder / "embeddings",)), config=tiny)
    embeddings = EmbeddingFolder([folder / "embeddings"], "clip_l", 64)

    def syntaxes(text: str) -> None:
        for syntax in SYNTAXES:
            options = EncodeOptions(syntax=syntax, chunking="a1111")
            read_prompt(text, options, default_tokenizer(), embeddings=embeddings)

    def schemes(text: str) -> None:
        for scheme in SCHEMES:
            with suppress(RepeatError):
                model.encode(text, EncodeOptions(scheme=scheme, syntax="a1111", hide=text[:20].split(" ")[0]))

    def request(text: str) -> None:
        for one in ({"text": text}, {"text": text, "steps": 20}, {text: text}, {"text": "a", "scheme": text}):
            with suppress(RequestError):
                json.dumps(inspect(one, ["good"]))

    def settings(text: str) -> None:
        Settings.of([True, pasted("scheme", {"Weighted CLIP": text})])
        with suppress(WebUIError):
            Settings.of([True, text]).options()

    def command(text: str) -> None:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), suppress(SystemExit):
            main(["inspect", "--", text])

    return {
        "syntaxes": syntaxes,
        "schemes": schemes,
        "timed": lambda text: read_timed(text, 20),
        "loras": lambda text: read_loras(take_tags(text)[1]),
        "convert": lambda text: [
            convert(text, source, to, default_tokenizer()) for source in SYNTAXES for to in TARGETS
        ],
        "request": request,
        "settings": settings,
        "command": command,
        "markup": lambda text: markup.problems([text]),
    }


def read_file(path: Path) -> None:
    """Give a file to everything that reads one."""
    from weighted_clip.encoder.files.checkpoint import load_text_models
    from weighted_clip.encoder.files.textual_inversion import read_embedding_file
    from weighted_clip.encoder.models.clip import load_full_clip
    from weighted_clip.studio.output.shards import read_head

    for read in (load_text_models, load_full_clip, read_embedding_file, read_head):
        with suppress(ValueError):
            read(path)


def main_of(folder: Path, *controls: str) -> None:
    runpy.run_path(str(ROOT / "__main__.py"))["load_package"]()
    paths = write_files(folder)
    by_name = actions(folder)
    for run in by_name.values():
        run(HARMLESS)
    read_file(folder / "embeddings" / "good.safetensors")
    read_file(folder / "embeddings" / "pickled.safetensors")
    events: list[tuple[str, str]] = []
    is_on = False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if is_on:
            path = Path(str(arguments[0])) if event == "open" else Path()
            # and how much memory is free, which is asked before every call of an encoder
            is_own = path.parent == folder / "embeddings" or path in FREE_MEMORY or SYSTEM in path.parents
            event = "open own file to read" if is_own and not arguments[2] & WRITING else event
            events.append((event, repr(arguments)[:300]))

    def hostile(_: Path) -> None:
        for prompt in PROMPTS:
            for run in by_name.values():
                run(prompt.format(marker=folder / MARKER))
        for path in paths:
            read_file(path)

    sys.addaudithook(hook)
    found: dict[str, dict[str, Any]] = {}
    for name in ("", *controls):
        run, before = getattr(sys.modules[__name__], name) if name else hostile, {*folder.iterdir()}
        events.clear()
        is_on = True
        run(folder)
        is_on = False
        new = sorted(path.name for path in {*folder.iterdir()} - before)
        found[name] = {"events": sorted(set(events)), "new": new}
    sys.stdout.write(json.dumps(found))


def control_eval(folder: Path) -> None:
    eval("1 + 1")


def control_command(folder: Path) -> None:
    os.system("true")


def control_pickle(folder: Path) -> None:
    pickle.loads((folder / "embeddings" / "pickled.pt").read_bytes())


def control_write(folder: Path) -> None:
    (folder / "written").write_text("x")


if __name__ == "__main__":
    main_of(Path(sys.argv[1]), *sys.argv[2:])
