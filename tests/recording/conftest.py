"""The recorder under test: real providers, real files, exporters and readers of the SDK in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from exported import Spans
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import otel_goodput as goodput
from otel_goodput import Recorder
from otel_goodput.journal.rundir import folder_name

from .recording import NS, Recording

Record = Callable[..., Recording]


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    """Configures the default recorder; a second call goes on with the run, as a restart would."""
    made = []

    def configure(make: Callable[..., Any] = goodput.configure, **options: Any) -> Recording:
        exporter, reader = Spans(), InMemoryMetricReader()
        whole = {"job_name": "line", "run_id": "run", "directory": tmp_path / "runs", "exporters": "none", **options}
        recorder = make(**whole, span_processors=[exporter.processor], metric_readers=[reader])
        assert isinstance(recorder, Recorder)
        made.append(recorder)
        return Recording(recorder, exporter, reader, tmp_path / "runs" / folder_name(recorder.run_id))

    yield configure
    for recorder in made:
        recorder.shutdown()  # else what it watches in others' libraries is still watched in other tests


@pytest.fixture
def recording(record: Record) -> Recording:
    """The default recorder, configured."""
    return record()


@pytest.fixture
def base() -> int:
    """A moment (ns) later than all that really happens during a test, to backfill from."""
    return (time.time_ns() // NS + 3600) * NS
