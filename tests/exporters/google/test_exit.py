"""A job ends in time whatever Google's services do, and what could be delivered by then is there to the last value."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import warm
from crash.exported import check_tree, read_spans
from emulators.google import GoogleEmulator
from waits import PATIENCE_S, until

from exporters.backends import stalled_grpc_backend
from otel_goodput._settings.envvars import OTEL_GOODPUT_GCP_ENDPOINT, OTEL_GOODPUT_GCP_PROJECT

from .arrivals import check_whole, cloud_spans, differences, otlp_spans
from .jobs import End, Job, inherited

SERVICES = ("Cloud Trace", "Cloud Monitoring", "Telemetry API")
TEARDOWN_S = 2.0  # that Python takes at most where the machine is busy; else it is a tenth
OFTEN = {"OTEL_METRIC_EXPORT_INTERVAL": "1000", "OTEL_BSP_SCHEDULE_DELAY": "100"}  # ms


def check_delivered(google: GoogleEmulator, end: End) -> None:
    """Every span and every last value."""
    check_whole(cloud_spans(google))
    check_whole(otlp_spans(google, "llama"))
    assert not differences(google, end.account)
    assert end.status == 0


def check_warned_once(end: End, word: str) -> None:
    """A line for each service that says what is wrong, and no traceback."""
    assert "Traceback" not in end.errors
    for service in SERVICES:
        lines = [line for line in end.warnings if line.startswith(f"WARNING otel_goodput: {service} ")]
        assert len(lines) == 1 and word in lines[0], end.errors


# --- services that do not work ----------------------------------------------------------------------------------------


def hanging(folder: Path, grace: str) -> End:
    """They take requests and never answer."""
    with GoogleEmulator() as google:
        environ = {"OTEL_GOODPUT_GRACE_PERIOD": grace, OTEL_GOODPUT_GCP_ENDPOINT.name: google.endpoint}
        google.hang()
        with Job(folder, environ, warm=True) as job:
            end = job.end()
        assert not google.spans and not google.series and not google.otlp_series
    return end


def hanging_later(folder: Path, grace: str) -> End:
    """They stop to answer in the middle of the job."""
    with GoogleEmulator() as google:
        environ = {**OFTEN, "OTEL_GOODPUT_GRACE_PERIOD": grace, OTEL_GOODPUT_GCP_ENDPOINT.name: google.endpoint}
        with Job(folder, environ, pauses=["middle"]) as job:
            job.wait_for("middle")
            until(lambda: {request.method for request in google.requests if request.code == "OK"} >= METHODS)
            google.hang()
            job.go_on()
            return job.end()


def down(folder: Path, grace: str) -> End:
    """Nobody listens."""
    environ = {"OTEL_GOODPUT_GRACE_PERIOD": grace, OTEL_GOODPUT_GCP_ENDPOINT.name: "http://127.0.0.1:9"}
    with Job(folder, environ, warm=True) as job:
        return job.end()


METHODS = {"BatchWriteSpans", "CreateTimeSeries", "OtlpTraces", "OtlpMetrics"}
TROUBLES: dict[Callable[[Path, str], End], str] = {
    hanging: "DEADLINE_EXCEEDED",
    hanging_later: "DEADLINE_EXCEEDED",
    down: "UNAVAILABLE",
}


@pytest.mark.parametrize(("grace", "most"), [("10", 10.0), ("3", 3.5)])
def test_the_end_is_not_held_up(google: GoogleEmulator, tmp_path: Path, grace: str, most: float) -> None:
    """By services that hang or are not there. All at once, for what they do is mostly wait."""
    with ThreadPoolExecutor(len(TROUBLES)) as pool:
        ends = pool.map(lambda trouble: trouble(tmp_path / trouble.__name__, grace), TROUBLES)
    for end, word in zip(ends, TROUBLES.values(), strict=True):
        assert end.status == 0
        assert end.stopping <= most
        assert end.seconds <= most + TEARDOWN_S
        check_warned_once(end, word)


BUSY = """
import sys, time
import otel_goodput as goodput

goodput.configure("llama", run_id="run", directory=sys.argv[1], exporters=sys.argv[2].split(","), integrations="none")
until = time.monotonic() + 3.0
with goodput.job():
    for step, _ in goodput.steps(range(10**9)):
        if time.monotonic() > until:
            break
print(time.monotonic(), flush=True)
"""
GRACE_S = 10.0


@pytest.mark.attack
def test_the_end_on_a_busy_machine_with_every_exporter_hanging(google: GoogleEmulator, tmp_path: Path) -> None:
    """More processes than cores, a loop that the account cannot follow, and no service that answers: what is there is
    written, and the process ends. What Python takes to go, in seconds of a processor, a witness turns into time here.
    """
    google.hang()
    burn = [sys.executable, "-c", "while True: pass"]
    witness = "import time; sum(range(8_000_000)); print(time.monotonic() - began, time.process_time())"
    witness = f"import time; began = time.monotonic() - time.process_time(); {witness}"
    with ExitStack() as exits, stalled_grpc_backend() as collector:
        for _ in range(2 * (os.cpu_count() or 1)):
            exits.callback(exits.enter_context(warm.Process(burn)).kill)
        environ = {**inherited(), OTEL_GOODPUT_GCP_ENDPOINT.name: google.endpoint}
        environ |= {OTEL_GOODPUT_GCP_PROJECT.name: "p", "OTEL_GOODPUT_GRACE_PERIOD": str(GRACE_S)}
        environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector
        exporters = "otlp,gcp,workload,gcp-otlp,file"
        done = warm.run(
            [sys.executable, "-W", "ignore::FutureWarning", "-c", BUSY, str(tmp_path), exporters],
            env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=True,
        )  # fmt: skip
        took = time.monotonic() - float(done.stdout)
        seen = warm.run([sys.executable, "-c", witness], capture_output=True, text=True, check=True).stdout
    wall, worked = map(float, seen.split())
    assert took <= GRACE_S + TEARDOWN_S / 4 * wall / worked, f"{wall / worked:.1f} processes wait for a core"
    assert "Traceback" not in done.stderr
    assert "They are in the journal" in done.stderr
    spans = read_spans(tmp_path / "run")
    assert {"attempt", "job"} <= {span.name for span in spans}, "what can be written waits for nobody"
    assert len(check_tree(spans)) == len(spans)


def test_what_is_left_goes_with_the_next_attempt(google: GoogleEmulator, tmp_path: Path) -> None:
    """The run has finished, so the next start goes on with it only if it is called by its name."""
    named = {"OTEL_GOODPUT_RUN_ID": "llama"}
    google.hang()
    with Job(tmp_path, {**named, "OTEL_GOODPUT_GRACE_PERIOD": "1"}, warm=True) as job:
        end = job.end()
    assert "have not reached every exporter. They are in the journal" in end.errors
    google.heal()
    with Job(tmp_path, named) as job:
        end = job.end()
    assert not differences(google, end.account, attempt=1)
    for trace_spans in (cloud_spans(google), otlp_spans(google, "llama", 2)):
        check_whole(trace_spans)
        assert len({span.trace for span in trace_spans}) == 2


def test_slow_services_are_waited_for(google: GoogleEmulator, tmp_path: Path) -> None:
    google.slow("*", 2.0)
    with Job(tmp_path, warm=True) as job:
        end = job.end()
    check_delivered(google, end)
    assert not end.warnings
    assert not google.refusals


def test_services_that_recover_get_everything(google: GoogleEmulator, tmp_path: Path) -> None:
    google.hang()
    with Job(tmp_path, OFTEN, pauses=["middle"]) as job:
        job.wait_for("middle")
        until(lambda: {request.method for request in google.requests} >= {"BatchWriteSpans", "OtlpTraces"})
        google.heal()
        job.go_on()
        end = job.end()
    check_delivered(google, end)
    assert not end.warnings


def test_services_that_let_nothing_through_are_asked_seldom(google: GoogleEmulator, tmp_path: Path) -> None:
    """Once each, though there is something to send ten times a second; at the end once more, and it all arrives."""
    google.fail("*", "PERMISSION_DENIED", None)
    with Job(tmp_path, OFTEN, unit=0.05, pauses=["trained"]) as job:
        job.wait_for("trained")
        until(lambda: len(google.requests) >= 6)
        until(lambda: all(service in job.errors for service in SERVICES))
        google.heal()
        refused = [request.method for request in google.requests]
        job.go_on()
        end = job.end()
    check_warned_once(end, "PERMISSION_DENIED")
    assert "roles/cloudtrace.agent" in end.errors and "roles/monitoring.metricWriter" in end.errors
    assert len(end.warnings) == len(SERVICES)
    assert len(refused) == 6 and set(refused) == {*METHODS, "CreateMetricDescriptor"}, "points of two exporters"
    check_delivered(google, end)
    assert cloud_spans(google) and otlp_spans(google, "llama")
    dropped = {key.labels: points[-1].value for key, points in google.series.items() if key.type.endswith(".dropped")}
    assert dropped[frozenset({("goodput_signal", "traces")})] == 0


# --- the last value ---------------------------------------------------------------------------------------------------


def test_the_last_value_arrives_however_soon_after_another(google: GoogleEmulator, tmp_path: Path) -> None:
    """Cloud Monitoring takes one point of a series in five seconds."""
    pauses = {"tenth": 0.1, "two": 2.0, "before": 4.9, "after": 5.1}  # seconds from an export to the end

    def live(job_name: str) -> tuple[str, End]:
        with Job(tmp_path / job_name, job=job_name, middle="flush", lasts=pauses[job_name]) as job:
            return job_name, job.end()

    with ThreadPoolExecutor(len(pauses)) as pool:
        ends = list(pool.map(live, pauses))
    for name, end in ends:
        assert not differences(google, end.account, name)
        assert end.status == 0 and not end.errors
    assert not google.refusals and not google.notes
    times = [points for key, points in google.series.items() if key.type.endswith(("goodput.time", "goodput_time"))]
    assert times and all(len(points) == 2 for points in times)


def test_the_last_value_arrives_after_ticks_and_a_flush(google: GoogleEmulator, tmp_path: Path) -> None:
    with Job(tmp_path, {**OFTEN, "OTEL_METRIC_EXPORT_INTERVAL": "500"}, unit=0.05, flush=True) as job:
        end = job.end()
    check_delivered(google, end)
    assert not google.refusals and not end.errors
