"""No panel and no alert names a metric, a label or a value that does not exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from boards import naming
from otel_goodput import semconv
from otel_goodput._metrics import workload_series
from otel_goodput._settings.options import OBJECTIVE_WINDOWS, Settings
from otel_goodput._text.durations import window_name

from .written import FILES, load, selections

# As the collector's exporter and Prometheus' OTLP endpoint name them (otlptranslator 1.0.0, its default strategy).
IN_PROMETHEUS = {
    "goodput.time": "goodput_time_seconds",
    "goodput.ratio": "goodput_ratio",
    "goodput.objective": "goodput_objective_ratio",
    "badput.ratio": "badput_ratio",
    "goodput.step.duration": "goodput_step_duration_seconds",
    "goodput.phase.duration": "goodput_phase_duration_seconds",
    "goodput.part.duration": "goodput_part_duration_seconds",
    "goodput.loading.queue_depth": "goodput_loading_queue_depth",
    "goodput.stalled.ratio": "goodput_stalled_ratio",
    "goodput.step.count": "goodput_step_count",
    "goodput.step.age": "goodput_step_age_seconds",
    "goodput.step.max_productive": "goodput_step_max_productive",
    "goodput.step.ideal_time": "goodput_step_ideal_time_seconds",
    "goodput.step.deviation": "goodput_step_deviation_seconds",
    "goodput.at_risk": "goodput_at_risk_seconds",
    "goodput.disruptions": "goodput_disruptions",
    "goodput.window.disruptions": "goodput_window_disruptions",
    "goodput.loader.stage.duration": "goodput_loader_stage_duration_seconds_total",
    "goodput.loading.overlapped": "goodput_loading_overlapped_seconds",
    "goodput.time_to_first_step": "goodput_time_to_first_step_seconds",
    "goodput.disruption.time_to_regain": "goodput_disruption_time_to_regain_seconds",
    "goodput.scheduling.ratio": "goodput_scheduling_ratio",
    "goodput.scheduling.duration": "goodput_scheduling_duration_seconds",
    "goodput.program.ratio": "goodput_program_ratio",
    "goodput.productivity": "goodput_productivity_ratio",
    "goodput.slice.efficiency": "goodput_slice_efficiency_ratio",
    "goodput.slice.share": "goodput_slice_share_ratio",
    "goodput.slice.window_efficiency": "goodput_slice_window_efficiency_ratio",
    "goodput.clock": "goodput_clock_ratio",
    "goodput.job.state": "goodput_job_state_ratio",
    "goodput.job.last_sign_of_life": "goodput_job_last_sign_of_life_seconds",
    "goodput.straggler.ratio": "goodput_straggler_ratio",
    "goodput.rank.own.time": "goodput_rank_own_time_seconds",
    "goodput.rank.gain": "goodput_rank_gain_ratio",
    "goodput.rank.wait.time": "goodput_rank_wait_time_seconds_total",
    "goodput.incident.active": "goodput_incident_active",
    "goodput.incident.count": "goodput_incident_count_total",
    "goodput.incident.cost.time": "goodput_incident_cost_time_seconds",
    "process.cpu.time": "process_cpu_time_seconds_total",
    "process.memory.usage": "process_memory_usage_bytes",
    "system.cpu.utilization": "system_cpu_utilization_ratio",
    "system.memory.usage": "system_memory_usage_bytes",
    "system.memory.limit": "system_memory_limit_bytes",
    "hw.gpu.utilization": "hw_gpu_utilization_ratio",
    "hw.gpu.memory.usage": "hw_gpu_memory_usage_bytes",
    "hw.gpu.memory.limit": "hw_gpu_memory_limit_bytes",
    "hw.power": "hw_power_watts",
    "goodput.accelerator.throttled": "goodput_accelerator_throttled_ratio",
    "goodput.compile.cache": "goodput_compile_cache_total",
    "goodput.compile.time_saved": "goodput_compile_time_saved_seconds",
    "goodput.telemetry.overhead": "goodput_telemetry_overhead_seconds_total",
    "goodput.telemetry.dropped": "goodput_telemetry_dropped_total",
}
LABELS = {
    "goodput.incident.kind": "goodput_incident_kind",
    "goodput.incident.cause": "goodput_incident_cause",
    "goodput.incident.line": "goodput_incident_line",
    "goodput.incident.phase": "goodput_incident_phase",
    "goodput.category": "goodput_category",
    "goodput.custom.name": "goodput_custom_name",
    "goodput.part.name": "goodput_part_name",
    "goodput.window": "goodput_window",
    "goodput.phase": "goodput_phase",
    "goodput.blocking": "goodput_blocking",
    "goodput.loader.stage": "goodput_loader_stage",
    "error.type": "error_type",
    "goodput.step.state": "goodput_step_state",
    "goodput.disruption.reason": "goodput_disruption_reason",
    "goodput.slice.state": "goodput_slice_state",
    "goodput.clock.state": "goodput_clock_state",
    "goodput.job.state": "goodput_job_state",
    "goodput.compile.cache.result": "goodput_compile_cache_result",
    "goodput.scheduling.stage": "goodput_scheduling_stage",
    "goodput.signal": "goodput_signal",
    "goodput.activity": "goodput_activity",
    "goodput.rank": "goodput_rank",
    "cpu.mode": "cpu_mode",
    "system.memory.state": "system_memory_state",
    "hw.type": "hw_type",
    "goodput.accelerator.throttle.reason": "goodput_accelerator_throttle_reason",
}

WINDOWS = [*Settings.windows.usual.split(","), *map(window_name, OBJECTIVE_WINDOWS)]
VALUES = {
    "goodput_incident_kind": {*semconv.INCIDENT_KINDS},
    "goodput_category": {*semconv.CATEGORIES},
    "goodput_activity": {*semconv.ACTIVITIES},
    "goodput_window": {semconv.WINDOW_RUN, *WINDOWS},
    "goodput_step_state": {semconv.STEP_KEPT, semconv.STEP_LOST},
    "goodput_slice_state": {semconv.SLICE_STEPPING, semconv.SLICE_AVAILABLE},
    "goodput_disruption_reason": {*semconv.REASONS},
    "goodput_clock_state": {*semconv.CLOCK_STATES},
    "goodput_job_state": {*semconv.JOB_STATES},
    "goodput_phase": {*semconv.PHASES},
    "goodput_scheduling_stage": {*semconv.SCHEDULING_STAGES},
    "goodput_compile_cache_result": {*semconv.CACHE_RESULTS},
    "goodput_source": {"TOTAL"},
    "window_type": {"cumulative"},
    "rolling_window_size": {"3600", "86400"},
    "job": {"$job"},
}


class Known(NamedTuple):
    resource: str
    labels: set[str]


def _known() -> dict[str, Known]:
    """Every series by its name in any of the places, and the labels that it has there."""
    known = {
        one.type: Known("compute.googleapis.com/Workload", {*one.labels, *workload_series.RESOURCE_LABELS})
        for one in workload_series.SERIES
    }
    for metric in semconv.METRICS:
        labels = {LABELS[key] for key in metric.attributes}
        parts = ["", "_count", "_bucket"] if metric.kind == semconv.HISTOGRAM else [""]
        for part in parts:
            bucket = {"le"} if part == "_bucket" or (parts[1:] and not part) else set()
            cloud = {"location", "job", "namespace", "task_id"}
            name = f"workload.googleapis.com/{metric.name}{part}"
            known[name] = Known("generic_task", labels | cloud | bucket)
            ours = {"job", "instance", "goodput_run_id"}
            known[IN_PROMETHEUS[metric.name] + part] = Known("", labels | ours | bucket)
            known[metric.name + part] = Known("", {*metric.attributes} | ours | bucket)
        known[naming.target_metric(metric)] = Known("prometheus_target", {*metric.attributes} | ours)
    resource = {naming.label(key) for key in (semconv.ATTEMPT, semconv.TRACE_ID)}
    known["target_info"] = Known("", {"job", "instance"} | resource)
    return known


# What looks like a name of ours wherever it stands, in texts too.
_NAME = re.compile(r"(?:workload\.googleapis\.com/)?\b(?:goodput|badput)[._][\w.]*\w")


def problems(content: Any) -> Iterator[str]:
    """What in a file does not exist."""
    known = _known()
    words = {*known, *IN_PROMETHEUS, *(label for one in known.values() for label in one.labels)}
    words |= {name.rpartition("/")[2] for name in known} | {semconv.RUN_ID}
    words |= {attribute.key for attribute in semconv.SPAN_ATTRIBUTES} | {"goodput.observe"}
    for one in selections(content):
        if one.metric not in known:
            yield f"metric {one.metric}"
            continue
        resource, labels = known[one.metric]
        if one.resource != resource:
            yield f"resource {one.resource} of {one.metric}"
        yield from (f"label {label} of {one.metric}" for label in one.labels - labels)
        wanted = {key: value for key, value in one.wanted.items() if value not in VALUES.get(LABELS.get(key, key), ())}
        yield from (f"{key}={value} of {one.metric}" for key, value in wanted.items())
    for word in _NAME.findall(json.dumps(content)):
        if word not in words:
            yield f"word {word}"


def respelt(content: Any, old: str, new: str) -> Any:
    """A copy in which every string has `new` for `old`."""
    if isinstance(content, str):
        return content.replace(old, new)
    if isinstance(content, list):
        return [respelt(each, old, new) for each in content]
    return {key: respelt(each, old, new) for key, each in content.items()} if isinstance(content, dict) else content


@pytest.mark.parametrize("name", FILES)
def test_everything_named_exists(name: str) -> None:
    content = load(name)
    assert len(list(selections(content))) >= 1
    assert list(problems(content)) == []


def test_there_is_a_name_for_every_metric() -> None:
    assert {metric.name: naming.prometheus_metric(metric) for metric in semconv.METRICS} == IN_PROMETHEUS
    assert {key: naming.label(key) for metric in semconv.METRICS for key in metric.attributes} == LABELS
    assert naming.label(semconv.RUN_ID) == "goodput_run_id"
    assert [naming.cloud_metric(semconv.AT_RISK)] == ["workload.googleapis.com/goodput.at_risk"]


@pytest.mark.parametrize(
    ("name", "kind", "unit", "expected"),
    [
        ("a.total.thing", semconv.COUNTER, "1", "a_thing_total"),
        ("x.ratio.y", semconv.GAUGE, "1", "x_y_ratio"),
        ("x.y", semconv.UP_DOWN, "1", "x_y"),
        ("x.seconds", semconv.HISTOGRAM, "s", "x_seconds"),
        ("disk.io", semconv.COUNTER, "By", "disk_io_bytes_total"),
        ("net.rate", semconv.GAUGE, "By/s", "net_rate_bytes_per_second"),
        ("a__b..c", semconv.GAUGE, "ms", "a_b_c_milliseconds"),
        ("1st", semconv.GAUGE, "%", "_1st_percent"),
        ("q", semconv.GAUGE, "{x}/s", "q_per_second"),
        ("ünï.x", semconv.GAUGE, "", "n_x"),
    ],
)
def test_names_are_translated_as_otlptranslator_does(name: str, kind: str, unit: str, expected: str) -> None:
    assert naming.prometheus_name(name, kind, unit) == expected


@pytest.mark.parametrize(
    ("name", "old", "new", "problem"),
    [
        ("alerts/prometheus.yaml", "goodput_ratio{", "goodput_share{", "metric goodput_share"),
        ("alerts/prometheus.yaml", "$labels.job", "$labels.host", "label host of"),
        ("alerts/prometheus.yaml", "(job, goodput_run_id)", "(job, goodput_run)", "label goodput_run of"),
        ("alerts/prometheus.yaml", '"instance", ', '"pod", ', "label pod of"),
        ("alerts/prometheus.yaml", '"1h"', '"2h"', "goodput_window=2h of"),
        ("alerts/training-hang.json", "goodput.step.age", "goodput.age", "metric workload.googleapis.com/goodput.age"),
        ("alerts/training-hang.json", "generic_task", "gce_instance", "resource gce_instance of"),
        ("alerts/training-hang.json", '"other', '"others', "goodput_activity=others of"),
        ("alerts/restart-loop.json", "disruption_reason", "disruption_cause", "label goodput_disruption_cause of"),
        ("alerts/otlp/training-hang.json", "goodput.step.age", "goodput.age", "metric goodput.age"),
        ("alerts/otlp/restart-loop.json", "disruption.reason", "disruption.cause", "label goodput.disruption.cause of"),
        ("dashboards/goodput.grafana.json", "{{goodput_phase}}", "{{phase}}", "label phase of goodput_phase_duration"),
        ("dashboards/goodput.grafana.json", "(goodput_signal)", "(signal)", "label signal of goodput_telemetry"),
        ("dashboards/goodput.grafana.json", "goodput_trace_id", "goodput_trace", "label goodput_trace of target_info"),
        ("dashboards/runs.grafana.json", "goodput_at_risk", "goodput_risk", "metric goodput_risk"),
        ("dashboards/goodput.grafana.json", 'seconds_count"}, job', 'seconds_count"}, pod', "label pod of"),
        ("dashboards/goodput.cloud-monitoring.json", "metric.labels.goodput_w", "metric.labels.w", "label window of"),
        ("dashboards/goodput.cloud-monitoring.json", "goodput.at_risk", "goodput.risk", "goodput.risk"),
        ("dashboards/goodput.cloud-monitoring.json", '"goodput_slice_state', '"slice_state', "label slice_state of"),
        ("dashboards/goodput-otlp.cloud-monitoring.json", '"goodput.at_risk', '"goodput.risk', "metric goodput.risk"),
        ("dashboards/goodput-otlp.cloud-monitoring.json", '"goodput.signal"', '"signal"', "label signal of"),
        ("dashboards/goodput-otlp.cloud-monitoring.json", '="run"', '="runs"', "goodput.window=runs of"),
        ("dashboards/goodput-otlp.cloud-monitoring.json", "duration/histogram", "duration/gauge", "duration/gauge"),
        ("dashboards/runs-otlp.cloud-monitoring.json", "job, instance", "job, namespace", "label namespace of"),
        ("dashboards/workload.cloud-monitoring.json", "googleapis.com/Workload", "googleapis.com/Work", "resource"),
        ("dashboards/workload.cloud-monitoring.json", '"86400', '"86401', "rolling_window_size=86401 of"),
        ("dashboards/workload.cloud-monitoring.json", "workload/performance", "workload/speed", "workload/speed"),
        ("dashboards/workload.cloud-monitoring.json", '"badput_source"!', '"source"!', "label source of"),
    ],
)
def test_what_does_not_exist_is_found(name: str, old: str, new: str, problem: str) -> None:
    good = load(name)
    spoilt = respelt(good, old, new)
    assert spoilt != good, "nothing was spoilt"
    assert any(problem in problem_text for problem_text in problems(spoilt)), list(problems(spoilt))


def test_filters_that_are_not_understood_are_not_passed_over() -> None:
    content = respelt(load("dashboards/workload.cloud-monitoring.json"), "metric.type=", "metric.kind=")
    with pytest.raises(ValueError, match="not understood"):
        list(selections(content))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dashboards/goodput.grafana.json", set(IN_PROMETHEUS.values())),
        ("dashboards/goodput.cloud-monitoring.json", {f"workload.googleapis.com/{name}" for name in IN_PROMETHEUS}),
        ("dashboards/goodput-otlp.cloud-monitoring.json", {*IN_PROMETHEUS}),
        ("dashboards/workload.cloud-monitoring.json", {one.type for one in workload_series.SERIES}),
    ],
)
def test_every_metric_is_on_the_dashboard(name: str, expected: set[str]) -> None:
    assert expected <= {
        each for one in selections(load(name)) for each in (one.metric, re.sub("_(count|bucket)$", "", one.metric))
    }
