"""What the ranks of a job use leaves through the leader, and what it says is what they said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from waits import until

from otel_goodput import Recorder
from otel_goodput.testing import metrics


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[list[Recorder], InMemoryMetricReader]]:
    reader = InMemoryMetricReader()
    recorders = [
        Recorder(
            "pair", run_id="run", directory=tmp_path, exporters="none", process_index=rank, process_count=2,
            usage_interval=1, metric_readers=[reader] if rank == 0 else [],
        )
        for rank in (1, 0)
    ]  # fmt: skip
    yield recorders, reader
    for recorder in recorders:
        recorder.shutdown()


def test_the_leader_exports_what_every_rank_uses(pair: tuple[list[Recorder], InMemoryMetricReader]) -> None:
    recorders, reader = pair
    jobs = [recorder.job() for recorder in recorders]
    for job, recorder in zip(jobs, recorders, strict=True):
        job.__enter__()
        with recorder.step(0):
            pass

    def ranks(name: str) -> set[object]:
        metric = metrics(reader).get(name)
        return set() if metric is None else {(one.attributes or {})["goodput.rank"] for one in metric.data.data_points}

    until(lambda: ranks("process.memory.usage") == {"0", "1"}, 30)
    assert ranks("process.cpu.time") == {"0", "1"}
    assert ranks("system.cpu.utilization") == ranks("system.memory.usage") == {"0"}  # both are on one machine
    assert ranks("hw.gpu.utilization") == ranks("hw.power") == set()
    for job in jobs:
        job.__exit__(None, None, None)
