"""The job of `make demo`, killed and resumed, exporting to Google Cloud; but it is the emulator that it writes to.

Prints what arrived: in Cloud Trace the timeline as a tree, in Cloud Monitoring the series as a table. Then compares
that with the report of the journal and with the trace in a file. Exit status 1 if anything does not agree.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from exported import written

from emulators import picture
from emulators.google import GoogleEmulator
from otel_goodput import semconv
from otel_goodput._settings.envvars import OTEL_GOODPUT_GCP_ENDPOINT, OTEL_GOODPUT_GCP_PROJECT

EXAMPLE = Path(__file__).parents[2] / "examples" / "preempted.py"
EXPORTERS = {"classic": "file,gcp,workload", "otlp": "file,gcp-otlp,workload"}
JOB = "preempted-demo"


class Check(NamedTuple):
    """One thing that must hold, and how it was found."""

    holds: bool
    text: str


class Arrived:
    """What the emulator has at the end, from whichever exporter."""

    def __init__(self, google: GoogleEmulator) -> None:
        self.google = google
        self.spans: list[Any] = [*google.spans, *google.otlp_spans]
        self.series = {**google.series, **google.otlp_series}

    def last(self, metric: str) -> dict[str, float]:
        """The newest value of each series by the values of its labels; of several processes' that of the latest."""
        newest: dict[str, tuple[int, float]] = {}
        for key, points in self.series.items():
            if key.type == metric or key.type.partition("/")[2] == metric:
                name = " ".join(value for _, value in sorted(key.labels) if value)
                newest[name] = max(newest.get(name, (0, 0.0)), (points[-1].end, points[-1].value))
        return {name: value for name, (_, value) in newest.items()}


def run(arguments: argparse.Namespace, more: list[str], google: GoogleEmulator) -> int:
    """The job, with its output and `more` options; gives the exit status."""
    environ = {
        **os.environ,
        OTEL_GOODPUT_GCP_ENDPOINT.name: google.endpoint,
        OTEL_GOODPUT_GCP_PROJECT.name: "test-project",
        "OTEL_METRIC_EXPORT_INTERVAL": "10000",
    }
    command = [sys.executable, str(EXAMPLE), "--directory", str(arguments.directory)]
    command += ["--steps", str(arguments.steps), "--exporters", EXPORTERS[arguments.api], *more]
    return subprocess.run(command, env=environ, check=False).returncode


def report(directory: Path) -> dict[str, Any]:
    """What ``otel-goodput report`` says of the run."""
    command = [sys.executable, "-m", "otel_goodput", "report", str(directory / "goodput"), "--json"]
    answer: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return answer


def spans_of(directory: Path) -> set[str]:
    """The ids of the spans in the trace that the job wrote to files."""
    return {span["spanId"] for span in written(directory)}


def span_id(span: Any) -> str:
    """In hexadecimal, of Cloud Trace's or OTLP's."""
    return span.span_id if isinstance(span.span_id, str) else span.span_id.hex()


def checks(arrived: Arrived, account: dict[str, Any], directory: Path) -> Iterator[Check]:
    """Compare what arrived with what the run's own files say."""
    written = spans_of(directory)
    there = {span_id(span) for span in arrived.spans}
    yield Check(there == written, f"{len(there)} spans arrived; the files hold {len(written)}, the same ones")
    interrupted = sum(semconv.GOODPUT_INTERRUPTED in str(span) for span in arrived.spans)
    yield Check(interrupted > 0, f"{interrupted} spans were open when the job was killed; the next attempt closed them")

    seconds = account["seconds"]
    for category, wanted in sorted(seconds.items()):
        if not isinstance(wanted, dict):
            actual = arrived.last(semconv.TIME.name).get(category)
            yield Check(actual == wanted, f"{semconv.TIME.name} {category}: {actual} s; the report says {wanted} s")
    good = arrived.last("workload/goodput_time")
    yield Check(
        list(good.values()) == [seconds["productive"]],
        f"Google's goodput_time: {good}; the report says {seconds['productive']} s productive",
    )
    bad = arrived.last("workload/badput_time")
    total, elapsed = sum(good.values()) + sum(bad.values()), account["elapsed_s"]
    yield Check(abs(total - elapsed) < 1e-6, f"Google's goodput and badput sum to {total:.9f} s of {elapsed:.9f} s")
    kept = arrived.last(semconv.STEP_COUNT.name)[semconv.STEP_KEPT]
    yield Check(kept == account["steps"]["kept"], f"{kept} steps kept")
    # The second attempt may begin within five seconds of the first one's last point, and gets one warning.
    rules = {refusal.rule for refusal in arrived.google.refusals} - {"mon.sampling", "mon.order"}
    yield Check(not rules, f"{len(arrived.google.requests)} requests; nothing was refused for good")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Other options are those of examples/preempted.py.",
    )
    parser.add_argument("--steps", type=int, default=200, help="steps of training (default: 200)")
    parser.add_argument(
        "--directory", type=Path, default=Path("demo-run"), help="where it writes (default: ./demo-run)"
    )
    parser.add_argument("--api", choices=EXPORTERS, default="classic", help="gcp, or gcp-otlp (default: classic)")
    arguments, more = parser.parse_known_args()
    with GoogleEmulator() as google:
        print(f"An emulator of Cloud Trace and Cloud Monitoring listens at {google.endpoint}.\n", flush=True)
        status = run(arguments, more, google)
        arrived = Arrived(google)
        print("\nWhat arrived in Cloud Trace\n")
        print(picture.tree(arrived.spans))
        print("\nWhat arrived in Cloud Monitoring\n")
        telling = {key: points for key, points in arrived.series.items() if points[-1].value}
        print(picture.table(telling))
        print(f"\nand {len(arrived.series) - len(telling)} series that are 0.\n")
        results = list(checks(arrived, report(arguments.directory), arguments.directory)) if not status else []
    for check in results:
        print(f"{'ok  ' if check.holds else 'FAIL'}  {check.text}")
    return status or int(not all(check.holds for check in results))


if __name__ == "__main__":
    sys.exit(main())
