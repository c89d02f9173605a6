"""``otel-goodput doctor``: examines everything that a job started here would use, without leaving traces."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from otel_goodput._journal.rundir import folder_name
from otel_goodput._runtime.guard import TRUE
from otel_goodput._text.durations import NS
from otel_goodput._text.quantities import plural
from otel_goodput._text.redact import redact, secrets
from otel_goodput._tools.arguments import add_json, length
from otel_goodput._tools.doctor import journal, settings
from otel_goodput._tools.doctor.exporters import ExporterChecks
from otel_goodput._tools.doctor.findings import (
    OK,
    PROBLEM,
    WARNING,
    Export,
    Finding,
    LogCapture,
    captured_logs,
    ok,
    warning,
)
from otel_goodput._tools.doctor.google import Google
from otel_goodput._tools.doctor.services import GOOGLE
from otel_goodput._tools.doctor.settings import InForce, rows
from otel_goodput._tools.waiting import StatusLine
from otel_goodput.errors import ConfigurationError
from otel_goodput.version import __version__

MOST: Final = 4  # problems that the line names


def verdict(
    findings: Sequence[Finding], exporters: Sequence[str], environ: Mapping[str, str], *, contacted: bool
) -> str:
    """Return what is wrong, or what a job would do if nothing is: ``2 problems: …; 1 warning`` or ``Ready: …``.

    `exporters` are the names of those that get something to export here; `contacted` is whether requests were sent
    to Google Cloud.
    """
    problems = Counter(one.brief or one.about for one in findings if one.level == PROBLEM)
    warnings = sum(one.level == WARNING for one in findings)
    line = _named(problems) if problems else _ready(exporters, environ, contacted)
    return f"{line}; {plural(warnings, WARNING)}" if warnings else line


def _named(problems: Counter[str]) -> str:
    total = problems.total()
    shown = list(problems.items())[:MOST]
    names = [brief if number == 1 else f"{brief} ({number} times)" for brief, number in shown]
    rest = total - sum(number for _, number in shown)
    return f"{plural(total, PROBLEM)}: {', '.join(names)}{f', and {rest} more' if rest else ''}"


def _ready(exporters: Sequence[str], environ: Mapping[str, str], contacted: bool) -> str:
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() in TRUE:
        return "Off: OTEL_SDK_DISABLED is set, so nothing is recorded"
    if not exporters:
        return "Ready: the job keeps a journal, and this process exports nothing"
    offer = "" if contacted or GOOGLE.keys().isdisjoint(exporters) else " (`--gcp` also asks Google Cloud)"
    return f"Ready: the job keeps a journal and exports with {', '.join(exporters)}{offer}"


_LEVEL_WIDTH: Final = max(map(len, (OK, WARNING, PROBLEM)))


def add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout", type=length, default=3 * NS, metavar="T", help="wait this long for each connection (default: 3s)"
    )
    parser.add_argument(
        "--gcp", action="store_true", help="also check Google Cloud: credentials, project, APIs, roles, clock"
    )
    add_json(parser)


def run_doctor(options: argparse.Namespace) -> int:
    """Run the command ``otel-goodput doctor`` as :func:`examine` does."""
    return examine(timeout_s=options.timeout / NS, as_json=options.json, gcp=options.gcp)


def examine(*, timeout_s: float, as_json: bool, gcp: bool = False) -> int:
    """Print what would be exported and where to, and what is wrong; returns the exit status, 1 if there is a problem.

    Args:
        timeout_s: seconds that each connection may take.
        as_json: whether to print JSON.
        gcp: whether to send requests to Google Cloud too.

    Raises:
        ConfigurationError: `timeout_s` is not above 0.
    """
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        raise ConfigurationError(f"--timeout takes seconds above 0, not {timeout_s:g}")
    exports: list[Export] = []
    active: list[str] = []
    hidden = secrets(os.environ)
    with captured_logs() as logs, warnings.catch_warnings():
        if gcp:  # Google's libraries warn about matters of the job; with -W error these would raise here
            warnings.simplefilter("ignore")
        force = settings.in_force(os.environ)
        logs.take()  # already reported by the check of the settings
        raw = list(_findings(force, timeout_s, logs, active, exports, gcp, hidden))
    hidden.sort(key=len, reverse=True)
    findings = [Finding(*(redact(text, hidden) for text in one)) for one in raw]
    exports = [Export(*(redact(text, hidden) for text in one)) for one in exports]
    line = redact(verdict(findings, active, os.environ, contacted=gcp), hidden)
    if as_json:
        _write_json(line, force, findings, exports)
    else:
        _write_text(line, findings)
    return int(any(finding.level == PROBLEM for finding in findings))


def _findings(
    force: InForce,
    timeout_s: float,
    logs: LogCapture,
    active: list[str],
    exports: list[Export],
    gcp: bool,
    hidden: list[str],
) -> Iterator[Finding]:
    """Yield all findings; appends to `active` (names of exporters), `exports` and `hidden`."""
    config = force.config
    yield ok("versions", ", ".join(f"{name} {number}" for name, number in settings.versions().items()))
    yield from settings.check(os.environ, rows(os.environ), config)
    logs.take()
    with _waiting_for(config.directory):
        yield from journal.check(config, force.run_id, timeout_s)
    present, more = journal.present(config, force.run_id)
    for run in present:
        yield from journal.check_run(run, config.process_index, renewable=config.renewable)
        for text in logs.take():
            yield warning("run", text, "the unreadable part is missing from the figures")
    if more:
        yield ok("run", f"only the newest runs were checked; set OTEL_GOODPUT_RUN_ID to check one of {more} older runs")
    if force.run_id and not present:
        yield ok("run", f"run {force.run_id!r} has no journal on this machine yet")
    elif not force.run_id:
        yield ok("run", "the job sets its run id itself, in configure(run_id=)")
    folder = journal.local_base(config) / folder_name(force.run_id or config.run_id)
    if not force.run_id:
        folder = folder.with_name("<run id>")
    exporters = ExporterChecks(config, folder, timeout_s, logs)
    names = exporters.names()
    for name in names:
        with _waiting_for(f"exporter {name}"):
            yield from exporters.check(name)
    yield from exporters.idle(names)
    if gcp or not GOOGLE.keys().isdisjoint(names):
        yield from _google(Google(os.environ, names, timeout_s), gcp, hidden)
    exports += exporters.exports
    active += exporters.active


def _google(google: Google, contact: bool, hidden: list[str]) -> Iterator[Finding]:
    if not contact:
        yield from google.local()
    for thing, check in google.checks if contact else ():
        with _waiting_for(thing):
            yield from check()
    hidden += google.hidden


def _waiting_for(thing: str) -> StatusLine:
    """Show on a terminal, during a ``with`` block, what is being waited for."""
    line = StatusLine()
    line.show(redact(f"looking at {thing} …"))
    return line


def _write_text(line: str, findings: list[Finding]) -> None:
    sys.stdout.write(f"{line}\n\n")
    indent = " " * (_LEVEL_WIDTH + 2)
    for level, about, what, do, _ in findings:
        sys.stdout.write(f"{level:<{_LEVEL_WIDTH}}  {about}: {what}\n")
        if do:
            sys.stdout.write(f"{indent}{do}\n")


def _write_json(line: str, force: InForce, findings: list[Finding], exports: list[Export]) -> None:
    answer = {
        "verdict": line,
        "version": __version__,
        "versions": settings.versions(),
        "run_id": redact(force.run_id) or None,
        "directory": redact(force.config.directory),
        "process_index": force.config.process_index,
        "process_count": force.config.process_count,
        "exports": [one._asdict() for one in exports],
        "findings": [finding._asdict() for finding in findings],
        "problems": sum(finding.level == PROBLEM for finding in findings),
        "warnings": sum(finding.level == WARNING for finding in findings),
    }
    sys.stdout.write(json.dumps(answer, indent=1) + "\n")
