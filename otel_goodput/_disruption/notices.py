"""Pass notices of an approaching end to the account, the user's callbacks and the exporters, on threads of ours.

:meth:`Notices.announce` may be called from a signal handler, so it only fills a reentrant queue. The rest happens in
threads started beforehand, one for each kind of work: a save that takes minutes must not keep the next notice from the
journal, and a dead backend must not delay the save.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

from opentelemetry.util import types

from otel_goodput._accounting.rules import PRECEDENCE
from otel_goodput._runtime.guard import contain, report_once

Attributes = dict[str, types.AttributeValue]
OnNotice = Callable[[str, int, Attributes], object]
OnWithdrawal = Callable[["str | None", int, Attributes], object]
Task = Callable[[], object]
C = TypeVar("C", bound=Callable[[], object])


class Notice(NamedTuple):
    """What was announced: one of ``semconv.REASONS``, and attributes."""

    reason: str
    attributes: Attributes

    def rank(self) -> int:
        """Return the rank; the lowest counts. A SIGTERM after a preemption notice is part of it, not a new reason."""
        return PRECEDENCE.index(self.reason) if self.reason in PRECEDENCE else len(PRECEDENCE)


class Notices:
    """Accepts announcements from anywhere, including signal handlers.

    Args:
        on_notice: called once for each notice with the reason in effect (an earlier one may rank before the latest),
            the moment in ns and the attributes of the latest.
        flush: called after each notice with the seconds it may take.
        grace_s: the seconds given to `flush`.
        on_withdrawal: called when a notice is withdrawn, with the reason in effect from now on or None; the rest as for
            `on_notice`.

    Raises nothing: errors of all three and of the callbacks are logged once.
    """

    def __init__(
        self,
        on_notice: OnNotice,
        flush: Callable[[float], object],
        grace_s: float = 10.0,
        on_withdrawal: OnWithdrawal | None = None,
    ) -> None:
        self._on_notice = on_notice
        self._flush = flush
        self._on_withdrawal = on_withdrawal
        self._grace_s = grace_s
        self._pid = os.getpid()
        self._closed = False
        self.called_back = False  # whether there is a callback of the user's
        # Used only on the teller's thread.
        self._in_effect: list[Notice] = []
        self._callbacks: list[Callable[[], object]] = []
        self._teller = _Lane("goodput-notices")
        self._caller = _Lane("goodput-callbacks")
        self._flusher = _Lane("goodput-notice-flush")

    def on_preemption(self, callback: C) -> C:
        """Call `callback()` at each notice from now on, on a thread of ours. Also a decorator.

        It runs concurrently with the training loop. Callbacks are called one after another. What one raises,
        including SystemExit, is logged once and ends nothing.
        """
        given: object = callback
        if callable(given):
            self.called_back = True
            self._teller.put(partial(self._register, callback))
        else:
            contain("on_preemption", TypeError(f"on_preemption() takes a function, not {given!r}"))
        return callback

    def announce(self, reason: str, moment: int, **attributes: types.AttributeValue) -> None:
        """Take note that the end was announced at `moment` (ns), for one of ``semconv.REASONS``.

        A second notice with the same reason and attributes is ignored. Returns at once; safe in signal handlers.
        """
        if self._open():
            self._teller.put(partial(self._take, Notice(reason, attributes), moment))

    def withdraw(self, reason: str, moment: int, **attributes: types.AttributeValue) -> None:
        """Take note that what was announced for `reason` is over, and the process is still running."""
        if self._open():
            self._teller.put(partial(self._take_back, Notice(reason, attributes), moment))

    def wait_recorded(self, seconds: float) -> bool:
        """Wait until `on_notice` was called for all announcements so far; return False if `seconds` did not suffice."""
        reached = threading.Event()
        self._teller.put(reached.set)
        return reached.wait(seconds)

    def settled(self, seconds: float) -> bool:
        """Wait until `on_notice`, the callbacks and `flush` were called for all announcements so far.

        Return False if `seconds` did not suffice. Not for the training thread.
        """
        return self._through((self._caller, self._flusher), seconds)

    def close(self, seconds: float = 0.0) -> bool:
        """Accept no more announcements, and wait until `on_notice` and the callbacks were called for those so far.

        Return False if `seconds` did not suffice, or if called from a callback. Work under way goes on in daemon
        threads.
        """
        self._closed = True
        lanes = (self._teller, self._caller, self._flusher)
        done = not any(lane.mine() for lane in lanes) and self._through((self._caller,), seconds)
        # The teller fills the other two lanes, so it is the one to end them.
        for lane in lanes:
            self._teller.put(partial(lane.put, None))
        return done

    def _through(self, lanes: tuple[_Lane, ...], seconds: float) -> bool:
        """Wait until `lanes` have done all that follows from the announcements so far."""
        until = time.monotonic() + seconds
        reached = [threading.Event() for _ in lanes]
        for lane, event in zip(lanes, reached, strict=True):
            self._teller.put(partial(lane.put, event.set))  # through the teller, which fills them
        return all(event.wait(max(0.0, until - time.monotonic())) for event in reached)

    def _open(self) -> bool:
        # In a forked child no thread empties the queues, and the end of a child is not the end of the job.
        return not self._closed and os.getpid() == self._pid

    # --- in the teller's thread ---------------------------------------------------------------------------------------

    def _register(self, callback: Callable[[], object]) -> None:
        if callback not in self._callbacks:
            self._callbacks.append(callback)

    def _take(self, notice: Notice, moment: int) -> None:
        if notice in self._in_effect:
            return
        self._in_effect.append(notice)
        try:
            self._on_notice(min(self._in_effect, key=Notice.rank).reason, moment, dict(notice.attributes))
        finally:
            for callback in self._callbacks:
                self._caller.put(partial(_call, callback))
            self._flusher.put(partial(self._flush, self._grace_s))

    def _take_back(self, notice: Notice, moment: int) -> None:
        left = [each for each in self._in_effect if each.reason != notice.reason]
        over = len(left) < len(self._in_effect)
        self._in_effect = left
        if over and self._on_withdrawal is not None:
            reason = min(left, key=Notice.rank).reason if left else None
            self._on_withdrawal(reason, moment, dict(notice.attributes))


class _Lane:
    """A daemon thread that runs the tasks it is given, one after another, until it is given None."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()  # reentrant, unlike queue.Queue
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            report_once(
                "notices", "cannot start the thread for preemption notices: %s; notices are not recorded", error
            )

    def put(self, task: Task | None) -> None:
        self._tasks.put(task)

    def mine(self) -> bool:
        """Return whether the caller is this thread."""
        return threading.current_thread() is self._thread

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None:
                return
            try:
                task()
            except BaseException as error:
                report_once(
                    self._name,
                    "a task of thread %s failed; training goes on: %s: %s",
                    self._name,
                    type(error).__name__,
                    error,
                )


def _call(callback: Callable[[], object]) -> None:
    """Call a callback of the user's; log what it raises."""
    try:
        callback()
    except BaseException as error:
        name = getattr(callback, "__qualname__", None) or repr(callback)
        report_once(
            f"on_preemption {name}",
            "the preemption callback %s failed; training goes on: %s: %s",
            name,
            type(error).__name__,
            error,
            error=error,
        )
