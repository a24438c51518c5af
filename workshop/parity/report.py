"""Results of comparisons, their table, and docs/evidence/parity-schemes.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...output.files import written_whole

PAGE = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "parity-schemes.md"
COLUMNS = "| Reference | Its name | Ours | Encoder | Prompts | Allowed | Largest difference |"
RULE = "| --- | --- | --- | --- | ---: | ---: | ---: |"
NUMPY_2_NOTE = "none: numpy 2"


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    reference: str
    """Name and version."""
    name: str
    """Name in the reference."""
    ours: str
    """Our options, in words."""
    encoder: str
    """``native``, or ``the host's``; ``-`` if no encoder runs."""
    num_prompts: int
    """Number of prompts compared."""
    limit: float | None
    """Largest difference allowed; None if the reference is known to differ."""
    difference: float
    """Largest absolute difference; infinity if shapes differ."""
    prompt: str = ""
    """Prompt with that difference."""

    @property
    def is_within(self) -> bool:
        """Whether the difference is allowed; NaN is not."""
        return self.limit is None or self.difference <= self.limit

    def line(self) -> str:
        """The line in Markdown."""
        limit = NUMPY_2_NOTE if self.limit is None else number(self.limit)
        cells = (self.reference, self.name, self.ours, self.encoder, self.num_prompts, limit, number(self.difference))
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


@dataclass(frozen=True)
class Absence:
    """A reference without results."""

    reference: str
    """Its name."""
    reason: str
    """Reason, in one line or more."""
    is_failure: bool = False
    """Whether it was found but failed to run."""

    def line(self) -> str:
        """The line in Markdown."""
        return f"| {self.reference} | {self.reason.splitlines()[0] if self.reason else 'failed'} | | | | | |"


def number(value: float) -> str:
    """Format a difference or a limit briefly."""
    return "0" if value == 0 else f"{value:.1e}".replace("e-0", "e-")


def in_words(options: dict[str, Any]) -> str:
    """Our options as a table cell: the scheme, then everything that is not the default.

    >>> in_words({"syntax": "compel", "scheme": "compel", "chunking": "compel words"})
    'compel, chunking compel words'
    """
    parts = [options.get("scheme", "comfy")]
    parts += [
        name if value is True else f"{name.replace('_', ' ')} {value}"
        for name, value in options.items()
        if name not in ("scheme", "syntax")
    ]
    return ", ".join(part for part in parts if part != "normalization none")


def table(results: Sequence[Result | Absence]) -> str:
    """All lines with the table's heading."""
    return "\n".join([COLUMNS, RULE, *(result.line() for result in results)])


def problems(results: Sequence[Result | Absence]) -> list[str]:
    """Problems that make the command fail, one text each."""
    found: list[str] = []
    for result in results:
        if isinstance(result, Absence):
            if result.is_failure:
                found.append(f"{result.reference} did not run:\n{result.reason}")
        elif not result.is_within:
            found.append(
                f"{result.reference}, {result.name}, {result.encoder} encoder: {result.difference:.3g} is above "
                f"{result.limit:.3g}, for the prompt {result.prompt!r}"
            )
    return found


# ---- the page

HEAD = """\
# Parity of every scheme, measured

Every number on this page was written by the command that measured it:

    python run.py parity --hosts DIR --write

`DIR` holds checkouts of ComfyUI, ComfyUI_ADV_CLIP_emb, comfyui-prompt-control, ComfyUI-ppm and
stable-diffusion-webui-forge, each host with its virtual environment, `peers-venv`, a Python with numpy < 2 for the
first two packs, and diffusers, for its community pipelines. Without `--hosts` the command compares with the libraries
that are installed. It fails if a difference is above what is allowed.

- One CLIP-L in full size with seeded random weights, norm gains spread around 1 and biases around 0, float32 on the
  CPU, one thread: Forge on one thread differs from Forge on two by up to 4.4e-5 in `a1111` on these prompts.
- The prompts are fixed (`workshop/parity/prompts.py`): 40 for each syntax, ten long ones for compel's ways of cutting,
  eleven that Forge cleans, and 19 that name embeddings. Where A1111's comma rule moves a name it loses the vectors;
  there ours are the numbers with the option `quirks`.
- A difference is the largest absolute one between hidden states, which are between -7 and 7.
- "native" is our own encoder with the same weights; "the host's" is what our nodes, or our script in Forge, compute
  with the host's CLIP, in the process of the reference. "ComfyUI's" beside Forge is a prompt in both hosts.
- Of `negpip` each row is compared as key and as value, from the CLIP that CLIP NegPip has patched. What is drawn with
  them, and the scheme `negpip_apart`, are on the page [parity.md](parity.md).
- `a1111_global_norm` and `lpw` multiply by a ratio of two small means, which brings rounding out; hence a wider limit
  for the native encoder.
- diffusers' pipelines run on transformers' towers, those for SDXL on two small ones, whose states pass no norm. Only
  prompts are compared that the pipelines read as A1111 does ([schemes.md](../reference/schemes.md#the-lpw-pipelines)).
- Under numpy 2 ComfyUI_ADV_CLIP_emb and prompt-control replace other tokens than the lowered words, because
  `numpy.unique` returns its inverse in another shape. Ours are their numbers under numpy 1.

"""


def write_page(lines: Sequence[Result | Absence], versions: Mapping[str, str]) -> None:
    """Write the page: the table, and the versions that each host ran with, in words."""
    about = "\n".join(f"- {name}: {words}." for name, words in versions.items())
    with written_whole(PAGE) as place:
        place.write_text(f"{HEAD}{table(lines)}\n\n## Versions\n\n{about}\n", encoding="utf-8")
