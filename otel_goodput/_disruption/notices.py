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
from otel_goodput._runtime.guard import report_once, started

Attributes = dict[str, types.AttributeValue]
Task = Callable[[], object]
C = TypeVar("C", bound=Callable[[], object])


class Notice(NamedTuple):
    """What was announced: one of ``semconv.REASONS``, and attributes."""

    reason: str
    attributes: Attributes


def _rank(notice: Notice) -> int:
    """The lowest counts. A SIGTERM after a preemption notice is part of it, not a new reason."""
    return PRECEDENCE.index(notice.reason) if notice.reason in PRECEDENCE else len(PRECEDENCE)


class Notices:
    """Accepts announcements from anywhere, including signal handlers. Raises nothing: all errors are logged once.

    Args:
        on_notice: called once for each notice with the reason in effect (an earlier one may rank before the latest),
            the moment in ns and the attributes of the latest. `flush` is called after it with `grace_s`.
        on_withdrawal: the same when a notice is withdrawn, with the reason in effect from now on or None.
    """

    def __init__(
        self,
        on_notice: Callable[[str, int, Attributes], object],
        flush: Callable[[float], object],
        grace_s: float = 10.0,
        on_withdrawal: Callable[[str | None, int, Attributes], object] = lambda *_: None,
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
        self._callbacks: list[Task] = []
        self._teller = _Lane("goodput-notices", "preemption notices are not recorded")
        self._caller = _Lane("goodput-callbacks", "preemption callbacks are not called")
        self._flusher = _Lane("goodput-notice-flush", "nothing is exported at a preemption notice")

    def on_preemption(self, callback: C) -> C:
        """Call `callback()` at each notice from now on, on a thread of ours. Also a decorator.

        It runs concurrently with the training loop. Callbacks are called one after another. What one raises,
        including SystemExit, is logged once and ends nothing.
        """
        self.called_back = True
        self._teller.put(partial(self._register, callback))
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
        return self._through((self._teller,), seconds)

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

    def _register(self, callback: Task) -> None:
        if callback not in self._callbacks:
            self._callbacks.append(callback)

    def _take(self, notice: Notice, moment: int) -> None:
        if notice in self._in_effect:
            return
        self._in_effect.append(notice)
        try:
            self._on_notice(min(self._in_effect, key=_rank).reason, moment, dict(notice.attributes))
        finally:
            for callback in self._callbacks:
                self._caller.put(partial(_call, callback))
            self._flusher.put(partial(self._flush, self._grace_s))

    def _take_back(self, notice: Notice, moment: int) -> None:
        left = [each for each in self._in_effect if each.reason != notice.reason]
        if len(left) < len(self._in_effect):
            self._in_effect = left
            reason = min(left, key=_rank).reason if left else None
            self._on_withdrawal(reason, moment, dict(notice.attributes))


class _Lane:
    """A daemon thread that runs the tasks it is given, one after another, until it is given None.

    `lost` is what there is not if the thread cannot be started.
    """

    def __init__(self, name: str, lost: str) -> None:
        tasks: SimpleQueue[Task | None] = SimpleQueue()  # reentrant, unlike queue.Queue
        self.put = tasks.put
        self._thread = threading.Thread(target=self._work, args=(tasks.get,), name=name, daemon=True)
        started(self._thread, lost)

    def mine(self) -> bool:
        return threading.current_thread() is self._thread

    def _work(self, get: Callable[[], Task | None]) -> None:
        for task in iter(get, None):
            try:
                task()
            except BaseException as error:
                name, kind = self._thread.name, type(error).__name__
                report_once(name, "a task of thread %s failed; training goes on: %s: %s", name, kind, error)


def _call(callback: Task) -> None:
    try:
        callback()
    except BaseException as error:
        name, kind = getattr(callback, "__qualname__", None) or repr(callback), type(error).__name__
        text = "the preemption callback %s failed; training goes on: %s: %s"
        report_once(f"on_preemption {name}", text, name, kind, error, error=error)
