"""Which run a start belongs to: the one that goes on, or a new one because that had finished.

A run that nobody gave an id is called after its job: one that has finished is not continued, the next start is
``name-2``, then ``name-3``. Only where one process is the whole job: of several, one with an empty folder would
otherwise take another name than the rest.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from otel_goodput.accounting import Event, rules
from otel_goodput.accounting import events as ev
from otel_goodput.clock import Clock
from otel_goodput.envvars import OTEL_GOODPUT_RUN_ID
from otel_goodput.journal.account import Account
from otel_goodput.journal.recovery import Restored
from otel_goodput.journal.rundir import RunDirectory, folder_name
from otel_goodput.semconv import PHASES, Phase
from otel_goodput.text.redact import redacting_logger

logger = redacting_logger("otel_goodput")

_RESTORE: Final = PHASES.index(Phase.CHECKPOINT_RESTORE)
CONTINUED: Final = "run continued"
ANEW: Final = "run begun anew"


def finished(restored: Restored) -> bool:
    """Whether the last attempt ended its job cleanly, and nobody had announced its end: no notice and no signal."""
    cursor = restored.ledger.settled.clone()
    for event in restored.ledger.pending:
        cursor.apply(event)
    return cursor.steps.life.begun and cursor.ended and cursor.clean and cursor.notice is None


def numbered(run_id: str, number: int) -> str:
    """The name of the run of that number under `run_id`."""
    return run_id if number < 2 else f"{run_id}-{number}"


def numbers(run_id: str, folders: Iterable[str]) -> list[int]:
    """Under which numbers `folders` have runs called `run_id`, or called as if they were, the highest first."""
    form = re.compile(re.escape(folder_name(run_id)) + r"-([1-9]\d{0,8})")
    matches = (form.fullmatch(name) for name in folders)
    return sorted((number for match in matches if match and (number := int(match[1])) > 1), reverse=True)


def free(run_id: str, base: Path, after: int = 1) -> Iterator[int]:
    """Numbers above `after` that no folder in `base` has."""
    return (number for number in count(after + 1) if not (base / folder_name(numbered(run_id, number))).exists())


def belongs(run: RunDirectory, run_id: str) -> bool:
    """Whether we gave the run its number: somebody's own ids may look the same."""
    return run.identity().get("series") == run_id


def age(restored: Restored, clock: Clock) -> str:
    """For how long nothing has been heard of a run, as a person reads it."""
    seconds = max(0.0, (clock() - restored.last_sign) / 1e9)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def continued(run_id: str, restored: Restored, clock: Clock, fresh: str) -> str:
    """What to say where a run that had not finished goes on; `fresh` is an id that a new one may have."""
    return (
        f"run {run_id!r} had not finished when it was started again, {age(restored, clock)} after its last sign of "
        f"life: it goes on as attempt {restored.attempt + 2}, and the time between counts as infrastructure recovery. "
        f"For a new run set {OTEL_GOODPUT_RUN_ID.name}={fresh}"
    )


class Before(NamedTuple):
    """A run that had finished.

    Attributes:
        top: the highest step that it had kept, -1 without any.
        unexported: its spans that have reached no exporter.
    """

    run_id: str
    top: int
    unexported: int

    def recall(self, base: str) -> None:
        """Say which spans stay behind: those of a run that goes on leave with its next attempt."""
        if self.unexported:
            logger.warning(
                "%d spans of run %r, which had finished, have not been exported: `otel-goodput recover %s --run %s` "
                "does that",
                self.unexported,
                self.run_id,
                shlex.quote(base),
                shlex.quote(self.run_id),
            )


class Sequel:
    """Looks whether a new run goes on with the training of the one before it after all, and says so once.

    Args:
        account: of the new run.
        run_id: the new run.
        before: the one that had finished.
    """

    def __init__(self, account: Account, run_id: str, before: Before) -> None:
        self._account = account
        self._run_id = run_id
        self._before = before
        account.look = self._look

    def _look(self, events: list[Event]) -> None:
        for event in events:
            if event.kind == ev.END and event.phase == rules.JOB:
                self._account.look = None
            elif event.kind == ev.START and event.phase == _RESTORE:
                self._say("it restores a checkpoint")
            elif event.kind == ev.START and event.phase == rules.STEP:
                # Some count from 1.
                if event.step > 1 or (event.step == 1 and self._before.top < 1):
                    self._say(f"it begins at step {event.step}")
                self._account.look = None
            if self._account.look is None:
                return

    def _say(self, why: str) -> None:
        self._account.look = None
        text = (
            f"run {self._run_id!r} is a new one, for run {self._before.run_id!r} had finished; but {why}. "
            f"If it goes on with the training of that one, set {OTEL_GOODPUT_RUN_ID.name}={self._before.run_id}"
        )
        self._account.notes.add(ANEW, text)
        logger.warning("%s", text)
