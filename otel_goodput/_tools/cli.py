"""The command ``otel-goodput``: its start and end, and the subcommands ``completion`` and ``help``."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from typing import Any, Final, NoReturn

from otel_goodput._runtime import files
from otel_goodput._runtime.installation import install_command
from otel_goodput._text.redact import REDACTED, shown
from otel_goodput._tools.commands import COMMANDS, USAGE, status_table
from otel_goodput.errors import ConfigurationError, GoodputError
from otel_goodput.version import __version__

RUN: Final = "run"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: one of ``EXIT_STATUSES``."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == [RUN]:  # nothing of this process is changed for a program that knows nothing of us
        return _run_program(words[1:])
    if sys.stdout is None:  # the parent process closed it
        with files.nowhere() as nowhere, redirect_stdout(nowhere):
            return main(arguments)
    logging.basicConfig(level=logging.WARNING, format="otel-goodput: %(message)s", stream=sys.stderr)
    for handler in logging.getLogger().handlers:  # redact also what OpenTelemetry and other libraries log
        handler.addFilter(REDACTED)
    gc.disable()  # a short run creates many small tuples, but no cycles
    try:
        try:
            if not words:
                command_parser("").print_help()
                return USAGE
            options = command_parser(next((word for word in words if not word.startswith("-")), "")).parse_args(words)
            status: int = options.run(options)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has closed the pipe. Flushing the rest of it at exit must not raise again.
        with files.nowhere() as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return 0
    except (GoodputError, OSError, ValueError) as error:
        print(f"otel-goodput: {shown(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def _run_program(words: Sequence[str]) -> int:
    from otel_goodput._tools.run import split

    line = split(words)
    options = command_parser(RUN).parse_args([RUN, *line.own])
    options.line = line
    status: int = options.run(options)
    return status


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(shown(message))  # the message quotes arguments literally


def command_parser(only: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command, with the arguments of all subcommands, or of `only` one."""
    parser = _Parser(
        prog="otel-goodput",
        description="Report how much of a training job's time makes progress, from the journal that the job keeps.",
        epilog=f"Run `otel-goodput COMMAND --help` for the options of a command.\n\n{status_table()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    parsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        command.add_to(parsers, name, whole=only in (None, name))
    return parser


def add_help_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", nargs="*", metavar="COMMAND", help="command to explain (default: list all commands)")


def run_help(options: argparse.Namespace) -> int:
    """Print the help of a command. Raises SystemExit."""
    command_parser("".join(options.topic[:1])).parse_args([*options.topic, "--help"])
    return 0


SHELLS: Final = ("bash", "zsh", "fish")
# What each shell calls for the ids of the runs in the folder that the commands read by default. A folder whose name has
# a "%" has another name than its run. Names are quoted, and never expanded: they may hold anything.
_RUNS: Final = {"bash": "_otel_goodput_runs", "zsh": "_otel_goodput_runs", "fish": "(__otel_goodput_runs)"}


def add_completion_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="shell to write the script for")


def run_completion(options: argparse.Namespace) -> int:
    """Print the script for a shell. Where nothing else fits, the shell completes names of files."""
    try:
        import shtab
    except ImportError as error:
        raise ConfigurationError(f"completion needs shtab: {install_command('completion')}") from error
    parser = command_parser()
    for action in _actions(parser):
        if action.dest == "topic":
            action.choices = list(COMMANDS)
        elif action.dest == "run_id" or (action.metavar in ("A", "B") and not action.option_strings):
            action.complete = _RUNS  # type: ignore[attr-defined]
        elif action.choices is None and action.nargs != 0:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    runs = files.resource("otel_goodput._tools", "completion", f"runs.{options.shell}")
    preamble: Any = {options.shell: runs}  # shtab says `str`, and takes this
    print(shtab.complete(parser, options.shell, preamble=preamble))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of `parser` and of its subcommands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)


if __name__ == "__main__":
    sys.exit(main())
