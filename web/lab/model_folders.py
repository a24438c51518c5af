"""Locations of weights for the stand-alone lab: folders of ComfyUI and the WebUI, and Hugging Face's cache.

Source: the folders of ComfyUI 0.29.0 and Forge 2.0.1.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from ...encoder.files.tensor_file import CheckpointError, open_tensor_file

MODEL_FOLDERS = ("text_encoders", "clip", "text_encoder", "checkpoints", "Stable-diffusion")
"""Host folders with text encoders, dedicated ones first."""
SUFFIX = ".safetensors"
MAX_LISTED = 20
"""Maximum number of names in a message."""

HUB_REPOSITORY = "openai/clip-vit-large-patch14"
HUB_FILE = "model.safetensors"
"""OpenAI's release of CLIP ViT-L/14, text and image tower, 1.7 GB."""
HUB_REVISION = "32bd64288804d66eefd0ccbe215aa642df71cc41"
"""Pinned commit of the repository: later changes are never fetched."""
HUB_SHA256 = "a2bf730a0c7debf160f7a6b50b3aaf3703e7e88ac73de7a314903141db026dcb"
"""Hash of the file, as given by the repository."""


@dataclass(frozen=True)
class ModelFolder:
    """A host's folder of models."""

    folder: Path
    """The folder given."""
    files: dict[str, Path]
    """Files by their path relative to the folder, with ``/``; in the order in which they are tried."""
    embeddings: tuple[Path, ...]
    """The host's existing folders of textual inversions."""


def model_folder(folder: Path) -> ModelFolder:
    """Examine a host's folder of models.

    Args:
        folder: ``models`` of ComfyUI or of the WebUI, or its parent folder.

    Returns:
        Its contents.

    Raises:
        ValueError: If it is not such a folder, or contains no weights.
    """
    if not folder.is_dir():
        raise ValueError(f"--models {folder}: there is no such folder")
    bases = [base for base in (folder, folder / "models") if base.is_dir()]
    places = [base / name for base in bases for name in MODEL_FOLDERS if (base / name).is_dir()]
    if not places:
        there = _listed(sorted(path.name for path in folder.iterdir()))
        raise ValueError(
            f"--models {folder}: no folder of models: none of {', '.join(MODEL_FOLDERS)} is in it, as in ComfyUI's or "
            f"the WebUI's folder “models”; in it are {there}"
        )
    files = {
        path.relative_to(folder).as_posix(): path
        for place in places
        for path in sorted(place.rglob("*"))
        if path.suffix.lower() == SUFFIX and path.is_file()
    }
    if not files:
        names = _listed([place.relative_to(folder).as_posix() for place in places])
        raise ValueError(f"--models {folder}: there is no {SUFFIX} file in {names}")
    roots = (*bases, folder.resolve().parent) if folder.resolve().name == "models" else bases
    embeddings = tuple(root / "embeddings" for root in roots if (root / "embeddings").is_dir())
    return ModelFolder(folder, files, embeddings)


def chosen_file(models: ModelFolder, name: str | None) -> Path:
    """Choose a file by its path relative to the folder, its name, or that without suffix.

    With None it is the first one with a text encoder.
    """
    if name is None:
        return _first_readable(models)
    wanted = name.replace("\\", "/")
    if wanted in models.files:
        return models.files[wanted]
    found = [key for key, path in models.files.items() if wanted in (path.name, path.stem, key.removesuffix(SUFFIX))]
    if len(found) == 1:
        return models.files[found[0]]
    if found:
        raise ValueError(f"--model {name}: there are several of that name, say which one: {_listed(found)}")
    raise ValueError(f"--model {name}: not in {models.folder}; there are {_listed(list(models.files))}")


def _first_readable(models: ModelFolder) -> Path:
    problems: list[str] = []
    for name, path in models.files.items():
        try:
            with open_tensor_file(path) as file:
                for tower in file.towers():
                    file.config(tower)
            return path
        except CheckpointError as error:
            problems.append(f"{name}: {str(error).removeprefix(f'{path}: ')}")
    raise ValueError(f"--models {models.folder}: no file in it has a CLIP text encoder. {' '.join(problems[:5])}")


def hub_file(*, download: bool) -> Path | None:
    """OpenAI's release of CLIP ViT-L/14 in Hugging Face's cache, or None.

    ``download`` fetches it if it is missing, and checks it. That is 1.7 GB, so nothing is fetched unasked.
    """
    try:
        import huggingface_hub
    except ImportError as error:
        if download:
            raise ValueError("--download needs huggingface_hub, which is not installed") from error
        return None
    cached = huggingface_hub.try_to_load_from_cache(HUB_REPOSITORY, HUB_FILE, revision=HUB_REVISION)
    if isinstance(cached, str):
        return Path(cached)
    if not download:
        return None
    try:
        fetched = Path(huggingface_hub.hf_hub_download(HUB_REPOSITORY, HUB_FILE, revision=HUB_REVISION))
        found = _sha256(fetched)
        if found == HUB_SHA256:
            return fetched
        fetched.resolve().unlink()  # target of the link in the cache
        fetched.unlink(missing_ok=True)
    except OSError as error:
        raise ValueError(f"--download: {HUB_FILE} of {HUB_REPOSITORY} cannot be fetched: {error}") from error
    raise ValueError(
        f"--download: {HUB_FILE} of {HUB_REPOSITORY} is not the one that OpenAI released: its SHA-256 should be "
        f"{HUB_SHA256}, and is {found}. It was removed; try again"
    )


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            found.update(block)
    return found.hexdigest()


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return (", ".join(names[:MAX_LISTED]) or "no files") + more
