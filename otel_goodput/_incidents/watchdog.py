"""Notices that training stands still, and has the stacks of all threads written to the run's folder.

The keeper's thread looks at every tick whether anything has begun or ended since. At the limit it writes the stacks
itself, with the GIL: no thread moves meanwhile. If that is set, the interpreter's own timer does that a little later in
case this cannot, because a call of C holds the GIL; see :mod:`~otel_goodput._incidents.timer`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from otel_goodput._accounting import rules
from otel_goodput._accounting.events import NO_STEP, NONBLOCKING, OVERLAPPING, Event
from otel_goodput._accounting.stats import median
from otel_goodput._incidents.collectives import about
from otel_goodput._incidents.timer import timer
from otel_goodput._journal.account import Account
from otel_goodput._journal.requests import DONE, REFUSED, Request, Respond
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.stacks import DUMP, MOVED_ON, Dump, StacksFile, header, parse, read_stacks, stacks_of
from otel_goodput._runtime.files import named
from otel_goodput._runtime.guard import contain, report_once
from otel_goodput._settings.options import Watch
from otel_goodput._text.durations import NS
from otel_goodput._text.redact import redact, redacting_logger
from otel_goodput.semconv import PHASES

logger = redacting_logger(__name__)

LEAST_NS: Final = 30 * NS  # no limit of `auto` is shorter
FACTOR: Final = 10  # times the usual step, or the longest time without a sign that was seen in a phase
# While nothing is known: before the first step, and in a phase that is open for the first time. PyTorch ends a job
# whose collective takes 10 minutes; by then the stacks shall be there.
UNKNOWN_NS: Final = 540 * NS
# Between two steps, with no phase open, a program may do what it does not tell us.
BETWEEN_NS: Final = 120 * NS
WAITING: Final = 8  # records that wait for a disk
DUMPS: Final = (1, 2, 4)  # times the limit, after which stacks are written
LATER_S: Final = 2.0  # the timer is set so much after the limit; it may go off SOONEST_S before that
EVERY: Final = 6  # part of the limit after which it is set again
SOONEST_S: Final = 1.0
HASTE_NS: Final = NS // 2  # if phases with other limits begin and end all the time, it is set no sooner again
ABSENT_NS: Final = 5 * NS  # if the keeper itself has not run for so long, the process was stopped, or the GIL was held
STACKS_REQUEST: Final = "stacks"  # the kind of a request of ``otel-goodput stacks --now``
YIELDED: Final = "watchdog"  # the kind of a note
_YIELDED: Final = (
    "The program uses faulthandler.dump_traceback_later() itself, so that this package leaves that timer alone. If a "
    "process hangs in a call of C that holds Python's lock (GIL), its stacks are not written."
)
AGAIN_NS: Final = 5 * NS
_LOCK_S: Final = 0.05
_CLOSED_S: Final = 0.5
_KNOWN: Final = 3  # steps
_USUAL: Final = 100  # latest steps
_START: Final = "start"
_BETWEEN: Final = "between steps"
_STEPPING: Final = "step"
_OF_STEPS: Final = (rules.STEP, rules.DATA_LOADING)


@lru_cache(512)
def _shown(name: str) -> str:
    """Return the name of a thread without secrets."""
    return redact(name)[:100]


class _Situation:
    """What was open at a tick."""

    def __init__(self, opened: Sequence[Event], stepped: bool) -> None:
        blocking = [one for one in opened if not one.flags & (NONBLOCKING | OVERLAPPING)]
        self.keys = tuple(one.key for one in blocking)
        self.job = any(one.phase == rules.JOB for one in blocking)
        self.excluded = any(one.phase == rules.EXCLUSION for one in opened)
        inner = [one for one in blocking if one.phase not in (rules.JOB, rules.PART)][-1:]
        self.step = next((one.step for one in reversed(blocking) if one.step != NO_STEP), NO_STEP)
        self.phase = PHASES[inner[0].phase] if inner else ""
        self.name = inner[0].name if inner and inner[0].phase == rules.CUSTOM_PHASE else ""
        self.stepping = bool(inner) and inner[0].phase in _OF_STEPS
        self.kind: tuple[str, str]
        if self.stepping:
            self.kind = (_STEPPING if stepped else _START, "")
        elif inner:
            self.kind = (self.phase, self.name)
        else:
            self.kind = (_BETWEEN if stepped else _START, "")


class Watchdog:
    """Watches the job of one recorder; `option` is the setting ``watchdog``.

    `place` returns the folder of the run, None if there is none, and the number of the attempt, from 0. `training`
    returns the ident of the training thread.
    """

    def __init__(
        self,
        option: Watch,
        account: Account,
        place: Callable[[], tuple[RunDirectory | None, int]],
        training: Callable[[], int | None],
    ) -> None:
        self._fixed = option.limit
        self._unknown = option.start or max(option.limit, UNKNOWN_NS)
        self._account = account
        self._place = place
        self._training = training
        self._about: dict[str, str] | None = None  # see collectives.about()
        self._file: StacksFile | None = None
        self._waiting: list[
            tuple[str, str, dict[str, Any]]
        ] = []  # what could not be written yet, because a disk is full
        self._latest: Dump | None = None
        self._situation = _Situation((), False)
        self._quiet: dict[tuple[str, str], int] = {}  # the longest time in which nothing changed, ns, by situation
        self._stepped = False
        self._written = 0  # dumps of this standstill
        self._since = self._looked = 0  # ns, monotonic
        self._limit = 0
        self._key = 0  # of the phase that began last, at the latest look
        self._due = self._set_at = 0  # of the timer
        self._again = 0  # when it may be set, if the disk could not be written
        self._looking = threading.Lock()
        self._pid = os.getpid()
        self._closed = False
        self._off = not option.on  # then it only answers requests
        self._timed = option.on and option.timer
        self._package = str(named(__file__).parent.parent)
        if self._timed:
            timer.install()

    # --- answers ------------------------------------------------------------------------------------------------------

    def fired(self) -> Dump | None:
        """Return the latest stacks that were written since training stands still, or stood still; None if none were."""
        return self._latest

    def quiet(self) -> tuple[int, int]:
        """Return for how long nothing has begun or ended, and the limit of that, ns; zeros if nothing is watched."""
        return (time.monotonic_ns() - self._since, self._limit) if self._limit else (0, 0)

    def answer(self, request: Request, respond: Respond) -> None:
        """Write the stacks for a request; see :class:`~otel_goodput._journal.requests.Inbox`."""
        if self._closed or self._place()[0] is None or not self._looking.acquire(timeout=_CLOSED_S):
            respond(REFUSED, "the recording ends")
            return
        try:
            if self._off:
                self._situation = self._observe()
            text, members = self._stacks(time.monotonic_ns())
            if (file := self._opened()) is not None:
                file.add(DUMP, text, **members, requested=request.id)
            name = "" if self._file is None else self._file.path.name
            if self._off:
                self._drop_file()
            respond(DONE, file=name)
        except OSError as error:
            respond(REFUSED, f"the stacks cannot be written: {error.strerror or error}")
        finally:
            self._looking.release()

    # --- the keeper's thread ------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Look whether training moves; for the keeper's thread."""
        if self._closed or self._off or os.getpid() != self._pid or not self._looking.acquire(blocking=False):
            return
        try:
            self._look(time.monotonic_ns())
        except OSError as error:
            timer.stop(self)
            self._again = time.monotonic_ns() + AGAIN_NS
            if self._waiting:  # otherwise, whoever writes the journal says so
                report_once("stacks", "the stacks of a job that stands still cannot be written: %s", error)
            self._drop_file()
        except Exception as error:
            timer.stop(self)
            contain("watchdog", error)
        finally:
            self._looking.release()

    def close(self) -> None:
        """Stop watching, and remove the file if there are no stacks in it."""
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._pid:
            return
        if self._looking.acquire(timeout=_CLOSED_S):  # otherwise the disk hangs
            self._stop()
            with suppress(OSError):  # reported already
                self._write()
            self._drop_file()
            self._looking.release()
        if self._timed:
            timer.remove(self)

    def _steadily(self, now: int) -> bool:
        """Whether one step has followed another since the look before, and there is nothing to do."""
        latest = self._account.ledger.latest
        if latest is None or latest.phase not in _OF_STEPS or latest.flags or latest.key == self._key:
            return False
        self._key = latest.key
        if self._written or not self._stepped or not self._situation.stepping or now - self._looked > ABSENT_NS:
            return False
        self._since = self._looked = now
        return not self._timed or now - self._set_at < self._limit // EVERY

    def _look(self, now: int) -> None:
        if self._waiting and now >= self._again:
            self._write()
        if (file := self._file) is not None and not file.ours:
            timer.stop(self)
            self._drop_file()
        elif (file is not None or not self._timed) and self._steadily(now):
            return
        before, absent = self._situation, now - self._looked if self._looked else 0
        self._looked = now
        fired = file is not None and file.written and self._stop()
        situation = self._observe()
        if situation.keys != before.keys:
            self._moved(before, situation, now)
        self._situation = situation
        if self._timed and timer.yielded and self._account.notes.add(YIELDED, _YIELDED):
            logger.info("%s", _YIELDED)
        if not situation.job or situation.excluded:
            self._stop()
            self._limit = 0
            return
        self._limit = self._limit_of(situation)
        if absent > ABSENT_NS and not fired:
            self._since = min(now, self._since + absent)  # the process was stopped: so were its steps
        if self._written < len(DUMPS) and now - self._since >= self._limit * DUMPS[self._written]:
            self._written += 1
            text, members = self._stacks(now)
            self._latest = self._parsed(text, members)
            self._write(DUMP, text, **members)
        elif self._timed and not self._written:
            self._wind(now)

    def _observe(self) -> _Situation:
        lock = self._account.lock
        if not lock.acquire(timeout=_LOCK_S):
            return self._situation
        try:
            ledger = self._account.ledger
            self._stepped |= any(loop.times for loop in ledger.settled.steps.loops.values())
            return _Situation(ledger.opened, self._stepped)
        finally:
            lock.release()

    def _moved(self, before: _Situation, situation: _Situation, now: int) -> None:
        """Something has begun or ended since the look before."""
        if before.job:
            kind, took = before.kind, now - self._since
            self._quiet[kind] = max(took, self._quiet.get(kind, 0))
        if before.phase == PHASES[rules.STEP] or (before.stepping and situation.step != before.step):
            self._stepped = True
        self._since = now
        if self._written:
            moment = self._account.clock()
            self._written = 0
            if self._latest is not None:
                self._latest = replace(self._latest, moved_on=moment)
            if self._file is not None or self._waiting:
                self._write(MOVED_ON, time=moment)

    def _limit_of(self, situation: _Situation) -> int:
        kind, fixed = situation.kind, self._fixed
        if kind[0] == _STEPPING:
            return fixed or self._limit_of_steps()
        if kind[0] == _START:
            return self._unknown
        longest = self._quiet.get(kind, 0)
        # One long pause must not let the next one go on ten times as long.
        usual = max(fixed or LEAST_NS, min(FACTOR * longest, max(UNKNOWN_NS, 2 * longest)))
        if kind[0] == _BETWEEN:
            return fixed or max(BETWEEN_NS, usual)
        return usual if longest else self._unknown

    def _limit_of_steps(self) -> int:
        with self._account.lock:
            steps = self._account.ledger.settled.steps
            loop = steps.loops.get(steps.loop)
            times = [] if loop is None else loop.times[-_USUAL:]
            recurring = None if loop is None else loop.long_steps
        if len(times) < _KNOWN:
            return self._unknown
        long = 0 if recurring is None else recurring.long
        return max(LEAST_NS, FACTOR * round(median(times)), 3 * long)

    # --- stacks -------------------------------------------------------------------------------------------------------

    def _wind(self, now: int) -> None:
        """Set the timer again, if it is time for that: seldom, because that makes a thread."""
        due = self._since + self._limit + round(LATER_S * NS)
        running = timer.is_set(self)
        late = abs(due - self._due) >= max(self._limit // EVERY, SOONEST_S * NS)
        hasty = now - self._set_at < HASTE_NS and self._due - now > 2 * SOONEST_S * NS
        if running and (not late or hasty):
            return
        # It goes on running while its record is written: afterwards the training thread may not give the GIL back.
        if (not running or self._due - now < SOONEST_S * NS // 2) and self._stop():
            return
        if self._stepped and self._about is None:
            self._about = about(self._account.journal.process)
        if not timer.free(self) or now < self._again:
            return
        file, at = self._opened(), due - now
        if file is None:
            return
        file.arm(lambda: timer.stop(self), **self._members(self._account.clock() + at, now))
        if timer.set(self, file.descriptor, at / NS):
            self._due, self._set_at = due, now

    def _stop(self) -> bool:
        """Stop the timer; return whether it has written stacks, which are kept."""
        timer.stop(self)
        file = self._file
        if file is None or not file.ours or not file.take():
            return False
        self._written = max(1, self._written)
        run, attempt = self._place()
        if run is not None:
            self._latest = next(reversed(read_stacks(run, attempt, self._account.journal.process)), self._latest)
        return True

    def _stacks(self, now: int) -> tuple[str, dict[str, Any]]:
        """Return the stacks, and the members of their record."""
        self._stop()
        training, frames = self._training(), sys._current_frames()
        try:
            text = stacks_of(frames, training)
        finally:
            frames.clear()  # they keep what the local variables hold
        self._about = about(self._account.journal.process)
        return text, self._members(self._account.clock(), now)

    def _parsed(self, text: str, members: dict[str, Any]) -> Dump | None:
        data = header(DUMP, **members) + text.encode()
        return next(iter(parse(data, self._place()[1], self._account.journal.process)), None)

    def _write(self, kind: str = "", text: str = "", **members: Any) -> None:
        """Write what waits, and a record of a `kind`; what cannot be written waits. Raises OSError."""
        if kind:
            self._waiting = [*self._waiting[1 - WAITING :], (kind, text, members)]
        file = self._opened() if self._waiting else None
        while self._waiting:
            if file is not None:
                kind, text, members = self._waiting[0]
                file.add(kind, text, **members)
            del self._waiting[0]

    def _members(self, moment: int, now: int) -> dict[str, Any]:
        situation, training = self._situation, self._training()
        threads = {f"{thread.ident:x}": _shown(thread.name) for thread in threading.enumerate() if thread.ident}
        return {
            "time": moment,
            "since": self._account.clock() - (now - self._since),
            "limit": self._limit,
            "step": situation.step,
            "phase": situation.name or situation.phase,
            "pid": self._pid,
            "package": self._package,
            "about": self._about or {},
            "training": f"{training or 0:x}",
            "threads": dict(list(threads.items())[:500]),
        }

    def _opened(self) -> StacksFile | None:
        """Return the file of this attempt, open; None if the run has no folder."""
        run, attempt = self._place()
        if run is None:
            self._drop_file()
            return None
        path = run.file("stacks", attempt, self._account.journal.process)
        if self._file is not None and (self._file.path != path or not self._file.ours):
            self._drop_file()
        if self._file is None:
            self._file = StacksFile(path)
        return self._file

    def _drop_file(self) -> None:
        file, self._file = self._file, None
        if file is not None and file.ours:
            try:
                file.close()
            except OSError as error:
                report_once("stacks", "the stacks of a job that stands still cannot be written: %s", error)
