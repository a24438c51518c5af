"""Count in how many of ComfyUI's own templates one Weighted CLIP behind each CLIP loader makes weights act.

    python workshop coverage                          # by docs/evidence/templates.csv
    python workshop coverage --templates FOLDER       # by the templates there, such as a host's site-packages
    python workshop coverage --templates FOLDER --write

FOLDER holds the packages ``comfyui_workflow_templates*``, installed or unpacked. ``--write`` puts their loaders into
templates.csv, and the table into docs/models.md.

Of each template the encode nodes are followed through subgraphs, reroutes and LoRAs, back to the loader of their CLIP
and on to the diffusion models that read them. No model is loaded: which one a file holds is what its name says, by
template_models.py. What weighs is what hosts/comfy/families/families.py knows.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..hosts.comfy.families.families import FAMILIES
from .bench import page
from .template_models import CLIP, Model, model_of

ROOT = Path(__file__).resolve().parent.parent
DATA, PAGE = ROOT / "docs" / "evidence" / "templates.csv", ROOT / "docs" / "models.md"
PACKAGE = "comfyui_workflow_templates"
ENCODE_NODES = frozenset(
    (
        *("CLIPTextEncode", "CLIPTextEncodeFlux", "TextEncodeQwenImageEdit", "TextEncodeQwenImageEditPlus"),
        *("TextEncodeMageFlowEdit", "TextEncodeBooguEdit", "TextEncodeJoyImageEdit"),
    )
)
"""Classes of encode nodes known to ask a CLIP for nothing but tokens and their encoding."""
SONGS = "AceStep"
"""Part of the names of encode nodes for songs, which are not counted."""
TAKES_ALL = re.compile(r"\*|COMFY_.*")
"""Types of inputs through which anything passes: of reroutes and switches."""
Key = tuple[int, ...]
"""A node: its id, after those of the subgraph nodes it is in."""


class Row(NamedTuple):
    """A text encoder and a diffusion model between which a template encodes."""

    template: str
    encode_nodes: str
    """Classes of its encode nodes."""
    text_encoder: str
    """Class of the loader, its files and its type."""
    file: str
    """File of the diffusion model."""


# ---- templates


class Workflow:
    """A saved workflow, with its subgraphs unfolded."""

    def __init__(self, workflow: Mapping[str, Any]) -> None:
        self._subgraphs = {one["id"]: one for one in (workflow.get("definitions") or {}).get("subgraphs", ())}
        self._links: dict[tuple[Key, int], tuple[Any, int]] = {}
        self._ends: dict[tuple[Key, int], int] = {}
        self._instances: dict[Key, Mapping[str, Any]] = {}
        self.nodes: dict[Key, Mapping[str, Any]] = {}
        self._add(workflow, ())

    def _add(self, graph: Mapping[str, Any], path: Key) -> None:
        for link in graph.get("links") or ():
            names = ("id", "origin_id", "origin_slot", "target_id", "target_slot")
            number, origin, slot, target, end = [link[n] for n in names] if isinstance(link, dict) else link[:5]
            self._links[path, number] = origin, slot
            if target == graph.get("outputNode", {}).get("id"):
                self._ends[path, end] = number
        for node in graph["nodes"]:
            key = (*path, node["id"])
            if node["type"] in self._subgraphs:
                self._instances[key] = node
                self._add(self._subgraphs[node["type"]], key)
            else:
                self.nodes[key] = node

    def _origin(self, path: Key, link: int | None) -> Key | None:
        """The node a link comes from, within or around the subgraph it is in."""
        if link is None or (path, link) not in self._links:
            return None
        origin, slot = self._links[path, link]
        key = (*path, origin)
        if key in self._instances:
            return self._origin(key, self._ends.get((key, slot)))
        if key in self.nodes or not path:
            return key if key in self.nodes else None
        node = self._instances[path]  # from the subgraph's own inputs
        name = self._subgraphs[node["type"]]["inputs"][slot]["name"]
        return self._origin(path[:-1], next((one["link"] for one in node["inputs"] if one["name"] == name), None))

    def _linked(self, key: Key, kind: str) -> list[Key]:
        """Nodes that inputs of a type come from."""
        inputs = [one for one in self.nodes[key].get("inputs") or () if one.get("link") is not None]
        taken = [one for one in inputs if one["type"] == kind or TAKES_ALL.fullmatch(str(one["type"]))]
        origins = (self._origin(key[:-1], one["link"]) for one in taken)
        return [origin for origin in origins if origin is not None]

    def sources(self, key: Key, kind: str) -> set[Key]:
        """Nodes that make what a node takes of a type; encode nodes make a conditioning, whatever they take."""
        found: set[Key] = set()
        waiting, seen = self._linked(key, kind), {key}
        while waiting:
            one = waiting.pop()
            if one in seen:
                continue
            seen.add(one)
            before = [] if self.is_encode_node(one) else self._linked(one, kind)
            waiting += before
            if not before:
                found.add(one)
        return found

    def takes(self, key: Key, kind: str) -> bool:
        """Whether a node has an input of a type."""
        return any(one["type"] == kind for one in self.nodes[key].get("inputs") or ())

    def is_encode_node(self, key: Key) -> bool:
        """Whether a node encodes a text."""
        return "TextEncode" in self.nodes[key]["type"] and self.takes(key, "CLIP")

    def texts(self, key: Key) -> list[str]:
        """Texts in a node's widgets."""
        values = self.nodes[key].get("widgets_values") or []
        return [value for value in (values.values() if isinstance(values, dict) else values) if isinstance(value, str)]


def rows_of(name: str, saved: Mapping[str, Any]) -> Iterator[Row]:
    """Rows of a template; none if it encodes no prompt."""
    workflow = Workflow(saved)
    encode_nodes = [key for key in workflow.nodes if workflow.is_encode_node(key)]
    kinds = sorted({workflow.nodes[key]["type"] for key in encode_nodes})
    if any(SONGS in kind for kind in kinds):
        return
    pairs: dict[tuple[str, str], None] = {}
    for key in encode_nodes:
        readers = [one for one in workflow.nodes if workflow.takes(one, "MODEL")]
        readers = [one for one in readers if key in workflow.sources(one, "CONDITIONING")]
        models = {model for one in readers for model in workflow.sources(one, "MODEL")}
        files = sorted({workflow.texts(model)[0] if workflow.texts(model) else "" for model in models}) or [""]
        for loader in workflow.sources(key, "CLIP"):
            texts = [text for text in workflow.texts(loader) if text != "default"]
            text_encoder = " ".join([workflow.nodes[loader]["type"], *texts])
            pairs |= {(text_encoder, file): None for file in files}
    for text_encoder, file in sorted(pairs) or ([("", "")] if encode_nodes else []):
        yield Row(name, " ".join(kinds), text_encoder, file)


def read_templates(folder: Path) -> tuple[str, list[Row]]:
    """Version of the templates in a folder, and their rows.

    Raises:
        ValueError: If the folder holds no templates.
    """
    files = {path.stem: path for path in sorted(folder.glob(f"{PACKAGE}*/**/*.json")) if path.stem[:5] != "index"}
    about = [path.name.split("-")[1].removesuffix(".dist") for path in folder.glob(f"{PACKAGE}_json-*.dist-info")]
    if not files or len(about) != 1:
        raise ValueError(f"{folder}: there is no package {PACKAGE}_json, as pip installs it")
    saved = ((name, json.loads(path.read_text(encoding="utf-8"))) for name, path in files.items())
    rows = [row for name, one in saved if isinstance(one, dict) and "nodes" in one for row in rows_of(name, one)]
    return about[0], rows


# ---- what weighs

SCHEMES, ATTENTION = "Weighted, by every scheme", "Weighted, in the attention"
NOT_YET, UNKNOWN = "Not weighted: families that are not known", "Unknown"
WEIGHTED = (SCHEMES, ATTENTION)


def result_of(model: Model) -> str:
    """Effect of weights in a model."""
    if model.never:
        return f"Not weighted: {model.never}"
    network, tokenizer = f"comfy.ldm.{model.network}", f"comfy.text_encoders.{model.tokenizer}"
    families = [one for one in FAMILIES if network in one.networks]
    if model.tokenizer == CLIP:
        return SCHEMES if any(not one.tokenizers for one in families) else NOT_YET
    return ATTENTION if any(tokenizer in one.tokenizers for one in families) else NOT_YET


class Verdict(NamedTuple):
    """Effect of weights in a template."""

    result: str
    models: tuple[str, ...]
    """Titles of its models, or what is unknown of it."""


def verdict(rows: Iterable[Row]) -> Verdict:
    """Effect of weights in a template, by its rows: where several models draw, all of them must weigh."""
    results: dict[str, str] = {}
    for row in rows:
        model = model_of(row.text_encoder, row.file)
        if model is None:
            return Verdict(UNKNOWN, (f"{row.text_encoder or 'no CLIP'} with {row.file or 'no model'}",))
        results[model.title] = result_of(model)
        unknown = set(row.encode_nodes.split()) - ENCODE_NODES
        if unknown and not model.never:
            return Verdict(UNKNOWN, tuple(f"encode node {kind}" for kind in sorted(unknown)))
    drawing = {title: result for title, result in results.items() if "draws nothing" not in result} or results
    worst = min(drawing.values(), key=lambda result: (result in WEIGHTED, result))
    return Verdict(worst, tuple(title for title, result in drawing.items() if result == worst))


def verdicts(rows: Iterable[Row]) -> dict[str, Verdict]:
    """Verdicts on templates, by their names."""
    by_template: dict[str, list[Row]] = {}
    for row in rows:
        by_template.setdefault(row.template, []).append(row)
    return {template: verdict(some) for template, some in by_template.items()}


# ---- the table


def read_data() -> dict[str, list[Row]]:
    """Rows of templates.csv, by the version of the package; the oldest first."""
    found: dict[str, list[Row]] = {}
    for versions, *cells in list(csv.reader(DATA.read_text(encoding="utf-8").splitlines()))[1:]:
        for version in versions.split():
            found.setdefault(version, []).append(Row(*cells))
    return dict(sorted(found.items(), key=lambda one: [int(part) for part in one[0].split(".")]))


def write_data(data: Mapping[str, Iterable[Row]]) -> None:
    """Write templates.csv; a row that several versions share stands there once."""
    versions: dict[Row, list[str]] = {}
    for version, rows in data.items():
        for row in rows:
            versions.setdefault(row, []).append(version)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("packages", "template", "encode nodes", "text encoder", "diffusion model"))
    writer.writerows((" ".join(some), *row) for row, some in sorted(versions.items()))
    DATA.write_text(text.getvalue(), encoding="utf-8")


def block(data: Mapping[str, Iterable[Row]]) -> str:
    """Figures and table, by the rows of each version."""
    found = {version: list(verdicts(rows).values()) for version, rows in data.items()}
    everything = [one for of_version in found.values() for one in of_version]
    rows = [["Templates", *found, "Models"], ["---"] * (len(found) + 2)]
    for result in dict.fromkeys((*WEIGHTED, *sorted({one.result for one in everything}))):
        titles = Counter(title for one in everything if one.result == result for title in one.models)
        counts = (str(sum(one.result == result for one in of_version)) for of_version in found.values())
        rows.append([result, *counts, ", ".join(title for title, _ in titles.most_common())])
    figures = (f"{num_weighted(some)} of the {len(some)} of version {version}" for version, some in found.items())
    told = f"One **Weighted CLIP** behind each CLIP loader weighs {', and '.join(figures)} (`{PACKAGE}_json`)."
    return "\n".join([told, "", *(f"| {' | '.join(row)} |" for row in rows)])


def with_block() -> str:
    """The page about models, with figures and table by templates.csv."""
    return page.fill(PAGE.read_text(encoding="utf-8"), {"coverage": block(read_data())})


def num_weighted(some: Iterable[Verdict]) -> int:
    """Number of templates in which weights act."""
    return sum(one.result in WEIGHTED for one in some)


def main(arguments: list[str]) -> None:
    """Print the table and what is not weighted; with ``--write``, keep what was read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--templates", type=Path, metavar="FOLDER", help="read the templates there")
    parser.add_argument("--write", action="store_true", help="keep them, and write the page")
    options = parser.parse_args(arguments)
    data = read_data()
    if options.templates:
        version, rows = read_templates(options.templates)
        if options.write:
            write_data({**data, version: rows})
        data = {version: rows}
    if options.write:
        PAGE.write_text(with_block(), encoding="utf-8")
    for version, rows in data.items():
        for template, (result, models) in verdicts(rows).items():
            if result not in WEIGHTED:
                print(f"{version} {template}: {result} ({', '.join(models)})")
    print(f"\n{block(data)}")
