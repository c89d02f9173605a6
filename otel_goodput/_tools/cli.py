"""The command ``otel-goodput``: its subcommands, and how each ends."""

from __future__ import annotations

import argparse
import gc
import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from typing import NamedTuple, NoReturn

from otel_goodput._runtime import files
from otel_goodput._settings.options import Settings
from otel_goodput._text.durations import NS
from otel_goodput._text.redact import REDACTED, shown
from otel_goodput._tools.arguments import add_run, length
from otel_goodput._tools.completion import SHELLS, script
from otel_goodput._tools.manual import USAGE, describe, statuses
from otel_goodput.errors import GoodputError
from otel_goodput.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: one of ``EXIT_STATUSES``."""
    if sys.stdout is None:  # the parent process closed it
        with files.nowhere() as nowhere, redirect_stdout(nowhere):
            return main(arguments)
    logging.basicConfig(level=logging.WARNING, format="otel-goodput: %(message)s", stream=sys.stderr)
    for handler in logging.getLogger().handlers:  # redact also what OpenTelemetry and other libraries log
        handler.addFilter(REDACTED)
    gc.disable()  # a short run creates many small tuples, but no cycles
    try:
        try:
            parser = _parser()
            if not (sys.argv[1:] if arguments is None else arguments):
                parser.print_help()
                return USAGE
            options = parser.parse_args(arguments)
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


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(shown(message))  # the message quotes arguments literally


class Command(NamedTuple):
    """A subcommand.

    Attributes:
        purpose: for the list of commands, and for its own help if it has no `description`.
        add_arguments: adds its arguments to a parser.
        run: runs it and returns the exit status: a function, or the name of a module below this package, imported when
            it is needed, whose ``run`` it is.
    """

    purpose: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: str | Callable[[argparse.Namespace], int]
    description: str | None = None


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="otel-goodput",
        description="Report how much of a training job's time makes progress, from the journal that the job keeps.",
        epilog=f"Run `otel-goodput COMMAND --help` for the options of a command.\n\n{statuses()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command in _commands().items():
        below = commands.add_parser(name, help=command.purpose, description=command.description)
        command.add_arguments(below)
        below.set_defaults(run=partial(_run, command.run))
        describe(name, command.purpose, below)
    return parser


def _run(command: str | Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    run = importlib.import_module(f"{__package__}.{command}").run if isinstance(command, str) else command
    status: int = run(options)
    return status


def _commands() -> dict[str, Command]:
    """Return all commands by name, in the order of the help."""
    from otel_goodput._tools import compare, dashboards, export, plan, replay, report, runs
    from otel_goodput._tools.collector import arguments as collector
    from otel_goodput._tools.reason import arguments as reason
    from otel_goodput._tools.send import arguments as send
    from otel_goodput._tools.serve import arguments as serve

    return {
        "report": Command("print the report of a run", report.add_arguments, report.run),
        "runs": Command("list runs, the newest first", runs.add_arguments, runs.run),
        "compare": Command("compare two runs; in CI, fail if a figure got worse", compare.add_arguments, compare.run),
        "export": Command("write a run as a trace for Perfetto", export.add_arguments, export.run),
        "collector": Command(
            "write an OpenTelemetry Collector configuration, systemd unit or Kubernetes manifest",
            collector.add_arguments,
            "collector.command",
            "Write the OpenTelemetry Collector's configuration, a script that installs it as a systemd unit, "
            "or a Kubernetes manifest, in one file.",
        ),
        "dashboards": Command(
            "write dashboards and alerts for Grafana or Cloud Monitoring", dashboards.add_arguments, dashboards.run
        ),
        "reason": Command(
            "record why a run was disrupted, by hand or from a log", reason.add_arguments, "reason.command"
        ),
        "replay": Command(
            "print the report of a timeline: a JSON-lines file, or a run's journal", replay.add_arguments, replay.run
        ),
        "recover": Command(
            "export the spans and last metrics that a killed attempt did not export, without a restart",
            _add_recover_arguments,
            "recover",
        ),
        "send": Command(
            "send the files of the exporter 'file' to an OTLP receiver",
            send.add_arguments,
            "send.command",
            "Send over OTLP what the exporter 'file' wrote. A second call resumes where the first stopped, per "
            "endpoint. A request whose response was lost is sent again and may arrive twice.",
        ),
        "serve": Command(
            "serve a live page of all runs for a browser",
            serve.add_arguments,
            "serve.command",
            "Show every run of a folder or URL live in a browser: an index, a page for each run, and two runs "
            "side by side. The command never writes. It needs the extra 'serve'.",
        ),
        "plan": Command(
            "compute how often to save checkpoints, and the goodput to expect", plan.add_arguments, plan.run
        ),
        "env": Command("print the environment variables and the values in effect", _add_env_arguments, _env),
        "doctor": Command(
            "check the configuration: what goes where, and what does not work", _add_doctor_arguments, _doctor
        ),
        "completion": Command(
            "print a script that completes otel-goodput's arguments in a shell", _add_completion_arguments, _completion
        ),
        "help": Command("print the help of a command", _add_help_arguments, _help),
    }


def _add_recover_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "--exporters",
        metavar="LIST",
        help="export with these, separated by commas "
        f"(default: {Settings.exporters.variable}, else {Settings.exporters.usual})",
    )
    parser.add_argument(
        "--again", action="store_true", help="export them again even if they have already been recovered"
    )


def _add_env_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _env(options: argparse.Namespace) -> int:
    from otel_goodput._tools.doctor import environment

    return environment(as_json=options.json)


def _add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout", type=length, default=3 * NS, metavar="T", help="wait this long for each connection (default: 3s)"
    )
    parser.add_argument(
        "--gcp", action="store_true", help="also check Google Cloud: credentials, project, APIs, roles, clock"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _doctor(options: argparse.Namespace) -> int:
    from otel_goodput._tools.doctor import examine

    return examine(timeout_s=options.timeout / NS, as_json=options.json, gcp=options.gcp)


def _add_completion_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="shell to write the script for")


def _completion(options: argparse.Namespace) -> int:
    print(script(options.shell, _parser()), end="")
    return 0


def _add_help_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", nargs="*", metavar="COMMAND", help="command to explain (default: list all commands)")


def _help(options: argparse.Namespace) -> int:
    _parser().parse_args([*options.topic, "--help"])  # raises SystemExit
    return 0


if __name__ == "__main__":
    sys.exit(main())
