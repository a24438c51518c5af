"""Weights available to the stand-alone lab: those it was started with, those of a folder, and a file dropped on it.

All open pages of a lab use the same model.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from .model import LabError, without_folder
from .native import NativeLabModel, Settings, file_model
from .places import SUFFIX


class Shelf:
    """Models by name, one of which is in use. Only headers of files are read until something is encoded.

    Args:
        model: Initial model.
        name: Its name.
        settings: Settings for loading others.
        files: Other files by name.
    """

    def __init__(self, model: NativeLabModel, name: str, settings: Settings, files: Mapping[str, Path]) -> None:
        self._model = model
        self._settings = settings
        self._files = dict(files)
        self._first = name, model
        self._dropped: tuple[str, Path] | None = None
        self._lock = threading.Lock()
        self.name = name
        """Name of the model in use."""

    def source(self) -> NativeLabModel:
        """The model in use."""
        return self._model

    @property
    def names(self) -> list[str]:
        """Names of all available models."""
        dropped = [] if self._dropped is None else [self._dropped[0]]
        return list(dict.fromkeys([*dropped, self._first[0], *self._files]))

    def choose(self, name: str) -> None:
        """Switch to another model.

        Raises:
            LabError: If there is none with that name.
            CheckpointError: If its file cannot be used; the previous model stays in use.
        """
        with self._lock:
            if name == self.name:
                return
            if self._dropped is not None and name == self._dropped[0]:
                model = file_model(self._dropped[1], self._settings)
            elif name == self._first[0]:
                model = self._first[1]
            elif name in self._files:
                model = file_model(self._files[name], self._settings)
            else:
                raise LabError(f"there are no weights named {name!r:.80}; there are {', '.join(self.names)}")
            self._model, self.name = model, name

    def drop(self, path: Path) -> None:
        """Use a file dropped on the page, and remove the one dropped before.

        Raises:
            LabError: If it is not a safetensors file.
            CheckpointError: If it has no text encoder; the previous model stays in use.
        """
        if path.suffix.lower() != SUFFIX:
            raise LabError(f"{path.name}: weights are read from {SUFFIX} files alone")
        with self._lock:
            try:
                model = file_model(path, self._settings)
            except ValueError as error:
                path.unlink(missing_ok=True)
                error.args = (without_folder(error, path),)
                raise
            old, self._dropped = self._dropped, (f"{path.name} (dropped)", path)
            self._model, self.name = model, self._dropped[0]
            if old is not None and old[1] != path:
                old[1].unlink(missing_ok=True)
