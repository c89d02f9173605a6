"""Runs that resume in every odd way: walks past batches, restores in bodies, device work that ends late."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from .test_properties import SOME, Question, Rows, check_agreement

USUAL = (100, 100, 100, 90, 110)  # ns
SHORT = (1, 1, 1, 1, 5, 9, 10, 11, 30, 49, 50, 51, 80, 100)
INSIDE = ("custom", "checkpoint_save", "data_loading", "compile", "part", "checkpoint_restore")


class Walks:
    """The timeline of a run of two or three attempts, each of which but the first resumes."""

    def __init__(self, seed: int) -> None:
        self.rows: Rows = []
        self._now = 0
        self._draw = draw = Random(seed)
        self._add("job", None, attempt=1)
        last = self._steps(1, draw.randrange(3, 12), 0, USUAL)
        self._add("checkpoint_save", 3, step=draw.randrange(12), attempt=1)
        self._now += 3
        self._steps(1, draw.randrange(4), last, (100,))
        for attempt in range(2, draw.randrange(3, 5)):
            self._now += 50
            if draw.random() < 0.3:
                self.rows.append(
                    {
                        "kind": "clock",
                        "state": draw.choice(("unknown", "host")),
                        "start_ns": self._now,
                        "attempt": attempt,
                    }
                )
            job = self._add("job", None, attempt=attempt)
            self._add("checkpoint_restore", 5, step=draw.choice((None, *range(12))), attempt=attempt)
            self._now += 5
            self._steps(attempt, draw.randrange(12), draw.randrange(13), SHORT)
            if draw.random() < 0.4:
                self._steps(attempt, draw.randrange(6), draw.randrange(13), (100, 90))
            if draw.random() < 0.3:
                job["end_ns"] = self._now + 5
                self._now += 6

    def _add(self, kind: str, length: int | None, **more: Any) -> dict[str, Any]:
        end = None if length is None else self._now + length
        row = {"kind": kind, "start_ns": self._now, "end_ns": end, **more}
        self.rows.append(row)
        return row

    def _steps(self, attempt: int, count: int, first: int, lengths: tuple[int, ...]) -> int:
        """Returns the number after the last one."""
        draw = self._draw
        for number in range(first, first + count):
            length = draw.choice(lengths)
            row = self._add("step", length, step=number, attempt=attempt)
            how = draw.random()
            if how < 0.06:
                row["completed"] = False
            elif how < 0.1:
                row.update(left=True, completed=draw.random() < 0.5)
            if draw.random() < 0.1:
                row["device_end_ns"] = self._now + length + draw.choice((-1, 0, 3, 20))
            if draw.random() < 0.05:
                row["numbered"] = True
            if draw.random() < 0.03:
                row["end_ns"] = None
            if draw.random() < 0.08:
                self._inside(attempt, length)
            self._now += length + draw.choice((0, 0, 1))
        return first + count

    def _inside(self, attempt: int, length: int) -> None:
        """A phase that begins in a body, and may end after it."""
        draw = self._draw
        kind = draw.choice(INSIDE)
        start = self._now + draw.randrange(length + 3)
        row: dict[str, Any] = {
            "kind": kind, "start_ns": start, "end_ns": start + draw.randrange(8), "attempt": attempt
        }  # fmt: skip
        if kind in ("checkpoint_save", "checkpoint_restore"):
            row["step"] = draw.randrange(14)
        elif kind in ("custom", "compile"):
            row["name"] = "x"
        self.rows.append(row)


@SOME
@given(st.integers(0, 1 << 40))
def test_the_ledger_answers_as_the_oracle_does(seed: int) -> None:
    check_agreement(Question(Walks(seed).rows, windows=[]))


def test_a_first_step_that_ends_on_the_device_after_the_next_segment_began() -> None:
    """Its start-up is estimated all the same."""
    rows: Rows = [
        {"kind": "job", "start_ns": 0, "end_ns": None, "attempt": 1},
        {"kind": "step", "start_ns": 200, "end_ns": 290, "step": 2, "attempt": 1},
        {"kind": "job", "start_ns": 1493, "end_ns": None, "attempt": 2},
        {"kind": "step", "start_ns": 1731, "end_ns": 1831, "device_end_ns": 1851, "step": 10, "attempt": 2},
        {"kind": "checkpoint_restore", "start_ns": 1740, "end_ns": 1745, "step": 2, "attempt": 2},
        {"kind": "step", "start_ns": 1831, "end_ns": 1931, "step": 11, "attempt": 2},
    ]
    check_agreement(Question(rows, windows=[]))
