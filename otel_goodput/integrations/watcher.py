"""A thread that finds out when work left the device: it waits where that is safe, and polls where it is not.

To wait in C++ without the GIL costs one wake-up, and is exact. But a thread that waits there when the interpreter ends
aborts the process, and an array that is donated or deleted meanwhile crashes it. So the thread waits only for marks of
our own, and only shortly before they are due; all else is polled.

Longer than other files: the order in which it waits, asks and gives up is one argument.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, islice
from types import MethodType
from typing import Any, Final

from otel_goodput.accounting import events as ev
from otel_goodput.accounting import rules
from otel_goodput.guard import contain, started
from otel_goodput.recording.observation import Observation
from otel_goodput.recording.watched import Watched

IN_FLIGHT: Final = 1024  # observations in the queue at most
DEADLINE: Final = 600_000_000_000  # ns after which work that is not ready is accounted by the host's clock
RECENT: Final = 16  # steps from which the length of the next one is estimated
SHORTEST: Final = 700_000  # ns between two polls at least
LONGEST: Final = 250_000_000  # ns between two polls at most
COARSEST: Final = 5  # two polls are at most 1/COARSEST of the steps' usual length apart
TOGETHER: Final = 20_000_000  # ns of consecutive steps that are watched as one
SOON: Final = 100_000_000  # ns before it is due from which on a mark is waited for
LATE: Final = 16  # a late step is polled again after 1/LATE of the time it took so far
GOLDEN: Final = 0.618034
STALE: Final = 1_000_000_000  # ns without a mark after which steps are assumed to be as long as usual
IDLE_LOOKS: Final = 20  # looks at an empty queue, before the training thread has to wake this one
COLLECTS_IN_C: Final = sys.version_info < (3, 12)  # garbage is collected where C code allocates, too
PASSED_BY: Final = 6  # ends in a row that the training thread saw; then it waits for them, and sees the next one
DOUBTED: Final = 4  # one in so many of the next ones is polled all the same, unless a step is behind it


def ready(leaf: Any) -> bool | None:
    """Return whether `leaf` has left the device; None if it was deleted, so that nobody can know."""
    # jax crashes the process if it is asked whether a deleted array is ready, or if the array is deleted while it is
    # asked; and another thread can delete it at any bytecode. So from the first question to the last answer no
    # bytecode may run: not ours, and not that of a garbage collection, whose callbacks (jax has one) are bytecode.
    # `zip` asks one question after the other, in C, and stops at the first that is answered by its sentinel.
    is_ready = leaf.is_ready
    asking: Iterator[Any] = islice(zip(iter(leaf.is_deleted, True), iter(is_ready, None), strict=False), 1)
    pausing = COLLECTS_IN_C and not isinstance(is_ready, MethodType) and gc.isenabled()
    if pausing:
        asking = chain(iter(gc.disable, None), asking, iter(gc.enable, None))
    try:
        answers = list(asking)
    except Exception:
        if pausing:
            gc.enable()
        if leaf.is_deleted():  # donated meanwhile, by a thread that did not hold the GIL
            return None
        raise
    return answers[0][1] if answers else None


class Watcher:
    """Follows the work that is on its way to the device.

    Consecutive steps shorter than ``TOGETHER`` are watched as one, and steps without a mark of their own together with
    the next one that has a mark: they share the time as steps of equal length.

    Args:
        tracer: records the ends.
        refuse: called with an observation whose array was deleted.
        check: called with an observation that is ready and has results to check; returns whether marks can be trusted.

    Attributes:
        lost: number of observations whose end will never be known.
        usual: ns that a step usually takes on the device.
        tasks: other work for this thread, to be done before it looks at the queue again.
    """

    def __init__(
        self,
        tracer: Watched,
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
        self._idle = False  # waits until it is woken
        self._polling = False  # the latest observation is polled, not waited for
        self._recent: deque[int] = deque(maxlen=RECENT)  # ns that recent steps took on the device
        self._end = 0  # the latest known end of work on the device, ns
        self.usual = 0
        self._shortest = 0  # ns that the shortest recent step took on the device
        self._passed_by = 0  # ends in a row that the training thread saw
        self._dither = 0.5
        self._before = 0  # when the front was polled last and was not ready, ns
        self._target: Observation | None = None  # the observation that was polled then

    # --- on the training thread ---------------------------------------------------------------------------------------

    def put(self, observation: Observation) -> None:
        """Follow `observation`."""
        if self._closing:
            self._lose(observation)
            return
        self.queue.append(observation)
        if self._thread is None:
            self._start()
        elif self._idle and observation.leaf is not None:
            self._news.set()

    def pass_by(self, now: int) -> None:
        """Look at the front from the training thread at `now` (ns): if it is ready, it ended no later than that."""
        queue = self.queue
        if not queue:  # the usual case; the exception would cost more than all the rest
            return
        try:
            front = queue[0]
        except IndexError:
            return
        leaf = front.leaf
        if leaf is not None and not front.by and ready(leaf):
            front.by = now

    def finish(self, observation: Observation, now: int) -> bool:
        """Record the end of what was ready as soon as dispatched; return False if the queue holds others before it."""
        if self.queue:
            observation.by = now
            return False
        self._done(observation, now)
        return True

    def work(self, task: Callable[[], None]) -> None:
        """Run `task` on the watching thread."""
        self.tasks.append(task)
        if self._thread is None:
            self._start()
        self.wake()

    def wake(self) -> None:
        """Wake the thread, because something about the queue has changed."""
        self._news.set()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._loop, name="otel-goodput-device-clock", daemon=True)
        self._news.set()
        started(self._thread, "the ends of steps on the device are not observed")

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
                # Look again before a step that is dispatched meanwhile can be over: nobody has to wake this thread.
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
            self.tasks.popleft()  # only now: a task in `tasks` is not done yet

    def _wait(self, seen: int) -> None:
        """Wait until woken, at most a second; `seen`: length of the queue when it was looked at."""
        self._news.clear()
        self._idle = True
        if len(self.queue) <= seen and not self.tasks and not self._closing:
            self._news.wait(STALE / 1e9)
        self._idle = False

    def _look(self) -> int:
        """Look at the front of the queue; return how long to wait until the next look, ns."""
        queue = self.queue
        while len(queue) > IN_FLIGHT:
            self._lose(queue.popleft())
        newest = queue[-1]
        if not newest.told:
            # The end of its span says so, too; but until then a checkpoint in the loop's body must not own its time.
            newest.told = True
            self._tracer.jobs.append(ev.OBSERVED, newest.phase, 0, 0, newest.key, ev.NO_STEP, newest.start)
        count = self._group()
        if count <= 0:
            return self._without_a_mark(-count)
        target = queue[count - 1]
        answer = ready(target.leaf)
        if answer is None and target.marked:
            # The program has deleted all arrays there are, to free memory: the step shares the next one's mark.
            target.leaf = None
            return 0
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
            try:
                target.leaf.block_until_ready()
            except Exception:
                if ready(target.leaf) is None:  # deleted meanwhile: for the next look
                    return 0
                raise
            now = self._clock()
            return self._over(count, target, now, min(now, target.by or now))
        return self._pause(asked, begun, expected, now, count)

    def _group(self) -> int:
        """Return how many observations at the front are watched as one.

        0: no mark has come yet. Negative: no mark will come for that many.
        """
        queue = self.queue
        most = max(1, TOGETHER // (self.usual or TOGETHER))
        marked = at = 0
        phase = queue[0].phase
        for at in range(len(queue)):
            each = queue[at]
            if at and (each.phase != phase or phase != rules.STEP):
                return marked or -at  # another phase follows: none of these gets a mark any more
            if each.leaf is not None:
                marked = at + 1
                if marked >= most:
                    break
        return marked

    def _without_a_mark(self, count: int) -> int:
        """Handle a front without a mark; the first `count` will never get one. Return ns until the next look."""
        queue = self.queue
        for _ in range(count):
            self._lose(queue.popleft())
        if count:
            return 0
        now = self._clock()
        if now - queue[-1].start > STALE + self.usual:
            # Steps so short that they share a mark, and none came for a long time: assume the usual length.
            while queue and queue[0].leaf is None:
                if not self.usual or queue[0].phase != rules.STEP:
                    self._lose(queue.popleft())
                    continue
                self._done(queue[0], max(queue[0].start, self._end) + self.usual)
                queue.popleft()
            return 0
        return STALE

    def _pause(self, asked: bool, begun: int, expected: int, now: int, count: int) -> int:
        """Return ns until the next poll of the front; `expected`: ns until it is over if it is as long as usual."""
        bracket = self._bracket(count)
        if not asked:
            waited = self._passed_by >= PASSED_BY and expected > 0
            if waited and (self._passed_by % DOUBTED or self._busy_behind(count)):
                self._target = None  # the training thread is expected to see the end first
                return min(LONGEST, expected + bracket)
            # Vary where polls fall: if the true end were always at the same place between two of them, taking the
            # middle would always err to the same side.
            self._dither = (self._dither + GOLDEN) % 1
            first = begun + self.usual * (count - 1) + max(self._shortest * 3 // 4, self._shortest - 2 * bracket) - now
            return min(LONGEST, max(0, first) + round(bracket * (0.5 + self._dither)))
        if expected < -2 * bracket:
            return min(LONGEST, max(bracket, (now - begun) // LATE))
        return bracket

    def _bracket(self, count: int) -> int:
        """Return ns between two polls around the expected end of `count` steps."""
        return max(SHORTEST, min(LONGEST, self.usual * count // COARSEST))

    def _over(self, count: int, target: Observation, before: int, now: int) -> int:
        """Record the end of the first `count`: ready at `now`, not ready at `before` (ns; 0: not polled)."""
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
        likely = bool(self.usual) and target.phase == rules.STEP  # whether the usual length is a good guess
        end, learn = now, True
        if before and self._passed_by < PASSED_BY:
            before = max(begun, min(before, now))
            end = (before + now) // 2
            if likely and before < usual < now and now - before > 2 * self._bracket(count):
                end = usual  # we were woken late
        elif likely and usual < now and not target.by and not self._busy_behind(count):
            # It was not polled in time, and no step behind it would make up for an end that is too late.
            end, learn = usual, False
        if end <= target.at_once:
            end = target.ended  # the device was idle; the mark's own latency is not work
        self._tell(count, max(begun, end), learn)
        return 0

    def _busy_behind(self, count: int) -> bool:
        """Return whether a step behind the first `count` is still on the device; it evens out an error in their end."""
        if len(self.queue) <= count or self.queue[count].phase != rules.STEP:
            return False
        leaf = self.queue[count].leaf
        return leaf is None or not ready(leaf)

    def _all_ready(self, count: int) -> int:
        """Return how many steps at the front are ready; `count` of them are known to be."""
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
        """Record that the first `count` left the device, the last at `end` (ns); `learn`: update `usual`."""
        queue = self.queue
        # Equally long steps, each beginning when it was dispatched and the previous one is done, are at most this long.
        lengths = [(end - max(queue[at].start, self._end)) // (count - at) for at in range(count)]
        length = min(lengths)
        if length < lengths[0] and self.usual:
            length = min(length, self.usual)  # the device was idle between two: one end says little about the others
        for more in range(count, 0, -1):
            observation = queue[0]
            if more > 1 and not (observation.marked or observation.leaf is None) and ready(observation.leaf) is None:
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

    def forget(self, *, marks_too: bool) -> None:
        """Give up observations without a mark, because none will come; `marks_too`: also those with marks of ours."""
        for observation in tuple(self.queue):
            if observation.leaf is None or (marks_too and observation.marked):
                self.queue.remove(observation)
                self._lose(observation)

    def finish_tasks(self, seconds: float) -> None:
        """Wait until `tasks` is empty, `seconds` at most."""
        until = time.monotonic() + seconds
        while self.tasks and time.monotonic() < until and self._thread is not None and self._thread.is_alive():
            time.sleep(0.001)

    def drain(self, seconds: float) -> None:
        """Wait until nothing is in flight and `tasks` is empty, `seconds` at most."""
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
        if self._thread is not None and self._thread.is_alive() and self._thread is not threading.current_thread():
            # It may be waiting for a mark that is due: the process would abort if the interpreter ended meanwhile.
            self._thread.join(max(1.0, until - time.monotonic()))
        while self.queue:
            self._lose(self.queue.popleft())
