"""``otel-goodput send`` through a real collector: what a job wrote to files is at Google in the end, once."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import warm
from crash.exported import Span, read_spans
from exporters.google import arrivals
from exporters.google.jobs import Job
from exporters.google.training import Account
from tools.commands import ROOT, environment, goodput, succeeded
from waits import until

from otel_goodput import semconv

from .collector import CONFIGS, Collector
from .prometheus import SCRAPED
from .sidecars import JOB, Sidecar

STEPS = 150


class Run(NamedTuple):
    """The folder of a run of two attempts, the first of which was killed, and the account of the second."""

    folder: Path
    account: Account

    @property
    def spans(self) -> dict[tuple[str, str], Span]:
        return {(span.trace, span.key): span for span in read_spans(self.folder)}

    @property
    def requests(self) -> int:
        """How many requests for spans it takes: lines."""
        return len(self._lines())

    @property
    def largest(self) -> int:
        """How many spans the largest of them has."""
        return max(line.count(b'"spanId"') for line in self._lines())  # and links

    def _lines(self) -> list[bytes]:
        return [line for path in self.folder.glob("traces-*.jsonl") for line in path.read_bytes().splitlines()]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Run:
    directory = tmp_path_factory.mktemp("recorded")
    how = {"exporters": ["file"], "steps": STEPS, "unit": 0.004}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        often = {"OTEL_BSP_SCHEDULE_DELAY": "1"}  # ms: many small requests
        with Job(directory, often, middle="die", **how) as job:
            assert job.die() == -signal.SIGKILL
        with Job(directory, often, flush=True, **how) as job:  # its last values come soon after those before
            end = job.end()
    (warning,) = end.warnings  # one warning that the run goes on, and nothing else
    assert "had not finished when it was started again" in warning
    return Run(directory / "runs" / JOB, end.account)


@pytest.fixture
def run(recorded: Run, tmp_path: Path) -> Run:
    shutil.copytree(recorded.folder, tmp_path / "run")
    return recorded._replace(folder=tmp_path / "run")


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Sidecar]:
    with Sidecar(tmp_path, "gcp-sidecar") as started:
        yield started


class Sender:
    """The command in a process of its own, sending a run's folder; a context manager that leaves nobody behind."""

    def __init__(self, run: Run, collector: Collector) -> None:
        self._states = [path.with_name(f"{path.name}.sent") for path in run.folder.glob("traces-*.jsonl")]
        command = [sys.executable, "-W", "error", "-m", "otel_goodput", "send", str(run.folder), "--json"]
        variables = environment(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://{collector.grpc}")
        self.process = warm.Process(command, env=variables, stdout=subprocess.PIPE, text=True, extras=True)

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def sent(self) -> int:
        """How many lines of spans it has sent."""
        known = [json.loads(path.read_bytes())["entries"] for path in self._states if path.exists()]
        return sum(entry["lines"] for entries in known for entry in entries)

    def end(self) -> list[dict[str, int]]:
        """Its account of each file, once all was sent."""
        errors, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, errors
        files: list[dict[str, int]] = json.loads(errors)["files"]
        return files


def whole(sidecar: Sidecar, run: Run) -> int:
    """Wait until all of the run is at Google, as it was written; how many spans were sent there more than once.

    The collector has ended then, and with it what it had.
    """
    google, expected = sidecar.google, run.spans
    until(lambda: len(google.otlp_spans) >= len(expected), 30, lambda: sidecar.collector.log[-3000:])
    first = {semconv.STEP_DURATION.name: [(STEPS, {})]}  # all that it did before it was killed
    for instance, account in (("/0/0@", first), ("/1/0@", run.account)):
        until(lambda account=account, instance=instance: sidecar.missing(account, instance) == [])
    sidecar.collector.stop()
    there = {(span.trace, span.key): span.content for span in arrivals.otlp_spans(google, JOB, attempts=2)}
    assert there == {key: span.content for key, span in expected.items()}
    accepted = sum(one.items for one in google.requests if (one.method, one.code) == ("OtlpTraces", "OK"))
    return accepted - len(expected)


@pytest.mark.parametrize(("wire", "protocol"), [("grpc", "grpc"), ("http", "http/protobuf")])
def test_all_of_a_run_arrives_once(wire: str, protocol: str, sidecar: Sidecar, run: Run) -> None:
    endpoint = f"http://{getattr(sidecar.collector, wire)}"
    for _ in range(2):
        succeeded(goodput("send", run.folder, "--endpoint", endpoint, "--protocol", protocol))
    assert whole(sidecar, run) == 0
    assert sidecar.google.refusals == []


def test_killed_in_the_middle_it_goes_on(sidecar: Sidecar, run: Run) -> None:
    with Sender(run, sidecar.collector) as first:
        until(lambda: first.sent() >= 3)
    assert 3 <= first.sent() < run.requests
    with Sender(run, sidecar.collector) as second:
        files = second.end()
    assert sum(file["repeated"] for file in files) == 1  # the one at which it was cut off, perhaps
    assert whole(sidecar, run) <= run.largest
    assert sidecar.google.refusals == []


def test_a_collector_that_comes_late_and_crashes(sidecar: Sidecar, run: Run) -> None:
    sidecar.collector.kill()
    with Sender(run, sidecar.collector) as sender:
        until(lambda: any(run.folder.glob("*.sent")))  # it has begun
        sidecar.collector.start()
        until(lambda: sender.sent() >= 3)
        sidecar.collector.kill()
        assert sender.sent() < run.requests
        sidecar.collector.start()
        sender.end()
    whole(sidecar, run)


def test_what_the_collector_wrote_to_a_file_can_be_sent_too(sidecar: Sidecar, run: Run, tmp_path: Path) -> None:
    with Collector(tmp_path / "local", CONFIGS / "local.yaml", ports=[SCRAPED]) as local:
        succeeded(goodput("send", run.folder, "--endpoint", f"http://{local.grpc}"))
    file = tmp_path / "local" / "goodput.otlp.json"
    succeeded(goodput("send", file, "--endpoint", f"http://{sidecar.collector.grpc}"))
    assert whole(sidecar, run) == 0
    assert sidecar.google.refusals == []


def test_files_that_the_collector_renamed_are_sent_once(sidecar: Sidecar, run: Run, tmp_path: Path) -> None:
    folder, to = tmp_path / "local", ("--endpoint", f"http://{sidecar.collector.grpc}")
    folder.mkdir()
    file = folder / "goodput.otlp.json"
    file.write_text('{"resourceSpans": []}' + " " * 700_000 + "\n")  # a megabyte is the least at which it is renamed
    small = ["exporters::file::rotation::max_megabytes: 1"]
    with Collector(folder, CONFIGS / "local.yaml", ports=[SCRAPED], settings=small) as local:
        succeeded(goodput("send", *run.folder.glob("*attempt0000*.jsonl"), "--endpoint", f"http://{local.grpc}"))
        succeeded(goodput("send", file, *to))
        before = file.stat().st_size
        succeeded(goodput("send", run.folder, "--endpoint", f"http://{local.grpc}"))
    (renamed,) = folder.glob("goodput.otlp-*.json")
    assert renamed.stat().st_size > before
    for _ in range(2):
        succeeded(goodput("send", folder, *to))
    assert whole(sidecar, run) == 0
    assert sidecar.google.refusals == []
