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
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, repeat
from operator import add, floordiv, mul, sub
from types import MethodType
from typing import Any, Final

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._journal.records import BUSY, DEVICE_ENDS, MOST_ENDS, successive
from otel_goodput._recording.observation import Observation
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime.guard import contain, started

IN_FLIGHT: Final = 1024  # observations in the queue at most
DEADLINE: Final = 600_000_000_000  # ns after which work that is not ready is accounted by the host's clock
RECENT: Final = 16  # steps from which the length of the next one is estimated
MEASURED: Final = 4  # steps from which on that is more than a guess
SHORTEST: Final = 700_000  # ns between two polls at least
LONGEST: Final = 250_000_000  # ns between two polls at most
COARSEST: Final = 5  # two polls are at most 1/COARSEST of the steps' usual length apart
TOGETHER: Final = 20_000_000  # ns of consecutive steps that are watched as one
SOON: Final = 100_000_000  # ns before it is due from which on a mark is waited for
LATE: Final = 16  # a late step is polled again after 1/LATE of the time it took so far
GOLDEN: Final = 0.618034
LOOK: Final = 1_000_000  # ns between two looks of the training thread at short steps, at most
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


def equal_length(starts: Sequence[int], free: int, end: int, usual: int) -> tuple[int, bool]:
    """Return the length (ns) of equally long steps of which the last ends at `end`, and whether the device was busy.

    Each begins when it was dispatched and the one before is over, the first when the device is `free`. If the device
    was idle between two of them, `end` says nothing about the steps before that; the `usual` length may be shorter.
    """
    count = len(starts)
    most = (end - max(starts[0], free)) // count
    shortest: int = min(map(floordiv, map(sub, repeat(end), starts), range(count, 0, -1)))
    busy = shortest >= most
    return (most, busy) if busy else (max(0, min(shortest, usual or shortest)), busy)


def begin_of_last(starts: Sequence[int], free: int, length: int) -> int:
    """Return when the last of the steps that take `length` ns begins on the device, ns; as :func:`equal_length`."""
    behind = range(len(starts) - 1, -1, -1)
    latest: int = max(map(add, starts, map(mul, repeat(length), behind)))
    return max(free + length * behind[0], latest)


def equal_ends(starts: Sequence[int], free: int, length: int, busy: bool, end: int) -> list[int]:
    """Return when each of the steps ends, ns, as a reader of the journal finds it."""
    if busy:
        return [end - length * left for left in range(len(starts) - 1, -1, -1)]
    ends = []
    for start in starts[:-1]:
        free = min(end, max(start, free) + length)
        ends.append(free)
    return [*ends, end]


def durations_of(starts: Sequence[int], free: int, ends: Sequence[int]) -> Iterator[int]:
    """Yield how long each step was on the device, ns."""
    return map(sub, ends, map(max, starts, chain((free,), ends)))


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
        gathers: short steps have marks of their own, one right after the other: look at them every ``TOGETHER`` ns.
        tasks: other work for this thread, to be done before it looks at the queue again.
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
        self._idle = False  # waits until it is woken
        self._polling = False  # the latest observation is the user's
        self._recent: deque[int] = deque(maxlen=RECENT)  # ns that recent steps took on the device
        self._end = 0  # the latest known end of work on the device, ns
        self.usual = 0
        self.gathers = False
        self._shortest = 0  # ns that the shortest recent step took on the device
        self._passed_by = 0  # ends in a row that the training thread saw
        self._dither = 0.5
        self._target: Observation | None = None  # the observation that was polled last and was not ready
        self._next_look = 0  # of the training thread at the front, ns

    @property
    def busy(self) -> bool:
        """Whether anything is in flight."""
        return any(each.keys for each in tuple(self.queue))

    @property
    def length(self) -> int:
        """ns that a step usually takes on the device; 0 until some have been measured."""
        return self.usual if len(self._recent) >= MEASURED else 0

    # --- on the training thread ---------------------------------------------------------------------------------------

    def put(self, observation: Observation) -> None:
        """Follow `observation`."""
        if self._closing:
            self._lose(observation)
            return
        self.queue.append(observation)
        if self._thread is None:
            self._start()
        else:
            self.marked()

    def marked(self) -> None:
        """Take note that the latest observation has got its mark."""
        self._next_look = 0
        if self._idle and self.queue and self.queue[-1].leaf is not None:
            self._news.set()

    def pass_by(self, now: int) -> None:
        """Look at the front from the training thread at `now` (ns): if it is ready, it ended no later than that."""
        queue = self.queue
        if not queue or now < self._next_look:  # the usual case; the exception would cost more than all the rest
            return
        try:
            front = queue[0]
        except IndexError:
            return
        leaf = front.leaf
        if leaf is None or front.by:
            return
        if ready(leaf):
            front.by = now
        elif 0 < self.usual < TOGETHER:
            # Often right behind the mark, then ever less often: with each look twice as much time has passed.
            self._next_look = now + min(LOOK, now - front.before if front.before else 0)
            front.before = now

    def finish(self, observation: Observation, now: int) -> bool:
        """Record the end of what was ready as soon as dispatched; return False if the queue holds others before it."""
        if self.queue:
            observation.by = now
            return False
        begun = max(observation.start, self._end)
        end = max(begun, now)
        self._done(observation, [end])
        if observation.phase == rules.STEP:
            self._learn(end - begun)
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
                seen = self._seen()
                pause = self._look() if seen[0] else None
            except Exception as error:
                contain("device clock", error)
                seen, pause = (0, None), LONGEST
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

    def _seen(self) -> tuple[int, Any]:
        """Return the length of the queue, and the mark of its last observation."""
        try:
            return len(self.queue), self.queue[-1].leaf
        except IndexError:
            return 0, None

    def _wait(self, seen: tuple[int, Any]) -> None:
        """Wait until woken, at most a second; `seen`: the queue when it was looked at."""
        self._news.clear()
        self._idle = True
        now = self._seen()
        if now[0] <= seen[0] and now[1] is seen[1] and not self.tasks and not self._closing:
            self._news.wait(STALE / 1e9)
        self._idle = False

    def _look(self) -> int:
        """Look at the front of the queue; return how long to wait until the next look, ns."""
        queue = self.queue
        while len(queue) > IN_FLIGHT:
            self._lose(queue.popleft())
        front = queue[0]
        if not front.keys:  # all of its steps were given up
            if len(queue) == 1 and front.leaf is None:
                return STALE
            queue.popleft()
            return 0
        newest = queue[-1]
        if not newest.announced:
            # The end of its span says so, too; but until then a checkpoint in the loop's body must not own its time.
            newest.announced = True
            self._tracer.jobs.append(ev.OBSERVED, newest.phase, 0, 0, newest.keys[0], ev.NO_STEP, newest.start)
        count, steps = self._group()
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
        asked, self._target, self._polling = self._target is target, target, not target.marked
        now = self._clock()
        if answer:
            return self._over(count, now, asked)
        target.before = now
        begun = max(front.start, self._end)
        gathered = front.start + TOGETHER - now
        if self.gathers and gathered > 0 and steps * self.usual < TOGETHER and count == len(queue):
            return gathered
        if now - begun > DEADLINE:
            self._lose(queue.popleft())
            return 0
        expected = begun + self.usual * steps - now
        if target.ours and self.usual and expected < SOON and not self._closing:
            try:
                target.leaf.block_until_ready()
            except Exception:
                if ready(target.leaf) is None:  # deleted meanwhile: for the next look
                    return 0
                raise
            target.before = now = self._clock()
            return self._over(count, now, True)
        return self._pause(asked, begun, expected, now, count, steps)

    def _group(self) -> tuple[int, int]:
        """Return how many observations at the front are watched as one, and how many steps these are.

        0: no mark has come yet. Negative: no mark will come for that many.
        """
        queue = self.queue
        most = max(1, TOGETHER // (self.usual or TOGETHER))
        marked = at = steps = found = 0
        phase = queue[0].phase
        for at in range(len(queue)):
            each = queue[at]
            if at and (each.phase != phase or phase != rules.STEP):
                return marked or -at, found  # another phase follows: none of these gets a mark any more
            steps += len(each.keys)
            if each.leaf is not None:
                marked, found = at + 1, steps
                if steps >= most:
                    break
        return marked, found

    def _without_a_mark(self, count: int) -> int:
        """Handle a front without a mark; the first `count` will never get one. Return ns until the next look."""
        queue = self.queue
        for _ in range(count):
            self._lose(queue.popleft())
        if count:
            return 0
        if self._clock() - queue[-1].starts[-1] <= STALE + self.usual:
            return STALE
        # Steps so short that they share a mark, and none came for a long time: assume the usual length. The last
        # observation stays in the queue: other steps may join it.
        for each in tuple(queue):
            if each.leaf is not None:
                break
            if each is not queue[-1]:
                queue.popleft()
            if self.usual and each.phase == rules.STEP:
                ends, end = [], self._end
                for start in tuple(each.starts):
                    end = max(start, end) + self.usual
                    ends.append(end)
                self._done(each, ends)
            else:
                self._lose(each)
        return 0

    def _pause(self, asked: bool, begun: int, expected: int, now: int, count: int, steps: int) -> int:
        """Return ns until the next poll of the front; `expected`: ns until it is over if it is as long as usual."""
        bracket = self._bracket(steps)
        if not asked:
            waited = self._passed_by >= PASSED_BY and expected > 0
            if waited and (self._passed_by % DOUBTED or self._busy_behind(count)):
                self._target = None  # the training thread is expected to see the end first
                return min(LONGEST, expected + bracket)
            # Vary where polls fall: if the true end were always at the same place between two of them, taking the
            # middle would always err to the same side.
            self._dither = (self._dither + GOLDEN) % 1
            first = begun + self.usual * (steps - 1) + max(self._shortest * 3 // 4, self._shortest - 2 * bracket) - now
            return min(LONGEST, max(0, first) + round(bracket * (0.5 + self._dither)))
        if expected < -2 * bracket:
            return min(LONGEST, max(bracket, (now - begun) // LATE))
        return bracket

    def _bracket(self, steps: int) -> int:
        """Return ns between two polls around the expected end of so many `steps`."""
        return max(SHORTEST, min(LONGEST, self.usual * steps // COARSEST))

    def _over(self, count: int, now: int, asked: bool) -> int:
        """Record the end of the first `count`, which are ready at `now` (ns); `asked`: the last was polled before."""
        queue = self.queue
        target = queue[count - 1]
        if target.results and not self._check(target):
            return 0
        self._passed_by = self._passed_by + 1 if target.by else 0
        if not (asked or target.by):
            count = self._all_ready(count)
            target = queue[count - 1]
            now = self._clock()
        end, learn = self._end_of(count, min(now, target.by or now), asked)
        if end <= target.at_once and target.ends:
            end = target.ends[-1]  # the device was idle; the mark's own latency is not work
        self._tell(count, end, learn)
        return 0

    def _end_of(self, count: int, now: int, asked: bool) -> tuple[int, bool]:
        """Estimate when the first `count` ended, which were ready at `now` (ns).

        Returns: the end, ns; whether it was measured.
        """
        target = self.queue[count - 1]
        steps = sum(len(self.queue[at].keys) for at in range(count))
        begun = max(self.queue[0].start, self._end)
        before = max(begun, min(target.before, now))
        usual = begun + self.usual * steps
        likely = bool(self.usual) and target.phase == rules.STEP  # whether the usual length is a good guess
        if self._passed_by >= PASSED_BY:
            return now, True
        if target.before and now - before <= (2 * self._bracket(steps) if asked or not target.by else LOOK):
            return (before + now) // 2, True
        if not asked:
            # It was not polled in time. An end that is too late is made up for by a step behind it.
            if likely and not target.by and usual < now and not self._busy_behind(count):
                return (usual, False) if before < usual else ((before + now) // 2, True)
            return now, True
        if likely and before < usual:
            if usual < now:
                return usual, True  # we were woken late
            if target.by:
                return now, True  # the training thread saw it first: it may have waited for it
        return (before + now) // 2, True

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
        observations = [self.queue.popleft() for _ in range(count)]
        first, free = observations[0], self._end
        keys, starts = first.keys, first.starts
        if count > 1:
            keys = list(chain.from_iterable(each.keys for each in observations))
            starts = list(chain.from_iterable(each.starts for each in observations))
        steps = len(keys)
        if steps == 1:
            begun = max(free, starts[0])
            self._done(first, [max(end, begun)])
            length = self._end - begun
        elif (hosts := self._waited_for(observations, end)) is not None:
            length = sorted(map(sub, hosts, starts))[steps // 2]
            self._each_done(observations, hosts)
        else:
            end = max(end, free, starts[0])
            each_took, busy = equal_length(starts, free, end, self.usual)
            length = each_took if busy else end - begin_of_last(starts, free, each_took)
            if not (successive(keys) and all(each.regular for each in observations)):
                self._each_done(observations, equal_ends(starts, free, each_took, busy, end))
            else:
                self._record_together(keys, starts, each_took, busy, end)
                durations = [each_took] * steps
                durations[0 if busy else -1] += (
                    end - each_took * steps - max(starts[0], free) if busy else length - each_took
                )
                at = 0
                for each in observations:
                    count = len(each.keys)
                    each.settle(durations[at : at + count])
                    at += count
        if learn and first.phase == rules.STEP:
            self._learn(length)

    def _waited_for(self, observations: Sequence[Observation], end: int) -> Sequence[int] | None:
        """Return when each of several steps ended, ns, if the loop waited for each of them, the last until `end`."""
        if not observations[-1].ends or end != observations[-1].ends[-1]:
            return None
        hosts = [host for each in observations for host in each.ends]
        starts = [start for each in observations for start in each.starts]
        waited = len(hosts) == len(starts) and hosts[0] >= self._end and 2 * min(map(sub, hosts, starts)) >= self.usual
        return hosts if waited else None

    def _record_together(self, keys: list[int], starts: list[int], length: int, busy: bool, end: int) -> None:
        """Record the ends of the steps of successive turns: a record for many of them."""
        append, free, steps = self._tracer.jobs.append, self._end, len(keys)
        for at in range(0, steps, MOST_ENDS):
            until = min(at + MOST_ENDS, steps)
            last = end
            if until < steps:
                last = end - (steps - until) * length if busy else begin_of_last(starts[:until], free, length) + length
            append(DEVICE_ENDS, until - at, BUSY if busy else 0, 0, keys[at], length, last)
        self._end = end

    def _each_done(self, observations: Sequence[Observation], ends: Sequence[int]) -> None:
        """Record the ends of several steps one by one."""
        rest = iter(ends)
        for each in observations:
            shared = list(islice(rest, len(each.keys)))
            last = each is observations[-1]
            if not last and not each.marked and each.leaf is not None and ready(each.leaf) is None:
                self._refuse(each)
                self._lose(each)
            else:
                self._done(each, shared)

    def _learn(self, length: int) -> None:
        """Take note that a step took `length` ns."""
        self._recent.append(length)
        recent = sorted(self._recent)
        self.usual, self._shortest = recent[len(recent) // 2], recent[0]

    def _done(self, observation: Observation, ends: Sequence[int]) -> None:
        """Record when the first steps of `observation` ended, ns."""
        append, phase = self._tracer.jobs.append, observation.phase
        for key, end in zip(observation.keys, ends, strict=False):
            append(ev.DEVICE_END, phase, 0, 0, key, ev.NO_STEP, end)
        durations = list(durations_of(observation.starts, self._end, ends))
        self._end = ends[-1]
        observation.settle(durations)

    def _lose(self, observation: Observation) -> None:
        keys = tuple(observation.keys)
        self.lost += len(keys)
        for key in keys:
            self._tracer.jobs.append(ev.UNOBSERVED, observation.phase, 0, 0, key, ev.NO_STEP, self._clock())
        observation.settle([None] * len(keys))

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
        while (self.busy or self.tasks) and time.monotonic() < until and thread is not None and thread.is_alive():
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
