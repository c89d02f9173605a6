"""What a client sends that has spans and no processor of ours becomes our metrics, in the collector."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from collector.written import load
from exporters.google.arrivals import CUSTOM
from waits import until

from boards import naming
from otel_goodput import semconv
from otel_goodput.semconv import Metric, Phase

from .collector import CONFIGS, OVERLAYS, Collector
from .prometheus import NATIVE, SCRAPED, Prometheus
from .sidecars import Sidecar
from .span_only import SOON, Json, send, span, step

LOCAL = CONFIGS / "local.yaml"
STEP, PHASE = (naming.prometheus_metric(each) for each in (semconv.STEP_DURATION, semconv.PHASE_DURATION))
ERROR = 2  # a span's status
NODE = {"service.name": "node-trainer", "service.instance.id": "run-9/1/3@host", "telemetry.sdk.language": "nodejs"}
TIMES = [0.1 * number for number in range(1, 21)]


class Seen(NamedTuple):
    collector: Collector
    prometheus: Prometheus


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    directory = tmp_path_factory.mktemp("spans")
    with (
        Collector(directory / "collector", LOCAL, ports=[SCRAPED], settings=SOON) as collector,
        Prometheus(directory / "prometheus", collector.addresses[SCRAPED], NATIVE) as prometheus,
    ):
        yield Seen(collector, prometheus)


def measured(prometheus: Prometheus, name: str, job: str) -> dict[tuple[tuple[str, str], ...], tuple[int, float]]:
    """How many there were of each kind, and the seconds that they took together."""
    return {
        each.attributes: (int(each.histogram["count"]), pytest.approx(float(each.histogram["sum"]), rel=1e-9))
        for each in prometheus.ask(f'{name}{{job="{job}"}}')
    }


def test_steps_and_phases_are_measured_by_our_names(seen: Seen) -> None:
    spans = [
        *(step(seconds) for seconds in TIMES),
        step(9, goodput_step_completed=False), step(9, status=ERROR), step(9, error_type="ValueError"),
        span(Phase.DATA_LOADING, 0.25), span(Phase.DATA_LOADING, 0.5),
        span(Phase.CUSTOM, 2, name="eval", goodput_custom_name="eval"),
        span(Phase.CHECKPOINT_SAVE, 3, goodput_blocking=False),
        span(Phase.CHECKPOINT_SAVE, 4, error_type="OSError", status=ERROR),
        # A summary of thinned steps is no step, and other spans are none of ours.
        span(None, 100, name=semconv.STEPS_SUMMARY_SPAN, goodput_steps_count=1000), span(None, 5, name="GET /"),
    ]  # fmt: skip
    send(seen.collector.http, NODE, *spans[::2])
    send(seen.collector.http, NODE, *spans[1::2])
    wanted = {
        (("goodput_phase", "data_loading"),): (2, 0.75),
        (("goodput_custom_name", "eval"), ("goodput_phase", "custom")): (1, 2.0),
        (("goodput_blocking", "false"), ("goodput_phase", "checkpoint_save")): (1, 3.0),
        (("error_type", "OSError"), ("goodput_phase", "checkpoint_save")): (1, 4.0),
    }
    prometheus, job = seen.prometheus, NODE["service.name"]
    prometheus.until(lambda: measured(prometheus, STEP, job) == {(): (len(TIMES), sum(TIMES))})
    prometheus.until(lambda: measured(prometheus, PHASE, job) == wanted)
    median = prometheus.one(f'histogram_quantile(0.5, {STEP}{{job="{job}"}})')
    assert median == pytest.approx(1.0, rel=0.05)
    there = prometheus.get("series", **{"match[]": f'{{job="{job}"}}'})
    assert {each["instance"] for each in there} == {NODE["service.instance.id"]}
    assert {each["__name__"] for each in there} == {STEP, PHASE, "target_info"}  # no calls


PANELS = {
    "How many steps per minute?",
    "How long does a step take?",
    "How are step times distributed?",
    "How long do other phases take (p99)?",
}


def test_the_dashboard_shows_such_a_job(seen: Seen) -> None:
    resource = {"service.name": "rust-trainer", "goodput.run.id": "run-3", "host.name": "node-1"}
    prometheus = seen.prometheus
    counts = [f'histogram_count({name}{{job="rust-trainer"}})' for name in (STEP, PHASE)]
    for times in (1, 2):  # what is there at the first scrape has no rate
        send(seen.collector.http, resource, step(1), span(Phase.DATA_LOADING, 1))
        prometheus.until(lambda times=times: [prometheus.one(count) for count in counts] == [times, times])
    panels = {panel["title"]: panel for panel in load("dashboards/goodput.grafana.json")["panels"]}
    queries = {
        (title, target["refId"]): target["expr"].replace("$job", "rust-trainer").replace("${run:regex}", "run-3")
        for title in PANELS
        for target in panels[title]["targets"]
        if naming.prometheus_metric(semconv.STEP_IDEAL) not in target["expr"]  # which only the ledger knows
    }
    assert len(queries) == 5

    def silent() -> list[tuple[str, str]]:
        answers = {key: prometheus.ask(query) for key, query in queries.items()}
        return [key for key, answer in answers.items() if not any(one.histogram or one.value > 0 for one in answer)]

    prometheus.until(lambda: not silent(), silent)


@pytest.mark.parametrize(
    ("resource", "instance"),
    [
        ({}, f"go-trainer/0/0@{socket.gethostname()}"),
        ({"host.name": "node-1"}, "go-trainer/0/0@node-1"),
        ({"host.name": "node-1", "service.instance.id": "627cc493"}, "go-trainer/0/0@627cc493"),
        ({"goodput.run.id": "r/1", "goodput.attempt": 2, "goodput.process.index": 5, "host.name": "n"}, "r/1/2/5@n"),
        ({"service.instance.id": "r/1/2/5@other"}, "r/1/2/5@other"),
    ],
)
def test_a_client_without_an_instance_as_ours_gets_one(resource: Json, instance: str, seen: Seen) -> None:
    send(seen.collector.http, {"service.name": "go-trainer", **resource}, step(1))
    query = f'histogram_count({STEP}{{job="go-trainer", instance="{instance}"}})'
    seen.prometheus.until(lambda: seen.prometheus.one(query) == 1)


def test_one_process_with_several_resources_is_one_writer(seen: Seen) -> None:
    for pid in range(5):
        send(seen.collector.http, {**NODE, "service.name": "forks", "process.pid": pid}, step(1))
    seen.prometheus.until(lambda: measured(seen.prometheus, STEP, "forks") == {(): (5, 5.0)})


def test_what_our_library_measures_itself_is_not_measured_again(seen: Seen) -> None:
    ours = {**NODE, "service.name": "ours", semconv.TELEMETRY_DISTRO_NAME: semconv.SCOPE_NAME}
    send(seen.collector.http, ours, step(1), span(Phase.DATA_LOADING, 1))
    send(seen.collector.http, {**NODE, "service.name": "theirs"}, step(1), span(Phase.DATA_LOADING, 1))
    for name in (STEP, PHASE):
        seen.prometheus.until(lambda name=name: measured(seen.prometheus, name, "theirs"))
        assert measured(seen.prometheus, name, "ours") == {}


def test_sampled_steps_count_as_many_as_they_stand_for(seen: Seen) -> None:
    """OpenTelemetry's consistent sampling writes into the tracestate with which probability."""
    one_in_four = "ot=th:c"
    resource = {**NODE, "service.name": "sampled"}
    send(seen.collector.http, resource, *(step(0.5, state=one_in_four) for _ in range(10)), step(0.5))
    seen.prometheus.until(lambda: measured(seen.prometheus, STEP, "sampled") == {(): (41, 20.5)})


def test_names_without_end_end(seen: Seen) -> None:
    spans = [span(Phase.CUSTOM, 1, goodput_custom_name=f"eval {number}") for number in range(300)]
    send(seen.collector.http, {**NODE, "service.name": "names"}, *spans)
    query = f'{PHASE}{{job="names"}}'
    seen.prometheus.until(lambda: seen.prometheus.one(f"sum(histogram_count({query}))") == 300)
    series = seen.prometheus.ask(query)
    assert len(series) == 201
    assert [each.histogram["count"] for each in series if "otel_metric_overflow" in each.labels] == ["100"]


def last(file: Path) -> dict[str, Any]:
    """The metrics exported last, by name."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    requests = [json.loads(line) for line in lines if "resourceMetrics" in line]
    return {
        metric["name"]: metric
        for request in requests
        for resource in request["resourceMetrics"]
        for scope in resource["scopeMetrics"]
        for metric in scope["metrics"]
    }


TELLING = "service::pipelines::metrics/measured::exporters: [file]"


def described(metric: Json) -> tuple[str, str, str]:
    assert "exponentialHistogram" in metric
    return metric["name"], metric["unit"], metric["description"]


def test_units_and_descriptions_are_ours(tmp_path: Path) -> None:
    with Collector(tmp_path, LOCAL, ports=[SCRAPED], settings=[*SOON, TELLING]) as collector:
        send(collector.http, NODE, step(1), span(Phase.DATA_LOADING, 1))
        until(lambda: len(last(tmp_path / "goodput.otlp.json")) == 2)
    wanted: list[Metric] = [semconv.PHASE_DURATION, semconv.STEP_DURATION]
    metrics = sorted(map(described, last(tmp_path / "goodput.otlp.json").values()))
    assert metrics == [(each.name, each.unit, each.brief) for each in wanted]


def test_the_end_loses_what_came_since_the_last_flush(tmp_path: Path) -> None:
    """The connector tells nothing when it is stopped: what stops the collector has to wait for a flush first."""
    file = tmp_path / "goodput.otlp.json"

    def count() -> int:
        metric = last(file).get(semconv.STEP_DURATION.name)
        return int(metric["exponentialHistogram"]["dataPoints"][0]["count"]) if metric else 0

    slowly = [setting.replace("250ms", "3s") for setting in SOON]
    with Collector(tmp_path, LOCAL, ports=[SCRAPED], settings=[*slowly, TELLING]) as collector:
        for steps, counted in ((5, 5), (3, 8)):
            send(collector.http, NODE, *(step(1) for _ in range(steps)))
            until(lambda counted=counted: count() == counted)
        send(collector.http, NODE, step(1), step(1))
        collector.stop()
    assert count() == 8


def test_clients_on_two_hosts_that_do_not_say_who_they_are_are_two(tmp_path: Path) -> None:
    settings = [setting.replace("250ms", "6s") for setting in SOON]
    with Sidecar(tmp_path / "a", "gcp-sidecar", settings=settings) as sidecar:
        environ = {"GOOGLE_EMULATOR": sidecar.address, "OTEL_RESOURCE_ATTRIBUTES": "host.name=host-b"}
        configs = (CONFIGS / "gcp-sidecar.yaml", OVERLAYS / "emulator.yaml")
        with Collector(tmp_path / "b", *configs, environ=environ, settings=settings) as other:
            send(sidecar.collector.http, {"service.name": "go-trainer"}, step(1))
            send(other.http, {"service.name": "go-trainer"}, step(1), step(2))
            until(lambda: len(sidecar.series) == 2)
        counts = {dict(key.resource_labels)["instance"]: at[-1].value.count for key, at in sidecar.series.items()}
        assert counts == {f"go-trainer/0/0@{socket.gethostname()}": 1, "go-trainer/0/0@host-b": 2}
        assert not sidecar.google.refusals


@pytest.mark.parametrize("config", ["gcp-sidecar", "gcp-sidecar-classic", "fleet-sidecar"])
def test_google_cloud_takes_them_too(config: str, tmp_path: Path) -> None:
    settings = [setting.replace("250ms", "6s") for setting in SOON]  # a point of a series in five seconds
    with Sidecar(tmp_path, config, settings=settings) as sidecar:
        send(sidecar.collector.http, NODE, step(1), step(3), span(Phase.DATA_LOADING, 1))
        until(lambda: len(sidecar.series) == 2)
        values_by_name = {key.type.removeprefix(CUSTOM): points[-1].value for key, points in sidecar.series.items()}
        (resource, *others) = {key.resource_labels for key in sidecar.series}
        assert not sidecar.google.refusals
    counts = {name: (value.count, value.mean) for name, value in values_by_name.items()}
    assert counts == {semconv.STEP_DURATION.name: (2, 2.0), semconv.PHASE_DURATION.name: (1, 1.0)}
    assert not others and {NODE["service.name"], NODE["service.instance.id"]} <= set(dict(resource).values())
