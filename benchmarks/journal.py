"""What a journal gives back: the time of a restart, and of a replay; and of a timeline in JSON lines."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks import table
from benchmarks.rounds import ROOT, Samples, environment, once, serve
from benchmarks.table import Row

RESTART_TARGET_S = 0.5
REPLAY_TARGET = 300_000.0  # starts and ends a second
EVENTS_OF_STEP = 4  # starts and ends of a data load and a step


def written(directory: Path, steps: int) -> Path:
    """The journal of a job that was killed after so many quick steps."""
    command = [sys.executable, "-m", "benchmarks.writer", str(directory), str(steps)]
    status = subprocess.run(command, cwd=ROOT, env=environment(), check=False).returncode
    if status != -signal.SIGKILL:
        raise RuntimeError(f"the writer of a journal ended with status {status}")
    return directory


def timeline(path: Path, steps: int) -> Path:
    """A timeline of so many steps in the neutral form."""
    with path.open("w", encoding="utf-8") as lines:
        lines.write('{"kind": "job", "start": 0.0, "end": null, "attempt": 1}\n')
        for number in range(steps):
            at = float(number)
            load = {"kind": "data_loading", "start": at + 0.01, "end": at + 0.06, "attempt": 1}
            step = {"kind": "step", "start": at + 0.07, "end": at + 0.97, "step": number, "attempt": 1}
            lines.write(f"{json.dumps(load)}\n{json.dumps(step)}\n")
    return path


def answer(directory: str) -> dict[str, float]:
    """Seconds until a job that goes on with the journal in `directory` may begin, imports aside."""
    from otel_goodput import Recorder

    began = time.perf_counter()
    recorder = Recorder("benchmark", directory=directory, exporters="none")
    took = time.perf_counter() - began
    totals = recorder.totals()
    recorder.shutdown()
    return {"restart": took, "kept": totals.kept}


def _restarted(samples: Samples, journal: Path, steps: int, copy: Path) -> None:
    shutil.copytree(journal, copy)
    try:
        answer = once("journal", directory=str(copy))
    finally:
        shutil.rmtree(copy)
    if answer["kept"] < steps - 1:
        raise RuntimeError(f"of {steps} steps a restart found {answer['kept']}")
    samples.add(f"restart: {steps}", answer["restart"])


def _command(*arguments: object) -> float:
    """Seconds of one run of the command."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "otel_goodput", *map(str, arguments)],
        cwd=ROOT,
        env=environment(),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return time.perf_counter() - began


def _parse(path: Path) -> float:
    """Seconds of an interpreter that only parses the lines: what no replay in Python can undercut."""
    code = "import json, sys\nfor line in open(sys.argv[1]): json.loads(line)"
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, check=True)
    return time.perf_counter() - began


def measure(samples: Samples, *, fast: bool) -> list[Row]:
    short, long = (1_000, 50_000) if fast else (1_000, 1_000_000)
    lines, replayed = (10_000, 20_000) if fast else (250_000, 200_000)
    rounds = 2 if fast else 5
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="otel-goodput-bench-")))
        journals = {steps: written(place / str(steps), steps) for steps in {short, long, replayed}}
        file = timeline(place / "timeline.jsonl", lines)
        for _ in range(rounds):
            for steps in (short, long):
                _restarted(samples, journals[steps], steps, place / "copy")
            samples.add("replay: parse", _parse(file))
            samples.add("replay: lines", _command("replay", file, "--json"))
            samples.add("replay: journal", _command("report", journals[replayed], "--json", "--at", time.time()))
    return [*_restarts(samples, short, long), *_replays(samples, lines, replayed)]


def _restarts(samples: Samples, short: int, long: int) -> list[Row]:
    group = "Restart: `Recorder(…)` on the journal of a job killed after N quick steps"
    taken = samples.median(f"restart: {long}")
    return [
        Row(group, f"{short:,} steps", "1×", table.seconds(samples.median(f"restart: {short}"))),
        Row(
            group,
            f"{long:,} steps",
            table.compared(samples.ratios(f"restart: {long}", f"restart: {short}")),
            table.seconds(taken),
            f"< {table.seconds(RESTART_TARGET_S)}",
            taken < RESTART_TARGET_S,
        ),
    ]


def _replays(samples: Samples, lines: int, replayed: int) -> list[Row]:
    group = "Replay: starts and ends a second, the whole process"
    rows = [
        Row(
            group,
            f"`json.loads` of {2 * lines:,} lines and nothing else",
            "1×",
            table.per_second(EVENTS_OF_STEP * lines / samples.median("replay: parse")),
        )
    ]
    for name, what, steps in (
        ("lines", f"`otel-goodput replay`, {2 * lines:,} JSON lines", lines),
        ("journal", f"`otel-goodput report --at`, a journal of {replayed:,} steps", replayed),
    ):
        pace = EVENTS_OF_STEP * steps / samples.median(f"replay: {name}")
        ratio = table.compared(samples.ratios("replay: lines", "replay: parse")) if name == "lines" else ""
        target = f"≥ {table.per_second(REPLAY_TARGET)}"
        rows.append(Row(group, what, ratio, table.per_second(pace), target, pace >= REPLAY_TARGET))
    return rows


if __name__ == "__main__":
    serve(answer)
