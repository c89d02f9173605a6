"""Cloud Monitoring's rules: each by a series that breaks it and one that is just good enough."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.api.label_pb2 import LabelDescriptor
from google.api.metric_pb2 import MetricDescriptor
from google.api.monitored_resource_pb2 import MonitoredResource
from google.api_core.exceptions import GoogleAPICallError
from google.cloud.monitoring_v3 import CreateTimeSeriesSummary, TimeSeries

from emulators.catalogue import WORKLOAD
from emulators.clients import metric_client
from emulators.descriptor_rules import DESCRIPTOR_RULES
from emulators.examples import NOW, PROJECT, at, distribution, resource, series
from emulators.google import GoogleEmulator
from emulators.metric_rules import BATCH_RULES, PARTIAL_RULES, SERIES_RULES

GOODPUT_TIME = "compute.googleapis.com/workload/goodput_time"


@pytest.fixture
def google() -> Iterator[GoogleEmulator]:
    with GoogleEmulator(now=lambda: NOW, span_quota=2) as emulator:
        yield emulator


@dataclass(frozen=True)
class Row:
    """A rule; a series that breaks it, and one that does not; what was written before; whether the neighbours stay."""

    rule: str
    bad: TimeSeries
    good: TimeSeries
    before: tuple[TimeSeries, ...] = ()
    partial: bool = True
    code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT


ROWS = [
    Row("mon.points", series(points=2), series(), partial=False),
    Row(
        "mon.metric_type",
        series(metric="custom.googleapis.com/"),
        series(metric="custom.googleapis.com/a/b.c_d-e"),
        partial=False,
    ),
    Row("mon.metric_type", series(metric="step"), series(metric="workload.googleapis.com/s"), partial=False),
    Row(
        "mon.metric_type",
        series(metric="workload.googleapis.com/步"),
        series(metric="external.googleapis.com/s"),
        partial=False,
    ),
    Row(
        "mon.domain",
        series(metric="compute.googleapis.com/instance/cpu"),
        series(),
        partial=False,
        code=grpc.StatusCode.PERMISSION_DENIED,
    ),
    Row("mon.end_time", series(end=-25 * 3600 - 1), series(end=-25 * 3600), partial=False),
    Row("mon.end_time", series(end=301), series(end=300), partial=False),
    Row(
        "mon.interval_gauge", series(end=0, start=-1, kind="GAUGE"), series(end=0, start=0, kind="GAUGE"), partial=False
    ),
    Row("mon.interval_cumulative", series(end=0, start=0), series(end=0, start=-0.001), partial=False),
    Row("mon.interval_cumulative", series(kind="CUMULATIVE"), series(end=0, start=-9), partial=False),
    Row("mon.duplicate", series(metric="custom.googleapis.com/neighbour"), series(k="v")),
    Row("mon.order", series(end=-1), series(end=5), before=(series(end=0),)),
    Row("mon.order", series(end=0), series(end=5), before=(series(end=0),)),
    Row("mon.order", series(1, end=0, start=-21), series(2, end=0, start=-20), before=(series(1, end=-10, start=-20),)),
    Row(
        "mon.reset_start",
        series(1, end=0, start=-10),
        series(1, end=0, start=-9.999),
        before=(series(3, end=-10, start=-20),),
    ),
    Row("mon.sampling", series(end=4.999), series(end=5), before=(series(end=0),)),
    Row("mon.kind", series(1.0, start=-1), series(1.0, end=5), before=(series(1.0),)),
    Row("mon.kind", series(1.0, start=-1, kind="DELTA"), series(1.0)),
    Row("mon.value_type", series(1.5, end=5), series(2, end=5), before=(series(1),)),
    Row("mon.value_type", series(1, value_type="DOUBLE"), series(1.0, value_type="DOUBLE")),
    Row("mon.value", series(None), series(0.0)),
    Row("mon.value", series(float("nan")), series(0)),
    Row("mon.value", series(float("inf")), series(-1.0)),
    Row("mon.value", series("text"), series(True)),
    Row(
        "mon.distribution", series(distribution([1, 1], [0], 3), start=-1), series(distribution([1, 1], [0]), start=-1)
    ),
    Row(
        "mon.distribution",
        series(distribution([1, 1, 0], [1, 1]), start=-1),
        series(distribution([1, 1, 0], [1, 2]), start=-1),
    ),
    Row(
        "mon.distribution",
        series(distribution([1], range(200)), start=-1),
        series(distribution([1], range(199)), start=-1),
    ),
    Row(
        "mon.labels",
        series(**{f"k{number}": "" for number in range(31)}),
        series(**{f"k{number}": "" for number in range(30)}),
    ),
    Row("mon.labels", series(**{"k" * 101: ""}), series(**{"k" * 100: ""})),
    Row("mon.labels", series(k="值" * 1025), series(k="值" * 1024)),
    Row("mon.labels", series(**{"a.b": ""}), series(a_b="")),
    Row(
        "mon.label_unknown",
        series(metric=GOODPUT_TIME, of=resource(WORKLOAD), rank="1"),
        series(metric=GOODPUT_TIME, of=resource(WORKLOAD), goodput_source="TOTAL", cluster_name="c"),
    ),
    Row("mon.resource_type", series(of=MonitoredResource()), series()),
    Row(
        "mon.resource_labels",
        series(of=MonitoredResource(type="gce_instance", labels={"zone": "us-central1-a"})),
        series(of=resource("gce_instance")),
    ),
    Row(
        "mon.resource_label_unknown",
        series(of=resource("gce_instance", rank="1")),
        series(of=resource("gce_instance", project_id="test-project")),
    ),
    Row(
        "mon.location",
        series(of=resource("generic_task", location="")),
        series(of=resource("generic_task", location="global")),
    ),
    Row(
        "mon.location",
        series(of=resource("gce_instance", zone="mars")),
        series(of=resource("gce_instance", zone="us-south1-ai1b")),
    ),
    Row("mon.resource_for_metric", series(of=resource(WORKLOAD)), series(of=resource("generic_task"))),
    Row("mon.resource_for_metric", series(metric=GOODPUT_TIME), series(metric=GOODPUT_TIME, of=resource(WORKLOAD))),
    Row(
        "mon.resource_for_metric",
        series(metric="prometheus.googleapis.com/m/gauge"),
        series(metric="prometheus.googleapis.com/m/gauge", of=resource("prometheus_target")),
    ),
]
NEIGHBOUR = series(metric="custom.googleapis.com/neighbour")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.rule)
def test_a_bad_series_is_refused(google: GoogleEmulator, row: Row) -> None:
    with metric_client(google.endpoint) as client:
        for earlier in row.before:
            client.create_time_series(name=PROJECT, time_series=[earlier])
        with pytest.raises(GoogleAPICallError) as caught:
            client.create_time_series(name=PROJECT, time_series=[NEIGHBOUR, row.bad])
    assert caught.value.grpc_status_code is row.code
    assert [refusal.rule for refusal in google.refusals] == [row.rule]
    written = [key.type for key, points in google.series.items() for _ in points]
    assert len(written) == len(row.before) + row.partial
    if row.partial:
        summary = next(CreateTimeSeriesSummary.deserialize(detail.value) for detail in caught.value.details)
        assert (summary.total_point_count, summary.success_point_count) == (2, 1)
        assert [error.point_count for error in summary.errors] == [1]
        assert re.fullmatch(
            r"One or more TimeSeries could not be written: .+: [\w./]*\{.*\} timeSeries\[1\]: [\w./]+\{.*(\}|\.{3})",
            caught.value.message,
        )
    else:
        assert "timeSeries[1]" in caught.value.message or row.code is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.rule)
def test_a_good_series_is_written(google: GoogleEmulator, row: Row) -> None:
    with metric_client(google.endpoint) as client:
        for one in (*row.before, NEIGHBOUR, row.good):
            client.create_time_series(name=PROJECT, time_series=[one])
    assert google.refusals == google.notes == []
    assert sum(map(len, google.series.values())) == len(row.before) + 2


def test_a_request_holds_so_many_series(google: GoogleEmulator) -> None:
    many = [series(rank=str(number)) for number in range(201)]
    with metric_client(google.endpoint) as client:
        with pytest.raises(GoogleAPICallError):
            client.create_time_series(name=PROJECT, time_series=many)
        assert google.series == {}
        client.create_time_series(name=PROJECT, time_series=many[:200])
    assert [refusal.rule for refusal in google.refusals] == ["mon.batch"]
    assert len(google.series) == 200


def test_what_is_odd_but_taken_is_noted(google: GoogleEmulator) -> None:
    with metric_client(google.endpoint) as client:
        client.create_time_series(name=PROJECT, time_series=[series(5, start=-20, end=-10)])
        client.create_time_series(name=PROJECT, time_series=[series(4, start=-20, end=0)])
        client.create_time_series(name=PROJECT, time_series=[series(1, start=1, end=10, rank="1")])
    assert [note.rule for note in google.notes] == ["mon.decrease", "mon.label_unknown"]
    assert [label.key for label in google.descriptors["custom.googleapis.com/m"].labels] == ["rank"]
    assert google.refusals == []


def test_refusals_name_the_reason_and_the_resource(google: GoogleEmulator) -> None:
    """The others are written, and the answer says which were not."""
    task = resource("generic_task", task_id="7")
    mixed = [series(rank=str(number)) for number in range(7)]
    mixed[0], mixed[2], mixed[3] = (series(float("nan"), rank=str(number)) for number in (0, 2, 3))
    mixed[5] = series(float("nan"), of=task)
    with metric_client(google.endpoint) as client, pytest.raises(GoogleAPICallError) as caught:
        client.create_time_series(name=PROJECT, time_series=mixed)
    assert caught.value.message == (
        "One or more TimeSeries could not be written: "
        "The value nan is not finite.: global{project_id:test-project} timeSeries[0,2-3]: "
        "custom.googleapis.com/m{rank:0}; "
        "The value nan is not finite.: generic_task{job:j,location:us-central1-a,namespace:,task_id:7} timeSeries[5]: "
        "custom.googleapis.com/m{}"
    )
    summary = CreateTimeSeriesSummary.deserialize(caught.value.details[0].value)
    assert (summary.total_point_count, summary.success_point_count) == (7, 3)
    assert [(error.status.code, error.point_count) for error in summary.errors] == [(3, 3), (3, 1)]
    assert {dict(key.labels)["rank"] for key in google.series} == {"1", "4", "6"}


def test_an_answer_fits_into_its_headers(google: GoogleEmulator) -> None:
    """However much there is to say."""
    bad = [series(of=resource("generic_task", task_id=str(number)), k="值" * 1025) for number in range(200)]
    with metric_client(google.endpoint) as client:
        for _ in range(5):  # gRPC throws away by chance what is between its two limits
            with pytest.raises(GoogleAPICallError, match="One or more TimeSeries could not be written") as caught:
                client.create_time_series(name=PROJECT, time_series=bad)
            summary = CreateTimeSeriesSummary.deserialize(caught.value.details[0].value)
            assert (summary.total_point_count, summary.success_point_count) == (200, 0)


def test_googles_own_series_are_there_from_the_beginning(google: GoogleEmulator) -> None:
    names = {
        *("goodput_time", "badput_time", "total_elapsed_time", "disruptions", "max_productive_steps"),
        *("step_time_deviation", "performance", "interval_goodput", "interval_badput"),
        *("stepping_slice_efficiency", "available_slice_efficiency"),
    }
    with metric_client(google.endpoint) as client:
        descriptors = list(client.list_metric_descriptors(name=PROJECT))
        one = client.get_metric_descriptor(name=f"{PROJECT}/metricDescriptors/{GOODPUT_TIME}")
    assert {descriptor.type.removeprefix("compute.googleapis.com/workload/") for descriptor in descriptors} == names
    assert {label.key for label in one.labels} == {"goodput_source", "accelerator_type", "cluster_name"}
    assert (one.metric_kind, one.value_type) == (MetricDescriptor.GAUGE, MetricDescriptor.DOUBLE)


def descriptor(*keys: str, **fields: Any) -> MetricDescriptor:
    whole = {"type": "custom.googleapis.com/d", "metric_kind": "GAUGE", "value_type": "DOUBLE"} | fields
    return MetricDescriptor(labels=[LabelDescriptor(key=key) for key in keys], **whole)


# A rule, what breaks it, and its code.
DESCRIPTORS = [
    ("mon.metric_type", descriptor(type="custom.googleapis.com"), "INVALID_ARGUMENT"),
    ("mon.domain", descriptor(type=GOODPUT_TIME), "PERMISSION_DENIED"),
    ("mon.desc_kind", descriptor(metric_kind="DELTA"), "INVALID_ARGUMENT"),
    ("mon.desc_kind", descriptor(metric_kind="METRIC_KIND_UNSPECIFIED"), "INVALID_ARGUMENT"),
    ("mon.desc_kind", descriptor(value_type="VALUE_TYPE_UNSPECIFIED"), "INVALID_ARGUMENT"),
    ("mon.desc_kind", descriptor(metric_kind="CUMULATIVE", value_type="BOOL"), "INVALID_ARGUMENT"),
    ("mon.desc_labels", descriptor("a", "a"), "INVALID_ARGUMENT"),
    ("mon.desc_labels", descriptor("阶段"), "INVALID_ARGUMENT"),
    ("mon.desc_labels", descriptor("a.b"), "INVALID_ARGUMENT"),
    ("mon.desc_labels", descriptor("k" * 101), "INVALID_ARGUMENT"),
    ("mon.desc_labels", descriptor(*(f"k{number}" for number in range(31))), "INVALID_ARGUMENT"),
    ("mon.desc_exists", descriptor(value_type="INT64"), "ALREADY_EXISTS"),
    ("mon.desc_exists", descriptor(metric_kind="CUMULATIVE"), "ALREADY_EXISTS"),
]


@pytest.mark.parametrize(("rule", "bad", "code"), DESCRIPTORS, ids=lambda value: value if type(value) is str else "")
def test_a_bad_descriptor_is_refused(google: GoogleEmulator, rule: str, bad: MetricDescriptor, code: str) -> None:
    with metric_client(google.endpoint) as client:
        client.create_metric_descriptor(name=PROJECT, metric_descriptor=descriptor("a"))
        with pytest.raises(GoogleAPICallError) as caught:
            client.create_metric_descriptor(name=PROJECT, metric_descriptor=bad)
    assert caught.value.grpc_status_code is grpc.StatusCode[code]
    assert [refusal.rule for refusal in google.refusals] == [rule]


def test_labels_of_a_descriptor_must_be_strings(google: GoogleEmulator) -> None:
    label = LabelDescriptor(key="a", value_type=LabelDescriptor.ValueType.INT64)
    bad = descriptor()
    bad.labels.append(label)
    with metric_client(google.endpoint) as client, pytest.raises(GoogleAPICallError):
        client.create_metric_descriptor(name=PROJECT, metric_descriptor=bad)
    assert [refusal.rule for refusal in google.refusals] == ["mon.desc_labels"]


def test_a_descriptor_made_again_keeps_its_labels_and_gets_the_new(google: GoogleEmulator) -> None:
    with metric_client(google.endpoint) as client:
        client.create_metric_descriptor(name=PROJECT, metric_descriptor=descriptor("a"))
        made = client.create_metric_descriptor(name=PROJECT, metric_descriptor=descriptor("b"))
        client.create_time_series(name=PROJECT, time_series=[series(1.0, metric="custom.googleapis.com/d", a="", b="")])
        with pytest.raises(GoogleAPICallError):  # what the descriptor fixed binds the series
            client.create_time_series(name=PROJECT, time_series=[series(1, end=9, metric="custom.googleapis.com/d")])
    assert [label.key for label in made.labels] == ["a", "b"]
    assert [refusal.rule for refusal in google.refusals] == ["mon.value_type"]
    assert google.notes == []


def test_series_are_listed_by_filter_and_interval(google: GoogleEmulator) -> None:
    interval = {"start_time": at(-10), "end_time": at(10)}
    with metric_client(google.endpoint) as client:
        for end in (-10, 0, 10):
            client.create_time_series(name=PROJECT, time_series=[series(end, end=end, rank="0")])
        client.create_time_series(name=PROJECT, time_series=[series(7, rank="1")])

        def listed(text: str) -> list[list[int]]:
            arguments = {"name": PROJECT, "filter": text, "interval": interval, "view": "FULL"}
            return [[point.value.int64_value for point in one.points] for one in client.list_time_series(arguments)]

        assert listed('metric.type = "custom.googleapis.com/m"') == [[10, 0], [7]]
        assert listed('metric.type = starts_with("custom") AND metric.labels.rank = "1"') == [[7]]
        assert listed('resource.type = "gce_instance"') == []
        with pytest.raises(GoogleAPICallError, match="filter"):
            listed("metric.type != 1")


def test_every_rule_is_shown() -> None:
    tables = (*BATCH_RULES, *SERIES_RULES, *PARTIAL_RULES, *DESCRIPTOR_RULES)
    shown = {row.rule for row in ROWS} | {rule for rule, _, _ in DESCRIPTORS} | {"mon.batch", "mon.decrease"}
    assert {rule.name for rule in tables} == shown
