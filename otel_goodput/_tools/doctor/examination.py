"""``otel-goodput doctor``: examines everything that a job started here would use, without leaving traces."""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Final

from otel_goodput._journal.rundir import folder_name
from otel_goodput._runtime.guard import TRUE
from otel_goodput._settings.config import Config
from otel_goodput._text.durations import NS
from otel_goodput._text.quantities import plural
from otel_goodput._text.redact import redact, secrets
from otel_goodput._tools.arguments import add_json, length
from otel_goodput._tools.doctor import journal, settings
from otel_goodput._tools.doctor.exporters import ExporterChecks
from otel_goodput._tools.doctor.findings import PROBLEM, WARNING, Finding, LogCapture, captured_logs, ok, warning
from otel_goodput._tools.doctor.google import Google
from otel_goodput._tools.doctor.services import GOOGLE
from otel_goodput._tools.doctor.settings import rows
from otel_goodput._tools.waiting import looking_at
from otel_goodput.version import __version__

MOST: Final = 4  # problems that the verdict names
_LEVEL_WIDTH: Final = max(len(WARNING), len(PROBLEM))


def add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    words = "wait this long for each connection (default: 3s)"
    parser.add_argument("--timeout", type=length, default=3 * NS, metavar="T", help=words)
    words = "also check Google Cloud: credentials, project, APIs, roles, clock"
    parser.add_argument("--gcp", action="store_true", help=words)
    parser.add_argument("--notify", action="store_true", help="send a test to those whom OTEL_GOODPUT_NOTIFY names")
    add_json(parser)


def run_doctor(options: argparse.Namespace) -> int:
    """Run the command ``otel-goodput doctor`` as :func:`examine` does."""
    return examine(timeout_s=options.timeout / NS, as_json=options.json, gcp=options.gcp, notify=options.notify)


def examine(*, timeout_s: float, as_json: bool, gcp: bool = False, notify: bool = False) -> int:
    """Print what would be exported and where to, and what is wrong; returns the exit status, 1 if there is a problem.

    Each connection may take `timeout_s`; with `gcp`, requests are sent to Google Cloud too, and with `notify` a test to
    everybody who is notified of incidents.
    """
    hidden = secrets(os.environ)
    with captured_logs() as logs, warnings.catch_warnings():
        if gcp:  # Google's libraries warn about matters of the job; with -W error these would raise here
            warnings.simplefilter("ignore")
        config, run_id = settings.in_force(os.environ)
        logs.take()  # already reported by the check of the settings
        raw, exporters = _examined(config, run_id, timeout_s, logs, gcp, hidden)
        with looking_at("notifications"):
            raw += settings.check_notifications(config, send=notify)
    hidden.sort(key=len, reverse=True)
    findings = [Finding(*(redact(text, hidden) for text in one)) for one in raw]
    verdict = redact(_verdict(findings, exporters.active, contacted=gcp), hidden)
    levels = Counter(finding.level for finding in findings)
    if as_json:
        answer = {
            "verdict": verdict,
            "version": __version__,
            "versions": settings.versions(),
            "run_id": redact(run_id) or None,
            "directory": redact(config.directory),
            "process_index": config.process_index,
            "process_count": config.process_count,
            "exports": [{key: redact(text, hidden) for key, text in one.items()} for one in exporters.exports],
            "findings": [finding._asdict() for finding in findings],
            "problems": levels[PROBLEM],
            "warnings": levels[WARNING],
        }
        sys.stdout.write(json.dumps(answer, indent=1) + "\n")
    else:
        sys.stdout.write(f"{verdict}\n\n")
        for level, about, what, do, _ in findings:
            sys.stdout.write(f"{level:<{_LEVEL_WIDTH}}  {about}: {what}\n")
            if do:
                sys.stdout.write(f"{'':<{_LEVEL_WIDTH}}  {do}\n")
    return int(levels[PROBLEM] > 0)


def _verdict(findings: Sequence[Finding], exporters: Sequence[str], *, contacted: bool) -> str:
    """Return what is wrong, or what a job would do if nothing is: ``2 problems: …; 1 warning`` or ``Ready: …``.

    `exporters` get something to export here; `contacted` is whether requests were sent to Google Cloud.
    """
    problems = Counter(one.brief or one.about for one in findings if one.level == PROBLEM)
    if problems:
        named = list(problems.items())[:MOST]
        briefs = [brief if number == 1 else f"{brief} ({number} times)" for brief, number in named]
        if rest := problems.total() - sum(number for _, number in named):
            briefs.append(f"and {rest} more")
        line = f"{plural(problems.total(), PROBLEM)}: {', '.join(briefs)}"
    elif os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() in TRUE:
        line = "Off: OTEL_SDK_DISABLED is set, so nothing is recorded"
    elif not exporters:
        line = "Ready: the job keeps a journal, and this process exports nothing"
    else:
        offer = "" if contacted or GOOGLE.keys().isdisjoint(exporters) else " (`--gcp` also asks Google Cloud)"
        line = f"Ready: the job keeps a journal and exports with {', '.join(exporters)}{offer}"
    doubts = sum(one.level == WARNING for one in findings)
    return f"{line}; {plural(doubts, WARNING)}" if doubts else line


def _examined(
    config: Config, run_id: str, timeout_s: float, logs: LogCapture, gcp: bool, hidden: list[str]
) -> tuple[list[Finding], ExporterChecks]:
    """Return all findings, and the exporters that were checked; appends secrets of Google's to `hidden`."""
    findings = [ok("versions", ", ".join(f"{name} {number}" for name, number in settings.versions().items()))]
    findings += settings.check(os.environ, rows(os.environ), config)
    logs.take()
    with looking_at(config.directory):
        findings += journal.check(config, run_id, timeout_s)
    present, more = journal.present(config, run_id)
    for run in present:
        findings += journal.check_run(run, config.process_index, renewable=config.renewable)
        findings += [warning("run", text, "the unreadable part is missing from the figures") for text in logs.take()]
    if more:
        what = f"only the newest runs were checked; set OTEL_GOODPUT_RUN_ID to check one of {more} older runs"
        findings.append(ok("run", what))
    folder = journal.local_base(config) / folder_name(run_id or config.run_id)
    if not run_id:
        findings.append(ok("run", "the job sets its run id itself, in configure(run_id=)"))
        folder = folder.with_name("<run id>")
    elif not present:
        findings.append(ok("run", f"run {run_id!r} has no journal on this machine yet"))
    exporters = ExporterChecks(config, folder, timeout_s, logs)
    for name in exporters.names:
        with looking_at(f"exporter {name}"):
            findings += exporters.check(name)
    findings += exporters.idle()
    if gcp or not GOOGLE.keys().isdisjoint(exporters.names):
        google = Google(os.environ, exporters.names, timeout_s)
        findings += google.check() if gcp else google.local()
        hidden += google.hidden
    return findings, exporters
