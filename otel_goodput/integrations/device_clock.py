"""When a step left the device: dispatch is asynchronous, so the host's clock does not tell.

The user hands over an output of the step; a thread of ours asks it whether it is ready. It polls and never blocks on
it: a thread that waits inside jax when the interpreter ends aborts the process.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from itertools import takewhile
from operator import methodcaller, not_
from typing import Any, Final

from otel_goodput.accounting import events as ev
from otel_goodput.accounting import rules
from otel_goodput.guard import contain, report_once
from otel_goodput.spans.fast import FastSpan
from otel_goodput.spans.observation import Observation
from otel_goodput.spans.tracer import PhaseTracer

IN_FLIGHT: Final = 1024  # observed steps that may be on their way to the device
DEADLINE: Final = 600_000_000_000  # ns after which a step that does not become ready is taken by the host's clock
RECENT: Final = 16  # steps that tell how long the next one takes
SHORTEST: Final = 500_000  # ns between two looks at least
LONGEST: Final = 250_000_000  # ns between two looks at most
COARSEST: Final = 10  # a step's end is looked for in this part of its length at most
TOGETHER: Final = 20_000_000  # ns of steps that follow each other without a gap and are looked at as one
EARLIEST: Final = 5  # doublings of how much before its usual end a step is first asked
CALM: Final = 8  # steps after which they are asked less early again
LATE: Final = 16  # a late step is asked again after this part of the time it took so far
GOLDEN: Final = 0.618034
IDLE_LOOKS: Final = 20  # at an empty queue, before the training thread has to wake us
DRAIN_S: Final = 2.0  # for what is still in flight at the end
ALONE: Final = (1, 0)  # the place of an array that is no tree's
_QUESTIONS: Final = (methodcaller("is_deleted"), methodcaller("is_ready"))
_ask = methodcaller.__call__


class DeviceClock:
    """Follows the observed steps of one process.

    A wake-up costs tens of microseconds, more than all else here, so there are two for a step where steps are alike:
    one just before it is likely to end and one just after. Steps that are shorter than ``TOGETHER`` and all dispatched
    already leave the device without a gap: they share the two, and the time in equal parts.

    Attributes:
        lost: steps whose end on the device will never be known; they are accounted by the host's clock.
    """

    def __init__(self, tracer: PhaseTracer) -> None:
        self._tracer = tracer
        self._queue: deque[Observation] = deque()
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._places: dict[int, int] = {}  # how many leaves: which of them is observed
        self._donated: set[tuple[int, int]] = set()  # (how many leaves, which) that turned out to be donated
        self._recent: deque[int] = deque(maxlen=RECENT)  # ns on the device
        self._end = 0  # when the device was done with the latest step known, ns
        self._usual = self._shortest = 0  # ns on the device, of recent ones
        self._bracket = SHORTEST  # ns between the two looks that shall have a step's end between them
        self._dither = 0.5  # of it: where in the bracket the end is expected
        self._early = 2  # at first not much is known
        self._calm = 0  # steps in a row that were not over when first asked
        self._group = 0  # steps at the front of the queue that are looked at as one, 0: to be chosen
        self._asked = 0  # how often they have been asked
        self._before = 0  # when they were asked last and were not ready, ns
        self.lost = 0

    # --- on the training thread ---------------------------------------------------------------------------------------

    def observe(self, span: FastSpan, output: Any) -> None:
        """`output` is ready when the step of `span` has left the device."""
        if self._closing or span.observation is not None:
            return
        place = ALONE
        if not hasattr(output, "is_ready"):
            found = self._smallest(output)
            if found is None:
                report_once(
                    "observe",
                    "step.observe() was given %s, which holds no array of jax; the step counts by the host's clock",
                    type(output).__name__,
                )
                return
            output, place = found
        if output.is_deleted():
            self._refuse(place)
            return
        span.observation = observation = Observation(span.key, span.start_time, output, place)
        self._queue.append(observation)
        if self._thread is None:
            self._start()
        elif not self._news.is_set():
            self._news.set()

    def _smallest(self, tree: Any) -> tuple[Any, tuple[int, int]] | None:
        """The smallest array in `tree` that is not known to be donated; of several the last: results follow state."""
        jax = sys.modules.get("jax")
        if jax is None:
            return None
        leaves = jax.tree_util.tree_leaves(tree)
        count = len(leaves)
        known = self._places.get(count)
        if known is not None and hasattr(leaves[known], "is_ready"):
            return leaves[known], (count, known)
        arrays = [
            at for at, leaf in enumerate(leaves) if hasattr(leaf, "is_ready") and (count, at) not in self._donated
        ]
        if not arrays:
            return None
        best = min(reversed(arrays), key=lambda at: leaves[at].size)
        self._places[count] = best
        return leaves[best], (count, best)

    def _refuse(self, place: tuple[int, int]) -> None:
        self._donated.add(place)
        self._places.pop(place[0], None)
        report_once(
            "observe donated",
            "step.observe() was given an array that is donated to the next step, or deleted: hand over an output that "
            "nobody takes, such as the loss; until then steps count by the host's clock",
        )

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._loop, name="otel-goodput-device-clock", daemon=True)
        self._news.set()
        self._thread.start()

    # --- watching -----------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        idle = 0
        while not self._closing:
            if self._queue:
                idle = 0
                try:
                    pause = self._look()
                except Exception as error:
                    contain("device clock", error)
                    pause = LONGEST
            elif idle < IDLE_LOOKS:
                # A step that is dispatched meanwhile is not over when we look again.
                idle += 1
                pause = min(LONGEST, max(SHORTEST, self._first()))
            else:
                idle = pause = 0
                self._news.clear()
                if not self._queue:
                    self._news.wait()
            if pause:
                time.sleep(pause / 1e9)

    def _first(self) -> int:
        """How long after its begin a step is first asked, ns: where some are much shorter, before these are over."""
        before = round(self._bracket * self._dither)
        first = self._usual - (before << self._early)
        return min(first, self._shortest - before) if 4 * self._shortest < 3 * self._usual else first

    def _look(self) -> int:
        """Look at the steps at the front; returns how long to wait until the next look, ns."""
        queue = self._queue
        while len(queue) > IN_FLIGHT:
            self._lose(queue.popleft())
            self._group = 0
        newest = queue[-1]
        if not newest.told:
            # The end of its span will say so; until then a checkpoint in the loop's body shall not own its time.
            newest.told = True
            self._tracer.append(ev.OBSERVED, rules.STEP, 0, 0, newest.key, ev.NO_STEP, newest.start)
        if not self._group:
            self._group = max(1, min(len(queue), TOGETHER // (self._usual or TOGETHER)))
            self._asked = self._before = 0
        group = self._group
        last = queue[group - 1]
        ready = self._ready(last)
        if ready is None:
            del queue[group - 1]
            self._lose(last)
            self._group = 0
            return 0
        now = self._tracer.clock()
        begun = max(queue[0].start, self._end)
        if ready:
            self._learn()
            while len(queue) > group and self._ready(queue[group]):
                group += 1
            # They became ready since we asked before; if we did not, more likely shortly before than long before.
            since = self._before if self._asked else max(self._before, now - self._bracket // 2)
            self._tell(group, (now + max(begun, since)) // 2)
            return 0
        if now - begun > DEADLINE:
            self._lose(queue.popleft())
            self._group = 0
            return 0
        return self._wait(begun + self._usual * (group - 1), now)

    def _wait(self, begun: int, now: int) -> int:
        """Asked at `now`, a step that begins at `begun` was not ready; returns how long until it is asked again, ns."""
        self._before = now
        first = begun + self._first() - now
        if not self._asked and first > SHORTEST:
            return min(LONGEST, first)
        self._asked += 1
        bracket = self._bracket
        before = begun + self._usual - round(bracket * self._dither) - now
        if before > bracket:
            # Some steps are shorter: ask at half of what is left, then at half of that.
            return min(LONGEST, before // 2)
        after = before + bracket
        if after > bracket // 2:
            return after
        # A step that takes longer than usual is asked ever less often.
        return min(LONGEST, max(bracket, (now - begun) // LATE))

    def _learn(self) -> None:
        """Steps were found ready: what that says of when to ask the next ones."""
        self._calm += 1
        if not self._asked:
            self._early, self._calm = min(EARLIEST, self._early + 1), 0
        elif self._calm >= CALM:
            self._early, self._calm = max(0, self._early - 1), 0
        if self._asked:
            self._bracket = self._bracket * 15 // 16 if self._asked <= 1 + self._early else self._bracket * 5 // 4
        self._bracket = max(SHORTEST, min(self._bracket, LONGEST, self._usual // COARSEST))
        # The middle of a bracket that stood still over the true end would always err to the same side.
        self._dither = 0.25 + (self._dither - 0.25 + GOLDEN / 2) % 0.5

    def _ready(self, observation: Observation) -> bool | None:
        """Whether it has left the device; None: that cannot be known any more."""
        # jax crashes where a deleted array is asked whether it is ready, so nothing may come between the two questions:
        # no bytecode lies between them, where the interpreter could turn to the thread that deletes it.
        answers = tuple(takewhile(not_, map(_ask, _QUESTIONS, (observation.leaf,) * 2)))
        if answers:
            return len(answers) == 1
        self._refuse(observation.place)
        return None

    def _tell(self, count: int, end: int) -> None:
        """The first `count` in flight have left the device, the last of them at `end` (ns)."""
        self._group = 0
        for more in range(count, 0, -1):
            observation = self._queue.popleft()
            if more > 1 and self._ready(observation) is None:
                self._lose(observation)
                continue
            begun = max(observation.start, self._end)
            self._end = max(begun, begun + (end - begun) // more)
            duration = self._end - begun
            self._recent.append(duration)
            self._tracer.append(ev.DEVICE_END, rules.STEP, 0, 0, observation.key, ev.NO_STEP, self._end)
            observation.settle(duration)
        # Rather one that is too short: where they differ much, the short ones must not be missed.
        lengths = sorted(self._recent)
        self._usual, self._shortest = lengths[len(lengths) // 4] + self._bracket // 4, lengths[0]

    def _lose(self, observation: Observation) -> None:
        self.lost += 1
        tracer = self._tracer
        tracer.append(ev.UNOBSERVED, rules.STEP, 0, 0, observation.key, ev.NO_STEP, tracer.clock())
        observation.settle(None)

    # --- the end ------------------------------------------------------------------------------------------------------

    def close(self, seconds: float = DRAIN_S) -> None:
        """Wait for what is in flight, `seconds` at most; what is not ready then is accounted by the host's clock."""
        until = self._tracer.clock() + round(min(seconds, DRAIN_S) * 1e9)
        while self._queue and self._tracer.clock() < until and self._thread is not None and self._thread.is_alive():
            time.sleep(0.001)
        self._closing = True
        self._news.set()
        if self._thread is not None:
            self._thread.join(1.0)
        while self._queue:
            self._lose(self._queue.popleft())
