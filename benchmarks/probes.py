"""What watching jax takes from the training thread: ``python -m benchmarks.probes NAME`` answers for one of them."""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache, partial
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from benchmarks.rounds import serve
from benchmarks.step import Discard, work_of

PACE_S = 0.0015  # of work between two steps of which the costs of observe() are taken
WARM_UP = 128  # steps recorded before a measurement, so that no longer every one is exported
CHUNK = 50  # steps in a row that are observed alike
RUN = 500  # dispatches in a row; a busy system disturbs some of such runs and not their median
RECORDED = {  # by jax.monitoring, and what registers a listener
    "record_event": "register_event_listener",
    "record_event_duration_secs": "register_event_duration_secs_listener",
    "record_scalar": "register_scalar_listener",
    "record_event_time_span": "register_event_time_span_listener",
}


@contextmanager
def recorded(length: float, device_clock: str = "auto") -> Iterator[Any]:
    """A recorder with an open job that has some steps of `length` seconds behind it, as most of a training's have."""
    import jax  # noqa: F401  # else there is nothing to listen to

    import otel_goodput as goodput

    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="otel-goodput-bench-"))
        recorder = stack.enter_context(
            goodput.Recorder(
                "benchmark",
                directory=directory,
                exporters="none",
                integrations="jax",
                device_clock=device_clock,
                span_processors=[BatchSpanProcessor(Discard())],
            )
        )
        ns = round(length * 1e9)
        start = time.time_ns() - (WARM_UP + 1) * ns
        stack.enter_context(recorder.job(start_time=start))
        for number in range(WARM_UP):
            at = start + number * ns
            with recorder.step(number, start_time=at, end_time=at + ns):
                pass
        recorder.flush()
        yield recorder


def observe(chunks: int) -> dict[str, float]:
    """Seconds of the training thread by ``median …`` and ``p99 …``, less what taking the time takes."""
    import jax

    clock = time.perf_counter_ns
    annotation = jax.profiler.StepTraceAnnotation
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Discard()))
    span = partial(provider.get_tracer("benchmark").start_as_current_span, context=Context())
    leaves = [jax.numpy.full((1 + at % 7,), 1.0) for at in range(300)]
    scalar = jax.numpy.float32(1.0)
    outputs = {"scalar": scalar, "3 leaves": dict(zip("abc", leaves, strict=False)), "300 leaves": leaves}
    for leaf in (scalar, *leaves):
        leaf.block_until_ready()

    def observed(output: Any) -> Callable[[Any], int]:
        def measured(step: Any) -> int:
            began = clock()
            step.observe(output)
            return clock() - began

        return measured

    def timer(_: Any) -> int:
        began = clock()
        return clock() - began

    def annotated(step: Any) -> int:
        began = clock()
        with annotation("step", step_num=step.step):
            pass
        return clock() - began

    def spanned(_: Any) -> int:
        began = clock()
        with span("step"):
            pass
        return clock() - began

    acts: dict[str, Callable[[Any], int]] = {"timer": timer, "annotation": annotated, "SDK": spanned}
    acts |= {name: observed(output) for name, output in outputs.items()}
    spent: dict[str, list[int]] = {name: [] for name in acts}
    work = work_of(PACE_S)
    with recorded(PACE_S) as recorder:
        numbers = itertools.count(WARM_UP)
        for _ in range(chunks):
            for name, act in acts.items():
                for _ in range(CHUNK):
                    work()
                    with recorder.step(next(numbers)) as step:
                        took = act(step)
                        step.observe(scalar)  # else the watcher would fall asleep between the chunks
                    spent[name].append(took)
    provider.shutdown()
    own = statistics.median(spent.pop("timer"))
    figures: dict[str, float] = {}
    for name, values in spent.items():
        figures[f"median {name}"] = (statistics.median(values) - own) / 1e9
        figures[f"p99 {name}"] = (sorted(values)[len(values) * 99 // 100] - own) / 1e9
    return figures


def _listen(listener: Callable[[str], Callable[..., None]]) -> Any:
    """Register ``listener(kind)`` for every kind of event that this jax has; returns the module that records them."""
    from jax._src import monitoring

    for record, register in RECORDED.items():
        if hasattr(monitoring, register):
            getattr(monitoring, register)(listener(record))
    return monitoring


def _deafen(monitoring: Any) -> None:
    """Take back all listeners."""
    monitoring.clear_event_listeners()
    getattr(monitoring, "_scalar_listeners", []).clear()  # which jax leaves


@cache
def _compilation() -> tuple[Callable[[], None], ...]:
    """Calls that record anew what jax recorded of a compilation: all of it, in its order."""
    import jax

    events: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    monitoring = _listen(lambda kind: lambda *arguments, **more: events.append((kind, arguments, more)))
    state = jax.numpy.ones((8, 8)).block_until_ready()

    def train_step(a: Any) -> Any:
        return jax.numpy.tanh(a @ a).sum()

    events.clear()
    jax.jit(train_step)(state).block_until_ready()
    _deafen(monitoring)
    return tuple(partial(getattr(monitoring, kind), *arguments, **more) for kind, arguments, more in events)


def _ignore(*_: object, **__: object) -> None:
    """What the cheapest listener does."""


def compilation(replays: int) -> dict[str, float]:
    """Seconds an event: ``cpu …`` of the compiling thread, the mean; ``wall …``, the median over the replays."""
    calls = _compilation()

    def nothing(_: int) -> AbstractContextManager[None]:
        return nullcontext()

    def spent(clock: Callable[[], int], calls: Sequence[Callable[[], None]], around: Callable[[int], Any]) -> list[int]:
        lengths: list[int] = []
        for number in range(WARM_UP, WARM_UP + replays):
            with around(number):
                began = clock()
                for call in calls:
                    call()
                lengths.append(clock() - began)
        return lengths

    figures: dict[str, float] = {"events": len(calls)}

    def take(name: str, around: Callable[[int], Any] = nothing, rest: Callable[[], object] = lambda: None) -> None:
        for kind, clock, average in (
            ("cpu", time.thread_time_ns, statistics.fmean),
            ("wall", time.perf_counter_ns, statistics.median),
        ):
            own = average(spent(clock, (), around))
            rest()
            figures[f"{kind} {name}"] = (average(spent(clock, calls, around)) - own) / len(calls) / 1e9
            rest()

    take("warm-up")
    take("alone")
    monitoring = _listen(lambda _: _ignore)
    take("idle")
    _deafen(monitoring)
    with recorded(PACE_S) as recorder:
        # In between the keeper catches up: no job compiles thousands of times in a row.
        take("outside", rest=recorder.flush)
        take("inside", recorder.step, recorder.flush)
    return figures


@cache
def _dispatched() -> tuple[Callable[[Any], Any], Any, dict[str, int]]:
    """A compiled function that does next to nothing, its argument, and a count of all events of jax from now on."""
    import jax

    counter = {"events": 0}

    def count(*_: object, **__: object) -> None:
        counter["events"] += 1

    state = jax.numpy.float32(1.0)
    _listen(lambda _: count)
    function = jax.jit(lambda a: a + 1)
    function(state).block_until_ready()
    if not counter["events"]:
        raise RuntimeError("jax compiled and told nothing of it: nor would it of a dispatch")
    return function, state, counter


def dispatches(times: int, ours_first: bool) -> dict[str, float]:
    """Seconds a dispatch of what is compiled already, with our listeners and alone; events of jax meanwhile."""
    function, state, counter = _dispatched()

    def dispatched() -> float:
        took = []
        for _ in range(times // RUN):
            began = time.perf_counter()
            for _ in range(RUN):
                out = function(state)
            out.block_until_ready()
            took.append((time.perf_counter() - began) / RUN)
        return statistics.median(took)

    dispatched()
    figures: dict[str, float] = {"events": 0}
    for ours in (ours_first, not ours_first):
        with recorded(PACE_S) if ours else nullcontext():
            counter["events"] = 0
            figures["ours" if ours else "alone"] = dispatched()
            figures["events"] += counter["events"]
    return figures


ANSWERS: dict[str, Callable[..., dict[str, float]]] = {
    "observe": observe,
    "compilation": compilation,
    "dispatches": dispatches,
}


def main(answers: Mapping[str, Callable[..., dict[str, float]]]) -> None:
    """Serves the measurement named on the command line; its device is one core."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    serve(answers[sys.argv[1]])


if __name__ == "__main__":
    main(ANSWERS)
