"""Test your instrumentation: a run in memory, with a clock that your test moves.

::

    from otel_goodput import testing

    with testing.run() as run:
        for step, batch in goodput.steps(range(3)):
            run.advance(2.0)
    assert run.seconds() == {"productive": 6.0}
    assert [span.attributes["goodput.step"] for span in run.spans("step")] == [0, 1, 2]
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Metric
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_goodput import api
from otel_goodput._accounting import Totals
from otel_goodput._recording.finished import is_attempt
from otel_goodput._runtime import host
from otel_goodput._runtime.recorder import Recorder
from otel_goodput._settings.options import Options
from otel_goodput._text.durations import NS
from otel_goodput.reports.report import Report
from otel_goodput.semconv import Reason

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["FakeClock", "Recording", "metrics", "run"]

START: Final = 1_767_225_600 * NS  # 2026-01-01, UTC

# Every step is exported, and a launcher that runs the tests does not decide which process this is.
_DEFAULTS: Final[Options] = {"step_sampling": 1, "trace_spans": 0, "process_index": 0, "process_count": 1}
# Whatever the code under test configures.
_FIXED: Final[Options] = {"exporters": "none", "integrations": "none", "device_clock": "host", "usage_interval": "none"}


class FakeClock:
    """A clock that stands still until it is moved; calling it returns its time, ns since the epoch.

    Args:
        start: its first time.
    """

    def __init__(self, start: int = START) -> None:
        self._now = start
        self._moving = threading.Lock()

    def __call__(self) -> int:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward; any thread may do that.

        Args:
            seconds: by how much.

        Raises:
            ValueError: it is negative.
        """
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {-seconds} s")
        with self._moving:
            self._now += round(seconds * NS)


class Recording:
    """What a recorder has recorded.

    Args:
        clock: the clock of the run; None if it is the machine's.

    Attributes:
        recorder: the recorder; in :func:`run`, the one that was opened last.
        reader: reads its metrics.
    """

    recorder: Recorder
    reader: InMemoryMetricReader

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = clock
        self._exporters: list[InMemorySpanExporter] = []

    def attach(self, options: Options) -> Options:
        """Return the options with which a recorder keeps its spans and metrics here, for ``configure(**options)``.

        Only needed without :func:`run`, such as for a run on disk.

        Args:
            options: further options of the recorder.
        """
        exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self._exporters.append(exporter)
        return {
            **options,
            "span_processors": [*options.get("span_processors", ()), SimpleSpanProcessor(exporter)],
            "metric_readers": [*options.get("metric_readers", ()), self.reader],
        }

    def advance(self, seconds: float) -> None:
        """Move the clock of the run forward.

        Args:
            seconds: by how much.
        """
        assert self.clock is not None, "this recorder takes its time from the machine"
        self.clock.advance(seconds)

    def preempt(self, reason: str = Reason.PREEMPTION) -> None:
        """Announce the end of the job, and wait until the callbacks of ``on_preemption()`` have returned.

        Args:
            reason: ``preemption``, ``maintenance`` or ``signal``.
        """
        assert self.recorder._observers.announce(reason, self.recorder.config.grace_period), "a callback hangs"

    def exported(self) -> list[ReadableSpan]:
        """Return the finished spans in the order of their ends, the root span of the attempt among them."""
        tracer = self.recorder.tracer
        if tracer is not None:
            tracer.emitter.catch_up()  # else in the background, soon
        return [span for exporter in self._exporters for span in exporter.get_finished_spans()]

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        """Return the finished spans in the order of their ends, without the root span of the attempt.

        Args:
            name: only those of this name.
        """
        return [span for span in self.exported() if not is_attempt(span) and name in (None, span.name)]

    def span(self, name: str) -> ReadableSpan:
        """Return the only finished span of this name.

        Args:
            name: of the span.

        Raises:
            AssertionError: there is none, or more than one.
        """
        spans = self.spans(name)
        assert len(spans) == 1, f"{len(spans)} spans are called {name!r}: {[span.name for span in self.spans()]}"
        return spans[0]

    def metrics(self) -> dict[str, Metric]:
        """Collect the metrics once, and return them by name."""
        return metrics(self.reader)

    def totals(self) -> Totals:
        """Return the account as of now, in integers of ns."""
        return self.recorder.totals()

    def report(self) -> Report:
        """Return the account as of now, as text (``str()``) or JSON (``to_json()``)."""
        return self.recorder.report()

    @property
    def goodput(self) -> float | None:
        """The productive share of the time so far, 0 to 1; None if no time has passed or it is not known."""
        return self.totals().run.goodput

    def seconds(self) -> dict[str, Any]:
        """Return the seconds of each category that has any; those of ``custom`` by the names of the phases."""
        return {name: length for name, length in self.recorder.report().to_json()["seconds"].items() if length}


class _InMemory(Recording):
    """A recording of which part may still be on its way in the background."""

    def exported(self) -> list[ReadableSpan]:
        if not self.recorder.closed:
            self.recorder._keeper.tick()
        return super().exported()


@contextmanager
def run(job_name: str = "test", *, clock: FakeClock | None = None, **options: Unpack[Options]) -> Iterator[Recording]:
    """Record into memory what happens in this block: no files, no threads, no network.

    The functions of the package act on this run, and the code under test may call ``configure()`` or create recorders:
    they record into memory too, whatever exporters, directory and integrations it chooses. After the block the job has
    ended, and the recording can still be read. ``GoodputSpanProcessor`` takes its time from the clock, too.

    Args:
        job_name: name of the job.
        clock: the clock of the run; by default a new one.
        options: as for ``configure()``; by default every step is exported.

    Raises:
        ConfigurationError: an option is wrong.
        TypeError: an option is unknown.
    """
    moved = clock or FakeClock()
    recording = _InMemory(clock=moved)

    def completed(recorder: Recorder, given: Options) -> Options:
        recording.recorder = recorder
        return recording.attach({**_DEFAULTS, **given, **_FIXED})

    machine = host.Host(lambda: (moved, None), in_memory=True, options=completed)
    token = context.attach(context.Context())
    try:
        with host.replaced(machine), api.replaced(job_name, options):
            yield recording
    finally:
        context.detach(token)


def metrics(reader: InMemoryMetricReader) -> dict[str, Metric]:
    """Collect metrics once, and return them by name.

    Args:
        reader: of the recorder or the provider.

    Raises:
        AssertionError: a name comes twice.
    """
    data = reader.get_metrics_data()
    collected = [
        metric
        for resource in (data.resource_metrics if data is not None else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ]
    by_name = {metric.name: metric for metric in collected}
    assert len(by_name) == len(collected), sorted(metric.name for metric in collected)
    return by_name
