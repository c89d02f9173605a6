"""Rolling windows of a run that was recorded: what the metrics of it had at that moment, and others to the ns."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import Recording
from tools.commands import failed, goodput, succeeded
from tools.journals import START, Written
from waits import until

import otel_goodput
from otel_goodput import open_run
from otel_goodput._accounting import Ledger, rules
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.buckets import BUCKETS
from otel_goodput._accounting.events import Event
from otel_goodput._journal.facts import FactSheet, encode
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._settings import config as configuration
from otel_goodput._settings.options import Setting, Settings
from otel_goodput._text.durations import Moment
from otel_goodput.reports import listing
from otel_goodput.reports.report import Report
from otel_goodput.reports.run import FollowedRun, RecordedRun
from otel_goodput.reports.timeline import account

NS = 10**9
HOUR = 3600 * NS
# What one attempt does: seconds of loading and of a step, and whether it saves then.
TURNS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60), st.booleans()), min_size=1, max_size=12)


class Lived:
    """A job of several attempts, as events, and what each of its seconds was spent on, second by second."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.seconds: list[str] = []
        self._of_step: list[tuple[int, int, int]] = []  # number, and from which second to which
        self._key = 0
        self._step = self._durable = -1

    @property
    def now(self) -> int:
        return START + len(self.seconds) * NS

    def spend(self, category: str, seconds: int) -> None:
        self.seconds += [category] * seconds

    def phase(self, of: int, category: str, seconds: int, step: int = ev.NO_STEP) -> None:
        self._key += 1
        self.events.append(Event(self.now, ev.START, of, self._key, step))
        self.spend(category, seconds)
        self.events.append(Event(self.now, ev.END, of, self._key))

    def attempt(self, number: int, turns: list[tuple[int, int, bool]], gap: int) -> None:
        """Go on after the last save, and die, or, with `gap` 0, end."""
        if number:
            self._step = self._durable
            for lost, first, last in self._of_step:
                if lost > self._durable:
                    self.seconds[first:last] = ["wasted_progress"] * (last - first)
            self._of_step = [one for one in self._of_step if one[0] <= self._durable]
        self.events.append(Event(self.now, ev.ATTEMPT, step=number))
        self._key = job = 1
        self.events += [Event(self.now, ev.START, rules.JOB, job), Event(self.now, ev.LIMIT, 0, 1000 * NS)]
        for load, length, saves in turns:
            self.phase(rules.DATA_LOADING, "data_loading", load)
            self._step += 1
            first = len(self.seconds)
            self.phase(rules.STEP, "productive", length, self._step)
            self._of_step.append((self._step, first, len(self.seconds)))
            if saves:
                self.phase(rules.SAVE, "checkpoint_save", 5, self._step)
                self._durable = self._step
        if gap:
            self.events.append(Event(self.now, ev.HEARTBEAT))
            self.spend("infrastructure_recovery", gap)
        else:
            self.events.append(Event(self.now, ev.END, rules.JOB, job))

    def last(self, span: int) -> dict[str, int]:
        """What the last `span` seconds were spent on, s."""
        return dict(Counter(self.seconds[max(0, len(self.seconds) - span) :]))


@st.composite
def jobs(draw: Any) -> Lived:
    job = Lived()
    attempts = draw(st.integers(1, 3))
    for number in range(attempts):
        turns = draw(TURNS)
        # The first step of a start without compilations would be start-up in part (R5).
        job.attempt(number, [(0, 1, number == 0), *turns], 0 if number == attempts - 1 else draw(st.integers(1, 300)))
    return job


def spent(partition: Any) -> dict[str, float]:
    return {name: held / NS for name, _, held in partition.rows()}


@settings(max_examples=settings.default.max_examples // 2)
@given(jobs(), st.integers(480, 1500), st.integers(2, 20))
def test_windows_hold_what_their_seconds_were_spent_on(job: Lived, span: int, times: int) -> None:
    spans = (span * NS, times * span * NS)
    ledger, at = Ledger(spans), job.now + 100 * NS
    ledger.feed(job.events)
    totals = ledger.totals(at)
    assert totals.until == job.now
    assert [end - begin for begin, end, _ in totals.recent] == [*spans]
    for begin, end, window in totals.recent:
        known = job.last((end - begin) // NS)
        assert end == job.now and window.elapsed == NS * sum(known.values())
        for name in {*known, *spent(window)}:
            # Of the bucket that the window begins in, each category has its share.
            assert abs(spent(window).get(name, 0) - known.get(name, 0)) <= spans[0] / BUCKETS / NS
    whole = account(job.events, at=at, windows=[(job.now - one, job.now) for one in spans], spans=spans)
    assert whole.recent == totals.recent
    for one, (_, _, window) in zip(spans, whole.windows, strict=True):
        assert spent(window) == job.last(one // NS)


@settings(max_examples=settings.default.max_examples // 2)
@given(jobs(), st.data())
def test_they_are_the_same_after_a_restart(job: Lived, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(job.events)))
    spans = (600 * NS, 900 * NS)
    live, restored = Ledger(spans), Ledger(spans)
    for one in (live, restored):
        one.feed(job.events[:cut])
    head, blobs = restored.dump()
    restored = Ledger.load(json.loads(json.dumps(head)), b"".join(map(bytes, blobs)), None)
    for one in (live, restored):
        one.feed(job.events[cut:])
    assert restored.totals(job.now).recent == live.totals(job.now).recent
    assert restored.totals(job.now + HOUR).rolling == live.totals(job.now + HOUR).rolling


def test_one_that_is_not_known_as_a_whole_is_missing() -> None:
    job = Lived()
    job.attempt(0, [(3, 7, False)] * 100, 0)
    ledger = Ledger((HOUR,))
    ledger.feed(job.events[: len(job.events) // 2])
    ledger.add_windows([30 * NS])  # so fine that both begin anew
    lengths = [end - begin for begin, end, _ in ledger.totals().recent]
    assert lengths == []
    ledger.feed(job.events[len(job.events) // 2 :])
    assert [end - begin for begin, end, _ in ledger.totals().recent] == [30 * NS]


# --- journals ---------------------------------------------------------------------------------------------------------


def facts_with(windows: str) -> bytes:
    """What an attempt with these windows leaves."""
    config = configuration.read("run", windows=None)
    sheet = FactSheet(replace(config, settings={Settings.windows.variable: Setting(windows, "environment")}), 0, START)
    return encode(sheet.gathered())


def written(folder: Path, minutes: int, *, slow: int) -> Path:
    """A run of steps of 90 s with loads of 10 s; in the last `slow` minutes, loads take 210 s."""
    made = Written(folder, "run")
    job, now, number = made.phase(rules.JOB, 0, None), 0, 0
    while now < minutes * 60 * NS:
        begun = now + (210 if now >= (minutes - slow) * 60 * NS else 10) * NS
        made.phase(rules.DATA_LOADING, now, begun)
        now = begun + 90 * NS
        made.phase(rules.STEP, begun, now, number)
        number += 1
    made.add(ev.END, rules.JOB, job, time=now)
    return made.close()


def test_the_last_hour_is_seen_in_a_good_day(tmp_path: Path) -> None:
    folder = written(tmp_path, 25 * 60, slow=60)
    lines = str(open_run(folder).report()).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("  goodput"))
    assert re.fullmatch(r"  goodput 87\.\d\d % of 1 d 01 h", lines[at])
    hour, day = lines[at + 1 : at + 3]
    assert hour == "  goodput 30.00 % of the last 1 h of the run; most was lost to data_loading (70.00 %)"
    assert re.fullmatch(
        r"  goodput 87\.\d\d % of the last 24 h of the run; most was lost to data_loading \(\d+.\d\d %\)", day
    )
    own = succeeded(goodput("report", folder, "--rolling", "15m", "--rolling", "90s,2d"))
    assert "30.00 % of the last 15 min of" in own and "of the last 90 s of" in own
    assert "1 h of" not in own, "instead of the usual ones"
    assert "last 2 d" not in own and "last 48 h" not in own, "the run is shorter"
    [row] = json.loads(succeeded(goodput("runs", tmp_path, "--json")))["runs"]
    assert row["rolling"]["1h"] == pytest.approx(0.3) and row["rolling"].keys() == {"1h", "24h"}
    line = listing.render(listing.rows([RecordedRun(RunDirectory(folder))]), "here").splitlines()[3]
    assert line.split()[line.split().index("%") + 1 :][:2] == ["30.00", "%"]


def test_own_windows_are_exact(tmp_path: Path) -> None:
    run = open_run(written(tmp_path, 90, slow=30))
    report = run.report().to_json()
    end = report["started_at"] + report["elapsed_s"]
    for length, name in ((17 * 60 + 3, "1023s"), (3600, "1h")):
        [own] = run.report(rolling=f"{length}s").to_json()["rolling"]
        assert (own["window"], own["end"], own["elapsed_s"]) == (name, end, length)
        [window] = run.report(window=(end - length, end)).to_json()["windows"]
        for category, held in window["seconds"].items():
            assert own["seconds"][category] == pytest.approx(held, abs=15)
    [own], [window] = (
        run.report(**question).to_json()[field]
        for question, field in (
            ({"rolling": ["20m30s"]}, "rolling"),
            ({"window": (f"{end - 1230:f}", f"{end:f}")}, "windows"),
        )
    )
    assert own["seconds"] == window["seconds"], "nobody kept it: from the journal"
    both = run.report(rolling=("20m30s", "1h")).to_json()["rolling"]
    assert both[0] == own and both[1] == report["rolling"][0]


def test_they_end_at_the_requested_moment(tmp_path: Path) -> None:
    run = open_run(written(tmp_path, 180, slow=30))
    begin = run.totals().started_at or 0
    for question in ({"at": "2h"}, {"at": "2h", "rolling": "1h"}, {"at": "2h", "rolling": "50m"}):
        first = run.report(**question).to_json()["rolling"][0]
        assert first["end"] == begin / NS + 7200
        assert first["goodput"] == pytest.approx(0.9, abs=1e-3)
    cut = run.report(rolling="30m", exclude=("155m", "160m")).to_json()["rolling"][0]
    assert cut["elapsed_s"] == 1500


@pytest.mark.parametrize("wrong", ["soon", "0", "1ms"])
def test_wrong_lengths_are_refused(wrong: str, tmp_path: Path) -> None:
    folder = written(tmp_path, 1, slow=0)
    with pytest.raises(ValueError, match=r"duration|at least one second|could not convert"):
        open_run(folder).report(rolling=wrong)
    answer = goodput("report", folder, "--rolling", wrong)
    assert answer.returncode == 2 and f"invalid list of lengths value: '{wrong}'" in answer.stderr
    assert "--html" in failed(goodput("report", folder, "--html", "-", "--rolling", "1h"))


def test_the_account_of_all_ranks_has_them(tmp_path: Path) -> None:
    """In the last half hour rank 1 loads for so long that the leader, by itself, seems to be at work."""
    for rank in range(2):
        made = Written(tmp_path, "run", process=rank)
        job, now, number = made.phase(rules.JOB, 0, None), 0, 0
        while now < 7200 * NS:
            longest = 210 if now >= 5400 * NS else 10
            begun = now + (longest if rank else 10) * NS
            made.phase(rules.DATA_LOADING, now, begun)
            now += (longest + 90) * NS
            made.phase(rules.STEP, begun, now, number)
            number += 1
        made.add(ev.END, rules.JOB, job, time=now)
        folder = made.close()
    run = RecordedRun(RunDirectory(folder))
    [leader, _], [whole, _] = (one.to_json()["rolling"] for one in (run.report(process=0), run.report()))
    assert leader["goodput"] == pytest.approx((1800 * 0.9 + 1800 - 60) / 3600)
    assert whole["goodput"] == pytest.approx((1800 * 0.9 + 1800 * 0.3) / 3600)
    assert "  goodput 60.00 % of the last 1 h of the run; most was lost to data_loading (40.00 %)" in str(run.report())
    [own] = run.report(rolling=[1830 * NS]).to_json()["rolling"]
    assert own["elapsed_s"] == 1830 and own["goodput"] == pytest.approx((30 * 0.9 + 1800 * 0.3) / 1830, abs=0.01)
    [exact] = run.report(rolling=[1830 * NS], exact=True).to_json()["rolling"]
    past = run.report(at=Moment(7200 * NS, relative=True)).to_json()["rolling"][0]
    assert exact == own and past == whole


# --- of a job ---------------------------------------------------------------------------------------------------------


def backfilled(begin: int, seconds: int, turn: int = 50) -> None:
    """Turns of so many seconds: three tenths of each a load, the rest a step."""
    for at in range(0, seconds, turn):
        moments = [begin + at * NS + turn * passed * NS // 10 for passed in (0, 3, 10)]
        with otel_goodput.data_loading(start_time=moments[0], end_time=moments[1]):
            pass
        with otel_goodput.step(at // turn, start_time=moments[1], end_time=moments[2]):
            pass


def test_a_report_has_what_the_metrics_had(record: Callable[..., Recording]) -> None:
    """While the job runs, by its own process and by others, and after a restart."""
    begin = (time.time_ns() // NS - 6000) * NS
    for attempt in range(2):
        recording = record(windows="10m,1h")
        run = RecordedRun(RunDirectory(recording.folder))
        until(lambda run=run, attempt=attempt: run.facts(attempt))  # they come in its first seconds
        with otel_goodput.job(start_time=begin + attempt * 3000 * NS):
            backfilled(begin + attempt * 3000 * NS, 2800)
            live = otel_goodput.totals()
            assert live is not None and run.folder.attempts(0)[-1] == attempt
            read = run.report(at=live.at)
            assert read.totals.rolling == live.rolling
            assert read.to_json()["rolling"] == Report(live, {}).to_json()["rolling"]
            began = time.monotonic()
            points = recording.metrics()["goodput.ratio"].data.data_points
            metrics = {(one.attributes or {})["goodput.window"]: getattr(one, "value", None) for one in points}
            shown = {one["window"]: one["goodput"] for one in run.report().to_json()["rolling"]}
            passed = time.monotonic() - began  # the windows have moved on by that
            assert shown == pytest.approx({name: metrics[name] for name in ("10m", "1h")}, abs=0.001 + passed / 600)
        otel_goodput.shutdown()


@pytest.mark.parametrize("kind", [RecordedRun, FollowedRun])
def test_damaged_settings_leave_a_word(kind: type[RecordedRun], record: Callable[..., Recording]) -> None:
    """Until it has said its own, an attempt is taken to have the windows of the one before."""
    begin = (time.time_ns() // NS - 6000) * NS
    for attempt in range(2):
        recording = record(windows="10m,1h")
        with otel_goodput.job(start_time=begin + attempt * 3000 * NS, end_time=begin + (attempt * 3000 + 2800) * NS):
            backfilled(begin + attempt * 3000 * NS, 2800)
        otel_goodput.shutdown()
    folder = RunDirectory(recording.folder)
    right = RecordedRun(folder).report()
    path = folder.file("facts", 1, 0)
    path.write_bytes(b"noise")
    report = kind(folder).report()
    assert report.totals.recent == right.totals.recent and len(right.totals.recent) == 2
    assert [one.where for one in report.damage] == [path.name] and report.damaged
    assert any(path.name in note.text for note in report.notes)
    path.unlink()
    report = kind(folder).report()
    assert report.totals.recent == right.totals.recent and not report.damaged


def test_added_windows_are_shown_from_a_snapshot(record: Callable[..., Recording]) -> None:
    """They need finer buckets than the others."""
    recording = record(windows="10m,1h")
    recording.recorder.add_windows("90s")
    begin = (time.time_ns() // NS - 3700) * NS
    with otel_goodput.job(start_time=begin, end_time=begin + 3700 * NS):
        backfilled(begin, 3700, 100)
    otel_goodput.shutdown()
    run = RecordedRun(RunDirectory(recording.folder))
    assert run.folder.file("snapshot", 0).is_file()
    for read in (run, FollowedRun(run.folder)):
        shown = read.report().to_json()["rolling"]
        lengths = [(one["window"], one["elapsed_s"]) for one in shown]
        assert lengths == [("10m", 600), ("1h", 3600), ("90s", 90)]
        assert [one["goodput"] for one in shown][:2] == pytest.approx([0.7] * 2, abs=0.02)


def test_a_run_that_is_followed_from_its_first_moment_shows_its_own_windows(tmp_path: Path) -> None:
    """What it was configured with is not known before some seconds have passed."""
    folder = written(tmp_path, 30, slow=0)
    followed = FollowedRun(RunDirectory(folder))
    assert [one["window"] for one in followed.report().to_json()["rolling"]] == ["1h", "24h"]
    facts = RecordedRun(RunDirectory(folder))
    (folder / "journal" / "a0000-p0000.facts").write_bytes(facts_with("5m"))
    for read in (facts, followed, followed):
        assert [one["window"] for one in read.report().to_json()["rolling"]] == ["5m"]


@pytest.mark.parametrize("text", ["", "nonsense", "1e400", "-1s", "0,0"])
def test_what_the_settings_of_a_run_hold_does_no_harm(text: str, tmp_path: Path) -> None:
    folder = written(tmp_path, 30, slow=0)
    (folder / "journal" / "a0000-p0000.facts").write_bytes(facts_with(text))
    rolling = open_run(folder).report().to_json()["rolling"]
    assert [one["window"] for one in rolling] == ([] if not text else ["1h", "24h"])
