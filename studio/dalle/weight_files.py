"""Model files: safetensors files with a model's parameters by name, and its sizes in the metadata.

A `Format` says what a kind of file has. Here is that of discrete VAEs, with the keys that OpenAI gives them, prefixed
with ``encoder.`` or ``decoder.``; ``prior_file.py`` and ``dalle.py`` have one each. Nothing here reads a pickle;
``published.py`` does, for one command.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from safetensors import SafetensorError
from torch import nn

from ...encoder.files.safetensors_file import FLOATS, opened, why_unread
from ...encoder.foreign_text import parse_json
from ...encoder.quoting import quote
from ..output.export import save_tensors
from ..output.files import written_whole
from .config import DVAEConfig
from .dvae import DVAE

CONVERT = "python run.py convert-dvae ENCODER DECODER OUT"
"""Command that converts OpenAI's pickles."""
PICKLE_SUFFIXES = (".bin", ".ckpt", ".pkl", ".pt", ".pth")
MAX_HEADER_BYTES = 2**20

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Model = TypeVar("Model", bound=nn.Module)
Sizes = TypeVar("Sizes", bound="DataclassInstance")


class DVAEFileError(ValueError):
    """Raised for a model file that cannot be read; the message names the file."""


@dataclass(frozen=True)
class Format(Generic[Model]):
    """A kind of model file."""

    name: str
    """Value of the metadata entry ``format``."""
    title: str
    """The model's name in messages."""
    entries: tuple[str, ...]
    """Metadata entries that describe the model."""
    build: Callable[[Mapping[str, str]], Model]
    """Makes the model from these entries, without its weights; a ValueError says why it cannot."""
    describe: Callable[[Model], Mapping[str, str]]
    """Makes the entries from the model."""
    maker: str
    """Sentence about the command that writes such files."""
    for_pickles: str = ""
    """Advice on pickled files, after a full stop."""

    def save(
        self, model: Model, path: Path, about: Mapping[str, str] | None = None, *, may_replace: bool = True
    ) -> None:
        """Write a model atomically.

        Args:
            model: Model to write.
            path: Output file.
            about: Further metadata entries, such as the origin of the model.
            may_replace: Whether an existing file may be replaced; otherwise it is an error.

        Raises:
            OSError: If it cannot be written; an existing file is left as it was.
        """
        metadata = {**(about or {}), "format": self.name, **self.describe(model)}
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
        with written_whole(path, may_replace=may_replace) as place:
            save_tensors(tensors, place, metadata)

    def load(
        self, path: str | Path, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> Model:
        """Read a model.

        Args:
            path: A file of `save`, or of the command named by `maker`.
            dtype: Type of the weights and of the arithmetic.
            device: Device of the model.

        Returns:
            The model, in evaluation mode without gradients.

        Raises:
            DVAEFileError: If the file cannot be used.
        """
        path = Path(path)
        if path.suffix.lower() in PICKLE_SUFFIXES:
            problem = "pickled models are not loaded, because loading one can run code"
            raise DVAEFileError(f"{path}: {problem}{self.for_pickles}")
        try:
            with opened(path, MAX_HEADER_BYTES) as file:
                model = self._built(file.metadata() or {})
                model.load_state_dict(self._tensors(file, model, dtype, device), assign=True)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DVAEFileError(f"{path}: there is no such file") from error
        except (SafetensorError, OSError) as error:
            raise DVAEFileError(f"{path}: {why_unread(error)}") from error
        except ValueError as error:
            raise DVAEFileError(f"{path}: {error}") from error
        return model.to(device).eval().requires_grad_(False)

    def _built(self, metadata: Mapping[str, str]) -> Model:
        """The model described by the metadata, with parameters that take no memory."""
        if metadata.get("format") != self.name or not {*self.entries} <= {*metadata}:
            name = self.title.partition(" ")[2]
            raise ValueError(f"this is no {name} of ours: its metadata has no sizes of one. {self.maker}")
        with torch.device("meta"):
            return self.build(metadata)

    def _tensors(
        self, file: Any, model: Model, dtype: torch.dtype, device: torch.device | str
    ) -> dict[str, torch.Tensor]:
        """Tensors of an open file, which must be those of the model."""
        shapes = {key: list(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
        expected = {name: list(parameter.shape) for name, parameter in model.state_dict().items()}
        for name, shape in expected.items():
            if name not in shapes:
                raise ValueError(f"key {quote(name, 200)} is missing; the file looks incomplete")
            if shapes[name] != shape:
                raise ValueError(
                    f"key {quote(name, 200)} has shape {quote(shapes[name])}, expected {shape} by the sizes in its "
                    "metadata"
                )
        if more := [key for key in shapes if key not in expected]:
            raise ValueError(f"key {quote(more[0], 200)} is no part of {self.title}")
        state: dict[str, torch.Tensor] = {}
        for name in expected:
            stored = file.get_slice(name).get_dtype()
            if stored not in FLOATS:
                raise ValueError(f"key {quote(name, 200)} holds {stored}, expected one of {', '.join(FLOATS)}")
            tensor = file.get_tensor(name)
            if not bool(torch.isfinite(tensor.float()).all()):
                raise ValueError(f"key {quote(name, 200)} holds values that are NaN or infinite")
            # a copy: safetensors returns a view of the file, which may change
            state[name] = tensor.to(device=device, dtype=dtype, copy=True)
        return state


def sizes_text(sizes: DataclassInstance) -> str:
    """Sizes as a metadata entry."""
    return json.dumps(asdict(sizes))


def read_sizes(text: str, kind: type[Sizes]) -> Sizes:
    """Parse sizes from a metadata entry."""
    try:
        given = parse_json(text)
        names = {field.name for field in fields(kind)}
        if not isinstance(given, dict) or set(given) != names:
            raise ValueError(f"expected the entries {', '.join(sorted(names))}")
        return kind(**given)
    except ValueError as error:
        raise ValueError(f"the sizes in its metadata cannot be used: {error}") from error


DVAE_FORMAT = Format(
    name="dvae",
    title="a dVAE",
    entries=("config",),
    build=lambda metadata: DVAE(read_sizes(metadata["config"], DVAEConfig)),
    describe=lambda model: {"config": sizes_text(model.config)},
    maker=f"OpenAI's encoder.pkl and decoder.pkl are converted by {CONVERT}",
    for_pickles=f". Convert it first: {CONVERT}",
)
save_dvae, load_dvae = DVAE_FORMAT.save, DVAE_FORMAT.load
