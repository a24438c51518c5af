"""Test how a program reads and weighs prompts with the case files beside this one; README.md describes them.

    python conformance.py --parse MODULE:FUNCTION --encode MODULE:FUNCTION

A function is given the name of a file and one of its cases without the answer, and returns the answer, or raises
NotImplementedError for what it does not do. ``--encode`` is asked for rows, which the encoder `toy` makes, and
``--parse`` for all else. Numbers may differ by 1e-6.
"""

import argparse
import importlib
import json
import math
import sys
from pathlib import Path

ANSWERS = ("expected", "chunks", "rows", "sd", "sdxl")
MORE_ANSWERS = ("error", "flat", "pooled", "token_count", "chunks_clip_g")
HEAD = ("Case file", "Passed", "Failed", "Not applicable", "Largest difference", "First that failed")


def toy(ids, mask=(1,) * 77):
    """Rows of 77 token ids, of which the mask says what may be attended, 0 to 1; the formula is in the case files."""
    angles = [[(1e-3 * (t + 1) * d, 0.05 * j * d) for d in (1, 2, 3)] for j, t in enumerate(ids)]
    own = [[math.sin(word) + 0.1 * math.cos(place) + 0.4 for word, place in row] for row in angles]
    shares = [[mask[i] * math.exp(-0.1 * (j - i)) for i in range(j + 1)] for j in range(len(ids))]
    means = [[sum(s * own[i][d] for i, s in enumerate(row)) / sum(row) for d in range(3)] for row in shares]
    return [[mean + u / 2 for mean, u in zip(*pair)] for pair in zip(means, own)]


def apart(found, expected):
    """Largest difference of numbers, relative to those above 1; infinite for anything else that differs."""
    found = list(found) if isinstance(found, tuple) else found
    if isinstance(expected, (list, dict)) and isinstance(found, type(expected)) and len(found) == len(expected):
        keys = list(expected) if isinstance(expected, dict) else range(len(expected))
        return max((apart(found[key], expected[key]) if key in keys else math.inf for key in keys), default=0.0)
    if isinstance(expected, float) and isinstance(found, (int, float)):
        far = abs(found - expected) / max(1.0, abs(expected))
        return math.inf if math.isnan(far) else far
    return 0.0 if found == expected else math.inf


def test(function, name, case):
    """Distance of a function's answer from a case's; None if it does not do this."""
    asked = {key: value for key, value in case.items() if key not in (*ANSWERS, *MORE_ANSWERS)}
    answers = {key: case[key] for key in ANSWERS if key in case}
    try:
        found = function(name, asked)
    except NotImplementedError:
        return None
    except Exception:
        return 0.0 if "error" in case else math.inf
    return math.inf if "error" in case else apart(found, answers if len(answers) > 1 else [*answers.values()][0])


def main():
    """Print the table; exit with 1 if a case failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parse", metavar="MODULE:FUNCTION")
    parser.add_argument("--encode", metavar="MODULE:FUNCTION")
    given, rows = parser.parse_args(), []
    sys.path.insert(0, "")
    for path in sorted(Path(__file__).parent.glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        module, _, function = ((given.encode if "encoder" in data else given.parse) or "").partition(":")
        if module:
            answer = getattr(importlib.import_module(module), function)
            tried = [(test(answer, path.stem, case), case) for case in data["cases"]]
            tried = [(far, case) for far, case in tried if far is not None]
            failed = [json.dumps(case.get("prompt", case))[:60] for far, case in tried if not far <= 1e-6]
            largest = max((far for far, _ in tried if far < math.inf), default=0.0)
            counts = (len(tried) - len(failed), len(failed), len(data["cases"]) - len(tried))
            rows.append((path.stem, *counts, f"{largest:.1e}", f"`{failed[0]}`".replace("|", "\\|") if failed else ""))
    for row in (HEAD, ["---"] * len(HEAD), *rows):
        print(f"| {' | '.join(map(str, row))} |")
    sys.exit(any(row[2] for row in rows))


if __name__ == "__main__":
    main()
