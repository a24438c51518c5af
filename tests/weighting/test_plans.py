"""Plans hold no tensor and ask nobody: what schemes and pages may know of an encoder."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting import encoders as door
from weighted_clip.weighting.encoders import Encoders
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.pipeline import plan_prompt
from weighted_clip.weighting.plan import Variant, both, mask_tensor
from weighted_clip.weighting.schemes import SCHEMES

from .tiny import READERS, read

ROOT = Path(__file__).parents[2]
SCHEME_FILES = sorted((ROOT / "weighting" / "schemes").glob("*.py"))
OF_ATTENTION = {ROOT / "web" / "lab" / name for name in ("attending.py", "native.py")}
"""Files of the lab's attention tab, which shows what no plan asks for: the weights of a layer for one encoding."""
WEB_FILES = sorted(set((ROOT / "web").rglob("*.py")) - OF_ATTENTION)
ASKING = {"EncodeFn", "ask", "PrefixTextEncoder"}
"""Names with which one could ask an encoder. Pages go through `Encoders`, to which they may hand a `TextEncoder`."""
PROMPT = 'a (red:1.3) cat, (a:0.4) (dog:-0.5) and "x" ' * 12


def syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def names_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from [*(alias.name for alias in node.names), *(node.module or "").split(".")]


def encodings_asked_for(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls that could be those of an encode function: of something that is given chunks' ids, or causality."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            given = {keyword.arg for keyword in node.keywords}
            is_maker = isinstance(node.func, ast.Name) and node.func.id in (
                "EncodeOptions",
                "Variant",
                "Ask",
                "replace",
            )
            ids = any(
                isinstance(part, ast.Attribute) and part.attr == "ids" for one in node.args for part in ast.walk(one)
            )
            callee = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if not is_maker and ("is_causal" in given or (ids and callee not in ("enumerate", "zip", "tuple", "len"))):
                yield node


@pytest.mark.parametrize("path", [*SCHEME_FILES, *WEB_FILES], ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_in_schemes_and_pages_calls_an_encoder(path: Path) -> None:
    tree = syntax(path)
    assert not ASKING & set(names_in(tree))
    found = [ast.unparse(call) for call in encodings_asked_for(tree)]
    assert not found


def test_the_check_finds_an_encoder_under_any_name() -> None:
    hidden = ast.parse("def scheme(chunks, thing):\n    return thing([c.ids for c in chunks], None, is_causal=True)")
    assert list(encodings_asked_for(hidden))
    assert ASKING & set(names_in(ast.parse("from .pipeline import ask as something")))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_plan_is_made_without_tensors_and_modules(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **named: object) -> None:
        raise AssertionError("a plan was to be made without tensors")

    prompt = read(PROMPT, scheme=scheme, padding="mask", hide="dog")
    for owner, name in ((torch.nn.Module, "__call__"), (torch, "tensor"), (torch, "zeros"), (torch, "ones")):
        monkeypatch.setattr(owner, name, refuse)
    plan = plan_prompt(prompt, default_tokenizer())
    variants = list(plan.variants())
    assert all(isinstance(variant, Variant) and variant.title for variant in variants)
    assert variants[0].chunks[0].ids == prompt.chunks[0].ids


def test_sixteen_texts_are_read_and_planned_sixteen_times(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[str] = []

    def counted(one, tokenize):
        planned.append(one.prompt.source)
        return plan_prompt(one, tokenize)

    monkeypatch.setattr(door, "plan_prompt", counted)
    texts = [f"a (red:1.{number}) cat" for number in range(16)]
    prepared = Encoders({"clip_l": READERS["clip_l"]}).prepare(texts, EncodeOptions(scheme="masked_blend"))
    assert prepared.num_encodings == 2  # the same tokens all of them, and the empty prompt
    assert planned == texts


def test_masks_are_packed_flags() -> None:
    keys, queries = bytes([1, 0, 1]), bytes([1, 1, 1, 0, 1, 1, 1, 1, 1])
    assert both(keys, queries) == bytes([1, 0, 1, 0, 0, 1, 1, 0, 1])
    assert both(None, None) is both(None, bytes([1, 1, 1])) is None
    mask = mask_tensor([keys, None, queries], 3)
    assert mask is not None
    assert mask.dtype == torch.bool
    assert mask.int().tolist() == [[[1, 0, 1]] * 3, [[1, 1, 1]] * 3, [[1, 1, 1], [0, 1, 1], [1, 1, 1]]]
    assert mask_tensor([None, None], 3) is None
