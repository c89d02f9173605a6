"""What watching the device takes in the background, and how true it is: ``python -m benchmarks.device NAME``."""

from __future__ import annotations

import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from benchmarks import probes
from benchmarks.probes import PACE_S, WARM_UP, recorded
from benchmarks.step import Discard, work_of

KNOWN_MS = 20  # of the steps whose length is known
WATCHER = "otel-goodput-device-clock"


@cache
def _step_of(milliseconds: float) -> tuple[Callable[[Any], Any], Any]:
    """A training step that keeps one core of the device busy for about so long, compiled, and its first state."""
    import jax

    state = jax.numpy.ones((64, 64)) * 1e-3

    def build(turns: int) -> Callable[[Any], Any]:
        def step(a: Any) -> tuple[Any, Any]:
            a = jax.lax.fori_loop(0, turns, lambda _, b: jax.numpy.tanh(b @ b), a)
            return a, a.sum()

        return jax.jit(step)

    def taken(step: Callable[[Any], Any]) -> float:
        began = time.perf_counter()
        step(state)[1].block_until_ready()
        return time.perf_counter() - began

    probe = build(200)
    taken(probe)
    step = build(max(1, round(200 * milliseconds / 1e3 / min(taken(probe) for _ in range(9)))))
    taken(step)
    return step, state


class Sleeper(threading.Thread):
    """Sleeps, `seconds` at a time, and does nothing else: what a thread cannot undercut that wakes once a step."""

    def __init__(self, seconds: float) -> None:
        super().__init__(daemon=True)
        self._seconds = seconds
        self.slept = 0
        self.over = False
        self.start()

    def run(self) -> None:
        while not self.over:
            time.sleep(self._seconds)
            self.slept += 1


def _cpu(thread: threading.Thread) -> float | None:
    """Seconds of CPU that it has taken; None where nobody tells."""
    try:
        assert thread.ident is not None
        return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    except (AttributeError, OSError):
        return None


def _wakeups(thread: threading.Thread) -> int | None:
    """How often it has gone to sleep by itself; None where nobody tells."""
    try:
        status = Path(f"/proc/self/task/{thread.native_id}/status").read_text(encoding="ascii")
    except OSError:
        return None
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("voluntary_ctxt")), None)


def watch(milliseconds: float, bound: str, how: str, steps: int, warm: int) -> dict[str, float]:
    """CPU seconds and wake-ups a step of our watcher, CPU seconds a sleep of a bare sleeper; less where untold.

    `how`: the steps are ``marked`` by themselves, or their user has them ``observed``. ``wall``: seconds a step took.
    """
    train, state = _step_of(milliseconds)
    length = milliseconds / 1e3
    with recorded(length) as recorder:

        def loop(first: int, count: int) -> None:
            out, waiting = state, None
            for number in range(first, first + count):
                with recorder.step(number) as step:
                    out, loss = train(out)
                    if how == "observed":
                        step.observe(loss)
                if bound == "host":
                    loss.block_until_ready()
                    time.sleep(length / 2)
                elif waiting is not None:
                    waiting.block_until_ready()
                waiting = loss

        sleeper = Sleeper(length)
        loop(WARM_UP, warm)
        watcher = next(thread for thread in threading.enumerate() if thread.name == WATCHER)
        threads = {"cpu": (watcher, _cpu), "sleep": (sleeper, _cpu), "wakeups": (watcher, _wakeups)}
        before = {name: ask(thread) for name, (thread, ask) in threads.items()}
        slept, began = sleeper.slept, time.perf_counter()
        loop(WARM_UP + warm, steps)
        wall = (time.perf_counter() - began) / steps
        after = {name: ask(thread) for name, (thread, ask) in threads.items()}
        per = {"cpu": steps, "wakeups": steps, "sleep": max(1, sleeper.slept - slept)}
        sleeper.over = True
    shares = {
        name: (end - begin) / per[name]
        for name, end in after.items()
        if end is not None and (begin := before[name]) is not None
    }
    return {**shares, "wall": wall}


def mark(steps: int) -> dict[str, float]:
    """Seconds of the training thread by ``median`` and ``p99`` to mark the end of a step, its device idle."""
    import jax

    spent: list[int] = []
    clock = time.perf_counter_ns
    work = work_of(PACE_S)
    with recorded(PACE_S) as recorder:
        jax.numpy.float32(1.0).block_until_ready()
        recorder.flush()
        with recorder.step(WARM_UP):
            pass
        recorder.totals()
        device = recorder.tracer.hooks.device
        for number in range(WARM_UP + 1, WARM_UP + 1 + steps):
            work()
            with recorder.step(number) as step:
                began = clock()
                marked = device.end_step(step, recorder.tracer.clock())
                spent.append(clock() - began)
            assert marked is not None
    spent.sort()
    return {"median": spent[steps // 2] / 1e9, "p99": spent[steps * 99 // 100] / 1e9}


def slowdown(milliseconds: float, pairs: int, steps: int) -> dict[str, float]:
    """Of a live loop whose steps are marked, relative to the same loop bare: mean and median over so many interleaved
    pairs, and the upper bound of 95 % of each (by bootstrap). A machine that is slower for a second shows in the mean.
    """
    train, state = _step_of(milliseconds)

    def bare() -> float:
        out, waiting = state, None
        began = time.perf_counter()
        for _ in range(steps):
            out, loss = train(out)
            if waiting is not None:
                waiting.block_until_ready()
            waiting = loss
        loss.block_until_ready()
        return time.perf_counter() - began

    with recorded(milliseconds / 1e3) as recorder:

        def marked(first: int) -> float:
            out, waiting = state, None
            began = time.perf_counter()
            for number in range(first, first + steps):
                with recorder.step(number):
                    out, loss = train(out)
                    if waiting is not None:
                        waiting.block_until_ready()
                    waiting = loss
            loss.block_until_ready()
            return time.perf_counter() - began

        bare(), marked(WARM_UP)
        ratios = []
        for at in range(pairs):
            first = WARM_UP + (1 + at) * steps
            if at % 2:
                ours, alone = marked(first), bare()
            else:
                alone, ours = bare(), marked(first)
            ratios.append(ours / alone)
    draw = random.Random(1)
    medians: dict[str, float] = {"pairs": pairs}
    for name, middle in (("mean", statistics.fmean), ("median", statistics.median)):
        medians[name] = middle(ratios)
        medians[f"{name} upper"] = sorted(middle(draw.choices(ratios, k=pairs)) for _ in range(2000))[1900]
    return medians


def short(milliseconds: float, blocks: int, steps: int) -> dict[str, float]:
    """Seconds a step of a loop of very short steps, by who records them: ``mean``, ``p95`` of single steps, and
    ``background``, the CPU time of the interpreter's other threads, which compete with the loop's for the GIL.

    ``bare``: nobody; ``marks``: ``steps()`` with the device clock; ``host``: with the host's; ``SDK``: two spans.
    """
    train, state = _step_of(milliseconds)
    clock = time.perf_counter_ns

    def background() -> float:
        others = (thread for thread in threading.enumerate() if thread is not threading.current_thread())
        return sum(_cpu(thread) or 0 for thread in others)

    def timed(numbers: Iterable[Any], traced: bool = False) -> tuple[float, float, float]:
        out, took, spent = state, [], background()
        began = last = clock()
        for _ in numbers:
            if traced:
                with span("data_loading"):
                    pass
                with span("step"):
                    out, loss = train(out)
            else:
                out, loss = train(out)
            now = clock()
            took.append(now - last)
            last = now
        loss.block_until_ready()
        mean = (clock() - began) / steps / 1e9
        return mean, sorted(took)[steps * 95 // 100] / 1e9, (background() - spent) / steps

    taken: dict[str, list[tuple[float, float, float]]] = {"bare": [], "marks": [], "host": [], "SDK": []}
    with ExitStack() as stack:
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(Discard()))
        stack.callback(provider.shutdown)
        span = provider.get_tracer("benchmark").start_as_current_span
        for name in ("marks", "host", "SDK"):
            first = WARM_UP
            with ExitStack() as of_one:
                if name != "SDK":
                    clock_of = "auto" if name == "marks" else "host"
                    recorder = of_one.enter_context(recorded(milliseconds / 1e3, clock_of))
                for at in range(blocks + 1):
                    bare = timed(range(steps))
                    numbers = range(steps) if name == "SDK" else recorder.steps(range(steps), start=first)
                    ours = timed(numbers, traced=name == "SDK")
                    first += steps
                    if at:
                        taken["bare"].append(bare)
                        taken[name].append(ours)
    return {
        f"{name} {kind}": statistics.median(each[at] for each in values)
        for name, values in taken.items()
        for at, kind in enumerate(("mean", "p95", "background"))
    }


class Leaf:
    """What an array is to the watcher: ready at exactly `end`, ns of the monotonic clock."""

    def __init__(self, end: int) -> None:
        self.end = end

    def is_ready(self) -> bool:
        return time.monotonic_ns() >= self.end

    def is_deleted(self) -> bool:
        return False


def accuracy(steps: int, seed: int) -> dict[str, float]:
    """Seconds on steps as the account has them, and those in which the device was truly busy."""
    import otel_goodput as goodput

    busy, noise = 0, seed
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="otel-goodput-bench-"))
        recorder = goodput.Recorder("benchmark", directory=directory, exporters="none", integrations="none")
        stack.callback(recorder.shutdown)
        with recorder.job():
            for number in range(steps):
                noise = noise * 48271 % 2147483647
                length = round(KNOWN_MS * 1e6 * (0.9 + 0.2 * noise / 2147483647))
                with recorder.step(number) as step:
                    leaf = Leaf(time.monotonic_ns() + length)
                    step.observe(leaf)
                time.sleep(max(0, leaf.end - time.monotonic_ns()) / 1e9)
                time.sleep(KNOWN_MS / 2e3)
                busy += length
        recorder.shutdown()
        totals = recorder.totals()
    categories = totals.run.categories
    on_steps = categories["productive"] + categories["program_startup"]
    return {"account": on_steps / 1e9, "device": busy / 1e9, "kept": totals.kept}


ANSWERS: dict[str, Callable[..., dict[str, float]]] = {
    "watch": watch,
    "accuracy": accuracy,
    "mark": mark,
    "short": short,
    "slowdown": slowdown,
}


if __name__ == "__main__":
    probes.main(ANSWERS)
