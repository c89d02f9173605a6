"""When a step left the device: dispatch is asynchronous, so the host's clock does not tell.

The user hands over an output of the step; a thread of ours asks it whether it is ready. It polls and never blocks on
it: a thread that waits inside jax when the interpreter ends aborts the process.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from typing import Any, Final

from otel_goodput.accounting import events as ev
from otel_goodput.accounting import rules
from otel_goodput.accounting.stats import median
from otel_goodput.guard import contain, report_once
from otel_goodput.spans.fast import FastSpan, Observation
from otel_goodput.spans.tracer import PhaseTracer

IN_FLIGHT: Final = 1024  # observed steps that may be on their way to the device
DEADLINE: Final = 600_000_000_000  # ns after which a step that does not become ready is taken by the host's clock
RECENT: Final = 16  # steps that tell how long the next one takes
SHORTEST: Final = 500_000  # ns between two polls at least
LONGEST: Final = 100_000_000  # ns between two polls at most
SHARE: Final = 25  # a step is found ready within this part of its length
EARLIEST: Final = 5  # doublings of how much before its usual end a step is looked at first
DRAIN_S: Final = 2.0  # for what is still in flight at the end


class DeviceClock:
    """Follows the observed steps of one process.

    Attributes:
        lost: steps whose end on the device will never be known; they are accounted by the host's clock.
    """

    def __init__(self, tracer: PhaseTracer) -> None:
        self._tracer = tracer
        self._queue: deque[_Watched] = deque()
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._recent: deque[int] = deque(maxlen=RECENT)  # ns on the device
        self._end = 0  # when the device was done with the latest step known, ns
        self._donated: set[tuple[int, int]] = set()  # (how many leaves, which) that turned out to be donated
        self._usual = 0  # ns on the device
        self._fine = SHORTEST  # ns from one look to the next when a step is about to end
        self._early = 0
        self.lost = 0

    # --- on the training thread ---------------------------------------------------------------------------------------

    def observe(self, span: FastSpan, output: Any) -> None:
        """`output` is ready when the step of `span` has left the device."""
        if self._closing or span.observation is not None:
            return
        place = (1, 0)
        leaf = output
        if not hasattr(output, "is_ready"):
            found = self._smallest(output)
            if found is None:
                report_once(
                    "observe",
                    "step.observe() was given %s, which holds no array of jax; the step counts by the host's clock",
                    type(output).__name__,
                )
                return
            leaf, place = found
        if leaf.is_deleted():
            self._refuse()
            return
        observation = span.observation = Observation()
        now = self._tracer.clock()
        self._tracer.append(ev.OBSERVED, rules.STEP, 0, 0, span.key, ev.NO_STEP, now)
        self._queue.append(_Watched(span.key, leaf, place, span.start_time, observation))
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
        best: tuple[Any, tuple[int, int]] | None = None
        for at, leaf in enumerate(leaves):
            place = (len(leaves), at)
            if hasattr(leaf, "is_ready") and place not in self._donated and (best is None or leaf.size <= best[0].size):
                best = leaf, place
        return best

    def _refuse(self) -> None:
        report_once(
            "observe donated",
            "step.observe() was given an array that is donated to the next step, or deleted: hand over an output that "
            "nobody takes, such as the loss; until then steps count by the host's clock",
        )

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._loop, name="otel-goodput-device-clock", daemon=True)
        self._thread.start()

    # --- watching -----------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while not self._closing:
            if not self._queue:
                self._news.clear()
                if not self._queue:
                    self._news.wait()
                continue
            try:
                pause = self._look()
            except Exception as error:
                contain("device clock", error)
                pause = LONGEST
            if pause:
                time.sleep(pause / 1e9)

    def _look(self) -> int:
        """Look at the first step in flight; returns how long to wait until the next look, ns."""
        while len(self._queue) > IN_FLIGHT:
            self._lose(self._queue.popleft())
        watched = self._queue[0]
        clock = self._tracer.clock
        try:
            ready = watched.leaf.is_ready()
        except Exception:
            self._queue.popleft()
            self._donated.add(watched.place)
            self._refuse()
            self._lose(watched)
            return 0
        now = clock()
        begun = max(watched.start, self._end)
        fine = self._fine
        if ready:
            self._queue.popleft()
            if watched.looks:
                # Ready at the first look after its start: look earlier at the next one, until that is before its end.
                self._early = min(self._early + 1, EARLIEST) if watched.looks == 1 else 0
            # It became ready at some moment since the look before; after a long pause more likely late in it.
            self._tell(watched, max(begun, now - min(now - begun, watched.pause) // 2))
            return 0
        if now - begun > DEADLINE:
            self._queue.popleft()
            self._lose(watched)
            return 0
        watched.looks += 1
        margin = fine << self._early if watched.looks == 1 else fine
        left = self._usual - margin - (now - begun)
        if left > fine:
            return min(LONGEST, left)
        # A step that takes longer than usual is looked at ever less often.
        watched.pause = min(LONGEST, max(fine, watched.pause * 5 // 4))
        return watched.pause

    def _tell(self, watched: _Watched, end: int) -> None:
        duration = end - max(self._end, watched.start)
        self._end = end
        self._recent.append(duration)
        self._usual = median(list(self._recent))
        self._fine = min(LONGEST, max(SHORTEST, self._usual // SHARE))
        self._tracer.append(ev.DEVICE_END, rules.STEP, 0, 0, watched.key, ev.NO_STEP, end)
        watched.leaf = None
        watched.observation.settle(duration)

    def _lose(self, watched: _Watched) -> None:
        self.lost += 1
        self._tracer.append(ev.UNOBSERVED, rules.STEP, 0, 0, watched.key, ev.NO_STEP, self._tracer.clock())
        watched.leaf = None
        watched.observation.settle(None)

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


class _Watched:
    """A step on its way."""

    __slots__ = ("key", "leaf", "looks", "observation", "pause", "place", "start")

    def __init__(self, key: int, leaf: Any, place: tuple[int, int], start: int, observation: Observation) -> None:
        self.key = key
        self.leaf = leaf
        self.place = place
        self.start = start
        self.observation = observation
        self.looks = 0  # at it before it was ready
        self.pause = SHORTEST  # before the latest of them, if it was not the long one
