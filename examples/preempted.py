"""A training job that is killed mid-step and resumes from its checkpoint, and the report of where the time went.

A separate process trains a real transformer on the CPU (``preempted_job/train.py``). This script watches it, kills it
with SIGKILL in the middle of a step, starts it again, prints the report of the whole run, and compares the report with
its own measurements. Exit status 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

JOB = Path(__file__).parent / "preempted_job" / "train.py"
NS = 1_000_000_000


class Attempt(NamedTuple):
    """What this script observed of one attempt of the job; times are Unix seconds."""

    started: float
    steps: list[int]
    step_starts: list[float]
    ended: float


class Check(NamedTuple):
    """One check: whether it holds, and a description."""

    holds: bool
    text: str


def run_attempt(command: list[str], kill_after: int | None = None, share: float = 0.5) -> Attempt:
    """Run the job to its end; or, once step ``kill_after`` is over, kill it ``share`` of a step into the next one.

    Raises RuntimeError if the job fails without being killed.
    """
    progress, job_end = os.pipe()
    steps: list[int] = []
    starts: list[float] = []
    started = time.time()
    with subprocess.Popen([*command, "--progress-fd", str(job_end)], pass_fds=[job_end]) as job:
        os.close(job_end)
        killed = False
        try:
            # The job writes each step's number as the step starts; what it wrote before its death can still be read.
            with os.fdopen(progress) as lines:
                for line in lines:
                    steps.append(int(line))
                    starts.append(time.time())
                    if kill_after is not None and not killed and steps[-1] > kill_after:
                        usual = statistics.median(after - before for before, after in pairwise(starts[-20:]))
                        time.sleep(share * usual)
                        job.send_signal(signal.SIGKILL)
                        killed = True
            status = job.wait()
        finally:
            job.kill()
    if status != (-signal.SIGKILL if killed else 0):
        raise RuntimeError(f"the training job ended with status {status}; its own messages are above")
    return Attempt(started, steps, starts, time.time())


def otel_goodput(*arguments: str | Path) -> str:
    """What the command line ``otel-goodput`` prints."""
    command = [sys.executable, "-m", "otel_goodput", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def typed() -> str:
    """Return the command as you can type it here, even if the environment of this Python is not activated."""
    installed = Path(sys.executable).with_name("otel-goodput")
    on_path = shutil.which("otel-goodput")
    if not installed.exists():
        return f"{sys.executable} -m otel_goodput"
    return "otel-goodput" if on_path is not None and installed.samefile(on_path) else os.path.relpath(installed)


def in_ns(seconds: dict[str, Any]) -> Iterator[int]:
    """Yield every category's time in ns, custom phases included. The report's seconds are whole ns: nothing is lost."""
    for value in seconds.values():
        if isinstance(value, dict):
            yield from in_ns(value)
        else:
            yield round(value * NS)


def checks(
    report: dict[str, Any], first: Attempt, second: Attempt, losses: list[dict[str, Any]], compiling: float
) -> Iterator[Check]:
    """Compare the report with the outside measurements; `compiling`: seconds that steps spent compiling."""
    total, elapsed = sum(in_ns(report["seconds"])), round(report["elapsed_s"] * NS)
    yield Check(total == elapsed, f"the categories sum to the elapsed time: {total:,} ns of {elapsed:,} ns")

    outside = second.ended - first.started
    inside = second.step_starts[-1] - first.step_starts[0]
    yield Check(
        inside <= report["elapsed_s"] <= outside,
        f"elapsed {report['elapsed_s']:.2f} s, between {inside:.2f} s (first to last step start) and {outside:.2f} s"
        " (both processes), by the clock of this one",
    )

    reasons = report["disruption_reasons"]
    yield Check(
        report["attempts"] == 2 and report["disruptions"] == 1 and reasons == {"crash": 1},
        f"attempts {report['attempts']}, disruptions {reasons}",
    )

    recovery = report["seconds"].get("infrastructure_recovery", 0.0)
    shortest, longest = second.started - first.ended, second.step_starts[0] - first.step_starts[-1]
    yield Check(
        shortest <= recovery <= longest,
        f"recovery {recovery:.2f} s, between {shortest:.2f} s (death to new process) and {longest:.2f} s"
        " (last step to first step)",
    )

    count, kept = second.steps[-1] + 1, report["steps"]["kept"]
    yield Check(
        kept == count and report["max_productive_step"] == count - 1,
        f"all {count} steps kept, the highest is step {report['max_productive_step']}",
    )
    # The kill may come between a step's start and the job's message about it: then there is one more step.
    lost, seen = report["steps"]["lost"], first.steps[-1] - second.steps[0] + 1
    yield Check(
        lost in (seen, seen + 1),
        f"{lost} steps lost: attempt 1 reached step {first.steps[-1]}, attempt 2 went on at step {second.steps[0]}",
    )

    by_step: dict[int, list[float]] = {}
    stopwatch: dict[int, float] = {}
    saved: dict[tuple[int, int], float] = {}  # by attempt and step, where the step after it says so
    attempt, before = 0, -1
    for record in losses:
        step = record["step"]
        by_step.setdefault(step, []).append(record["loss"])
        stopwatch[step] = record["seconds"]
        attempt += step <= before
        saved[attempt, before] = record.get("saved", 0.0)
        before = step
    # The first step of each attempt compiles, which is start-up; so is what else it takes far longer than the others.
    watched = sum(stopwatch.values()) - compiling
    warming = max(0.0, stopwatch[first.steps[0]] + stopwatch[second.steps[0]] - compiling)
    # A busy machine may halt a step where neither of its stopwatches runs.
    halted = sum(
        max(0.0, following - start - stopwatch[step] - saved[number, step])
        for number, each in enumerate((first, second))
        for step, (start, following) in zip(each.steps, pairwise(each.step_starts), strict=False)
        if (number, step) in saved and (each is second or step < second.steps[0])
    )
    productive = report["seconds"]["productive"]
    yield Check(
        0.95 * (watched - warming) <= productive <= 1.1 * watched + halted,
        f"productive {productive:.2f} s; by the job's own stopwatch, {compiling:.2f} s of compiling left out, "
        f"{watched:.2f} s",
    )
    apart = [abs(values[0] - values[1]) for values in by_step.values() if len(values) == 2]
    yield Check(
        len(by_step) == count and max(apart, default=0.0) < 1e-3,
        f"steps done twice: {len(apart)}, their losses at most {max(apart, default=0.0):.1e} apart",
    )
    final = [by_step[step][-1] for step in sorted(by_step)]
    few = max(1, min(10, count // 5))
    before, after = statistics.mean(final[:few]), statistics.mean(final[-few:])
    yield Check(after < 0.9 * before, f"loss {before:.3f} at first, {after:.3f} at last")


def spans(trace: Path) -> Iterator[dict[str, Any]]:
    """Yield every span in a file of OTLP JSON lines."""
    for line in trace.read_text().splitlines():
        for resource in json.loads(line)["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                yield from scope["spans"]


def compiling_steps(traces: list[Path]) -> float:
    """Return the seconds that steps spent compiling the training step."""
    return sum(
        (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / NS
        for trace in traces
        for span in spans(trace)
        for attribute in span.get("attributes", ())
        if attribute == {"key": "goodput.compile.function", "value": {"stringValue": "train_step"}}
    )


def check_traces(traces: list[Path]) -> Check:
    """Check that the next attempt ended the killed job's span and marked it as interrupted."""
    every = [span for trace in traces for span in spans(trace)]
    jobs = [{each["key"] for each in span.get("attributes", ())} for span in every if span["name"] == "job"]
    interrupted = sum("goodput.interrupted" in keys for keys in jobs)
    return Check(
        (len(jobs), interrupted) == (2, 1),
        f"{len(every)} spans exported, {len(jobs)} of them jobs, {interrupted} of these interrupted",
    )


def saving_every(steps: int) -> int:
    """Return after how many steps a job of so many saves a checkpoint and evaluates."""
    return max(2, steps // 10)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="steps of training, at least 20 (default: 400)")
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path("demo-run"),
        help="where the journal, the trace, the losses and the checkpoints go; an earlier demo's are replaced"
        " (default: ./demo-run)",
    )
    parser.add_argument(
        "--kill-after-step",
        type=int,
        metavar="N",
        help="kill in the middle of the step after step N (default: at random in the third quarter of the run)",
    )
    parser.add_argument(
        "--exporters", default="file", help="exporters of the job; `file` is among them (default: file)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the model, the data and the kill (default: 0)")
    parser.add_argument("--keep", action="store_true", help="leave the checkpoints where they are at the end")
    args = parser.parse_args()
    if args.steps < 20:
        parser.error("--steps must be at least 20")
    if "file" not in args.exporters.split(","):
        parser.error("--exporters needs file among them: the checks read the trace there")
    if args.kill_after_step is not None and not 0 < args.kill_after_step < args.steps - 1:
        parser.error(f"--kill-after-step must be between 1 and {args.steps - 2}")
    return args


def main() -> int:
    args = arguments()
    chance = random.Random(args.seed)
    kill_after = args.kill_after_step or chance.randint(args.steps // 2, args.steps * 3 // 4)
    directory: Path = args.directory
    for leftover in ("goodput", "checkpoints"):
        shutil.rmtree(directory / leftover, ignore_errors=True)
    (directory / "losses.jsonl").unlink(missing_ok=True)

    every = str(saving_every(args.steps))
    command = [sys.executable, str(JOB), "--directory", str(directory), "--steps", str(args.steps)]
    command += ["--seed", str(args.seed), "--save-every", every, "--eval-every", every]
    command += ["--exporters", args.exporters]
    print(f"{args.steps} steps, a checkpoint every {every}; SIGKILL comes in step {kill_after + 1}.", flush=True)
    first = run_attempt(command, kill_after, chance.uniform(0.2, 0.8))
    print(f"Killed in step {first.steps[-1]}. Starting it again.", flush=True)
    second = run_attempt(command)

    journal = directory / "goodput"
    command_line = typed()
    print(f"\n$ {command_line} report {journal}\n\n{otel_goodput('report', journal)}")
    report = json.loads(otel_goodput("report", journal, "--json"))
    losses = [json.loads(line) for line in (directory / "losses.jsonl").read_text().splitlines()]
    traces = sorted(journal.rglob("traces-*.jsonl"))
    results = [*checks(report, first, second, losses, compiling_steps(traces)), check_traces(traces)]
    for check in results:
        print(f"{'ok  ' if check.holds else 'FAIL'}  {check.text}")
    page = directory / "report.html"
    print(f"\n$ {command_line} report {journal} --html {page}")
    print(otel_goodput("report", journal, "--html", page), end="")
    print("\nThe traces as OTLP JSON, one file an attempt:", *map(str, traces), sep="\n  ")
    if not args.keep:
        shutil.rmtree(directory / "checkpoints")
    return 0 if all(check.holds for check in results) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as error:
        sys.exit(f"preempted.py: {error}")
