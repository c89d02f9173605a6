"""What must hold of every job: the invariants P1, P3, P6 and P7, and that the ledger answers as the oracle does.

Longer than other files: the properties are tried on the same jobs, which are expensive to generate.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from timelines import replay

from .oracle import account, crossing
from .strategies import MARKED, NAMES, Question, Rows, chaos, garbage, instants, questions, runs, spread

pytestmark = pytest.mark.timeout(1200)  # many examples, on machines of any speed

# To explain a failure takes longer than all the tests together.
PHASES = [phase for phase in Phase if phase is not Phase.explain]
USUAL = settings.default.max_examples  # 25; 150 in `make test-release`, 3,000 in `make search`
MANY = settings(max_examples=4 * USUAL, deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)
SOME = settings(MANY, max_examples=USUAL)


def ns(seconds: float) -> int:
    return round(seconds * 1e9)


def by_category(answer: dict[str, Any]) -> dict[str, int]:
    """Nanoseconds by category, the custom phases under `custom/NAME`."""
    shares = {}
    for category, value in answer["seconds"].items():
        if category == "custom":
            shares.update({f"custom/{name}": ns(s) for name, s in value.items()})
        else:
            shares[category] = ns(value)
    return shares


def close(value: Any) -> Any:
    """The same structure with floats that compare with a tolerance for the order of additions."""
    if isinstance(value, dict):
        return {key: close(item) for key, item in value.items()}
    if isinstance(value, list):
        return [close(item) for item in value]
    return pytest.approx(value, rel=1e-9, abs=1e-15) if isinstance(value, float) else value


def check_agreement(question: Question) -> None:
    expected = account(question.rows, **question.arguments())
    actual = replay(question.rows, **question.arguments())
    # Times are whole nanoseconds: there the two agree exactly.
    for mine, theirs in ((expected, actual), *zip(expected["windows"], actual["windows"], strict=True)):
        assert by_category(theirs) == by_category(mine)
        assert ns(theirs["elapsed_s"]) == ns(mine["elapsed_s"])
    if crossing(question.rows):
        del expected["at_risk_s"]
    assert {key: actual.get(key) for key in expected} == close(expected)


# --- the ledger is the oracle ---------------------------------------------------------------------------------------


@MANY
@given(questions())
def test_the_ledger_answers_as_the_oracle_does(question: Question) -> None:
    check_agreement(question)


@MANY
@given(questions(chaos()))
def test_the_ledger_answers_as_the_oracle_does_in_chaos(question: Question) -> None:
    check_agreement(question)


def test_the_ledger_answers_as_the_oracle_does_on_a_long_run() -> None:
    """More steps than any sample holds, each of a length of its own."""
    rows: Rows = [{"kind": "job", "start_ns": 0, "end_ns": None}]
    now = 0
    for step in [*range(2300), *range(2250, 2500)]:
        length = 1000 + step * 7919 % 613 + (5000 if step in (0, 2250) else 0)
        rows.append({"kind": "step", "start_ns": now, "end_ns": now + length, "step": step})
        now += length
        if step % 500 == 0:
            rows.append({"kind": "checkpoint_save", "start_ns": now, "end_ns": now + 100, "step": step})
            now += 100
    check_agreement(Question(rows, windows=[(0, now // 2), (now // 2, now)]))


# --- P1 the categories are a partition ------------------------------------------------------------------------------


@MANY
@given(st.one_of(questions(), questions(chaos())))
def test_the_categories_sum_to_the_elapsed_time(question: Question) -> None:
    answer = replay(question.rows, **question.arguments())
    for part in (answer, *answer["windows"]):
        times = by_category(part)
        assert sum(times.values()) == ns(part["elapsed_s"])
        assert all(time > 0 for time in times.values())  # what holds no time is left out
        if part["elapsed_s"] and part["reason"] is None:
            assert part["goodput"] == pytest.approx(times.get("productive", 0) / ns(part["elapsed_s"]))
        else:
            assert part["goodput"] is None


@SOME
@given(runs(), st.integers(0, 120), st.integers(0, 120))
def test_the_parts_of_a_window_sum_to_the_window(rows: Rows, one: int, other: int) -> None:
    low, high = min(one, other), max(one, other)
    pieces = [(0, low), (low, high), (high, 10_000)]
    answer = replay(rows, windows=[(a / 1e9, b / 1e9) for a, b in pieces])
    assert sum(ns(window["elapsed_s"]) for window in answer["windows"]) == ns(answer["elapsed_s"])
    total: dict[str, int] = {}
    for window in answer["windows"]:
        for category, time in by_category(window).items():
            total[category] = total.get(category, 0) + time
    assert total == by_category(answer)


@SOME
@given(runs(), st.integers(0, 60), st.integers(0, 60))
def test_what_is_excluded_and_what_is_counted_make_the_whole(rows: Rows, one: int, other: int) -> None:
    low, high = min(one, other) / 1e9, max(one, other) / 1e9
    whole, window = replay(rows, windows=[(low, high)]), replay(rows, windows=[(low, high)])["windows"][0]
    rest = replay(rows, exclusions=[(low, high)])
    assert ns(rest["excluded_s"]) == ns(window["elapsed_s"])
    cut, kept = by_category(window), by_category(rest)
    assert {c: cut.get(c, 0) + kept.get(c, 0) for c in {*cut, *kept}} == by_category(whole)
    # A window in the excluded time has nothing to tell; net step times and progress know nothing of exclusions.
    assert replay(rows, exclusions=[(low, high)], windows=[(low, high)])["windows"][0]["seconds"] == {}
    for key in ("steps", "disruptions", "max_productive_step"):
        assert rest[key] == whole[key]
    if rest["reason"] == whole["reason"]:
        assert all(rest[key] == whole[key] for key in ("ideal_step_time_s", "step_time_deviation_s"))


# --- order and company do not matter --------------------------------------------------------------------------------


@SOME
@given(st.one_of(runs(), chaos()).map(spread), st.randoms(use_true_random=False))
def test_rows_may_come_in_any_order(rows: Rows, random: Any) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert replay(shuffled) == replay(rows)
    assert replay(iter(rows)) == replay(rows)


@SOME
@given(st.one_of(runs(), chaos()))
def test_duplicates_and_other_processes_change_nothing(rows: Rows) -> None:
    strangers = [{**row, "process": 1, "start_ns": row["start_ns"] + 3} for row in rows]
    assert replay([*rows, *strangers, *rows]) == replay(rows)


@SOME
@given(st.one_of(runs(), chaos()))
def test_seconds_and_nanoseconds_tell_the_same(rows: Rows) -> None:
    def in_seconds(row: dict[str, Any]) -> dict[str, Any]:
        def seconds(value: Any) -> Any:
            return [seconds(one) for one in value] if isinstance(value, list) else value and value / 1e9

        return {key.removesuffix("_ns"): seconds(value) if key.endswith("_ns") else value for key, value in row.items()}

    assert replay([in_seconds(row) for row in rows]) == replay(rows)


# --- P3 a category shrinks only where the rules say so --------------------------------------------------------------


class Between(NamedTuple):
    """What the rows tell between two questions, about a stretch that begins at `begin`. All times in ns."""

    rows: Rows
    first: int
    second: int
    begin: int

    def begins(self, *kinds: str) -> bool:
        return any(row["kind"] in kinds and self.first < row["start_ns"] <= self.second for row in self.rows)

    def ends(self, *kinds: str) -> bool:
        """One ends, on the host or on the device."""
        mine = [row for row in self.rows if row["kind"] in kinds]
        moments = set(instants(mine)) - {row["start_ns"] for row in mine}
        return any(self.first < moment <= self.second for moment in moments)

    @property
    def restarts(self) -> bool:
        """Another attempt gives its first sign."""
        known = {row["attempt"] for row in self.rows if row["start_ns"] <= self.first}
        return any(self.first < row["start_ns"] <= self.second and row["attempt"] not in known for row in self.rows)

    @property
    def over(self) -> bool:
        """Something is over, on the host or on the device, or cannot be any more."""
        return self.ends(*MARKED, "job") or self.begins("job", "step") or self.restarts

    @property
    def first_steps(self) -> bool:
        """Something is over that first steps are compared with, or a compilation says that none is taken apart."""
        return self.over or self.begins("compile")

    @property
    def back(self) -> bool:
        return self.begins("step", "job") or self.restarts

    @property
    def durable(self) -> bool:
        return self.ends("checkpoint_save")

    @property
    def compiles_within(self) -> bool:
        """In a phase that was there already there is a compilation, which begins, or turns out to lie elsewhere."""
        phases = [row for row in self.rows if row["kind"] in MARKED and row["start_ns"] <= self.begin]
        compilations = [row for row in self.rows if row["kind"] == "compile" and row["start_ns"] <= self.second]
        inside = any(phase["start_ns"] < one["start_ns"] for phase in phases for one in compilations)
        return inside and (self.begins("compile") or self.ends(*MARKED, "compile"))


ANY = "*"
CHORES = (*(f"custom/{name}" for name in NAMES), *MARKED[2:], "accelerator_init", "data_loading")
Transfers = dict[tuple[str, str], tuple[str, Callable[[Between], bool]]]
# From which category to which time may go, by which rule, and what has happened when it does.
TRANSFERS: Transfers = {
    ("in_flight", ANY): ("R4: what was in flight is over, or has left the device before it ended", lambda it: it.over),
    ("productive", "wasted_progress"): ("R4: the run goes back", lambda it: it.back),
    ("program_startup", "wasted_progress"): ("R4 and R5: a first step goes back", lambda it: it.first_steps),
    ("wasted_progress", "program_startup"): ("R4 and R5: a first step goes back", lambda it: it.over),
    ("productive", "program_startup"): ("R5: a first step, beside the others", lambda it: it.over),
    ("program_startup", "productive"): ("R5: a first step, beside the others", lambda it: it.first_steps),
    ("wasted_progress", "productive"): ("R4: a checkpoint that holds it turned durable", lambda it: it.durable),
    ("other", "productive"): ("R4: a checkpoint that holds it turned durable", lambda it: it.durable),
    ("other", "program_startup"): ("R4 and R5: the same of a first step", lambda it: it.durable),
    ("other", "wasted_progress"): ("R4: the same, and the run goes back", lambda it: it.durable and it.back),
    ("stalled", "productive"): ("R10: long steps turn out to be usual", lambda it: it.ends("step")),
}
DISPLACED: Transfers = {
    (giver, ANY): ("R3: what a phase dispatched begins behind a compilation in it", lambda it: it.compiles_within)
    for giver in (*CHORES, "program_startup", "in_flight")
}


@SOME
@given(runs(clean=True).map(spread), st.data())
def test_time_changes_hands_by_named_transfers(rows: Rows, data: st.DataObject) -> None:
    """Between two questions, each stretch in which nothing begins or ends keeps its owner, or gives its time by a named
    transfer to another, for which there is a reason in the rows that came between.
    """
    for row in rows:
        row.setdefault("blocking", True)  # else a load is blocking or not by where its step ends, which comes later
    for attempt in {row["attempt"] for row in rows}:  # who is dead gives no sign any more
        later = [row["start_ns"] for row in rows if row["attempt"] > attempt]
        assume(max(instants([row for row in rows if row["attempt"] == attempt])) < min(later, default=math.inf))
    times = sorted(instants(rows))
    first = data.draw(st.sampled_from(times))
    second = data.draw(st.sampled_from([t for t in times if t >= first]))
    check_transfers(rows, first, second)


def check_transfers(rows: Rows, first: int, second: int) -> set[tuple[str, str]]:
    """Between questions at `first` and `second` (ns); returns from which categories to which time went."""
    gone: set[tuple[str, str]] = set()
    stretches = [(a / 1e9, b / 1e9) for a, b in pairwise(sorted(instants(rows))) if b <= first]
    early, late = (replay(rows, at=t / 1e9, windows=stretches) for t in (first, second))
    assert early["elapsed_s"] <= late["elapsed_s"]
    for stretch, before, after in zip(stretches, early["windows"], late["windows"], strict=True):
        was, is_now = by_category(before), by_category(after)
        assert ns(before["elapsed_s"]) <= ns(after["elapsed_s"])
        it = Between(rows, first, second, ns(stretch[0]))
        for giver in (name for name in was if is_now.get(name, 0) < was[name]):
            for taker in (name for name in is_now if was.get(name, 0) < is_now[name]):
                ways = [(giver, taker), (giver, ANY)]
                named = [table[way] for table in (TRANSFERS, DISPLACED) for way in ways if way in table]
                assert any(happened(it) for _, happened in named), f"{giver} to {taker} in {stretch}: {named}"
                gone.add((giver, taker))
    return gone


@SOME
@given(runs(crashes=False, clean=True).map(spread), st.data())
def test_time_settled_stays_where_it_is(rows: Rows, data: st.DataObject) -> None:
    """Without deaths only steps' own time changes hands: into productive, wasted and start-up time; that of a step that
    never began, when its checkpoint turns durable; and what was in flight until a device end was recorded.
    """
    for row in rows:
        row.setdefault("blocking", True)  # else a load is blocking or not by where its step ends, which comes later
    times = sorted(instants(rows))
    first = data.draw(st.sampled_from(times))
    second = data.draw(st.sampled_from([t for t in times if t >= first]))
    answers = [replay(rows, at=t / 1e9) for t in (first, second)]
    early, late = map(by_category, answers)
    assert answers[0]["elapsed_s"] <= answers[1]["elapsed_s"]
    own = ("productive", "wasted_progress", "program_startup", "in_flight")
    for category, time in early.items():
        if category not in own and not (category == "other" and any(row.get("left") for row in rows)):
            assert late.get(category, 0) >= time, category
    if any("device_end_ns" in row or "device_ns" in row or row.get("left") for row in rows):
        return
    assert sum(late.get(c, 0) for c in own) >= sum(early.get(c, 0) for c in own)
    # Productive time goes to wasted time and start-up only.
    settled = ("productive", "wasted_progress", "program_startup")
    assert sum(late.get(c, 0) for c in settled) >= sum(early.get(c, 0) for c in settled)


@SOME
@given(runs())
def test_time_beyond_the_end_changes_nothing(rows: Rows) -> None:
    last = max(instants(rows))
    assume(replay(rows)["in_flight_step"] is None)
    last_attempt = max(row["attempt"] for row in rows)
    assume(all(row["end_ns"] is not None for row in rows if row["kind"] == "job" and row["attempt"] == last_attempt))
    assert replay(rows, at=(last + 1000) / 1e9) == replay(rows)


# --- P6 what does not block owns nothing ----------------------------------------------------------------------------


@SOME
@given(st.one_of(runs(), chaos()))
def test_phases_that_do_not_block_own_nothing(rows: Rows) -> None:
    def witness(row: dict[str, Any]) -> Rows:
        """What is left of a phase that does not block: its signs of life, that something was compiled, and what a
        checkpoint holds.
        """
        if row["kind"] == "checkpoint_save":
            return [row]
        times = [row[key] for key in ("start_ns", "end_ns") if row.get(key) is not None]
        signs = [{"kind": "heartbeat", "start_ns": t, "attempt": row["attempt"]} for t in times]
        if row["kind"] == "compile":
            signs.append({**row, "end_ns": row["start_ns"]})
        return signs

    for row in rows:
        row.setdefault("blocking", True)  # else a load may hold up training for want of the step around it
    stripped = [new for row in rows for new in (witness(row) if row.get("blocking") is False else [row])]
    assert by_category(replay(stripped)) == by_category(replay(rows))


# --- P7 nothing makes it raise or count backwards -------------------------------------------------------------------


@pytest.mark.timeout(30)
@pytest.mark.parametrize("key", ["start", "start_ns", "end_ns", "device_end_ns"])
@pytest.mark.parametrize("time", [1e10, 1e20, 1e260, -1e260, math.inf, -math.inf, math.nan, 2**63, 2**70, -(2**70)])
def test_times_beyond_all_clocks_are_survived(key: str, time: float) -> None:
    kinds = ("step", "job", "training_prep", "heartbeat")
    rows = [{"kind": kind, "start": 1, "step": 1, key: time} for kind in kinds]
    check_sane(replay([{"kind": "job", "start": 0}, *rows, *({**row, "attempt": 2} for row in rows)]))


def check_sane(value: Any, path: str = "") -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            # The deviation alone is signed.
            if key != "step_time_deviation_s":
                check_sane(item, f"{path}.{key}")
    elif isinstance(value, list):
        for item in value:
            check_sane(item, path)
    elif isinstance(value, int | float):
        assert math.isfinite(value), path
        assert value >= 0 or path in (".windows.start", ".windows.end"), path


WINDOWS = st.lists(st.tuples(st.integers(0, 50), st.integers(50, 99)), max_size=2)


@settings(MANY, max_examples=2 * USUAL)
@given(garbage(), st.none() | st.integers(-5, 90), WINDOWS)
def test_no_input_raises_or_counts_backwards(rows: list[Any], at: int | None, spans: list[tuple[int, int]]) -> None:
    windows = [(a / 1e9, b / 1e9) for a, b in spans]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows that make no sense may be mentioned
        answer = replay(rows, at=None if at is None else at / 1e9, windows=windows, exclusions=windows[:1])
    check_sane(answer)
    whole = sum(by_category(answer).values())
    assert whole == ns(answer["elapsed_s"]) or whole > 2**50  # beyond that a float no longer holds a nanosecond
