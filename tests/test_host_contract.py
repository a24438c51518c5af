"""The contract with ComfyUI (hosts/comfy/contract.py) is what the code uses; what a host lacks is told in one line."""

from __future__ import annotations

import ast
import hashlib
import html
import json
import logging
import math
import os
import re
import sys
import threading
import unicodedata
import warnings
import zlib
from collections import OrderedDict
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy
import pytest
import torch
from PIL import Image
from weighted_clip.hosts.comfy import contract
from weighted_clip.hosts.comfy.a1111 import samplers
from weighted_clip.hosts.comfy.attention import wrappers
from weighted_clip.hosts.comfy.clip import schemes
from weighted_clip.hosts.comfy.contract import CLIP, HostError, checked_object, host
from weighted_clip.hosts.comfy.families import attention_layers, families
from weighted_clip.hosts.comfy.models import models
from weighted_clip.hosts.comfy.weighted_clip import live_tokenizers
from weighted_clip.workshop import contract as workshop_contract

ROOT = Path(__file__).resolve().parents[1]
OURS = ("studio", "encoder", "hosts", "nodes", "weighting", "web")
USERS = [path for name in ("hosts/comfy", "nodes", "web") for path in sorted((ROOT / name).rglob("*.py"))]
OF_OTHERS = (
    *(torch, torch.Tensor, torch.nn, torch.nn.Module(), torch.nn.functional, torch.cuda, torch.device("cpu"), numpy),
    *(
        torch.finfo(torch.float32),
        numpy.random,
        numpy.array([1]),
        numpy.random.default_rng(0),
        numpy.random.SeedSequence,
        Image,
        Image.Image,
        Image.Exif,
        math,
        ast,
        json,
        logging,
    ),
    *(logging.getLogger("x"), re, re.compile("x"), re.match("x", "x"), sys, threading, unicodedata, Path("x")),
    *(
        OrderedDict,
        hashlib,
        hashlib.sha256(),
        {},
        [],
        "",
        (),
        set(),
        b"",
        0,
        0.0,
        slice(0),
        type,
        cache(int),
        partial(int),
        Exception(),
        SimpleNamespace,
        ExitStack,
    ),
    *(html, os.stat_result, warnings, zlib, zlib.decompressobj()),
)
"""Things whose attributes are not ComfyUI's."""
OF_OTHERS_BY_NAME = {
    *("_replace", "ref", "__func__", "_orig_mod", "AcceleratorError"),  # of Python, and of newer versions of torch
    "ppf",  # of scipy
    *("EncodeAsOffsetMapping", "begin", "end", "id", "pieces"),  # of sentencepiece
    "encode_batch",  # of tokenizers
}
NOT_IN_3_64 = {
    *("comfy_api.latest._io.NodeReplace", "comfy.model_base.Flux2", "comfy.text_encoders.flux.Flux2Tokenizer"),
    *(f"comfy.ldm.lumina.model.NextDiTPixelSpace{name}" for name in ("", ".context_refiner", ".patch_size")),
    *("comfy.text_encoders.flux.KleinTokenizer", "comfy.text_encoders.flux.KleinTokenizer8B"),
    *(f'"{key}" in comfy.ldm.flux.model' for key in ("block_type", "double", "single", "reference_image_num_tokens")),
    *(f'"{key}" in comfy.model_base' for key in ("t5xxl_ids", "t5xxl_weights")),
}
"""Additions since ComfyUI 0.3.64: models that Attention Weights knows, kinds of Flux's blocks, node replacements."""


def trees(paths: list[Path]) -> list[ast.Module]:
    return [ast.parse(path.read_text(encoding="utf-8")) for path in paths]


def asked_module(node: ast.expr) -> str | None:
    """The module that ``host("…")`` asks for."""
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "host"
    return ast.literal_eval(node.args[0]) if is_call else None


def names_asked() -> dict[str, set[str]]:
    """Names that the code uses of each of ComfyUI's modules."""
    found: dict[str, set[str]] = {}
    for tree in trees(USERS):
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            variables = {
                node.targets[0].id: asked_module(node.value)
                for node in ast.walk(function)
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and asked_module(node.value)
            }
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute):
                    module = asked_module(node.value)
                    if isinstance(node.value, ast.Name):
                        module = variables.get(node.value.id)
                    if module:
                        found.setdefault(module, set()).add(node.attr)
    return found


def defined_by_us() -> set[str]:
    """Every name of a function, class, field and attribute of ours."""
    names: set[str] = set()
    for tree in trees([path for folder in OURS for path in (ROOT / folder).rglob("*.py") if path.name != "types.py"]):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [*targets, *([node.target] if isinstance(node, ast.AnnAssign) else [])]
            for target in (part for one in targets for part in (one.elts if isinstance(one, ast.Tuple) else [one])):
                if isinstance(target, ast.Name):
                    names.add(target.id)
                elif isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                    names.add(target.attr)
    return names


def attributes_used() -> set[str]:
    """Attributes that hosts/comfy uses and that are nobody's else."""
    known = defined_by_us() | OF_OTHERS_BY_NAME
    for thing in OF_OTHERS:
        known |= set(dir(thing))
    files = [path for path in (ROOT / "hosts" / "comfy").rglob("*.py") if path.name not in ("types.py", "contract.py")]
    used: set[str] = set()
    for node in (node for tree in trees(files) for node in ast.walk(tree)):
        if isinstance(node, ast.Attribute):
            used.add(node.attr)
        is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if is_call and node.func.id in ("getattr", "hasattr") and isinstance(node.args[1], ast.Constant):
            used.add(node.args[1].value)
    return used - known


def test_what_is_asked_of_modules_is_in_the_contract_and_nothing_else() -> None:
    asked = names_asked()
    asked["comfy.model_management"] |= {name for pair in models._DEVICES.values() for name in pair}
    asked["comfy.k_diffusion.sampling"] = {kind.run for kind in samplers.KINDS.values() if isinstance(kind.run, str)}
    assert asked == {module: set(names) for module, names in contract.MODULES.items()}


def test_attributes_of_the_hosts_objects_are_in_the_contract() -> None:
    used = attributes_used()
    assert len(used) > 30
    listed = {name for table in (contract.OBJECTS, contract.OPTIONAL) for names in table.values() for name in names}
    listed |= {name for names in contract.MODULES.values() for name in names}
    listed |= {kind.rpartition(".")[2] for kind in contract.OBJECTS}
    assert used - listed == set()


def test_classes_that_are_known_by_name_are_in_the_contract() -> None:
    named = {*families.BY_TOKENIZER, *families.WEIGHERS, *families.FILLED_IN_FRONT, *families.OUT_OF_REACH}
    assert named <= set(contract.OBJECTS)
    assert set(live_tokenizers.OF_LOADERS.values()) <= set(contract.OBJECTS)
    assert set(schemes.WHOLE_WEIGHTS) <= {kind.rpartition(".")[2] for kind in contract.OBJECTS}
    assert set(wrappers.MARKERS.wrappers) == set(contract.KEYS["comfy.patcher_extension"])
    assert attention_layers.OVERRIDE in contract.KEYS["comfy.ldm.modules.attention"]


def test_protocols_and_contract_name_the_same_attributes() -> None:
    tree = ast.parse((ROOT / "hosts" / "comfy" / "types.py").read_text(encoding="utf-8"))
    protocols = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    kinds = {"Clip": contract.CLIP, "ModelPatcher": contract.PATCHER, "HostTokenizer": contract.TOKENIZER}
    for name, kind in {**kinds, "HostTower": contract.TOWER}.items():
        fields = {node.target.id for node in protocols[name].body if isinstance(node, ast.AnnAssign)}
        assert fields <= {*contract.OBJECTS[kind], *contract.OPTIONAL.get(kind, ())}, name


def test_what_a_module_lacks_is_told_in_one_line_at_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    utils, version = ModuleType("comfy.utils"), ModuleType("comfyui_version")
    version.__dict__["__version__"] = "0.99.0"
    for module in (utils, version):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    given = host("comfy.utils")  # no name is asked for yet
    with pytest.raises(HostError, match=r"this ComfyUI \(0\.99\.0\): it has no comfy\.utils\.ProgressBar\.") as raised:
        _ = given.ProgressBar
    assert "\n" not in str(raised.value)
    utils.__dict__["ProgressBar"] = print
    assert given.ProgressBar is print
    with pytest.raises(AttributeError, match=r"comfy\.utils\.calculate_parameters is not in hosts/comfy/contract\.py"):
        _ = given.calculate_parameters
    monkeypatch.setitem(sys.modules, "comfy.hooks", None)
    with pytest.raises(HostError, match=r"it has no comfy\.hooks \(it cannot be imported"):
        host("comfy.hooks")


def test_what_an_object_lacks_is_told_in_one_line() -> None:
    whole = SimpleNamespace(**dict.fromkeys(contract.OBJECTS[CLIP]))
    assert checked_object(whole, CLIP) is whole
    del whole.tokenize, whole.patcher
    assert checked_object(whole, CLIP, "clone") is whole
    with pytest.raises(HostError, match=r"no patcher, tokenize of comfy\.sd\.CLIP \(its SimpleNamespace is without\)"):
        checked_object(whole, CLIP)


@pytest.mark.host
def test_every_name_is_in_the_real_host(request: pytest.FixtureRequest) -> None:
    from weighted_clip.workshop.find_hosts import find_hosts

    folder = request.config.getoption("--hosts")
    hosts = find_hosts(Path(folder), "ComfyUI") if folder else []
    if not hosts:
        pytest.skip("no ComfyUI in --hosts DIR")
    for found in hosts:
        compared = workshop_contract.compare(found.folder, contract)
        is_old = found.version == "0.3.64"
        assert set(compared.missing) == (NOT_IN_3_64 if is_old else set()), found.version
        assert is_old or not compared.unread
        assert compared.num_found > 140
