"""The figures that a plan is computed from: of a finished run, or given on the command line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from otel_goodput.accounting import events as ev
from otel_goodput.accounting import rules
from otel_goodput.accounting.events import Event
from otel_goodput.accounting.phases import COMPLETED, paired
from otel_goodput.errors import ConfigurationError
from otel_goodput.semconv import Category, Phase, Reason
from otel_goodput.text.quantities import format_duration, plural


@dataclass(frozen=True)
class Figures:
    """The figures that a plan is computed from, times in seconds; None: not known.

    Attributes:
        mtbf: mean time between failures, counting only the time in which the job is up.
        save: how long a save blocks training.
        restore: from the start of the job until it trains again after a failure: start-up, compilation and restore.
        reschedule: from a failure to the start of the job.
        step: net time of a step.
        interval: present time of training between two saves.
        beside: seconds spent between steps (loading, evaluation and the like) per second of steps.
        goodput: the measured goodput (1 = all).
        name: name of the job or the run.
        origins: by figure, where its value comes from, for people.
    """

    mtbf: float | None = None
    save: float | None = None
    restore: float | None = None
    reschedule: float | None = None
    step: float | None = None
    interval: float | None = None
    beside: float = 0.0
    goodput: float | None = None
    name: str = ""
    origins: Mapping[str, str] = field(default_factory=dict)

    def given(self, **by_hand: float | None) -> Figures:
        """Return a copy in which the given values that are not None replace the present ones."""
        known = {name: value for name, value in by_hand.items() if value is not None}
        return replace(self, **known, origins={**self.origins, **dict.fromkeys(known, "given")})  # type: ignore[arg-type]


_NO_FAILURES: Final = frozenset({Reason.RESTART, Reason.ROLLBACK})  # nothing failed, and nothing had to be rescheduled
_START_UP: Final = (Category.ACCELERATOR_INIT, Category.TRAINING_PREP, Category.PROGRAM_STARTUP)


def from_report(report: Mapping[str, Any], *, saves: int | None = None, restores: int | None = None) -> Figures:
    """Return the figures of a run from its report.

    Args:
        report: as ``otel-goodput report --json`` prints it.
        saves, restores: how many blocked training, see :func:`completed`. A report does not contain them. Without
            them `save` and `interval` are None, and one restore for each restart is assumed.

    Raises:
        ConfigurationError: `report` is not a report of a run, or no time has passed in the run.
    """
    try:
        elapsed, attempts = float(report["elapsed_s"]), int(report["attempts"])
        seconds: Counter[str] = Counter(dict(report["seconds"]))
        custom: Any = seconds.pop(Category.CUSTOM, {})
        evaluated = sum(custom.values())
        reasons = dict(report["disruption_reasons"])
        failures = sum(count for reason, count in reasons.items() if reason not in _NO_FAILURES)
        step = (report.get("step_time") or {}).get("mean_s")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(f"this is not a report of a run: {error!r}") from error
    if not elapsed:
        raise ConfigurationError("no time has passed in this run: there is nothing to plan from")
    known: dict[str, float] = {}
    origins: dict[str, str] = {}
    lost = seconds[Category.INFRASTRUCTURE_RECOVERY]
    if failures:
        known["mtbf"] = (elapsed - lost) / failures
        origins["mtbf"] = f"{plural(failures, 'failure')} in {format_duration(elapsed - lost)} of uptime"
    restarts = attempts - 1
    if restarts > 0:
        known["reschedule"] = lost / restarts
        origins["reschedule"] = f"mean of {plural(restarts, 'restart')}"
    start_up = sum(seconds[category] for category in _START_UP) / max(1, attempts)
    times = restarts if restores is None else restores
    known["restore"] = start_up + (seconds[Category.CHECKPOINT_RESTORE] / times if times > 0 else 0.0)
    origins["restore"] = f"start-up, mean of {plural(attempts, 'start')}, and " + (
        f"restore, mean of {times}" if times > 0 else "no restore was recorded"
    )
    trained = seconds[Category.PRODUCTIVE] + seconds[Category.WASTED_PROGRESS]
    beside = seconds[Category.DATA_LOADING] + seconds[Category.OTHER] + evaluated
    if saves:
        known["save"], known["interval"] = seconds[Category.CHECKPOINT_SAVE] / saves, (trained + beside) / saves
        origins["save"] = f"mean of {plural(saves, 'save')}, blocking time only"
        origins["interval"] = "average of this run"
    if step:
        known["step"], origins["step"] = float(step), "mean of this run's latest steps"
    return Figures(
        **known,
        # If only the dispatch of the steps is known, the time spent between them is not.
        beside=beside / trained if trained and not report.get("reason") else 0.0,
        goodput=report.get("goodput"),
        name=str(report.get("job_name") or report.get("run_id") or ""),
        origins=origins,
    )


def completed(events: Iterable[Event]) -> tuple[int, int]:
    """Return how many saves and how many restores that blocked training a run completed."""
    restore = rules.PHASE_INDEX[Phase.CHECKPOINT_RESTORE]
    done = Counter(one.phase for one in paired(events) if one.fate == COMPLETED and not one.flags & ev.NONBLOCKING)
    return done[rules.SAVE], done[restore]
