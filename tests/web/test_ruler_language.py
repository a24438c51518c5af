"""Tables of the ruler: each problem of a prompt is in web/comfyui/ruler/languages."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from weighted_clip.hosts.webui.model_readers import LOADS_NEXT, NOT_LOADED, POOLED, T5_OFF
from weighted_clip.hosts.webui.script.routes import IGNORED, UNKNOWN
from weighted_clip.hosts.webui.t5 import LOST, STOPS
from weighted_clip.hosts.webui.t5 import UNKNOWN as UNKNOWN_TO_T5
from weighted_clip.weighting.infotext import read_infotext
from weighted_clip.weighting.infotext.writers import WRITERS
from weighted_clip.weighting.syntax import SYNTAXES
from weighted_clip.weighting.syntax.a1111 import TIMED_READER
from weighted_clip.weighting.text.tags import LORA_LOADER

from ..weighting.test_infotext_writers import CASES

ROOT = Path(__file__).resolve().parents[2]
RULER = ROOT / "web" / "comfyui" / "ruler"
TABLES = sorted((RULER / "languages").glob("*.json"))
SOURCES = [path for folder in ("weighting", "hosts/comfy", "nodes") for path in sorted((ROOT / folder).rglob("*.py"))]
MAKERS = {"Issue", "issue", "problem", "_issue"}
# what is put together of two parts: an example of each way
TOGETHER = {
    "“{}”{} no weight: left out.": ("“x” is no weight: left out.", "“x”, and 2 more are no weight: left out."),
    "“{}” changes with the sampling steps in A1111. {}; here its brackets are weights and the rest of it is text.": (
        f"“[a:b:3]” changes with the sampling steps in A1111. {TIMED_READER}; here its brackets are weights and the "
        "rest of it is text.",
    ),
    "AND combines prompts in A1111. {}; here it is the word “and”.": (
        f"AND combines prompts in A1111. {TIMED_READER}; here it is the word “and”.",
    ),
    "The LoRA “{}” at {} is no text, and is not loaded here{}": (
        f"The LoRA “x” at 1 is no text, and is not loaded here{LORA_LOADER}",
    ),
    "The LoRA “{}” is named again at the same strength{}: it acts once, as in Forge.": tuple(
        f"The LoRA “x” is named again at the same strength{part}: it acts once, as in Forge."
        for part in ("", " for the text encoder", " for the diffusion model")
    ),
    "{} cannot be written in {}: it is left out.": (
        "A LoRA cannot be written in comfy: it is left out.",
        "“<hypernet:x>” cannot be written in comfy: it is left out.",
    ),
    "“{}” {}": (
        "“[a:b:1,2,3]” has 2 texts and 3 steps: the first 2 of both count, as in prompt-fusion.",
        "“[a:b:0.8,0.2]” has steps that go backwards: it jumps there, as in prompt-fusion.",
        "“[a:b:30,40]” lies outside the 20 steps: its first text stands in all of them.",
    ),
    "The {}.": (
        "The text after .and() is ignored, as in compel.",
        "The text after .blend() is ignored; compel refuses it.",
    ),
}


def template_of(node: ast.AST | None) -> str | None:
    """A literal text with {} for what is put in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


def messages() -> Iterator[str]:
    """Every problem that our code can name."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assign) and any(getattr(one, "id", "") == "message" for one in node.targets):
                found = [node.value]
            elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in MAKERS:
                found = node.args
            else:
                continue
            yield from (text for text in map(template_of, found) if text and " " in text)


def matches(table: dict[str, str], text: str) -> list[str]:
    """The entries of a table that match a text, except those that match nearly all."""
    patterns = {key: "(.*?)".join(map(re.escape, key.split("{}"))) for key in table}
    return [key for key, pattern in patterns.items() if re.fullmatch(pattern, text, re.DOTALL) and len(key) > 8]


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_problem_is_translated(path: Path) -> None:
    table = json.loads(path.read_text(encoding="utf-8"))
    found = set(messages())
    assert len(found) > 60
    texts = [one for text in found for one in TOGETHER.get(text, (text.replace("{}", "7"),))]
    assert [text for text in texts if not matches(table, text)] == []


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_form_of_others_and_every_problem_of_generation_data_is_translated(path: Path) -> None:
    table = json.loads(path.read_text(encoding="utf-8"))
    forms = {word for syntax in SYNTAXES.values() for form in syntax.foreign for word in (form.meaning, form.part)}
    assert forms - table.keys() == set()
    problems = {problem for case in CASES.values() for problem in read_infotext(case.text).problems}
    assert len(problems) > 20
    assert [problem for problem in sorted(problems) if not matches(table, problem)] == []
    assert {writer.note for writer in WRITERS} - table.keys() == {""}


def webui_messages() -> Iterator[str]:
    """Texts that the rulers below a WebUI's prompt boxes show in place of tokens."""
    for node in ast.walk(ast.parse((ROOT / "hosts" / "webui" / "script" / "routes.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Dict):
            found = [value for key, value in zip(node.keys, node.values, strict=True) if template_of(key) == "error"]
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            found = [one for one in node.exc.args if str(template_of(one)).endswith(": not shown")]
        else:
            found = []
        yield from filter(None, map(template_of, found))
    scripts = (ROOT / "javascript" / "weighted_clip_prompts.mjs", RULER / "routes.js")
    script = "".join(path.read_text(encoding="utf-8") for path in scripts)
    for text in re.findall(r"new Error\((?:answer\.error \?\? )?[`\"](.+?)[`\"]\)", script):
        yield re.sub(r"\$\{.*?\}", "{}", text)
    yield from (UNKNOWN, IGNORED, LOADS_NEXT, NOT_LOADED, POOLED, T5_OFF, LOST, STOPS, UNKNOWN_TO_T5)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_message_of_the_webuis_rulers_is_translated(path: Path) -> None:
    table = json.loads(path.read_text(encoding="utf-8"))
    found = set(webui_messages())
    assert len(found) == 16
    assert [text for text in found if text not in table] == []


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_translation_has_all_that_is_put_in(path: Path) -> None:
    for text, said in json.loads(path.read_text(encoding="utf-8")).items():
        assert len(re.findall(r"\{\d*\}", said)) == text.count("{}"), text
        numbers = sorted(map(int, re.findall(r"\{(\d+)\}", said)))
        assert not numbers or set(numbers) <= set(range(text.count("{}"))), text


def test_every_table_is_loaded() -> None:
    script = (RULER / "language.js").read_text(encoding="utf-8")
    (listed,) = re.findall(r"const LANGUAGES = (\[.*\]);", script)
    assert json.loads(listed) == [path.stem for path in TABLES]
