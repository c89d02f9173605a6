"""The thread that learns when work left the device: it waits where that is safe, and asks where it is not.

To wait in C++ without the interpreter's lock costs one wake-up, and is exact. But a thread that sits there when the
interpreter ends aborts the process, and an array that is donated or deleted meanwhile crashes it. So only marks of our
own are waited for, and only shortly before they are due; all else is asked now and then.

Longer than other files: the order in which it waits, asks and gives up is one argument.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import takewhile
from operator import methodcaller, not_
from typing import Any, Final

from otel_goodput.accounting import events as ev
from otel_goodput.accounting import rules
from otel_goodput.guard import contain
from otel_goodput.recording.observation import Observation
from otel_goodput.recording.tracer import PhaseTracer

IN_FLIGHT: Final = 1024  # observations that may be on their way to the device
DEADLINE: Final = 600_000_000_000  # ns after which what does not become ready is taken by the host's clock
RECENT: Final = 16  # steps that tell how long the next one takes
SHORTEST: Final = 700_000  # ns between two questions at least
LONGEST: Final = 250_000_000  # ns between two questions at most
COARSEST: Final = 5  # a step's end is looked for in this part of its length at most
TOGETHER: Final = 20_000_000  # ns of steps that follow each other and are looked at as one
SOON: Final = 100_000_000  # ns before it is due that a mark is waited for
LATE: Final = 16  # a late step is asked again after this part of the time it took so far
GOLDEN: Final = 0.618034
STALE: Final = 1_000_000_000  # ns after which steps that no mark came for are taken to be as long as usual
IDLE_LOOKS: Final = 20  # at an empty queue, before the training thread has to wake us
PASSED_BY: Final = 4  # ends in a row that the training thread was awake at: it will be at the next one
_QUESTIONS: Final = (methodcaller("is_deleted"), methodcaller("is_ready"))
_ask = methodcaller.__call__


def ready(leaf: Any) -> bool | None:
    """Whether it has left the device; None: that cannot be known any more."""
    # jax crashes where a deleted array is asked whether it is ready, so nothing may come between the two questions:
    # no bytecode lies between them, where the interpreter could turn to the thread that deletes it.
    answers = tuple(takewhile(not_, map(_ask, _QUESTIONS, (leaf,) * 2)))
    return len(answers) == 1 if answers else None


class Watcher:
    """Follows what is on its way to the device.

    Steps shorter than ``TOGETHER`` that follow each other are looked at as one, and steps without a mark of their own
    with the next one that has one: they share the time as steps of equal length.

    Args:
        tracer: what records the ends.
        refuse: told of what a user handed over and somebody deleted.
        check: told of a mark that is ready and is to be checked; whether marks can be trusted.

    Attributes:
        lost: whose end will never be known.
        usual: ns that a step is on the device.
        tasks: other work for this thread, before it looks again.
    """

    def __init__(
        self,
        tracer: PhaseTracer,
        refuse: Callable[[Observation], None],
        check: Callable[[Observation], bool],
    ) -> None:
        self._tracer = tracer
        self._clock = tracer.clock
        self._refuse = refuse
        self._check = check
        self.queue: deque[Observation] = deque()
        self.lost = 0
        self.tasks: deque[Callable[[], None]] = deque()
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._idle = False  # somebody has to wake us
        self._polling = False  # the latest could not be waited for
        self._recent: deque[int] = deque(maxlen=RECENT)  # ns on the device
        self._end = 0  # when the device was done with the latest known, ns
        self.usual = 0
        self._shortest = 0  # ns on the device, of recent ones
        self._passed_by = 0  # ends in a row that the training thread was awake at
        self._dither = 0.5
        self._before = 0  # when those at the front were asked last and were not ready, ns
        self._target: Observation | None = None  # which was

    # --- on the training thread ---------------------------------------------------------------------------------------

    def put(self, observation: Observation) -> None:
        """Follow it."""
        if self._closing:
            self._lose(observation)
            return
        self.queue.append(observation)
        if self._thread is None:
            self._start()
        elif self._idle and observation.leaf is not None:
            self._news.set()

    def pass_by(self, now: int) -> None:
        """Somebody is awake, at `now` (ns): what is ready by now was so before we are told the time."""
        queue = self.queue
        if not queue:  # as mostly; the exception would cost more than all the rest
            return
        try:
            front = queue[0]
        except IndexError:
            return
        leaf = front.leaf
        if leaf is not None and not front.by and ready(leaf):
            front.by = now

    def finish(self, observation: Observation, now: int) -> bool:
        """Of what is ready as soon as it was dispatched, the end is known at once, unless others come before it."""
        if self.queue:
            observation.by = now
            return False
        self._done(observation, now)
        return True

    def work(self, task: Callable[[], None]) -> None:
        """Do this on the watching thread."""
        self.tasks.append(task)
        if self._thread is None:
            self._start()
        self.wake()

    def wake(self) -> None:
        """There is something new about what is in the queue."""
        self._news.set()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._loop, name="otel-goodput-device-clock", daemon=True)
        self._news.set()
        self._thread.start()

    # --- watching -----------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        idle = 0
        while not self._closing:
            try:
                while self.tasks:
                    self._work()
                seen = len(self.queue)
                pause = self._look() if seen else None
            except Exception as error:
                contain("device clock", error)
                seen, pause = 0, LONGEST
            if pause is None and self._polling and idle < IDLE_LOOKS and 0 < self._shortest < TOGETHER:
                # A step that is dispatched meanwhile is not over when we look again: nobody has to wake us.
                idle += 1
                pause = max(SHORTEST, self._shortest * 3 // 4)
            elif pause is not None:
                idle = 0
            if pause is None or pause >= STALE:
                self._wait(seen)
            elif pause:
                time.sleep(pause / 1e9)

    def _work(self) -> None:
        try:
            self.tasks[0]()
        finally:
            self.tasks.popleft()  # while it is there, it is not done

    def _wait(self, seen: int) -> None:
        """Until there is news, a second at most; `seen`: how many were in the queue when it was looked at."""
        self._news.clear()
        self._idle = True
        if len(self.queue) <= seen and not self.tasks and not self._closing:
            self._news.wait(STALE / 1e9)
        self._idle = False

    def _look(self) -> int:
        """Look at what is at the front; returns how long to wait until the next look, ns."""
        queue = self.queue
        while len(queue) > IN_FLIGHT:
            self._lose(queue.popleft())
        newest = queue[-1]
        if not newest.told:
            # The end of its span will say so; until then a checkpoint in the loop's body shall not own its time.
            newest.told = True
            self._tracer.jobs.append(ev.OBSERVED, newest.phase, 0, 0, newest.key, ev.NO_STEP, newest.start)
        count = self._group()
        if count <= 0:
            return self._without_a_mark(-count)
        target = queue[count - 1]
        answer = ready(target.leaf)
        if answer is None:
            del queue[count - 1]
            self._refuse(target)
            self._lose(target)
            return 0
        asked, self._target, self._polling = self._target is target, target, not target.ours
        if answer:
            now = self._clock()
            before = self._before if asked else 0
            return self._over(count, target, before, min(now, target.by or now))
        now = self._before = self._clock()
        begun = max(queue[0].start, self._end)
        if now - begun > DEADLINE:
            self._lose(queue.popleft())
            return 0
        expected = begun + self.usual * count - now
        if target.ours and self.usual and expected < SOON and not self._closing:
            target.leaf.block_until_ready()
            now = self._clock()
            return self._over(count, target, now, min(now, target.by or now))
        return self._pause(asked, begun, expected, now, count)

    def _group(self) -> int:
        """How many at the front are looked at as one. Up to 0: so many that no mark of theirs has come (yet)."""
        queue = self.queue
        most = max(1, TOGETHER // (self.usual or TOGETHER))
        marked = at = 0
        phase = queue[0].phase
        for at in range(len(queue)):
            each = queue[at]
            if at and (each.phase != phase or phase != rules.STEP):
                return marked or -at  # none of theirs will come
            if each.leaf is not None:
                marked = at + 1
                if marked >= most:
                    break
        return marked

    def _without_a_mark(self, count: int) -> int:
        """Nothing at the front tells when it is over; the first `count` will never have anything that does."""
        queue = self.queue
        for _ in range(count):
            self._lose(queue.popleft())
        if count:
            return 0
        now = self._clock()
        if now - queue[-1].start > STALE + self.usual:
            # Steps so short that they share a mark, and then a long time without one.
            while queue and queue[0].leaf is None:
                if not self.usual or queue[0].phase != rules.STEP:
                    self._lose(queue.popleft())
                    continue
                self._done(queue[0], max(queue[0].start, self._end) + self.usual)
                queue.popleft()
            return 0
        return STALE

    def _pause(self, asked: bool, begun: int, expected: int, now: int, count: int) -> int:
        """How long until those at the front are asked again, ns; `expected`: until they are over, as usual."""
        bracket = self._bracket(count)
        if not asked:
            if self._passed_by >= PASSED_BY and expected > 0 and self._busy_behind(count):
                self._target = None  # by then the training thread has seen it
                return min(LONGEST, expected + bracket)
            # The middle of a bracket that stood still over the true end would always err to the same side.
            self._dither = (self._dither + GOLDEN) % 1
            first = begun + self.usual * (count - 1) + max(self._shortest * 3 // 4, self._shortest - 2 * bracket) - now
            return min(LONGEST, max(0, first) + round(bracket * (0.5 + self._dither)))
        if expected < -2 * bracket:
            return min(LONGEST, max(bracket, (now - begun) // LATE))
        return bracket

    def _bracket(self, count: int) -> int:
        """ns between two questions where the end of `count` steps is expected."""
        return max(SHORTEST, min(LONGEST, self.usual * count // COARSEST))

    def _over(self, count: int, target: Observation, before: int, now: int) -> int:
        """The first `count` are ready at `now`, and were not at `before` (ns; 0: they were not asked)."""
        queue = self.queue
        if target.results and not self._check(target):
            return 0
        self._passed_by = self._passed_by + 1 if target.by else 0
        if not (before or target.by):
            count = self._all_ready(count)
            target = queue[count - 1]
            now = min(self._clock(), target.by) if target.by else self._clock()
        begun = max(queue[0].start, self._end)
        usual = begun + self.usual * count
        likely = bool(self.usual) and target.phase == rules.STEP  # that it took as long as usual
        end, learn = now, True
        if before:
            before = max(begun, min(before, now))
            end = (before + now) // 2
            if likely and before < usual < now and now - before > 2 * self._bracket(count):
                end = usual  # we were woken late
        elif likely and usual < now and not target.by and not self._busy_behind(count):
            # Nobody looked, and nothing behind it is on its way that would end the later.
            end, learn = usual, False
        if end <= target.at_once:
            end = target.ended  # the mark's own way is none of the work's
        self._tell(count, max(begun, end), learn)
        return 0

    def _busy_behind(self, count: int) -> bool:
        """Whether a step that follows the first `count` is on the device yet: what they get too much, it lacks."""
        if len(self.queue) <= count or self.queue[count].phase != rules.STEP:
            return False
        leaf = self.queue[count].leaf
        return leaf is None or not ready(leaf)

    def _all_ready(self, count: int) -> int:
        """How many steps at the front are ready, of which `count` are known to be."""
        queue = self.queue
        for at in range(count, len(queue)):
            each = queue[at]
            if not each.phase == queue[0].phase == rules.STEP:
                break
            if each.leaf is not None:
                if not ready(each.leaf):
                    break
                count = at + 1
        return count

    def _tell(self, count: int, end: int, learn: bool) -> None:
        """The first `count` in flight have left the device, the last of them at `end` (ns)."""
        queue = self.queue
        # Of one length all, each begins when it was dispatched and the one before it is done: so long is it.
        lengths = [(end - max(queue[at].start, self._end)) // (count - at) for at in range(count)]
        length = min(lengths)
        if length < lengths[0] and self.usual:
            length = min(length, self.usual)  # the device was idle between two of them: one end tells little of others
        for more in range(count, 0, -1):
            observation = queue[0]
            if more > 1 and observation.leaf is not None and ready(observation.leaf) is None:
                self._refuse(observation)
                self._lose(queue.popleft())
                continue
            begun = max(observation.start, self._end)
            self._done(observation, begun + max(0, length) if more > 1 else end, learn)
            queue.popleft()
        recent = sorted(self._recent)
        if recent:
            self.usual, self._shortest = recent[len(recent) // 2], recent[0]

    def _done(self, observation: Observation, end: int, learn: bool = True) -> None:
        begun = max(observation.start, self._end)
        end = max(begun, end)
        self._end = end
        if learn and observation.phase == rules.STEP:
            self._recent.append(end - begun)
        self._tracer.jobs.append(ev.DEVICE_END, observation.phase, 0, 0, observation.key, ev.NO_STEP, end)
        observation.settle(end - begun)

    def _lose(self, observation: Observation) -> None:
        self.lost += 1
        self._tracer.jobs.append(ev.UNOBSERVED, observation.phase, 0, 0, observation.key, ev.NO_STEP, self._clock())
        observation.settle(None)

    # --- the end ------------------------------------------------------------------------------------------------------

    def forget(self, *, all_of_ours: bool) -> None:
        """No mark will come for those that have none; `all_of_ours`: none can be trusted."""
        for observation in tuple(self.queue):
            if observation.leaf is None or (all_of_ours and observation.ours):
                self.queue.remove(observation)
                self._lose(observation)

    def finish_tasks(self, seconds: float) -> None:
        """Wait until the other work is done, `seconds` at most."""
        until = time.monotonic() + seconds
        while self.tasks and time.monotonic() < until and self._thread is not None and self._thread.is_alive():
            time.sleep(0.001)

    def drain(self, seconds: float) -> None:
        """Wait until nothing is in flight, `seconds` at most."""
        until = time.monotonic() + seconds
        thread = self._thread
        while (self.queue or self.tasks) and time.monotonic() < until and thread is not None and thread.is_alive():
            time.sleep(0.001)

    def close(self, seconds: float) -> None:
        """Wait for what is in flight, `seconds` at most; what is not ready then is accounted by the host's clock."""
        until = time.monotonic() + seconds
        self.drain(seconds)
        self._closing = True
        self._news.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            # It may wait for a mark that is due: what ends the interpreter under it would abort the process.
            self._thread.join(max(1.0, until - time.monotonic()))
        while self.queue:
            self._lose(self.queue.popleft())
