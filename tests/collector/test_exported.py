"""What the dashboards and alerts select is there when a job exports its metrics: names, labels and values."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from emulators.google import GoogleEmulator
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import otel_goodput
from boards import naming
from otel_goodput import semconv
from otel_goodput._accounting.incidents import STEP, Incident, Source
from otel_goodput._accounting.job import Cause
from otel_goodput._accounting.own_time import OwnTimes, OwnWindow, RankTime
from otel_goodput._accounting.rules import DATA_LOADING_TIME
from otel_goodput._accounting.stats import Pace
from otel_goodput._journal.loader_times import WorkerTimes
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.sidecars import checked_json
from otel_goodput._journal.usage_now import UsageNow
from otel_goodput._metrics.instruments import (
    register_incidents,
    register_loader,
    register_own_times,
    register_ranks,
    register_usage,
)
from otel_goodput._settings import envvars

from .written import FILES, load, selections

IN_CLOUD = [name for name in FILES if name.endswith(".json") and "grafana" not in name]
IN_PROMETHEUS = [name for name in FILES if name not in IN_CLOUD]
RESOURCE = {"job", "instance", "goodput_run_id"}  # in Prometheus: of the resource, or made of it
PARTS = ("", "_count", "_bucket")
OF_PROMQL = {"goodput_run_id", "le"}  # labels that a query makes, and that a distribution has in PromQL
ONE_AT_A_TIME = {
    semconv.GOODPUT_CLOCK_STATE,
    naming.label(semconv.GOODPUT_CLOCK_STATE),
}  # Labels of which a job has one value, never all.

Series = dict[str, list[tuple[str, dict[str, str]]]]  # by metric: the resource's type, and all the labels


@contextmanager
def trained(directory: Path, **settings: Any) -> Iterator[None]:
    """A job that has a bit of everything, and that is over but not closed."""
    for _ in range(2):  # it is restarted
        with (
            otel_goodput.Recorder("job", directory=directory, run_id="run-7", exporters="none") as before,
            before.job(),
        ):
            pass
    recorder = otel_goodput.Recorder(
        "job", directory=directory, run_id="run-7", submitted_at=1e9, flops_per_step=1e6, peak_flops=1e12,
        process_count=2, objective=0.9, **settings,
    )  # fmt: skip
    other = Pace(1, time.time_ns(), 20, 10**6, 10**6, 0)
    pace = RunDirectory(directory / recorder.run_id).file("pace", 1)
    pace.write_bytes(checked_json({"attempt": recorder.attempt, **other._asdict()}))
    assert recorder.tracer is not None
    recorder.tracer.hooks.compile_cache.use()
    meter = recorder.meter_provider.get_meter(semconv.SCOPE_NAME)
    kinds = enumerate(semconv.INCIDENT_KINDS)
    incidents = [Incident(number, kind, Source(STEP, rank=5), 1, 2, line="a.py:1") for number, kind in kinds]
    register_incidents(meter, lambda: incidents)
    window = OwnWindow(0, 1, 1, 2, 1, 1, 1, (5,), (RankTime(5, 2, 0),))
    register_own_times(meter, lambda: OwnTimes(windows=(window,)))
    register_ranks(meter, lambda: {Cause(5, DATA_LOADING_TIME, ""): 10**10, Cause(6, DATA_LOADING_TIME, ""): 1})
    stages = tuple(range(1, 1 + len(semconv.LOADER_STAGES)))
    register_loader(meter, lambda: [WorkerTimes(0, 1, stages, stages)])
    register_usage(meter, lambda: {0: ("", UsageNow(*[1] * len(UsageNow._fields)))})
    recorder.tracer.hooks.waits = dict.fromkeys(semconv.SCHEDULING_STAGES, 10**9)
    with recorder.job():
        recorder.slice_counts(1, 1, 1)
        numbers = (*range(12), *range(8, 12))  # a rollback, and back again
        for number in recorder.loading(numbers, queue_depth=lambda: 3):
            with recorder.step(number), recorder.part("forward"):
                pass
        with recorder.custom("eval"):
            pass
    recorder.flush(10)
    yield
    recorder.shutdown(10)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Series:
    """As Prometheus has it, from what a reader of OpenTelemetry's collects."""
    reader = InMemoryMetricReader()
    with trained(tmp_path_factory.mktemp("run"), exporters="none", metric_readers=[reader]):
        data = reader.get_metrics_data()
    assert data is not None
    known = {metric.name: naming.prometheus_metric(metric) for metric in semconv.METRICS}
    (resource,) = (one.resource for one in data.resource_metrics)
    about = {naming.label(key): str(value) for key, value in resource.attributes.items()}
    series: Series = {"target_info": [("", about)]}
    for metric in (one for each in data.resource_metrics for scope in each.scope_metrics for one in scope.metrics):
        for point in metric.data.data_points:
            labels = {naming.label(key): str(value) for key, value in (point.attributes or {}).items()}
            for part in PARTS:
                series.setdefault(known[metric.name] + part, []).append(("", labels))
    return series


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Series]:
    """As Cloud Monitoring has it, from what the exporters for it write."""
    with GoogleEmulator() as google, pytest.MonkeyPatch.context() as patched:
        patched.setenv(envvars.OTEL_GOODPUT_GCP_ENDPOINT.name, google.endpoint)
        patched.setenv(envvars.OTEL_GOODPUT_GCP_PROJECT.name, "test-project")
        with trained(tmp_path_factory.mktemp("run"), exporters="gcp,workload,gcp-otlp"):
            pass
        series: Series = {}
        for key in google.series:
            labels = {**dict(key.labels), **dict(key.resource_labels)}
            for part in PARTS:
                series.setdefault(key.type + part, []).append((key.resource, labels))
        for key in google.target_series:
            labels = {**dict(key.labels), **dict(key.resource_labels)}
            series.setdefault(key.type, []).append((key.resource, labels))
            for part in PARTS:  # in PromQL
                series.setdefault(key.type.split("/")[1] + part, []).append(("", labels))
        yield series


def missing(name: str, series: Series, free: set[str]) -> list[Any]:
    """What a file selects and nobody has; labels that are `free` need not be there."""
    selected = list(selections(load(name)))
    assert selected
    return [
        one
        for one in selected
        if not any(
            one.resource == resource
            and {key: one.wanted[key] for key in one.wanted.keys() - free - ONE_AT_A_TIME}.items() <= labels.items()
            and one.labels - free <= labels.keys()
            for resource, labels in series.get(one.metric, [])
        )
    ]


@pytest.mark.parametrize("name", IN_PROMETHEUS)
def test_what_is_selected_is_exported(name: str, exported: Series) -> None:
    assert missing(name, exported, {*RESOURCE, "le"}) == []


@pytest.mark.parametrize("name", IN_CLOUD)
def test_what_is_selected_is_written_to_google_cloud(name: str, stored: Series) -> None:
    assert missing(name, stored, OF_PROMQL if "otlp" in name else set()) == []
