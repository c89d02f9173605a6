"""One step with a data load: on the training thread, and in the background."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from benchmarks import rival, table
from benchmarks.rounds import Samples, once, serve
from benchmarks.table import Row

CHUNK = 2_000  # steps in one inner loop
PACE_S = 0.002  # of work in a step, in the loop with a realistic cadence

Work = Callable[[], object]


class Discard(SpanExporter):
    """Takes spans and does nothing with them."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


class Stock:
    """The SDK's two spans alone: no accounting, no journal, no metrics."""

    def __init__(self, stack: ExitStack) -> None:
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(Discard()))
        stack.callback(provider.shutdown)
        self._provider = provider
        self._start = provider.get_tracer("benchmark").start_as_current_span
        stack.enter_context(self._start("job"))

    def hot(self, first: int, count: int) -> None:
        start = self._start
        for number in range(first, first + count):
            with start("data_loading"):
                pass
            with start("step", attributes={"goodput.step": number}):
                pass

    def paced(self, first: int, count: int, work: Work) -> list[int]:
        start, clock = self._start, time.perf_counter_ns
        spent: list[int] = []
        for number in range(first, first + count):
            began = clock()
            with start("data_loading"):
                pass
            with start("step", attributes={"goodput.step": number}):
                entered = clock()
                work()
                left = clock()
            spent.append(entered - began + clock() - left)
        return spent

    def drain(self) -> None:
        self._provider.force_flush()


class Ours:
    """Spans, accounting and journal, as ``configure()`` has them.

    Args:
        sampling: export one step in this many; None: the default.
        metrics: attach a metric reader too.
    """

    def __init__(self, stack: ExitStack, sampling: int | None = None, metrics: bool = False) -> None:
        import otel_goodput as goodput

        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="otel-goodput-bench-"))
        goodput.configure(
            "benchmark",
            directory=directory,
            exporters="none",
            span_processors=[BatchSpanProcessor(Discard())],
            step_sampling=sampling,
            metric_readers=[InMemoryMetricReader()] if metrics else (),
        )
        stack.callback(goodput.shutdown)
        stack.enter_context(goodput.job())
        self.goodput = goodput

    def hot(self, first: int, count: int) -> None:
        goodput = self.goodput
        for number in range(first, first + count):
            with goodput.data_loading():
                pass
            with goodput.step(number):
                pass

    def paced(self, first: int, count: int, work: Work) -> list[int]:
        goodput, clock = self.goodput, time.perf_counter_ns
        spent: list[int] = []
        for number in range(first, first + count):
            began = clock()
            with goodput.data_loading():
                pass
            with goodput.step(number):
                entered = clock()
                work()
                left = clock()
            spent.append(entered - began + clock() - left)
        return spent

    def drain(self) -> None:
        self.goodput.totals()


class OurSteps(Ours):
    """The same through ``steps()``."""

    def hot(self, first: int, count: int) -> None:
        for _ in self.goodput.steps(range(count), start=first):
            pass

    def paced(self, first: int, count: int, work: Work) -> list[int]:
        clock = time.perf_counter_ns
        spent: list[int] = []
        steps = iter(self.goodput.steps(range(count), start=first))
        for _ in range(count):
            began = clock()
            next(steps)
            spent.append(clock() - began)
            work()
        return spent


class Rival:
    """ml-goodput-measurement: the three entries a step of its README."""

    def __init__(self, stack: ExitStack) -> None:
        self._recorder = rival.recorder()
        self._recorder.record_job_start_time()

    def hot(self, first: int, count: int) -> None:
        recorder = self._recorder
        for number in range(first, first + count):
            recorder.record_data_loading_start_time()
            recorder.record_data_loading_end_time()
            recorder.record_step_start_time(number)

    def paced(self, first: int, count: int, work: Work) -> list[int]:
        recorder, clock = self._recorder, time.perf_counter_ns
        spent: list[int] = []
        for number in range(first, first + count):
            began = clock()
            recorder.record_data_loading_start_time()
            recorder.record_data_loading_end_time()
            recorder.record_step_start_time(number)
            spent.append(clock() - began)
            work()
        return spent

    def drain(self) -> None:
        self._recorder.flush()


VARIANTS: dict[str, Callable[[ExitStack], Any]] = {
    "stock": Stock,
    "with": Ours,
    "steps": OurSteps,
    "with every": lambda stack: Ours(stack, sampling=1),
    "steps every": lambda stack: OurSteps(stack, sampling=1),
    "with metrics": lambda stack: Ours(stack, metrics=True),
    "rival": Rival,
}
NAMES = {
    "stock": "OpenTelemetry SDK, two spans alone",
    "with": "otel_goodput, `with step(n)`",
    "steps": "otel_goodput, `steps()`",
    "with every": "otel_goodput, `with step(n)`, every step exported",
    "steps every": "otel_goodput, `steps()`, every step exported",
    "with metrics": "otel_goodput, `with step(n)`, metrics collected too",
    "rival": "ml-goodput-measurement, three entries",
}
_WALL = {"with": 0.5, "steps": 0.15, "with every": 0.8, "steps every": 0.6}
TARGETS = {"hot": _WALL, "paced": _WALL, "thread": {"steps": 0.08, "steps every": 0.25}}


KINDS = {
    "hot": "A step and its data load, hot loop: wall time, background threads competing for the interpreter",
    "paced": f"A step and its data load, {PACE_S * 1e3:g} ms of work in each step: wall time less the work, median",
    "late": f"A step and its data load, {PACE_S * 1e3:g} ms of work in each step: wall time less the work, p99",
    "thread": "A step and its data load, hot loop: CPU time of the training thread",
    "background": "A step and its data load, hot loop: CPU time of the background threads, until nothing is left to do",
}


def work_of(seconds: float) -> Work:
    """Work that takes about so long, leaves the interpreter to other threads and the caches cold."""
    probe = bytes(1 << 20)
    quickest = min(_timed(lambda: zlib.crc32(probe)) for _ in range(9))
    block = bytes(int(seconds / quickest * len(probe)))
    return lambda: zlib.crc32(block)


def _timed(work: Work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def answer(chunks: int, paced: int) -> dict[str, float]:
    """Seconds a step of the variant named on the command line."""
    with ExitStack() as stack:
        variant = VARIANTS[sys.argv[1]](stack)
        variant.hot(0, 2 * CHUNK)
        variant.drain()
        at = 2 * CHUNK
        took: list[float] = []
        process, thread = time.process_time(), time.thread_time()
        for _ in range(chunks):
            began = time.perf_counter()
            variant.hot(at, CHUNK)
            took.append(time.perf_counter() - began)
            at += CHUNK
        thread = time.thread_time() - thread
        variant.drain()
        process = time.process_time() - process
        spent = sorted(variant.paced(at, paced, work_of(PACE_S)))
    steps = chunks * CHUNK
    return {
        "hot": sum(took) / steps,
        "thread": thread / steps,
        "background": (process - thread) / steps,
        "paced": spent[paced // 2] / 1e9,
        "late": spent[paced * 99 // 100] / 1e9,
    }


def measure(samples: Samples, *, fast: bool) -> list[Row]:
    """Rounds over all variants."""
    rounds, paced = (2, 100) if fast else (9, 400)
    variants = [name for name in VARIANTS if name != "rival" or rival.installed()]
    for _ in range(rounds):
        for name in variants:
            chunks = 4 if fast else 10 if name == "rival" else 20
            for kind, value in once("step", name, chunks=chunks, paced=paced).items():
                loops, inner = (1, 1) if kind in ("paced", "late") else (chunks, CHUNK)
                samples.add(f"step {kind}: {name}", value, loops=loops, inner=inner)
    rows: list[Row] = []
    for kind, title in KINDS.items():
        for name in variants:
            ratios = samples.ratios(f"step {kind}: {name}", f"step {kind}: stock")
            target = TARGETS.get(kind, {}).get(name)
            rows.append(
                Row(
                    title,
                    NAMES[name],
                    "" if kind == "background" else "1×" if name == "stock" else table.compared(ratios),
                    table.seconds(samples.median(f"step {kind}: {name}")),
                    "" if target is None else f"≤ {target:g}×",
                    None if target is None else statistics.median(ratios) <= target,
                )
            )
        if not rival.installed():
            rows.append(Row(title, NAMES["rival"], "", rival.MISSING))
    return rows


if __name__ == "__main__":
    serve(answer)
