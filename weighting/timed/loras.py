"""LoRAs that change with the steps: tags within edits and alternations, and strengths such as ``0.2@0.2,1@0.5``.

A tag stands at the steps at which a text in its place would. Its strength is linear between the points that are
written, and stays before the first and after the last, as in sd-webui-loractl. Programs apply it to the whole picture
wherever the tag is; a text between ANDs too, unless LoRAs act by part. ``start=`` and ``stop=`` bound the steps in
which it acts on the diffusion model, as in sd-webui-lora-block-weight in Forge: the text encoder has the LoRA in all
steps, or if it starts later, in none.

Source: docs/same-picture.md, "LoRAs in time"; behaviour of sd-webui-loractl b48cf60 (2023-09) and of
sd-webui-lora-block-weight b403cb7 (2025-06).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any, Literal, NamedTuple, get_args

from ..text.prompt import Issue, shortened
from ..text.tags import REPEATED_LORA, TIMED_LORA, LoraTag, Points, read_loras
from .editing import choices_at, is_chosen, read_editing
from .glides import on_line, position_of
from .regions import REGIONS, Regions
from .schedule import Counter, PromptTotals, TimedPrompt, cut_parts, last_steps_of

Loras = Literal["as A1111", "in time", "in time, by part"]
LORAS: tuple[Loras, ...] = get_args(Loras)
"""Ways of reading LoRA tags, default first. By part, a tag acts where its part of the prompt between ANDs does."""
MAX_CHANGES = 1000
"""Maximum number of changes of strengths of all LoRAs of a prompt together: the host encodes the text for each."""


OTHER_TIMES = "other-times"
"""Code of issues about LoRAs that are named again with other times."""


class LoraTimes(NamedTuple):
    """A LoRA with its strengths in each call of the denoiser."""

    tag: LoraTag
    """The tag."""
    clip: tuple[float, ...]
    """Strengths for the text encoder; 0 where the tag does not stand."""
    model: tuple[float, ...]
    """Strengths for the diffusion model."""
    part: int = 0
    """Number of the part of the prompt, between ANDs, in which the tag stands."""

    @property
    def changes(self) -> bool:
        """Whether a strength changes."""
        return len({*self.clip}) > 1 or len({*self.model}) > 1

    @property
    def acts(self) -> bool:
        """Whether it acts in any step, or has no strength anyway."""
        return any(self.clip) or any(self.model) or not (self.tag.clip_strength or self.tag.model_strength)

    @property
    def text(self) -> str:
        """Steps, counted from 1, and strengths where there are any: ``1–10: 0.8, 11: 1``."""
        runs: list[str] = []
        last = 0
        for (clip, model), group in groupby(zip(self.clip, self.model, strict=True)):
            first, last = last + 1, last + len(list(group))
            strength = f"{model:g}" if clip == model else f"{model:g} (CLIP {clip:g})"
            if clip or model:
                runs.append(f"{first if first == last else f'{first}–{last}'}: {strength}")
        listed = runs if len(runs) <= MAX_RUNS else [*runs[: MAX_RUNS - 1], f"… {runs[-1]}"]
        return ", ".join(listed) or "0"

    @property
    def issue(self) -> Issue:
        """The times for the author of the prompt, with the code of what is said of other tags if there are any."""
        name = shortened(self.tag.name)
        if self.acts:
            return Issue("lora", f"The LoRA “{name}” acts in steps {self.text}{self.tag.of_blocks}.", self.tag.span)
        message = f"The LoRA “{name}” acts in none of the {len(self.clip)} steps."
        return Issue("lora-without-step", message, self.tag.span)


MAX_RUNS = 4
"""Maximum number of strengths listed for a LoRA."""


def lora_times(
    source: str,
    steps: int,
    counter: Counter,
    *,
    has_comments: bool | tuple[str, ...] = True,
    regions: Regions = REGIONS[0],
    second_pass: bool = False,
) -> list[LoraTimes]:
    """LoRAs of a prompt with their strengths in each call.

    Args:
        source: The prompt.
        steps: Number of steps, each one call.
        counter: Way of counting them. As the WebUI counts, all comes one call later.
        has_comments: As in `read_timed`.
        regions: As in `read_timed`.
        second_pass: As in `read_loras`.

    Returns:
        The LoRAs in order.

    Raises:
        ValueError: As in `read_timed`, or if strengths change more than `MAX_CHANGES` times.

    >>> [(lora.tag.name, lora.model) for lora in lora_times("[<lora:a:0.8>:<lora:b:1>:0.5]", 4, "as written")]
    [('a', (0.8, 0.8, 0.0, 0.0)), ('b', (0.0, 0.0, 1.0, 1.0))]
    """
    bare_text, parts, *_ = cut_parts(source, steps, has_comments=has_comments, is_negative=False, regions=regions)
    loras, _ = read_loras(bare_text.tags, second_pass=second_pass)
    text, positions = bare_text.fragment.text, bare_text.fragment.positions
    starts = [part.span.start for part in parts]
    editings = {index: read_editing(text[slice(*part.span)]).parts for index, part in enumerate(parts) if loras}
    sizes = PromptTotals()
    times: list[LoraTimes] = []
    for lora in loras:
        place = bisect_left(positions, lora.span.start)
        index = max(bisect_right(starts, place) - 1, 0)
        choices = choices_at(editings[index], place - starts[index])
        sizes.add(1 + len(choices), steps, "LoRAs, and edits and alternations around them,")
        last_steps = last_steps_of([edit for edit, _ in choices], steps)
        clip, model = [], []
        for call in range(steps):
            step = call if counter == "as the WebUI counts" else call + 1
            stands = all(is_chosen(choice, max(step, 1), last_steps) for choice in choices)
            reads = stands and not lora.start
            acts = stands and _acts(lora, call, counter)
            clip.append(_at(lora.clip_points, call, steps, counter, lora.clip_strength) if reads else 0.0)
            model.append(_at(lora.model_points, call, steps, counter, lora.model_strength) if acts else 0.0)
        times.append(LoraTimes(lora, tuple(clip), tuple(model), index))
    count = sum(
        current != following
        for lora in times
        for current, following in pairwise(zip(lora.clip, lora.model, strict=True))
    )
    if count > MAX_CHANGES:
        raise ValueError(
            f"The strengths of this prompt's LoRAs change {count} times in {steps} steps; {MAX_CHANGES} are allowed: "
            "use fewer LoRAs that change at each step, or fewer steps."
        )
    return times


def constant(tag: LoraTag) -> LoraTimes:
    """A LoRA in one call, where it does not change with the steps."""
    return LoraTimes(tag._replace(clip_points=(), model_points=()), (tag.clip_strength,), (tag.model_strength,))


def once(loras: Sequence[LoraTimes], keys: Sequence[Hashable]) -> tuple[list[LoraTimes], list[Issue]]:
    """LoRAs without what another one does already: as in Forge, a file acts once in a call at each strength.

    Strengths of 0.8, 0.8 and 0.5 act as 1.3, for the text encoder and for the diffusion model by themselves.

    Args:
        loras: The LoRAs. Strengths at steps, which extensions set, all act.
        keys: For each LoRA its file, or its name; with its part, if it acts by part.

    Returns:
        The LoRAs, with the strength 0 where another one acts; and an issue about each such one.
    """
    acting: dict[tuple[Any, ...], list[bool]] = {}
    times_of: dict[Hashable, tuple[Any, ...]] = {}
    result: list[LoraTimes] = []
    issues: list[Issue] = []
    for lora, key in zip(loras, keys, strict=True):
        tag = lora.tag
        clip = lora.clip if tag.clip_points else _first(lora.clip, acting, (key, True, tag.clip_strength, tag.blocks))
        model = (
            lora.model if tag.model_points else _first(lora.model, acting, (key, False, tag.model_strength, tag.blocks))
        )
        own_times = (tag.start, tag.stop, tag.clip_points, tag.model_points)
        if times_of.setdefault(key, own_times) != own_times:
            message = (
                f"The LoRA “{shortened(tag.name)}” is named again with other times: each of its tags acts in its own "
                "steps, and strengths add up."
            )
            issues.append(Issue(OTHER_TIMES, message, tag.span))
        result.append(lora._replace(clip=clip, model=model))
        if result[-1] != lora:
            part = " for the text encoder" if model == lora.model else " for the diffusion model"
            part = part if clip == lora.clip or model == lora.model else ""
            name = shortened(tag.name)
            message = f"The LoRA “{name}” is named again at the same strength{part}: it acts once, as in Forge."
            issues.append(Issue(REPEATED_LORA, message, tag.span))
    return result, issues


def _first(
    strengths: tuple[float, ...], acting: dict[tuple[Any, ...], list[bool]], key: tuple[Any, ...]
) -> tuple[float, ...]:
    """Strengths in each call, 0 where the same acts already; what acts is added."""
    acts_before = acting.get(key, [False] * len(strengths))
    acting[key] = [acts or bool(strength) for strength, acts in zip(strengths, acts_before, strict=True)]
    return tuple(0.0 if acts else strength for strength, acts in zip(strengths, acts_before, strict=True))


def with_times(prompt: TimedPrompt, times: Sequence[LoraTimes], *, by_part: bool = False) -> TimedPrompt:
    """The prompt with issues that say when its LoRAs act, in place of those that say that they are not loaded.

    With ``by_part`` each acts in its part alone, so that two parts may name the same.
    """
    if not times:
        return prompt
    issue_by_span = {lora.tag.span: lora.issue for lora in times}
    issues = [issue_by_span.get(issue.span, issue) if issue.code == "lora" else issue for issue in prompt.issues]
    issues = [issue for issue in issues if issue.code not in (TIMED_LORA, REPEATED_LORA)]
    issues += once(times, [(lora.tag.name, lora.part if by_part else 0) for lora in times])[1]
    return replace(prompt, issues=tuple(sorted(issues, key=lambda issue: issue.span)))


def without_repeated(prompt: TimedPrompt) -> TimedPrompt:
    """The prompt without issues about LoRAs that are named again, which `once` makes by their files."""
    return replace(prompt, issues=tuple(issue for issue in prompt.issues if issue.code != REPEATED_LORA))


def _acts(lora: LoraTag, call: int, counter: Counter) -> bool:
    """Whether a call, counted from 0, lies between the steps at which a LoRA starts and stops.

    A stop before the start does nothing.
    """
    step = max(call - 1, 0) if counter == "as the WebUI counts" else call + 1
    return step >= lora.start and (lora.stop is None or step < lora.stop or lora.stop < lora.start)


def _at(points: Points, call: int, steps: int, counter: Counter, constant: float) -> float:
    """Strength in a call, counted from 0."""
    if not points:
        return constant
    lags = counter == "as the WebUI counts"
    return on_line(points, position_of(call, steps, lags=lags, is_share=points[-1][1] <= 1))
