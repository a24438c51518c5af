"""Many users of one lab at once: each gets what a single one gets, nothing fails, and memory stays flat.

A user needs no browser: clients send what the page sends when something on it changes, to the same addresses.
"""

from __future__ import annotations

import http.client
import json
import random
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from safetensors.torch import load, save_file
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.weighting.timed.schedule import COUNTERS
from weighted_clip.workshop.bench.page import table

from .page import (
    MEBIBYTE,
    NO_PROC,
    PROC,
    Point,
    about,
    growth,
    resident_bytes,
    resident_growth,
    write_part,
)
from .prompts import draw_options, draw_text

pytest.importorskip("gradio")


ROOT = Path(__file__).resolve().parents[2]
SECONDS = 900
"""That an answer may take before something hangs."""


class Lab:
    """A lab that runs as a program of its own."""

    def __init__(self, address: str, process_id: int) -> None:
        _, self.netloc, self.root, *_ = urllib.parse.urlsplit(address.rstrip("/"))
        self.process_id = process_id
        dependencies = json.loads(self.request("GET", "/config"))["dependencies"]
        self.functions: dict[str, int] = {one["api_name"]: one["id"] for one in dependencies}
        """Numbers of the page's handlers by name."""

    def request(self, method: str, path: str, data: Any = None) -> bytes:
        """The body of an answer."""
        with closing(http.client.HTTPConnection(self.netloc, timeout=SECONDS)) as connection:
            body = None if data is None else json.dumps(data)
            connection.request(method, self.root + path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status == 200, f"{path}: {answer.status} {text[:2000]!r}"
            return text


@contextmanager
def running_lab(folder: Path, *options: str) -> Iterator[Lab]:
    """Start a lab, on one thread for arithmetic, on a port of its own; it must have nothing to complain of."""
    command = [sys.executable, "-P", str(ROOT / "__main__.py"), "lab", "--no-browser", "--port", "0", *options]
    log = folder / "lab.log"
    with log.open("wb") as errors, _process(command, errors) as process:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        while line and not line.startswith("Prompt Lab: "):
            line = process.stdout.readline().decode()
        assert line, log.read_text(encoding="utf-8", errors="replace")[-4000:]
        yield Lab(line.split()[2], process.pid)
        assert process.poll() is None, "the lab has ended by itself"
    complaints = log.read_text(encoding="utf-8", errors="replace")
    assert "Traceback" not in complaints, complaints[-4000:]


@contextmanager
def _process(command: Sequence[str], errors: Any) -> Iterator[subprocess.Popen[bytes]]:
    from weighted_clip.workshop.job import own_environment

    # one place for all threads' memory: else the C library keeps what each of them has freed, for itself
    environment = {**own_environment(), "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


class Client:
    """One user with the page open."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._session = uuid.uuid4().hex[:11]

    def ask(self, name: str, *values: Any) -> list[Any]:
        """Answer of a handler that does not wait in the queue; session states are passed as None."""
        answer = self._lab.request("POST", f"/gradio_api/run/{name}", self._event(name, values))
        return json.loads(answer)["data"]

    def queue(self, name: str, *values: Any) -> Iterator[list[Any]]:
        """Each answer of a handler that waits in the queue; of later ones, only what has changed may be in it."""
        event = json.loads(self._lab.request("POST", "/gradio_api/queue/join", self._event(name, values)))["event_id"]
        with closing(http.client.HTTPConnection(self._lab.netloc, timeout=SECONDS)) as connection:
            connection.request("GET", f"{self._lab.root}/gradio_api/queue/data?session_hash={self._session}")
            answer = connection.getresponse()
            assert answer.status == 200
            for line in answer:
                message = json.loads(line[5:]) if line.startswith(b"data:") else {}
                if message.get("event_id", event) != event:
                    continue
                if message.get("msg") in ("process_generating", "process_completed"):
                    assert message["success"], message
                    yield message["output"]["data"]
                if message.get("msg") == "process_completed":
                    return
        raise AssertionError(f"{name} was never completed")

    def download(self, path: str) -> bytes:
        """A file that the lab has made."""
        return self._lab.request("GET", f"/gradio_api/file={urllib.parse.quote(path)}")

    def _event(self, name: str, values: Sequence[Any]) -> dict[str, Any]:
        return {"data": values, "fn_index": self._lab.functions[name], "session_hash": self._session}


OPTIONS = (
    *("syntax", "scheme", "normalization", "chunking", "padding"),
    *("law", "mask_method", "hide", "hidden_from", "from_phrases", "cleaning", "finest_step", "bind", "bind_rest"),
    *("bind_strength", "bind_hide", "bind_words", "above_one"),
)
"""Arguments of handlers after the prompt, in order."""
SEED = 3
CLOSE = 1e-5
CLOSE_OF_RATIOS = 1e-4
"""As in test_encodes.py."""
MAX_MEBIBYTES = 32
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Input:
    """Input typed and chosen by a user of the page."""

    text: str
    values: tuple[Any, ...]
    """Values of `OPTIONS`."""
    target: str
    schemes: tuple[str, str]

    @property
    def all_values(self) -> tuple[Any, ...]:
        """The prompt and the options."""
        return self.text, *self.values

    def typed(self) -> list[str]:
        """Contents of the box while the whole prompt is typed."""
        return [self.text[: len(self.text) * part // 4] for part in (1, 2, 3, 4)]


THE_WHOLE = (0, 20, COUNTERS[0])
"""Number of the text to take of a prompt, which is none, sampling steps, and their counter."""


def draw_inputs(count: int) -> list[Input]:
    draw = random.Random(SEED)
    inputs: list[Input] = []
    for number in range(count):
        fixed = {"cleaning": "as Forge", "finest_step": "auto", "bind": "", "bind_rest": "full"}
        fixed |= {"bind_strength": 1.0, "bind_hide": "whole phrases", "bind_words": "", "above_one": "as ComfyUI"}
        fixed |= {"hide": "", "hidden_from": "everything", "from_phrases": ""}
        options = {**fixed, **draw_options(draw)}
        text = draw_text(draw, options["syntax"], 90 if number % 10 == 9 else draw.randint(2, 14))
        schemes = ("masked_blend", "comfy") if number % 2 else ("a1111", "compel")
        target = draw.choice(("comfy", "a1111", "compel"))
        values = (*(options[name] for name in OPTIONS), *THE_WHOLE)
        inputs.append(Input(text, values, target, schemes))
    return inputs


@dataclass
class Record:
    """Observations of all users together."""

    lab: Lab
    every: int
    """After so many answers memory is looked at."""
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """Seconds for each answer, by kind of request."""
    resident: list[Point] = field(default_factory=list)
    differences: list[float] = field(default_factory=list)
    """Difference of each exported file from the first of that input."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _count: int = 0

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Time an answer."""
        began = time.perf_counter()
        yield
        taken = time.perf_counter() - began
        with self._lock:
            self.seconds.setdefault(name, []).append(taken)
            self._count += 1
            if self._count % self.every == 0:
                self.resident.append(Point(self._count, resident_bytes(self.lab.process_id) if PROC.is_dir() else 0))


@dataclass(frozen=True)
class Answers:
    """All that a lab says of one input."""

    plain: dict[str, Any]
    """By what was asked; the same whenever it is asked."""
    file: bytes
    """The exported file."""


def study(client: Client, given: Input, record: Record) -> Answers:
    """One round: type, look at tokens and masks, convert, compare two schemes, export and fetch the file."""
    plain: dict[str, Any] = {}

    def asked(name: str, function: str, *values: Any) -> list[Any]:
        with record.timed(name.split(":")[0]):
            plain[name] = client.ask(function, *values)
        return plain[name]

    for text in given.typed():
        asked(f"typing: {text}", "read", text, *given.values)
    own = {"tokens": (), "masks": (1,), "convert": (given.target,)}
    for name, function in (("tokens", "open_tab"), ("masks", "open_tab_1"), ("convert", "open_tab_3")):
        asked(name, function, *own[name], *given.all_values)
        # the server remembers for each user which tab is open
        asked(f"{name}: again", "follow", None, 1, given.target, "", *given.all_values)
    with record.timed("compare two schemes"):
        answers = list(client.queue("compare", None, list(given.schemes), *given.all_values))
    plain["compared"] = answers[-1][2]
    assert "2 of 2 schemes: done" in plain["compared"]
    plain["comparison"] = [text for answer in answers for text in _texts(answer[3]) if "weighted-clip-chart" in text][
        -1
    ]
    with record.timed("export"):
        ((file, plain["exported"]),) = client.queue("export", *given.all_values)
    with record.timed("download"):
        content = client.download(file["path"])
    return Answers(plain, content)


def _texts(value: Any) -> list[str]:
    """All strings in an answer, which is a value or what has changed in one."""
    if isinstance(value, str):
        return [value]
    return [text for one in value for text in _texts(one)] if isinstance(value, list) else []


def compare_answers(found: Answers, expected: Answers, given: Input) -> float:
    """Both are the same, files to within rounding: their largest difference."""
    assert found.plain.keys() == expected.plain.keys()
    for name, answer in expected.plain.items():
        assert found.plain[name] == answer, f"{name} of {given}"
    assert _metadata(found.file) == _metadata(expected.file)
    mine, theirs = load(found.file), load(expected.file)
    assert mine.keys() == theirs.keys()
    away = max(float((mine[name] - theirs[name]).abs().max()) for name in mine)
    scale = max(1.0, *(float(tensor.abs().max()) / 5 for tensor in theirs.values()))
    limit = CLOSE_OF_RATIOS if given.values[1] in ("a1111", "a1111_global_norm", "lpw") else CLOSE
    assert away <= limit * scale
    return away


def _metadata(file: bytes) -> Any:
    """A safetensors file's header, in which names have any order."""
    return json.loads(file[8 : 8 + int.from_bytes(file[:8], "little")])


def cancel(client: Client, given: Input, record: Record) -> None:
    """Begin a comparison of many schemes and cancel it; nobody else's ends by that."""
    answers = client.queue("compare", None, ["comfy", "a1111", "compel", "perp", "lpw"], *given.all_values)
    next(answers)
    with record.timed("cancel"):
        client.ask("cancel", None)
    line = list(answers)[-1][2]
    assert "schemes: cancelled" in line or "5 of 5 schemes: done" in line


def visit(lab: Lab, record: Record, inputs: list[Input], expected: list[Answers], user: int, rounds: int) -> None:
    """One user's studies, in an order of his own."""
    draw = random.Random(user)
    client = Client(lab)
    for _ in range(rounds):
        number = draw.randrange(len(inputs))
        if draw.random() < 0.2:
            cancel(client, inputs[number], record)
        away = compare_answers(study(client, inputs[number], record), expected[number], inputs[number])
        record.differences.append(away)


def together(work: Callable[[int], None], count: int) -> None:
    """Do something in as many threads, and raise the first error of any."""
    errors: list[BaseException] = []

    def safely(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=safely, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@dataclass(frozen=True)
class Visits:
    """The visits made."""

    clients: int
    rounds: int
    inputs: int
    every: int


SHORT = Visits(clients=4, rounds=2, inputs=4, every=20)
LONG = Visits(clients=20, rounds=10, inputs=30, every=40)


def have_visitors(visits: Visits, folder: Path, *options: str) -> tuple[Record, float]:
    """Ask a lab alone, then all together: what was seen then, and in how many seconds."""
    inputs = draw_inputs(visits.inputs)
    with running_lab(folder, *options) as lab:
        alone = Record(lab, every=10**9)
        client = Client(lab)
        expected = [study(client, given, alone) for given in inputs]
        record = Record(lab, visits.every)
        began = time.perf_counter()
        together(lambda user: visit(lab, record, inputs, expected, user, visits.rounds), visits.clients)
        return record, time.perf_counter() - began


def test_a_few_clients_of_one_lab_get_what_a_single_one_gets(tmp_path: Path) -> None:
    config = TextConfig(hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=128)
    weights = tmp_path / "small.safetensors"
    tensors = {f"text_model.{name}": tensor for name, tensor in seeded_text_model(config).state_dict().items()}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, weights)
    record, _ = have_visitors(SHORT, tmp_path, "--weights", str(weights))
    assert len(record.differences) == SHORT.clients * SHORT.rounds
    assert torch.tensor(record.differences).isfinite().all()


@pytest.mark.long
@pytest.mark.skipif(not PROC.is_dir(), reason=NO_PROC)
def test_twenty_clients_of_one_lab_get_what_a_single_one_gets(tmp_path: Path) -> None:
    record, seconds = have_visitors(LONG, tmp_path)
    assert growth(record.resident).total <= MAX_MEBIBYTES * MEBIBYTE
    rows = [
        [
            *(name, f"{len(taken):,}"),
            *(f"{1000 * value:,.0f}" for value in (statistics.median(taken), _percentile(taken, 95), max(taken))),
        ]
        for name, taken in record.seconds.items()
    ]
    count = sum(map(len, record.seconds.values()))
    equal = record.differences.count(0.0)
    write_part(
        "The lab",
        [
            f"`run.py lab` with random weights of full size and one arena for memory (`MALLOC_ARENA_MAX=1`), and "
            f"{LONG.clients} clients that each do {LONG.rounds} studies without a pause: they type a prompt in four "
            "steps, look at its tokens and masks, convert it, compare two schemes, export and fetch the file; every "
            f"fifth also cancels a comparison. One client alone had asked the {LONG.inputs} prompts before.",
            about(),
            f"{count:,} answers in {seconds / 60:.1f} minutes, {count / seconds:.1f} a second; none failed. Every "
            f"answer was the one that the single client had got; of {len(record.differences)} exported files {equal} "
            f"equal bit for bit, largest difference {max(record.differences):.1e}. Clients wait for each other: "
            "comparisons and exports are done one at a time.",
            table(("Asked", "Answers", "Median, ms", "95 %, ms", "Longest, ms"), rows, num_left=1),
            resident_growth(record.resident, "answer"),
        ],
    )


def _percentile(values: list[float], percent: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]
