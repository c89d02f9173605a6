"""A run in several processes: one after the other, killed in the middle of an export, and at the same time."""

from __future__ import annotations

import random
import re
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from crash.exported import check_run
from crash.runner import Run
from emulators.google import GoogleEmulator
from emulators.records import Point

from otel_goodput import semconv
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._settings.envvars import OTEL_GOODPUT_GCP_ENDPOINT, OTEL_GOODPUT_GCP_PROJECT
from otel_goodput.reports.run import RecordedRun

from .arrivals import check_whole, cloud_spans, differences, otlp_spans
from .jobs import Job
from .training import account

EXPORTERS = "gcp,workload,gcp-otlp"
SPACING = 5 * 10**9  # ns, between two points of a series
EARLY = {"mon.sampling", "mon.order", "mon.reset_start"}  # what a point breaks that comes too soon after another's
LACKS = "the last metrics of this attempt have not reached"
SPANS_LACK = "spans have not reached every exporter"

GOES_ON = re.compile(
    r"WARNING otel_goodput\._live\.opening: run 'llama' had not finished when it was started again, \d+\.\d s after "
    r"its last sign of life: it continues as attempt 2, and the time between counts as infrastructure recovery\. "
    r"For a new run set OTEL_GOODPUT_RUN_ID=llama-2"
)


def disruptions(google: GoogleEmulator) -> dict[str, list[Point]]:
    """The points of `goodput.disruptions` in Cloud Monitoring, by reason."""
    by_reason = {
        dict(key.labels)["goodput_disruption_reason"]: points
        for key, points in google.series.items()
        if key.type.endswith("/goodput.disruptions")
    }
    assert set(by_reason) == set(semconv.REASONS)
    return by_reason


def check_series(google: GoogleEmulator) -> None:
    """Points are in their order and distance, and the disruptions go on counting."""
    for points in (*google.series.values(), *google.otlp_series.values()):
        assert all(after.end - before.end >= SPACING for before, after in pairwise(points))
    for points in disruptions(google).values():
        assert [point.value for point in points] == sorted(point.value for point in points)


# --- one after the other ----------------------------------------------------------------------------------------------


def live_on(base: Path, seed: int) -> None:
    """A run that is killed once or twice while it exports, started again at once, and let finish."""
    source = random.Random(seed)
    base.mkdir()
    with GoogleEmulator() as google:
        google.slow("*", source.choice([0.0, 0.02, 0.1]))
        environment = {
            OTEL_GOODPUT_GCP_ENDPOINT.name: google.endpoint,
            OTEL_GOODPUT_GCP_PROJECT.name: "test-project",
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
            "OTEL_BSP_SCHEDULE_DELAY": source.choice(["20", "100", "500"]),
        }
        run = Run(base, f"run {seed}", environment=environment)
        options = {"ids": True, "exporters": EXPORTERS, "rollbacks": False, "unit": 0.004}
        for number in range(source.choice([1, 1, 2])):
            run.live_and_die(source.uniform(0.6, 1.6), seed=seed * 10 + number, **options)
        google.slow("*", 0.0)
        process = run.live(seed=seed * 10 + 9, steps=20, **options)
        errors = process.errors.read_text()
        attempts = len(run.lives)
        totals = RecordedRun(RunDirectory(run.folder)).report().totals
        run.check(run.report())
        # A machine on which many others run may not get all out within the deadline; what it does not is logged.
        if SPANS_LACK not in errors:
            check_run(cloud_spans(google), run.run_id, run.lives)
            check_run(otlp_spans(google, run.run_id, attempts), run.run_id, run.lives)
        if LACKS in errors:
            return
        assert not errors or SPANS_LACK in errors
        before = totals.executed - sum(edge.phase == "step" and edge.begins for edge in run.lives[-1].edges)
        assert not differences(google, account(totals, before), "crash", attempts - 1, run=run.run_id)
        assert disruptions(google)["crash"][-1].value == attempts - 1
        check_series(google)
        assert {refusal.rule for refusal in google.refusals} <= EARLY
        assert {note.rule for note in google.notes} <= {"trace.duplicate"}


@pytest.mark.crash
@pytest.mark.parametrize(
    "seeds",  # the first six runs have every delay, and are killed once or twice
    [pytest.param(range(at, at + 2), marks=[pytest.mark.release] * (at >= 6)) for at in range(0, 10, 2)],
    ids=str,
)
def test_nothing_is_lost_with_a_process(seeds: range, tmp_path: Path) -> None:
    with ThreadPoolExecutor(len(seeds)) as pool:
        list(pool.map(lambda seed: live_on(tmp_path / str(seed), seed), seeds))


@pytest.mark.crash
def test_a_restart_follows_within_the_five_seconds_of_a_point(google: GoogleEmulator, tmp_path: Path) -> None:
    """The second process has all but begun when the first is killed: even on a busy machine it is in time for that."""
    with Job(tmp_path, flush=True, warm=True, pauses=["ready"]) as second:
        second.wait_for("ready")
        with Job(tmp_path, middle="die") as first:
            assert first.die() == -signal.SIGKILL
        written = {key: points[-1].end for key, points in google.series.items()}
        second.go_on()
        end = second.end()
    assert any(refusal.rule == "mon.sampling" for refusal in google.refusals)
    assert {refusal.rule for refusal in google.refusals} <= EARLY
    assert not differences(google, end.account, attempt=1)
    assert end.status == 0
    (line,) = end.errors.splitlines()
    assert GOES_ON.fullmatch(line), "the run that had not finished is named once, and nothing else is said"
    check_series(google)
    assert [point.value for point in disruptions(google)["crash"]] == [0, 1]
    assert all(google.series[key][-1].end >= ended + SPACING for key, ended in written.items())


# --- at the same time -------------------------------------------------------------------------------------------------


def test_several_leaders_are_warned_about(google: GoogleEmulator, tmp_path: Path) -> None:
    """Hosts whose process takes itself for the first, each: their points alternate, and there is no flood of requests.

    Of three at least two have lost the race for a point three times by the end, which is when it is logged.
    """
    environ = {"OTEL_GOODPUT_RUN_ID": "run", "OTEL_METRIC_EXPORT_INTERVAL": "500"}
    with ExitStack() as exits:
        jobs = [
            exits.enter_context(Job(tmp_path / str(steps), environ, warm=True, lasts=6.2, steps=steps))
            for steps in (10, 20, 30)
        ]
        ends = [job.end() for job in jobs]
    warnings = [line for end in ends for line in end.warnings if LACKS not in line]
    assert 1 <= len(warnings) <= 3
    assert all("is also written by another process" in line and "two leaders" in line for line in warnings), warnings
    for end in ends:
        assert end.status == 0 and end.seconds < 5
        lacks = sum(LACKS in line for line in end.warnings)
        assert lacks <= 1 and len(end.warnings) - lacks <= 1
    kept = [
        points
        for key, points in google.series.items()
        if key.type.endswith("/goodput.step.count") and ("goodput_step_state", "kept") in key.labels
    ]
    (points,) = kept
    stored = {point.value for point in points}
    assert len(stored & {20, 40, 60}) >= 2
    for last, end in zip((20, 40, 60), ends, strict=True):
        assert last in stored or end.warnings, "of three that write at their end one may lose for good: it says so"
    assert all(after.end - before.end >= SPACING for before, after in pairwise(points))
    assert {refusal.rule for refusal in google.refusals} <= EARLY
    requests = Counter(request.method for request in google.requests)
    assert requests["CreateTimeSeries"] + requests["OtlpMetrics"] <= 100


@pytest.mark.parametrize("leaders", ["one", "each"])
def test_ranks_on_one_machine_do_not_collide(google: GoogleEmulator, tmp_path: Path, leaders: str) -> None:
    environ = {"OTEL_GOODPUT_RUN_ID": "run"}
    with ExitStack() as exits:
        jobs = []
        for index in range(4):
            about = {"process_index": index, "process_count": 4, "processes": "all"}
            configure = about | ({"leader": index} if leaders == "each" else {})
            jobs.append(exits.enter_context(Job(tmp_path, environ, configure=configure, seed=42)))
        ends = [job.end() for job in jobs]
    for end in ends:
        assert end.status == 0 and not end.errors
    check_whole(cloud_spans(google), processes=4)
    check_whole(otlp_spans(google, "run"), processes=4)
    assert not google.refusals and not google.notes
    lead = 4 if leaders == "each" else 1
    tasks = {labels["task_id"] for key in google.series if "task_id" in (labels := dict(key.resource_labels))}
    replicas = {labels["replica_id"] for key in google.series if "replica_id" in (labels := dict(key.resource_labels))}
    instances = {dict(key.resource_labels)["instance"].partition("@")[0] for key in google.otlp_series}
    assert tasks == replicas == {str(index) for index in range(lead)}
    assert instances == {f"run/0/{index}" for index in range(lead)}
    for index in range(lead):
        assert not differences(google, ends[index].account, process=index, run="run")
