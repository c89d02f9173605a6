"""A thread that finds out when work left the device: it waits where that is safe, and polls where it is not.

To wait in C++ without the GIL costs one wake-up, and is exact. But a thread that waits there when the interpreter ends
aborts the process, and an array that is donated or deleted meanwhile crashes it. So the thread waits only for marks,
which nobody else can reach, and only shortly before they are due; all else is polled.

What is in flight is one queue of :class:`~otel_goodput._recording.short_span.Observation`. The training thread appends
to it and gives the last one its mark; this thread removes the first ones. Consecutive short steps are watched as one
group, so that it wakes once in ``GROUP`` ns: it competes with the training thread for the GIL, and whatever it does in
a wake-up delays training.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate, chain, count, islice, repeat
from operator import add, floordiv, le, sub
from typing import Any, Final

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._integrations.markers import ready
from otel_goodput._journal.records import BUSY, DEVICE_ENDS, MOST_ENDS, successive
from otel_goodput._recording.short_span import Observation
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime.guard import contain, started

RECENT: Final = 16  # steps from which the length of the next one is estimated
MEASURED: Final = 4  # steps from which on that is more than a guess


class StepLengths:
    """How long the recent steps took: the median and the shortest, ns; 0 if none is known."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=RECENT)
        self.usual = self.shortest = 0

    @property
    def known(self) -> int:
        """The usual length; 0 until some steps have been measured."""
        return self.usual if len(self._recent) >= MEASURED else 0

    def add(self, length: int) -> None:
        self._recent.append(length)
        recent = sorted(self._recent)
        self.usual, self.shortest = recent[len(recent) // 2], recent[0]


def divide(starts: Sequence[int], free: int, end: int, usual: int) -> tuple[int, bool]:
    """Divide the time up to `end` between steps dispatched at `starts`; the device was `free` before.

    They get the longest length with which all of them end by `end`. If the device was idle between two of them, the
    length of those before does not follow from `end`; it is the `usual` one, if that is shorter. A step begins when it
    was dispatched and the one before is over. Readers of the journal find the same ends.

    Returns: the length of each step but the one that gets the rest (the first if the device was busy, else the last);
        whether the device was never idle between two of them.
    """
    most = (end - max(starts[0], free)) // len(starts)
    if all(map(le, starts, count(end - most * len(starts), most))):
        return most, True
    longest = min(map(floordiv, map(sub, repeat(end), starts), range(len(starts), 0, -1)))
    return max(0, min(longest, usual or longest)), False


def last_end(starts: Sequence[int], free: int, length: int) -> int:
    """Return when the last of the steps dispatched at `starts` is over if each takes `length`, as in :func:`divide`."""
    latest: int = max(map(sub, starts, count(0, length)))
    return length * len(starts) + max(free, latest)


def ends_of(starts: Sequence[int], free: int, end: int, length: int, busy: bool) -> list[int]:
    """Return when each of the steps ended that :func:`divide` gave that `length`."""
    if busy:
        return [end - length * behind for behind in range(len(starts) - 1, -1, -1)]
    begins = accumulate(map(sub, starts, count(0, length)), max, initial=free)
    return [*map(min, repeat(end), map(add, islice(begins, 1, len(starts)), count(length, length))), end]


def durations_of(starts: Sequence[int], free: int, ends: Sequence[int]) -> list[int]:
    """Return how long each of the steps that ended at `ends` was on the device."""
    return [*map(sub, ends, map(max, starts, chain((free,), ends)))]


IN_FLIGHT: Final = 1024  # observations in the queue at most
# All in ns:
GROUP: Final = 20_000_000  # of consecutive steps that are watched as one
SOON: Final = 100_000_000  # before it is due from which on a mark is waited for
SHORTEST: Final = 700_000  # between two polls at least
LONGEST: Final = 250_000_000  # between two polls at most
GLANCE: Final = 1_000_000  # between two glances of the training thread at short steps, at most
STALE: Final = 1_000_000_000  # without a mark after which steps are assumed to be as long as usual
DEADLINE: Final = 600_000_000_000  # after which work that is not ready is accounted by the host's clock
# Shares and counts:
COARSEST: Final = 5  # two polls are at most 1/COARSEST of the steps' usual length apart
LATE: Final = 16  # a late step is polled again after 1/LATE of the time it took so far
GOLDEN: Final = 0.618034
IDLE_LOOKS: Final = 20  # looks at an empty queue, before the training thread has to wake this one
GLIMPSED: Final = 6  # ends in a row that the training thread saw; then it is expected to see the next one, too;
VERIFIED: Final = 4  # one in so many of those is polled all the same, unless a step is behind it


class Watcher:
    """Follows the work that is on its way to the device.

    `refuse` is called with the place of an array that was deleted; `check` with an observation that is ready and has
    results to check, and returns whether marks can be trusted.

    Attributes:
        lost: number of observations whose end will never be known.
        lengths: how long steps take on the device.
        gathers: short steps have marks of their own, one right after the other: look at them every ``GROUP`` ns.
        tasks: other work for this thread, to be done before it looks at the queue again.
    """

    def __init__(
        self,
        tracer: PhaseTracer,
        refuse: Callable[[tuple[int, int]], None],
        check: Callable[[Observation], bool],
    ) -> None:
        self._tracer = tracer
        self._clock = tracer.clock
        self._refuse = refuse
        self._check = check
        self.queue: deque[Observation] = deque()
        self.lost = 0
        self.lengths = StepLengths()
        self.gathers = False
        self.tasks: deque[Callable[[], None]] = deque()
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._idle = False  # waits until it is woken
        self._looking = False  # may have taken observations off the queue whose ends are not recorded yet
        self._polling = False  # the latest observation is the user's
        self._end = 0  # the latest known end of work on the device, ns
        self._glimpsed = 0  # ends in a row that the training thread saw
        self._dither = 0.5
        self._polled: Observation | None = None  # the observation that was polled last and was not ready
        self._next_glance = 0  # of the training thread at the front, ns

    @property
    def busy(self) -> bool:
        """Whether anything is in flight, or its end is not recorded yet."""
        return any(each.keys for each in tuple(self.queue)) or self._looking  # in this order: it looks before it takes

    # --- on the training thread ---------------------------------------------------------------------------------------

    def put(self, observation: Observation) -> None:
        """Follow `observation`."""
        if self._closing:
            self._give_up(observation)
            return
        self.queue.append(observation)
        self._start()
        self.marked()

    def marked(self) -> None:
        """Take note that the latest observation has got its mark."""
        self._next_glance = 0
        if self._idle and self.queue and self.queue[-1].mark is not None:
            self._news.set()

    def glance(self, now: int) -> None:
        """Look at the front from the training thread at `now` (ns): if it is ready, it ended no later than that."""
        queue = self.queue
        if not queue or now < self._next_glance:  # the usual case; the exception would cost more than all the rest
            return
        try:
            front = queue[0]
        except IndexError:
            return
        mark = front.mark
        if mark is None or front.ready_at:
            return
        if ready(mark):
            front.ready_at = now
        elif 0 < self.lengths.usual < GROUP:
            # Often right behind the mark, then ever less often: with each glance twice as much time has passed.
            self._next_glance = now + min(GLANCE, now - front.busy_at if front.busy_at else 0)
            front.busy_at = now

    def finish(self, observation: Observation, now: int) -> bool:
        """Record the end of what was ready as soon as dispatched; return False if others are before it."""
        if self.queue or self._looking:
            observation.ready_at = now
            return False
        begun = max(observation.start, self._end)
        self._record(observation, [max(begun, now)])
        if observation.phase == rules.STEP:
            self.lengths.add(self._end - begun)
        return True

    def work(self, task: Callable[[], None]) -> None:
        """Run `task` on the watching thread."""
        self.tasks.append(task)
        self._start()
        self.wake()

    def wake(self) -> None:
        """Wake the thread, because something about the queue has changed."""
        self._news.set()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="otel-goodput-device-clock", daemon=True)
            started(self._thread, "the ends of steps on the device are not observed")

    # --- watching -----------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        idle = 0
        while not self._closing:
            try:
                while self.tasks:
                    try:
                        self.tasks[0]()
                    finally:
                        self.tasks.popleft()  # only now: a task in `tasks` is not done yet
                newest = self._newest()
                self._looking = newest[0] > 0
                pause = self._look() if self._looking else None
            except Exception as error:
                contain("device clock", error)
                newest, pause = (0, None), LONGEST
            self._looking = False
            if pause is None and self._polling and idle < IDLE_LOOKS and 0 < self.lengths.shortest < GROUP:
                # Look again before a step that is dispatched meanwhile can be over: nobody has to wake this thread.
                idle += 1
                pause = max(SHORTEST, self.lengths.shortest * 3 // 4)
            elif pause is not None:
                idle = 0
            if pause is None or pause >= STALE:
                self._wait(newest)
            elif pause:
                time.sleep(pause / 1e9)

    def _newest(self) -> tuple[int, Any]:
        """Return the length of the queue, and the mark of its last observation."""
        try:
            return len(self.queue), self.queue[-1].mark
        except IndexError:
            return 0, None

    def _wait(self, before: tuple[int, Any]) -> None:
        """Wait until woken, at most a second; `before`: the queue when it was looked at, see :meth:`_newest`."""
        self._news.clear()
        self._idle = True
        now = self._newest()
        if now[0] <= before[0] and now[1] is before[1] and not self.tasks and not self._closing:
            self._news.wait(STALE / 1e9)
        self._idle = False

    def _look(self) -> int:
        """Look at the front of the queue; return how long to wait until the next look, ns."""
        queue = self.queue
        while len(queue) > IN_FLIGHT:
            self._give_up(queue.popleft())
        front, newest = queue[0], queue[-1]
        if not front.keys:  # all of its steps were given up
            if front is newest and front.mark is None:
                return STALE
            queue.popleft()
            return 0
        if not newest.announced:
            # The end of its span says so, too; but until then a checkpoint in the loop's body must not own its time.
            newest.announced = True
            self._tracer.jobs.append(ev.OBSERVED, newest.phase, 0, 0, newest.keys[0], ev.NO_STEP, newest.start)
        count, steps = self._group()
        if count <= 0:
            return self._without_a_mark(-count)
        target = queue[count - 1]
        answer = ready(target.mark)
        if answer is None:
            if target.own:  # the program has deleted all arrays, to free memory
                target.mark = None  # the step shares the next one's
            else:
                self.queue.remove(target)
                self._refuse(target.place)
                self._give_up(target)
            return 0
        polled, self._polled, self._polling = self._polled is target, target, not target.own
        now = self._clock()
        if answer:
            return self._ready(count, now, polled)
        target.busy_at = now
        begun, usual = max(front.start, self._end), self.lengths.usual
        gathered = front.start + GROUP - now
        if self.gathers and gathered > 0 and steps * usual < GROUP and count == len(queue):
            return gathered
        if now - begun > DEADLINE:
            self._give_up(queue.popleft())
            return 0
        expected = begun + usual * steps - now
        if not (target.exclusive and usual and expected < SOON) or self._closing:
            return self._next_poll(polled, begun, expected, now, count, steps)
        try:
            target.mark.block_until_ready()
        except Exception:
            if ready(target.mark) is None:  # deleted meanwhile: for the next look
                return 0
            raise
        target.busy_at = now = self._clock()
        return self._ready(count, now, True)

    def _group(self) -> tuple[int, int]:
        """Return how many observations at the front are watched as one, and how many steps these are.

        0: no mark has come yet. Negative: no mark will come for that many.
        """
        queue = self.queue
        usual = self.lengths.usual
        most = GROUP // usual if usual else 1
        marked = at = steps = in_group = 0
        phase = queue[0].phase
        for at in range(len(queue)):
            each = queue[at]
            if at and (each.phase != phase or phase != rules.STEP):
                return marked or -at, in_group  # another phase follows: none of these gets a mark any more
            steps += len(each.keys)
            if each.mark is not None:
                marked, in_group = at + 1, steps
                if steps >= most:
                    break
        return marked, in_group

    def _without_a_mark(self, count: int) -> int:
        """Handle a front without a mark; the first `count` will never get one. Return ns until the next look."""
        queue, usual = self.queue, self.lengths.usual
        for _ in range(count):
            self._give_up(queue.popleft())
        if count:
            return 0
        if self._clock() - queue[-1].starts[-1] <= STALE + usual:
            return STALE
        # Steps so short that they share a mark, and none came for a long time: assume the usual length. The last
        # observation stays in the queue: other steps may join it.
        for each in tuple(queue):
            if each.mark is not None:
                break
            if each is not queue[-1]:
                queue.popleft()
            if usual and each.phase == rules.STEP:
                ends = accumulate(tuple(each.starts), lambda free, start: max(start, free) + usual, initial=self._end)
                self._record(each, list(islice(ends, 1, None)))
            else:
                self._give_up(each)
        return 0

    def _next_poll(self, polled: bool, begun: int, expected: int, now: int, count: int, steps: int) -> int:
        """Return ns until the next poll of the front; `expected`: ns until it is over if it is as long as usual."""
        bracket, lengths = self._bracket(steps), self.lengths
        if not polled:
            if self._glimpsed >= GLIMPSED and expected > 0 and (self._glimpsed % VERIFIED or self._busy_behind(count)):
                self._polled = None  # the training thread is expected to see the end first
                return min(LONGEST, expected + bracket)
            # Vary where polls fall: if the true end were always at the same place between two of them, taking the
            # middle would always err to the same side.
            self._dither = (self._dither + GOLDEN) % 1
            earliest = max(lengths.shortest * 3 // 4, lengths.shortest - 2 * bracket)
            first = begun + lengths.usual * (steps - 1) + earliest - now
            return min(LONGEST, max(0, first) + round(bracket * (0.5 + self._dither)))
        if expected < -2 * bracket:
            return min(LONGEST, max(bracket, (now - begun) // LATE))
        return bracket

    def _bracket(self, steps: int) -> int:
        """Return ns between two polls around the expected end of so many `steps`."""
        return max(SHORTEST, min(LONGEST, self.lengths.usual * steps // COARSEST))

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _ready(self, count: int, now: int, polled: bool) -> int:
        """Record the end of the first `count`, which are ready at `now` (ns); `polled`: the last was polled before."""
        queue = self.queue
        target = queue[count - 1]
        if target.results and not self._check(target):
            return 0
        self._glimpsed = self._glimpsed + 1 if target.ready_at else 0
        if not (polled or target.ready_at):
            for at in range(count, len(queue)):  # others behind it may be ready, too
                each = queue[at]
                if not each.phase == target.phase == rules.STEP or (each.mark is not None and not ready(each.mark)):
                    break
                if each.mark is not None:
                    count = at + 1
            target = queue[count - 1]
            now = self._clock()
        end, measured = self._end_of(count, min(now, target.ready_at or now), polled)
        if end <= target.idle_by and target.ends:
            end = target.ends[-1]  # the device was idle; the mark's own latency is not work
        length = self._finish([queue.popleft() for _ in range(count)], end)
        if measured and target.phase == rules.STEP:
            self.lengths.add(length)
        return 0

    def _end_of(self, count: int, now: int, polled: bool) -> tuple[int, bool]:
        """Estimate when the first `count` ended, which were ready at `now` (ns).

        Returns: the end, ns; whether it was measured.
        """
        if self._glimpsed >= GLIMPSED:
            return now, True
        queue, typical = self.queue, self.lengths.usual
        target = queue[count - 1]
        steps = sum([len(queue[at].keys) for at in range(count)])  # iterating fails if a step is dispatched meanwhile
        begun = max(queue[0].start, self._end)
        before = max(begun, min(target.busy_at, now))
        usual = max(begun + typical * steps, target.starts[-1] + typical)  # the last one has begun, too
        likely = bool(typical) and target.phase == rules.STEP  # whether the usual length is a good guess
        if target.busy_at and now - before <= (2 * self._bracket(steps) if polled or not target.ready_at else GLANCE):
            return (before + now) // 2, True
        if not polled:
            # It was not polled in time. An end that is too late is made up for by a step behind it.
            if likely and not target.ready_at and usual < now and not self._busy_behind(count):
                return (usual, False) if before < usual else ((before + now) // 2, True)
            return now, True
        if likely and before < usual:
            if usual < now:
                return usual, True  # this thread was woken late
            if target.ready_at:
                return now, True  # the training thread saw it first: it may have waited for it
        return (before + now) // 2, True

    def _busy_behind(self, count: int) -> bool:
        """Return whether a step behind the first `count` is still on the device; it evens out an error in their end."""
        if len(self.queue) <= count or self.queue[count].phase != rules.STEP:
            return False
        mark = self.queue[count].mark
        return mark is None or not ready(mark)

    def _finish(self, observations: Sequence[Observation], end: int) -> int:
        """Record that `observations` left the device, the last at `end` (ns); return the length of a step, ns."""
        first, free, usual = observations[0], self._end, self.lengths.usual
        keys, starts, hosts = first.keys, first.starts, first.ends
        for each in observations[1:]:
            keys, starts, hosts = [*keys, *each.keys], [*starts, *each.starts], [*hosts, *each.ends]
        end = max(end, free, starts[0])
        if len(keys) == 1:
            begun = max(free, starts[0])
            self._record(first, [end])
            return end - begun
        if len(hosts) == len(keys) and end == hosts[-1] and free <= hosts[0]:
            lengths: list[int] = sorted(map(sub, hosts, starts))
            if 2 * lengths[0] >= usual:
                self._record_each(observations, hosts)  # the loop waits for each step
                return lengths[len(lengths) // 2]
        length, busy = divide(starts, free, end, usual)
        before = end - length if busy else min(end, last_end(starts[:-1], free, length))
        took = end - max(starts[-1], before)
        if successive(keys) and all(each.regular for each in observations):
            self._record_together(keys, starts, end, length, busy)
            starts = starts[:]  # those of an observation go when it is settled
            self._settle(
                observations, took, lambda: durations_of(starts, free, ends_of(starts, free, end, length, busy))
            )
        else:
            self._record_each(observations, ends_of(starts, free, end, length, busy))
        return took

    def _record_together(self, keys: Sequence[int], starts: Sequence[int], end: int, length: int, busy: bool) -> None:
        """Record when successive steps ended, the last at `end` (ns), each after that `length`; see :func:`divide`."""
        free, flags = self._end, BUSY if busy else 0
        for at in range(0, len(starts), MOST_ENDS):
            some = starts[at : at + MOST_ENDS]
            behind = len(starts) - at - len(some)
            free = min(end, last_end(some, free, length)) if behind and not busy else end - length * behind
            self._tracer.jobs.append(DEVICE_ENDS, len(some), flags, 0, keys[at], length, free)
        self._end = end

    @staticmethod
    def _settle(observations: Sequence[Observation], took: int, durations: Callable[[], list[int]]) -> None:
        """Settle observations with the `durations` of all their steps, of which the last one `took` that long, ns."""
        if len(observations) == 1:
            observations[0].settle(len(observations[0].keys), took, durations)
            return
        rest = iter(durations())
        for each in observations:
            own = list(islice(rest, len(each.keys)))
            each.settle(len(own), own[-1], own.copy)

    def _record(self, observation: Observation, ends: Sequence[int]) -> None:
        """Record when the first steps of `observation` ended, ns."""
        append, phase = self._tracer.jobs.append, observation.phase
        for key, end in zip(observation.keys, ends, strict=False):
            append(ev.DEVICE_END, phase, 0, 0, key, ev.NO_STEP, end)
        durations = durations_of(observation.starts, self._end, ends)
        self._end = ends[-1]
        observation.settle(len(durations), durations[-1], durations.copy)

    def _record_each(self, observations: Sequence[Observation], ends: Sequence[int]) -> None:
        """Record the ends of several steps one by one."""
        rest = iter(ends)
        for each in observations:
            own_ends = list(islice(rest, len(each.keys)))
            if each is not observations[-1] and not each.own and each.mark is not None and ready(each.mark) is None:
                self._refuse(each.place)
                self._give_up(each)
            else:
                self._record(each, own_ends)

    def _give_up(self, observation: Observation) -> None:
        keys = tuple(observation.keys)
        self.lost += len(keys)
        for key in keys:
            self._tracer.jobs.append(ev.UNOBSERVED, observation.phase, 0, 0, key, ev.NO_STEP, self._clock())
        observation.settle(len(keys), None, ([None] * len(keys)).copy)

    # --- the end ------------------------------------------------------------------------------------------------------

    def forget(self, *, marks_too: bool) -> None:
        """Give up observations without a mark, because none will come; `marks_too`: also those with a mark."""
        for observation in tuple(self.queue):
            if observation.mark is None or (marks_too and observation.own):
                self.queue.remove(observation)
                self._give_up(observation)

    def drain(self, seconds: float, *, tasks_only: bool = False) -> None:
        """Wait until `tasks` is empty, and unless `tasks_only` nothing is in flight either, `seconds` at most."""
        until, thread = time.monotonic() + seconds, self._thread
        while thread is not None and thread.is_alive() and time.monotonic() < until:
            if not self.tasks and (tasks_only or not self.busy):
                return
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
            self._give_up(self.queue.popleft())
