"""The command ``otel-goodput``: its subcommands, and how each ends."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any, NoReturn

from otel_goodput import files
from otel_goodput.errors import GoodputError
from otel_goodput.options import Settings
from otel_goodput.text.durations import NS
from otel_goodput.text.redact import REDACTED, shown
from otel_goodput.tools import plan as planning
from otel_goodput.tools import replay as replaying
from otel_goodput.tools import report as reporting
from otel_goodput.tools.arguments import add_run, found_in, length, place
from otel_goodput.tools.completion import SHELLS, commands_of, script
from otel_goodput.tools.manual import USAGE, describe, statuses
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


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="otel-goodput",
        description="Report how much of a training job's time makes progress, from the journal that the job keeps.",
        epilog=f"Run `otel-goodput COMMAND --help` for the options of a command.\n\n{statuses()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    report = commands.add_parser("report", help="print the report of a run")
    reporting.add_arguments(report)
    report.set_defaults(run=reporting.run)

    _add_tools(commands)

    replay = commands.add_parser("replay", help="print the report of a timeline: a JSON-lines file, or a run's journal")
    replaying.add_arguments(replay)
    replay.set_defaults(run=replaying.run)

    recover = commands.add_parser(
        "recover", help="export the spans and last metrics that a killed attempt did not export, without a restart"
    )
    add_run(recover)
    recover.add_argument(
        "--exporters",
        metavar="LIST",
        help="export with these, separated by commas "
        f"(default: {Settings.exporters.variable}, else {Settings.exporters.usual})",
    )
    recover.add_argument(
        "--again", action="store_true", help="export them again even if they have already been recovered"
    )
    recover.set_defaults(run=_recover)

    from otel_goodput.tools.send.arguments import add_arguments as add_send_arguments

    send = commands.add_parser(
        "send",
        help="send the files of the exporter 'file' to an OTLP receiver",
        description="Send over OTLP what the exporter 'file' wrote. A second call resumes where the first stopped, per "
        "endpoint. A request whose response was lost is sent again and may arrive twice.",
    )
    add_send_arguments(send)
    send.set_defaults(run=_send)

    from otel_goodput.tools.serve.arguments import add_arguments as add_serve_arguments

    serve = commands.add_parser(
        "serve",
        help="serve a live page of all runs for a browser",
        description="Show every run of a folder or URL live in a browser: an index, a page for each run, and two runs "
        "side by side. The command never writes. It needs the extra 'serve'.",
    )
    add_serve_arguments(serve)
    serve.set_defaults(run=_serve)

    plan = commands.add_parser("plan", help="compute how often to save checkpoints, and the goodput to expect")
    planning.add_arguments(plan)
    plan.set_defaults(run=planning.run)

    env = commands.add_parser("env", help="print the environment variables and the values in effect")
    env.add_argument("--json", action="store_true", help="print JSON")
    env.set_defaults(run=_env)

    doctor = commands.add_parser("doctor", help="check the configuration: what goes where, and what does not work")
    doctor.add_argument(
        "--timeout", type=length, default=3 * NS, metavar="T", help="wait this long for each connection (default: 3s)"
    )
    doctor.add_argument(
        "--gcp", action="store_true", help="also check Google Cloud: credentials, project, APIs, roles, clock"
    )
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.set_defaults(run=_doctor)

    shell = commands.add_parser("completion", help="print a script that completes otel-goodput's arguments in a shell")
    shell.add_argument("shell", choices=SHELLS, help="shell to write the script for")
    shell.set_defaults(run=_completion)

    explained = commands.add_parser("help", help="print the help of a command")
    explained.add_argument(
        "topic", nargs="*", metavar="COMMAND", help="command to explain (default: list all commands)"
    )
    explained.set_defaults(run=_help)

    for name, (purpose, command) in commands_of(parser).items():
        describe(name, purpose, command)
    return parser


def _add_tools(commands: Any) -> None:
    """Add the commands whose arguments stand with them: each reads runs at the place that `directory` names."""
    from otel_goodput.tools import compare, dashboards, export, runs
    from otel_goodput.tools.collector import arguments as collector_arguments
    from otel_goodput.tools.reason import arguments as reason_arguments

    table = commands.add_parser("runs", help="list runs, the newest first")
    runs.add_arguments(table)
    table.set_defaults(run=lambda options: runs.run(options, place(options)))

    comparison = commands.add_parser("compare", help="compare two runs; in CI, fail if a figure got worse")
    compare.add_arguments(comparison)
    comparison.set_defaults(run=lambda options: compare.run(options, place(options)))

    trace = commands.add_parser("export", help="write a run as a trace for Perfetto")
    add_run(trace, process=False)
    export.add_arguments(trace)
    trace.set_defaults(run=_export)

    collector = commands.add_parser(
        "collector",
        help="write an OpenTelemetry Collector configuration, systemd unit or Kubernetes manifest",
        description="Write the OpenTelemetry Collector's configuration, a script that installs it as a systemd unit, "
        "or a Kubernetes manifest, in one file.",
    )
    collector_arguments.add_arguments(collector)
    collector.set_defaults(run=_collector)

    views = commands.add_parser("dashboards", help="write dashboards and alerts for Grafana or Cloud Monitoring")
    dashboards.add_arguments(views)
    views.set_defaults(run=dashboards.run)

    late = commands.add_parser("reason", help="record why a run was disrupted, by hand or from a log")
    reason_arguments.add_arguments(late)
    late.set_defaults(run=_reason)


def _completion(options: argparse.Namespace) -> int:
    print(script(options.shell, _parser()), end="")
    return 0


def _help(options: argparse.Namespace) -> int:
    _parser().parse_args([*options.topic, "--help"])  # raises SystemExit
    return 0


def _reason(options: argparse.Namespace) -> int:
    from otel_goodput.tools.reason.command import run

    return run(options, place(options))


def _collector(options: argparse.Namespace) -> int:
    from otel_goodput.tools.collector.command import run

    return run(options)


def _recover(options: argparse.Namespace) -> int:
    from otel_goodput.tools.recover import recover_all

    with found_in(options) as found:
        return recover_all(found, options.process, options.exporters, again=options.again)


def _export(options: argparse.Namespace) -> int:
    from otel_goodput.tools import export

    with found_in(options) as found:
        return export.run(options, found)


def _send(options: argparse.Namespace) -> int:
    from otel_goodput.tools.send.command import run

    return run(options)


def _serve(options: argparse.Namespace) -> int:
    from otel_goodput.tools.serve.command import run

    return run(options, place(options))


def _env(options: argparse.Namespace) -> int:
    from otel_goodput.tools.doctor import environment

    return environment(as_json=options.json)


def _doctor(options: argparse.Namespace) -> int:
    from otel_goodput.tools.doctor import examine

    return examine(timeout_s=options.timeout / NS, as_json=options.json, gcp=options.gcp)


if __name__ == "__main__":
    sys.exit(main())
