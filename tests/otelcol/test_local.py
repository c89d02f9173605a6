"""local.yaml for real: a job that is killed and resumes, the collector that it tells, restarted in between, its file,
and a Prometheus that scrapes it all the time."""

from __future__ import annotations

import json
import math
import re
import signal
import statistics
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cli.commands import goodput, succeeded
from collector.written import load, selections
from google_cloud.jobs import End, Job
from views import naming

from otel_goodput import semconv
from otel_goodput.instruments import ROWS
from otel_goodput.semconv import Metric

from .collector import CONFIGS, Collector
from .prometheus import NATIVE, SCRAPED, Prometheus, Sample
from .span_only import SOON

LOCAL = CONFIGS / "local.yaml"
RUN = "run-7"
STEPS = 60  # of an attempt, twice 30
FIRST, SECOND = (f'job="llama", instance=~"{RUN}/{attempt}/0@.*"' for attempt in (0, 1))
# What such a job has no figures of.
SILENT = {semconv.SCHEDULING_RATIO, semconv.PROGRAM_RATIO, semconv.PRODUCTIVITY, semconv.STRAGGLER}
SILENT |= {semconv.SLICE_EFFICIENCY, semconv.SLICE_WINDOW_EFFICIENCY, semconv.PART_DURATION, semconv.QUEUE_DEPTH}


class Seen(NamedTuple):
    """What the story has left behind, with collector and Prometheus still there."""

    collector: Collector
    prometheus: Prometheus
    end: End
    directory: Path


def environ(collector: Collector) -> dict[str, str]:
    """Of a job that tells the collector, twice a second."""
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.grpc}",
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "OTEL_GOODPUT_RUN_ID": RUN,
        "OTEL_GOODPUT_STRICT": "1",
    }


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    directory = tmp_path_factory.mktemp("local")
    options: dict[str, Any] = {"exporters": ["otlp", "file"], "steps": STEPS // 2, "lasts": 1.2}
    with (
        pytest.MonkeyPatch.context() as patch,
        Collector(directory / "collector", LOCAL, ports=[SCRAPED], settings=SOON) as collector,
        Prometheus(directory / "prometheus", collector.addresses[SCRAPED], NATIVE) as prometheus,
    ):
        patch.setenv("PYTHONPATH", str(LOCAL.parents[2]))
        with Job(directory, environ(collector), middle="die", **options) as job:
            assert job.die() == -signal.SIGKILL
        # The killed attempt's last values can still be read.
        prometheus.until(lambda: prometheus.one(f'goodput_step_count{{{FIRST}, goodput_step_state="kept"}}') == 30)
        with Job(directory, environ(collector), pauses=["middle"], **options) as job:
            job.wait_for("middle")
            prometheus.until(lambda: prometheus.ask(f"goodput_step_duration_seconds{{{SECOND}}}"))
            assert collector.stop() < 10
            collector.start()
            job.go_on()
            end = job.end()
        # While the collector is away an export may be due: it is tried again, and nothing else is told.
        assert end.status == 0 and all("UNAVAILABLE" in line and "retrying" in line for line in end.told), end.told
        ended = f'goodput_phase_duration_seconds{{{SECOND}, goodput_phase="job"}}'
        prometheus.until(lambda: prometheus.one(f"histogram_count({ended})") == 1)
        yield Seen(collector, prometheus, end, directory)


def spans(*files: Path) -> dict[str, Any]:
    """Every span in files of OTLP JSON lines by its id, with its resource and scope; there is none twice."""
    found: dict[str, Any] = {}
    for line in [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]:
        for resource in json.loads(line).get("resourceSpans", ()):
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    assert span["spanId"] not in found
                    found[span["spanId"]] = (span, resource["resource"], scope["scope"])
    return found


def test_the_file_has_the_spans_that_the_library_s_own_file_has(seen: Seen) -> None:
    written = spans(*seen.directory.rglob("traces-*.jsonl"))
    arrived = spans(seen.directory / "collector" / "goodput.otlp.json")
    assert {*arrived} == {*written}
    assert len([span for span, *_ in written.values() if span["name"] == semconv.Phase.STEP]) > STEPS
    assert [written[key] for key in written if written[key] != arrived[key]] == []


def test_metrics_are_in_the_same_file(seen: Seen) -> None:
    lines = (seen.directory / "collector" / "goodput.otlp.json").read_text(encoding="utf-8").splitlines()
    kinds = {kind for line in lines for kind in json.loads(line)}
    assert kinds == {"resourceSpans", "resourceMetrics"}


@pytest.mark.parametrize("metric", [metric for metric, _ in ROWS if metric not in SILENT], ids=lambda one: one.name)
def test_prometheus_has_the_library_s_own_values(metric: Metric, seen: Seen) -> None:
    answer = seen.prometheus.ask(f"{naming.prometheus_metric(metric)}{{{SECOND}}}")
    found = {(*each.attributes, each.value) for each in answer}
    wanted = {
        (*sorted((naming.label(key), text) for key, text in attributes.items() if text), value)
        for value, attributes in seen.end.account[metric.name]
    }
    assert wanted and found == wanted


def test_promql_says_what_the_report_says(seen: Seen) -> None:
    report = json.loads(succeeded(goodput("report", str(seen.directory / "runs"), "--json")))
    assert (report["attempts"], report["disruption_reasons"]) == (2, {"crash": 1})
    one = seen.prometheus.one
    assert one(f'goodput_ratio{{{SECOND}, goodput_window="run"}}') == report["goodput"]
    assert one(f"sum(goodput_time_seconds{{{SECOND}}})") == pytest.approx(report["elapsed_s"], abs=1e-9)
    assert one(f'goodput_time_seconds{{{SECOND}, goodput_category="productive"}}') == report["seconds"]["productive"]
    assert one(f"sum(goodput_disruptions_total{{{SECOND}}})") == report["disruptions"] == 1
    steps = {state: one(f'goodput_step_count{{{SECOND}, goodput_step_state="{state}"}}') for state in ("kept", "lost")}
    assert steps == {state: report["steps"][state] for state in steps}
    assert one(f"goodput_step_max_productive{{{SECOND}}}") == report["max_productive_step"] == STEPS - 1


def test_step_times_are_a_native_histogram_with_the_spans_count_sum_and_quantiles(seen: Seen) -> None:
    times = [
        (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e9
        for span, resource, _ in spans(seen.directory / "collector" / "goodput.otlp.json").values()
        if span["name"] == semconv.Phase.STEP
        and {"key": semconv.ATTEMPT, "value": {"intValue": "1"}} in resource["attributes"]
    ]
    (sample,) = seen.prometheus.ask(f"goodput_step_duration_seconds{{{SECOND}}}")  # measured once, by the library
    assert int(sample.histogram["count"]) == len(times) == STEPS
    assert float(sample.histogram["sum"]) == pytest.approx(sum(times), rel=1e-9)
    median = seen.prometheus.one(f"histogram_quantile(0.5, goodput_step_duration_seconds{{{SECOND}}})")
    assert median == pytest.approx(statistics.median(times), rel=0.03)
    restarted = f"resets(goodput_step_duration_seconds{{{SECOND}}}[5m])"
    assert seen.prometheus.one(restarted) == 0


@pytest.mark.parametrize(
    ("aggregation", "few"), [("base2_exponential_bucket_histogram", 1), ("explicit_bucket_histogram", 16)]
)
def test_text_has_buckets_of_classic_histograms_only(aggregation: str, few: int, tmp_path: Path) -> None:
    """A collector for each: Prometheus 2.42 takes all series of a metric for what the first of them is."""
    with Collector(tmp_path / "collector", LOCAL, ports=[SCRAPED]) as collector:
        asked = {"OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": aggregation}
        with Job(tmp_path, {**environ(collector), **asked}, exporters=["otlp"], steps=STEPS // 2) as job:
            assert job.end().status == 0
        with urllib.request.urlopen(f"http://{collector.addresses[SCRAPED]}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    buckets = re.findall(r'^goodput_step_duration_seconds_bucket\{.*le="([^"]+)"\} (\d+)$', text, re.MULTILINE)
    assert (len(buckets), buckets[-1]) == (few, ("+Inf", str(STEPS)))


def test_job_and_instance_are_the_job_s(seen: Seen) -> None:
    there = seen.prometheus.get("label/instance/values", **{"match[]": '{job="llama"}'})
    assert len(there) == 2 and all(re.fullmatch(naming.RUN_OF_INSTANCE, each) for each in there)
    (about,) = seen.prometheus.ask(f"target_info{{{SECOND}}}")
    assert (about.labels["goodput_run_id"], about.labels["goodput_attempt"]) == (RUN, "1")


def test_the_alert_rules_are_loaded_and_can_be_asked(seen: Seen) -> None:
    (group,) = seen.prometheus.get("rules")["groups"]
    rules = load("alerts/prometheus.yaml")["groups"][0]["rules"]
    assert [rule["name"] for rule in group["rules"]] == [rule["alert"] for rule in rules]
    assert [rule["lastError"] for rule in group["rules"] if rule.get("lastError")] == []
    firing = {rule["name"]: seen.prometheus.ask(rule["query"]) for rule in group["rules"]}
    assert {name for name, answer in firing.items() if answer} == set()


def test_every_query_of_the_dashboard_has_an_answer(seen: Seen) -> None:
    content = load("dashboards/goodput.grafana.json")
    targets = [target for panel in content["panels"] for target in panel.get("targets", [])]
    silent = {naming.prometheus_metric(metric) for metric in SILENT}
    asked = []
    for expression in (target["expr"] for target in targets):
        query = expression.replace("$job", "llama").replace("${run:regex}", RUN)
        seen.prometheus.ask(query)  # takes it, at least
        if not {selection.metric for selection in selections({"expr": expression})} & silent:
            asked.append(query)
    assert len(asked) > 25

    def unanswered() -> list[str]:
        # What happened once, before the first export, has no rate, and so no quantiles.
        return [query for query in asked if not any(map(is_figure, seen.prometheus.ask(query)))]

    seen.prometheus.until(lambda: not unanswered(), unanswered)


def is_figure(sample: Sample) -> bool:
    return bool(sample.histogram) or not math.isnan(sample.value)


def test_the_variables_of_the_dashboard_have_values(seen: Seen) -> None:
    content = load("dashboards/goodput.grafana.json")
    queries = {one["name"]: one["query"]["query"] for one in content["templating"]["list"] if one["type"] == "query"}
    values = {}
    for name, query in queries.items():
        selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", query).groups()  # type: ignore[union-attr]
        found = seen.prometheus.get(f"label/{label}/values", **{"match[]": selector.replace("$job", "llama")})
        values[name] = {each.split("/")[0] for each in found}
    assert values == {"job": {"llama"}, "run": {RUN}}
