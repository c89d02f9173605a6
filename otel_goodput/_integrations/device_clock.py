"""Find out when work left the device. Dispatch is asynchronous, so the host's clock does not show it.

Automatically: where a step ends, or another phase that puts work on the device, the thread that dispatched the work
sets a mark behind it (see ``markers``). Manually: the user passes an output of the step. A background thread finds out
when each is ready (see ``watcher``). Marks are checked to become ready in order: nothing documents that what is
dispatched last is done last.

What a phase dispatches between two of its boundaries is a :class:`Segment`; the open ones are a stack. A phase that
begins marks the segment around it. A phase or load that ends is marked, and the segment around it goes on from then. A
short step that ends (:meth:`DeviceClock.join`) shares the next mark, set at the latest when another phase begins.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._integrations.async_runtimes import AsyncRuntimes
from otel_goodput._integrations.markers import CombinedMark, Mark, Marker, MarkingOrder, Outputs, ready
from otel_goodput._integrations.watcher import GLANCE, GROUP, Watcher
from otel_goodput._journal.records import signed
from otel_goodput._recording import misuse
from otel_goodput._recording.short_span import Observation, ShortSpan
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime.guard import contain, containing
from otel_goodput.semconv import FALLBACK_CLOCKS, ClockState, Phase

# Blocking phases that own the work they put on the device.
OWNERS: Final = frozenset(
    rules.PHASE_INDEX[phase]
    for phase in (
        Phase.STEP,
        Phase.CUSTOM,
        Phase.CHECKPOINT_SAVE,
        Phase.CHECKPOINT_RESTORE,
        Phase.TRAINING_PREP,
    )
)
DISPATCHED: Final = 10_000  # ns after the start of a segment within which nothing can have been dispatched
BACKFILLED: Final = 10_000_000  # ns; a phase reported this long after its start is reported as a whole, in retrospect
SHARERS: Final = 256  # steps at most that share a mark
PAUSE: Final = 4_000_000  # ns between two steps from which on each has a mark: the device may be idle meanwhile
PREPARING_S: Final = 1.0  # s to wait for markers to be prepared while nothing is training
POLLED: Final = 20_000_000  # ns between two looks for runtimes at the ends of steps, after the
POLLS: Final = 100  # first steps, which look each time
FAILURES: Final = 3  # failures to mark, after which all markers are dropped


@dataclass
class Segment:
    """What the open phase `key` has dispatched since `since` (ns); `cut`: the phase had segments before this one."""

    key: int
    phase: int
    since: int
    cut: bool = False


class DeviceClock:
    """Follows what the phases of one process put on its devices.

    Args:
        mode: ``auto``; ``observe``: without marks; ``host``: the user states that the host's clock is right.
        processes: how many take part in the job. With several, every step is marked: if timing decided which steps
            are, the processes would launch different sequences of computations.
        patience: s to wait, when the account is read after the job, for what is still on the device.

    Attributes:
        awake: something may be on a device. If not, steps and loads need not be reported to the clock.
        short_until, step: see :class:`~otel_goodput._recording.hooks.Device`.
    """

    def __init__(self, tracer: PhaseTracer, mode: str = "auto", processes: int = 1, patience: float = 10.0) -> None:
        self._tracer = tracer
        self._mode = mode
        self._patience = patience
        self._alike = processes > 1
        self._outputs = Outputs()
        self._watcher = Watcher(tracer, self._outputs.refuse, self._check)
        self._closed = False
        self._runtimes = AsyncRuntimes()
        self._finding = threading.Lock()
        self._polled_at = tracer.clock()  # when runtimes were looked for last, ns
        self._fallback = ClockState.HOST
        self._asleep = True  # no asynchronous runtime is in use or imported
        self.awake = False
        self.short_until = 0
        self.step: ShortSpan | None = None
        self._polls = POLLS
        self._awake_at = 0  # when it woke up, ns
        self._markers: list[Marker] = []
        self._order = MarkingOrder()
        self._failures = 0
        self._segments: list[Segment] = []  # one for each open phase, the innermost last
        self._marking_at = 0  # when the latest mark's dispatch began, ns
        self._shared_until = 0  # until when the next mark may be shared, ns
        self._sharers = 0  # steps that may share it, but for the last
        self._sharing = 0  # steps since the latest mark without one of their own
        self._ended = 0  # when the latest step ended on the host, ns
        self._pausing = False  # the latest step began long after the one before had ended
        self._missed = False  # the latest step or segment could not be marked
        self._job = 0
        self._compiled = 0  # end of the training thread's latest compilation, ns
        self._settled_by: float | None = None
        if mode == ClockState.HOST:
            self._fall_back(ClockState.HOST, self._polled_at)
        self.poll()
        # Only here: if a runtime is in use already, the first step should find its marker prepared.
        self._watcher.drain(PREPARING_S, tasks_only=True)

    @property
    def lost(self) -> int:
        """Number of observations whose end is unknown; they are accounted by another clock."""
        return self._watcher.lost

    @property
    def brief(self) -> bool:
        return bool(self._markers) and self._watcher.lengths.usual < GROUP

    def compiled(self, moment: int) -> None:
        self._compiled = moment
        self._shared_until = 0  # the step that waited for it gets a mark of its own

    # --- which runtimes there are -------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Look for asynchronous runtimes that have come into use."""
        if self._mode == ClockState.HOST or not self._finding.acquire(blocking=False):
            return
        try:
            now = self._tracer.clock()
            new = self._runtimes.poll()
            if new and self._fallback != ClockState.UNKNOWN:
                # It came into use at some time after the previous look.
                self._fall_back(ClockState.UNKNOWN, self._polled_at)
            if self._mode == "auto" and not self._order.wrong:
                for runtime in new:
                    marker = runtime.marker()
                    if marker is None:
                        self._tracer.misused.warn(misuse.UNSEEN_RUNTIME, runtime=runtime.name)
                    else:
                        self._markers.append(marker)
                self._prepare_again()
            self._polled_at = now
            if self._asleep:
                self._awake_at = now
            self._asleep = self._closed or self._mode != "auto" or not (self._markers or self._runtimes.imported)
            if not self._asleep:
                self._wake()
        except Exception as error:
            contain("asynchronous runtimes", error)
        finally:
            self._finding.release()

    def _wake(self) -> None:
        if not self.awake:
            self.awake = True
            self._tracer.hooks.changed()

    def _fall_back(self, state: str, moment: int) -> None:
        self._fallback = state
        self._tracer.jobs.append(ev.CLOCK, FALLBACK_CLOCKS.index(state), 0, 0, 0, ev.NO_STEP, moment)

    def _prepare_again(self) -> None:
        """Prepare markers that are not prepared, or no longer, because the runtime was cleared."""
        if not self._watcher.tasks and not all(marker.prepared for marker in self._markers):
            self._watcher.work(self._prepare)

    def _prepare(self) -> None:
        """Prepare markers, on the watching thread; drop those that cannot be prepared."""
        for marker in tuple(self._markers):
            prepared = False
            try:
                prepared = marker.prepared or marker.prepare()
            finally:
                if not prepared:
                    self._drop(marker)

    def _drop(self, marker: Marker) -> None:
        if marker in self._markers:
            self._markers.remove(marker)
            marker.close()
        if not self._markers:
            self._sharers = 0
            self._watcher.work(lambda: self._watcher.forget(marks_too=self._order.wrong))

    # --- phases, on the training thread -------------------------------------------------------------------------------

    def begin(self, key: int, phase: int, start: int) -> None:
        with containing("device clock"):
            step = phase == rules.STEP
            if not step:
                self.poll()
            if phase == rules.JOB:
                self._job = key
                self._segments.clear()
                self.step = None
            if self._asleep or phase not in OWNERS or not self._tracer.blocks(None):
                return
            if not step and abs(self._tracer.clock() - start) > BACKFILLED:
                return
            self._enter(start)
            if step:
                self._pausing = start - self._ended > PAUSE
                self._watcher.gathers = self._alike and not self._pausing
            else:
                self.short_until = 0
                if self._sharing:
                    self._close_shared()
            self._segments.append(Segment(key, phase, start))

    def end(self, key: int, end: int) -> None:
        with containing("device clock"):
            if key == self._job:
                self.poll()
                if self._watcher.tasks:
                    self._watcher.drain(PREPARING_S, tasks_only=True)
                self._close_shared()
            elif (segment := self._leave(key)) is not None:
                self._mark_segment(segment, end)

    def end_step(self, span: ShortSpan, end: int, *, begun: bool = True) -> Observation | None:
        observation = span.observation
        if self._asleep:
            return observation
        with containing("device clock"):
            if not self._markers and (self._polls or self._tracer.clock() - self._polled_at > POLLED):
                self._polls = max(0, self._polls - 1)
                self.poll()
            if self.step is span:
                self._open_segment(span)
            segment = self._leave(span.key)
            self._ended = end
            self.short_until = end + GLANCE if self._sharers and not self._segments else 0
            if not self._markers or not begun:
                return observation
            if observation is not None:
                self._sharing = 0
            elif segment is None:
                if span.start_time < self._awake_at and self._tracer.blocks(None):
                    return self._mark_step(span.key, span.start_time, end)
            elif segment.cut:
                self._mark_segment(segment, end)
            else:
                return self._mark_step(span.key, segment.since, end)
        return observation

    def join(self, span: ShortSpan, end: int) -> Observation | None:
        try:
            if (
                self.step is not span
                or self._sharing >= self._sharers
                or end >= self._shared_until
                or span.observation is not None
            ):
                return None
            self.step = None
            self._ended = end
            self.short_until = end + GLANCE
            shared = self._join(span.key, span.start_time, end)
            self._watcher.glance(end)
            return shared
        except Exception as error:
            contain("device clock", error)
            return None

    def load(self, start: int) -> None:
        if self._tracer.blocks(None):
            with containing("device clock"):
                self._enter(start)

    def loaded(self, end: int) -> None:
        if self._segments and self._tracer.blocks(None):
            self._segments[-1].since = end
        self._watcher.glance(end)

    def _open_segment(self, step: ShortSpan) -> None:
        """Open the segment of `step`, which `begin` was not called for."""
        self.step, self._pausing = None, False
        self._segments.append(Segment(step.key, rules.STEP, step.start_time))

    def _enter(self, now: int) -> None:
        """End the segment of the innermost phase at `now` (ns), where another phase begins inside it."""
        self._watcher.glance(now)
        if self.step is not None:
            self._open_segment(self.step)
        if self._segments:
            around = self._segments[-1]
            if self._markers and (self._alike or now - around.since > DISPATCHED):
                self._mark_segment(around, now)
            around.cut = True

    def _leave(self, key: int) -> Segment | None:
        """Close the phase `key`; return its last segment, None if not open. The phase around it gets a new one."""
        opened = tuple(self._segments)  # phases of other threads end here, too, and are not among them
        for at in range(len(opened) - 1, -1, -1):
            if opened[at].key == key:
                del self._segments[at:]
                if at:
                    self._segments[-1].since = self._tracer.clock()
                return opened[at]
        return None

    # --- marks --------------------------------------------------------------------------------------------------------

    def _mark_step(self, key: int, since: int, end: int) -> Observation:
        """Mark a step with a single segment; if it is short, a later step's mark may serve it, too."""
        shares = self._sharing < self._sharers and end < self._shared_until
        if shares and not self._pausing and not self._segments:
            return self._join(key, since, end)
        return self._follow(key, rules.STEP, since, end, self._set_mark())

    def _mark_segment(self, segment: Segment, end: int) -> None:
        mark = self._set_mark()
        if mark is None and (segment.phase != rules.STEP or not self._markers):
            self._missed = True
            return
        tracer = self._tracer
        key = tracer.new_key()
        tracer.jobs.append(ev.MARK, segment.phase, 0, 0, key, signed(segment.key), segment.since)
        self._follow(key, segment.phase, segment.since, end, mark)

    def _set_mark(self) -> Mark | None:
        if not self._markers:
            return None
        self._marking_at = self._tracer.clock()
        try:
            marks = [marker.mark() for marker in self._markers]
        except Exception as error:
            self._failures += 1
            if self._failures >= FAILURES:
                for marker in tuple(self._markers):
                    self._drop(marker)
            contain("device marker", error)
            return None
        if None in marks:
            self._prepare_again()
            return None
        return marks[0] if len(marks) == 1 else CombinedMark(marks)

    def _observation(self, key: int, phase: int, since: int, end: int) -> Observation:
        """Return the work that the phase `key` dispatched between `since` and `end` (ns), without a mark yet."""
        exclusive = len(self._markers) == 1 and self._markers[0].waits
        start = max(since, self._compiled)
        observation = Observation(key, phase, start, None, own=True, exclusive=exclusive, announced=True)
        observation.ends.append(end)
        observation.regular = start == since
        return observation

    def _join(self, key: int, since: int, end: int) -> Observation:
        """Have the step `key`, dispatched between `since` and `end` (ns), share the next mark."""
        self._sharing += 1
        last = self._open()
        if last is None:
            last = self._observation(key, rules.STEP, since, end)
            self._watcher.put(last)
        elif since >= self._compiled:
            last.join(key, since, end)
        else:
            last.join(key, self._compiled, end)
            last.regular = False
        return last

    def _open(self) -> Observation | None:
        """Return the steps that wait for a mark; None if there are none."""
        try:
            last = self._watcher.queue[-1]
        except IndexError:
            return None
        return last if last.mark is None and last.own and last.phase == rules.STEP else None

    def _follow(self, key: int, phase: int, since: int, end: int, mark: Mark | None) -> Observation:
        """Follow the work dispatched between `since` and `end` (ns), and with it the steps that wait for a mark.

        Without a mark, it joins those.
        """
        self._missed = mark is None
        if mark is None:
            return self._join(key, since, end)
        watcher, markers = self._watcher, self._markers
        shared = self._open() if phase == rules.STEP else None
        observation = self._observation(key, phase, since, end) if shared is None else self._join(key, since, end)
        self._sharing = 0
        if len(markers) == 1 and self._order.due(markers[0]):
            observation.results = markers[0].results()
        marked_at = self._tracer.clock()
        length = 0 if self._alike else watcher.lengths.known
        self._sharers = min(SHARERS, GROUP // length) - 1 if length else 0
        self._shared_until = marked_at + GROUP
        # A mark with no work in front of it becomes ready in about the time that it took to dispatch.
        observation.idle_by = 2 * marked_at - self._marking_at
        idle = ready(mark)  # the step waited for its work, or had none
        observation.busy_at, observation.ready_at = (0, end) if idle and shared is not None else (marked_at, 0)
        if idle and shared is None:
            observation.busy_at = 0
            observation.mark = mark
            if observation.results:
                self._check(observation)
            if observation.mark is None or not watcher.finish(observation, max(end, observation.start)):
                watcher.put(observation)
            return observation
        observation.mark = mark  # last: the watching thread looks at what has one
        if shared is None:
            watcher.put(observation)
        else:
            watcher.marked()
        return observation

    def _close_shared(self) -> None:
        """Set the shared mark of the latest steps now, because what follows is not their work."""
        self._sharing = 0
        last = self._open()
        if last is None or (mark := self._set_mark()) is None:
            return
        idle = ready(mark)
        if self._missed and idle:
            # They may have ended long ago.
            self._watcher.work(lambda: self._watcher.forget(marks_too=False))
            return
        last.busy_at, last.ready_at, last.idle_by = 0 if idle else self._marking_at, 0, 0
        last.mark = mark
        self._watcher.wake()

    def _check(self, observation: Observation) -> bool:
        """Check the order of marks with one that is ready; return whether it can be trusted.

        If it cannot, but the next ones may, the step shares the next one's mark.
        """
        results, observation.results = observation.results, ()
        if results and self._markers:
            in_order = self._order.check(results, self._markers[0])
            if self._order.wrong:
                self._fall_back(ClockState.UNKNOWN, self._tracer.clock())
                for marker in tuple(self._markers):
                    self._drop(marker)
                return False
            if not in_order and observation.phase == rules.STEP:
                observation.mark = None
                return False
        return not self._order.wrong

    # --- what users hand over -----------------------------------------------------------------------------------------

    def observe(self, span: ShortSpan, output: Any) -> None:
        """Watch `output`: when it is ready, the step of `span` has left the device."""
        if self._closed or span.observation is not None:
            return
        chosen = self._outputs.choose(output)
        if chosen is not None:
            self._wake()
            span.observation = Observation(span.key, rules.STEP, span.start_time, *chosen)
            self._watcher.put(span.observation)

    # --- the end ------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Before the account is read: once the job is over, wait `patience` s in all for what it left on the device."""
        job = self._tracer.traces.job_span
        if job is None or job.is_recording():
            self._settled_by = None
        elif self._watcher.busy:
            now = time.monotonic()
            if self._settled_by is None:
                self._settled_by = now + self._patience
            self._watcher.drain(self._settled_by - now)

    def close(self, seconds: float) -> None:
        """Wait for what is in flight, `seconds` at most; what is not ready then is accounted by another clock."""
        self._closed = self._asleep = True
        self.awake = False
        with containing("device clock"):
            self._close_shared()
        self._watcher.close(seconds)
        for marker in self._markers:
            marker.close()
