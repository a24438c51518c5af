"""The command: runs every reference and our native encoder, and prints one table."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...encoder.models.text_model import TextModel
from ...encoder.tokenizer import BOS_TEXT, EOS_TEXT, default_tokenizer
from ...weighting.encoders import Encoders
from ...weighting.options import EncodeOptions
from ...weighting.schemes.rows import CODE
from ...weighting.text.embeddings import Embeddings
from .. import peers
from ..find_hosts import PEERS, HostReference, find_references, stated
from ..job import HostFailed, run_job
from ..peers import compel_library as compel
from ..peers import diffusers, transformers
from .native import encode_natively, save_model, seeded_model, write_embeddings
from .prompts import PROMPTS
from .report import Absence, Result, in_words, problems, table, write_page
from .subjects import AFFECTED_BY_NUMPY_2, HOST_REFERENCES, REFERENCES, SUBJECTS, Subject

QUICK_STEP = 4
"""Interval of the prompts used by ``--quick``."""
SECONDS = 5400
"""Timeout of a reference in a host."""
WEIGHTS, EMBEDDINGS = "model.safetensors", "embeddings"
"""Names of the model's file and of the folder of embeddings, in the references' formats."""
NOT_INSTALLED = "not installed"
LIBRARIES = {"transformers": transformers.open_peer, "compel": compel.open_peer}
"""Libraries that encode in this process."""
TOKENIZERS = {"transformers": transformers.ids_of_transformers, "open_clip": peers.ids_of_open_clip}

Line = Result | Absence
Hidden = dict[str, Tensor]
"""Hidden states by keys of `Subject.asked`; of our path through a host's encoder by the same keys after `HOST`."""
HOST = "host/"
LABELS = {
    "comfyui": "ComfyUI {ComfyUI}",
    "adv_clip_emb": "ComfyUI_ADV_CLIP_emb {ADV_CLIP_emb}, numpy {numpy}",
    "prompt_control": "prompt-control {prompt-control}, numpy {numpy}",
    "ppm": "ComfyUI-ppm {ComfyUI-ppm}",
    "forge": "Forge {Forge}",
}
"""Names of references in hosts, with versions."""


def compare_all(folder: Path | None, *, is_quick: bool, is_written: bool) -> int:
    """Run every comparison, print the table, and write the page if nothing is missing and all within limits.

    The exit status is 1 if a difference is above its limit, a reference failed, or there is nothing to write.
    """
    step = QUICK_STEP if is_quick else 1
    torch.set_num_threads(1)  # here and in the hosts: a mean is summed in one part per thread
    model = seeded_model()
    lines: list[Line] = []
    versions: dict[str, str] = {}
    _say(f"one CLIP-L with seeded random weights, torch {torch.__version__}")
    lines += _tokenizers()
    lines += _libraries(model, step)
    lines += _pipelines(folder, model, step)
    lines += _hosts(folder, model, step, versions)
    print(f"\n{table(lines)}", flush=True)
    failures = problems(lines)
    for problem in failures:
        _say(problem)
    if is_written and not failures:
        if step > 1 or any(isinstance(line, Absence) and line.reference != "open_clip" for line in lines):
            failures = ["nothing is written unless every prompt ran and every reference but open_clip was there"]
            _say(failures[0])
        else:
            write_page(lines, versions)
    return 1 if failures else 0


def _tokenizers() -> Iterator[Line]:
    """Compare our token ids with those of the libraries, for the text of all prompts."""
    texts = [text for prompts in PROMPTS.values() for text in prompts]
    for name, open_ids in TOKENIZERS.items():
        version = peers.version_of(name)
        if version is None:
            if name == "open_clip":  # missing others are reported below
                yield Absence(name, NOT_INSTALLED)
            continue
        ids_of = open_ids()
        # open_clip repairs text, but not quite as Forge does, and writes special tokens differently: CLIP's are text to
        # it
        unlike = [
            prompt for prompt in texts if prompt in PROMPTS["cleaned"] or BOS_TEXT in prompt or EOS_TEXT in prompt
        ]
        same = [text for text in texts if name != "open_clip" or text not in unlike]
        wrong = [text for text in same if ids_of(text) != [token.id for token in default_tokenizer()(text)]]
        label = f"{name} {version}"
        yield Result(
            label, "tokenizer, texts with other ids", "tokenizer", "-", len(same), 0.0, len(wrong), "".join(wrong[:1])
        )


def _libraries(model: TextModel, step: int) -> Iterator[Line]:
    for name, open_peer in LIBRARIES.items():
        version = peers.version_of(name)
        if version is None:
            yield Absence(name, NOT_INSTALLED)
            continue
        label = f"{name} {version}"
        _say(label)
        encode = open_peer(model)
        subjects = [subject for subject in SUBJECTS if subject.reference == name]
        peer_rows = {
            key: encode(subject.settings, prompt) for subject in subjects for key, prompt in subject.asked(step).items()
        }
        native = _native(model, subjects, step)
        yield from (_compared(label, subject, peer_rows, native, step) for subject in subjects)


def _pipelines(folder: Path | None, model: TextModel, step: int) -> Iterator[Line]:
    name = REFERENCES["diffusers"]
    version = peers.version_of("diffusers")
    checkout = None if folder is None else diffusers.find_checkout(folder)
    if version is None:
        yield Absence(name, NOT_INSTALLED)
    elif checkout is None:
        yield Absence(name, "not looked for: no --hosts" if folder is None else "no checkout found")
    else:
        stated_version = stated(checkout / "setup.py", r'version="(\S+)"')
        label = f"{name} {version}, community pipelines of {stated_version}"
        _say(label)
        models = {"sd": {"clip_l": model}, "sdxl": diffusers.sdxl_models()}
        pipelines = diffusers.Pipelines(checkout, models)
        for subject in SUBJECTS:
            if subject.reference == "diffusers":
                encoders = Encoders.of_models(models[subject.settings["pipeline"]])
                yield _worst(label, subject, _beside_pipeline(pipelines, encoders, subject, step))


def _beside_pipeline(
    pipelines: diffusers.Pipelines, encoders: Encoders, subject: Subject, step: int
) -> Iterator[tuple[str, float]]:
    """Each prompt that pipeline and syntax read alike, beside itself as negative prompt, and the difference."""
    settings = dict(subject.settings)
    name = settings.pop("pipeline")
    options = EncodeOptions(**subject.options)
    noting = replace(options, scheme=diffusers.SCHEME_OF[name])
    for prompt in filter(None, subject.asked(step).values()):
        if any(issue.code == CODE for issue in encoders.read(prompt, noting)["clip_l"].issues):
            continue
        (encoded,) = encoders.prepare([prompt], options).run()
        expected = pipelines.encode(name, prompt, prompt, **settings)
        differences = [largest_difference(encoded.hidden, expected.hidden[0])]
        differences += [largest_difference(encoded.pooled, expected.pooled[0])] if expected.pooled else []
        yield prompt, next(filter(math.isnan, differences), max(differences))


def _hosts(folder: Path | None, model: TextModel, step: int, versions: dict[str, str]) -> Iterator[Line]:
    """Lines of all references in hosts; their versions go into ``versions``."""
    if folder is None:
        yield from (Absence(REFERENCES[name], "not looked for: no --hosts") for name in HOST_REFERENCES)
        return
    references = find_references(folder)
    subjects = [
        subject for subject in SUBJECTS if subject.reference in HOST_REFERENCES and references[subject.reference]
    ]
    if not subjects:
        _say(f"no host found in {folder}")
    with tempfile.TemporaryDirectory(prefix="weighted-clip-parity-") as name:
        work = Path(name)
        save_model(model, work / WEIGHTS)
        native = _native(model, subjects, step, write_embeddings(work / "ours", work / EMBEDDINGS))
        through_comfyui: dict[str, Hidden] = {}
        for reference in HOST_REFERENCES:
            if not references[reference]:
                yield Absence(REFERENCES[reference], "not found, or without a Python of its own")
            asked = [subject for subject in subjects if subject.reference == reference]
            for instance in references[reference]:
                if reference in PEERS and instance is not references[reference][0]:
                    # the same with another numpy, to show the effect briefly
                    again = [replace(s, host_limit=None) for s in asked if s.name in AFFECTED_BY_NUMPY_2]
                    yield from _one_host(instance, again, native, work, step * QUICK_STEP, {}, {})
                else:
                    yield from _one_host(instance, asked, native, work, step, versions, through_comfyui)


def _one_host(
    instance: HostReference,
    subjects: Sequence[Subject],
    native: Hidden,
    work: Path,
    step: int,
    versions: dict[str, str],
    through_comfyui: dict[str, Hidden],
) -> Iterator[Line]:
    """Lines of a reference.

    Results of our nodes in ComfyUI for other references' prompts go into ``through_comfyui``, by its label, and are
    used when those references run.
    """
    name = REFERENCES[instance.module]
    _say(f"{name} in {instance.host.name}, {len(subjects)} ways of weighting ...")
    is_comfyui = instance.module == "comfyui"
    guests = [subject for subject in SUBJECTS if subject.comfyui_limit is not None] if is_comfyui else []
    try:
        reported, hidden = _run_reference(instance, subjects, work, step, guests)
    except HostFailed as error:
        yield Absence(name, "\n".join(str(error).splitlines()[-12:]), is_failure=True)
        return
    label = LABELS[instance.module].format(**reported)
    if is_comfyui:
        through_comfyui[label] = hidden
    versions[label] = ", ".join(f"{part} {version}" for part, version in reported.items())
    is_numpy_2 = instance.module in PEERS and not reported["numpy"].startswith(("0.", "1."))
    for subject in subjects:
        line = _compared(label, subject, hidden, native, step)
        if is_numpy_2 and subject.name in AFFECTED_BY_NUMPY_2:
            yield replace(line, limit=None)
            continue
        yield line
        if subject.host_limit is not None:
            line = _compared(label, subject, hidden, hidden, step, HOST)
            yield replace(line, encoder="the host's", limit=subject.host_limit)
        if subject.comfyui_limit is not None:
            for host_label, host_rows in through_comfyui.items():
                line = _compared(label, subject, hidden, host_rows, step, HOST)
                yield replace(line, encoder=f"{host_label}'s", limit=subject.comfyui_limit)


def _run_reference(
    reference: HostReference, subjects: Sequence[Subject], work: Path, step: int, guests: Sequence[Subject]
) -> tuple[dict[str, str], Hidden]:
    """Versions of a reference and its results, from the files in a folder, in which results are put, too.

    Guests are subjects of other references, run only on our path through this reference's encoder. Raises `HostFailed`.
    """
    from safetensors import safe_open

    jobs: list[dict[str, Any]] = []
    for subject in (*subjects, *guests):
        prompts = subject.asked(step)
        if subject not in guests:
            jobs.append({"settings": subject.settings, "prompts": prompts})
        if subject in guests or subject.host_limit is not None:
            through = {f"{HOST}{key}": prompt for key, prompt in prompts.items()}
            jobs.append({"settings": {"options": subject.options}, "prompts": through})
    paths = {"weights": work / WEIGHTS, "embeddings": work / EMBEDDINGS, "folder": reference.folder}
    paths["tensors"] = work / "result.safetensors"
    job = {"reference": reference.module, "subjects": jobs, **{name: str(path) for name, path in paths.items()}}
    reported = run_job(peers.run, job, reference.python, folder=reference.host, seconds=SECONDS, OMP_NUM_THREADS="1")
    with safe_open(paths["tensors"], framework="pt") as file:
        # copies: the next reference overwrites the file that safetensors maps
        return reported, {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118


def _native(model: TextModel, subjects: Sequence[Subject], step: int, embeddings: Embeddings | None = None) -> Hidden:
    """Our hidden states for some subjects, prompt by prompt, so that each chunk is encoded once."""
    native: Hidden = {}
    for family, prompts in PROMPTS.items():
        asked = [subject for subject in subjects if subject.prompts == family]
        for number in range(0, len(prompts) if asked else 0, step):
            encoded = encode_natively(model, prompts[number], [subject.options for subject in asked], embeddings)
            native |= {f"{subject.key}/{number}": hidden for subject, hidden in zip(asked, encoded, strict=True)}
    return native


def _compared(label: str, subject: Subject, expected: Hidden, actual: Hidden, step: int, prefix: str = "") -> Result:
    """Line that compares with our results, whose keys have a prefix."""
    asked = subject.asked(step).items()
    return _worst(
        label, subject, ((text, largest_difference(actual[f"{prefix}{key}"], expected[key])) for key, text in asked)
    )


def _worst(label: str, subject: Subject, differences: Iterable[tuple[str, float]]) -> Result:
    """Line for the native encoder with the prompt of the largest difference."""
    count, worst, worst_prompt = 0, -1.0, ""
    for prompt, difference in differences:
        count += 1
        if not difference <= worst:  # NaN counts as worse
            worst, worst_prompt = difference, prompt
    words = in_words(subject.options)
    return Result(label, subject.name, words, "native", count, subject.limit, worst, worst_prompt)


def _say(text: str) -> None:
    """Print progress separately from the table."""
    print(text, file=sys.stderr, flush=True)


def largest_difference(actual: Tensor, expected: Tensor) -> float:
    """Largest absolute difference; infinity if the shapes differ."""
    return float((actual - expected).abs().max()) if actual.shape == expected.shape else float("inf")
