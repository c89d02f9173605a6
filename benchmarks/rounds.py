"""Interleaved rounds: every variant is measured once a round, A B C A B C, so that the machine's noise meets all alike.

Each variant lives in a process of its own, which measures when it is asked to; the values are kept as runs of pyperf.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyperf

ROOT = Path(__file__).resolve().parent.parent


def environment() -> dict[str, str]:
    """Ours without what would configure OpenTelemetry or this package behind the benchmark's back."""
    return {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}


class Worker:
    """A process that answers questions with measurements.

    Args:
        module: of this package; its ``__main__`` part calls :func:`serve`.
        arguments: its command line.
    """

    def __init__(self, module: str, *arguments: object) -> None:
        self._what = f"{module} {' '.join(map(str, arguments))}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **question: Any) -> dict[str, float]:
        """Measure; waits for it.

        Raises:
            RuntimeError: the process ended without an answer.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._what} ended with status {self._process.wait()} and without an answer")
        answer: dict[str, float] = json.loads(line)
        return answer

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        self._process.wait()
        self._process.stdout.close()


def once(module: str, *arguments: object, **question: Any) -> dict[str, float]:
    """One answer of a fresh process."""
    with Worker(module, *arguments) as worker:
        return worker.ask(**question)


def serve(answer: Callable[..., dict[str, float]]) -> None:
    """Answer the questions of a :class:`Worker` until there are no more; what else is printed goes to stderr."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            answers.write(json.dumps(answer(**json.loads(line))) + "\n")
            answers.flush()


class Samples:
    """Values by name, in the order of the rounds."""

    def __init__(self) -> None:
        self._runs: dict[str, list[pyperf.Run]] = {}

    def add(self, name: str, value: float, unit: str = "second", loops: int = 1, inner: int = 1) -> None:
        """`value` of one round: seconds, or whole bytes or pieces (`unit` ``byte``, ``integer``), of `loops` times
        `inner` things.
        """
        whole = unit != "second"
        metadata = {"name": name, "unit": unit, "loops": loops, "inner_loops": inner}
        run = pyperf.Run([max(1, round(value)) if whole else max(1e-12, value)], metadata=metadata)
        self._runs.setdefault(name, []).append(run)

    def values(self, name: str) -> tuple[float, ...]:
        values: tuple[float, ...] = pyperf.Benchmark(self._runs[name]).get_values()
        return values

    def median(self, name: str) -> float:
        return statistics.median(self.values(name))

    def ratios(self, name: str, to: str) -> list[float]:
        """`name` relative to `to`, round by round: only what was measured side by side is compared."""
        return [a / b for a, b in zip(self.values(name), self.values(to), strict=True)]

    def suite(self) -> pyperf.BenchmarkSuite:
        return pyperf.BenchmarkSuite([pyperf.Benchmark(runs) for runs in self._runs.values()])
