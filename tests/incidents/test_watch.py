"""Incidents of a job are recorded, exported and reported while it goes on; time is a clock that the test moves."""

from __future__ import annotations

import itertools
import logging
import sys
from itertools import islice
from pathlib import Path

import pytest
import warm
from waits import until

import otel_goodput as goodput
from otel_goodput import semconv, testing
from otel_goodput._accounting.incidents import STEP, Incident, Source
from otel_goodput._incidents.watch import IncidentWatch
from otel_goodput._journal import incidents
from otel_goodput._journal.incidents import MOST, IncidentSheet, incidents_of, read_incidents
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._recording.ids import job_span_context, watched_span_context
from otel_goodput.reports.run import RecordedRun
from otel_goodput.semconv import Category, IncidentKind

NUMBERS = itertools.count()
KIND, CAUSE = semconv.GOODPUT_INCIDENT_KIND, semconv.GOODPUT_INCIDENT_CAUSE


def steps(run: testing.Recording, count: int, seconds: float, load: float = 0.0) -> None:
    for number in islice(NUMBERS, count):
        with goodput.data_loading():
            run.advance(load)
        with goodput.step(number):
            run.advance(seconds)
        run.recorder._keeper.tick()


def points(run: testing.Recording, metric: semconv.Metric) -> list[tuple[float, dict[str, object]]]:
    collected = run.metrics().get(metric.name)
    data = [] if collected is None else collected.data.data_points
    return [(point.value, dict(point.attributes)) for point in data]  # type: ignore[union-attr]


def test_a_slowdown_is_a_span_an_event_three_metrics_and_a_section_of_the_report(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with testing.run() as run, caplog.at_level(logging.WARNING):
        with goodput.job():
            steps(run, 200, 1.0, 0.1)
            assert not points(run, semconv.INCIDENT_ACTIVE) and not run.report().to_json()["incidents"]
            steps(run, 100, 1.0, 0.5)
            what = {KIND: IncidentKind.SLOWDOWN, CAUSE: Category.DATA_LOADING}
            place = {semconv.GOODPUT_RANK: "", semconv.GOODPUT_INCIDENT_PHASE: "", semconv.GOODPUT_INCIDENT_LINE: ""}
            assert points(run, semconv.INCIDENT_ACTIVE) == [(1, {**what, **place})]
            assert points(run, semconv.INCIDENT_COUNT) == [(1, what)]
            ((cost, about),) = points(run, semconv.INCIDENT_COST)
            assert about == what and cost == pytest.approx(40.0, rel=0.1)
            (one,) = run.report().to_json()["incidents"]
            assert (one["kind"], one["cause"], one["ended"], one["rank"]) == ("slowdown", "data_loading", None, None)
            assert one["cost_s"] == pytest.approx(40.0, rel=0.1)
            steps(run, 100, 1.0, 0.1)
            assert points(run, semconv.INCIDENT_ACTIVE) == [(0, {**what, **place})]
        (one,) = run.report().to_json()["incidents"]
        assert one["ended"] is not None and "a turn of the loop takes 36 % more" in str(run.report())
        span, job = run.span("incident"), run.span("job")
        assert span.attributes is not None and dict(span.attributes) == {
            **what,
            semconv.GOODPUT_INCIDENT_COST: round(one["cost_s"] * 1e9),
        }
        assert span.parent is not None and span.parent.span_id == job.context.span_id
        assert (span.start_time, span.end_time) == (round(one["began"] * 1e9), round(one["ended"] * 1e9))
        (event,) = [event for event in job.events if event.name == semconv.GOODPUT_INCIDENT_EVENT]
        assert dict(event.attributes or {}) == what
    assert [record.message for record in caplog.records if "incident" in record.message] == [
        "incident: a turn of the loop takes 36 % more, 1.5 s instead of 1.1 s: data_loading"
    ]


def test_a_hang_is_over_with_the_job() -> None:
    with testing.run() as run:
        with goodput.job():
            steps(run, 100, 1.0)
            with goodput.data_loading():
                for _ in range(30):
                    run.advance(5.0)
                    run.recorder._keeper.tick()
                (one,) = run.report().to_json()["incidents"]
                assert (one["kind"], one["cause"], one["ended"]) == ("hang", "data_loading", None)
        run.recorder.shutdown()
        (span,) = run.spans("incident")
        assert span.end_time is not None and (span.end_time - (span.start_time or 0)) / 1e9 == pytest.approx(150.0)


def test_the_span_links_to_the_profiles_of_its_steps() -> None:
    with testing.run() as run:
        with goodput.job():
            watch = run.recorder._observers.incidents
            assert isinstance(watch, IncidentWatch)
            watch.link_by({1: [(0, 1), (3, 2)]}.__getitem__)
            steps(run, 100, 1.0)
            steps(run, 100, 2.0)
        run.recorder.shutdown()
        (span,) = run.spans("incident")
        profiles = (0, 1), (3, 2)
        paths = [f"journal/a0000-p{rank:04d}-{number:06d}.profile" for rank, number in profiles]
        assert [dict(link.attributes or {}) for link in span.links] == [{"goodput.profile.path": one} for one in paths]
        assert (span.attributes or {})["goodput.profile.path"] == paths[-1]
        known = [watched_span_context(semconv.PROFILE_SPAN, run.recorder.run_id, 0, *one) for one in profiles]
        assert [link.context.span_id for link in span.links] == [one.span_id for one in known]


def test_nothing_is_looked_for_if_nobody_wants_it() -> None:
    with testing.run(incidents="off") as run, goodput.job():
        steps(run, 100, 1.0)
        steps(run, 100, 2.0)
        assert not run.report().to_json()["incidents"]


def test_who_listens_hears_of_each_incident_once() -> None:
    class Listener:
        def __init__(self) -> None:
            self.calls = list[tuple[str, int]]()

        def opened(self, incident: Incident) -> None:
            self.calls.append(("opened", incident.number))

        def ended(self, incident: Incident) -> None:
            self.calls.append(("ended", incident.number))

    with testing.run() as run, goodput.job():
        watch = run.recorder._observers.incidents
        assert isinstance(watch, IncidentWatch)
        watch.listen(listener := Listener())
        steps(run, 100, 1.0)
        steps(run, 100, 2.0)
        steps(run, 100, 1.0)
        assert listener.calls == [("opened", 1), ("ended", 1)]


PROGRAM = """
import sys, time
import otel_goodput as goodput
goodput.configure("job", directory=sys.argv[1], incidents="0.1s", watchdog="off", exporters="none", integrations="none")
with goodput.job():
    for step in range(30):
        with goodput.step(step):
            time.sleep(0.01)
    with goodput.data_loading():
        time.sleep(60)
"""


def test_an_incident_of_an_attempt_that_was_killed_is_exported_by_the_next_one(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    folder = RunDirectory(tmp_path / "runs" / "job")
    process = warm.Process([sys.executable, str(program), str(tmp_path / "runs")])
    until(lambda: [one for _, one in incidents_of(folder, {}) if one.kind == IncidentKind.HANG], 30)
    process.kill()
    process.wait(30)
    (left,) = RecordedRun(folder).report().to_json()["incidents"]
    assert (left["attempt"], left["kind"], left["cause"]) == (1, "hang", "data_loading")
    assert left["ended"] is not None and left["ended"] >= left["began"]
    recording = testing.Recording()
    options = recording.attach({"directory": tmp_path / "runs", "exporters": "none", "incidents": "0.1s"})
    with goodput.Recorder("job", **options) as recording.recorder, recording.recorder.job():
        until(lambda: [span for span in recording.exported() if span.name == "incident"], 30)
    (span,) = (span for span in recording.exported() if span.name == "incident")
    assert span.start_time is not None and abs(span.start_time - left["began"] * 1e9) < 1000
    assert span.end_time is not None and abs(span.end_time - left["ended"] * 1e9) < 1000
    assert span.attributes is not None and span.attributes[semconv.GOODPUT_INTERRUPTED] is True
    job = job_span_context("job", 0)
    assert span.parent is not None and (span.parent.trace_id, span.parent.span_id) == (job.trace_id, job.span_id)
    assert [one["attempt"] for one in RecordedRun(folder).report().to_json()["incidents"]] == [1]


# --- the file ---------------------------------------------------------------------------------------------------------


def incident(number: int, *, ended: int | None = None) -> Incident:
    return Incident(number, IncidentKind.HANG, Source(STEP, "", 3), 10, 20, ended, 7, line="a.py:1", evidence=("x",))


@pytest.fixture
def run_folder(tmp_path: Path) -> RunDirectory:
    folder = RunDirectory(tmp_path / "run")
    folder.create({})
    return folder


def test_incidents_are_read_as_they_were_written(run_folder: RunDirectory) -> None:
    sheet = IncidentSheet(0, 0)
    sheet.put(incident(1, ended=30))
    sheet.put(incident(2))
    sheet.keep(run_folder)
    assert read_incidents(run_folder, 0, 0) == sheet.all() == (incident(1, ended=30), incident(2))
    sheet.put(incident(2, ended=40))
    sheet.keep(run_folder)
    assert read_incidents(run_folder, 0, 0)[1].ended == 40
    assert run_folder.file("incidents", 0, 0).stat().st_mode & 0o777 == 0o600


def test_an_incident_that_its_attempt_left_open_ends_with_it(run_folder: RunDirectory) -> None:
    for attempt in (0, 1):
        sheet = IncidentSheet(attempt, 0)
        sheet.put(incident(1))
        sheet.keep(run_folder)
    assert [(attempt, one.ended) for attempt, one in incidents_of(run_folder, {0: 99})] == [(0, 99), (1, None)]
    # The second attempt died at once, and nothing says when the first one did.
    assert [(attempt, one.ended) for attempt, one in incidents_of(run_folder, {1: 120})] == [(0, 120), (1, 120)]


def test_which_exporters_have_delivered_which_spans_is_remembered(run_folder: RunDirectory) -> None:
    for attempt in (0, 1):
        sheet = IncidentSheet(attempt, 0)
        sheet.put(incident(1, ended=30), (2**127, 2**63))
        sheet.deliver(2**63 + attempt, 5)
        sheet.deliver(7, attempt)
        sheet.keep(run_folder)
    files = incidents.incident_files(run_folder)
    assert [(file.attempt, file.jobs, file.tells) for file in files] == [
        (attempt, {1: (2**127, 2**63)}, True) for attempt in (0, 1)
    ]
    assert incidents.delivered_by(files) == {2**63: {5}, 2**63 + 1: {5}, 7: {0, 1}}
    later = IncidentSheet(2, 0)
    assert later.left() is None
    later.keep(run_folder)
    assert later.left() == files
    for number in range(incidents.DELIVERED + 5):
        later.deliver(100 + number, 0)
    later.keep(run_folder)
    assert len(incidents.incident_files(run_folder)[2].delivered) == incidents.DELIVERED


def test_of_very_many_incidents_and_attempts_the_latest_are_kept(
    run_folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incidents, "ATTEMPTS", 5)
    for attempt in range(7):
        sheet = IncidentSheet(attempt, 0)
        sheet.put(incident(1, ended=30))
        sheet.keep(run_folder)
    assert [attempt for attempt, _ in incidents_of(run_folder, {})] == [*range(2, 7)]
    sheet = IncidentSheet(0, 0)
    for number in range(MOST + 5):
        sheet.put(incident(number, ended=30))
    assert [one.number for one in sheet.all()] == [*range(5, MOST + 5)]


def test_files_that_cannot_be_read_are_left_out(run_folder: RunDirectory) -> None:
    for attempt in (0, 1):
        sheet = IncidentSheet(attempt, 0)
        sheet.put(incident(1, ended=30))
        sheet.keep(run_folder)
    path = run_folder.file("incidents", 0, 0)
    path.write_bytes(path.read_bytes().replace(b"a.py", b"b.py"))
    assert [attempt for attempt, _ in incidents_of(run_folder, {})] == [1]
