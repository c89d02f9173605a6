"""Time series into a book: the rules held against each, the good ones written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.api.label_pb2 import LabelDescriptor
from google.api.metric_pb2 import MetricDescriptor
from google.cloud.monitoring_v3 import CreateTimeSeriesSummary

from emulators.metric_rules import BATCH_RULES, PARTIAL_RULES, SERIES_RULES, BatchCase
from emulators.records import Point, Records, Refused, SeriesBook, SeriesKey, shortened
from emulators.series_case import SeriesCase, braced, called, key_of, value_of

MOST_ERRORS = 5  # in a summary


def write_series(records: Records, book: SeriesBook, series: Sequence[Any], project: str, now: int) -> None:
    """Write what may be written. Raises Refused where anything was not."""
    refused = records.refuse(BATCH_RULES, BatchCase(len(series)), f"{len(series)} series")
    if refused is not None:
        raise refused
    cases = [_case(book, index, one, set(), now) for index, one in enumerate(series)]
    whole = [error for case in cases if (error := records.refuse(SERIES_RULES, case, called(case.series)))]
    if whole:
        raise whole[0]
    seen: set[SeriesKey] = set()
    bad: list[tuple[SeriesCase, Refused]] = []
    for index, one in enumerate(series):
        # Looked up anew: a descriptor may come from a series before it in the same request.
        case = _case(book, index, one, seen, now)
        error = records.denied.get(case.type.rpartition("/")[2]) or records.refuse(PARTIAL_RULES, case, called(one))
        if error is None:
            records.note(PARTIAL_RULES, case, called(one))
            _write(book, case, project)
        else:
            bad.append((case, error))
        seen.add(key_of(one))
    if bad:
        raise _partly(bad, len(series))


def _case(book: SeriesBook, index: int, series: Any, seen: set[SeriesKey], now: int) -> SeriesCase:
    key = key_of(series)
    points = book.series.get(key)
    return SeriesCase(
        index, series, book.descriptors.get(series.metric.type), points[-1] if points else None, key in seen, now
    )


def _write(book: SeriesBook, case: SeriesCase, project: str) -> None:
    point = Point(case.start, case.end, value_of(case.value), case.now)
    book.series.setdefault(key_of(case.series), []).append(point)
    descriptor = book.descriptors.get(case.type)
    if descriptor is None:  # the first write of a metric fixes what it is
        descriptor = book.descriptors[case.type] = MetricDescriptor(
            name=f"projects/{project}/metricDescriptors/{case.type}",
            type=case.type,
            metric_kind=case.kind,
            value_type=case.value_type,
            unit=case.series.unit,
            description=case.series.description,
        )
    add_labels(descriptor, case.series.metric.labels)


def add_labels(descriptor: MetricDescriptor, keys: Any) -> None:
    known = {label.key for label in descriptor.labels}
    descriptor.labels.extend(LabelDescriptor(key=key) for key in keys if key not in known)


def _partly(bad: list[tuple[SeriesCase, Refused]], total: int) -> Refused:
    """Google's answer when the good were written and the bad were not."""
    groups: dict[tuple[str, str], list[SeriesCase]] = {}
    for case, error in bad:
        resource = f"{case.series.resource.type}{braced(case.series.resource.labels)}"
        groups.setdefault((error.text, resource), []).append(case)
    parts = [
        f"{text}: {resource} timeSeries[{_ranges([case.position for case in cases])}]: {called(cases[0].series)}"
        for (text, resource), cases in groups.items()
    ]
    summary = CreateTimeSeriesSummary.pb()(total_point_count=total, success_point_count=total - len(bad))
    code = bad[0][1].code
    for (text, _), cases in list(groups.items())[:MOST_ERRORS]:
        noted = summary.errors.add(point_count=len(cases))
        noted.status.code, noted.status.message = code.value[0], shortened(text, 200)
    return Refused(code, f"One or more TimeSeries could not be written: {'; '.join(parts)}", summary)


def _ranges(numbers: list[int]) -> str:
    """`0,3-5` for 0, 3, 4, 5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
