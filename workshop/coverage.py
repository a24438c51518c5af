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
from .template_models import CLIP, Entry, model_of

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


class TemplateRow(NamedTuple):
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
        self._subgraphs = {
            subgraph["id"]: subgraph for subgraph in (workflow.get("definitions") or {}).get("subgraphs", ())
        }
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
        return self._origin(path[:-1], next((entry["link"] for entry in node["inputs"] if entry["name"] == name), None))

    def _linked(self, key: Key, kind: str) -> list[Key]:
        """Nodes that inputs of a type come from."""
        inputs = [entry for entry in self.nodes[key].get("inputs") or () if entry.get("link") is not None]
        accepted = [entry for entry in inputs if entry["type"] == kind or TAKES_ALL.fullmatch(str(entry["type"]))]
        origins = (self._origin(key[:-1], entry["link"]) for entry in accepted)
        return [origin for origin in origins if origin is not None]

    def sources(self, key: Key, kind: str) -> set[Key]:
        """Nodes that make what a node takes of a type; encode nodes make a conditioning, whatever they take."""
        origins: set[Key] = set()
        waiting, seen = self._linked(key, kind), {key}
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            before = [] if self.is_encode_node(node) else self._linked(node, kind)
            waiting += before
            if not before:
                origins.add(node)
        return origins

    def takes(self, key: Key, kind: str) -> bool:
        """Whether a node has an input of a type."""
        return any(entry["type"] == kind for entry in self.nodes[key].get("inputs") or ())

    def is_encode_node(self, key: Key) -> bool:
        """Whether a node encodes a text."""
        return "TextEncode" in self.nodes[key]["type"] and self.takes(key, "CLIP")

    def texts(self, key: Key) -> list[str]:
        """Texts in a node's widgets."""
        values = self.nodes[key].get("widgets_values") or []
        return [value for value in (values.values() if isinstance(values, dict) else values) if isinstance(value, str)]


def rows_of(name: str, saved: Mapping[str, Any]) -> Iterator[TemplateRow]:
    """Rows of a template; none if it encodes no prompt."""
    workflow = Workflow(saved)
    encode_nodes = [key for key in workflow.nodes if workflow.is_encode_node(key)]
    kinds = sorted({workflow.nodes[key]["type"] for key in encode_nodes})
    if any(SONGS in kind for kind in kinds):
        return
    pairs: dict[tuple[str, str], None] = {}
    for key in encode_nodes:
        readers = [reader for reader in workflow.nodes if workflow.takes(reader, "MODEL")]
        readers = [reader for reader in readers if key in workflow.sources(reader, "CONDITIONING")]
        models = {model for reader in readers for model in workflow.sources(reader, "MODEL")}
        files = sorted({workflow.texts(model)[0] if workflow.texts(model) else "" for model in models}) or [""]
        for loader in workflow.sources(key, "CLIP"):
            texts = [text for text in workflow.texts(loader) if text != "default"]
            text_encoder = " ".join([workflow.nodes[loader]["type"], *texts])
            pairs |= {(text_encoder, file): None for file in files}
    for text_encoder, file in sorted(pairs) or ([("", "")] if encode_nodes else []):
        yield TemplateRow(name, " ".join(kinds), text_encoder, file)


def read_templates(folder: Path) -> tuple[str, list[TemplateRow]]:
    """Version of the templates in a folder, and their rows.

    Raises:
        ValueError: If the folder holds no templates.
    """
    files = {path.stem: path for path in sorted(folder.glob(f"{PACKAGE}*/**/*.json")) if path.stem[:5] != "index"}
    versions = [path.name.split("-")[1].removesuffix(".dist") for path in folder.glob(f"{PACKAGE}_json-*.dist-info")]
    if not files or len(versions) != 1:
        raise ValueError(f"{folder}: there is no package {PACKAGE}_json, as pip installs it")
    saved = ((name, json.loads(path.read_text(encoding="utf-8"))) for name, path in files.items())
    rows = [
        row
        for name, template in saved
        if isinstance(template, dict) and "nodes" in template
        for row in rows_of(name, template)
    ]
    return versions[0], rows


# ---- what weighs

SCHEMES, ATTENTION = "Weighted, by every scheme", "Weighted, in the attention"
NOT_YET, UNKNOWN = "Not weighted: families that are not known", "Unknown"
WEIGHTED = (SCHEMES, ATTENTION)


def result_of(model: Entry) -> str:
    """Effect of weights in a model."""
    if model.never:
        return f"Not weighted: {model.never}"
    network, tokenizer = f"comfy.ldm.{model.network}", f"comfy.text_encoders.{model.tokenizer}"
    families = [family for family in FAMILIES if network in family.networks]
    if model.tokenizer == CLIP:
        return SCHEMES if any(not family.tokenizers for family in families) else NOT_YET
    return ATTENTION if any(tokenizer in family.tokenizers for family in families) else NOT_YET


class Verdict(NamedTuple):
    """Effect of weights in a template."""

    result: str
    models: tuple[str, ...]
    """Titles of its models, or what is unknown of it."""


def verdict(rows: Iterable[TemplateRow]) -> Verdict:
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


def verdicts(rows: Iterable[TemplateRow]) -> dict[str, Verdict]:
    """Verdicts on templates, by their names."""
    by_template: dict[str, list[TemplateRow]] = {}
    for row in rows:
        by_template.setdefault(row.template, []).append(row)
    return {template: verdict(template_rows) for template, template_rows in by_template.items()}


# ---- the table


def read_data() -> dict[str, list[TemplateRow]]:
    """Rows of templates.csv, by the version of the package; the oldest first."""
    by_version: dict[str, list[TemplateRow]] = {}
    for versions, *cells in list(csv.reader(DATA.read_text(encoding="utf-8").splitlines()))[1:]:
        for version in versions.split():
            by_version.setdefault(version, []).append(TemplateRow(*cells))
    return dict(sorted(by_version.items(), key=lambda entry: [int(part) for part in entry[0].split(".")]))


def write_data(data: Mapping[str, Iterable[TemplateRow]]) -> None:
    """Write templates.csv; a row that several versions share stands there once."""
    versions: dict[TemplateRow, list[str]] = {}
    for version, rows in data.items():
        for row in rows:
            versions.setdefault(row, []).append(version)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("packages", "template", "encode nodes", "text encoder", "diffusion model"))
    writer.writerows((" ".join(packages), *row) for row, packages in sorted(versions.items()))
    DATA.write_text(text.getvalue(), encoding="utf-8")


def block(data: Mapping[str, Iterable[TemplateRow]]) -> str:
    """Figures and table, by the rows of each version."""
    by_version = {version: list(verdicts(rows).values()) for version, rows in data.items()}
    everything = [verdict for of_version in by_version.values() for verdict in of_version]
    rows = [["Templates", *by_version, "Models"], ["---"] * (len(by_version) + 2)]
    for result in dict.fromkeys((*WEIGHTED, *sorted({verdict.result for verdict in everything}))):
        titles = Counter(title for verdict in everything if verdict.result == result for title in verdict.models)
        counts = (str(sum(verdict.result == result for verdict in of_version)) for of_version in by_version.values())
        rows.append([result, *counts, ", ".join(title for title, _ in titles.most_common())])
    figures = (
        f"{sum(verdict.result in WEIGHTED for verdict in of_version)} of the {len(of_version)} of version {version}"
        for version, of_version in by_version.items()
    )
    sentence = f"One **Weighted CLIP** behind each CLIP loader weighs {', and '.join(figures)} (`{PACKAGE}_json`)."
    return "\n".join([sentence, "", *(f"| {' | '.join(row)} |" for row in rows)])


def with_block() -> str:
    """The page about models, with figures and table by templates.csv."""
    return page.fill(PAGE.read_text(encoding="utf-8"), {"coverage": block(read_data())})


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
