"""What must not grow with the number of steps: the time of a metrics refresh, and memory."""

from __future__ import annotations

import ctypes
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from benchmarks import rival, table
from benchmarks.rounds import Samples, Worker, serve
from benchmarks.table import Row

STEP = 1_000_000_000  # ns from one step to the next
WARM = 10_000  # steps before memory is looked at
BURST = 5_000  # steps between two looks of the keeper
MEMORY_TARGET = 16 << 20
HOT_TARGET = 16 << 20
RATIO_TARGET = 1.3
TIME_TARGET = 1e-3
RIVAL_MOST = 100_000  # steps; its refresh takes seconds beyond
REFRESHED = {"totals": "`totals()`", "collect": "`get_metrics_data()` of a metric reader"}
SDK_ALONE = "OpenTelemetry SDK, `get_metrics_data()` of as many constant observations"


def resident() -> int | None:
    """Bytes of memory that the process holds, what its allocator could give back aside; None where nobody tells."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, AttributeError, TypeError):
        return None
    import resource

    return pages * resource.getpagesize()


class Ours:
    """A job of `steps` steps with explicit times, a second each: rolling windows are as full as they get."""

    def __init__(self, stack: ExitStack, steps: int) -> None:
        import otel_goodput as goodput

        self.reader = InMemoryMetricReader()
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="otel-goodput-bench-"))
        recorder = stack.enter_context(
            goodput.Recorder("benchmark", directory=directory, exporters="none", metric_readers=[self.reader])
        )
        self.recorder = recorder
        self.growth: int | None = None
        start = time.time_ns() - steps * STEP
        stack.enter_context(recorder.job(start_time=start))
        before = None
        noise = 1
        for number in range(steps):
            if number == WARM:
                before = self._resident()
            elif number % BURST == 0:
                recorder.flush()  # else it would be chance how far the keeper lags behind such a loop
            at = start + number * STEP
            noise = noise * 48271 % 2147483647
            with recorder.data_loading(start_time=at + 10_000_000, end_time=at + 50_000_000 + noise % 10_000_000):
                pass
            with recorder.step(number, start_time=at + 60_000_000, end_time=at + 900_000_000 + noise % 90_000_000):
                pass
            if number % 1_000 == 999:
                with recorder.checkpoint_save(number, start_time=at + 995_000_000, end_time=at + 999_000_000):
                    pass
        after = self._resident()
        if before is not None and after is not None:
            self.growth = after - before

    def _resident(self) -> int | None:
        self.recorder.flush()
        self.collect()
        return resident()

    def totals(self) -> None:
        self.recorder.totals()

    def collect(self) -> None:
        self.reader.get_metrics_data()


class Constant:
    """The SDK's own share of a collection: as many instruments and observations as `job` has, all of them constants."""

    def __init__(self, stack: ExitStack, job: Ours) -> None:
        self._reader = InMemoryMetricReader()
        provider = MeterProvider([self._reader], exemplar_filter=AlwaysOffExemplarFilter(), shutdown_on_exit=False)
        stack.callback(provider.shutdown)
        meter = provider.get_meter("benchmark")
        data = job.reader.get_metrics_data()
        assert data is not None
        for metric in data.resource_metrics[0].scope_metrics[0].metrics:
            points = metric.data.data_points
            constants = [
                Observation(point.value, dict(point.attributes or {}))
                for point in points
                if isinstance(point, NumberDataPoint)
            ]
            if constants:
                meter.create_observable_gauge(metric.name, [lambda _, constants=constants: constants])
        self.collect()

    def collect(self) -> None:
        self._reader.get_metrics_data()


class Hot:
    """A loop of `steps` steps without content: it runs ahead of the ledger, which must not cost memory or patience."""

    def __init__(self, stack: ExitStack, steps: int) -> None:
        import otel_goodput as goodput

        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="otel-goodput-bench-"))
        recorder = goodput.Recorder(
            "benchmark", directory=directory, exporters="none", metric_readers=[InMemoryMetricReader()]
        )
        before = 0
        with recorder.job():
            began = time.perf_counter()
            for number, _ in recorder.steps(range(steps)):
                if number == WARM:
                    before = resident() or 0
            looped = time.perf_counter() - began
            self.figures = {"growth": (resident() or 0) - before, "loop": steps / looped}
            began = time.perf_counter()
            totals = recorder.totals()
            self.figures["totals"] = time.perf_counter() - began
            self.figures["followed"] = totals.executed / (time.perf_counter() - began + looped)
            self.figures["behind"] = totals.behind / 1e9
        began = time.perf_counter()
        recorder.shutdown()
        self.figures["shutdown"] = time.perf_counter() - began


def _mean(act: Callable[[], None], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        act()
    return (time.perf_counter() - began) / times


def main() -> None:
    """Serves measurements of the job named on the command line: ours or the rival's, of so many steps."""
    whose, steps = sys.argv[1], int(sys.argv[2])
    with ExitStack() as stack:
        if whose == "hot":
            figures = Hot(stack, steps).figures

            def answer() -> dict[str, float]:
                return figures

        elif whose == "ours":
            job = Ours(stack, steps)
            job.collect()
            constant = Constant(stack, job)

            def answer(times: int) -> dict[str, float]:
                means = {
                    "totals": _mean(job.totals, times),
                    "collect": _mean(job.collect, times),
                    "SDK": _mean(constant.collect, times),
                }
                return means if job.growth is None else {**means, "growth": job.growth}

        else:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="otel-goodput-bench-"))
            theirs = rival.Monitored(steps, directory, time.time())
            theirs.refresh()

            def answer(times: int) -> dict[str, float]:
                spent = 0.0
                for _ in range(times):
                    theirs.record()
                    spent += _mean(theirs.refresh, 1)
                return {"rival": spent / times}

        serve(answer)


def measure(samples: Samples, *, fast: bool) -> list[Row]:
    """Rounds over jobs of all sizes, each in a process that stays."""
    sizes = (1_000, 20_000, 100_000) if fast else (1_000, 10_000, 100_000, 1_000_000)
    rounds = 5 if fast else 15
    growth: list[float] = []
    with ExitStack() as stack:
        ours = {size: stack.enter_context(Worker("growth", "ours", size)) for size in sizes}
        theirs: dict[int, Worker] = {}
        if rival.installed():
            most = 20_000 if fast else RIVAL_MOST
            theirs = {size: stack.enter_context(Worker("growth", "rival", size)) for size in sizes if size <= most}
        for worker in (*ours.values(), *theirs.values()):
            worker.ask(times=1)
        for at in range(rounds):
            for size, worker in ours.items():
                answer = worker.ask(times=30)
                for kind in (*REFRESHED, "SDK"):
                    samples.add(f"refresh {kind}: {size}", answer[kind], loops=30)
                if "growth" in answer and size == sizes[-1]:
                    growth.append(answer["growth"])
            for size, worker in theirs.items():
                if at < 5:
                    samples.add(f"refresh rival: {size}", worker.ask(times=1)["rival"])
    rows = [row for kind, what in REFRESHED.items() for row in _refresh(samples, kind, what, sizes)]
    last = f"refresh SDK: {sizes[-1]}"
    rows.append(
        Row(
            _REFRESH,
            SDK_ALONE,
            table.compared(samples.ratios(last, f"refresh collect: {sizes[-1]}")),
            table.seconds(samples.median(last)),
        )
    )
    rows += _rival(samples, [size for size in sizes if size in theirs])
    return [*rows, _memory(samples, sizes[-1], growth[:1]), *_hot(sizes[-1])]


def _hot(steps: int) -> list[Row]:
    """A loop that runs ahead of its ledger, in a process of its own."""
    with Worker("growth", "hot", steps) as worker:
        answer = worker.ask()
    group = f"A hot loop of {steps:,} steps with nothing in them, a metric reader listening"
    return [
        Row(group, "steps of the loop", "", table.per_second(answer["loop"])),
        Row(group, "steps that the ledger followed meanwhile", "", table.per_second(answer["followed"])),
        Row(group, "`totals()` in its midst", "", table.seconds(answer["totals"]), "< 3 s", answer["totals"] < 3),
        Row(group, "how far that is behind, as it says", "", table.seconds(answer["behind"])),
        Row(
            group, "`shutdown()` right behind it", "", table.seconds(answer["shutdown"]), "< 10 s",
            answer["shutdown"] < 10,
        ),
        Row(
            group, "growth of memory", "", table.mebibytes(answer["growth"]), f"≤ {table.mebibytes(HOT_TARGET)}",
            answer["growth"] <= HOT_TARGET,
        ),
    ]  # fmt: skip


_REFRESH = "One metrics refresh after N steps"


def _refresh(samples: Samples, kind: str, what: str, sizes: tuple[int, ...]) -> list[Row]:
    rows: list[Row] = []
    first, last = sizes[0], sizes[-1]
    for size in sizes:
        name = f"refresh {kind}: {size}"
        ratios = samples.ratios(name, f"refresh {kind}: {first}")
        middle, taken = statistics.median(ratios), samples.median(name)
        final = size == last
        # A reader's collection spends most of its time in the SDK, see SDK_ALONE.
        limit = f"< {RATIO_TARGET:g}×" + (f", < {table.seconds(TIME_TARGET)}" if kind == "totals" else "")
        rows.append(
            Row(
                _REFRESH,
                f"otel_goodput, {what}, {size:,} steps",
                "1×" if size == first else table.compared(ratios),
                table.seconds(taken),
                limit if final else "",
                middle < RATIO_TARGET and (taken < TIME_TARGET or kind != "totals") if final else None,
            )
        )
    return rows


def _rival(samples: Samples, sizes: list[int]) -> list[Row]:
    if not sizes:
        return [Row(_REFRESH, "ml-goodput-measurement", "", rival.MISSING)]
    return [
        Row(
            _REFRESH,
            f"ml-goodput-measurement, `get_job_goodput()`, {size:,} steps",
            "1×"
            if size == sizes[0]
            else table.compared(samples.ratios(f"refresh rival: {size}", f"refresh rival: {sizes[0]}")),
            table.seconds(samples.median(f"refresh rival: {size}")),
        )
        for size in sizes
    ]


def _memory(samples: Samples, steps: int, growth: list[float]) -> Row:
    group, what = "Memory", f"growth from {WARM:,} to {steps:,} steps"
    if not growth:
        return Row(group, what, "", "this system does not tell")
    samples.add("memory growth", growth[0], unit="byte")
    return Row(
        group,
        what,
        "",
        table.mebibytes(growth[0]),
        f"≤ {table.mebibytes(MEMORY_TARGET)} in 1,000,000",
        growth[0] <= MEMORY_TARGET,
    )


if __name__ == "__main__":
    main()
