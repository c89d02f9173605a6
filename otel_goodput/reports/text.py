"""A report as text: the figures, notes on them, and a closing sentence on the largest loss."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final

from otel_goodput._text.quantities import format_duration, format_moment, percent, plural
from otel_goodput._text.redact import shown
from otel_goodput._timeline.run_state import RUNNING
from otel_goodput.reports import sections
from otel_goodput.reports.advice import sentence

_COLUMNS: Final = 100
_RATIOS: Final = {
    "scheduling_goodput": "scheduling goodput",
    "program_goodput": "program goodput (MFU)",
    "productivity_goodput": "ML productivity goodput",
}


def render(report: Mapping[str, Any]) -> str:
    """Return the text of a report (as JSON)."""
    return "".join(f"{shown(line)}\n" for line in _lines(report))


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    elapsed = report["elapsed_s"]
    yield title(report)
    yield from sections.end(report)
    if not elapsed:
        yield "  no job has started yet: nothing to account for"
        yield from _warnings(report)
        return
    yield ""
    yield f"  goodput {_goodput(report)}"
    for name, words in _RATIOS.items():
        if report.get(name) is not None:
            yield f"  {words} {report[name] * 100:.1f} %"
    if report["excluded_s"]:
        yield f"  {format_duration(report['excluded_s'])} excluded, not counted"
    if report["suspended_s"]:
        yield f"  {format_duration(report['suspended_s'])} suspended, not counted"
    yield from _warnings(report)
    yield ""
    yield from sections.table(report["seconds"], elapsed, shares=report["goodput"] is not None)
    if report["overlapped_data_loading_s"]:
        beside = format_duration(report["overlapped_data_loading_s"])
        yield f"  in parallel: another {beside} of data loading overlapped with steps and cost no time"
    yield ""
    yield from sections.steps(report)
    yield from sections.disruptions(report)
    yield from sections.processes(report)
    yield from sections.checkpoints(report)
    yield from sections.scheduling(report)
    yield from sections.compile_cache(report)
    for window in report["windows"]:
        yield from sections.window(window)
    yield ""
    yield f"  {sentence(report)}"


def headline(report: Mapping[str, Any]) -> str:
    """Return the title and the goodput in one line."""
    return f"{title(report)}: {_goodput(report)}" if report["elapsed_s"] else title(report)


def _goodput(report: Mapping[str, Any]) -> str:
    elapsed = report["elapsed_s"]
    if report["goodput"] is None:
        return f"{report.get('reason') or 'not known'}; elapsed time {format_duration(elapsed)}"
    return f"{percent(report['goodput'] * elapsed, elapsed)} of {format_duration(elapsed)}"


def title(report: Mapping[str, Any]) -> str:
    """Return the title of a report: job, run, number of attempts, start and state."""
    name = report.get("job_name") or report.get("run_id") or "timeline"
    parts = [f"Goodput of {name}"]
    if report.get("run_id") and report["run_id"] != name:
        parts.append(f"run {report['run_id']}")
    if report["attempts"]:
        parts.append(plural(report["attempts"], "attempt"))
    if report.get("started_at"):
        parts.append(f"since {format_moment(report['started_at'])}")
    if "run_id" in report:
        parts.append(report.get("state") or RUNNING)
    elif "ended" in report:
        parts.append("ended" if report["ended"] else "not ended")
    return ", ".join(parts)


def _warnings(report: Mapping[str, Any]) -> Iterator[str]:
    for warning in report.get("warnings", ()):
        yield ""
        yield from textwrap.wrap(
            shown(warning["text"]),
            _COLUMNS,
            initial_indent="  note: ",
            subsequent_indent="        ",
            break_long_words=False,
            break_on_hyphens=False,
        )
