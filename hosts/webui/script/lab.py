"""The model loaded in the WebUI, for the lab.

Source: behaviour of stable-diffusion-webui 1.10 and stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ....encoder.tokenizer import CleaningTokenize, default_tokenizer
from ....weighting.options import EncodeOptions
from ....weighting.pipeline import Check, EncodedPrompt
from ....weighting.towers import Reader
from ..conditioning import swapped
from ..engines import HostModel, WebUIError, as_emphasized, comma_backtrack, engines_of, host_option, text_engine_class
from ..model_readers import model_in_memory


class LoadedModel:
    """Text encoders of the model in memory. Nothing is loaded for it."""

    warning = ""

    def __init__(self, model: HostModel | None) -> None:
        """Wrap the host's ``sd_model``, or None; raises `WebUIError` if it has unknown text encoders."""
        self._model = model
        self._engines = {} if model is None else engines_of(model)

    @property
    def title(self) -> str:
        """Name of the checkpoint."""
        if self._model is None:
            return "no model is loaded yet; tokens are CLIP-L's"
        info = getattr(self._model, "sd_checkpoint_info", None)
        return f"{getattr(info, 'name_for_extra', None) or type(self._model).__name__}, as loaded in the WebUI"

    def readers(self) -> dict[str, Reader]:
        """Prompt readers for each text tower."""
        if self._model is None:
            return {"clip_l": Reader(CleaningTokenize(default_tokenizer()))}
        return {tower: engine.reader() for tower, engine in self._engines.items()}

    def encode(self, text: str, options: EncodeOptions, check: Check | None = None) -> dict[str, EncodedPrompt]:
        """Same as `LabModel.encode`, by the host itself; only within the host's queue."""
        if self._model is None:
            raise WebUIError(
                "No model is loaded yet: make an image once, then this page uses its text encoder. Tokens, masks and "
                "conversion work without one."
            )
        options = replace(options, emphasis=as_emphasized(options).emphasis)
        from modules import devices  # pyright: ignore[reportMissingImports]
        from modules.prompt_parser import SdConditioning  # pyright: ignore[reportMissingImports]

        with torch.no_grad(), devices.autocast(), swapped(self._engines, options, check=check) as run:
            if set_clip_skip := getattr(self._model, "set_clip_skip", None):
                set_clip_skip(int(host_option("CLIP_stop_at_last_layers", default=1)))
            self._model.get_learned_conditioning(SdConditioning([text]))
            return {tower: run.encode(tower, [text])[0] for tower in self._engines}


def base_options() -> EncodeOptions:
    """Initial options of the page, with or without a control: as a new page's script, with the host's settings."""
    backtrack = comma_backtrack(text_engine_class())
    cleaning = "as Forge" if host_option("enable_prompt_comments", default=False) else "none"
    return EncodeOptions(
        syntax="a1111",
        scheme="a1111",
        above_one="as the WebUI",
        quirks=True,
        comma_backtrack=backtrack,
        cleaning=cleaning,
    )


def loaded_model() -> LoadedModel:
    """The model currently in memory; raises as `LoadedModel` does."""
    model = model_in_memory()
    return LoadedModel(model if hasattr(model, "get_learned_conditioning") else None)


def run_in_queue(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function while no image is being made; in Forge on the thread that owns the models.

    Exceptions it raises are raised here.
    """
    from modules.call_queue import wrap_queued_call  # pyright: ignore[reportMissingImports]

    def outcome() -> tuple[Any, BaseException | None]:
        try:
            return function(*arguments), None
        except BaseException as error:
            return None, error

    try:
        from modules_forge.main_thread import run_and_wait_result  # pyright: ignore[reportMissingImports]
    except ImportError:
        result, error = wrap_queued_call(outcome)()
    else:
        result, error = wrap_queued_call(run_and_wait_result)(outcome)
    if error is not None:
        try:
            raise error
        finally:
            del error  # it refers to this frame, which would keep it and all tensors of its frames alive
    return result
