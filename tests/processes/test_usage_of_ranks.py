"""What the ranks of a job use leaves through the leader, and what it says is what they said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from waits import until

from otel_goodput import Recorder
from otel_goodput._accounting import Ledger
from otel_goodput._journal.notes import Notes
from otel_goodput._journal.usage_now import UsageNow
from otel_goodput._live.job_records import JobRecords
from otel_goodput._live.live_job import LiveJob
from otel_goodput._live.rank_messages import encode
from otel_goodput._runtime.deputy import Deputy
from otel_goodput._settings import config as configuration
from otel_goodput.testing import metrics

from .test_rank_messages import USAGE, message, steady


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


def test_a_deputy_exports_it_while_it_stands_in() -> None:
    reader, totals = InMemoryMetricReader(), Ledger().totals(1)
    now = UsageNow(*[1] * len(UsageNow._fields))
    pipelines: Any = SimpleNamespace(
        further_provider=lambda resource: MeterProvider([reader], resource=resource), remove=lambda provider: None
    )
    ranks: Any = SimpleNamespace(waits=lambda: None, usages=lambda: {3: ("host", now)})
    config = configuration.read("job", usage_interval=1)
    deputy = Deputy(config, ranks, pipelines, Resource({}), MeterProvider(), lambda: (totals, None), list)
    deputy(True)
    (point,) = metrics(reader)["hw.power"].data.data_points
    assert point.attributes == {"goodput.rank": "3", "hw.type": "gpu"}
    deputy(False)
    assert "hw.power" not in metrics(reader)


def test_what_has_become_old_is_no_figure_of_now() -> None:
    own: Any = SimpleNamespace(rank=0, place=("here", 1), account=SimpleNamespace(notes=Notes()), usage=lambda: USAGE)
    own.usage_lasts = 60.0
    channel: Any = SimpleNamespace(shares_folder=lambda rank: True)
    clocks: Any = SimpleNamespace(take=lambda *_, **__: None, known=lambda last: ())
    job: Any = SimpleNamespace(costs=SimpleNamespace(whole={}), place=lambda *_: None)
    live = LiveJob(own, 3, channel, clocks, cast("JobRecords", None), job, began=0)
    other = USAGE._replace(user=7)
    live.take({1: [encode(message(steady(2), usage=other))], 2: [encode(message(steady(2)))]})
    assert live.usages() == {0: ("here", USAGE), 1: ("host-3", other)}  # one tells nothing
    live.take({1: [encode(message(steady(2)))]})  # nothing new
    assert live.usages()[1] == ("host-3", other)
    own.usage_lasts = -1.0
    assert set(live.usages()) <= {0}
