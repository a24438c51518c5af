"""Export of a prompt's conditioning as a file."""

from __future__ import annotations

from pathlib import Path

from ...output.export import write_conditioning
from ...weighting.options import EncodeOptions
from ...weighting.schemes.negpip import check_without_signs
from ...weighting.towers import joined, read_for_towers
from .model import LabError, LabModel, without_folder


def export(model: LabModel, text: str, options: EncodeOptions, path: Path) -> None:
    """Encode a prompt into a safetensors file; an existing one is replaced.

    Raises:
        LabError: If the prompt cannot be encoded or the file cannot be written.
    """
    try:
        check_without_signs(read_for_towers(text, options, model.readers()).values(), "a file")
        rows = joined(model.encode(text, options))
    except ValueError as error:
        raise LabError(str(error)) from error
    about = {"weights": model.title} | ({"warning": model.warning} if model.warning else {})
    try:
        write_conditioning(path, rows, text, options, about)
    except OSError as error:
        raise LabError(without_folder(error, path)) from error
    except UnicodeError as error:
        raise LabError(f"{path.name} cannot be written: {error}") from error
