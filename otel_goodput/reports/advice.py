"""Notes on figures that look doubtful, and the closing sentence: the largest loss and what usually helps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from otel_goodput._journal.notes import Note
from otel_goodput._text.quantities import format_duration, percent
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
    if long := report.get("long_steps"):
        yield Note(
            "long steps",
            f"One step in {long['every']:,} takes {format_duration(long['long_s'])}, the others take "
            f"{format_duration(long['usual_s'])}. If it evaluates or saves, wrap that code in custom() or "
            "checkpoint_save().",
            (Category.PRODUCTIVE,),
        )
    if phases := report.get("long_phases"):
        longest = (
            f"{one['count']} x {one['name'] or one['phase']} (longest {format_duration(one['longest_s'])})"
            for one in phases[:3]
        )
        yield Note(
            "long phases",
            f"Phases that took far longer than usual: {', '.join(longest)}. Their time stays in its category.",
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


# By source of badput: how the time was spent, and what usually helps.
EXPLAINED: Final[Mapping[str, tuple[str, str]]] = {
    Category.ACCELERATOR_INIT: (
        "initializing accelerators",
        "check how the runtime starts, and the network between hosts",
    ),
    Category.TRAINING_PREP: ("setting up model and data", "find out what the program does before the first step"),
    Category.PROGRAM_STARTUP: ("compiling", "a persistent compilation cache saves most of it after a restart"),
    Category.DATA_LOADING: ("waiting for data", "prefetch batches or give the input pipeline more workers"),
    Category.CHECKPOINT_SAVE: ("saving checkpoints", "save asynchronously or less often"),
    Category.CHECKPOINT_RESTORE: ("restoring checkpoints", "read them from faster or nearer storage"),
    Category.CUSTOM: ("in custom phases", "run this phase less often, or in the background"),
    Category.WASTED_PROGRESS: ("on steps that were lost", "save checkpoints more often"),
    Category.STALLED: (
        "in steps that stalled",
        "find out what the slowest steps waited for: network, storage or another rank",
    ),
    Category.INFRASTRUCTURE_RECOVERY: ("waiting to be restarted", "check scheduling and spare capacity"),
    Category.ELASTIC_SLICE_DOWN: ("waiting after slices were lost", "find out why slices are lost"),
    Category.ELASTIC_SCALE_UP: ("waiting for slices to come back", "scale up less often"),
    Category.ELASTIC_REINITIALIZATION: (
        "setting up again after slices changed",
        "a persistent compilation cache saves most of it",
    ),
    Category.IN_FLIGHT: ("in a step that has not ended", "if it takes much longer than the others, it is hanging"),
    Category.OTHER: ("outside all phases", "wrap the code between steps in custom() to see what takes the time"),
}
# The same if no compilation was seen: start-up is then the excess time of the first steps (rule R5).
_UNCOMPILED: Final[Mapping[str, tuple[str, str]]] = {
    Category.PROGRAM_STARTUP: (
        "before steps reached their usual speed",
        "find out what the first step after a start does that later steps do not",
    ),
    Category.ELASTIC_REINITIALIZATION: (
        "setting up again after slices changed",
        "find out what the program sets up again",
    ),
}
WORTH: Final = 0.02  # share of the time; nobody should look for less


def sources(seconds: Mapping[str, Any]) -> list[tuple[str, str, float]]:
    """Return (category, custom name or '', seconds) of each category that has time, the largest first."""
    flat = [(name, "", held) for name, held in seconds.items() if name != Category.CUSTOM]
    flat += [(Category.CUSTOM, name, held) for name, held in seconds.get(Category.CUSTOM, {}).items()]
    return sorted((source for source in flat if source[2]), key=lambda source: -source[2])


def doubted(report: Mapping[str, Any]) -> set[str]:
    """Return the categories whose figures are doubtful, so that no advice is based on them."""
    return {category for warning in report.get("warnings", ()) for category in warning["doubts"]}


def sentence(report: Mapping[str, Any]) -> str:
    """Return the closing sentences of a report (as JSON) whose elapsed time is not 0.

    On a loss whose figure is doubtful nobody should act yet, so the largest one that is not is named as well.
    """
    if report["goodput"] is None:
        return "No advice: it is not known when the device finished its steps. See the note above."
    losses = [source for source in sources(report["seconds"]) if source[0] != Category.PRODUCTIVE]
    if not losses:
        return "All time was productive."
    elapsed, doubtful = report["elapsed_s"], doubted(report)
    category, name, held = losses[0]
    if held < WORTH * elapsed:
        which = f"{category} {name}".strip()
        return f"Nothing here is worth an hour: the largest loss, {which}, is {percent(held, elapsed)} of the time."
    if category not in doubtful:
        return f"The largest loss: {_spent(losses[0], report)}; {_explained(losses[0], report)[1]}."
    text = f"The largest loss: {_spent(losses[0], report)}; before acting on it, see the note above."
    certain = next((loss for loss in losses if loss[0] not in doubtful and loss[2] >= WORTH * elapsed), None)
    if certain is not None:
        text += f" The largest loss that is certain: {_spent(certain, report)}; {_explained(certain, report)[1]}."
    return text


def _explained(loss: tuple[str, str, float], report: Mapping[str, Any]) -> tuple[str, str]:
    """Return how the time of a loss was spent, and what usually helps."""
    category, name, _ = loss
    doing, advice = EXPLAINED[category]
    if not report.get("compilations_seen", True):
        doing, advice = _UNCOMPILED.get(category, (doing, advice))
    return (f"in {name!r}" if name else doing), advice


def _spent(loss: tuple[str, str, float], report: Mapping[str, Any]) -> str:
    category, _, held = loss
    share = percent(held, report["elapsed_s"])
    return f"{format_duration(held)} ({share}) was spent {_explained(loss, report)[0]} ({category})"
