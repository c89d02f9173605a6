"""The emulator as a whole: projects, faults on demand, many clients, the command.

Its rules are held against it, one by one, in tests/emulators/.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import grpc
import pytest
import warm
from emulators.access_rules import CALLER_RULES, PROJECT_RULES
from emulators.clients import metric_client, trace_client
from emulators.descriptor_rules import DESCRIPTOR_RULES
from emulators.examples import NOW, PROJECT, at, series, span
from emulators.google import GoogleEmulator
from emulators.metric_rules import BATCH_RULES, PARTIAL_RULES, SERIES_RULES
from emulators.trace_rules import SPAN_RULES, WRITE_RULES
from google.api_core.exceptions import GoogleAPICallError
from google.cloud.monitoring_v3 import MetricServiceClient
from google.cloud.trace_v2 import TraceServiceClient
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from waits import until

# What is documented of Google's services, and seen in public reports.
RULES = {
    *("trace.name", "trace.span_id", "trace.parent", "trace.display_name", "trace.display_name_bytes", "trace.times"),
    *("trace.past", "trace.future", "trace.attributes", "trace.events", "trace.links", "trace.duplicate"),
    *("trace.batch", "trace.quota", "mon.batch", "mon.points", "mon.duplicate", "mon.end_time", "mon.interval_gauge"),
    *("mon.interval_cumulative", "mon.order", "mon.reset_start", "mon.sampling", "mon.kind", "mon.value_type"),
    *("mon.value", "mon.distribution", "mon.labels", "mon.label_unknown", "mon.resource_type", "mon.resource_labels"),
    *("mon.resource_label_unknown", "mon.location", "mon.resource_for_metric", "mon.domain", "mon.metric_type"),
    *("mon.desc_exists", "mon.desc_labels", "mon.desc_kind", "mon.decrease", "project", "auth", "trace.spans"),
}
METRICS = "CreateTimeSeries"


def test_every_rule_is_enforced() -> None:
    tables = (SPAN_RULES, WRITE_RULES, BATCH_RULES, SERIES_RULES, PARTIAL_RULES, DESCRIPTOR_RULES, CALLER_RULES)
    assert {rule.name for table in (*tables, PROJECT_RULES) for rule in table} == RULES


@pytest.fixture
def emulator() -> Iterator[GoogleEmulator]:
    with GoogleEmulator(now=lambda: NOW) as emulator:
        yield emulator


@pytest.fixture
def traces(emulator: GoogleEmulator) -> Iterator[TraceServiceClient]:
    with trace_client(emulator.endpoint) as client:
        yield client


@pytest.fixture
def metrics(emulator: GoogleEmulator) -> Iterator[MetricServiceClient]:
    with metric_client(emulator.endpoint) as client:
        yield client


@contextmanager
def refused(code: str, text: str = "") -> Iterator[pytest.ExceptionInfo[GoogleAPICallError]]:
    with pytest.raises(GoogleAPICallError, match=re.escape(text) or None) as caught:
        yield caught
    assert caught.value.grpc_status_code is grpc.StatusCode[code]


def write(client: MetricServiceClient, end: float = 0, timeout: float = 10, **labels: str) -> None:
    client.create_time_series(name=PROJECT, time_series=[series(end=end, **labels)], timeout=timeout)


def codes(emulator: GoogleEmulator) -> list[str]:
    return [request.code for request in emulator.requests]


@pytest.mark.parametrize("project", ["projects/other", "projects/None", "other", ""])
def test_a_project_must_be_there(
    emulator: GoogleEmulator, traces: TraceServiceClient, metrics: MetricServiceClient, project: str
) -> None:
    calls: list[Callable[[], object]] = [
        lambda: traces.batch_write_spans(name=project, spans=[span()]),
        lambda: metrics.create_time_series(name=project, time_series=[series()]),
        lambda: metrics.list_metric_descriptors(name=project),
    ]
    for call in calls:
        with refused("PERMISSION_DENIED"):
            call()
    assert {refusal.rule for refusal in emulator.refusals} == {"project"}
    assert (emulator.spans, emulator.series) == ([], {})


def test_what_is_not_emulated_is_unimplemented(metrics: MetricServiceClient) -> None:
    with refused("UNIMPLEMENTED"):
        metrics.delete_metric_descriptor(name=f"{PROJECT}/metricDescriptors/m")


def test_errors_come_as_often_as_asked(emulator: GoogleEmulator, metrics: MetricServiceClient) -> None:
    emulator.fail(METRICS, "UNAVAILABLE", times=2)
    emulator.fail("*", grpc.StatusCode.INTERNAL, text="what a day")
    for code, text in [("UNAVAILABLE", "currently unavailable")] * 2 + [("INTERNAL", "what a day")]:
        with refused(code, text):
            write(metrics)
    write(metrics)
    assert codes(emulator) == ["UNAVAILABLE", "UNAVAILABLE", "INTERNAL", "OK"]
    assert sum(map(len, emulator.series.values())) == 1


def test_errors_come_until_healed(
    emulator: GoogleEmulator, traces: TraceServiceClient, metrics: MetricServiceClient
) -> None:
    emulator.fail(METRICS, "RESOURCE_EXHAUSTED", times=None)
    for _ in range(3):
        with refused("RESOURCE_EXHAUSTED", "Quota exceeded"):
            write(metrics)
    traces.create_span(span())
    emulator.heal()
    write(metrics)


def test_what_is_missing_is_reported_as_google_reports_it(
    emulator: GoogleEmulator, metrics: MetricServiceClient
) -> None:
    emulator.fail(METRICS, "PERMISSION_DENIED")
    with refused("PERMISSION_DENIED", "Permission 'monitoring.timeSeries.create' denied") as caught:
        write(metrics)
    (info,) = caught.value.details
    assert isinstance(info, ErrorInfo)
    assert (info.reason, info.metadata["permission"]) == ("IAM_PERMISSION_DENIED", "monitoring.timeSeries.create")


def test_the_error_says_when_to_try_again(emulator: GoogleEmulator, metrics: MetricServiceClient) -> None:
    emulator.fail(METRICS, "UNAVAILABLE", retry_after_s=1.5)
    with refused("UNAVAILABLE") as caught:
        write(metrics)
    (retry,) = caught.value.details
    assert isinstance(retry, RetryInfo)
    assert retry.retry_delay.ToMilliseconds() == 1500
    trailers = dict(caught.value.errors[0].trailing_metadata())
    assert RetryInfo.FromString(trailers["google.rpc.retryinfo-bin"]) == retry


def test_an_answer_can_be_lost(
    emulator: GoogleEmulator, traces: TraceServiceClient, metrics: MetricServiceClient
) -> None:
    """What is written twice then: a span is the same one, a point is out of order."""
    emulator.fail("*", "UNAVAILABLE", times=2, after_write=True)
    with refused("UNAVAILABLE"):
        traces.batch_write_spans(name=PROJECT, spans=[span()], retry=None)
    with refused("UNAVAILABLE"):
        write(metrics)
    traces.batch_write_spans(name=PROJECT, spans=[span()])
    with refused("INVALID_ARGUMENT", "Points must be written in order."):
        write(metrics)
    assert [note.rule for note in emulator.notes] == ["trace.duplicate"]
    assert (len(emulator.spans), sum(map(len, emulator.series.values()))) == (1, 1)


@pytest.mark.parametrize("method", [METRICS, "*"])
def test_who_leaves_a_call_that_hangs_has_written_nothing(
    emulator: GoogleEmulator, metrics: MetricServiceClient, method: str
) -> None:
    emulator.hang(method)
    with refused("DEADLINE_EXCEEDED"):
        write(metrics, timeout=0.2)
    until(lambda: codes(emulator) == ["CANCELLED"])
    assert emulator.series == {}
    emulator.heal()
    write(metrics)


def test_who_waits_is_answered_when_healed(
    emulator: GoogleEmulator, traces: TraceServiceClient, metrics: MetricServiceClient
) -> None:
    emulator.hang(METRICS)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(write, metrics)
        until(lambda: codes(emulator) == [""])
        traces.create_span(span())  # another method does not hang
        assert not waiting.done()
        emulator.heal()
        waiting.result()
    assert codes(emulator) == ["OK", "OK"]


def test_calls_that_hang_do_not_hold_up_the_end() -> None:
    with ThreadPoolExecutor(40) as pool:
        with GoogleEmulator() as emulator, metric_client(emulator.endpoint) as client:
            emulator.hang()
            waiting = [pool.submit(write, client, timeout=60, rank=str(rank)) for rank in range(40)]
            until(lambda: len(emulator.requests) >= 32)
            began = time.monotonic()
        assert time.monotonic() - began < 5
        for call in waiting:
            assert call.exception(timeout=5) is not None
    assert emulator.series == {}


def test_calls_can_take_long(emulator: GoogleEmulator, metrics: MetricServiceClient) -> None:
    emulator.slow(METRICS, 0.2)
    began = time.monotonic()
    write(metrics)
    assert time.monotonic() - began >= 0.2
    with refused("DEADLINE_EXCEEDED"):
        write(metrics, end=10, timeout=0.05)
    until(lambda: codes(emulator) == ["OK", "CANCELLED"])
    assert sum(map(len, emulator.series.values())) == 1


@pytest.mark.parametrize("ask", ["fail", "hang", "slow"])
def test_methods_have_names(emulator: GoogleEmulator, ask: str) -> None:
    arguments = {"fail": ("INTERNAL",), "hang": (), "slow": (1,)}[ask]
    with pytest.raises(ValueError, match="no such method: CreateTimeserie"):
        getattr(emulator, ask)("CreateTimeserie", *arguments)


def test_many_write_at_once(emulator: GoogleEmulator, traces: TraceServiceClient, metrics: MetricServiceClient) -> None:
    def work(rank: int) -> None:
        for turn in range(20):
            write(metrics, end=5 * turn, rank=str(rank))
            traces.batch_write_spans(name=PROJECT, spans=[span(1 + turn + 100 * rank), span(1000)])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert [len(points) for points in emulator.series.values()] == [20] * 8
    assert len(emulator.spans) == len({stored.name for stored in emulator.spans}) == 8 * 20 + 1
    assert codes(emulator) == ["OK"] * 320
    assert emulator.refusals == []


def test_a_port_can_be_chosen(port: int) -> None:
    with GoogleEmulator(port=port) as emulator:
        assert emulator.endpoint == f"http://127.0.0.1:{port}"
        with pytest.raises(RuntimeError), GoogleEmulator(port=port):
            pass
    with GoogleEmulator(port=port) as another:
        assert another.endpoint == emulator.endpoint


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_shows_what_arrived(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "emulators.google", "--print", "--project", "a", "b"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with warm.Process(command, env=environment, stdout=subprocess.PIPE, text=True) as process, ExitStack() as exits:
        exits.callback(process.kill)
        assert process.stdout is not None
        endpoint = process.stdout.readline().strip()
        now = time.time() - 1_790_000_000
        with trace_client(endpoint) as client:
            fields = {"start_time": at(now), "end_time": at(now + 1.5)}
            name = span().name.replace("test-project", "b")
            client.batch_write_spans(name="projects/b", spans=[span(name=name, **fields)])
        with metric_client(endpoint) as metrics:
            metrics.create_time_series(name="projects/a", time_series=[series(2.5, end=now)])
            with refused("INVALID_ARGUMENT"):
                metrics.create_time_series(name="projects/a", time_series=[series(2.5, end=now + 1)])
        process.send_signal(number)
        shown, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "+0.000 s    1.500 s  step" in shown
    assert re.search(r"\nglobal\{project_id:test-project\}\n.*\n  custom.googleapis.com/m +\{\} +1 +2.5\n", shown)
    assert "mon.sampling: custom.googleapis.com/m{}" in shown
