"""Spans that could not leave are kept, leave later in their order, and one bad batch does not hold up the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from waits import until

from otel_goodput import Recorder
from otel_goodput._recording.delegating import AcknowledgingExporter
from otel_goodput._runtime.deadline import ShutdownSignal
from otel_goodput.exporters.wrappers import MOST_KEPT, PATIENCE, BufferingSpanExporter

from .backends import grpc_backend, http_backend


class Service(SpanExporter):
    """Takes spans unless it is away, no export that holds a span of the name `bad`, and at most `most` in one."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self.away = False
        self.bad: str | None = None
        self.most = most
        self.taken: list[str] = []
        self.tries = 0

    def export(self, batch: Sequence[ReadableSpan]) -> SpanExportResult:
        self.tries += 1
        if self.away or len(batch) > self.most or self.bad in [span.name for span in batch]:
            return SpanExportResult.FAILURE
        self.taken += [span.name for span in batch]
        return SpanExportResult.SUCCESS


def numbered(count: int) -> Iterator[ReadableSpan]:
    """Spans with names ``0``, ``1``…"""
    return (ReadableSpan(name=str(number)) for number in range(count))


@pytest.mark.parametrize("tried", [False, True])
def test_the_end_is_one_more_try(tried: bool) -> None:
    """Even if no span comes any more; where the last ones were tried since the process stops, there is none."""
    stopping, service = ShutdownSignal(), Service()
    buffer = BufferingSpanExporter(service, stopping)
    service.away = True
    if tried:
        stopping.begin(10)
    assert buffer.export(list(numbered(3))) is SpanExportResult.FAILURE
    stopping.begin(10)
    service.away = False
    buffer.shutdown()
    assert (service.tries, buffer.dropped) == ((1, 3) if tried else (2, 0))


def test_what_could_not_leave_leaves_later_in_its_order() -> None:
    service = Service()
    buffer = BufferingSpanExporter(service)
    service.away = True
    *all_but_last, last = numbered(2000)
    for at in range(0, 1999, 100):
        assert buffer.export(all_but_last[at : at + 100]) is SpanExportResult.FAILURE
    assert service.tries == 20  # one an export, however much is kept
    service.away = False
    while buffer.export([last]) is SpanExportResult.FAILURE:
        pass
    assert sorted(map(int, set(service.taken))) == [*range(2000)]
    assert buffer.dropped == 0


def test_there_is_room_for_so_many_and_the_oldest_go_first() -> None:
    service = Service()
    buffer = BufferingSpanExporter(service)
    service.away = True
    for span in numbered(MOST_KEPT + 10):
        buffer.export([span])
    assert buffer.dropped == 10
    service.away = False
    assert buffer.export([]) is SpanExportResult.SUCCESS
    assert sorted(map(int, service.taken)) == [*range(10, MOST_KEPT + 10)]


def test_what_leaves_one_by_one_is_not_sent_together() -> None:
    service = Service(most=100)
    buffer = BufferingSpanExporter(service)
    service.away = True
    waiting = list(numbered(2000))
    for at in range(0, 2000, 100):
        buffer.export(waiting[at : at + 100])
    service.away = False
    assert buffer.export([]) is SpanExportResult.SUCCESS
    assert len(service.taken) == 2000 and buffer.dropped == 0


@pytest.mark.parametrize("count", [1, 12, 512])
def test_a_bad_export_holds_up_nobody_for_long_and_takes_nobody_along(count: int) -> None:
    service = Service()
    buffer = BufferingSpanExporter(service)
    service.bad = "0"
    waiting = list(numbered(8 * count))
    for at in range(0, len(waiting), count):
        buffer.export(waiting[at : at + count])
    assert PATIENCE + 2 < 8
    assert sorted(map(int, service.taken)) == [*range(count, 8 * count)]
    assert buffer.dropped == count


def test_what_is_kept_at_the_end_is_lost_unless_it_is_delivered_yet() -> None:
    service = Service()
    buffer = BufferingSpanExporter(service)
    service.away = True
    buffer.export(list(numbered(3)))
    buffer.shutdown()
    assert buffer.dropped == 3
    service.away = False  # for an export that was under way
    buffer.export([])
    assert (len(service.taken), buffer.dropped) == (3, 0)


def test_an_empty_export_asks_whether_anybody_listens() -> None:
    service = Service()
    buffer = BufferingSpanExporter(service)
    assert (buffer.export([]), service.tries) == (SpanExportResult.SUCCESS, 1)
    service.away = True
    assert (buffer.export([]), buffer.dropped) == (SpanExportResult.FAILURE, 0)


def test_errors_of_the_exporter_cost_its_batch_and_are_reported() -> None:
    class Broken(Service):
        def export(self, batch: Sequence[ReadableSpan]) -> SpanExportResult:
            if self.bad:
                raise RuntimeError("broken")
            return super().export(batch)

    service = Broken()
    buffer = BufferingSpanExporter(service)
    service.bad = "all"
    with pytest.raises(RuntimeError):
        buffer.export(list(numbered(3)))
    service.bad = None
    assert buffer.export(list(numbered(2))) is SpanExportResult.SUCCESS
    assert (service.taken, buffer.dropped) == (["0", "1"], 3)


def test_a_collector_that_comes_back_gets_what_was_made_meanwhile(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with grpc_backend(port) as before:
        pass
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", before.endpoint)
    recorder = Recorder("job", directory=tmp_path, exporters="otlp", grace_period=1.0)
    with recorder.job():
        for number in range(5):
            with recorder.step(number):
                pass
        recorder.flush(1)
        with grpc_backend(port) as after:
            with recorder.custom("later"):
                pass
            until(lambda: "later" in after.span_names())
            recorder.shutdown(10)
            names = after.span_names()
    assert names.count("step") == 5 and names.count("later") == 1


@pytest.mark.parametrize("last", ["nothing new", "something new"])
def test_what_the_last_try_delivers_is_known_to_be_delivered(
    last: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if every span had been handed over, in vain, before the end began: nothing is exported twice."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    with http_backend(port) as before:
        pass
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", before.endpoint)
    for attempt in range(2):
        recorder = Recorder("job", run_id="run", directory=tmp_path, exporters="otlp", grace_period=10.0)
        with recorder.job():
            for number in range(3):
                with recorder.step(3 * attempt + number):
                    pass
        if not attempt:
            recorder.flush(10)
            caplog.clear()
            if last == "something new":
                with recorder.custom("later"):
                    pass
        with http_backend(port) as after:
            recorder.shutdown(10)
            names = after.span_names()
        assert names.count("step") == 3 and names.count("job") == 1
        assert "have not reached every exporter" not in caplog.text


def test_a_step_that_waited_for_the_device_and_follows_the_job_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the journal the job has ended after it: the last span of a batch is not the last that ended."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    export = AcknowledgingExporter.export
    batches: list[list[str]] = []

    def steps_last(self: AcknowledgingExporter, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        spans = sorted(spans, key=lambda span: span.name == "step")
        batches.append([span.name for span in spans])
        return export(self, spans)

    monkeypatch.setattr(AcknowledgingExporter, "export", steps_last)
    recorder = Recorder("job", run_id="run", directory=tmp_path, exporters="file", grace_period=10.0)
    with recorder.job(), recorder.step(0):
        pass
    recorder.shutdown(10)
    assert any("job" in names and names[-1] == "step" for names in batches)
    assert "have not reached every exporter" not in caplog.text
