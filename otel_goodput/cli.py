"""The command ``otel-goodput``."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from otel_goodput.accounting.totals import NS
from otel_goodput.envvars import OTEL_GOODPUT_DIR
from otel_goodput.errors import GoodputError
from otel_goodput.printable import printable, without_credentials
from otel_goodput.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0 done, 1 something is wrong with what was looked at, 2 wrong use."""
    parser = _parser()
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="otel-goodput: %(message)s", stream=sys.stderr)
    gc.disable()  # one short run over many small tuples that form no cycles
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (GoodputError, OSError, ValueError) as error:
        print(f"otel-goodput: {printable(without_credentials(str(error)))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="otel-goodput", description="How much of a training job's time makes progress: account, report, recover."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    report = commands.add_parser("report", help="print the report of a run from its journal")
    _add_run(report)
    _add_questions(report, "unix seconds")
    report.set_defaults(run=_report)

    replay = commands.add_parser("replay", help="account for a timeline: JSON lines, or a run's journal")
    replay.add_argument(
        "file", type=Path, help="a JSON-lines file (- for standard input), or a run's directory (unix seconds)"
    )
    _add_questions(replay, "the timeline's seconds")
    replay.set_defaults(run=_replay)

    recover = commands.add_parser(
        "recover", help="export the spans that a killed attempt still owes, without a restart"
    )
    _add_run(recover)
    recover.add_argument(
        "--exporters",
        default=None,
        metavar="LIST",
        help="outlets, as OTEL_GOODPUT_EXPORTERS (default: its value, or auto)",
    )
    recover.add_argument("--again", action="store_true", help="also if they were recovered before")
    recover.set_defaults(run=_recover)

    from otel_goodput.send.arguments import add_arguments as add_send_arguments

    send = commands.add_parser(
        "send",
        help="send over OTLP what the outlet 'file' wrote, going on where it was",
        description="Send over OTLP what the outlet 'file' wrote. Called again, it goes on where it was, for each "
        "endpoint. A request whose answer was lost is sent again, and may then be there twice.",
    )
    add_send_arguments(send)
    send.set_defaults(run=_send)

    from otel_goodput.reports import plan as planning

    plan = commands.add_parser("plan", help="how often to save, and the runtime goodput to expect of it")
    planning.add_arguments(plan)
    plan.set_defaults(run=planning.run)

    env = commands.add_parser("env", help="print the environment variables with the values in force")
    env.add_argument("--json", action="store_true", help="as JSON")
    env.set_defaults(run=_env)

    doctor = commands.add_parser(
        "doctor", help="say what would be exported where, what is unreachable or misconfigured"
    )
    doctor.add_argument(
        "--timeout", type=_positive, default=3.0, metavar="S", help="seconds for each connection (default 3)"
    )
    doctor.add_argument(
        "--gcp", action="store_true", help="ask Google Cloud too: credentials, project, APIs, roles, clock"
    )
    doctor.add_argument("--json", action="store_true", help="as JSON")
    doctor.set_defaults(run=_doctor)
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory",
        nargs="?",
        default=None,
        help="a run's folder, the folder or URL that holds the runs (default: OTEL_GOODPUT_DIR, else ./goodput)",
    )
    parser.add_argument(
        "--run", dest="run_id", default=None, metavar="ID", help="which run, where the folder holds several"
    )
    parser.add_argument("--process", type=int, default=0, metavar="K", help="whose journal (default: 0, the leader's)")


def _add_questions(parser: argparse.ArgumentParser, unit: str) -> None:
    parser.add_argument("--at", type=_moment, default=None, metavar="T", help=f"the account as of T ({unit})")
    parser.add_argument(
        "--window",
        nargs=2,
        type=_moment,
        action="append",
        default=[],
        metavar=("A", "B"),
        help=f"account for [A, B] on its own ({unit}); may be repeated",
    )
    parser.add_argument(
        "--exclude",
        nargs=2,
        type=_moment,
        action="append",
        default=[],
        metavar=("A", "B"),
        help=f"leave out [A, B] ({unit}); may be repeated",
    )
    parser.add_argument(
        "--ideal-step-time",
        type=_positive,
        default=None,
        metavar="S",
        help="seconds of an ideal step, instead of the estimate",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def _moment(text: str) -> float:
    """A time in seconds that fits into 64 bits of ns."""
    seconds = float(text)
    if not abs(seconds) < 9e9:
        raise ValueError(text)
    return seconds


def _positive(text: str) -> float:
    seconds = _moment(text)
    if seconds <= 0:
        raise ValueError(text)
    return seconds


_moment.__name__, _positive.__name__ = "time in seconds", "positive number of seconds"  # as argparse names them


def _ns(seconds: float) -> int:
    return round(seconds * NS)


def _print(report: Any, as_json: bool) -> None:
    if as_json:
        print(json.dumps(report.to_json() if hasattr(report, "to_json") else report))
    else:
        print(report, end="")


def _report(options: argparse.Namespace) -> int:
    from otel_goodput.reports.journalled import of_run

    with _found_runs(options) as found:
        for number, (run, _) in enumerate(found):
            if number and not options.json:
                print()
            report = of_run(
                run,
                at=None if options.at is None else _ns(options.at),
                windows=[(_ns(a), _ns(b)) for a, b in options.window],
                exclusions=[(_ns(a), _ns(b)) for a, b in options.exclude],
                ideal_step_time=None if options.ideal_step_time is None else options.ideal_step_time * NS,
                process=options.process,
            )
            _print(report, options.json)
    return 0


def _replay(options: argparse.Namespace) -> int:
    from otel_goodput.replay import timeline_totals
    from otel_goodput.reports.report import Report
    from otel_goodput.timeline import read_timeline

    if options.file.is_dir():
        options.directory, options.run_id, options.process = str(options.file), None, 0
        return _report(options)
    totals = timeline_totals(
        read_timeline(None if str(options.file) == "-" else options.file),
        at=options.at,
        windows=options.window,
        exclusions=options.exclude,
        ideal_step_time=options.ideal_step_time,
    )
    _print(totals if options.json else Report(totals, {}), options.json)
    return 0


def _recover(options: argparse.Namespace) -> int:
    from otel_goodput.salvage import salvage

    with _found_runs(options) as found:
        return max(salvage(one, options.process, options.exporters, again=options.again) for one in found)


def _send(options: argparse.Namespace) -> int:
    from otel_goodput.send.command import run

    return run(options)


def _env(options: argparse.Namespace) -> int:
    from otel_goodput.doctor import environment

    return environment(as_json=options.json)


def _doctor(options: argparse.Namespace) -> int:
    from otel_goodput.doctor import examine

    return examine(timeout_s=options.timeout, as_json=options.json, gcp=options.gcp)


def _found_runs(options: argparse.Namespace) -> Any:
    from otel_goodput.journal.finding import found_runs

    return found_runs(options.directory or os.environ.get(OTEL_GOODPUT_DIR.name) or "goodput", options.run_id)


if __name__ == "__main__":
    sys.exit(main())
