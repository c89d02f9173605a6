"""Runs a program in its own folder, ends it as its users do, and compares its figures with the witness's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from everyday.lateness import Lateness
from everyday.truth import NEVER, Truth, readings, truth, written
from everyday.witness import LIFE

HERE = Path(__file__).parent
TOLERANCE = 0.05  # of the truth
# Between the witness's reading and ours there are this many writes: its own, the end of a span, the begin of the next.
BOUNDARY = 3
SMALL = 0.01  # of the elapsed time: any category may be off by this much
PATIENCE_S = 120.0


# A shell starts background processes with SIGINT ignored, and their children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Program(NamedTuple):
    """A program and how it is run.

    Attributes:
        script: below this folder.
        arguments: of its command line.
        endings: signal and step of each process that is killed or interrupted.
        unrecorded: chores that the program does not record with otel_goodput.
        apart: each of its lives is a run of its own.
        left_is_done, compiles: as for :func:`~everyday.truth.truth`.
        merged: categories that are compared as one.
        needs: packages besides those of the group `demo`.
        whole: it contains no line of otel_goodput, and is run by `otel-goodput run`.
        clock: of its steps; if that is "unknown", goodput must be unknown, and nothing else is compared.
    """

    script: str
    arguments: tuple[str, ...] = ()
    endings: tuple[tuple[signal.Signals, int], ...] = ()
    unrecorded: tuple[str, ...] = ()
    apart: bool = False
    left_is_done: bool = True
    compiles: bool = True
    merged: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    clock: str = ""
    whole: bool = False


class Result(NamedTuple):
    """A run's figures and the true ones; `late` is the measuring error in seconds."""

    run: str
    report: dict[str, Any]
    truth: Truth
    late: float
    merged: tuple[str, ...] = ()
    clock: str = ""

    @property
    def spent(self) -> dict[str, float]:
        """Seconds by category, custom phases as one."""
        return {
            name: sum(value.values()) if isinstance(value, dict) else value
            for name, value in self.report["seconds"].items()
        }

    def _merged(self, seconds: Mapping[str, float]) -> dict[str, float]:
        sums: Counter[str] = Counter()
        for name, value in seconds.items():
            sums[" and ".join(self.merged) if name in self.merged else name] += value
        return sums

    def wrong(self) -> list[str]:
        """What is off by more than the tolerance and the measuring error."""
        errors, reported, true = [], self._merged(self.spent), self.truth
        goodput = self.report["goodput"]
        if self.clock and self.report["clock"] != self.clock:
            errors.append(f"the clock is {self.report['clock']}, in truth {self.clock}")
        if self.clock == "unknown":
            return errors if goodput is None else [*errors, f"goodput is {goodput}, and cannot be known"]
        if goodput is None or abs(goodput - true.goodput) > TOLERANCE * true.goodput + self.late / true.elapsed:
            errors.append(f"goodput is {goodput}, in truth {true.goodput:.4f}")
        really = self._merged(true.seconds)
        for name in sorted({*reported, *really}):
            ours, theirs = reported.get(name, 0.0), really.get(name, 0.0)
            if abs(ours - theirs) > max(TOLERANCE * theirs, SMALL * true.elapsed) + self.late:
                errors.append(f"{name} is {ours:.3f} s, in truth {theirs:.3f} s")
        return errors


def perform(program: Program, folder: Path, python: str = sys.executable) -> list[Result]:
    """Run a program to its end; returns the figures of each of its runs.

    Raises:
        RuntimeError: it ended with an unexpected status, or the number of runs is wrong.
    """
    folder.mkdir(parents=True, exist_ok=True)
    journal, path = folder / "readings", folder / "goodput"
    environment = {
        **os.environ,
        "EVERYDAY_READINGS": str(journal),
        "OTEL_GOODPUT_DIR": str(path),
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "JAX_PLATFORMS": "cpu",
    }
    runner = ["-m", "otel_goodput", "run", "--exporters", "none"] if program.whole else []
    command = [python, *runner, str(HERE / program.script), *program.arguments]
    killed = not program.endings or program.endings[-1][0] == signal.SIGKILL  # a killed program is started again
    with Lateness() as late:
        for ending in (*program.endings, *([None] if killed else [])):
            _live(command, environment, folder, journal, ending)
    taken = readings(journal)
    lives = [taken]
    if program.apart:
        begins = [reading.begin for reading in taken if reading.kind == LIFE]
        spans = zip(begins, [*begins[1:], NEVER], strict=True)
        lives = [[reading for reading in taken if begin <= reading.begin < end] for begin, end in spans]
    reports = _reports(path, python, environment)
    if len(reports) != len(lives):
        raise RuntimeError(f"{program.script} has made {len(lives)} runs, not {[one['run_id'] for one in reports]}")
    return [
        Result(
            report["run_id"],
            report,
            truth(life, program.unrecorded, left_is_done=program.left_is_done, compiles=program.compiles),
            (late.of(len(life)) + BOUNDARY * sum(each.writing for each in life)) / 1e9,
            program.merged,
            program.clock,
        )
        for report, life in zip(reports, lives, strict=True)
    ]


def _reports(path: Path, python: str, environment: dict[str, str]) -> list[dict[str, Any]]:
    """The reports of all runs, the oldest first."""
    abouts = [json.loads(each.read_text()) for each in path.glob("*/run.json")]
    reports = []
    for about in sorted(abouts, key=lambda about: float(about["created_at"])):
        whose = ("--process", "0")  # the witness measures one process
        command = [python, "-m", "otel_goodput", "report", str(path), "--run", about["run_id"], "--json", *whose]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE_S, check=True)
        reports.append(json.loads(done.stdout))
    return reports


def _live(command: Sequence[str], environment: dict[str, str], folder: Path, journal: Path, ending: Any) -> None:
    """Run one process of the program; it gets the signal of `ending` once the witness has recorded that step."""
    before = len(written(journal))
    with (folder / "output").open("ab") as output:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=output, stderr=output)
    until = time.monotonic() + PATIENCE_S
    try:
        if ending is not None:
            wanted = f'"step": {ending[1]},'
            while process.poll() is None and wanted not in written(journal)[before:]:
                if time.monotonic() > until:
                    raise RuntimeError(f"{command}: step {ending[1]} never came")
                time.sleep(0.005)
            process.send_signal(ending[0])
        status = process.wait(max(1.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{command} did not end: {(folder / 'output').read_text()[-4000:]}") from None
    finally:
        process.kill()
        process.wait()
    expected = -signal.SIGKILL if ending is not None and ending[0] == signal.SIGKILL else 0
    if status != expected:
        raise RuntimeError(f"{command} ended with status {status}: {(folder / 'output').read_text()[-4000:]}")
