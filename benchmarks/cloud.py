"""``python -m benchmarks.cloud``: what exporting to Google Cloud costs and loses, compared with Google's own exporters.

Both write to the emulator of the tests, each to one of its own. Prints one table and writes RESULTS-GCP.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from emulators.google import GoogleEmulator

from benchmarks import machine, table
from benchmarks.cloud_job import STEPS
from benchmarks.rounds import ROOT, Samples, environment
from benchmarks.table import Row

RESULTS = Path(__file__).with_name("RESULTS-GCP.md")
PREFACE = """\
# What exporting to Google Cloud costs, and what it loses

Written by `make bench-gcp`. Every run is a process of its own that writes to an emulator of Cloud Trace and Cloud
Monitoring on the same machine, in turn with the others; the stock exporters are opentelemetry-exporter-gcp-trace and
-monitoring with OpenTelemetry's SDK, as their documentation sets them up.
"""
EXIT_BOUND_S = 10.0
PACKAGES = ("opentelemetry-exporter-gcp-trace", "opentelemetry-exporter-gcp-monitoring", "grpcio")


class Ended(NamedTuple):
    """A job that is over: its figures, and how long its exit took (s)."""

    figures: dict[str, float]
    exit_s: float


@contextmanager
def started(variant: str, google: GoogleEmulator, environ: dict[str, str], **options: Any) -> Any:
    settings = json.dumps({"endpoint": google.endpoint, **options})
    command = [sys.executable, "-m", "benchmarks.cloud_job", variant, settings]
    environ = {**environment(), **environ}
    with subprocess.Popen(
        command, cwd=ROOT, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as job:
        yield job


def run(
    variant: str,
    google: GoogleEmulator,
    environ: dict[str, str] | None = None,
    over: Callable[[], None] = lambda: None,
    **options: Any,
) -> Ended:
    """Run a job to its end; `over` is called when its loop is.

    Raises:
        RuntimeError: it ended without a word.
    """
    with started(variant, google, environ or {}, **options) as job:
        line = job.stdout.readline()
        over()
        began = time.monotonic()
        job.wait()
        took = time.monotonic() - began
    if not line:
        raise RuntimeError(f"the job {variant!r} ended with status {job.returncode} and without an answer")
    return Ended(json.loads(line), took)


def exits(samples: Samples, rounds: int) -> list[Row]:
    """How long a process lives on when both services take its requests and never answer."""
    group = "Exit while Cloud Trace and Cloud Monitoring hang (they took what came before)"
    for _ in range(rounds):
        for variant in ("stock", "ours", "with workload"):
            with GoogleEmulator() as google:
                environ = {"OTEL_METRIC_EXPORT_INTERVAL": "1000"}
                ended = run(variant, google, environ, google.hang, steps=3000, seconds=3.0)
            samples.add(f"exit {variant}", ended.exit_s)
    rows = [Row(group, "stock exporters", "1×", table.seconds(samples.median("exit stock")))]
    for variant, name in (("ours", "otel_goodput, gcp"), ("with workload", "otel_goodput, gcp and workload")):
        took = max(samples.values(f"exit {variant}"))
        ratio = table.compared(samples.ratios(f"exit {variant}", "exit stock"))
        rows.append(Row(group, name, ratio, table.seconds(took), f"≤ {EXIT_BOUND_S:g} s", took <= EXIT_BOUND_S))
    return rows


def losses(rounds: int) -> list[Row]:
    """Whether the last value of a counter of steps arrives when the job ends soon after an export."""
    group = "The last value of the count of steps, the job ending 0.3 to 2.3 s after an export"
    lost: dict[str, list[float]] = {"stock": [], "ours": []}
    for number in range(rounds):
        for variant in lost:
            with GoogleEmulator() as google:
                seconds = 4.3 + 2.0 * number / max(1, rounds - 1)
                ended = run(variant, google, {"OTEL_METRIC_EXPORT_INTERVAL": "4000"}, steps=10**6, seconds=seconds)
                lost[variant].append(ended.figures["steps"] - counted(google))
    return [
        Row(group, "stock exporters", "", _lost(lost["stock"])),
        Row(group, "otel_goodput, gcp", "", _lost(lost["ours"]), "0", not any(lost["ours"])),
    ]


def counted(google: GoogleEmulator) -> float:
    """Steps that the newest point tells of."""
    sizes = [
        points[-1].value
        for key, points in google.series.items()
        if key.type.endswith((STEPS, "goodput.step.count")) and "lost" not in dict(key.labels).values()
    ]
    return float(max(sizes, default=0))


def _lost(steps: list[float]) -> str:
    times = sum(value > 0 for value in steps)
    return f"lost {times} times of {len(steps)}; {max(steps):,.0f} steps at most"


def traffic(seconds: float) -> list[Row]:
    """Requests of an ordinary job: 1 ms steps, OpenTelemetry's default intervals."""
    group = f"Requests in {seconds:.0f} s of a job with default intervals"
    rows = []
    for variant, name in (
        ("stock", "stock exporters"),
        ("ours", "otel_goodput, gcp"),
        ("with workload", "otel_goodput, gcp and workload"),
    ):
        with GoogleEmulator() as google:
            ended = run(variant, google, steps=10**7, seconds=seconds)
            by_method = Counter(request.method for request in google.requests)
            spans = len(google.spans)
        steps = ended.figures["steps"]
        each = ", ".join(f"{count} {method}" for method, count in sorted(by_method.items()))
        rows.append(Row(group, name, "", f"{sum(by_method.values())}: {each}; {spans:,} spans of {steps:,.0f} steps"))
    return rows


def cpu(samples: Samples, rounds: int) -> list[Row]:
    """CPU of the threads that export, for 10,000 steps."""
    group = "CPU time of the threads that export, 10,000 steps of 1 ms, metrics every 5 s"
    variants = {
        "every step, stock exporters": "otel_goodput's spans, every step, and metrics, through the stock exporters",
        "every step": "otel_goodput, gcp: the same spans and metrics",
        "ours": "otel_goodput, gcp, steps thinned as by default",
        "stock": "stock SDK and exporters: two spans a step, one counter",
    }
    for _ in range(rounds):
        for variant in variants:
            with GoogleEmulator() as google:
                environ = {"OTEL_METRIC_EXPORT_INTERVAL": "5000"}
                ended = run(variant, google, environ, steps=10_000, warm=500, flush=True)
            samples.add(f"cpu {variant}", ended.figures["cpu"])
    base = next(iter(variants))
    return [
        Row(
            group,
            name,
            "1×" if variant == base else table.compared(samples.ratios(f"cpu {variant}", f"cpu {base}")),
            table.seconds(samples.median(f"cpu {variant}")),
        )
        for variant, name in variants.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cloud", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--fast", action="store_true", help="a smoke test of two minutes; RESULTS-GCP.md stays")
    options = parser.parse_args()
    fast = options.fast
    described = machine.describe()
    described += [(package, machine.version(package) or "not installed") for package in PACKAGES]
    samples = Samples()
    rows: list[Row] = []
    scenarios: dict[str, Callable[[], list[Row]]] = {
        "exit": lambda: exits(samples, 1 if fast else 3),
        "losses": lambda: losses(2 if fast else 5),
        "requests": lambda: traffic(15.0 if fast else 60.0),
        "cpu": lambda: cpu(samples, 1 if fast else 5),
    }
    for name, measure in scenarios.items():
        began = time.monotonic()
        print(f"{name} …", end=" ", file=sys.stderr, flush=True)
        rows += measure()
        print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    print("\n".join(f"{what}: {value}" for what, value in described), end="\n\n")
    print(table.as_text(rows), end="")
    if not fast:
        on = "\n".join(f"- {what}: {value}" for what, value in described)
        RESULTS.write_text(f"{PREFACE}\n{on}\n{table.as_markdown(rows)}", encoding="utf-8")
        print(f"\nwritten to {RESULTS.name}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
