"""Finds WebUI checkouts (Forge, A1111), runs one as a server of its own, and speaks its HTTP interface.

A server has a data folder of its own, so that nothing is written into the checkout, and listens on loopback only.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import safe_open
from weighted_clip.encoder.files.checkpoint import load_text_models
from weighted_clip.encoder.models.text_model import TextEncoder
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.workshop.find_hosts import Host
from weighted_clip.workshop.job import own_environment, run_in_host

from ..door import encode_prompt
from ..patience import SECONDS
from .comfy_server import CHECKPOINT, LORA
from .server import REPOSITORY, TESTS, Server, free_port, link_folder, pack_folder, started

EXTENSION_FOLDER = "weighted-clip"
"""Name of our folder in extensions."""
PROBE_FOLDER = "forge_probe"
TITLE = "weighted clip"
"""Our script in the API: its title in lower case."""
PROBE_TITLE = "weighted clip probe"
LORA_TAG = Path(LORA).stem
"""Name in prompts of the LoRA of make_checkpoint.py."""
KEPT_EXTENSIONS = ("sd_forge_lora", "Lora", "extra-options-section", "xyz")
"""Built-in extensions that take part in what is tested; all others are switched off."""
FOLDERS = {"checkpoints": "models/Stable-diffusion", "loras": "models/Lora", "embeddings": "embeddings"}
"""Folders of make_checkpoint.py, and where a WebUI looks for them."""

START_SECONDS = 2 * SECONDS
REQUEST_SECONDS = 4 * SECONDS
PROGRAM_SECONDS = 4 * SECONDS
"""Limit for a program without a server: some compare hundreds of pictures, also beside other work."""
OFFLINE = {
    **{name: "1" for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")},
    **{name: "1" for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")},
    **{name: "1" for name in ("HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK", "NO_ALBUMENTATIONS_UPDATE")},
    **{"GRADIO_ANALYTICS_ENABLED": "False", "COMMANDLINE_ARGS": "", "no_proxy": "127.0.0.1,localhost"},
}


ON_THE_CPU = {
    "Forge": ("--always-cpu",),
    "Forge Classic": ("--always-cpu", "--all-in-fp32"),
    "A1111": ("--use-cpu", "all", "--no-half", "--precision", "full", "--do-not-download-clip"),
}
"""Arguments that make each compute on the CPU in float32."""


class APIError(AssertionError):
    """The WebUI answered with an error."""

    def __init__(self, status: int, body: str, log: str) -> None:
        super().__init__(f"{status}: {body[:4000]}\n--- end of the server's log ---\n{log}")
        self.status = status
        self.body = body
        """The answer."""


@dataclass(frozen=True)
class Step:
    """Input of a sampling step."""

    cond: torch.Tensor
    """``[parts of the prompt, positions, dim]``."""
    uncond: torch.Tensor


@dataclass(frozen=True)
class Seen:
    """Observations of the probe about a generation."""

    steps: tuple[Step, ...]
    schedules: Mapping[str, tuple[tuple[int, torch.Tensor], ...]]
    """Last step and conditioning, in turn; by ``pass.image.part`` or ``pass.image.negative``, all counted from 0."""
    comments: str
    """Text shown by the page below the picture."""
    samples: torch.Tensor | None
    """Samples: the latents of all pictures; None after hires. fix."""

    @property
    def conds(self) -> tuple[torch.Tensor, ...]:
        """Conditioning of the first part of the first picture's prompt, in turn."""
        return tuple(cond for _, cond in self.schedules["0.0.0"])

    @property
    def cond(self) -> torch.Tensor:
        """The only one of it."""
        (cond,) = self.conds
        return cond

    @property
    def uncond(self) -> torch.Tensor:
        """Conditioning of the first picture's negative prompt."""
        ((_, uncond),) = self.schedules["0.0.negative"]
        return uncond


@dataclass(frozen=True)
class Generation:
    """Pictures and what goes with them."""

    pictures: tuple[np.ndarray, ...]
    """``[height, width, 3]`` each, bytes."""
    info: Mapping[str, Any]
    """As the WebUI tells it."""
    infotext: str
    """The parameters saved with the first picture."""
    seen: Seen | None = None
    """If the probe was asked."""

    def equals(self, other: Generation) -> bool:
        """Whether the pictures are the same, byte for byte."""
        return len(self.pictures) == len(other.pictures) and all(map(np.array_equal, self.pictures, other.pictures))


@dataclass
class WebUIServer(Server):
    """A running WebUI."""

    host: Host
    base: Path
    count: int = 0
    """Number of files requested from the probe."""

    def api(self, path: str, data: Any = None) -> Any:
        """GET, or POST if there is data: the answer.

        Raises:
            APIError: If it is one.
        """
        status, body = self.request(path, data, seconds=REQUEST_SECONDS)
        if status != 200:
            raise APIError(status, body.decode("utf-8", "replace"), self.log_tail())
        return json.loads(body or "null")

    def txt2img(
        self, prompt: str, *, script: Sequence[Any] = (), probe: bool = False, fail_at: int = 0, **fields: Any
    ) -> Generation:
        """Make pictures of 64 x 64 pixels in two steps.

        Args:
            prompt: The text.
            script: Values of our script's controls, the first of them if not all; none to leave it out.
            probe: Whether to look at the conditioning.
            fail_at: Number of the call of a text encoder layer that raises, counted from 1; 0 for none. Below 0 that
                call presses Interrupt.
            fields: More of the API's, or other values; ``init_images`` makes it img2img.

        Raises:
            APIError: If the WebUI answers with an error.
        """
        data = {
            **{"prompt": prompt, "steps": 2, "seed": 1, "width": 64, "height": 64, "cfg_scale": 7.0},
            **{"sampler_name": "Euler", "scheduler": "Normal"},
            **fields,
        }
        scripts: dict[str, Any] = dict(fields.get("alwayson_scripts", {}))
        if script:
            scripts[TITLE] = {"args": list(script)}
        file = ""
        if probe:
            self.count += 1
            file = str(self.base / f"probe-{self.count}.safetensors")
        if probe or fail_at:
            scripts[PROBE_TITLE] = {"args": [file, fail_at]}
        way = "img2img" if "init_images" in fields else "txt2img"
        answer = self.api(f"/sdapi/v1/{way}", {**data, "alwayson_scripts": scripts})
        info = json.loads(answer["info"])
        pictures = tuple(pixels_of(picture) for picture in answer["images"])
        return Generation(pictures, info, info["infotexts"][0], _seen(Path(file)) if file else None)

    def reload_ui(self) -> None:
        """Do what the button “Reload UI” does, and wait until the page is there again."""
        starts = self.log_text().count("Startup time:") + 1
        self.api("/weighted-clip-probe/reload", {})
        self.wait(lambda: is_up(self, starts=starts), START_SECONDS, "the page did not come back")


@contextmanager
def running_webui(
    host: Host,
    models: Path,
    base: Path,
    *,
    with_ours: bool,
    extensions: Mapping[str, Path] | None = None,
    settings: Mapping[str, Any] | None = None,
    arguments: Sequence[str] = (),
) -> Iterator[WebUIServer]:
    """Start a WebUI on the CPU with float32 everywhere, with our extension or without, and stop it in the end.

    Args:
        host: The checkout.
        models: Folder of make_checkpoint.py.
        base: A folder for the data, empty or not there yet.
        with_ours: Whether our extension is there; the probe always is.
        extensions: More of them: the name of each, and its folder.
        settings: Settings of the WebUI other than its defaults.
        arguments: More of the command line's.
    """
    environment = prepare_data_folder(host, models, base, settings or {})
    link_folder(TESTS / PROBE_FOLDER, base / "extensions" / "weighted-clip-probe")
    if with_ours:
        copy_repository(base / "extensions" / EXTENSION_FOLDER)
    for name, folder in (extensions or {}).items():
        link_folder(folder, base / "extensions" / name)
    with serving_webui(host, base, environment, arguments) as server:
        yield server


@contextmanager
def serving_webui(
    host: Host, base: Path, environment: Mapping[str, str], arguments: Sequence[str] = ()
) -> Iterator[WebUIServer]:
    """Start a WebUI on the CPU with float32 everywhere, and stop it in the end.

    Args:
        host: The checkout.
        base: A folder for the data, see `prepare_data_folder`.
        environment: Its environment, likewise.
        arguments: More of the command line's.
    """
    port, log = free_port(), base / "server.log"
    command = [
        *(str(host.python), "launch.py", *ON_THE_CPU[host.kind], "--api", "--port", str(port), "--data-dir", str(base)),
        *(
            "--gradio-allowed-path",
            str(host.folder.resolve()),
        ),  # with another data folder Forge does not serve its own scripts
        *("--skip-prepare-environment", "--skip-install", "--skip-torch-cuda-test", "--skip-python-version-check"),
        *("--skip-version-check", "--no-download-sd-model", "--no-hashing", "--disable-console-progressbars"),
        *arguments,
    ]
    with started(command, log, folder=host.folder, environment=environment) as process:
        server = WebUIServer(port, log, process, host, base)
        server.wait(lambda: is_up(server), START_SECONDS, "no server")
        yield server


def run_in_webui(host: Host, script: Path, folder: Path, *arguments: Path, models: Path | None = None) -> Any:
    """Result of one of our programs in a WebUI's own Python, without a server.

    Args:
        host: The checkout.
        script: The program; it gets our pack, the arguments, and the file for its result.
        folder: For its files.
        arguments: More for the program.
        models: Folder of make_checkpoint.py, where it needs a data folder.
    """
    outcome, data = folder / "outcome.json", folder / "data"
    environment = {**own_environment(), "PYTHONDONTWRITEBYTECODE": "1"}
    options: list[Any] = [*ON_THE_CPU[host.kind]]
    if models is not None:
        environment = prepare_data_folder(host, models, data)
        options += ["--data-dir", data]
    environment = {**environment, "OMP_NUM_THREADS": "1"}
    given = [script, pack_folder(), *arguments, outcome, *options]
    done = run_in_host(host.python, given, folder=host.folder, environment=environment, seconds=PROGRAM_SECONDS)
    assert done.returncode == 0, done.stdout[-6000:]
    return json.loads(outcome.read_text(encoding="utf-8"))


def copy_repository(target: Path) -> None:
    """Copy the tracked and untracked, but not ignored files of our repository, as in a user's clone.

    Another copy of our pack that the environment names is copied whole.
    """
    if (source := pack_folder()) != REPOSITORY:
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        return
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        check=True,
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        source = REPOSITORY / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target / name)


def is_up(server: WebUIServer, *, starts: int = 1) -> bool:
    """Whether the WebUI has started that many times, and answers.

    It answers before it is ready: routes are added first, and what requests need after them.
    """
    if server.log_text().count("Startup time:") < starts:
        return False
    try:
        models = server.api("/sdapi/v1/sd-models")
    except (OSError, APIError):
        return False
    assert Path(CHECKPOINT).stem in [model["model_name"] for model in models]
    return True


def prepare_data_folder(
    host: Host, models: Path, base: Path, settings: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Write what a WebUI finds in its data folder: settings and models.

    Args:
        host: The checkout.
        models: Folder of make_checkpoint.py.
        base: An empty folder, or one not there yet.
        settings: Settings of the WebUI other than its defaults.

    Returns:
        The environment to run it in, which leaves the network and the user's home alone.
    """
    for source, target in FOLDERS.items():
        (base / target).mkdir(parents=True)
        for file in (models / source).iterdir():
            _link_file(file, base / target / file.name)
    (base / "extensions").mkdir()
    builtin = sorted(path.name for path in (host.folder / "extensions-builtin").iterdir())
    config = {
        "disabled_extensions": [name for name in builtin if name not in KEPT_EXTENSIONS],
        "sd_model_checkpoint": CHECKPOINT,
        **{"auto_launch_browser": "Disable", "show_progress_type": "None", "memmon_poll_rate": 0},
        # what a request overrides, Forge takes back only where the file has it
        **{"emphasis": "Original", "CLIP_stop_at_last_layers": 1},
        **(settings or {}),
    }
    (base / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if host.kind == "A1111":
        _write_hub_cache(host, base / "huggingface" / "hub")
    return {
        **{"OMP_NUM_THREADS": "2", **own_environment(), **OFFLINE},
        # what would be written to the user's home
        **{"HF_HOME": str(base / "huggingface"), "XDG_CACHE_HOME": str(base / "cache-home")},
        **{"MPLCONFIGDIR": str(base / "matplotlib"), "GRADIO_TEMP_DIR": str(base / "gradio")},
    }


def _link_file(source: Path, target: Path) -> None:
    try:
        target.symlink_to(source)
    except OSError:
        shutil.copyfile(source, target)


def _write_hub_cache(host: Host, hub: Path) -> None:
    """Write CLIP-L's tokenizer and sizes where A1111 would have them after a download from Hugging Face.

    The vocabulary is the one that OpenAI published with CLIP, of which open_clip carries a copy.
    """
    library = next(host.python.parent.parent.glob("[Ll]ib/**/open_clip/bpe_simple_vocab_16e6.txt.gz"))
    lines = gzip.decompress(library.read_bytes()).decode("utf-8").split("\n")
    merges = lines[1 : 49152 - 256 - 2 + 1]
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    letters = [*map(chr, printable), *(chr(256 + index) for index in range(256 - len(printable)))]
    words = [*letters, *(f"{letter}</w>" for letter in letters), *(merge.replace(" ", "") for merge in merges)]
    words += ["<|startoftext|>", "<|endoftext|>"]
    sizes = {
        **{"model_type": "clip_text_model", "hidden_act": "quick_gelu", "hidden_size": 768, "projection_dim": 768},
        **{"intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12, "vocab_size": len(words)},
    }
    special = {"bos_token": words[-2], "eos_token": words[-1], "unk_token": words[-1], "pad_token": words[-1]}
    folder = hub / "models--openai--clip-vit-large-patch14"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("seeded")
    snapshot = folder / "snapshots" / "seeded"
    snapshot.mkdir(parents=True)
    (snapshot / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    for name, content in (
        ("vocab.json", {word: index for index, word in enumerate(words)}),
        ("config.json", sizes),
        ("special_tokens_map.json", special),
        ("tokenizer_config.json", {**special, "do_lower_case": True, "model_max_length": 77}),
    ):
        (snapshot / name).write_text(json.dumps(content), encoding="utf-8")
    (hub / "version.txt").write_text("1")


def pixels_of(encoded: str) -> np.ndarray:
    with Image.open(io.BytesIO(base64.b64decode(encoded))) as opened:
        return np.asarray(opened.convert("RGB"))


def _seen(path: Path) -> Seen:
    """Read what the probe wrote."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dictionary
        ends: dict[str, list[int]] = json.loads(file.metadata()["ends"])
        num_steps = int(file.metadata()["steps"])
        comments = file.metadata()["comments"]
    return Seen(
        tuple(Step(tensors[f"step.{index}.cond"], tensors[f"step.{index}.uncond"]) for index in range(num_steps)),
        {
            name: tuple((end, tensors[f"schedule.{name}.{index}"]) for index, end in enumerate(some))
            for name, some in ends.items()
        },
        comments,
        tensors.get("samples"),
    )


def native_encoder(file: Path) -> Callable[..., torch.Tensor]:
    """A function from a text and options to hidden states, ``[positions, dim]``; the syntax is A1111's by default.

    Args:
        file: A checkpoint of Stable Diffusion 1.x, or a text encoder of it.
    """
    models, _ = load_text_models(file)
    encoder, tokenize = TextEncoder(models["clip_l"]), default_tokenizer()

    def encode(text: str, **choices: Any) -> torch.Tensor:
        read = read_prompt(text, EncodeOptions(**{"syntax": "a1111", **choices}), tokenize)
        with torch.no_grad():
            return encode_prompt(read, encoder, tokenize).hidden[0]

    return encode
