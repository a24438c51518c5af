"""``world measure --comfy``: what weights do to the pictures of a person's own ComfyUI, judged by a CLIP of theirs."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from ..encoder.foreign_text import parse_json
from ..encoder.quoting import quote
from ..encoder.regular_file import read_regular
from .comfy_http import EXAMPLE, Comfy, ComfyError, Graph
from .console import Progress, show
from .images import WHOLE_CLIP, Files, add_activation_option, clip_of, text_features_of, write_picture
from .options import add_arithmetic_options, add_value
from .processes import alone
from .prompt_lines import PromptLines

if TYPE_CHECKING:
    from ..encoder.clip import FullClip
    from ..world.by_clip import Marked, Scores
    from ..world.measure import Way

ABOUT, PICTURES, REPORT = "comfy.json", "pictures", "comfy.md"
FORMAT = "weighted-clip-measured-comfy-1"
ENCODE, DOWN_WEIGHT, WEIGH = "WeightedCLIPTextEncode", "WeightedCLIPMaskedBlend", "WeightedCLIPWeighAttention"
LOADER = "CheckpointLoaderSimple"
OUTPUT = "7"
"""Id of the node that shows a picture."""
MAX_ABOUT_BYTES = 2**20
"""Most bytes of a folder's own description."""
MAX_SEEDS = 100
GRID_SEEDS, GRID_SIDE = 3, 128
"""Rows of each block of the grid, and pixels of a picture there."""


def add_comfy_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--comfy`` and what counts only with it."""
    group = parser.add_argument_group("with your own ComfyUI and checkpoint")
    group.add_argument("--comfy", metavar="URL", help=f"address of a running ComfyUI with this pack, such as {EXAMPLE}")
    group.add_argument("--checkpoint", metavar="NAME", help="as ComfyUI lists it (the only one)")
    group.add_argument("--clip", type=Path, metavar="FILE", help=f"what judges the pictures: {WHOLE_CLIP}; required")
    group.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help='a prompt on each line, its phrase marked: "a table and (a red cup:1)" (twelve everyday ones)',
    )
    group.add_argument(
        "--way", action="append", metavar="NAME", help="a scheme, or attention and a how; give it once for each (seven)"
    )
    add_value(group, "--seeds", 2, "N", "pictures of each prompt at each weight (%(default)s)")
    add_value(group, "--size", 512, "N", "pixels of a side (%(default)s)")
    add_value(group, "--steps", 20, "N", "of the sampler euler, scheduler normal (%(default)s)")
    add_value(group, "--guidance", 7.0, "X", "classifier-free, ComfyUI's cfg (%(default)s)")
    add_arithmetic_options(group)
    add_activation_option(group)


def check_without(arguments: argparse.Namespace) -> None:
    """Raise ValueError if an option is given that counts only with ``--comfy``."""
    parser = argparse.ArgumentParser()
    add_comfy_options(parser)
    given = [name for name, default in vars(parser.parse_args([])).items() if getattr(arguments, name) != default]
    if given:
        raise ValueError(f"--{given[0]} counts with --comfy URL only, the address of your ComfyUI")


class Plan(NamedTuple):
    """Pictures to be drawn."""

    ways: Sequence[Way]
    prompts: Sequence[Marked]
    seeds: int
    folder: Path

    def path(self, way: str, weight: float, prompt: int, seed: int) -> Path:
        """File of a picture; at weight 1 there is one for all ways."""
        name = "weight 1" if weight == 1 else f"{way} {weight:g}"
        return self.folder / PICTURES / name / f"{prompt + 1:03}-{seed + 1:03}.png"

    @property
    def pictures(self) -> dict[Path, tuple[Way, float, int, int]]:
        """Way, weight, prompt and seed of each file."""
        from ..world.by_clip import WEIGHTS
        from ..world.measure import Way

        found: dict[Path, tuple[Way, float, int, int]] = {}
        for weight in (1.0, *(weight for weight in WEIGHTS if weight != 1)):
            for way in self.ways if weight != 1 else [Way("comfy", {"scheme": "comfy"})]:
                for prompt in range(len(self.prompts)):
                    for seed in range(self.seeds):
                        found[self.path(way.name, weight, prompt, seed)] = (way, weight, prompt, seed)
        return found


@alone
def measure_comfy(arguments: argparse.Namespace) -> int:
    """Draw with a ComfyUI what the folder does not hold yet, judge it, and write the report."""
    plan = _plan_of(arguments)
    comfy = Comfy(arguments.comfy)
    checkpoint = _checkpoint_of(comfy, arguments.checkpoint)
    defaults = _defaults_of(comfy, {ENCODE, *(_node_of(way)[0] for way in plan.ways)})
    clip = clip_of(arguments, arguments.clip, arguments.activation)
    settings = {"checkpoint": checkpoint, **{name: getattr(arguments, name) for name in ("size", "steps", "guidance")}}
    _claim(plan, settings)
    _draw(comfy, plan, settings, defaults)
    scores, chances = _scores_of(clip, plan)
    _report(plan, scores, chances, f"{checkpoint}, judged by {clip.name}")
    return 0


def _plan_of(arguments: argparse.Namespace) -> Plan:
    """Check the arguments."""
    if arguments.world is not None or arguments.quick:
        other = "--quick" if arguments.world is None else f"the world {arguments.world}"
        raise ValueError(f"{other} and --comfy are two measurements: leave one of them out")
    if arguments.clip is None:
        raise ValueError(f"--comfy needs --clip FILE, which judges the pictures: a {WHOLE_CLIP}")
    if not 1 <= arguments.seeds <= MAX_SEEDS:
        raise ValueError(f"--seeds must be from 1 to {MAX_SEEDS}, got {arguments.seeds}")
    if not 64 <= arguments.size <= 4096 or arguments.size % 8:
        raise ValueError(f"--size must be from 64 to 4096 and a multiple of 8, got {arguments.size}")
    if not 1 <= arguments.steps <= 1000:
        raise ValueError(f"--steps must be from 1 to 1,000, got {arguments.steps}")
    if not 0 <= arguments.guidance <= 100:
        raise ValueError(f"--guidance must be from 0 to 100, got {arguments.guidance}")
    return Plan(_ways_of(arguments.way), _prompts_of(arguments.prompts), arguments.seeds, arguments.out)


def _ways_of(names: Sequence[str] | None) -> list[Way]:
    from ..world.measure import ABSENCES, EVERY_WAY, SOME_WAYS

    blends = [way._replace(name=f"masked_blend {way.name}") for way in ABSENCES]
    known = {way.name: way for way in (*EVERY_WAY, *blends)}
    if names is None:
        removing = next(way for way in blends if way.options["mask_method"] == "remove")
        return [*SOME_WAYS, removing]
    for name in names:
        if name not in known:
            raise ValueError(f"--way {quote(name)} is unknown; known are: {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)]


def _prompts_of(file: Path | None) -> Sequence[Marked]:
    from ..world.by_clip import PROMPTS, check_prompts, marked

    if file is None:
        return PROMPTS
    lines, prompts = PromptLines(str(file), "--prompts"), list[Any]()
    for line in lines:
        if line.strip():
            try:
                prompts.append(marked(line.strip()))
            except ValueError as error:
                raise ValueError(f"{lines.where(lines.num_read)}: {error}") from error
    try:
        check_prompts(prompts)
    except ValueError as error:
        raise ValueError(f"--prompts {file}: {error}") from error
    return prompts


def _checkpoint_of(comfy: Comfy, name: str | None) -> str:
    """Name of the checkpoint, as ComfyUI lists it."""
    described = comfy.node(LOADER).get("ckpt_name", ())
    try:
        kind, options = described[0], described[1] if len(described) > 1 else {}
        known = [str(one) for one in (kind if isinstance(kind, list) else options["options"])]
    except (IndexError, KeyError, TypeError) as error:
        raise ComfyError(f"{comfy.address} is no ComfyUI, or has no node {LOADER}") from error
    listed = ", ".join(known[:20]) + (f" and {len(known) - 20} more" if len(known) > 20 else "")
    if not known:
        raise ComfyError(f"{comfy.address} has no checkpoint: put one into its folder models/checkpoints")
    if name is None and len(known) > 1:
        raise ValueError(f"{comfy.address} has several checkpoints: choose one by --checkpoint NAME: {listed}")
    if name is not None and name not in known:
        raise ValueError(f"--checkpoint {quote(name)}: {comfy.address} has none of this name; it has: {listed}")
    return name or known[0]


def _defaults_of(comfy: Comfy, nodes: set[str]) -> dict[str, dict[str, Any]]:
    """Defaults of the inputs of our nodes, by node."""
    found: dict[str, dict[str, Any]] = {}
    for node in sorted(nodes):
        inputs = comfy.node(node)
        if not inputs:
            raise ComfyError(
                f"{comfy.address} does not know the node {node}: install Weighted CLIP there, or update it, and start "
                "ComfyUI again"
            )
        try:
            found[node] = {name: one[1]["default"] for name, one in inputs.items() if "default" in (*one, {})[1]}
        except (IndexError, KeyError, TypeError) as error:
            raise ComfyError(f"{comfy.address} describes the node {node} in an unknown form") from error
    return found


def _node_of(way: Way) -> tuple[str, Mapping[str, Any]]:
    """Node that weights in a way, and its choices."""
    if way.how:
        return WEIGH, {"how": way.how}
    if "mask_method" in way.options:
        return DOWN_WEIGHT, {name: value for name, value in way.options.items() if name != "scheme"}
    return ENCODE, way.options


def _graph(text: str, seed: int, way: Way, settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> Graph:
    """Workflow of one picture, whose previews are left in ComfyUI's folder for temporary files."""
    node, choices = _node_of(way)
    size = settings["size"]
    texts = {"clip": ["1", 1], "text": text, "syntax": "comfy"}
    sampled = {"seed": seed, "steps": settings["steps"], "cfg": settings["guidance"], "denoise": 1.0}
    links = {"model": ["1", 0], "positive": ["2", 0], "negative": ["3", 0], "latent_image": ["4", 0]}
    nodes: dict[str, tuple[str, dict[str, Any]]] = {
        "1": (LOADER, {"ckpt_name": settings["checkpoint"]}),
        "2": (node, {**defaults[node], **texts, **choices}),
        "3": ("CLIPTextEncode", {"clip": ["1", 1], "text": ""}),
        "4": ("EmptyLatentImage", {"width": size, "height": size, "batch_size": 1}),
        "5": ("KSampler", {**links, **sampled, "sampler_name": "euler", "scheduler": "normal"}),
        "6": ("VAEDecode", {"samples": ["5", 0], "vae": ["1", 2]}),
        OUTPUT: ("PreviewImage", {"images": ["6", 0]}),
    }
    return {name: {"class_type": kind, "inputs": inputs} for name, (kind, inputs) in nodes.items()}


def _claim(plan: Plan, settings: Mapping[str, Any]) -> None:
    """Write down what the folder's pictures are of; ways and seeds may be added later.

    Raises:
        ValueError: If it holds others.
    """
    from ..output.files import written_whole

    about = {"format": FORMAT, **settings, "prompts": [prompt.text(1) for prompt in plan.prompts]}
    path = plan.folder / ABOUT
    try:
        stored = parse_json(read_regular(path, MAX_ABOUT_BYTES))
    except FileNotFoundError:
        others = [name for name in (PICTURES, "points") if (plan.folder / name).exists()]
        if others:
            raise ValueError(f"{plan.folder} holds another measurement ({others[0]}): choose another folder") from None
        with written_whole(path) as place:
            place.write_text(json.dumps(about, indent=1), encoding="utf-8")
        return
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}): choose another folder") from error
    if stored != about:
        stored = stored if isinstance(stored, dict) else {}
        name = next((name for name in about if stored.get(name) != about[name]), "format")
        raise ValueError(
            f"{plan.folder} holds pictures of another measurement ({name}: {quote(stored.get(name))}, now "
            f"{quote(about.get(name))}): choose another folder"
        )


def _draw(comfy: Comfy, plan: Plan, settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Draw what is not there yet."""
    from ..encoder.image_file import open_image
    from ..training.log import duration

    left = {path: picture for path, picture in plan.pictures.items() if not path.exists()}
    if not left:
        return
    show(f"{len(left):,} pictures to draw with {settings['checkpoint']}; Ctrl-C keeps what is drawn", flush=True)
    started, progress = time.monotonic(), Progress()
    for number, (path, (way, weight, prompt, seed)) in enumerate(left.items(), 1):
        graph = _graph(plan.prompts[prompt].text(weight), MAX_SEEDS * prompt + seed, way, settings, defaults)
        data = comfy.picture(graph, OUTPUT)
        try:
            picture = open_image(Path("its picture"), data)
        except ValueError as error:
            raise ComfyError(f"{comfy.address}: {error}") from error
        path.parent.mkdir(parents=True, exist_ok=True)
        write_picture(picture.convert("RGB"), path)
        passed = time.monotonic() - started
        rest = duration(passed / number * (len(left) - number))
        if number == 1 and len(left) > 1:
            show(f"the first took {duration(passed)}, with all that is loaded once: at that rate {rest}", flush=True)
        progress.tell(f"{number:,} of {len(left):,} pictures, {rest} left")
    progress.clear()


def _scores_of(clip: FullClip, plan: Plan) -> tuple[Scores, dict[str, float]]:
    """Sureness of phrases and rests, and what guessing would give of each."""
    import torch

    from ..encoder.images import image_features
    from ..world.by_clip import PHRASE, REST, WEIGHTS, sureness

    paths, progress = list(plan.pictures), Progress()
    features = image_features(
        clip, Files(paths), on_progress=lambda done: progress.tell(f"{done:,} of {len(paths):,} pictures judged")
    )
    progress.clear()
    row = {path: number for number, path in enumerate(paths)}
    prompts, scores, chances = range(len(plan.prompts)), dict[Any, Any](), dict[str, float]()
    asked = {
        PHRASE: [prompt.phrase for prompt in plan.prompts],
        REST: [prompt.rest for prompt in plan.prompts],
    }
    for answer, own in asked.items():
        texts = list(dict.fromkeys(own))
        vectors = torch.stack([text_features_of(clip, text, "comfy").vector for text in texts])
        chances[answer] = 1 / len(texts)
        for way in plan.ways:
            for weight in WEIGHTS:
                rows = [[row[plan.path(way.name, weight, one, seed)] for seed in range(plan.seeds)] for one in prompts]
                scores[answer, way.name, weight] = sureness(
                    vectors, [texts.index(text) for text in own], features[torch.tensor(rows)], clip.logit_scale
                )
    return scores, chances


def _report(plan: Plan, scores: Scores, chances: Mapping[str, float], what: str) -> None:
    """Show and write tables, charts and a grid."""
    from ..encoder.image_file import open_image
    from ..output.files import written_whole
    from ..web.pictures.curves import draw_curves
    from ..web.pictures.weight_grid import draw_weight_grid
    from ..world.by_clip import ANSWERS, WEIGHTS, beyond_chance, changes_of, tables_of, verdict

    found = beyond_chance(changes_of(scores))
    names = [way.name for way in plan.ways]
    tables, told = tables_of(scores, names, found), verdict(scores, found, chances)
    for table in tables:
        show("\n".join(["", *table.lines()]))
    show("\n".join(["", *told]))
    drawn = {
        f"comfy-{answer}.png": draw_curves(
            title,
            {name: [(weight, fmean(map(fmean, scores[answer, name, weight]))) for weight in WEIGHTS] for name in names},
            across="weight",
            top=1.0,
            theme="light",
        )
        for answer, title in ANSWERS.items()
    }
    blocks = {
        name: [
            [open_image(plan.path(name, weight, 0, seed)) for weight in WEIGHTS]
            for seed in range(min(plan.seeds, GRID_SEEDS))
        ]
        for name in names
    }
    title = plan.prompts[0].text(1).replace(":1)", ":weight)")
    drawn["comfy-grid.png"] = draw_weight_grid(title, [f"{weight:g}" for weight in WEIGHTS], blocks, side=GRID_SIDE)
    with written_whole(plan.folder / REPORT) as path:
        page = [f"# {what}", "\n\n".join(told), *(table.markdown() for table in tables)]
        path.write_text("\n\n".join(page), encoding="utf-8")
    for name, picture in drawn.items():
        write_picture(picture, plan.folder / name)
    for name in (REPORT, *drawn):
        show(f"written: {plan.folder / name}")
