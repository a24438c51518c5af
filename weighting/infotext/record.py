"""Records of generation data, and of the problems met while reading it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..text.prompt import shortened

MAX_CHARACTERS = 2**20
"""Longest text that is read; the longest graphs of ComfyUI have half of it."""
MAX_SETTINGS = 1000
"""Maximum number of settings read."""
MAX_PROBLEMS = 20
"""Maximum number of problems listed; the rest are only counted."""


@dataclass(frozen=True)
class Infotext:
    """Generation data, read."""

    prompt: str
    """Prompt, which may have line breaks."""
    negative: str = ""
    """Negative prompt, without the words that announce it."""
    settings: dict[str, str] = field(default_factory=dict)
    """Settings by the WebUI's names, in the order of the text; of two with one name the last."""
    problems: tuple[str, ...] = ()
    """Sentences on what was left out, guessed or not understood: at most `MAX_PROBLEMS`, and how many more."""
    writer: str = ""
    """Name of the program that wrote it, if it is not in the WebUI's own form."""
    syntax: str = ""
    """Syntax of its prompts by its name among ours; empty for the WebUI's, with edits and AND."""
    scheme: str = ""
    """Scheme that does what its weights do, or the nearest; empty for the WebUI's."""
    is_foreign: bool = False
    """Whether another program drew it than the WebUI, so that no drawing here is the same."""

    @property
    def is_generation_data(self) -> bool:
        """Whether the text was more than a prompt."""
        return bool(self.negative or self.settings or self.writer)

    def with_problems(self, *problems: str) -> Infotext:
        """Add problems, of which `MAX_PROBLEMS` are listed."""
        listed = [*self.problems, *problems]
        if len(listed) > MAX_PROBLEMS:
            listed = [*listed[:MAX_PROBLEMS], f"{len(listed) - MAX_PROBLEMS:,} more problems are not listed."]
        return replace(self, problems=tuple(listed))


def in_line(text: str, length: int = 40) -> str:
    """Beginning of a text for a message, without its line breaks."""
    return shortened(" ".join(text[: length + 1].split("\n")), length)
