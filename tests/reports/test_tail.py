"""What a page gets of a run second after second adds up to what it gets at its end."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest
from viewer.story import NAMES, Story

from benchmarks.long_run import NS
from otel_goodput._accounting import Event
from otel_goodput._accounting import events as ev
from otel_goodput._accounting.overview import IN_FLIGHT, NOT_KNOWN
from otel_goodput._journal import records
from otel_goodput._journal.records import CAPACITY, HEADER_SIZE, SIZE
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._timeline.recovery import Follower
from otel_goodput.reports.detail import Detail, read_detail
from otel_goodput.reports.excerpt import MOST, News, Tail


class Growing:
    """The journal of a run that goes on, written by a test."""

    def __init__(self, directory: Path) -> None:
        self.run = RunDirectory(directory / "grows")
        self.run.create({"run_id": "grows", "job_name": "grows", "created_at": 0, "process_count": 1})
        self.path = self.run.segment_path(0, 0, 0)
        self.path.write_bytes(records.encode_header(0, 0, 0, 1).ljust(HEADER_SIZE + CAPACITY * SIZE, b"\0"))
        self._at = HEADER_SIZE
        for identity, name in enumerate(NAMES[1:], 1):
            self._write(b"".join(records.encode_name(identity, name.encode())))

    def _write(self, data: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(self._at)
            file.write(data)
        self._at += len(data)

    def write(self, events: list[Event]) -> None:
        for one in events:
            flags = one.arg if one.kind == ev.SLICES else one.flags
            name = NAMES.index(one.name)
            body = records.BODY.pack(one.kind, one.phase, flags, name, one.key, one.step, one.time)
            self._write(records.seal(body))


def spans(seen: dict[tuple[str, int], tuple[object, ...]], detail: Detail) -> None:
    """Merge the detail into what was seen before, as a page does."""
    for step in detail.steps:
        seen["step", step.key] = (step.begin, step.end, step.net, step.device_begin, step.device_end, step.fate)
    for phase in detail.phases:
        seen["phase", phase.key] = (phase.phase, phase.name, phase.begin, phase.end, phase.step, phase.parent)


@pytest.mark.parametrize("observed", [True, False])
@pytest.mark.parametrize("chunk", [1, 7, 60])
def test_news_add_up_to_the_whole(tmp_path: Path, observed: bool, chunk: int) -> None:
    """Owners, too: from one look on they replace those that began at the same moment or later."""
    events = list(Story(observed).life(0, 0, 45))
    events.sort(key=lambda one: one.time)  # a durable save is recorded in advance
    grows, tail = Growing(tmp_path), Tail()
    seen: dict[tuple[str, int], tuple[object, ...]] = {}
    owners: list[tuple[int, int, int]] = []
    first, reached = 0, 0
    names: list[str] = []
    follower = Follower(grows.run)
    for at in range(0, len(events), chunk):
        grows.write(events[at : at + chunk])
        follower.poll()
        reached = events[min(len(events), at + chunk) - 1].time
        news = tail.news(follower, reached)
        if news is None:
            first = reached
            continue
        assert (news.until, news.cut) == (reached, False)
        spans(seen, news.detail)
        if news.detail.owners:
            since = news.detail.owners[0][0]
            owners = [(a, min(b, since), c) for a, b, c in owners if a < since] + news.detail.owners
            names = list(news.detail.names) or names
        # Little is sent again: what was open, and what has something new.
        assert len(news.detail.steps) + len(news.detail.phases) <= chunk + 3
    whole = read_detail(grows.run, 0, state="running", at=reached)
    wanted: dict[tuple[str, int], tuple[object, ...]] = {}
    spans(wanted, whole)
    known = {key: wanted[key] for key in seen}
    # The last steps are in flight, which goes on without any news of them.
    over = {key for key, one in known.items() if one[-1] != IN_FLIGHT or key[0] == "phase"}
    assert {key: seen[key] for key in over} == {key: known[key] for key in over}
    begun = {key for key, one in wanted.items() if (one[0] if key[0] == "step" else one[2]) > first}  # type: ignore[operator]
    assert begun <= seen.keys()
    settled = owners[0][0]
    assert sum(b - a for a, b, _ in owners) == reached - settled
    ours = Detail(owners=owners).partition(settled, reached)
    truth = whole.partition(settled, reached)
    assert names == list(whole.names)
    # Start-up that is hidden in the first step is not sent: it takes the steps behind it to know of it.
    assert sum(abs(ours[one] - truth[one]) for one in ours | truth) <= 2 * 450_000_000
    assert any(key[0] == "phase" and one[3] == NOT_KNOWN for key, one in seen.items()) or chunk > 1


def test_of_too_much_the_latest_is_kept(tmp_path: Path) -> None:
    events = list(Story(False).life(0, 0, 400))
    grows, tail = Growing(tmp_path), Tail()
    history: list[News] = []
    follower = Follower(grows.run)
    written = 0
    for until in accumulate([50, 100, 3 * MOST, 100]):
        grows.write(events[written:until])
        written = until
        follower.poll()
        news = tail.news(follower, events[until - 1].time)
        if news is not None:
            history.append(news)
            if news.cut:
                followed = list(follower.state.ledger.opened)
    few, much, again = history
    assert not few.cut and not again.cut and much.cut
    assert much.begin > few.until + NS and not much.detail.owners
    assert 0 < len(much.detail.steps) < MOST
    # All that is open is sent with it, so what is not sent is over; a step that began before has no time of its own.
    kept = {one.key for one in (*much.detail.steps, *much.detail.phases) if one.end == NOT_KNOWN}
    assert kept == {one.key for one in followed}
    assert all((one.net == NOT_KNOWN) is (one.begin < much.begin) for one in much.detail.steps)
    assert again.begin == much.until and again.detail.owners
    # What was open while too much happened is still known: the job owns what nothing else does.
    assert again.detail.owners[0][0] <= again.begin
