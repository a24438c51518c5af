"""The program: its parser and the way a command is run, with its problems in one line."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from . import Command
from .config_file import CONFIG_FLAG, add_negations, apply_config
from .console import check_texts, drop_unwritable, show, visible, write_anything
from .lab import LAB
from .model_files import CONVERT_DVAE, CONVERT_RUDALLE, STRETCH
from .processes import INTERRUPTED, TERMINATED, is_of_another, leave, process_of, terminable
from .prompts import CONVERT, ENCODE, INSPECT, SCHEDULE
from .rerank import RERANK, SIMILARITY
from .training.classify import CLASSIFY
from .training.dalle_demo import DALLE_DEMO
from .training.dalle_sample import DALLE_SAMPLE
from .training.dalle_training import DALLE, DALLE_SHAPES, DALLE_TRAIN, DALLE_TRAIN_VAE
from .training.driver import LATEST_FLAG
from .training.evaluate import EVALUATE
from .training.train import FILL, TRAIN
from .training.world_measure import WORLD_MEASURE
from .training.world_training import WORLD, WORLD_SAMPLE, WORLD_SCENES, WORLD_TRAIN

DEFAULT_COMMAND = ["lab"]
PROGRAM = "weighted-clip"
_MISTYPED = "argument COMMAND: invalid choice: '"


def main(arguments: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Run a command; without one, start the lab.

    Returns:
        The exit status: 0, 1 after a problem explained on the error stream, 130 after Ctrl-C, or 143 after SIGTERM.
    """
    words = (sys.argv[1:] if arguments is None else list(arguments)) or DEFAULT_COMMAND
    write_anything()
    options = make_parser(program, words).parse_args(words)
    with terminable() as termination:
        status = _status_of(options)
    return TERMINATED if status == INTERRUPTED and termination.came is not None else status


def _status_of(options: argparse.Namespace) -> int:
    """Run a command, and report its problem."""
    try:
        check_texts(options)
        status = options.run(options)
        sys.stdout.flush()  # here, so that a full disk is still reported
        return status
    except (ValueError, OSError) as error:
        drop_unwritable()
        show(f"weighted-clip: {error}", sys.stderr)
    except (MemoryError, RuntimeError) as error:
        if not _is_lack_of_memory(error):
            if isinstance(error, RuntimeError) and is_of_another(error):
                leave(process_of(os.environ), "another process has ended")
            raise
        advice = ", or choose ".join(_less_memory(options))
        show(f"weighted-clip: there is not enough memory ({str(error) or 'none left'}): {advice}", sys.stderr)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 1


def _is_lack_of_memory(error: Exception) -> bool:
    """Whether an error is one of those by which Python and PyTorch report a lack of memory."""
    message = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in message or "can't allocate memory" in message


def _less_memory(options: argparse.Namespace) -> list[str]:
    """Advice on using less memory, by the options that the command has."""
    advice = {
        "close other programs": True,
        "--dtype fp16": hasattr(options, "dtype"),
        "a smaller --batch": hasattr(options, "accumulate"),  # in training; elsewhere it is a file of prompts
        "--device cpu": hasattr(options, "device"),
    }
    return [line for line, is_possible in advice.items() if is_possible]


class _CommandParser(argparse.ArgumentParser):
    """Parser that shows examples below the help, and reports errors in one line."""

    examples: tuple[str, ...] = ()
    """Example arguments."""
    refusal = ""
    """Reason why the command is not available, reported whatever its arguments are."""

    def format_help(self) -> str:
        """The help, with examples below."""
        return "\n".join(
            [
                super().format_help(),
                "examples:",
                *(f"  {self.prog} {example}".rstrip() for example in self.examples),
                "",
            ]
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Parse as argparse does, but let a command's own parser refuse unknown arguments, as it knows similar ones."""
        if self.refusal:
            self.exit(1, f"{self.refusal}\n")
        if LATEST_FLAG in self._option_string_actions:
            words = [*(sys.argv[1:] if args is None else args)]
            places = [number for number, pair in enumerate(pairwise(words)) if pair == ("--resume", "latest")]
            args = [
                LATEST_FLAG if number in places else word
                for number, word in enumerate(words)
                if number - 1 not in places
            ]
        if CONFIG_FLAG in self._option_string_actions:
            try:
                apply_config(self, args)
            except ValueError as error:
                self.error(str(error))
        parsed, rest = super().parse_known_args(args, namespace)
        if rest:
            options = [argument.partition("=")[0] for argument in rest if argument.startswith("-")]
            near = [difflib.get_close_matches(option, self._option_string_actions, 1) for option in options]
            advice = "".join(f"; did you mean {matches[0]}?" for matches in near if matches)
            if not options and hasattr(parsed, "text"):
                advice = "; a text of several words needs quotes around it"
            self.error(f"unrecognized arguments: {' '.join(rest)}{advice}")
        return parsed, rest

    def error(self, message: str) -> NoReturn:
        """Exit with status 2, with the nearest command for one that does not exist."""
        typed, is_choice, commands = message.removeprefix(_MISTYPED).partition("' (choose from ")
        if message.startswith(_MISTYPED) and is_choice:
            near = difflib.get_close_matches(typed, [name.strip("' )") for name in commands.split(",")], 1)
            message = f"there is no command '{typed}'" + "".join(f"; did you mean {name}?" for name in near)
        line = " ".join(f"{self.prog}: {message} ({self.prog} --help)".splitlines())
        self.exit(2, f"{visible(line) if sys.stderr.isatty() else line}\n")


def _outside(package: str) -> tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]:
    """Functions of a command in a package of its own, which the archive of the Comfy Registry leaves out."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        if Path(__file__).resolve().parents[2].joinpath(*package.split("."), "__init__.py").is_file():
            import_module(f"....{package}", __name__).add_arguments(parser)
            return
        assert isinstance(parser, _CommandParser)
        parser.refusal = (
            f"weighted-clip: {parser.prog.split()[-1]} is not in the archive of the Comfy Registry; it is in the "
            "project's repository"
        )

    def run(arguments: argparse.Namespace) -> int:
        return import_module(f"....{package}", __name__).run(arguments)

    return add_arguments, run


PARITY = Command(
    "parity",
    "compare every scheme with every reference program that is there",
    *_outside("workshop.parity"),
    ("--hosts hosts", "--quick"),
)
BENCH = Command("bench", "measure speed beside other programs", *_outside("workshop.bench"), ("", "--quick"))
COMMANDS = (
    INSPECT,
    SCHEDULE,
    CONVERT,
    PARITY,
    BENCH,
    ENCODE,
    RERANK,
    SIMILARITY,
    TRAIN,
    FILL,
    CLASSIFY,
    EVALUATE,
    STRETCH,
    DALLE,
    DALLE_SHAPES,
    DALLE_TRAIN_VAE,
    DALLE_TRAIN,
    DALLE_SAMPLE,
    DALLE_DEMO,
    WORLD,
    WORLD_TRAIN,
    WORLD_SCENES,
    WORLD_SAMPLE,
    WORLD_MEASURE,
    CONVERT_DVAE,
    CONVERT_RUDALLE,
    LAB,
)
"""All commands, in the order of the help; a group comes before its parts."""
EXAMPLES = ("", 'inspect "a (red:1.4) cat"', "lab --weights sd15.safetensors")
"""Examples of the program itself."""


def make_parser(program: str = PROGRAM, words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """Parser of the program's arguments, which stores a command's function as ``run``.

    If the words to parse are known, only commands among them get their arguments: all of them take 0.2 s.
    """
    from ... import __version__

    parser = _CommandParser(prog=program, description="Encode prompts with exact weighting schemes.")
    parser.examples = EXAMPLES
    parser.add_argument("--version", action="version", version=f"weighted-clip {__version__}")
    groups = {"": parser.add_subparsers(title="commands", metavar="COMMAND", required=True)}
    for command in COMMANDS:
        group, _, name = command.name.rpartition(" ")
        subparser = groups[group].add_parser(
            name, help=command.help, description=command.description, epilog=command.epilog
        )
        subparser.examples = command.examples
        if command.add_arguments is None:
            groups[name] = subparser.add_subparsers(title="commands", metavar="COMMAND", required=True)
        elif words is None or name in words:
            command.add_arguments(subparser)
            if CONFIG_FLAG in subparser._option_string_actions:
                add_negations(subparser)
            subparser.set_defaults(run=command.run)
    return parser
