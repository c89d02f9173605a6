"""The command ``otel-goodput``: arguments, and the subcommands ``report`` and ``replay``."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from otel_goodput import files
from otel_goodput.envvars import OTEL_GOODPUT_DIR
from otel_goodput.errors import GoodputError
from otel_goodput.text.durations import NS, Moment, asked_moment, parse_duration
from otel_goodput.text.redact import REDACTED, shown
from otel_goodput.version import __version__

T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    The status is 0 on success, 1 on an error or if ``doctor`` finds a problem, 2 on wrong usage, 3 if a journal is
    damaged and a part of it could not be read, 4 if a condition of ``compare`` asks for a figure that is not known, 5
    if one holds, and 130 after Ctrl-C.
    """
    if sys.stdout is None:  # the parent process closed it
        with files.nowhere() as nowhere, redirect_stdout(nowhere):
            return main(arguments)
    logging.basicConfig(level=logging.WARNING, format="otel-goodput: %(message)s", stream=sys.stderr)
    for handler in logging.getLogger().handlers:  # redact also what OpenTelemetry and other libraries log
        handler.addFilter(REDACTED)
    gc.disable()  # a short run creates many small tuples, but no cycles
    try:
        try:
            options = _parser().parse_args(arguments)
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
        description="How much of a training job's time makes progress: account, report, recover.",
        epilog="Exit status: 0: all is well, 1: there is no answer, 2: wrong use, 3: a part of a journal cannot be "
        "read, 4 and 5: conditions of compare (see compare --help), 130: interrupted.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    report = commands.add_parser("report", help="print the report of a run from its journal")
    _add_run(report)
    _add_questions(report)
    page = report.add_argument_group("as a page", "one file with charts and a timeline, which needs no network")
    page.add_argument("--html", default=None, metavar="FILE", help="write the page there (- for standard output)")
    words = "show up to N steps and phases one by one (default: 200000); of a longer run, those around its events"
    page.add_argument("--spans", type=_number, default=None, metavar="N", help=words)
    report.set_defaults(run=_report)

    _add_tools(commands)

    replay = commands.add_parser("replay", help="account for a timeline: JSON lines, or a run's journal")
    replay.add_argument(
        "file", type=Path, help="a JSON-lines file (- for standard input), or a run's directory (unix seconds)"
    )
    _add_questions(replay)
    replay.set_defaults(run=_replay)

    recover = commands.add_parser(
        "recover", help="export the spans that a killed attempt did not export, without a restart"
    )
    _add_run(recover)
    recover.add_argument(
        "--exporters", metavar="LIST", help="exporters, as OTEL_GOODPUT_EXPORTERS (default: its value, or auto)"
    )
    recover.add_argument("--again", action="store_true", help="even if they have already been recovered")
    recover.set_defaults(run=_recover)

    from otel_goodput.tools.send.arguments import add_arguments as add_send_arguments

    send = commands.add_parser(
        "send",
        help="send over OTLP what the exporter 'file' wrote, resuming where it stopped",
        description="Send over OTLP what the exporter 'file' wrote. Called again, it resumes where it stopped, for "
        "each endpoint. A request whose answer was lost is sent again, and may then arrive twice.",
    )
    add_send_arguments(send)
    send.set_defaults(run=_send)

    from otel_goodput.tools import serve as serving

    serve = commands.add_parser(
        "serve",
        help="show every run of a folder or URL live, in a browser",
        description="Show every run of a folder or URL live, in a browser: an index, a page for each run, and two runs "
        "side by side. It only reads. Needs pip install 'otel-goodput[serve]'.",
    )
    serving.add_arguments(serve)
    serve.set_defaults(run=lambda options: serving.run(options, _place(options)))

    from otel_goodput.reports import plan as planning

    plan = commands.add_parser("plan", help="how often to save, and the runtime goodput to expect")
    planning.add_arguments(plan)
    plan.set_defaults(run=planning.run)

    env = commands.add_parser("env", help="print the environment variables with their effective values")
    env.add_argument("--json", action="store_true", help="as JSON")
    env.set_defaults(run=_env)

    doctor = commands.add_parser(
        "doctor", help="show what would be exported where, and what is unreachable or misconfigured"
    )
    doctor.add_argument("--timeout", type=_length, default=3 * NS, metavar="T", help="for each connection (default 3s)")
    doctor.add_argument(
        "--gcp", action="store_true", help="ask Google Cloud too: credentials, project, APIs, roles, clock"
    )
    doctor.add_argument("--json", action="store_true", help="as JSON")
    doctor.set_defaults(run=_doctor)
    return parser


def _add_tools(commands: Any) -> None:
    """Add the commands whose arguments stand with them: each reads runs at the place that `directory` names."""
    from otel_goodput.tools import compare, export, runs

    table = commands.add_parser("runs", help="print the table of runs, the newest first")
    runs.add_arguments(table)
    table.set_defaults(run=lambda options: runs.run(options, _place(options)))

    comparison = commands.add_parser("compare", help="compare two runs; for CI, fail if a figure got worse")
    compare.add_arguments(comparison)
    comparison.set_defaults(run=lambda options: compare.run(options, _place(options)))

    trace = commands.add_parser("export", help="write a run as a trace for Perfetto")
    _add_run(trace, process=False)
    export.add_arguments(trace)
    trace.set_defaults(run=_export)


def _add_run(parser: argparse.ArgumentParser, *, process: bool = True) -> None:
    parser.add_argument(
        "directory",
        nargs="?",
        default=None,
        help="a run's folder, the folder or URL that holds the runs (default: OTEL_GOODPUT_DIR, else ./goodput)",
    )
    parser.add_argument(
        "--run",
        dest="run_id",
        default=None,
        metavar="ID",
        help="which run, if the folder holds several (report shows the newest)",
    )
    if process:
        parser.add_argument(
            "--process", type=int, default=0, metavar="K", help="whose journal (default: 0, the leader's)"
        )


def _add_questions(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "T, A and B are seconds (since 1970, or as a timeline counts them), RFC 3339 such as 2026-11-22T11:25:00Z, "
        "'1h' or '1h30m' after the start, '1h ago', or 'now'."
    )
    parser.add_argument("--at", type=_moment, default=None, metavar="T", help="the account as of T")
    parser.add_argument(
        "--window",
        nargs=2,
        type=_moment,
        action="append",
        default=[],
        metavar=("A", "B"),
        help="account for [A, B] separately; may be repeated",
    )
    parser.add_argument(
        "--exclude",
        nargs=2,
        type=_moment,
        action="append",
        default=[],
        metavar=("A", "B"),
        help="exclude [A, B] from the account; may be repeated",
    )
    parser.add_argument(
        "--ideal-step-time",
        type=_length,
        default=None,
        metavar="T",
        help="ideal step time instead of the estimate, in seconds or with a unit (350ms)",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def _named(name: str, parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return `parse` under the `name` that argparse shows in its error messages."""

    def named(text: str) -> T:
        return parse(text)

    named.__name__ = name
    return named


def _natural(text: str) -> int:
    if (number := int(text)) < 0:
        raise ValueError("it is negative")
    return number


_number = _named("number", _natural)
_moment = _named("time", asked_moment)
_length = _named("length of time", parse_duration)


def _spans(asked: Sequence[tuple[Moment, Moment]], start: int | None) -> list[tuple[int, int]]:
    return [(begin.since(start), end.since(start)) for begin, end in asked]


def _print(report: Any, as_json: bool) -> None:
    if as_json:
        print(json.dumps(report.to_json()))
    else:
        print(report, end="")


def _report(options: argparse.Namespace) -> int:
    from otel_goodput.errors import JournalError
    from otel_goodput.reports import overview

    with _found_runs(options) as found:
        entries = overview.entries((run for run, _ in found), options.process)
        if options.html is not None:
            from otel_goodput.tools.page import write

            return write((entries[0].run if entries else found[0].run), options)
        if len(found) == 1 or len(entries) == 1:
            one = _run_report(entries[0].run if entries else found[0].run, options)
            _print(one, options.json)
            return _status([one])
        if not entries:
            raise JournalError(f"none of {len(found)} runs has a journal of process {options.process}")
        if options.json:
            reports = [_attempted(entry.run, options) for entry in entries]
            print(json.dumps({"runs": [one if isinstance(one, dict) else one.to_json() for one in reports]}))
            return _status(reports)
        print(overview.render(entries, shown(_place(options))))
        reports = []
        for entry in entries:
            one = _attempted(entry.run, options)
            reports.append(one)
            if not isinstance(one, dict):  # otherwise show the next newest run
                _print(one, as_json=False)
                break
        return _status(reports)


def _status(reports: Sequence[Any]) -> int:
    """Return 3 if one of the reports is missing or incomplete, else 0."""
    from otel_goodput.journal.damage import STATUS

    return STATUS if any(isinstance(one, dict) or one.damaged for one in reports) else 0


def _attempted(run: Any, options: argparse.Namespace) -> Any:
    """Return the report of one run of several; if that fails, the error as a JSON object."""
    try:
        return _run_report(run, options)
    except Exception as error:  # an error in one run must not prevent the reports of the others
        why = shown(str(error) or type(error).__name__)
        logging.getLogger(__name__).warning("run %s cannot be reported: %s", shown(repr(run.called())), why)
        return {"run_id": run.called(), "error": why}


def _run_report(run: Any, options: argparse.Namespace) -> Any:
    from otel_goodput.reports.journalled import of_run

    return of_run(
        run,
        at=options.at,
        windows=options.window,
        exclusions=options.exclude,
        ideal_step_time=options.ideal_step_time,
        process=options.process,
    )


def _replay(options: argparse.Namespace) -> int:
    from otel_goodput.reports.replay import account_timeline
    from otel_goodput.reports.report import Report
    from otel_goodput.reports.timeline import Timeline, read_timeline

    if options.file.is_dir():
        options.directory, options.run_id, options.process = str(options.file), None, 0
        return _report(options)
    timeline = Timeline(read_timeline(None if str(options.file) == "-" else options.file))
    start = timeline.earliest
    totals = account_timeline(
        timeline,
        at=None if options.at is None else options.at.since(start),
        windows=_spans(options.window, start),
        exclusions=_spans(options.exclude, start),
        ideal_step_time=options.ideal_step_time,
    )
    _print(totals if options.json else Report(totals, {}), options.json)
    return 0


def _recover(options: argparse.Namespace) -> int:
    from otel_goodput.tools.recover import recover_all

    with _found_runs(options) as found:
        return recover_all(found, options.process, options.exporters, again=options.again)


def _export(options: argparse.Namespace) -> int:
    from otel_goodput.tools import export

    with _found_runs(options) as found:
        return export.run(options, found)


def _send(options: argparse.Namespace) -> int:
    from otel_goodput.tools.send.command import run

    return run(options)


def _env(options: argparse.Namespace) -> int:
    from otel_goodput.tools.doctor import environment

    return environment(as_json=options.json)


def _doctor(options: argparse.Namespace) -> int:
    from otel_goodput.tools.doctor import examine

    return examine(timeout_s=options.timeout / NS, as_json=options.json, gcp=options.gcp)


def _found_runs(options: argparse.Namespace) -> Any:
    from otel_goodput.journal.finding import found_runs

    return found_runs(_place(options), options.run_id)


def _place(options: argparse.Namespace) -> str:
    return options.directory or os.environ.get(OTEL_GOODPUT_DIR.name) or "goodput"


if __name__ == "__main__":
    sys.exit(main())
