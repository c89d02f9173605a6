"""The closing sentence of a report: what is worth looking at, and what to do about it."""

from __future__ import annotations

from typing import Any

from otel_goodput.reports.text import sentence


def report(doubts: tuple[str, ...] = (), **seconds: float) -> dict[str, Any]:
    warnings = [{"kind": "note", "text": "…", "doubts": list(doubts)}] if doubts else []
    elapsed = sum(seconds.values())
    goodput = seconds.get("productive", 0.0) / elapsed
    return {"goodput": goodput, "elapsed_s": elapsed, "seconds": seconds, "warnings": warnings}


def test_the_largest_loss_gets_advice() -> None:
    assert sentence(report(productive=60.0, data_loading=30.0, checkpoint_save=10.0)) == (
        "The largest loss: 30.0 s (30.00 %) was spent waiting for data (data_loading); prefetch batches or give the "
        "input pipeline more workers."
    )


def test_below_two_per_cent_there_is_nothing_to_do() -> None:
    text = sentence(report(productive=98.1, data_loading=1.9))
    assert text == "Nothing here is worth an hour: the largest loss, data_loading, is 1.90 % of the time."
    assert "largest loss: " in sentence(report(productive=97.0, data_loading=3.0))


def test_a_restarted_run_gets_advice_on_what_is_certain() -> None:
    """Whether the time between two starts belongs to the run is doubtful, and what training waited for is not."""
    case = report(("infrastructure_recovery",), productive=30.0, infrastructure_recovery=50.0, data_loading=20.0)
    assert sentence(case) == (
        "The largest loss: 50.0 s (50.00 %) was spent waiting to be restarted (infrastructure_recovery); before acting "
        "on it, see the note above. The largest loss that is certain: 20.0 s (20.00 %) was spent waiting for data "
        "(data_loading); prefetch batches or give the input pipeline more workers."
    )
    alone = sentence(report(("infrastructure_recovery",), productive=30.0, infrastructure_recovery=50.0))
    assert alone.endswith("before acting on it, see the note above.")
