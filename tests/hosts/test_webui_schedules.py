"""Schedules of a real WebUI compared with ours, on strings for which its grammar is ambiguous.

Its parser takes one reading or another by the order of Python's sets, which depends on PYTHONHASHSEED: `[a:b:5]:` is an
edit in one process and text in the next. So it is run with several seeds, and results that depend on them are set
apart.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from weighted_clip.weighting.timed.schedule import schedule
from weighted_clip.workshop.find_hosts import Host
from weighted_clip.workshop.job import own_environment, run_in_host

from ..patience import SECONDS

pytestmark = pytest.mark.host

PIECES = (
    *("[a:b:5]", "[a:b:0.5]", "[a::3]", "[:a:7]", "[a|b]", "[a|b|c]", "(a:1.2)", "[a]"),
    *("[", "]", "(", ")", ":", "|", " c ", "d", "0.3"),
)
STEPS, NUM_TEXTS, SEEDS = 10, 4000, ("0", "1", "2")
PROGRAM = """
import json, sys
from pathlib import Path
from modules.prompt_parser import get_learned_conditioning_prompt_schedules as schedules
texts, out, steps = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
out.write_text(json.dumps([schedules([text], steps)[0] for text in json.loads(texts.read_text())]))
"""


def texts() -> list[str]:
    dice = random.Random(1)
    return ["".join(dice.choices(PIECES, k=dice.randint(1, 14))) for _ in range(NUM_TEXTS)]


def test_most_schedules_of_ambiguous_strings_are_those_of_the_webui(
    webui_host: Host, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    given = texts()
    (tmp_path / "texts.json").write_text(json.dumps(given))
    found: dict[str, list[list[list[object]]]] = {}
    for seed in SEEDS:
        out = tmp_path / f"{seed}.json"
        environment = {**own_environment(), "PYTHONHASHSEED": seed}
        arguments = ["-c", PROGRAM, tmp_path / "texts.json", out, str(STEPS)]
        done = run_in_host(
            webui_host.python, arguments, folder=webui_host.folder, environment=environment, seconds=SECONDS
        )
        assert done.returncode == 0, done.stdout[-2000:]
        found[seed] = json.loads(out.read_text())
    ours = [[[text.last_step, text.text] for text in schedule(source, STEPS)] for source in given]
    answers = [list(each) for each in zip(*found.values(), strict=True)]
    firm = {row for row, each in enumerate(answers) if all(answer == each[0] for answer in each)}
    equal = [row for row in firm if ours[row] == answers[row][0]]
    among = [row for row, each in enumerate(answers) if row not in firm and ours[row] in each]
    shares = {seed: sum(map(list.__eq__, ours, theirs)) / NUM_TEXTS for seed, theirs in found.items()}
    record_property("strings that do not depend on the seed, and those of them that are equal", (len(firm), len(equal)))
    record_property("others of which ours is one answer", len(among))
    record_property("equal, by seed", shares)
    assert len(firm) < NUM_TEXTS
    assert len(equal) / len(firm) > 0.95
