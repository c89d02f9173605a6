"""The tables of a document that tell a run span by span, and what the spans say beside their times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from otel_goodput import semconv
from otel_goodput._accounting.overview import NOT_KNOWN
from otel_goodput._viewer.columns import Columns, Table
from otel_goodput._viewer.words import Names, Redaction
from otel_goodput.reports.detail import IN_TRACE, Detail
from otel_goodput.reports.exported import Exported

STEPS: Final = (
    "attempt", "number", "start", "wall", "net", "device_begin", "device_end", "fate", "clock", "flags",
    "given",
)  # fmt: skip
PHASES: Final = ("attempt", "phase", "name", "start", "wall", "step", "flags", "parent")
_LOW: Final = (1 << 64) - 1
_OVER_OTLP: Final = "gcp-otlp"
_GOOGLE: Final = ("gcp", _OVER_OTLP)  # exporters that send spans to Cloud Trace
_EXPLORER: Final = "https://console.cloud.google.com/traces/explorer;traceId={trace};spanId={span}?project="
_PROJECT: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-.:")  # letters of a project's id


class Tables(NamedTuple):
    """Tables as the document has them; `owners` is None where the owner of some moments is not known.

    `trace_ids`: traces of the spans that are not in that of their attempt's job, by span id; 0 where it is not known.
    """

    steps: Table
    phases: Table
    step_ids: Table
    phase_ids: Table
    trace_ids: Table
    device: Table
    owners: Table | None


def tables(
    detail: Detail,
    columns: Columns,
    names: Names,
    at: Callable[[int], int],
    traces: Mapping[int, int],
    *,
    whole: bool,
) -> Tables:
    """Return the tables of a detail.

    Args:
        names: takes the names of phases.
        at: returns a moment as the document has it.
        traces: those of spans that are not in that of their attempt's job, by span id.
        whole: the detail tells all of the run, so that the owner of each moment is known.
    """
    rows = {(one.attempt, one.key): row for row, one in enumerate(detail.phases)}
    steps = [
        (
            one.attempt, one.number, at(one.begin), NOT_KNOWN if one.end == NOT_KNOWN else one.end - one.begin,
            one.net, at(one.device_begin), at(one.device_end), one.fate, one.clock, one.flags,
            one.given,
        )
        for one in detail.steps
    ]  # fmt: skip
    phases = [
        (
            one.attempt, one.phase, names.number(one.name), at(one.begin),
            NOT_KNOWN if one.end == NOT_KNOWN else one.end - one.begin, one.step, one.flags,
            rows.get((one.attempt, one.parent), -1),
        )
        for one in detail.phases
    ]  # fmt: skip
    return Tables(
        steps=columns.table(STEPS, steps),
        phases=columns.table(PHASES, phases),
        step_ids=_ids(detail.steps, columns),
        phase_ids=_ids(detail.phases, columns),
        trace_ids={
            "rows": len(traces),
            "columns": {
                "ids": columns.ids(list(traces)),
                "high": columns.ids([trace >> 64 for trace in traces.values()]),
                "low": columns.ids([trace & _LOW for trace in traces.values()]),
            },
        },
        device=columns.table(
            ("begin", "end", "owner"), [(at(begin), at(end), owner) for begin, end, owner in detail.work]
        ),
        owners=owners(detail, columns, at) if whole else None,
    )


def owners(detail: Detail, columns: Columns, at: Callable[[int], int]) -> Table:
    """Return whose each moment is that a detail tells, in order; `at` as of :func:`tables`."""
    told = [(at(begin), end - begin, category) for begin, end, category in detail.owners]
    return columns.table(("begin", "length", "category"), told)


def _ids(spans: Sequence[Any], columns: Columns) -> Table:
    exported = [(row, one.key) for row, one in enumerate(spans) if one.flags & IN_TRACE]
    return {
        "rows": len(exported),
        "columns": {
            "rows": columns.integers([row for row, _ in exported]),
            "ids": columns.ids([key for _, key in exported]),
        },
    }


def attributes(found: Exported, columns: Columns, redacted: Redaction, at: Callable[[int], int]) -> dict[str, Any]:
    """Return what exported spans say: their ids, and for each [name, value, name, value, …], names by number.

    Of spans with events, a status or a text of it, these stand by the row of the span.
    """
    keys: dict[str, int] = {}
    told: list[list[Any]] = []
    more: dict[str, Any] = {}
    for row, one in enumerate(found.spans.values()):
        pairs: list[Any] = []
        for name, value in redacted.attributes(one.attributes).items():
            pairs += (keys.setdefault(name, len(keys)), value)
        told.append(pairs)
        if one.notable:
            more[str(row)] = {
                "status": one.status,
                "message": redacted(one.message),
                "events": [
                    {"time": at(time), "name": redacted(name), "attributes": redacted.attributes(held)}
                    for time, name, held in one.events
                ],
            }
    return {
        "rows": len(told),
        "columns": {"ids": columns.ids(list(found.spans))},
        "names": list(keys),
        "told": told,
        "more": more,
        "left_out": found.left_out,
        "text": redacted(found.text),
    }


def cloud_trace(facts: Mapping[str, Any] | None) -> str | None:
    """Return the address of a span in Cloud Trace, with ``{trace}`` and ``{span}``; None if none was sent there.

    `facts` are those of an attempt.
    """
    if not facts:
        return None
    opened = facts["exporters"]
    told = [(name, opened[name]) for name in _GOOGLE if opened.get(name)]
    if not told:
        return None
    name, project = told[0]
    if name == _OVER_OTLP:  # the Telemetry API goes by the resource
        project = facts["resource"].get(semconv.GCP_PROJECT_ID) or project
    if not isinstance(project, str) or not project or not _PROJECT.issuperset(project):
        return None
    return _EXPLORER + project
