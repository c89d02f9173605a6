"""Programs as users write them, for their type checker: ``mypy --strict`` has nothing to say. It is never run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from datetime import datetime, timezone
from pathlib import Path
from queue import Queue
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span
from typing_extensions import assert_type

import otel_goodput as goodput
from otel_goodput import ConfigurationError, GoodputError, GoodputSpanProcessor, Recorder
from otel_goodput.reports.fields import ReportFields


class Batch:
    tokens: int


class Loader:
    def __iter__(self) -> Iterator[Batch]:
        return iter([Batch()])


def set_up() -> None:
    assert_type(goodput.configure(), Recorder | None)
    assert_type(goodput.configure("llama3-8b"), Recorder | None)
    goodput.configure(
        "llama3-8b",
        set_global=True,
        run_id="run",
        directory=Path("goodput"),
        exporters=["otlp", "file"],
        processes="all",
        step_sampling=10,
        windows="1h,1d",
        integrations="none",
        grace_period=5.0,
        submitted_at="2026-01-01T00:00:00Z",
        process_index=0,
        process_count=2,
        leader=0,
        ideal_step_time=0.25,
        resource_attributes={"team": "a", "slices": 2},
        tracer_provider=TracerProvider(),
        span_processors=[],
    )
    recorder = Recorder("another", directory="elsewhere")
    with recorder.job() as job, recorder.step(0) as step:
        assert_type(job, Span)
        step.observe(1.0)
    for number, batch in recorder.steps(Loader()):
        assert_type(batch, Batch)
        assert_type(number + 1, int)
    TracerProvider().add_span_processor(GoodputSpanProcessor(job_name="job"))
    try:
        goodput.configure("job", step_sampling=-1)
    except ConfigurationError as error:
        again: GoodputError = error
        print(again)


def loop() -> None:
    with goodput.job() as job:
        assert_type(job, Span)
        with goodput.accelerator_init() as span:
            assert_type(span, Span)
        with goodput.training_prep(), goodput.checkpoint_restore(7):
            pass
        for step, batch in goodput.steps(Loader(), start=8):
            assert_type(batch, Batch)
            assert_type(step + 1, int)
            assert_type(f"{step}"[:step], str)
            goodput.observe(batch.tokens)
            goodput.current_step().set_attribute("tokens", batch.tokens)
            with goodput.part("forward") as part:
                part.set_attribute("layers", 2)
        with goodput.steps([1, 2]) as steps:
            for _, number in steps:
                assert_type(number, int)
        for batch in goodput.loading(Loader(), queue_depth=lambda: 3):
            assert_type(batch, Batch)
        for text in goodput.loading(["a"], queue_depth=Queue[str]()):
            assert_type(text, str)


def marks() -> None:
    with goodput.data_loading() as load:
        load.set_attribute("shard", 3)
    with goodput.step(1) as step:
        step.observe(0.5)
        assert_type(step.get_span_context().is_valid, bool)
    with goodput.checkpoint_save(1, durable=False, blocking=False) as save:
        assert_type(save.durable(), None)
    with goodput.custom("eval", start_time=1, end_time=2) as span, goodput.exclusion():
        assert_type(span, Span)
    with goodput.elastic_wait("slice_down"), goodput.elastic_reinit():
        goodput.slice_counts(1, 2, 2)


@goodput.job()
def main(path: Path, *, epochs: int = 1) -> float:
    return float(epochs)


@goodput.custom("eval")
def evaluate(model: dict[str, int], /) -> list[float]:
    return [0.5]


@goodput.step(3)
def third(batch: Batch) -> int:
    return batch.tokens


@goodput.data_loading()
async def fetch(shard: int) -> Batch:
    await asyncio.sleep(0)
    return Batch()


@goodput.part("forward")
def forward(batch: Batch) -> int:
    return batch.tokens


@goodput.traced_step
def train(state: dict[str, int], batch: Batch, *, scale: float = 1.0) -> tuple[dict[str, int], float]:
    return state, scale


@goodput.on_preemption
def hurry() -> None: ...


async def signatures() -> None:
    assert_type(main(Path(), epochs=3), float)
    assert_type(evaluate({}), list[float])
    assert_type(third(Batch()), int)
    fetching: Coroutine[Any, Any, Batch] = fetch(1)
    assert_type(await fetching, Batch)
    assert_type(await fetch(1), Batch)
    assert_type(forward(Batch()), int)
    assert_type(train({}, Batch(), scale=0.5), tuple[dict[str, int], float])
    as_one_hands_it_on: Callable[[], None] = hurry
    as_one_hands_it_on()


def figures() -> None:
    assert_type(goodput.flush(5.0), bool)
    assert_type(goodput.count_flops(print, 1), int | None)
    report, totals = goodput.report(), goodput.totals()
    if report is not None and totals is not None:
        assert_type(str(report), str)
        assert_type(report.to_json(), ReportFields)
        assert_type(totals.kept, int)
        assert_type(report.to_json()["steps"]["kept"], int)
    with goodput.open_run("runs", run_id="mine") as run:
        window = (datetime.now(timezone.utc), "now")
        assert_type(run.report(window=[window], exclude=("1h", 2.0)).to_json()["goodput"], float | None)
        assert_type([step.net_ns for step in run.steps()], list[int])
        assert_type([phase.parent_id for phase in run.phases(process=1)], list[str | None])
    assert_type(goodput.open_runs("runs"), list[goodput.Run])
    assert_type(goodput.__version__, str)
    goodput.shutdown()
