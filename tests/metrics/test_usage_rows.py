"""Usage of a job's ranks as metrics: few series of however many ranks, and counters that never fall."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from otel_goodput import semconv
from otel_goodput._journal.usage_now import UNKNOWN, UsageNow
from otel_goodput._metrics.instruments import register_usage
from otel_goodput._metrics.usage_rows import MOST, UsageRows, Usages
from otel_goodput.semconv import METRICS, Metric
from otel_goodput.testing import metrics

GIB = 2**30
S = 10**9
GPU, THERMAL = semconv.ACCELERATORS.index("gpu"), 1 << semconv.THROTTLE_REASONS.index("thermal")


def usage(rank: int = 0, **more: int) -> UsageNow:
    now = UsageNow(
        at=1,
        user=(rank + 1) * S,
        system=2 * S,
        process_memory=(rank + 1) * GIB,
        machine_cpu=250_000,
        machine_memory=8 * GIB,
        machine_memory_limit=32 * GIB,
        accelerator=GPU,
        accelerators=1,
        accelerator_busy=10_000 * rank,
        accelerator_memory=40 * GIB,
        accelerator_memory_limit=80 * GIB,
        accelerator_power=700_000,
        throttled=0,
    )
    return now._replace(**more)


def exported(usages: Usages) -> dict[str, dict[tuple[Any, ...], float]]:
    """Name -> attributes' values -> value."""
    reader = InMemoryMetricReader()
    register_usage(MeterProvider([reader]).get_meter("test"), lambda: usages)
    return {
        name: {tuple((point.attributes or {}).values()): point.value for point in metric.data.data_points}  # type: ignore[union-attr]
        for name, metric in metrics(reader).items()
    }


def test_one_process_has_the_names_of_the_semantic_conventions() -> None:
    assert exported({0: ("", usage(3, throttled=THERMAL))}) == {
        "process.cpu.time": {("0", "user"): 4.0, ("0", "system"): 2.0},
        "process.memory.usage": {("0",): 4 * GIB},
        "system.cpu.utilization": {("0",): 0.25},
        "system.memory.usage": {("0", "used"): 8 * GIB},
        "system.memory.limit": {("0",): 32 * GIB},
        "hw.gpu.utilization": {("0", "gpu"): 0.03},
        "hw.gpu.memory.usage": {("0", "gpu"): 40 * GIB},
        "hw.gpu.memory.limit": {("0", "gpu"): 80 * GIB},
        "hw.power": {("0", "gpu"): 700.0},
        "goodput.accelerator.throttled": {
            ("0", reason): float(reason == "thermal") for reason in semconv.THROTTLE_REASONS
        },
    }


def test_the_units_and_kinds_are_those_of_the_semantic_conventions() -> None:
    """As opentelemetry-semantic-conventions declares them."""
    from opentelemetry.semconv._incubating.metrics import hw_metrics, process_metrics, system_metrics

    meter = MeterProvider([InMemoryMetricReader()]).get_meter("test")
    by_name: dict[str, Metric] = {one.name: one for one in METRICS}
    for module, name in (
        (process_metrics, "process_cpu_time"),
        (process_metrics, "process_memory_usage"),
        (system_metrics, "system_cpu_utilization"),
        (system_metrics, "system_memory_usage"),
        (system_metrics, "system_memory_limit"),
        (hw_metrics, "hw_gpu_utilization"),
        (hw_metrics, "hw_gpu_memory_usage"),
        (hw_metrics, "hw_gpu_memory_limit"),
        (hw_metrics, "hw_power"),
    ):
        ours = by_name[getattr(module, name.upper())]
        create = module.__dict__[f"create_{name}"]
        theirs = create(meter, [lambda _: []]) if "Gauge" in ours.kind else create(meter)
        assert theirs.unit == ours.unit, name
        assert type(theirs).__name__.lstrip("_").removeprefix("Observable") == ours.kind.removeprefix("Observable")


def test_what_is_not_known_has_no_series() -> None:
    unknown = dict.fromkeys(
        ("accelerator_busy", "accelerator_memory", "accelerator_memory_limit", "accelerator_power", "throttled"),
        UNKNOWN,
    )
    names = exported({0: ("", usage(accelerator=0, accelerators=0, **unknown))}).keys()
    assert {name for name in names if name.startswith(("hw.", "goodput."))} == set()
    assert exported({}) == {}


def test_a_machine_is_reported_by_its_lowest_rank() -> None:
    hosts = {rank: (f"host-{rank // 4}", usage(rank)) for rank in range(8)}
    values = exported(hosts)
    assert {rank for rank, *_ in values["system.cpu.utilization"]} == {"0", "4"}
    assert len(values["process.memory.usage"]) == 8


def test_of_many_ranks_some_have_series_and_there_are_least_mean_and_most() -> None:
    late = {rank: ("host", usage(rank, throttled=THERMAL * (rank in (40, 77)))) for rank in range(100)}
    values = exported(late)
    busy = {rank: value for (rank, _), value in values["hw.gpu.utilization"].items()}
    assert set(busy) == {*map(str, range(MOST - 2)), "40", "77", "min", "mean", "max"}
    assert (busy["min"], busy["mean"], busy["max"]) == (0, pytest.approx(0.495), 0.99)
    assert values["goodput.accelerator.throttled"]["mean", "thermal"] == 0.02
    spent = values["process.cpu.time"]
    assert {rank for rank, _ in spent} == {*map(str, range(MOST)), "other"}
    assert sum(spent.values()) == sum(range(1, 101)) + 2 * 100


NOW = st.builds(usage, st.integers(0, 5), user=st.integers(0, 100 * S), throttled=st.sampled_from([0, 0, THERMAL]))


@given(st.lists(st.dictionaries(st.integers(0, 60), NOW, max_size=40), max_size=5))
def test_series_are_bounded_and_counters_never_fall(rounds: list[dict[int, UsageNow]]) -> None:
    held: dict[int, UsageNow] = {}
    rows = UsageRows(lambda: {rank: (f"host-{rank // 8}", now) for rank, now in held.items()})
    before: dict[tuple[Any, ...], float] = {}
    for changes in rounds:
        held = changes
        spent = {tuple(attributes): value for value, *attributes in rows(semconv.CPU_TIME)}
        assert all(spent.get(key, value) >= value for key, value in before.items())
        before |= spent  # type: ignore[arg-type]
        for metric in rows.metrics:
            got = [*rows(metric)]
            assert len({row[1:] for row in got}) == len(got)
            assert all(len(row) == 1 + len(metric.attributes) for row in got)
            assert len({row[1] for row in got}) <= MOST + 3
