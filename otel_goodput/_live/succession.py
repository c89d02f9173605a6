"""Decides which run a start belongs to: it continues a run, or begins a new one because that run had finished.

A run without a configured id is named after its job. If it has finished, it is not continued: the next start is
``name-2``, then ``name-3``. This holds only for jobs of one process: with several, a process with an empty folder would
choose another name than the rest.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from otel_goodput._accounting import Event, rules
from otel_goodput._accounting import events as ev
from otel_goodput._journal.account import Account
from otel_goodput._journal.rundir import RunDirectory, folder_name
from otel_goodput._runtime.host import Clock
from otel_goodput._settings.options import Settings
from otel_goodput._text.redact import redacting_logger
from otel_goodput._timeline.recovery import Restored
from otel_goodput.semconv import PHASES, Phase

logger = redacting_logger("otel_goodput")

_RESTORE: Final = PHASES.index(Phase.CHECKPOINT_RESTORE)
CONTINUED: Final = "run continued"
RESTARTED: Final = "run begun anew"


def finished(restored: Restored) -> bool:
    """Whether the last attempt ended its job without an error, and no notice or signal had announced the end."""
    cursor = restored.ledger.settled.clone()
    cursor.apply_all(restored.ledger.pending)
    return cursor.steps.life.begun and cursor.ended and cursor.clean and cursor.notice is None


def numbered(run_id: str, number: int) -> str:
    """The id of run number `number` in the series `run_id`."""
    return run_id if number < 2 else f"{run_id}-{number}"


def numbers(run_id: str, folders: Iterable[str]) -> list[int]:
    """The numbers of folders whose names look like runs of the series `run_id`, highest first."""
    form = re.compile(re.escape(folder_name(run_id)) + r"-([1-9]\d{0,8})")
    matches = (form.fullmatch(name) for name in folders)
    return sorted((number for match in matches if match and (number := int(match[1])) > 1), reverse=True)


def free(run_id: str, base: Path, after: int = 1) -> Iterator[int]:
    """Numbers above `after` that no folder in `base` uses yet."""
    return (number for number in count(after + 1) if not (base / folder_name(numbered(run_id, number))).exists())


def belongs(run: RunDirectory, run_id: str) -> bool:
    """Whether the run is numbered in the series `run_id`; an id that a user chose may look the same."""
    return run.identity().get("series") == run_id


def age(restored: Restored, clock: Clock) -> str:
    """Time since the last sign of life of a run, as text."""
    seconds = max(0.0, (clock() - restored.last_sign) / 1e9)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def continued(run_id: str, restored: Restored, clock: Clock, fresh: str) -> str:
    """The message that an unfinished run is continued; `fresh` is an unused id for a new run."""
    return (
        f"run {run_id!r} had not finished when it was started again, {age(restored, clock)} after its last sign of "
        f"life: it continues as attempt {restored.attempt + 2}, and the time between counts as infrastructure "
        f"recovery. For a new run set {Settings.run_id.variable}={fresh}"
    )


class PreviousRun(NamedTuple):
    """The finished run before a new one.

    Attributes:
        top: its highest kept step, -1 if there is none.
        unexported: number of its spans that are not known to be exported.
    """

    run_id: str
    top: int
    unexported: int

    def recall(self, base: str) -> None:
        """Warn about unexported spans. Unlike those of a continued run, no later attempt exports them."""
        if self.unexported:
            logger.warning(
                "%d spans of run %r, which had finished, have not been exported: `otel-goodput recover %s --run %s` "
                "exports them",
                self.unexported,
                self.run_id,
                shlex.quote(base),
                shlex.quote(self.run_id),
            )


class FollowUpCheck:
    """Detects that a new run continues the training of the finished run before it after all, and warns once.

    Args:
        account: account of the new run.
        run_id: id of the new run.
        before: the finished run.
    """

    def __init__(self, account: Account, run_id: str, before: PreviousRun) -> None:
        self._account = account
        self._run_id = run_id
        self._before = before
        self._listening = True
        account.listeners.listen_to_events(self._look)

    def _look(self, events: list[Event]) -> None:
        for event in events:
            if event.kind == ev.END and event.phase == rules.JOB:
                self._stop()
            elif event.kind == ev.START and event.phase == _RESTORE:
                self._say("it restores a checkpoint")
            elif event.kind == ev.START and event.phase == rules.STEP:
                # Some loops count steps from 1.
                if event.step > 1 or (event.step == 1 and self._before.top < 1):
                    self._say(f"it begins at step {event.step}")
                self._stop()
            if not self._listening:
                return

    def _stop(self) -> None:
        self._listening = False
        self._account.listeners.listen_to_events(None)

    def _say(self, why: str) -> None:
        self._stop()
        text = (
            f"run {self._run_id!r} is a new one, because run {self._before.run_id!r} had finished; but {why}. If it "
            f"continues the training of that run, set {Settings.run_id.variable}={self._before.run_id}"
        )
        self._account.notes.add(RESTARTED, text)
        logger.warning("%s", text)
