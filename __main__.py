"""The command line: ``inspect`` shows what a prompt becomes, ``encode`` encodes it into files.

Started without a command it encodes a sample prompt. Run it through ``run.py``, as ``python -m weighted_clip``, or as
the installed ``weighted-clip``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __package__ in (None, ""):  # started as a file or a folder: load the package by path, whatever the folder is called
    root = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != root]
    spec = importlib.util.spec_from_file_location(
        "weighted_clip", root / "__init__.py", submodule_search_locations=[str(root)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = sys.modules["weighted_clip"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    __package__ = "weighted_clip"

if TYPE_CHECKING:
    from .encoder.text_model import TextEncoder
    from .weighting.encode import EncodedPrompt, EncodeOptions

SAMPLE_PROMPT = "a (red:1.4) cat and a (dog:0.5) in a bowl"
SAMPLE_COMMAND = ["encode", SAMPLE_PROMPT, "--scheme", "masked_blend", "--name", "sample"]
RANDOM_WARNING = (
    "NO REAL WEIGHTS: using the full-size architecture with seeded random weights. The wiring is real, the numbers "
    "mean nothing. Give real ones with --weights FILE.safetensors"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: What follows the program's name; the process's own by default.

    Returns:
        The exit status: 0, or 1 after a problem that was explained on the error stream.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = _parser().parse_args(given or SAMPLE_COMMAND)
    try:
        return options.run(options)
    except (ValueError, OSError) as error:
        print(f"weighted-clip: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    from . import benchmarks, parity
    from .weighting.convert import TARGETS
    from .weighting.encode import CHUNKING_CHOICES, EOS_ROWS
    from .weighting.normalize import NORMALIZATIONS
    from .weighting.padding import PADDINGS
    from .weighting.scheme_api import LAWS, MASK_METHODS, POOLED
    from .weighting.schemes import SCHEMES
    from .weighting.syntax import SYNTAXES

    parser = argparse.ArgumentParser(prog="weighted-clip", description="Encode prompts with exact weighting schemes.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    reading = argparse.ArgumentParser(add_help=False)
    reading.add_argument("text", help="the prompt; - reads it from standard input")
    reading.add_argument(
        "--syntax", choices=list(SYNTAXES), default="a1111", help="how weights are written (%(default)s)"
    )
    reading.add_argument("--chunking", choices=CHUNKING_CHOICES, default="as syntax", help="where long prompts are cut")
    reading.add_argument(
        "--comma-backtrack", type=int, default=20, metavar="N", help="for chunking a1111, in tokens (20)"
    )
    reading.add_argument("--normalization", choices=NORMALIZATIONS, default="none", help="changes the weights first")
    reading.add_argument("--strict", action="store_true", help="refuse what the program of that syntax refuses")

    inspect = commands.add_parser("inspect", parents=[reading], help="show tokens, weights, chunks and problems")
    inspect.add_argument("--json", action="store_true", help="print the view that front ends draw")
    inspect.set_defaults(run=_inspect)

    rewrite = commands.add_parser("convert", help="rewrite a prompt in another syntax")
    rewrite.add_argument("text", help="the prompt; - reads it from standard input")
    rewrite.add_argument("--from", dest="source", choices=list(SYNTAXES), default="a1111", help="its syntax (a1111)")
    rewrite.add_argument("--to", dest="target", choices=TARGETS, default="comfy", help="the syntax wanted (comfy)")
    rewrite.set_defaults(run=_convert)

    compare = commands.add_parser("parity", help="compare every scheme with every reference program that is there")
    parity.add_arguments(compare)
    compare.set_defaults(run=parity.run)

    bench = commands.add_parser("bench", help="measure speed beside other programs")
    benchmarks.add_options(bench)
    bench.set_defaults(run=benchmarks.run)

    encode = commands.add_parser("encode", parents=[reading], help="encode into a safetensors file, with pictures")
    encode.add_argument("--scheme", choices=list(SCHEMES), default="a1111", help="what a weight does (%(default)s)")
    encode.add_argument("--padding", choices=PADDINGS, default="attend", help="what the encoder sees of padding")
    encode.add_argument("--pooled", choices=POOLED, default="unweighted")
    encode.add_argument("--law", choices=LAWS, default="nested", help="masked_blend: how faded words share the result")
    encode.add_argument("--mask-method", choices=MASK_METHODS, default="attention", help="masked_blend: what absent is")
    encode.add_argument("--filler", default="+", help="masked_blend, method token: stands in for an absent token (+)")
    encode.add_argument(
        "--eos-rows", choices=EOS_ROWS, default="own", help="what stands in the EOS rows of long prompts"
    )
    encode.add_argument("--weights", type=Path, metavar="FILE", help="CLIP-L or SD 1.x .safetensors file")
    encode.add_argument("--seed", type=int, default=0, help="of the random weights used without --weights (0)")
    encode.add_argument("--clip-skip", type=int, default=1, metavar="N", help="1 = last layer (1)")
    encode.add_argument("--dtype", choices=["fp32", "fp16", "bf16"], default="fp32")
    encode.add_argument("--device", default="cpu", help="cpu or cuda (cpu)")
    encode.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="folder for the files (out)")
    encode.add_argument("--name", default="prompt", help="first part of the files' names (prompt)")
    encode.add_argument("--no-pictures", dest="pictures", action="store_false", help="write the tensors only")
    encode.set_defaults(run=_encode)
    return parser


def _inspect(arguments: argparse.Namespace) -> int:
    from .encoder.tokenizer import default_tokenizer
    from .weighting.encode import read_prompt
    from .weighting.view import token_table, view

    read = read_prompt(_text(arguments), _options(arguments), default_tokenizer())
    print(json.dumps(view(read), ensure_ascii=False, indent=2) if arguments.json else token_table(read))
    return 0


def _convert(arguments: argparse.Namespace) -> int:
    from .encoder.tokenizer import default_tokenizer
    from .weighting.convert import convert

    result = convert(_text(arguments), arguments.source, arguments.target, default_tokenizer())
    print(result.text)
    for issue in result.issues:
        print(f"  {issue.message}", file=sys.stderr)
    return 0


def _encode(arguments: argparse.Namespace) -> int:
    from .encoder.tokenizer import default_tokenizer
    from .weighting.encode import encode_prompt, read_prompt
    from .weighting.view import counted, token_table

    tokenize = default_tokenizer()
    read = read_prompt(_text(arguments), _options(arguments), tokenize)
    print(token_table(read), flush=True)
    encoder, source = _encoder(arguments)
    masks: list[Any] = []

    def encode(ids: Any, mask: Any = None) -> Any:
        is_last_empty = len(ids) > len(read.chunks) and ids[-1] == read.layout.empty_ids()
        # the empty prompt, which some schemes encode last, is not part of the picture
        masks.append(mask[:-1] if mask is not None and is_last_empty else mask)
        return encoder(ids, mask)

    encoded = encode_prompt(read, encode, tokenize)
    for issue in encoded.read.issues[len(read.issues) :]:
        print(f"  {issue.message}")
    rows, dim = encoded.hidden.shape[1:]
    count = counted(encoded.num_encodings, "chunk")
    print(f"\n{read.options.scheme}: {count} encoded -> {rows} rows of {dim}, weights: {source}")

    arguments.out.mkdir(parents=True, exist_ok=True)
    files = [_write_tensors(arguments, encoded, source)]
    if arguments.pictures:
        files += _write_pictures(arguments, encoded, encoder, masks[0])
    print("wrote " + "\n      ".join(map(str, files)))
    return 0


def _text(arguments: argparse.Namespace) -> str:
    return sys.stdin.read() if arguments.text == "-" else arguments.text


def _options(arguments: argparse.Namespace) -> EncodeOptions:
    from dataclasses import fields

    from .weighting.encode import EncodeOptions

    given = vars(arguments)
    return EncodeOptions(**{field.name: given[field.name] for field in fields(EncodeOptions) if field.name in given})


def _encoder(arguments: argparse.Namespace) -> tuple[TextEncoder, str]:
    """The encoder and, in words, where its weights come from."""
    import torch

    from .encoder.checkpoint import load_text_model, seeded_text_model
    from .encoder.text_model import TextEncoder

    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[arguments.dtype]
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"this PyTorch ({torch.__version__}) finds no CUDA device; use --device cpu")
    if arguments.weights is None:
        print(f"\n*** {RANDOM_WARNING} ***", file=sys.stderr)
        model = seeded_text_model(seed=arguments.seed, dtype=dtype).to(arguments.device)
        source = f"random, seed {arguments.seed} (no meaning)"
    else:
        model, report = load_text_model(arguments.weights, dtype=dtype, device=arguments.device)
        print(f"\n{report}")
        source = f"{report.file} ({report.layout})"
    return TextEncoder(model, clip_skip=arguments.clip_skip), source


def _write_tensors(arguments: argparse.Namespace, encoded: EncodedPrompt, source: str) -> Path:
    from safetensors.torch import save_file

    options = encoded.read.options
    path = arguments.out / f"{arguments.name}.safetensors"
    metadata = {name: str(value) for name, value in vars(options).items()}
    metadata |= {"prompt": encoded.read.prompt.source, "weights": source, "clip_skip": str(arguments.clip_skip)}
    tensors = {"hidden": encoded.hidden.cpu().contiguous(), "pooled": encoded.pooled.cpu().contiguous()}
    save_file(tensors, path, metadata=metadata)
    return path


def _write_pictures(
    arguments: argparse.Namespace, encoded: EncodedPrompt, encoder: TextEncoder, mask: Any
) -> list[Path]:
    from .web import pictures
    from .weighting.view import view

    drawn = {
        "tokens": pictures.draw_tokens(view(encoded.read)),
        "masks": pictures.draw_encoding_masks(encoded.read, mask),
        "figure-masks": pictures.draw_figure_masks(),
        "architecture": pictures.draw_architecture(encoder.config),
    }
    paths: list[Path] = []
    for name, picture in drawn.items():
        paths.append(arguments.out / f"{arguments.name}-{name}.png")
        picture.save(paths[-1])
    return paths


if __name__ == "__main__":
    sys.exit(main())
