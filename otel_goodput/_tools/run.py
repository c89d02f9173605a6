"""``otel-goodput run``: record a program without a line in it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple, cast

from otel_goodput._programs import recording
from otel_goodput._programs.main_module import MainModule
from otel_goodput._settings.options import OPTIONS, Option, Options
from otel_goodput._text.redact import shown
from otel_goodput._tools.commands import USAGE
from otel_goodput.errors import ConfigurationError

# Settings that are given on the command line; the others, by their variables.
TAKEN: Final = (
    "run_id",
    "directory",
    "exporters",
    "integrations",
    "device_clock",
    "usage_interval",
    "objective",
    "role",
)
MODULE: Final = "-m"


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "otel-goodput run [options] (PROGRAM.py | -m MODULE) [arguments of the program]"
    parser.epilog = (
        "The program runs exactly as `python PROGRAM.py` or `python -m MODULE` would run it. Options stand before it; "
        "all that stands behind it is the program's. Below a launcher, every process gets the command: `torchrun "
        "--nproc-per-node 2 -m otel_goodput run train.py`, `accelerate launch -m otel_goodput run train.py`, `srun "
        "otel-goodput run train.py`. If the program calls configure(), its arguments take precedence over these."
    )
    words = "name of the job (default: OTEL_SERVICE_NAME, else that of the script or module)"
    parser.add_argument("--name", metavar="NAME", help=words)
    for name in TAKEN:
        row = OPTIONS[name]
        assert isinstance(row, Option)
        default = "all" if name == "integrations" else row.usual
        help_ = f"{row.brief.replace('%', '%%')} ({f'default: {default}; ' if default else ''}{row.variable})"
        parser.add_argument(f"--{name.replace('_', '-')}", metavar=name.rpartition("_")[2].upper(), help=help_)
    parser.add_argument(MODULE, dest="module", metavar="MODULE", help="run a module as a program, instead of a file")
    parser.add_argument("program", metavar="PROGRAM", nargs="?", help="file to run, or a folder or zip file to run")


class CommandLine(NamedTuple):
    """What is given to the command, split into what is ours and what is the program's."""

    own: Sequence[str]
    program: str
    arguments: Sequence[str]
    module: bool


def split(words: Sequence[str]) -> CommandLine:
    """Split what follows ``run``: all options but ``--help`` take a value, and the program ends them."""
    at = 0
    while at < len(words):
        word = words[at]
        if word.startswith(MODULE) and not word.startswith("--"):
            attached = word[len(MODULE) :]
            rest = words[at + 1 :]
            if attached:
                return CommandLine(words[:at], attached, rest, True)
            return CommandLine(words[:at], rest[0] if rest else "", rest[1:], True)
        if word == "--" or not word.startswith("-"):
            at += word == "--"
            return CommandLine(
                words[: at - (word == "--")], words[at] if at < len(words) else "", words[at + 1 :], False
            )
        at += 1 if "=" in word or word in ("-h", "--help") else 2
    return CommandLine(words, "", (), False)


def run_run(options: argparse.Namespace) -> int:
    """Run the program as the interpreter would: what it raises is raised. Raises SystemExit, as it does."""
    line: CommandLine = options.line
    if not line.program:
        print("otel-goodput run: write `otel-goodput run PROGRAM.py`, or `otel-goodput run -m MODULE`", file=sys.stderr)
        return USAGE
    program = MainModule(line.program, line.arguments, module=line.module)
    given = cast("Options", {name: value for name in TAKEN if (value := getattr(options, name)) is not None})
    name = options.name or os.environ.get("OTEL_SERVICE_NAME", "").strip() or program.name

    def begin() -> None:
        try:
            recording.begin(name, given)
        except ConfigurationError as error:
            print(f"otel-goodput run: {shown(str(error))}", file=sys.stderr)
            sys.exit(USAGE)

    program.run(begin, recording.leave)
    return 0
