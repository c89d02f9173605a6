"""What a profiler costs is a category of its own (rule R12)."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from timelines import replay

from otel_goodput import Recorder
from otel_goodput._accounting import rules
from otel_goodput._accounting.ledger import Ledger
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput.reports.run import RecordedRun
from otel_goodput.reports.timeline import Timeline, account_timeline

from .intervals import traced
from .strategies import Question, Rows
from .test_ledger_streams import arrivals
from .test_properties import SOME, check_agreement
from .test_stalls import FEW, SECOND, Loop


class Profiled(Loop):
    def profile(self, state: str = "on") -> Profiled:
        self.rows.append({"kind": "profiling", "start": self.now, "state": state})
        return self


def loop(*lengths: float, **more: Any) -> Any:
    return Profiled().steps(*lengths, **more)


def test_what_steps_take_beyond_the_longest_usual_one_is_the_profilers() -> None:
    seconds = loop(*[1] * 8, 2, *[1] * 8).profile().steps(1, 2, 5, 3).profile("over").steps(1, 4).seconds()
    assert seconds == {"productive": 18 + 1 + 2 + 2 + 2 + 5, "custom": {"profiling": 3 + 1}}


def test_only_the_latest_twenty_steps_say_what_is_usual() -> None:
    assert loop(1, 9, *[1] * 20).profile().steps(3).seconds() == {"productive": 31, "custom": {"profiling": 2}}
    assert loop(1, 9, *[1] * 19).profile().steps(3).seconds() == {"productive": 32}
    assert loop(*[1] * 6).profile().steps(3).seconds() == {"productive": 9}


def test_steps_that_have_become_slow_before_are_not_the_profilers() -> None:
    """A profile that an incident begins sees slow steps: that they are slow is not its cost."""
    assert loop(*[1] * 50, *[3] * 2).profile().steps(*[3] * 5).seconds() == {"productive": 71}


def test_an_open_step_and_one_that_is_lost() -> None:
    profiled = loop(*[1] * 8).profile().steps(100)
    seconds = profiled.seconds(ended=False, at=12)
    assert seconds == {"productive": 8, "in_flight": 1, "custom": {"profiling": 3}}
    profiled = loop(*[1] * 8).profile().steps(3, completed=False).profile("over").steps(1)
    assert profiled.seconds() == {"productive": 9, "wasted_progress": 1, "custom": {"profiling": 2}}


def test_what_is_nested_and_what_is_excluded_has_its_own_account() -> None:
    profiled = loop(*[1] * 8).profile().steps(6)
    profiled.rows += [
        {"kind": "custom", "name": "eval", "start": 10, "end": 12},
        {"kind": "exclusion", "start": 8.5, "end": 9.5},
    ]
    assert profiled.seconds() == {"productive": 9, "custom": {"profiling": 2, "eval": 2}}


def test_a_hang_in_a_profile_and_after_it() -> None:
    hanging = loop(*[1] * 8).profile().steps(100)
    assert hanging.seconds() == {"productive": 9, "custom": {"profiling": 99}}
    hanging.rows.append({"kind": "profiling", "start": 10, "state": "over"})
    assert hanging.seconds() == {"productive": 8 + 11, "custom": {"profiling": 1}, "stalled": 88}


def test_a_step_on_the_device() -> None:
    rows = loop(*[1] * 8).profile().steps(1, device_end=13).steps(1, device_end=15)
    assert rows.phase("data_loading", 5).seconds() == {"productive": 10, "custom": {"profiling": 5}}


def test_the_clock_is_not_known() -> None:
    rows = [{"kind": "clock", "start": 8, "state": "unknown"}]
    profiled = loop(*[1] * 8).profile()
    profiled.rows += rows
    profiled.steps(4)
    answer = replay([{"kind": "job", "start": 0, "end": profiled.now}, *profiled.rows])
    assert "custom" not in answer["seconds"]


def test_a_later_attempt_has_no_profiler() -> None:
    dead = [{**row, "attempt": 1} for row in loop(*[1] * 8).profile().steps(4).rows]
    dead[-1]["end"] = None
    later = [
        {**row, "start": row["start"] + 20, "end": row["end"] + 20, "attempt": 2} for row in loop(*[1] * 8, 5).rows
    ]
    jobs = [{"kind": "job", "start": 0, "end": None}, {"kind": "job", "start": 20, "end": 33, "attempt": 2}]
    beat = {"kind": "heartbeat", "start": 12, "attempt": 1}
    seconds = replay([*jobs, beat, *dead, *later])["seconds"]
    assert seconds["custom"] == {"profiling": 3}


def drawn(seed: int) -> Question:
    """Loops with steps of some lengths, profiles, saves, evaluations, lost steps and a second attempt."""
    draw = Random(seed)
    rows: Rows = []
    now, number = 0, 0
    for attempt in range(1, draw.randint(1, 2) + 1):
        begin, mine, name = now, [], draw.choice((None, "a"))  # type: ignore[var-annotated]
        for _ in range(draw.randint(8, 40)):
            length = draw.choices((1, 2, 3, 5, 8), (9, 3, 2, 1, 1))[0]
            if draw.random() < 0.15:
                mine.append({"kind": "profiling", "start": now, "state": draw.choice(("on", "over"))})
            if draw.random() < 0.1:
                cut = now + draw.randrange(length)
                mine.append({"kind": "profiling", "start": cut, "state": draw.choice(("on", "over"))})
            step = {"kind": "step", "start": now, "end": now + length, "step": number, "loop": name}
            mine.append(step)
            if length > 2 and draw.random() < 0.3:
                cut = now + draw.randrange(length)
                kind = draw.choice(("checkpoint_save", "custom", "exclusion", "data_loading", "compile"))
                mine.append({"kind": kind, "start": cut, "end": cut + length // 2, "name": "eval", "blocking": True})
            now += length
            if draw.random() < 0.05:
                step.update(draw.choice(({"completed": False}, {"left": True}, {"left": True, "completed": False})))
            if draw.random() < 0.1:
                step["device_end"] = now + draw.randint(0, 3)
            number = number + 1 if draw.random() < 0.95 else max(0, number - draw.randint(0, 9))
            if draw.random() < 0.04:
                name = draw.choice((None, "a"))
        mine.append({"kind": "job", "start": begin, "end": now + draw.randint(0, 3)})
        rows += [{**row, "attempt": attempt} for row in mine]
        now += 4 + draw.randint(0, 30)
    low, high = sorted(draw.choices(range(now), k=2))
    at = draw.choice((None, draw.randrange(now)))
    return Question(rows, None if at is None else at * SECOND, [(low * SECOND, high * SECOND)])


@SOME
@given(st.integers(0, 1 << 40))
def test_the_oracle_says_the_same(seed: int) -> None:
    check_agreement(drawn(seed))


@FEW
@given(st.integers(0, 1 << 40))
def test_however_it_arrives_the_account_is_the_same(seed: int) -> None:
    """In pieces, with late ends on the device, through snapshots, with rolling windows: P1 and P2."""
    fate = Random(seed)
    timeline = Timeline([row for row in drawn(seed).rows if row["kind"] not in ("compile", "exclusion")])
    known = account_timeline(timeline, at=None)
    spans = (60 * SECOND, 600 * SECOND)
    events = arrivals(timeline, fate)
    ledger, whole = Ledger(spans), Ledger(spans)
    whole.feed(events)
    first = 0
    while first < len(events):
        chunk = fate.randint(1, 9)
        ledger.feed(events[first : first + chunk])
        first += chunk
        if fate.random() < 0.2:
            head, blobs = ledger.dump()
            ledger = Ledger.load(json.loads(json.dumps(head)), b"".join(bytes(blob) for blob in blobs), spans)
        now = max(event.time for event in events[:first]) + fate.choice((0, 0, 5 * SECOND))
        live = ledger.totals(now)
        for part in (live.run, *(window for _, window in live.rolling)):
            assert sum(part.categories.values()) + sum(part.custom.values()) == part.elapsed
            assert min((*part.categories.values(), *part.custom.values())) >= 0, part
        assert sum(sum(bin.values()) for bin in ledger.overview(now).bins) == live.run.elapsed
    resumed = ledger.totals(known.at)
    assert resumed.to_json() == known.to_json()
    assert resumed.rolling == whole.totals(known.at).rolling
    trace = traced(timeline.events(), at=known.at)
    held = sum(end - begin for begin, end, owner in trace.intervals() if owner == rules.PRODUCTIVE)
    assert held == known.run.categories["productive"]


def test_a_restart_from_a_snapshot_goes_on_with_it() -> None:
    profiled = loop(*[1] * 8).profile().steps(3, 4)
    events = list(Timeline([{"kind": "job", "start": 0, "end": profiled.now}, *profiled.rows]).events())
    whole = Ledger()
    whole.feed(events)
    for at in range(len(events)):
        first = Ledger()
        first.feed(events[:at])
        head, blobs = first.dump()
        again = Ledger.load(json.loads(json.dumps(head)), b"".join(bytes(blob) for blob in blobs))
        again.feed(events[at:])
        assert again.totals() == whole.totals()
    assert whole.totals().run.custom["profiling"] == 5 * SECOND


def test_older_snapshots_have_no_profiler() -> None:
    head, blobs = Ledger().dump()
    assert head["account"].pop("usual_before_profile") == []
    assert Ledger.load(head, b"".join(bytes(blob) for blob in blobs)).settled.ceilings == {}


def test_of_several_ranks_it_is_what_the_job_waits_for(tmp_path: Path) -> None:
    """A profiler makes the steps of rank 1 long, for which rank 0 waits in its own (R11)."""
    together = threading.Barrier(2)

    def train(rank: int) -> None:
        recorder = Recorder(
            "run", run_id="run", directory=tmp_path, exporters="none", process_index=rank, process_count=2
        )
        with recorder.job():
            for number, _ in recorder.steps(enumerate(range(26))):
                slow = rank == 1 and 20 <= number < 24
                if rank == 1 and number in (20, 24):
                    recorder._account.profiling(slow)
                time.sleep(0.05 if slow else 0.001)
                together.wait()
        recorder.shutdown()

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run = RecordedRun(RunDirectory(tmp_path / "run"))
    answers = [run.report(process=1).to_json(), run.report(exact=True).to_json()]
    own, exact = (one["seconds"]["custom"] for one in answers)
    assert isinstance(own, dict) and isinstance(exact, dict)
    assert 0 < exact["profiling"] <= own["profiling"]  # a rank that is late in its own step has a share in it
