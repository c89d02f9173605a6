"""``otel-goodput recover``: exports, without a restart, what a killed attempt did not: spans and the last metrics."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

from opentelemetry.sdk.metrics.export import MetricExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_goodput._journal.incidents import delivered_by, ends_of, incident_files
from otel_goodput._journal.sidecars import checked_json
from otel_goodput._recording.finished import unexported_spans
from otel_goodput._recording.incident_spans import unexported_incidents
from otel_goodput._resources import process as process_resource
from otel_goodput._runtime import files
from otel_goodput._runtime.pipelines import last_values
from otel_goodput._settings import config as configuration
from otel_goodput._settings.options import Settings
from otel_goodput._text.redact import encodable, shown
from otel_goodput._timeline.recovery import Restored
from otel_goodput._tools.arguments import add_directory, add_run, named_runs, number
from otel_goodput._tools.commands import DAMAGED
from otel_goodput.errors import ConfigurationError
from otel_goodput.exporters.registry import numbers, open_exporter, resolve, shut_down
from otel_goodput.exporters.spec import ExporterContext, ExporterUnavailable
from otel_goodput.reports.run import RecordedRun


def add_recover_arguments(parser: argparse.ArgumentParser) -> None:
    add_directory(parser, "folder of a run, or folder or URL of all runs")
    add_run(parser)
    words = "only the spans of process K (default: of all processes)"
    parser.add_argument("--process", type=number, metavar="K", help=words)
    words = (
        "export with these, separated by commas "
        f"(default: {Settings.exporters.variable}, else {Settings.exporters.usual})"
    )
    parser.add_argument("--exporters", metavar="LIST", help=words)
    words = "export them again even if they have already been recovered"
    parser.add_argument("--again", action="store_true", help=words)


def run_recover(options: argparse.Namespace) -> int:
    """Recover the runs that the arguments name, and return the highest exit status.

    An error in one of them, or in one process, is printed, so that the others are still recovered.
    """
    with named_runs(options) as runs:
        return max(_attempted(run, process, options) for run in runs for process in _processes(run, options.process))


def _processes(run: RecordedRun, wanted: int | None) -> Sequence[int]:
    return (run.folder.processes() or [0]) if wanted is None else [wanted]


def _attempted(run: RecordedRun, process: int, options: argparse.Namespace) -> int:
    try:
        run = run.listed()
        restored = run.restored(process)
        note = restored.damages.note()
        if note is not None:
            print(f"otel-goodput: {note.text}", file=sys.stderr)
        status = _recover(run, restored, process, options.exporters, again=options.again)
        return status if note is None else max(status, DAMAGED)
    except ConfigurationError:
        raise
    except Exception as error:
        why = shown(str(error) or type(error).__name__)
        print(f"otel-goodput: {_named(run, process)} cannot be recovered: {why}", file=sys.stderr)
        return 1


def _named(run: RecordedRun, process: int) -> str:
    of_several = f", process {process}" if len(run.folder.processes()) > 1 else ""
    return f"run {run.run_id!r}{of_several}"


def _recover(recorded: RecordedRun, restored: Restored, process: int, exporters: str | None, *, again: bool) -> int:
    """Export the spans that dead attempts of a process did not export, and the last metrics, and print the outcome.

    The metrics are those of the job. They are sent if spans of process 0 are: had it ended well, it would have sent
    both. With `again`, spans that were recovered before are exported again. Returns 1 if an exporter failed or none can
    be used.
    """
    run, mirror, run_id, name_of = recorded.folder, recorded.mirror, recorded.run_id, _named(recorded, process)
    if restored.attempt < 0:
        print(f"run {run_id!r}: process {process} left no journal", file=sys.stderr)
        return 1
    if run.alive(restored.attempt, process):
        print(f"{name_of}: attempt {restored.attempt + 1} is still running, so there is nothing to recover")
        return 0
    index = restored.index.successor(restored.attempt + 1)
    config = configuration.read(
        encodable(str(run.identity().get("job_name") or run_id)), run_id=run_id, exporters=exporters
    )
    # This command may run elsewhere than the job did, so the process count in its environment may be too low.
    count = max(config.process_count, process + 1)
    resource = process_resource.describe(config.job_name, run_id, restored.attempt, process, count, detect=False)
    names = resolve(config.exporters, os.environ, directory=None if mirror else run.path)
    number = numbers(names)
    incidents = [file for file in incident_files(run) if file.process == process and file.incidents]
    left_by = dict.fromkeys([*(left.attempt for left in index.unexported), *(file.attempt for file in incidents)])
    before = {attempt: run.recovered_by(attempt, process) for attempt in left_by}
    if again:
        before = dict.fromkeys(before, frozenset())
        for attempt in before:
            files.remove(run.file("recovered", attempt, process))
    elif names and before and all(number[name] in by for name in names for by in before.values()):
        print(f"{name_of}: already recovered; use --again to export the spans again")
        return 0
    described = Resource(dict(resource.attributes))
    unexported = unexported_spans(run, index, run_id, process, described, restored.attempt)
    if incidents:
        history = recorded.report(others=False, process=process).totals.history
        ends = {restored.attempt: restored.last_sign, **ends_of(history)}
        known = delivered_by(incident_files(run))
        unexported += unexported_incidents(run, incidents, known, ends, run_id, described)
    if not unexported:
        print(f"{name_of}: attempt {restored.attempt + 1} has no spans left to export")
        return 0
    context = ExporterContext(
        job_name=config.job_name,
        run_id=run_id,
        attempt=restored.attempt,
        process_index=process,
        directory=None if mirror else run.path,
        grace_period_s=config.grace_period,
    )
    metrics = None if process else last_values(recorded.report(others=False).totals, described)
    reached: set[int] = set()
    missed: set[int] = set()  # not those that cannot be used here, as `file` for a run at a URL
    for name in names:
        try:
            opened = open_exporter(name, context)
        except ExporterUnavailable as error:
            print(f"otel-goodput: {shown(str(error))}", file=sys.stderr)
            continue
        try:
            outcomes: dict[str, bool] = {}
            if opened.span_exporter is not None:
                left = [one.span for one in unexported if again or number[name] not in one.exported_by]
                done = not left or opened.span_exporter.export(left) is SpanExportResult.SUCCESS
                outcomes[f"{len(left)} spans"] = done
            if opened.metric_exporter is not None and metrics is not None:
                done = opened.metric_exporter.export(metrics) is MetricExportResult.SUCCESS
                outcomes["the last metrics"] = done
        finally:
            shut_down(opened, config.grace_period)
        for what, exported in outcomes.items():
            print(f"{name_of}: {what} {'' if exported else 'could not be '}exported through {name}")
        if outcomes:
            (reached if all(outcomes.values()) else missed).add(number[name])
    if reached:
        for attempt, earlier in before.items():
            path = run.file("recovered", attempt, process)
            record = {"at": time.time(), "spans": len(unexported), "exporters": sorted(earlier | reached)}
            files.write_privately(path, checked_json(record))
            if mirror is not None:
                mirror.put(path)
    if missed:
        print(f"{name_of}: run this command again once the exporter is reachable", file=sys.stderr)
        return 1
    if reached:
        return 0
    print(
        f"{name_of}: nothing was exported, because no exporter is configured: "
        "set OTEL_GOODPUT_EXPORTERS or pass --exporters",
        file=sys.stderr,
    )
    return 1
