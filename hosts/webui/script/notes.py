"""Lines below an image: problems of its prompts, where they stand in them; and numbers that its sampler did not take.

Source: behaviour of stable-diffusion-webui 1.10 and stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ....encoder.quoting import quote
from ....weighting.options import EncodeOptions
from ....weighting.reading.timed_view import NOT_HERE, standing_texts
from ....weighting.schemes import SCHEMES
from ....weighting.syntax.a1111 import TIMED_READER
from ....weighting.text.prompt import Fragment, Issue
from ....weighting.timed.schedule import COUNTERS, read_timed
from ..engines import Generation, host_option
from ..settings import INFOTEXT

PROMPTS = {False: ("all_prompts", "all_hr_prompts"), True: ("all_negative_prompts", "all_hr_negative_prompts")}
"""Attributes of a generation with its prompts, and with its negative ones."""
SIGMAS = {"s_churn": "Sigma churn", "s_tmin": "Sigma tmin", "s_tmax": "Sigma tmax", "s_noise": "Sigma noise"}
"""Numbers of a request that some samplers take, with their names in an image's parameters."""

ADETAILER = "ADetailer"
SCRIPT = "weighted_clip"
"""File name of our script, by which ADetailer knows it."""
LEFT_OUT = (
    f"ADetailer redraws parts of this image without {INFOTEXT}, with the WebUI's own weights. To have both, add "
    f"{SCRIPT} to its setting “Script names to apply to ADetailer (separated by comma)”."
)


class Problems:
    """Problems of the texts that the host makes of a generation's prompts, told of the prompts."""

    def __init__(self, p: Generation) -> None:
        """Take the prompts of a generation, once there are any problems."""
        self._p: Any = p
        self._texts: dict[bool, dict[str, Fragment]] = {}
        """Texts as stretches of the prompt that they are made of; by whether it is a negative one."""

    def lines(self, problems: Sequence[tuple[str, Issue]], *, is_negative: bool) -> list[str]:
        """A line for each problem, given with the text that it is about.

        Its place is counted in the whole prompt, so that the same problem in several texts is told once; in the text
        where nobody knows of which prompt that is.
        """
        if not problems:
            return []
        if is_negative not in self._texts:
            self._texts[is_negative] = {}
            for text, fragment in self._standing_texts(is_negative=is_negative):
                self._texts[is_negative].setdefault(text, fragment)
        texts = self._texts[is_negative]
        placed = (
            replace(issue, span=texts[text].span_of(issue.span)) if text in texts else issue for text, issue in problems
        )
        return list(dict.fromkeys(issue.line.replace(TIMED_READER, NOT_HERE) for issue in placed))

    def _standing_texts(self, *, is_negative: bool) -> Iterator[tuple[str, Fragment]]:
        prompts: Iterable[str] = [text for name in PROMPTS[is_negative] for text in getattr(self._p, name, None) or ()]
        has_comments = bool(host_option("enable_prompt_comments", default=False))
        for text in dict.fromkeys(prompts):
            for steps in dict.fromkeys([self._p.steps, getattr(self._p, "hr_second_pass_steps", 0) or self._p.steps]):
                with suppress(ValueError):  # too many changes
                    timed = read_timed(text, steps, has_comments=has_comments, is_negative=is_negative)
                    yield from (
                        (standing.fragment.text, standing.fragment)
                        for standing in standing_texts(timed, steps, COUNTERS[0])
                    )


def idle_emphasis(p: Any, options: EncodeOptions) -> Iterator[str]:
    """Line about an emphasis mode that a request sets and the scheme replaces."""
    mode = (getattr(p, "override_settings", None) or {}).get("emphasis")
    is_read = "above_one" in SCHEMES[options.scheme].options and options.above_one == "as the WebUI"
    if mode not in (None, "None") and not is_read:
        yield f"The setting emphasis {quote(mode)} has no effect: the scheme {options.scheme} sets the weights."


def sampler_lines(p: Any) -> Iterator[str]:
    """Lines about numbers of a request that its sampler did not take, or that the image's parameters do not name."""
    sampler = getattr(p, "sampler", None)
    if not callable(function := getattr(sampler, "func", None)):
        return
    parameters = inspect.signature(function).parameters
    for name, key in SIGMAS.items():
        value, default = getattr(p, name, None), host_option(name, default=None)
        if value is None or default is None or value == default or (value == math.inf and not default):
            continue
        if name not in parameters or name not in getattr(sampler, "extra_params", ()):
            yield f"{name} {quote(value)} does nothing: the sampler {p.sampler_name} does not take it."
        elif key not in p.extra_generation_params:
            yield f"{name} {quote(value)} took effect, but is not in the image's parameters."
    if getattr(p, "eta", None) is not None and "eta" not in parameters:
        yield f"eta {quote(p.eta)} does nothing: the sampler {p.sampler_name} does not take it."


def leaves_us_out(p: Generation) -> bool:
    """Whether ADetailer will redraw parts of a generation's image without our script."""
    if not host_option("ad_only_selected_scripts", default=True):
        return False
    names = str(host_option("ad_script_names", default="")).split(",")
    if SCRIPT in (name.strip() for name in names) or getattr(p, "_ad_disabled", False):
        return False
    scripts = getattr(getattr(p, "scripts", None), "alwayson_scripts", ())
    for script in scripts:
        if script.title() == ADETAILER:
            with suppress(Exception):  # its values are its own business, and may change
                values = list(getattr(p, "script_args", ()))[script.args_from : script.args_to]
                return bool(script.is_ad_enabled(*values))
    return False
