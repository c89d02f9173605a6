"""``otel-goodput send``: sends over OTLP, later or from another machine, what the exporter ``file`` wrote."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from otel_goodput._runtime.installation import install_command
from otel_goodput._text.redact import redact, secrets
from otel_goodput._tools.arguments import add_json, named_as
from otel_goodput._tools.progress import Screen
from otel_goodput._tools.send.lines import signals_of, sources
from otel_goodput._tools.send.sending import Sending, SentFile, Stopped
from otel_goodput.errors import ConfigurationError
from otel_goodput.exporters.otlp_variables import EXPORTER_MODULES, variables
from otel_goodput.exporters.spec import SIGNALS


def _positive(text: str) -> float:
    seconds = float(text)
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(text)
    return seconds


_seconds = named_as("positive number of seconds", _positive)


def add_send_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="file of OTLP JSON lines, or a folder of a run, of all runs or of a collector",
    )
    parser.add_argument("--endpoint", metavar="URL", help="receiver to send to (default: OTEL_EXPORTER_OTLP_ENDPOINT)")
    parser.add_argument(
        "--protocol",
        choices=tuple(EXPORTER_MODULES),
        help="protocol to use (default: OTEL_EXPORTER_OTLP_PROTOCOL, else grpc)",
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=60.0,
        metavar="S",
        help="total seconds to spend on a receiver that does not accept data (default 60)",
    )
    parser.add_argument("--again", action="store_true", help="from the beginning, including data sent there before")
    parser.add_argument("--dry-run", action="store_true", help="show what would be sent where, and send nothing")
    parser.add_argument("--quiet", action="store_true", help="print only errors")
    add_json(parser)


def run_send(options: argparse.Namespace) -> int:
    """Send the files; returns the exit status: 0 if everything has arrived, 1 if not, 2 on wrong usage."""
    environ = _environment(options)
    screen = Screen(secrets(environ), quiet=options.quiet or options.json, waits=not options.quiet)
    try:
        named = {path: signals_of(path) for path in sources(options.files)}
        sending = Sending(environ, screen, patience_s=options.timeout, again=options.again, dry=options.dry_run)
    except ConfigurationError as error:
        screen.complain(str(error))
        return 2
    except ImportError as error:
        screen.complain(f"{error}: {install_command('otlp')}")
        return 2
    with closing(sending):
        files = {each: signals for path, signals in named.items() for each in (*sending.earlier(path, signals), path)}
        for path, signals in files.items():
            if options.again:
                sending.forget(path, signals)
        results, reason = _send(sending, files, screen, "would go" if options.dry_run else "sent")
    if reason:
        left = sum(result.left for result in results)
        screen.complain(
            f"{reason}; {left} requests are left; run this command again{', without --again,' * options.again} "
            "to continue"
        )
    done = not reason and all(result.whole() for result in results)
    if options.json:
        answer = {
            "done": done,
            "dry_run": options.dry_run,
            "reason": redact(reason, secrets(environ)),
            "files": [{**asdict(result), "file": redact(result.file)} for result in results],
        }
        sys.stdout.write(json.dumps(answer) + "\n")
    return 0 if done else 1


def _send(
    sending: Sending, files: Mapping[Path, Sequence[str]], screen: Screen, verb: str
) -> tuple[list[SentFile], str]:
    """Send the files; returns the outcome of each, and why not all were sent (empty if they were)."""
    results: list[SentFile] = []
    reasons: dict[str, None] = {}
    over = False
    for path, signals in files.items():
        result = SentFile(file=str(path), receiver=sending.receiver(signals))
        results.append(result)
        stays = over
        if not over:
            try:
                sending.file(path, signals, result)
            except Stopped as stopped:
                reasons[str(stopped)] = None
                stays, over = True, stopped.everywhere
        if stays:
            result.left = sending.rest(path, signals)
        screen.write(f"{path}: {result} {verb} to {result.receiver}" if result.sent else f"{path}: {result}")
    return results, "; ".join(reasons)


def _environment(options: argparse.Namespace) -> dict[str, str]:
    """Return the environment, with the command line's endpoint and protocol overriding those of both signals."""
    environ = dict(os.environ)
    for name, value in (("ENDPOINT", options.endpoint), ("PROTOCOL", options.protocol)):
        if value is not None:
            for signal in SIGNALS:
                own, common = variables(signal, name)
                environ.pop(own, None)
                environ[common] = value
    return environ
