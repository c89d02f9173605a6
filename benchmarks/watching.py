"""What it costs to watch a job for incidents: watchdog, detector, baseline of the profiler and usage, on against off.

The loop's steps take 20 ms, in which it computes for a quarter of the time, as one that waits for a device does.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.rounds import Samples, Worker, serve
from benchmarks.table import Row, compared, seconds

STEP_S, BUSY_S = 0.02, 0.005
ROUNDS, STEPS = 10, 500
PROCESSOR_S, WALL = 20e-6, 1.005  # a step may take so much more, and so many times as long
VARIANTS: dict[str, dict[str, Any]] = {
    "off": {"incidents": "off", "watchdog": "off", "profile": "off"},
    "on": {"usage_interval": "30s"},
}


def _loop(variant: str) -> Any:
    import otel_goodput as goodput

    folder = tempfile.mkdtemp(prefix="otel-goodput-bench-")
    goodput.configure("watching", directory=folder, exporters="none", integrations="none", **VARIANTS[variant])
    numbers = iter(goodput.steps(range(10**9)))
    goodput.job().__enter__()

    def answer(steps: int) -> dict[str, float]:
        walls, worked = [], 0.0
        processor, switches = time.process_time(), _switches()
        for _ in range(steps):
            began = time.perf_counter()
            next(numbers)
            own, busy = time.thread_time(), time.perf_counter() + BUSY_S
            while time.perf_counter() < busy:
                pass
            worked += time.thread_time() - own
            time.sleep(STEP_S - BUSY_S)
            walls.append(time.perf_counter() - began)
        return {
            "wall": statistics.fmean(sorted(walls)[: -steps // 20 or None]),  # without the slowest: the host's noise
            "processor": (time.process_time() - processor - worked) / steps,
            "switches": (_switches() - switches) / steps,
        }

    return answer


def _switches() -> int:
    """Return how often this thread was made to give way."""
    lines = Path("/proc/thread-self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("nonvoluntary"))


def measure(samples: Samples, *, fast: bool = False) -> list[Row]:
    rounds, steps = (2, 50) if fast else (ROUNDS, STEPS)
    pairs: list[tuple[dict[str, float], dict[str, float]]] = []
    # Both at the same time: a loop that stood still meanwhile would be an incident.
    with Worker("watching", "off") as off, Worker("watching", "on") as on, ThreadPoolExecutor(2) as both:
        for at in range(rounds + 1):
            one, other = both.map(lambda worker: worker.ask(steps=steps), (off, on))
            if at:  # not the first steps
                pairs.append((one, other))
    for pair in pairs:
        for answer, variant in zip(pair, VARIANTS, strict=True):
            samples.add(f"watching {variant}, wall", answer["wall"])
            samples.add(f"watching {variant}, processor", answer["processor"])
    more = statistics.median(other["processor"] - one["processor"] for one, other in pairs)
    walls = [other["wall"] / one["wall"] for one, other in pairs]
    title = "Watching for incidents, steps of 20 ms: on against off"
    return [
        Row(title, "wall time of a step", compared(walls), seconds(statistics.median(p[1]["wall"] for p in pairs)),
            f"≤ {WALL}×", statistics.median(walls) <= WALL),
        Row(title, "processor time of all threads, of a step", "", f"{seconds(more)} more",
            f"≤ {seconds(PROCESSOR_S)}", more <= PROCESSOR_S),
        Row(title, "times that the training thread is made to give way, of a step",
            "", f"{statistics.median(p[1]['switches'] - p[0]['switches'] for p in pairs):+.3f}", "", None),
    ]  # fmt: skip


if __name__ == "__main__":
    serve(_loop(sys.argv[1]))
