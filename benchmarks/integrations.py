"""What watching jax costs: ``step.observe()``, listeners on its compilations, a thread that watches the device."""

from __future__ import annotations

import importlib.util
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks import table
from benchmarks.device import KNOWN_MS
from benchmarks.probes import CHUNK, PACE_S
from benchmarks.rounds import Samples, Worker
from benchmarks.table import Row

MISSING = "jax is not installed: not measured"
UNTOLD = "this system does not tell"
OBSERVE_TARGET_S = 2e-6
EVENT_TARGET_S = 1e-6
NOISE = 0.03  # of 1
MARK_TARGET_S = 25e-6
SLOWDOWN_TARGET = 1.01
WATCHER_TARGETS = {2: 0.03, 20: 0.01}  # of a core, by the steps' length in ms
ACCURACY = (0.97, 1.03)

OBSERVED = {
    "annotation": "`jax.profiler.StepTraceAnnotation`, entered and left, no profiler running",
    "SDK": "OpenTelemetry SDK, one span started and ended",
    "scalar": "otel_goodput, `step.observe(loss)`, a scalar that is ready",
    "3 leaves": "otel_goodput, `step.observe(outputs)`, a tree of 3 arrays",
    "300 leaves": "otel_goodput, `step.observe(outputs)`, a tree of 300 arrays",
}
LISTENING = {
    "alone": "jax alone, nobody listens",
    "idle": "listeners to all kinds of events that do nothing",
    "outside": "otel_goodput, in a job, outside its steps",
    "inside": "otel_goodput, in a job, each compilation inside an open step",
}
CLOCKS = {
    "cpu": "CPU time of the compiling thread, mean; what the background does with it is not counted",
    "wall": "wall time, median; the background competing for the interpreter",
}
SHORT_MS = 0.3
SHORT = {
    "bare": "the loop alone",
    "SDK": "OpenTelemetry SDK, two spans alone",
    "host": "otel_goodput, `steps()`, the host's clock",
    "marks": "otel_goodput, `steps()`, the device clock",
}
LENGTHS_MS = (2, 20, 100)
BOUNDS = {
    "device": "the device never waits (the loss of the step before is waited for)",
    "host": "each step is waited for, then half a step of idle",
}
HOW = {"marked": "marked by themselves", "observed": "`step.observe(loss)`"}
WATCHED = [(length, bound, how) for length in LENGTHS_MS for bound in BOUNDS for how in HOW]


@dataclass
class Tally:
    """What is counted and no time.

    Attributes:
        events, dispatches: of jax during so many dispatches of what is compiled already.
        compiling: events of one compilation.
        pairs: of a loop with and without us.
        woken: how often the watcher was woken in a step, by round, by what was watched.
    """

    events: int = 0
    dispatches: int = 0
    compiling: int = 0
    pairs: int = 0
    woken: defaultdict[tuple[int, str, str], list[float]] = field(default_factory=lambda: defaultdict(list))


def measure(samples: Samples, *, fast: bool) -> list[Row]:
    """Rounds over all measurements, each in a process that stays."""
    with_jax = importlib.util.find_spec("jax") is not None
    modules = {"accuracy": "device"}
    if with_jax:
        modules |= {"observe": "probes", "compilation": "probes", "dispatches": "probes"}
        modules |= {"watch": "device", "mark": "device", "short": "device", "slowdown": "device"}
    tally = Tally()
    known = 25 if fast else 100
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(module, name)) for name, module in modules.items()}
        for at in range(1 if fast else 3):
            if with_jax:
                _round(samples, workers, tally, fast)
            answer = workers["accuracy"].ask(steps=known, seed=1 + at)
            if answer.pop("kept") != known:
                raise RuntimeError(f"of {known} observed steps some are not in the account")
            _add(samples, "accuracy", answer)
        if with_jax:
            answer = workers["slowdown"].ask(milliseconds=20, pairs=3 if fast else 120, steps=10)
            tally.pairs = round(answer.pop("pairs"))
            _add(samples, "slowdown", answer)
    if not with_jax:
        return [
            Row("Watching jax", "its compilations, the training thread, the device", "", MISSING),
            _accuracy(samples),
        ]
    return [
        *_observe(samples),
        *_compilation(samples, tally),
        *_dispatches(samples, tally),
        *_watch(samples, tally),
        _mark(samples),
        *_short(samples),
        *(_slowdown(samples, tally, name) for name in ("mean", "median")),
        _accuracy(samples),
    ]


def _round(samples: Samples, workers: Mapping[str, Worker], tally: Tally, fast: bool) -> None:
    _add(samples, "observe", workers["observe"].ask(chunks=2 if fast else 6), inner=CHUNK)
    answer = workers["compilation"].ask(replays=300 if fast else 500)
    tally.compiling = round(answer.pop("events"))
    _add(samples, "compilation", answer)
    times = 5_000 if fast else 20_000
    for again in range(4 if fast else 8):
        answer = workers["dispatches"].ask(times=times, ours_first=bool(again % 2))
        tally.events += round(answer.pop("events"))
        tally.dispatches += 2 * times
        _add(samples, "dispatch", answer, inner=times)
    _add(samples, "mark", workers["mark"].ask(steps=200 if fast else 1_000))
    _add(samples, "short", workers["short"].ask(milliseconds=SHORT_MS, blocks=3 if fast else 20, steps=500))
    for length, bound, how in WATCHED:
        steps = max(5, (200 if fast else 1_200) // length)
        question = {"milliseconds": length, "bound": bound, "how": how, "steps": steps, "warm": max(5, steps // 4)}
        answer = workers["watch"].ask(**question)
        if "wakeups" in answer:
            tally.woken[length, bound, how].append(answer.pop("wakeups"))
        _add(samples, f"watch {length} {bound} {how}", answer, inner=steps)


def _add(samples: Samples, what: str, figures: dict[str, float], inner: int = 1) -> None:
    for name, value in figures.items():
        samples.add(f"{what}: {name}", value, inner=inner)


def _ranged(values: Sequence[float]) -> str:
    """The median of so many seconds, and the range in which they lay."""
    if len(values) < 2:
        return table.seconds(values[0])
    return f"{table.seconds(statistics.median(values))} ({table.seconds(min(values))} to {table.seconds(max(values))})"


def _at_most(values: Sequence[float], limit: float) -> tuple[str, bool]:
    return f"≤ {table.seconds(limit)}", statistics.median(values) <= limit


def _observe(samples: Samples) -> list[Row]:
    rows: list[Row] = []
    for kind in ("median", "p99"):
        title = f"`step.observe()`, {PACE_S * 1e3:g} ms of work before each step: wall time of the call, {kind}"
        for name, what in OBSERVED.items():
            values = samples.values(f"observe: {kind} {name}")
            ratios = samples.ratios(f"observe: {kind} {name}", f"observe: {kind} annotation")
            rows.append(
                Row(
                    title,
                    what,
                    "1×" if name == "annotation" else table.compared(ratios),
                    _ranged(values),
                    *(_at_most(values, OBSERVE_TARGET_S) if (kind, name) == ("median", "scalar") else ()),
                )
            )
    return rows


def _compilation(samples: Samples, tally: Tally) -> list[Row]:
    rows: list[Row] = []
    for kind, how in CLOCKS.items():
        title = f"One of the {tally.compiling} events that jax tells of a compilation, replayed in a row: {how}"
        alone = f"compilation: {kind} alone"
        for name, what in LISTENING.items():
            key = f"compilation: {kind} {name}"
            if name == "alone":
                rows.append(Row(title, what, "1×", _ranged(samples.values(key))))
                continue
            more = [a - b for a, b in zip(samples.values(key), samples.values(alone), strict=True)]
            ours, cpu = name != "idle", kind == "cpu"
            rows.append(
                Row(
                    title,
                    what,
                    table.compared(samples.ratios(key, alone)),
                    f"{table.seconds(samples.median(key))}, that is {_ranged(more)} more",
                    *(_at_most(more, EVENT_TARGET_S) if ours and cpu else ()),
                )
            )
    return rows


def _dispatches(samples: Samples, tally: Tally) -> list[Row]:
    title = "A dispatch of a function that is compiled already"
    ratios = samples.ratios("dispatch: ours", "dispatch: alone")
    return [
        Row(title, "jax alone", "1×", _ranged(samples.values("dispatch: alone"))),
        Row(
            title,
            "a recorder listening to jax, no phases recorded",
            table.compared(ratios),
            _ranged(samples.values("dispatch: ours")),
            f"{1 - NOISE:g}× to {1 + NOISE:g}×",
            abs(statistics.median(ratios) - 1) <= NOISE,
        ),
        Row(
            title,
            "events that jax tells meanwhile, of every kind: what our listeners are called for",
            "",
            f"{tally.events:,} in {tally.dispatches:,} dispatches; {tally.compiling} in one compilation",
            "0",
            tally.events == 0,
        ),
    ]


def _watch(samples: Samples, tally: Tally) -> list[Row]:
    title = (
        "The thread that watches the device: its CPU time a step, relative to a bare thread that only sleeps, "
        "once a step, at the same time in the same process"
    )
    rows: list[Row] = []
    for length, bound, how in WATCHED:
        what = f"steps of about {length} ms, {HOW[how]}; {BOUNDS[bound]}"
        name = f"watch {length} {bound} {how}"
        try:
            values, bare = samples.values(f"{name}: cpu"), samples.values(f"{name}: sleep")
        except KeyError:
            rows.append(Row(title, what, "", UNTOLD))
            continue
        wakeups = tally.woken[length, bound, how]
        share = statistics.median(samples.ratios(f"{name}: cpu", f"{name}: wall"))
        target = WATCHER_TARGETS.get(length)
        rows.append(
            Row(
                title,
                what,
                table.compared(samples.ratios(f"{name}: cpu", f"{name}: sleep")),
                f"{_ranged(values)}, {share:.2%} of a core"
                + (f", {statistics.median(wakeups):.1f} wake-ups" if wakeups else "")
                + f"; a bare sleep {table.seconds(statistics.median(bare))}",
                *((f"≤ {target:.0%} of a core", share <= target) if target else ()),
            )
        )
    return rows


def _mark(samples: Samples) -> Row:
    values = samples.values("mark: median")
    return Row(
        f"The end of a step is marked, {PACE_S * 1e3:g} ms of work before each: wall time on the training thread",
        "the whole call, nothing on the device; median",
        "",
        f"{_ranged(values)}; p99 {_ranged(samples.values('mark: p99'))}",
        *_at_most(values, MARK_TARGET_S),
    )


def _short(samples: Samples) -> list[Row]:
    rows = [
        Row(
            f"A loop with steps of about {SHORT_MS:g} ms on the device: wall time of a step, {kind}",
            what,
            "1×" if name == "bare" else table.compared(samples.ratios(f"short: {name} {kind}", f"short: bare {kind}")),
            _ranged(samples.values(f"short: {name} {kind}")),
        )
        for kind in ("mean", "p95")
        for name, what in SHORT.items()
    ]
    background = f"A loop with steps of about {SHORT_MS:g} ms on the device: CPU time of Python's other threads a step"
    rows += [
        Row(background, what, "", _ranged(samples.values(f"short: {name} background")))
        for name, what in SHORT.items()
        if name != "bare"
    ]
    return rows


def _slowdown(samples: Samples, tally: Tally, middle: str) -> Row:
    ratio, upper = samples.median(f"slowdown: {middle}"), samples.median(f"slowdown: {middle} upper")
    return Row(
        "A live loop with steps of about 20 ms that are marked, relative to the same loop without us",
        f"{middle} of {tally.pairs} interleaved pairs; 95 % upper bound",
        f"{ratio:.4f}×",
        f"at most {upper:.4f}×",
        f"≤ {SLOWDOWN_TARGET:g}×",
        upper <= SLOWDOWN_TARGET,
    )


def _accuracy(samples: Samples) -> Row:
    ratios = samples.ratios("accuracy: account", "accuracy: device")
    low, high = ACCURACY
    return Row(
        "The account's time on steps, relative to the time that the device was truly busy",
        f"steps of {KNOWN_MS * 0.9:g} to {KNOWN_MS * 1.1:g} ms that end at known moments, half a step of idle "
        "after each",
        table.compared(ratios),
        f"{samples.median('accuracy: account'):.4f} s for {samples.median('accuracy: device'):.4f} s",
        f"{low:g}× to {high:g}×",
        low <= statistics.median(ratios) <= high,
    )
