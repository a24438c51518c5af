"""Files that a picture's generation data names: its checkpoint, LoRAs and embeddings, and which of them are not there.

Source: behaviour of stable-diffusion-webui 1.10 and stable-diffusion-webui-forge dfdcbab6 (2025-06), which write them,
and of ComfyUI 0.29.0, which looks for them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, cast

from ....encoder.files.tensor_file import CheckpointError, open_tensor_file
from ....encoder.models.config import TOWERS
from ....weighting.infotext import Infotext
from ....weighting.text.embeddings import EmbeddingError
from ....weighting.text.prompt import shortened
from ....weighting.text.tags import LORA_KINDS, Tag, bare, read_loras
from ..contract import host
from ..models.lora_files import file_by_hash, files_named, lora_files, names_in
from ..models.token_offsets import HostEmbeddings
from ..types import ModelPatcher
from .parameters import Row

Widths = Mapping[str, int]
"""Width of a checkpoint's text towers by their names; none if it is not known."""
EMBEDDINGS = ("TI", "TI hashes", "Hashes")
"""Settings that name embeddings, with their hashes or without."""
MAX_FILES = 50
"""Maximum number of embeddings that are looked for."""
MAX_NAME = 60
"""Maximum length of a name in a message."""
MAX_HASHED = 64 * 2**20
"""Size of a file, in bytes, up to which its hash is compared."""
LOADER = (
    "LoRA Tag Loader loads what it names, if prompt goes through it as in the template “13 From an A1111 "
    "picture”; its report says what it loaded"
)
_BY_CONTEXT = {768: ("clip_l",), 1024: ("clip_h",), 1280: ("clip_g",), 2048: ("clip_l", "clip_g")}
"""Text towers of Stable Diffusion's models by the width of the rows that they read."""


def file_rows(infotext: Infotext, widths: Widths) -> list[Row]:
    """A row for each kind of file that generation data names, and for each file that is not there or of no use."""
    return [*_checkpoint_rows(infotext), *_lora_rows(infotext.prompt), *_embedding_rows(infotext, widths)]


def checkpoint_of(infotext: Infotext) -> str:
    """The host's checkpoint file of the name in generation data; empty if there is none."""
    return next(iter(_files_of(infotext.settings.get("Model", ""), "checkpoints")), "")


def widths_of_file(checkpoint: str) -> Widths:
    """Widths of the text towers of one of the host's checkpoints, of which only the header is read."""
    path = host("folder_paths").get_full_path("checkpoints", checkpoint)
    try:
        with open_tensor_file(Path(path)) as file:
            return {tower.name: file.config(tower).hidden_dim for tower in file.towers()}
    except (CheckpointError, OSError, TypeError):  # of another family or format, or removed
        return {}


def widths_of_model(model: ModelPatcher) -> Widths:
    """Widths of the text towers that a MODEL of Stable Diffusion was trained with."""
    config: Any = getattr(getattr(model.model, "model_config", None), "unet_config", None) or {}
    return {tower: TOWERS[tower].hidden_dim for tower in _BY_CONTEXT.get(config.get("context_dim"), ())}


def _checkpoint_rows(infotext: Infotext) -> Iterator[Row]:
    name = infotext.settings.get("Model", "")
    if name and not checkpoint_of(infotext):
        yield Row("Model", name, advice=f"there is no checkpoint of this name in {_folder('checkpoints')}")


def with_loras_by_hash(infotext: Infotext, *, hashes_files: bool) -> tuple[Infotext, list[Row]]:
    """Generation data whose LoRAs have the names of their files here, where those are known by their hashes alone.

    Args:
        infotext: Generation data.
        hashes_files: Whether files without a hash in their metadata are hashed, which may take a minute.

    Returns:
        The data, and a row for each LoRA with another name.
    """
    hashes = _hashes_in(infotext, ("Lora hashes", "Hashes"), "lora:")
    files = lora_files() if hashes else ()
    hashed = files if hashes_files else [file for file in files if names_in(file).hash]
    tags = bare(infotext.prompt, has_comments=True, has_tags=True).tags
    others: dict[str, str] = {}
    for name in list(_lora_names(tags))[:MAX_FILES]:
        digest = hashes.get(name.replace(",", ""), "")  # as A1111 writes it
        file = file_by_hash(digest, hashed) if digest and not files_named(name, files) else None
        if file is not None and not set(":<>=") & set(file):
            others[name] = str(PurePath(file).with_suffix(""))
    pieces: list[str] = []
    end = 0
    for tag in tags:
        if tag.kind in LORA_KINDS and tag.items[0] in others:
            start = tag.span.start + len(tag.kind) + 2
            pieces += [infotext.prompt[end:start], others[tag.items[0]]]
            end = start + len(tag.items[0])
    prompt = "".join([*pieces, infotext.prompt[end:]])
    told = {name: f"“{file}” has its hash and is named in its place" for name, file in others.items()}
    return replace(infotext, prompt=prompt), [Row("LoRA", name, "prompt", advice) for name, advice in told.items()]


def _lora_names(tags: Sequence[Tag]) -> dict[str, None]:
    return {lora.name: None for lora in read_loras(tuple(tag for tag in tags if tag.kind in LORA_KINDS))[0]}


def _lora_rows(prompt: str) -> Iterator[Row]:
    tags = bare(prompt, has_comments=True, has_tags=True).tags
    names = list(_lora_names(tags))
    files = lora_files() if names else ()
    found = {name: bool(files_named(name, files)) for name in names[:MAX_FILES]}
    for name, is_there in found.items():
        if not is_there:
            yield Row("LoRA", name, advice=f"there is none of this name in {_folder('loras')}")
    if any(found.values()):
        yield Row("LoRA", _listed([name for name in names if found.get(name, True)]), "prompt", LOADER)
    others: dict[str, list[str]] = {}
    for tag in tags:
        if tag.kind not in LORA_KINDS:
            others.setdefault(tag.kind, []).append(tag.items[0])
    for kind, some in others.items():
        yield Row(f"<{shortened(kind, MAX_NAME)}: …>", _listed(some), advice="not loaded: only LoRAs are")


def _embedding_rows(infotext: Infotext, widths: Widths) -> Iterator[Row]:
    hashes = _hashes_in(infotext, EMBEDDINGS, "embed:")
    used: list[str] = []
    for name, digest in list(hashes.items())[:MAX_FILES]:
        problem = _problem_with(name, digest, widths)
        if problem:
            yield Row("TI", name, advice=problem)
        else:
            used.append(name)
    if len(hashes) > MAX_FILES:
        yield Row("TI", f"{len(hashes) - MAX_FILES:,} more embeddings", advice=f"at most {MAX_FILES} are looked for")
    if used:
        yield Row("TI", _listed(used), "prompt, which names it")


def _hashes_in(infotext: Infotext, settings: Sequence[str], prefix: str) -> dict[str, str]:
    """Names in the values of some settings, each with its hash or nothing; in Civitai's list, those with a prefix."""
    found: dict[str, str] = {}
    for text in (infotext.settings[name] for name in settings if name in infotext.settings):
        try:
            listed: Any = json.loads(text)
        except (ValueError, RecursionError):
            listed = None
        if isinstance(listed, dict):
            pairs = cast("dict[str, Any]", listed).items()
            found |= {
                name.removeprefix(prefix): digest
                for name, digest in pairs
                if name.startswith(prefix) and isinstance(digest, str)
            }
        elif not text.startswith(("{", "[")):
            items = (item.partition(":") for item in text.split(","))
            found |= {name.strip(): digest.strip() for name, _, digest in items if name.strip()}
    return found


def _problem_with(name: str, digest: str, widths: Widths) -> str:
    """Reason why an embedding is not the picture's, or empty."""
    files = _files_of(name, "embeddings")
    if not files:
        return f"there is no embedding of this name in {_folder('embeddings')}: its name is read as words"
    folders = host("folder_paths").get_folder_paths("embeddings")
    for tower, width in widths.items():
        try:
            if HostEmbeddings(folders, width, tower).find(name) is None:
                return f"“{shortened(files[0], MAX_NAME)}” cannot be read as an embedding"
        except EmbeddingError as error:
            return f"not used: {error}"
        except Exception as error:  # of whatever the host's reader meets in the file
            return f"“{shortened(files[0], MAX_NAME)}” cannot be read as an embedding: {type(error).__name__}"
    path = Path(host("folder_paths").get_full_path_or_raise("embeddings", files[0]))
    if digest and path.is_file() and path.stat().st_size <= MAX_HASHED:
        own = hashlib.sha256(path.read_bytes()).hexdigest()
        if not own.startswith(digest.lower()):
            return f"“{shortened(files[0], MAX_NAME)}” is another file than the picture's: hash {own[:12]}"
    return ""


def _files_of(name: str, kind: str) -> list[str]:
    """The host's files of a kind that have a name: as their path, or bare, with or without suffix."""
    files: Sequence[str] = host("folder_paths").get_filename_list(kind) if name else ()
    wanted = name.replace("\\", "/")
    paths = {file: PurePath(file.replace("\\", "/")) for file in files}
    names = ((file, (path.as_posix(), path.name)) for file, path in paths.items())
    return [file for file, some in names if any(wanted in (one, one.removesuffix(paths[file].suffix)) for one in some)]


def _folder(kind: str) -> str:
    """Folders in which the host looks for files of a kind, in words."""
    folders = [f"“{shortened(str(folder), 200)}”" for folder in host("folder_paths").get_folder_paths(kind)]
    return " and ".join(folders[:2]) + (f" and {len(folders) - 2} more folders" if len(folders) > 2 else "")


def _listed(names: Sequence[str]) -> str:
    """Names, the first of them written out."""
    shown = ", ".join(shortened(name, MAX_NAME) for name in names[:3])
    return f"{shown} and {len(names) - 3:,} more" if len(names) > 3 else shown
