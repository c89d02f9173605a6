"""Google's own goodput series: what Google's dashboards read of a run of ours."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from disruption.metadata_server import answer, metadata_server
from emulators.google import GoogleEmulator
from http_server import Request, Response
from resources.machines import GKE

from exporters.google.conftest import Open
from exporters.telemetry import collect, observed
from otel_goodput import Recorder, semconv
from otel_goodput._disruption.metadata import METADATA_HOST
from otel_goodput._metrics import workload_series
from otel_goodput._text.durations import NS

RESOURCE = {
    "cloud.availability_zone": "us-central1-a",
    "k8s.cluster.name": "tpus",
    "goodput.accelerator.type": "TPU v5p",
}


def recorder(directory: Path, **more: object) -> Recorder:
    options = {"exporters": ["workload"], "integrations": "none", "windows": "10m,1h", "resource_attributes": RESOURCE}
    return Recorder("llama", directory=directory, **{**options, **more})  # type: ignore[arg-type]


def last(google: GoogleEmulator, name: str) -> dict[str, float]:
    """The newest value by the label that is not the same for all."""
    common = {workload_series.ACCELERATOR_TYPE, workload_series.CLUSTER_NAME}
    return {
        " ".join(value for key, value in sorted(series.labels) if key not in common): points[-1].value
        for series, points in google.series.items()
        if series.type == f"compute.googleapis.com/workload/{name}"
    }


def test_a_run_that_was_killed_and_went_on(google: GoogleEmulator, tmp_path: Path) -> None:
    with recorder(tmp_path, run_id="run-1") as goodput, goodput.job():
        with goodput.accelerator_init():
            time.sleep(0.01)
        for number in range(5):
            with goodput.step(number):
                time.sleep(0.004)
    with recorder(tmp_path, run_id="run-1") as goodput, goodput.job():
        with goodput.custom("evaluation"), goodput.custom("评估"):
            time.sleep(0.01)
        for number in range(3, 12):
            with goodput.data_loading():
                time.sleep(0.001)
            with goodput.step(number):
                time.sleep(0.004)
            if number == 8:
                goodput.flush()
    totals = goodput.totals()
    seconds = {name: duration / NS for name, duration in totals.run.categories.items()}

    assert last(google, "goodput_time") == {"TOTAL": seconds["productive"]}
    badput = last(google, "badput_time")
    for category, source in workload_series.BADPUT_SOURCES.items():
        if category not in ("custom", "other", "in_flight", "stalled"):
            assert badput[source] == seconds[category]
    assert badput["OTHER"] == seconds["other"] + seconds["in_flight"] + seconds["stalled"]
    assert badput["CUSTOM_BADPUT_EVENTS.评估"] == totals.run.custom["评估"] / NS
    (elapsed,) = last(google, "total_elapsed_time").values()
    assert elapsed == pytest.approx(totals.run.elapsed / NS, abs=1e-9)
    assert math.fsum([seconds["productive"], *badput.values()]) == pytest.approx(elapsed, abs=1e-9)
    assert last(google, "disruptions") == {"cumulative": 1}
    assert last(google, "max_productive_steps") == {"": 11}
    assert totals.ideal_step_time is not None and totals.step_time_deviation is not None
    assert last(google, "performance") == {"": totals.ideal_step_time / NS}
    assert last(google, "step_time_deviation") == {"": totals.step_time_deviation / NS}
    for span, partition in totals.rolling:
        size = str(span // NS)
        good = last(google, "interval_goodput")[f"TOTAL {size}"]
        assert partition.goodput is not None and good == pytest.approx(100 * partition.goodput)
        bad = {name: share for name, share in last(google, "interval_badput").items() if name.endswith(f" {size}")}
        assert good + math.fsum(bad.values()) == pytest.approx(100.0)
    for series in google.series:
        assert series.resource == "compute.googleapis.com/Workload"
        labels = dict(series.resource_labels)
        assert (labels["location"], labels["workload_id"], labels["replica_id"]) == ("us-central1-a", "run-1", "0")
        if not series.type.endswith("/performance"):
            assert dict(series.labels)["accelerator_type"] == "TPU-v5p"
            assert dict(series.labels)["cluster_name"] == "tpus"
    # The second attempt begins within five seconds of the last point of the first: it gets an error, and waits.
    assert {refusal.rule for refusal in google.refusals} <= {"mon.sampling", "mon.order"} and not google.notes
    assert not google.spans


def test_nothing_is_made_of_steps_whose_ends_nobody_knows(
    google: GoogleEmulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time and counts are exact; shares of windows, the ideal step time and the deviation from it are not known."""
    pool = SimpleNamespace(total_bytes=lambda: 1)
    monkeypatch.setenv("OTEL_GOODPUT_DEVICE_CLOCK", "auto")
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(get_default_memory_pool=lambda: pool))
    with recorder(tmp_path) as goodput, goodput.job():
        for number in range(30):
            with goodput.step(number):
                time.sleep(0.002)
    totals = goodput.totals()
    assert totals.clock == semconv.ClockState.UNKNOWN
    names = {series.type.rpartition("/")[2] for series in google.series}
    assert names == {"goodput_time", "badput_time", "total_elapsed_time", "disruptions", "max_productive_steps"}
    (elapsed,) = last(google, "total_elapsed_time").values()
    assert elapsed == pytest.approx(totals.run.elapsed / NS, abs=1e-9)


def test_two_runs_of_one_job_write_series_of_their_own(google: GoogleEmulator, tmp_path: Path) -> None:
    """A sweep: one name, several runs at once."""
    kept = {"sweep-1": 3, "sweep-2": 5}
    for run_id, steps in kept.items():
        with recorder(tmp_path, run_id=run_id) as goodput, goodput.job():
            for number in range(steps):
                with goodput.step(number):
                    pass
    steps_by_run = {
        dict(series.resource_labels)["workload_id"]: points[-1].value
        for series, points in google.series.items()
        if series.type.endswith("/max_productive_steps")
    }
    assert steps_by_run == {run_id: steps - 1 for run_id, steps in kept.items()}


def test_slices(google: GoogleEmulator, tmp_path: Path) -> None:
    with recorder(tmp_path) as goodput, goodput.job():
        goodput.slice_counts(2, 2, 2)
        for number in range(6):
            with goodput.step(number):
                time.sleep(0.002)
            if number == 2:
                goodput.slice_counts(1, 2, 2)
    totals = goodput.totals()
    assert 0.5 < totals.run.slice_efficiency["stepping"] < 1.0
    for state in ("stepping", "available"):
        efficiency = last(google, f"{state}_slice_efficiency")
        assert efficiency == {
            "0 CUMULATIVE": totals.run.slice_efficiency[state],
            "600 INTERVAL": totals.rolling[0][1].slice_efficiency[state],
            "3600 INTERVAL": totals.rolling[1][1].slice_efficiency[state],
        }
    assert not google.refusals


def test_the_leader_speaks_alone(google: GoogleEmulator, tmp_path: Path) -> None:
    for index in (1, 0):
        with recorder(tmp_path, process_index=index, process_count=2) as goodput, goodput.job(), goodput.step(index):
            pass
        assert bool(google.series) == (index == 0)


def test_a_replica_of_its_own(google: GoogleEmulator, tmp_path: Path) -> None:
    attributes = {**RESOURCE, semconv.REPLICA_ID: "3"}
    with recorder(tmp_path, resource_attributes=attributes) as goodput, goodput.job(), goodput.step(0):
        pass
    assert {dict(series.resource_labels)["replica_id"] for series in google.series} == {"3"}


def test_nowhere_in_particular(google: GoogleEmulator, tmp_path: Path) -> None:
    with recorder(tmp_path, resource_attributes={"cloud.region": "my cellar"}) as goodput, goodput.job():
        pass
    assert {dict(series.resource_labels)["location"] for series in google.series} == {"global"}
    labels = [dict(series.labels) for series in google.series]
    assert {each["accelerator_type"] for each in labels if "accelerator_type" in each} == {"UNKNOWN"}
    assert not google.refusals


def test_more_names_than_the_sdk_keeps_series_of(google: GoogleEmulator, tmp_path: Path) -> None:
    """What is above has a name that says so: nothing is missing from the sum, and no series lacks its labels."""
    windows = "10m,30m,1h,2h,6h"
    with recorder(tmp_path, windows=windows, grace_period=120) as goodput, goodput.job():
        for number in range(700):
            with goodput.custom(f"phase {number}"):
                pass
        with goodput.step(0):
            time.sleep(0.01)
    totals = goodput.totals()
    badput = last(google, "badput_time")
    named = [name for name in badput if name.startswith("CUSTOM_BADPUT_EVENTS.")]
    assert "CUSTOM_BADPUT_EVENTS.OVERFLOW" in named and 300 < len(named) < 334
    (elapsed,) = last(google, "total_elapsed_time").values()
    assert elapsed == pytest.approx(totals.run.elapsed / NS, abs=1e-9)
    assert math.fsum([*last(google, "goodput_time").values(), *badput.values()]) == pytest.approx(elapsed, abs=1e-9)
    assert not google.refusals and goodput._dropped()["metrics"] == 0


def test_a_point_without_its_attributes_costs_no_other(google: GoogleEmulator, opened: Open) -> None:
    """As the SDK makes one where a user's view keeps fewer series."""
    exporter = opened("workload").metric_exporter
    assert exporter is not None
    points = [(1.0, {"goodput.category": "productive"}), (2.0, {"otel.metric.overflow": "true"})]
    exporter.export(collect(observed("up_down_counter", "goodput.time", *points)))
    assert last(google, "goodput_time") == {"TOTAL": 1.0}
    assert getattr(exporter, "dropped", None) == 1


def test_text_that_no_encoding_has(google: GoogleEmulator, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    odd = {**RESOURCE, "k8s.cluster.name": name}
    with recorder(tmp_path, resource_attributes=odd) as goodput, goodput.job(), goodput.custom(name):
        time.sleep(0.01)
    assert last(google, "badput_time")["CUSTOM_BADPUT_EVENTS.CAF?"] > 0.009
    assert {text for one in google.series for key, text in one.labels if key == "cluster_name"} == {"caf?"}
    assert goodput.totals().run.custom.keys() == {"caf?"}


def test_what_the_machine_tells_stands_at_the_first_point(
    google: GoogleEmulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata server is asked in the background; the first export waits for it: no series changes its labels."""
    with metadata_server() as server:

        def tell_late(_: Request) -> Response:
            time.sleep(0.4)
            return answer(json.dumps(GKE))

        server.misbehave = tell_late
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
        monkeypatch.setenv(METADATA_HOST, server.host)
        with recorder(tmp_path, resource_attributes={}) as goodput, goodput.job(), goodput.step(0):
            pass
    for series in google.series:
        assert dict(series.resource_labels)["location"] == "us-central1-a"
        if not series.type.endswith("/performance"):
            assert dict(series.labels)["cluster_name"] == "pretraining"
            assert dict(series.labels)["accelerator_type"] == "NVIDIA-H100"
    assert google.series


def test_googles_series_know_no_stalled_time(google: GoogleEmulator, tmp_path: Path) -> None:
    """It is the time of its steps: productive of kept ones, wasted of lost ones, as before there was a limit."""
    with recorder(tmp_path, stalled_after="50ms") as goodput, goodput.job():
        for number in range(12):
            with goodput.step(number):
                time.sleep(0.2 if number > 9 else 0.002)
        with goodput.step(11):
            time.sleep(0.002)
    run = goodput.totals().run
    assert run.stalled["kept"] >= 0.1 * NS and run.stalled["lost"] >= 0.1 * NS
    assert run.categories["stalled"] == sum(run.stalled.values())
    whole = {name: duration / NS for name, duration in run.whole_steps.items()}
    assert last(google, "goodput_time") == {"TOTAL": pytest.approx(whole["productive"])}
    badput = last(google, "badput_time")
    assert badput["WASTED_PROGRESS_FROM_DISRUPTION"] == pytest.approx(whole["wasted_progress"])
    assert badput["OTHER"] == pytest.approx(whole["other"] + whole["in_flight"], abs=1e-9)
    good = last(google, "interval_goodput")["TOTAL 600"]
    assert good == pytest.approx(100 * whole["productive"] / (run.elapsed / NS))
