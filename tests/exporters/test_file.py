"""The exporter `file` on a real disk, a full one and a read-only one."""

from __future__ import annotations

import json
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import warm
from exported import spans_of
from opentelemetry.sdk.metrics.export import MetricExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from waits import until

from otel_goodput.exporters.file import FileSpanExporter, LineFile
from otel_goodput.exporters.registry import dropped_items, open_exporter
from otel_goodput.exporters.spec import ExporterContext, ExporterUnavailable

from .telemetry import RESOURCE, collect, context, observed, recorded, rich_spans, spans

OK = SpanExportResult.SUCCESS


def made_for(directory: Path | None, attempt: int = 0, process_index: int = 0) -> ExporterContext:
    return ExporterContext("job", "run", attempt=attempt, process_index=process_index, directory=directory)


def names(path: Path) -> list[str]:
    """The names of all spans, in order; every line must be whole and JSON."""
    content = path.read_bytes()
    assert content.endswith(b"\n")
    return [span["name"] for span in spans_of(content.splitlines())]


def test_one_line_an_export_in_a_private_file_for_each_attempt_and_process(tmp_path: Path) -> None:
    directory = tmp_path / "not" / "yet"
    opened = open_exporter("file", made_for(directory, attempt=12, process_index=3))
    assert opened.interval_ms is None
    assert not directory.exists()  # an exporter that is never used leaves nothing behind
    assert opened.span_exporter is not None
    assert opened.metric_exporter is not None
    for batch in (spans(2), rich_spans()):
        assert opened.span_exporter.export(batch) is OK
    assert opened.metric_exporter.export(collect(observed("gauge", "g", (1.0, {})))) is MetricExportResult.SUCCESS
    assert opened.span_exporter.force_flush()
    assert opened.metric_exporter.force_flush()
    opened.span_exporter.shutdown()
    opened.metric_exporter.shutdown()

    assert sorted(path.name for path in directory.iterdir()) == [
        "metrics-attempt0012-p0003.jsonl",
        "traces-attempt0012-p0003.jsonl",
    ]
    for path in directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    traces = directory / "traces-attempt0012-p0003.jsonl"
    assert len(traces.read_bytes().splitlines()) == 2
    assert names(traces)[:3] == ["step 0", "step 1", "0"]
    assert dropped_items(opened) == {"traces": 0, "metrics": 0}


def test_histograms_are_exponential(tmp_path: Path) -> None:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    opened = open_exporter("file", made_for(tmp_path))
    assert opened.metric_exporter is not None
    reader = PeriodicExportingMetricReader(opened.metric_exporter, 3_600_000)
    provider = MeterProvider([reader], resource=RESOURCE, shutdown_on_exit=False)
    recorded("h", 1.0, 2.0)(provider.get_meter("m"))
    provider.shutdown()
    (line,) = (tmp_path / "metrics-attempt0000-p0000.jsonl").read_text().splitlines()
    assert '"exponentialHistogram"' in line


def test_parts_are_kept_and_all_match_the_glob(tmp_path: Path) -> None:
    exporter = FileSpanExporter(tmp_path, "traces-x", max_bytes=2_000)
    batches = [spans(2) for _ in range(12)]
    for batch in batches:
        assert exporter.export(batch) is OK
    exporter.shutdown()

    later = len(list(tmp_path.iterdir())) - 1
    parts = [tmp_path / "traces-x.jsonl", *(tmp_path / f"traces-x.{part}.jsonl" for part in range(1, later + 1))]
    assert len(parts) > 2
    assert set(parts) == set(tmp_path.glob("traces-*.jsonl"))
    assert all(part.stat().st_size <= 2_000 for part in parts)
    assert [name for part in parts for name in names(part)] == ["step 0", "step 1"] * 12

    # The same attempt opened again goes on where it stopped.
    last, size = parts[-1], parts[-1].stat().st_size
    again = FileSpanExporter(tmp_path, "traces-x", max_bytes=size + 1)
    assert again.export(spans(1)) is OK
    again.shutdown()
    assert last.stat().st_size == size
    assert len(list(tmp_path.glob("traces-*.jsonl"))) == len(parts) + 1


def test_a_batch_longer_than_a_part_is_one_line_of_its_own(tmp_path: Path) -> None:
    exporter = FileSpanExporter(tmp_path, "traces-x", max_bytes=100)
    assert exporter.export(spans(50)) is OK
    assert exporter.export(spans(50)) is OK
    exporter.shutdown()
    assert [len(path.read_bytes().splitlines()) for path in tmp_path.iterdir()] == [1, 1]


@pytest.mark.parametrize("torn", [b'{"resourceSpans":[{"resou', b'{"resourceSpans":[]}\n{"half', b"x" * 200_000])
def test_a_torn_tail_is_cut(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "traces-x.jsonl"
    path.write_bytes(torn)
    exporter = FileSpanExporter(tmp_path, "traces-x")
    assert exporter.export(spans(1)) is OK
    exporter.shutdown()
    assert names(path) == ["step 0"]
    assert len(path.read_bytes().splitlines()) == torn.count(b"\n") + 1


def test_a_deleted_file_and_directory_come_back(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    exporter = FileSpanExporter(directory, "traces-x")
    assert exporter.export(spans(1)) is OK
    (directory / "traces-x.jsonl").unlink()
    directory.rmdir()
    assert exporter.export(spans(2)) is OK
    exporter.shutdown()
    assert names(directory / "traces-x.jsonl") == ["step 0", "step 1"]


def test_a_place_that_cannot_be_written_fails_and_recovers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the directory should be")
    opened = open_exporter("file", made_for(blocked))
    assert opened.span_exporter is not None
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            assert opened.span_exporter.export(spans(3)) is SpanExportResult.FAILURE
    assert len(caplog.records) == 1
    assert "will keep trying" in caplog.text
    assert dropped_items(opened) == {"traces": 15, "metrics": 0}

    blocked.unlink()
    assert opened.span_exporter.export(spans(3)) is OK
    opened.span_exporter.shutdown()
    assert names(blocked / "traces-attempt0000-p0000.jsonl") == ["step 0", "step 1", "step 2"]


# A limit on the size of files stands for the full disk: the kernel cuts the write short in just the same way.
FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from otel_goodput.exporters.file import LineFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
file = LineFile(Path(sys.argv[1]), "traces-x")
failures = 0
for _ in range(4):
    try:
        file.append(b"x" * 299 + b"\\n")
    except OSError:
        failures += 1
assert failures == 1, failures
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
file.append(b"y" * 299 + b"\\n")
file.close()
"""


def test_a_full_disk_leaves_whole_lines_only(tmp_path: Path) -> None:
    warm.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], check=True, timeout=120)
    lines = (tmp_path / "traces-x.jsonl").read_bytes().splitlines(keepends=True)
    assert lines == [b"x" * 299 + b"\n"] * 3 + [b"y" * 299 + b"\n"]


WRITER = """
import sys
from pathlib import Path
from otel_goodput.exporters.file import LineFile
file = LineFile(Path(sys.argv[1]), "traces-x", max_bytes=2**20)
print("ready", flush=True)
while True:
    file.append(b'{"a":"' + b"x" * 100_000 + b'"}\\n')
"""


@pytest.mark.crash
def test_what_a_killed_writer_leaves_is_whole_after_the_next_open(tmp_path: Path) -> None:
    with warm.Process([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        until(lambda: len(list(tmp_path.iterdir())) > 2)
        process.send_signal(signal.SIGKILL)
    file = LineFile(tmp_path, "traces-x")
    file.append(b"{}\n")
    file.close()
    for path in tmp_path.glob("traces-*.jsonl"):
        for line in path.read_bytes().splitlines(keepends=True):
            assert line.endswith(b"\n")
            json.loads(line)


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    file = LineFile(tmp_path, "traces-x", max_bytes=5_000)

    def write(letter: bytes) -> None:
        for _ in range(50):
            file.append(letter * 300 + b"\n")
            file.sync()

    threads = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.close()
    lines = [line for path in tmp_path.iterdir() for line in path.read_bytes().splitlines()]
    assert sorted(lines) == sorted([b"a" * 300, b"b" * 300, b"c" * 300] * 50)


def test_text_that_utf8_cannot_hold_does_not_cost_the_batch(tmp_path: Path) -> None:
    undecodable = os.fsdecode(b"caf\xe9")
    span = ReadableSpan(undecodable, context(1), resource=Resource({"host.name": undecodable}))
    exporter = FileSpanExporter(tmp_path, "traces-x")
    assert exporter.export([span]) is OK
    exporter.shutdown()
    assert names(tmp_path / "traces-x.jsonl") == ["caf?"]


def test_no_spans_no_line_and_only_bad_spans_a_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    exporter = FileSpanExporter(tmp_path, "traces-x")
    assert exporter.export([]) is OK
    with caplog.at_level(logging.WARNING):
        assert exporter.export([ReadableSpan("bad", None, resource=RESOURCE)]) is SpanExportResult.FAILURE
        assert exporter.export([ReadableSpan("bad", None, resource=RESOURCE), *spans(1)]) is OK
    exporter.shutdown()
    assert names(tmp_path / "traces-x.jsonl") == ["step 0"]
    assert len(caplog.records) == 1


def test_without_a_directory_it_is_unavailable() -> None:
    with pytest.raises(ExporterUnavailable, match="OTEL_GOODPUT_DIR"):
        open_exporter("file", made_for(None))
