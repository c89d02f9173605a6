"""What a report says of the ranks of a job: who is accused, and who cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from otel_goodput.reports import ranks_text
from otel_goodput.reports.ranks import without_guesses

AT = 1_795_000_000.0


def rank(index: int, phase: str | None, step: int | None, **more: Any) -> dict[str, Any]:
    known = {"host": "n3", "pid": 100 + index, "state": "running", "name": "", "since": AT - 60}
    return {**known, "rank": index, "phase": phase, "step": step, "last_sign_of_life": AT, **more}


def lines(*ranks: dict[str, Any], state: str = "running", **more: Any) -> list[str]:
    known = {"count": len(ranks), "expected": len(ranks), "missing": [], "together": True, "waits": [], "roles": {}}
    report = {
        "state": state,
        "elapsed_s": 600.0,
        "started_at": AT - 600,
        "ranks": {**known, "open": list(ranks), "waiting_for": None, **more},
    }
    return [line.strip() for part in (ranks_text.verdict, ranks_text.now) for line in part(report) if line]


def test_the_one_that_the_others_wait_for_is_named_and_listed_by_itself() -> None:
    waiting = {"rank": 2, "host": "n3", "category": "data_loading", "name": "", "since": AT - 50}
    ranks = [rank(index, "step", 7) for index in (0, 1, 3)]
    shown = lines(*ranks, rank(2, "data_loading", None), waiting_for=waiting)
    assert "rank 2 on n3, pid 102: data_loading for 1 min 00 s" in shown
    assert "3 ranks (0, 1, 3): in step 7 for 1 min 00 s" in shown
    assert shown[-1] == "the job waits for rank 2 on n3: data_loading, for 50.0 s"


def test_nobody_is_accused_of_a_step_that_all_are_in() -> None:
    shown = lines(*(rank(index, "step", 7) for index in range(4)))
    assert shown[-1] == "all are in the same step: which of them the others wait for in it is not known"


def test_nobody_is_accused_while_one_is_silent_or_missing() -> None:
    quiet = rank(3, "custom", None, name="eval", last_sign_of_life=AT - 20)
    shown = lines(*(rank(index, "step", 7) for index in range(3)), quiet)
    assert any(
        line.startswith("rank 3 on n3, pid 103: custom eval") and "no sign of life since" in line for line in shown
    )
    assert shown[-1].endswith("what rank 3 did since is not known")
    shown = lines(*(rank(index, "step", 7) for index in range(3)), missing=[3], expected=4)
    assert shown[-1] == "whether the job waits for a rank that left no journal here is not known"


def test_the_dead_are_listed_with_what_they_did() -> None:
    dead = rank(1, "step", 7, state="died", last_sign_of_life=AT - 5)
    shown = lines(rank(0, "step", 7), dead)
    assert any(
        line.startswith("rank 1 on n3, pid 101: died at ") and line.endswith("in step 7 for 1 min 00 s")
        for line in shown
    )


def test_ranks_that_do_the_same_are_one_line() -> None:
    shown = lines(*(rank(index, "step", 7) for index in range(512)))
    assert "512 ranks (0, 1, 2, 3, 4, 5, 6, 7 and 504 more): in step 7 for 1 min 00 s" in shown and len(shown) == 4
    shown = lines(*(rank(index, "step", index) for index in range(512)))
    assert len(shown) < 25 and shown[-2] == "and 496 more ranks"


@pytest.mark.parametrize(
    ("category", "waited", "guesses"),
    [
        ("data_loading", 2.0, {"late": None, "straggler": None}),
        ("data_loading", 0.1, {"late": None}),
        ("infrastructure_recovery", 2.0, {"late": None}),
    ],
)
def test_paces_say_nothing_if_the_loops_wait_for_a_rank(category: str, waited: float, guesses: dict[str, None]) -> None:
    """Whatever the job spent in outages, of which no step tells."""
    seconds = {"productive": 4.0, "infrastructure_recovery": 100.0}
    waits = [{"rank": 1, "category": category, "seconds": waited}]
    assert without_guesses({"elapsed_s": 110.0, "seconds": seconds, "ranks": {"waits": waits}}) == guesses
