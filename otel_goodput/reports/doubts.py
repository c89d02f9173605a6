"""Notes on figures that look doubtful: the reason, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from otel_goodput._journal.notes import Note
from otel_goodput._text.quantities import format_duration
from otel_goodput.semconv import CATEGORIES, Category, ClockState

# With fewer steps, or if the median step takes at least this share of the cadence, nothing is suspected.
DISPATCH_STEPS: Final = 20
DISPATCH_SHARE: Final = 0.05

UNKNOWN_CLOCK: Final = Note(
    "clock",
    "Steps run asynchronously on a device, and it is not known when the device finishes them: the step times are only "
    "the time to dispatch the work. Call goodput.observe(loss) in each step, with an output that is not donated. If "
    "the loop itself waits for its results, set OTEL_GOODPUT_DEVICE_CLOCK=host.",
    CATEGORIES,
)
DISPATCH_ONLY: Final = Note(
    "dispatch",
    "Steps are far shorter than the time from one to the next. If the loop does not wait for the device, the step "
    "times are only the time to dispatch the work, and the device's time counts in other categories: call "
    "goodput.observe(loss), or wait for the result inside the step. If the steps really are that short, ignore this "
    "note.",
    CATEGORIES,
)
SKEWED_CLOCKS: Final = Note(
    "clocks",
    "An attempt began before the last sign of life of the previous one: the hosts' clocks differ. The time between "
    "the two counts as 0. Synchronize the clocks, for example with NTP.",
    (Category.INFRASTRUCTURE_RECOVERY,),
)

SKIPPED: Final = (
    "The first {0} steps after a restore took less than a tenth of the time of the next one. If the loop only skipped "
    "batches there, they are counted as steps by mistake: the run has no earlier steps to compare them with. Skip them "
    "before the loop: write `for step, batch in goodput.steps(itertools.islice(loader, {0}, None), start={0}):`."
)


def doubts(report: Mapping[str, Any]) -> Iterator[Note]:
    """Yield the notes that the figures of a report (as JSON) call for."""
    if report.get("reason"):
        yield UNKNOWN_CLOCK
    elif dispatch_only(report):
        yield DISPATCH_ONLY
    if report.get("doubtful_steps"):
        yield Note("skipped batches", SKIPPED.format(report["doubtful_steps"]))
    if found := report.get("long_steps"):
        yield Note(
            "long steps",
            f"One step in {found['every']:,} takes {format_duration(found['long_s'])}, the others take "
            f"{format_duration(found['usual_s'])}. If it evaluates or saves, wrap that code in custom() or "
            "checkpoint_save().",
            (Category.PRODUCTIVE,),
        )
    if found := report.get("long_phases"):
        told = (
            f"{one['count']} x {one['name'] or one['phase']} (longest {format_duration(one['longest_s'])})"
            for one in found[:3]
        )
        yield Note(
            "long phases",
            f"Phases that took far longer than usual: {', '.join(told)}. Their time stays in its category.",
        )
    if report["skewed_clocks"]:
        yield SKEWED_CLOCKS


def dispatch_only(report: Mapping[str, Any]) -> bool:
    """Return whether the step times look like asynchronous dispatch, although no asynchronous runtime was detected.

    This is the only check for attempts recorded by versions that did not detect such runtimes.
    """
    times, cadence = report.get("step_time"), report.get("step_cadence_s")
    if not times or not cadence or report.get("observed_steps") or times["count"] < DISPATCH_STEPS:
        return False
    if report.get("clock", ClockState.HOST) != ClockState.HOST:
        return False
    return bool(times["median_s"] < DISPATCH_SHARE * cadence)
