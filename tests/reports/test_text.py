"""What the text of a report says about disruptions, of accounts that were replayed."""

from __future__ import annotations

from typing import Any

from timelines import replay

from otel_goodput.reports import text as report_text


def disruption_lines(*more: dict[str, Any], resumes: int = 2) -> list[str]:
    """The lines about the disruption of a job that died in step 5 and was started again at 30 s."""
    rows: list[dict[str, Any]] = [{"kind": "job", "start": 0}, {"kind": "job", "start": 30, "attempt": 2}, *more]
    rows += [{"kind": "step", "step": number, "start": 2 * number, "end": 2 * number + 2} for number in range(5)]
    rows.append({"kind": "step", "step": 5, "start": 10})
    for at in range(4):
        rows.append(
            {"kind": "step", "step": resumes + at, "start": 33 + 4 * at, "end": 37 + 4 * at, "attempt": 2},
        )
    return list(report_text.disruptions(replay(rows)))


def test_how_long_it_took_until_what_was_kept_was_regained() -> None:
    head, line, cost, after = disruption_lines()
    assert head.endswith("1: 1 crash") and line == "    crash at 1970-01-01 00:00:10 UTC (attempt 2)"
    assert cost == "      cost 26.0 s: 20.0 s down, 6.0 s in lost steps; went back from step 5 to 2"
    assert after == "      first step finished after 7.0 s, step 4 reached again after 15.0 s"


def test_that_it_is_not_regained() -> None:
    assert disruption_lines(resumes=0)[-1] == "      first step finished after 7.0 s, step 4 not reached again yet"


def test_it_is_not_mentioned_while_no_clock_knows_when_steps_are_over() -> None:
    lines = disruption_lines({"kind": "clock", "state": "unknown", "start": 30, "attempt": 2})
    assert len(lines) == 3 and lines[-1].startswith("      cost ")
