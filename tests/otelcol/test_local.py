"""local.yaml for real: a job that is killed and resumes, the collector that it tells, restarted in between, its file,
and a Prometheus that scrapes it all the time.

Longer than other files: one run of all of it, which takes half a minute, serves all these tests.
"""

from __future__ import annotations

import json
import math
import re
import signal
import statistics
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from collector.written import filled, load, selections
from exporters.google.jobs import End, Job
from tools.commands import goodput, succeeded

from boards import goodput as board
from boards import naming
from otel_goodput import semconv
from otel_goodput._metrics.instruments import ROWS
from otel_goodput._metrics.usage_rows import UsageRows
from otel_goodput._recording.ids import attempt_trace_id
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
UNANSWERED = {  # panels of nothing else
    "What share of the slices is in use?",
    "Is one process slower than the rest?",
    "What is a step made of (p50)?",
    "Are batches ready in time?",
}
SILENT |= {
    semconv.SLICE_EFFICIENCY,
    semconv.SLICE_WINDOW_EFFICIENCY,
    semconv.SLICE_SHARE,
    semconv.PART_DURATION,
    semconv.LOADER_STAGE,
    semconv.QUEUE_DEPTH,
}
UNANSWERED |= {
    "In which stage of loading does the time go?",
    "Does the compilation cache hit?",
    "What did the compilation cache save?",
    "What did an attempt wait for?",
    "Which rank does it wait for?",
    "Which rank is slow inside of steps?",
    "How much faster would the job be without it?",
    "Which incidents are open?",
    "How many incidents were there?",
    "What did they cost?",
}
SILENT |= {semconv.RANK_OWN, semconv.RANK_GAIN, semconv.INCIDENT_ACTIVE, semconv.INCIDENT_COUNT, semconv.INCIDENT_COST}
SILENT |= {semconv.RANK_WAIT, semconv.COMPILE_CACHE, semconv.COMPILE_TIME_SAVED, semconv.SCHEDULING_DURATION}
SILENT |= {*UsageRows.metrics}
UNANSWERED |= {panel.title for panel in board.usage()}


class Seen(NamedTuple):
    """What the story has left behind, with collector and Prometheus still there.

    `middle` is a moment (unix seconds) at which the last job ran.
    """

    collector: Collector
    prometheus: Prometheus
    end: End
    directory: Path
    middle: float


def environ(collector: Collector) -> dict[str, str]:
    """Of a job that tells the collector, twice a second."""
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.grpc}",
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "OTEL_GOODPUT_RUN_ID": RUN,
        "OTEL_GOODPUT_OBJECTIVE": "90%",
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
            middle = time.time()
            assert collector.stop() < 10
            collector.start()
            job.go_on()
            end = job.end()
        # While the collector is away an export may be due: it is tried again, and nothing else is logged.
        assert end.status == 0 and all("UNAVAILABLE" in line and "retrying" in line for line in end.warnings), (
            end.warnings
        )
        ended = f'goodput_phase_duration_seconds{{{SECOND}, goodput_phase="job"}}'
        prometheus.until(lambda: prometheus.one(f"histogram_count({ended})") == 1)
        yield Seen(collector, prometheus, end, directory, middle)


def spans(*files: Path) -> dict[str, Any]:
    """Every span in files of OTLP JSON lines by its id, with its resource and scope; there is none twice."""
    by_id: dict[str, Any] = {}
    for line in [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]:
        for resource in json.loads(line).get("resourceSpans", ()):
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    assert span["spanId"] not in by_id
                    by_id[span["spanId"]] = (span, resource["resource"], scope["scope"])
    return by_id


def test_the_file_has_the_spans_that_the_library_s_own_file_has(seen: Seen) -> None:
    written = spans(*seen.directory.rglob("traces-*.jsonl"))
    arrived = spans(seen.directory / "collector" / "goodput.otlp.json")
    assert {*arrived} == {*written}
    assert len([span for span, *_ in written.values() if span["name"] == semconv.Phase.STEP]) > STEPS
    assert [written[key] for key in written if written[key] != arrived[key]] == []


def test_every_span_is_in_the_trace_that_its_resource_names(seen: Seen) -> None:
    """Those of the killed attempt too, which the next one closed."""
    names = set()
    for span, resource, _ in spans(*seen.directory.rglob("traces-*.jsonl")).values():
        (named,) = (one["value"]["stringValue"] for one in resource["attributes"] if one["key"] == semconv.TRACE_ID)
        assert span["traceId"] == named
        names.add(named)
    assert len(names) == 2


def test_metrics_are_in_the_same_file(seen: Seen) -> None:
    lines = (seen.directory / "collector" / "goodput.otlp.json").read_text(encoding="utf-8").splitlines()
    kinds = {kind for line in lines for kind in json.loads(line)}
    assert kinds == {"resourceSpans", "resourceMetrics"}


@pytest.mark.parametrize("metric", [metric for metric, _ in ROWS if metric not in SILENT], ids=lambda one: one.name)
def test_prometheus_has_the_library_s_own_values(metric: Metric, seen: Seen) -> None:
    answer = seen.prometheus.ask(f"{naming.prometheus_metric(metric)}{{{SECOND}}}")
    values = {(*each.attributes, each.value) for each in answer}
    wanted = {
        (*sorted((naming.label(key), text) for key, text in attributes.items() if text), value)
        for value, attributes in seen.end.account[metric.name]
    }
    assert wanted and values == wanted


def test_promql_says_what_the_report_says(seen: Seen) -> None:
    report = json.loads(succeeded(goodput("report", str(seen.directory / "runs"), "--json")))
    assert (report["attempts"], report["disruption_reasons"]) == (2, {"crash": 1})
    one = seen.prometheus.one
    assert one(f'goodput_ratio{{{SECOND}, goodput_window="run"}}') == report["goodput"]
    assert one(f"sum(goodput_time_seconds{{{SECOND}}})") == pytest.approx(report["elapsed_s"], abs=1e-9)
    assert one(f'goodput_time_seconds{{{SECOND}, goodput_category="productive"}}') == report["seconds"]["productive"]
    assert one(f"sum(goodput_disruptions{{{SECOND}}})") == report["disruptions"] == 1
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
        variables = {"OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": aggregation}
        with Job(tmp_path, {**environ(collector), **variables}, exporters=["otlp"], steps=STEPS // 2) as job:
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


def test_the_alert_rules_are_loaded_and_can_be_queried(seen: Seen) -> None:
    (group,) = seen.prometheus.get("rules")["groups"]
    rules = load("alerts/prometheus.yaml")["groups"][0]["rules"]
    assert [rule["name"] for rule in group["rules"]] == [rule["alert"] for rule in rules]
    assert [rule["lastError"] for rule in group["rules"] if rule.get("lastError")] == []
    firing = {rule["name"]: seen.prometheus.ask(rule["query"]) for rule in group["rules"]}
    assert {name for name, answer in firing.items() if answer} == set()


def test_a_run_that_died_fires_the_alert_and_one_that_ended_does_not(seen: Seen, tmp_path: Path) -> None:
    """As it is with five minutes of silence, here with half a second."""
    other = {**environ(seen.collector), "OTEL_GOODPUT_RUN_ID": "run-8"}
    with Job(tmp_path, other, job="gemma", exporters=["otlp"], middle="die") as job:
        assert job.die() == -signal.SIGKILL
    (rule,) = [one for one in load("alerts/prometheus.yaml")["groups"][0]["rules"] if one["alert"] == "RunGone"]
    query, limit, _ = rule["expr"].rpartition("> 300")
    assert limit

    def gone() -> list[str]:
        return [one.labels["goodput_run_id"] for one in seen.prometheus.ask(f"{query} > 0.5")]

    seen.prometheus.until(lambda: gone() == ["run-8"], gone)
    state = f'{{instance=~"RUN/.*", {naming.label(semconv.GOODPUT_JOB_STATE)}="{semconv.JobState.ENDED}"}}'
    for run, ended in ((f"{RUN}/1", 1), ("run-8/0", 0)):
        state_metric = naming.prometheus_metric(semconv.JOB_STATE) + state.replace("RUN", run)
        assert seen.prometheus.one(state_metric) == ended


def test_every_query_of_the_dashboard_has_an_answer(seen: Seen) -> None:
    content = load("dashboards/goodput.grafana.json")
    targets = [target for panel in content["panels"] for target in panel.get("targets", [])]
    silent = {naming.prometheus_metric(metric) for metric in SILENT}
    queries = []
    for expression in (target["expr"] for target in targets):
        query = filled(expression.replace("$job", "llama").replace("${run:regex}", RUN))
        seen.prometheus.ask(query)  # takes it, at least
        if not {selection.metric for selection in selections({"expr": expression})} & silent:
            queries.append(query)
    assert len(queries) > 25

    def unanswered() -> list[str]:
        # What happened once, before the first export, has no rate, and so no quantiles.
        return [query for query in queries if not any(map(is_figure, seen.prometheus.ask(query)))]

    seen.prometheus.until(lambda: not unanswered(), unanswered)


def test_a_run_that_is_over_still_shows_its_figures(seen: Seen) -> None:
    """Twenty minutes later, of the hour that is shown then: Prometheus has nothing to say of that moment itself."""
    to, hour = time.time() + 1200, 3600
    assert seen.prometheus.ask(f"goodput_ratio{{{SECOND}}}")
    assert not seen.prometheus.ask(f"goodput_ratio{{{SECOND}}}", to)
    silent = {naming.prometheus_metric(metric) for metric in SILENT}
    blank, figures = [], {}
    for panel in load("dashboards/goodput.grafana.json")["panels"]:
        answers = []
        for target in panel.get("targets", []):
            query = filled(target["expr"].replace("$job", "llama").replace("${run:regex}", RUN), hour, to)
            if {selection.metric for selection in selections({"expr": target["expr"]})} & silent:
                answers.append([])  # of which such a job has none
            elif target["instant"]:
                answers.append(seen.prometheus.ask(query, to))
            else:
                answers.append(seen.prometheus.query_range(query, to - hour, to, 15))
        if answers and not any(answers) and panel["title"] not in UNANSWERED:
            blank.append(panel["title"])
        figures[panel["title"]] = answers[0] if answers else []
    assert blank == []
    whole = sum(value for value, _ in seen.end.account[semconv.TIME.name])
    assert [one.value for one in figures["Elapsed"]] == [pytest.approx(whole, rel=1e-9)]
    assert [one.value for one in figures["Has it ended?"]] == [1]
    (ago,) = (one.value for one in figures["Last sign of life, ago"])
    assert 1200 <= ago < 1200 + 120
    categories = figures["Where did the whole run go?"]
    assert 2 < len(categories) < len(semconv.CATEGORIES) and all(one.value > 0 for one in categories)
    attempts = {one.labels["goodput_attempt"]: one.labels["goodput_trace_id"] for one in figures["Attempts"]}
    assert attempts == {str(each): f"{attempt_trace_id(RUN, each):032x}" for each in (0, 1)}


def test_a_run_that_goes_on_shows_its_figures(seen: Seen) -> None:
    """All of them, and those of the attempt that runs."""
    shown = {}
    for panel in load("dashboards/goodput.grafana.json")["panels"]:
        if panel["type"] == "stat" or panel["title"] == "Attempts":
            (target,) = panel["targets"]
            query = filled(target["expr"].replace("$job", "llama").replace("${run:regex}", RUN), 3600, seen.middle)
            shown[panel["title"]] = [one.value for one in seen.prometheus.ask(query, seen.middle)]
    assert len(shown) > 8 and all(shown.values()), shown
    assert len(shown["Attempts"]) == 2
    assert shown["Has it ended?"] == [0] and shown["Last sign of life, ago"][0] < 60
    assert STEPS // 2 - 1 <= shown["Highest step"][0] < STEPS - 1


def test_no_legend_has_a_line_that_is_zero_all_the_time(seen: Seen) -> None:
    """A panel of several series hides those; of one series, 0 is what the panel is asked for."""
    to, hidden = time.time(), set()
    for panel in load("dashboards/goodput.grafana.json")["panels"]:
        if panel["type"] != "timeseries":
            continue
        hides = any("allIsZero" in json.dumps(one["matcher"]) for one in panel["fieldConfig"]["overrides"])
        for target in panel["targets"]:
            query = filled(target["expr"].replace("$job", "llama").replace("${run:regex}", RUN), 600, to)
            series = seen.prometheus.query_range(query, to - 600, to, 5)
            assert all(one.values for one in series), f"{panel['title']}: a series of no numbers"
            zero = [one for one in series if not any(one.values)]
            assert hides or not zero or len(series) == 1, panel["title"]
            hidden |= {panel["title"]} if zero and hides else set()
    assert hidden >= {"Where did the last 1h go?", "What share of the run is lost?", "Why was it disrupted?"}


def test_an_end_is_marked_where_it_was(seen: Seen) -> None:
    to = time.time() + 1200
    query = marked("Ended", to)
    (series,) = seen.prometheus.query_range(query, to - 3600, to, 60)
    (ended,) = (value for value, _ in seen.end.account[semconv.LAST_SIGN.name])
    assert series.values and [value / 1000 for value in series.values] == [pytest.approx(ended)] * len(series.values)
    assert f"{RUN}/1/0@" in series.labels["instance"], "the attempt that was killed has not ended"


def test_a_restart_is_marked_with_its_reason(seen: Seen) -> None:
    """Before it nothing is."""
    to = time.time()
    (series,) = seen.prometheus.query_range(marked("Disruptions", to), to - 600, to, 1)
    assert series.labels == {naming.label(semconv.GOODPUT_DISRUPTION_REASON): semconv.Reason.CRASH}
    counted = seen.prometheus.query_range(f"max(goodput_disruptions{{{SECOND}}})", to - 600, to, 1)
    assert {*series.values} == {1} and len(series.values) <= len(counted[0].values)


def marked(name: str, to: float) -> str:
    """What the dashboard asks for its marks of that name, of the hour until `to` (unix)."""
    marks = {one["name"]: one["expr"] for one in load("dashboards/goodput.grafana.json")["annotations"]["list"]}
    return filled(marks[name].replace("$job", "llama").replace("${run:regex}", RUN), 3600, to)


def test_the_overview_has_a_line_for_every_run(seen: Seen, tmp_path: Path) -> None:
    for run, die in (("run-1", False), ("run-2", True)):
        other = {**environ(seen.collector), "OTEL_GOODPUT_RUN_ID": run}
        with Job(tmp_path / run, other, job="phi", exporters=["otlp"], middle="die" if die else "nothing") as job:
            assert job.die() == (-signal.SIGKILL if die else 0)
    (panel,) = load("dashboards/runs.grafana.json")["panels"]
    names = panel["transformations"][-1]["options"]["renameByName"]
    to = time.time() + 1200

    def lines() -> dict[str, dict[str, float]]:
        by_run: dict[str, dict[str, float]] = {}
        for target in panel["targets"]:
            for one in seen.prometheus.ask(filled(target["expr"], 3600, to), to):
                line = by_run.setdefault(f"{one.labels['job']} {one.labels['goodput_run_id']}", {})
                line[names[f"Value #{target['refId']}"]] = one.value
        return by_run

    whole = set(names.values()) - {"job", "run"}
    wanted = {f"llama {RUN}", "phi run-1", "phi run-2"}
    seen.prometheus.until(lambda: all(lines().get(each, {}).keys() >= whole for each in wanted), lines)
    shown = lines()
    assert {name: shown[name]["state"] for name in wanted} == {f"llama {RUN}": 1, "phi run-1": 1, "phi run-2": 2}
    assert (shown[f"llama {RUN}"]["disruptions"], shown["phi run-1"]["disruptions"]) == (1, 0)
    elapsed = sum(value for value, _ in seen.end.account[semconv.TIME.name])
    assert shown[f"llama {RUN}"]["elapsed"] == pytest.approx(elapsed, rel=1e-9)
    assert shown[f"llama {RUN}"]["highest step"] == STEPS - 1
    ratios = {attributes[semconv.GOODPUT_WINDOW]: value for value, attributes in seen.end.account[semconv.RATIO.name]}
    assert shown[f"llama {RUN}"]["goodput, whole run"] == ratios[semconv.WINDOW_RUN]
    assert shown[f"llama {RUN}"]["goodput, last 1h"] == ratios["1h"]


def is_figure(sample: Sample) -> bool:
    return bool(sample.histogram) or not math.isnan(sample.value)


def test_the_variables_of_the_dashboard_have_values(seen: Seen) -> None:
    content = load("dashboards/goodput.grafana.json")
    queries = {one["name"]: one["query"]["query"] for one in content["templating"]["list"] if one["type"] == "query"}
    values = {}
    for name, query in queries.items():
        selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", query).groups()  # type: ignore[union-attr]
        values_of_label = seen.prometheus.get(f"label/{label}/values", **{"match[]": selector.replace("$job", "llama")})
        values[name] = {each.split("/")[0] for each in values_of_label}
    assert values["job"] >= {"llama"} and values["run"] == {RUN}
