"""What arrived at Google, held against what a job says of itself."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from crash.exported import Span, check_tree
from emulators.google import GoogleEmulator
from emulators.records import Point, SeriesKey

from otel_goodput import semconv
from otel_goodput._metrics import workload_series
from otel_goodput._recording import ids

from .training import OPTIONS, Account

CUSTOM = "workload.googleapis.com/"
WORKLOAD = "compute.googleapis.com/workload/"
TRACES = 10  # of one attempt, at most
Labels = frozenset[tuple[str, str]]
Values = dict[tuple[str, Labels], float]


# --- spans ------------------------------------------------------------------------------------------------------------


def cloud_spans(google: GoogleEmulator) -> list[Span]:
    """The spans of Cloud Trace. Attributes of the resource are among their own there."""
    return [_cloud_span(span) for span in google.spans]


def _cloud_span(span: Any) -> Span:
    attributes = {key: _plain(value) for key, value in span.attributes.attribute_map.items()}
    links = tuple((link.trace_id, link.span_id) for link in span.links.link)
    start, end = (moment.ToNanoseconds() for moment in (span.start_time, span.end_time))
    own = {key: value for key, value in attributes.items() if not key.startswith(("service.", "goodput.run.", "host."))}
    return Span(
        span.name.split("/")[3], span.span_id, span.parent_span_id, _name(span, own), start, end, own, links,
        span.status.code, {semconv.ATTEMPT: int(attributes[semconv.ATTEMPT])},
    )  # fmt: skip


def _name(span: Any, attributes: dict[str, Any]) -> str:
    """The span's own, without the number that Cloud Trace shows behind it."""
    shown: str = span.display_name.value
    return shown.removesuffix(f" {attributes.get(semconv.GOODPUT_STEP)}")


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return value.string_value.value if kind == "string_value" else getattr(value, kind)


def otlp_spans(google: GoogleEmulator, run: str, attempts: int = 1) -> list[Span]:
    """The spans of the Telemetry API, where the emulator keeps no resource: the trace tells the attempt."""
    traces = {
        f"{ids.trace_root_context(run, attempt, number).trace_id:032x}": {semconv.ATTEMPT: attempt}
        for attempt in range(attempts)
        for number in range(TRACES)
    }
    return [otlp_span(span, traces[span.trace_id.hex()]) for span in google.otlp_spans]


def otlp_span(span: Any, resource: dict[str, Any]) -> Span:
    """One of OTLP's messages, under a resource with these attributes."""
    attributes = {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}
    links = tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links)
    return Span(
        span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), span.name, span.start_time_unix_nano,
        span.end_time_unix_nano, attributes, links, span.status.code, resource,
    )  # fmt: skip


def check_whole(spans: Iterable[Span], steps: int = 2 * OPTIONS["steps"], processes: int = 1) -> None:
    """The spans are those of whole attempts of ``training`` with so many steps, each of them once."""
    spans = list(spans)
    assert len(check_tree(spans)) == len(spans)
    by_attempt: dict[str, list[Span]] = {}
    for span in spans:
        by_attempt.setdefault(span.trace, []).append(span)
    for of_attempt in by_attempt.values():
        names = Counter(span.name for span in of_attempt)
        once = {"job": 1, "accelerator_init": 1, "training_prep": 1, "eval": 2, "data_loading": steps, "step": steps}
        assert names == {"attempt": 1, **{name: count * processes for name, count in once.items()}}
        numbers = sorted(span.attributes[semconv.GOODPUT_STEP] for span in of_attempt if span.name == "step")
        assert numbers == sorted([*range(steps)] * processes)


# --- series -----------------------------------------------------------------------------------------------------------


def differences(
    google: GoogleEmulator, account: Account, job: str = "llama", attempt: int = 0, process: int = 0, run: str = ""
) -> list[str]:
    """Where the last value of a series is not the process's own."""
    gcp = last(google.series, CUSTOM, {("job", job), ("task_id", str(process))})
    otlp = last(google.otlp_series, "", {("job", job)}, f"/{attempt}/{process}@")
    workload = last(google.series, WORKLOAD, {("workload_id", run or job), ("replica_id", str(process))})
    return [
        *(f"gcp: {one}" for one in missed(gcp, expected(account))),
        *(f"gcp-otlp: {one}" for one in missed(otlp, expected(account))),
        *(f"workload: {one}" for one in missed(workload, _expected_workload(account))),
    ]


def missed(stored: Values, expected: Iterable[tuple[tuple[str, Labels], float]]) -> Iterator[str]:
    """Where a stored value is not what it should be; one by one."""
    assert stored, "nothing is stored"
    for key, value in expected:
        stored_value = stored.get(key)
        if stored_value is None or not math.isclose(stored_value, value, rel_tol=1e-12):
            yield f"{key} is {stored_value}, should be {value}"


def last(
    series: dict[SeriesKey, list[Point]], prefix: str, resource: set[tuple[str, str]], instance: str = ""
) -> Values:
    """Last values, of distributions how many values they hold; the keys of labels as Cloud Monitoring has them.

    `instance` is a part of what the resource is told apart by.
    """
    return {
        (key.type.removeprefix(prefix), _labels(key.labels)): getattr(points[-1].value, "count", points[-1].value)
        for key, points in series.items()
        if key.type.startswith(prefix)
        and resource <= key.resource_labels
        and any(instance in value for _, value in key.resource_labels)
    }


def _labels(pairs: Iterable[tuple[str, str]]) -> Labels:
    return frozenset((key.replace(".", "_"), value) for key, value in pairs if key != workload_series.ACCELERATOR_TYPE)


def expected(account: Account) -> Iterator[tuple[tuple[str, Labels], float]]:
    for metric, rows in account.items():
        for value, attributes in rows:
            yield (metric, _labels(attributes.items())), value


def _expected_workload(account: Account) -> Iterator[tuple[tuple[str, Labels], float]]:
    """What Google's goodput series must say, from the same account."""
    spent: Counter[str] = Counter()
    productive = 0.0
    for seconds, attributes in account[semconv.TIME.name]:
        category, name = attributes[semconv.GOODPUT_CATEGORY], attributes[semconv.GOODPUT_CUSTOM_NAME]
        if category == semconv.Category.PRODUCTIVE:
            productive = seconds
        else:
            spent[workload_series.BADPUT_SOURCES[category] + (f".{name.upper()}" if name else "")] += seconds
    window = {"window_type": "cumulative"}
    yield ("goodput_time", _labels({"goodput_source": "TOTAL"}.items())), productive
    yield ("total_elapsed_time", _labels(window.items())), math.fsum(value for value, _ in account[semconv.TIME.name])
    for source, seconds in spent.items():
        yield ("badput_time", _labels({"badput_source": source}.items())), seconds
    yield ("disruptions", _labels(window.items())), sum(value for value, _ in account[semconv.DISRUPTIONS.name])
    for series, metric in (
        ("max_productive_steps", semconv.STEP_MAX),
        ("step_time_deviation", semconv.STEP_DEVIATION),
        ("performance", semconv.STEP_IDEAL),
    ):
        yield (series, frozenset()), account[metric.name][0][0]
