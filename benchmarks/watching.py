"""What it costs to watch a job for incidents: everything on against everything off, by parts, and by length of steps.

The loop's steps take 20 ms, in which it computes for a quarter of the time, as one that waits for a device does. Both
variants run at the same time: a loop that stood still meanwhile would be an incident. What is done goes by time and not
by steps: on a busy machine, which makes steps longer, it is that of 20 ms.

Of each part, the processor time of the thread that does it is taken around its calls, in a process of its own. What is
left is what they cost elsewhere: the collector of garbage, caches, threads that wait for the GIL.
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.rounds import Samples, Worker, serve
from benchmarks.table import Row, compared, seconds

F = TypeVar("F", bound=Callable[..., Any])

STEP_S, BUSY_S = 0.02, 0.005
ROUNDS, STEPS = 7, 500  # rounds in the first two minutes, and as many later
PAIRS, TURN = 100, 50  # pairs of turns, and steps of each
PROCESSOR_S, WALL = 20e-6, 1.005  # a step may take so much more, and so many times as long
VARIANTS: dict[str, dict[str, Any]] = {
    "off": {"incidents": "off", "watchdog": "off", "profile": "off"},
    "on": {"usage_interval": "30s"},
    "parts": {"usage_interval": "30s"},
}
LENGTHS: dict[float, tuple[int, int]] = {0.0003: (5, 20_000), 0.002: (5, 4000), 1.0: (4, 12)}  # rounds, steps in each
# By the function that is called at a tick, or every so often by a thread of its own.
PARTS: dict[str, str] = {
    "IncidentWatch.tick": "the detector: a look at the account every 5 s",
    "Watchdog.tick": "the watchdog",
    "Profiler._sample": "the baseline of profiles, in the first two minutes",
    "Profiler.look": "the baseline of profiles: is a sample due?",
    "InputQueue.look": "evidence: how many batches are ready?",
    "ChangedSettings.look": "evidence: settings that change",
    "OwnTimeSampler.tick": "own time in steps, of a job of several ranks",
    "UsageSampler._try": "usage of processor and memory, every 30 s",
    "UsageSheet.keep": "the file of usage",
    "IncidentSheet.keep": "the file of incidents",
    "Inbox.look": "requests of commands, also when all is off",
}
TITLE = "Watching for incidents, steps of 20 ms: on against off"
BY_TURNS = "Watching for incidents, steps of 20 ms: one process that watches in every other second"
BY_PARTS = "Watching for incidents, steps of 20 ms: processor time of a step, by parts"
BY_LENGTH = "Watching for incidents: processor time of all threads, on against off, by length of steps"


class _Parts:
    """Takes the processor time of parts, by name, s, around their calls."""

    def __init__(self) -> None:
        self.spent = Counter[str]()
        self.calls = Counter[str]()

    def wrap(self, recorder: Any) -> None:
        hooks, observers, keeper = recorder._tracer.hooks, recorder._observers, recorder._keeper
        hooks._at_tick = tuple(self._timed(work) for work in hooks._at_tick)
        for owner, name in ((observers.profiler, "_sample"), (observers._usage, "_try")):
            if owner is not None:
                setattr(owner, name, self._timed(getattr(owner, name)))
        for sheet in keeper._sheets:
            sheet.keep = self._timed(sheet.keep)

    def _timed(self, work: F) -> F:
        name = getattr(work, "__qualname__", "")
        if name not in PARTS:
            return work

        def timed(*args: Any, **kwargs: Any) -> Any:
            began, inside = time.thread_time(), self.spent["Profiler._sample"]
            try:
                return work(*args, **kwargs)
            finally:
                spent = time.thread_time() - began
                if name != "Profiler._sample":  # which is called by others
                    spent -= self.spent["Profiler._sample"] - inside
                self.spent[name] += spent
                self.calls[name] += 1

        return timed  # type: ignore[return-value]


def _loop(variant: str, step_s: float, busy_s: float) -> Any:
    import otel_goodput as goodput

    folder = tempfile.mkdtemp(prefix="otel-goodput-bench-")
    options = VARIANTS[variant]
    recorder: Any = goodput.configure("watching", directory=folder, exporters="none", integrations="none", **options)
    parts = _Parts()
    if variant == "parts":
        parts.wrap(recorder)
    numbers = iter(goodput.steps(range(10**9)))
    goodput.job().__enter__()

    hooks = recorder._tracer.hooks
    watching = hooks._at_tick
    others = tuple(work for work in watching if getattr(work, "__qualname__", "") not in PARTS)

    def answer(steps: int, later: bool = False, watched: bool = True) -> dict[str, float]:
        hooks._at_tick = watching if watched else others
        recorder._keeper.pause_by(recorder._observers.profiler.pause if watched else _sleep)
        if later:  # the baseline of profiles is done
            recorder._observers.profiler._end_baseline()
        walls, worked = [], 0.0
        parts.spent.clear()
        parts.calls.clear()
        before = _counts()
        processor, since = time.process_time(), time.perf_counter()
        for _ in range(steps):
            began = time.perf_counter()
            next(numbers)
            own, busy = time.thread_time(), time.perf_counter() + busy_s
            while time.perf_counter() < busy:
                pass
            worked += time.thread_time() - own
            time.sleep(step_s - busy_s)
            walls.append(time.perf_counter() - began)
        processor = time.process_time() - processor - worked
        turns = (time.perf_counter() - since) / step_s  # of the length that they have on an idle machine
        after = _counts()
        return {
            "wall": statistics.fmean(sorted(walls)[: -steps // 20 or None]),  # without the slowest: the host's noise
            "processor": processor / turns,
            **{name: (after[name] - before[name]) / turns for name in before},
            **{name: spent / turns for name, spent in parts.spent.items()},
            **{f"{name} calls": count / turns for name, count in parts.calls.items()},
        }

    return answer


def _sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def _counts() -> dict[str, float]:
    """How often this thread was made to give way; how often others woke up; what was written by calls; collections."""
    status = {path: _lines(path) for path in Path("/proc/self/task").glob("*/status")}
    mine = _lines(Path("/proc/thread-self/status"))
    woken = sum(int(of.get("voluntary_ctxt_switches", 0)) for of in status.values())
    written = _lines(Path("/proc/self/io"))
    return {
        "switches": float(mine["nonvoluntary_ctxt_switches"]),
        "wake-ups": woken - float(mine["voluntary_ctxt_switches"]),
        "writes": float(written["syscw"]),
        "bytes": float(written["wchar"]),
        "collections": float(sum(of["collections"] for of in gc.get_stats())),
    }


def _lines(path: Path) -> dict[str, str]:
    try:
        return dict(line.split(":", 1) for line in path.read_text(encoding="utf-8").splitlines() if ":" in line)
    except OSError:  # the thread has ended
        return {}


Pairs = list[tuple[dict[str, float], dict[str, float]]]


def _pairs(step_s: float, busy_s: float, rounds: int, steps: int, *, both: bool = False) -> tuple[Pairs, Pairs]:
    """Return the answers of off and on in the first minutes and, if `both`, later."""
    first, later = Pairs(), Pairs()
    arguments = step_s, busy_s
    with (
        Worker("watching", "off", *arguments) as off,
        Worker("watching", "on", *arguments) as on,
        ThreadPoolExecutor(2) as at_once,
    ):
        for at in range(rounds + 1 + both * rounds):
            one, other = at_once.map(lambda worker, at=at: worker.ask(steps=steps, later=at > rounds), (off, on))
            if at:  # not the first steps
                (first if at <= rounds else later).append((one, other))
    return first, later


def _more(pairs: Pairs, name: str) -> float:
    return statistics.median(other[name] - one[name] for one, other in pairs)


def measure(samples: Samples, *, fast: bool = False) -> list[Row]:
    rounds, steps = (1, 50) if fast else (ROUNDS, STEPS)
    first, later = _pairs(STEP_S, BUSY_S, rounds, steps, both=True)
    for pairs, when in ((first, ""), (later, " later")):
        for pair in pairs:
            for answer, variant in zip(pair, VARIANTS, strict=False):
                samples.add(f"watching {variant}{when}, wall", answer["wall"])
                samples.add(f"watching {variant}{when}, processor", answer["processor"])
    rows = list[Row]()
    for pairs, when in ((first, "the first minutes"), (later, "later")):
        walls = [other["wall"] / one["wall"] for one, other in pairs]
        wall, more = statistics.median(other["wall"] for _, other in pairs), _more(pairs, "processor")
        ratios = [other["processor"] / one["processor"] for one, other in pairs]
        rows += [
            Row(TITLE, f"{when}: wall time of a step", compared(walls), seconds(wall)),
            Row(TITLE, f"{when}: processor time of all threads, of a step", compared(ratios),
                f"{seconds(more)} more", f"≤ {seconds(PROCESSOR_S)}", more <= PROCESSOR_S),
        ]  # fmt: skip
    for name, what in (
        ("switches", "times that the training thread is made to give way"),
        ("wake-ups", "wake-ups of other threads"),
        ("writes", "writes by calls"),
        ("bytes", "bytes written by calls"),
        ("collections", "runs of the garbage collector"),
    ):
        rows.append(Row(TITLE, f"{what}, of a step", "", f"{_more([*first, *later], name):+.3f}"))
    return [*rows, *wall_in_turns(2 if fast else PAIRS), *_by_parts(rounds, steps), *_by_length(fast=fast)]


def wall_in_turns(count: int) -> list[Row]:
    """Let one process watch, and not watch, in turns of a second."""
    ratios = list[float]()
    with Worker("watching", "on", STEP_S, BUSY_S) as worker:
        for at in range(count + 1):
            answers = {on: worker.ask(steps=TURN, watched=on)["wall"] for on in ((True, False), (False, True))[at % 2]}
            if at:
                ratios.append(answers[True] / answers[False])
    tenth = count // 10
    middle = statistics.fmean(sorted(ratios)[tenth : count - tenth])
    sure = 2 * statistics.stdev(ratios) / count**0.5
    text = f"{middle:.4f}× ({middle - sure:.4f} to {middle + sure:.4f})"
    what = f"wall time of a step: mean of {count} pairs without the tenths at both ends, and two standard errors"
    decided = middle + sure <= WALL or middle - sure > WALL  # not on a busy machine
    return [
        Row(BY_TURNS, what, text, "" if decided else "not decided", f"≤ {WALL}×", middle <= WALL if decided else None)
    ]


def _by_parts(rounds: int, steps: int) -> list[Row]:
    with Worker("watching", "parts", STEP_S, BUSY_S) as worker:
        answers = [worker.ask(steps=steps) for _ in range(min(rounds, 4) + 1)][1:]
    means = {name: statistics.fmean(answer.get(name, 0.0) for answer in answers) for name in PARTS}
    calls = {name: statistics.fmean(answer.get(f"{name} calls", 0.0) for answer in answers) for name in PARTS}
    return [
        Row(BY_PARTS, what, "", f"{seconds(means[name])}; {calls[name]:.3g} calls a step")
        for name, what in PARTS.items()
        if calls[name]
    ]


def _by_length(*, fast: bool) -> list[Row]:
    rows = list[Row]()
    for length, (rounds, steps) in ({0.002: (1, 50)} if fast else LENGTHS).items():
        pairs, _ = _pairs(length, length / 4, rounds, steps)
        ratios = [other["processor"] / one["processor"] for one, other in pairs]
        more = _more(pairs, "processor")
        text = f"{seconds(abs(more))} {'more' if more >= 0 else 'less'} a step, {more / length:+.3%} of a core"
        rows.append(Row(BY_LENGTH, f"steps of {seconds(length)}", compared(ratios), text))
    return rows


if __name__ == "__main__":
    serve(_loop(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))
