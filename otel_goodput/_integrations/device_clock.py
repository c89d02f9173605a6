"""Find out when work left the device. Dispatch is asynchronous, so the host's clock does not show it.

Automatically: where a step ends, or another phase that puts work on the device, the thread that dispatched the work
sets a mark behind it (see ``markers``). Manually: the user passes an output of the step. A thread of ours finds out
when each is ready (see ``watcher``).

What a phase dispatches between two of its boundaries is a *segment*. A phase that begins inside another one ends the
outer one's segment; a new one begins when the inner phase is over.

Marks are checked to become ready in order: nothing documents that what is dispatched last is done last.

Longer than other files: what opens, cuts and marks a segment is one state.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from otel_goodput._accounting import events as ev
from otel_goodput._accounting import rules
from otel_goodput._integrations.async_runtimes import AsyncRuntime, AsyncRuntimes
from otel_goodput._integrations.markers import Mark, Marker, Together
from otel_goodput._integrations.outputs import Outputs
from otel_goodput._integrations.watcher import LOOK, TOGETHER, Watcher, ready
from otel_goodput._journal.records import signed
from otel_goodput._recording.observation import Observation
from otel_goodput._recording.short_span import ShortSpan
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._runtime.guard import contain
from otel_goodput._text.redact import redacting_logger
from otel_goodput.semconv import FALLBACK_CLOCKS, ClockState, Phase

logger = redacting_logger("otel_goodput")

FIRST: Final = 3  # marks checked at the beginning
EVERY: Final = 1000  # of later marks, one in this many is checked;
OFTEN: Final = 4  # one in so many, if the marker is in doubt
TWICE: Final = 2  # checks in a row with most results late; a single one may be due to a transfer for a later step


class MarkingOrder:
    """Checks some marks against results of the work before them.

    Attributes:
        wrong: marks became ready before the work in front of them, so they cannot be trusted.
    """

    def __init__(self) -> None:
        self._set = 0
        self._bad = 0
        self.wrong = False

    def due(self, *, doubtful: bool) -> bool:
        """Count a mark that was set; return whether it is to be checked."""
        self._set = count = self._set + 1
        return count <= FIRST or not count % (OFTEN if doubtful else EVERY) or 0 < self._bad < TWICE

    def check(
        self,
        results: Sequence[Any],
        ready: Callable[[Any], bool | None],
        retarget: Callable[[Sequence[Any]], bool],
    ) -> bool:
        """Check that `results` are ready, now that the mark behind them is; return False if the mark tells nothing.

        If some are late, `retarget` is asked to mark more. If it does not, and most were late in ``TWICE``
        checks in a row, marks are `wrong` for good.
        """
        answers = [(result, answer) for result in results if (answer := ready(result)) is not None]
        late = [result for result, answer in answers if not answer]
        if late and retarget(late):
            self._bad = 0
            return False
        self._bad = self._bad + 1 if 2 * len(late) > len(answers) else 0
        if self._bad >= TWICE and not self.wrong:
            self.wrong = True
            logger.warning(
                "marks became ready before the work dispatched ahead of them: this backend does not run work in "
                "order, so the device times of steps are unknown from now on; pass a result of each step to "
                "goodput.observe()"
            )
        return not self.wrong


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


class Segment:
    """What the open phase `key` has dispatched since `since` (ns); `cut`: the phase had segments before this one."""

    __slots__ = ("cut", "key", "phase", "since")

    def __init__(self, key: int, phase: int, since: int) -> None:
        self.key = key
        self.phase = phase
        self.since = since
        self.cut = False


class DeviceClock:
    """Follows what the phases of one process put on its devices.

    Args:
        tracer: records the phases.
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
        self._found_at = tracer.clock()  # when runtimes were looked for last, ns
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
            self._tell_fallback(ClockState.HOST, self._found_at)
        self.poll()
        # Only here: if a runtime is in use already, the first step should find its marker prepared.
        self._watcher.finish_tasks(PREPARING_S)

    @property
    def lost(self) -> int:
        """Number of observations whose end is unknown; they are accounted by another clock."""
        return self._watcher.lost

    @property
    def brief(self) -> bool:
        return bool(self._markers) and self._watcher.usual < TOGETHER

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
            found = self._runtimes.found()
            if found and self._fallback != ClockState.UNKNOWN:
                # It came into use at some time after the previous look.
                self._tell_fallback(ClockState.UNKNOWN, self._found_at)
            if self._mode == "auto" and not self._order.wrong:
                for runtime in found:
                    self._take_up(runtime)
                self._prepare_anew()
            self._found_at = now
            if self._asleep:
                self._awake_at = now
            self._asleep = self._closed or self._mode != "auto" or not (self._markers or self._runtimes.imported)
            self.awake = self.awake or not self._asleep
        except Exception as error:
            contain("asynchronous runtimes", error)
        finally:
            self._finding.release()

    def _tell_fallback(self, state: str, moment: int) -> None:
        self._fallback = state
        self._tracer.jobs.append(ev.CLOCK, FALLBACK_CLOCKS.index(state), 0, 0, 0, ev.NO_STEP, moment)

    def _take_up(self, runtime: AsyncRuntime) -> None:
        marker = runtime.marker()
        if marker is None:
            self._tracer.misused.unmarked(runtime.name)
            return
        self._markers.append(marker)

    def _prepare_anew(self) -> None:
        """Prepare markers that are not prepared, or no longer, because the runtime was cleared."""
        if not self._watcher.tasks and not all(marker.prepared for marker in self._markers):
            self._watcher.work(self._prepare)

    def _prepare(self) -> None:
        """Prepare markers, on the watching thread; drop those that cannot be prepared."""
        for marker in tuple(self._markers):
            if marker.prepared:
                continue
            prepared = False
            try:
                prepared = marker.prepare()
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
        try:
            if phase != rules.STEP:
                self.poll()
            if phase == rules.JOB:
                self._job = key
                self._segments.clear()
                self.step = None
            if self._asleep or phase not in OWNERS or not self._tracer.blocks(None):
                return
            if phase != rules.STEP and abs(self._tracer.clock() - start) > BACKFILLED:
                return
            self._watcher.pass_by(start)
            if self.step is not None:
                self._open_segment(self.step)
            if self._segments:
                self._interrupt(start)
            if phase != rules.STEP:
                self.short_until = 0
                if self._sharing:
                    self._close_shared()
            if phase == rules.STEP:
                self._pausing = start - self._ended > PAUSE
                self._watcher.gathers = self._alike and not self._pausing
            self._segments.append(Segment(key, phase, start))
        except Exception as error:
            contain("device clock", error)

    def end(self, key: int, end: int) -> None:
        try:
            if key == self._job:
                self.poll()
                if self._watcher.tasks:
                    self._watcher.finish_tasks(PREPARING_S)
                self._close_shared()
            elif (segment := self._leave(key)) is not None:
                self._mark_segment(segment, end)
        except Exception as error:
            contain("device clock", error)

    def end_step(self, span: ShortSpan, end: int, *, begun: bool = True) -> Observation | None:
        observation = span.observation
        if self._asleep:
            return observation
        try:
            if not self._markers and (self._polls or self._tracer.clock() - self._found_at > POLLED):
                self._polls = max(0, self._polls - 1)
                self.poll()
            if self.step is span:
                self._open_segment(span)
            segment = self._leave(span.key)
            self._ended = end
            self.short_until = end + LOOK if self._sharers and not self._segments else 0
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
        except Exception as error:
            contain("device clock", error)
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
            self.short_until = end + LOOK
            shared = self._join(span.key, span.start_time, end)
            self._watcher.pass_by(end)
            return shared
        except Exception as error:
            contain("device clock", error)
            return None

    def load(self, start: int) -> None:
        if not self._tracer.blocks(None):
            return
        self._watcher.pass_by(start)
        if self.step is not None:
            self._open_segment(self.step)
        if self._segments:
            try:
                self._interrupt(start)
            except Exception as error:
                contain("device clock", error)

    def loaded(self, end: int) -> None:
        if self._segments and self._tracer.blocks(None):
            self._segments[-1].since = end
        self._watcher.pass_by(end)

    def _open_segment(self, step: ShortSpan) -> None:
        """Open the segment of `step`, which `begin` was not called for."""
        self.step, self._pausing = None, False
        self._segments.append(Segment(step.key, rules.STEP, step.start_time))

    def _interrupt(self, now: int) -> None:
        """End the segment of the innermost phase at `now` (ns), where another phase begins inside it."""
        around = self._segments[-1]
        if self._markers and (self._alike or now - around.since > DISPATCHED):
            self._mark_segment(around, now)
        around.cut = True

    def _leave(self, key: int) -> Segment | None:
        """Close the phase `key`; return its last segment, None if not open. The phase around it gets a new one."""
        segments = self._segments
        if len(segments) == 1 and segments[0].key == key:
            return segments.pop()
        found = tuple(segments)  # phases of other threads end here, too, and are not found
        for at in range(len(found) - 1, -1, -1):
            if found[at].key == key:
                del segments[at:]
                if at:
                    segments[-1].since = self._tracer.clock()
                return found[at]
        return None

    # --- marks --------------------------------------------------------------------------------------------------------

    def _mark_step(self, key: int, since: int, end: int) -> Observation:
        """Mark a step with a single segment; if it is short, a later step's mark may serve it, too."""
        shares = self._sharing < self._sharers and end < self._shared_until
        if shares and not self._pausing and not self._segments:
            return self._join(key, since, end)
        leaf = self._mark()
        self._missed = leaf is None
        return self._follow(key, rules.STEP, since, end, leaf)

    def _mark_segment(self, segment: Segment, end: int) -> None:
        leaf = self._mark()
        self._missed = leaf is None
        if leaf is None and (segment.phase != rules.STEP or not self._markers):
            return
        tracer = self._tracer
        key = tracer.new_key()
        tracer.jobs.append(ev.MARK, segment.phase, 0, 0, key, signed(segment.key), segment.since)
        self._follow(key, segment.phase, segment.since, end, leaf)

    def _mark(self) -> Mark | None:
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
            self._prepare_anew()
            return None
        return marks[0] if len(marks) == 1 else Together([mark for mark in marks if mark is not None])

    def _join(self, key: int, since: int, end: int) -> Observation:
        """Have the step `key`, dispatched between `since` and `end` (ns), share the next mark."""
        start = since if since > self._compiled else self._compiled
        self._sharing += 1
        last = self._open()
        if last is not None:
            last.join(key, start, end)
        else:
            waits = len(self._markers) == 1 and self._markers[0].waits
            last = Observation(key, rules.STEP, start, None, marked=True, ours=waits, announced=True)
            last.ends.append(end)
            self._watcher.put(last)
        if start > since:
            last.regular = False
        return last

    def _open(self) -> Observation | None:
        """Return the steps that wait for a mark; None if there are none."""
        try:
            last = self._watcher.queue[-1]
        except IndexError:
            return None
        return last if last.leaf is None and last.marked and last.phase == rules.STEP else None

    def _follow(self, key: int, phase: int, since: int, end: int, leaf: Mark | None) -> Observation:
        """Follow the work dispatched between `since` and `end` (ns), and with it the steps that wait for a mark."""
        if leaf is None:
            return self._join(key, since, end)
        tracer, watcher, markers = self._tracer, self._watcher, self._markers
        shared = self._open() if phase == rules.STEP else None
        if shared is not None:
            self._join(key, since, end)
            observation = shared
        else:
            waits = len(markers) == 1 and markers[0].waits
            observation = Observation(
                key, phase, max(since, self._compiled), None, marked=True, ours=waits, announced=True
            )
            observation.ends.append(end)
        self._sharing = 0
        if len(markers) == 1 and self._order.due(doubtful=markers[0].doubtful):
            observation.results = markers[0].results()
        marked_at = tracer.clock()
        length = 0 if self._alike else watcher.length
        self._sharers = min(SHARERS, TOGETHER // length) - 1 if length else 0
        self._shared_until = marked_at + TOGETHER
        # A mark with no work in front of it becomes ready in about the time that it took to dispatch.
        observation.at_once, observation.before, observation.by = 2 * marked_at - self._marking_at, 0, 0
        idle = ready(leaf)  # the step waited for its work, or had none
        if not idle:
            observation.before = marked_at
        elif shared is not None:
            observation.by = end
        else:
            observation.leaf = leaf
            if observation.results:
                self._check(observation)
            if observation.leaf is not None and watcher.finish(observation, max(end, observation.start)):
                return observation
            watcher.put(observation)
            return observation
        observation.leaf = leaf  # last: the watching thread looks at what has one
        if shared is None:
            watcher.put(observation)
        else:
            watcher.marked()
        return observation

    def _close_shared(self) -> None:
        """Set the shared mark of the latest steps now, because what follows is not their work."""
        self._sharing = 0
        last = self._open()
        if last is None or (leaf := self._mark()) is None:
            return
        idle = ready(leaf)
        if self._missed and idle:
            # They may have ended long ago.
            self._watcher.work(lambda: self._watcher.forget(marks_too=False))
            return
        last.before, last.by, last.at_once = 0 if idle else self._marking_at, 0, 0
        last.leaf = leaf
        self._watcher.wake()

    def _check(self, observation: Observation) -> bool:
        """Check the order of marks with one that is ready; return whether it can be trusted.

        If it cannot, but the next ones may, the step shares the next one's mark.
        """
        results, observation.results = observation.results, ()
        if results and self._markers:
            told = self._order.check(results, ready, self._markers[0].retarget)
            if self._order.wrong:
                self._tell_fallback(ClockState.UNKNOWN, self._tracer.clock())
                for marker in tuple(self._markers):
                    self._drop(marker)
                return False
            if not told and observation.phase == rules.STEP:
                observation.leaf = None
                return False
        return not self._order.wrong

    # --- what users hand over -----------------------------------------------------------------------------------------

    def observe(self, span: ShortSpan, output: Any) -> None:
        """Watch `output`: when it is ready, the step of `span` has left the device."""
        if self._closed or span.observation is not None:
            return
        found = self._outputs.choose(output)
        if found is not None:
            self.awake = True
            span.observation = observation = Observation(span.key, rules.STEP, span.start_time, *found)
            self._watcher.put(observation)

    # --- the end ------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Before the account is read: once the job is over, wait `patience` s in all for what it left on the device."""
        job = self._tracer.job_span
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
        try:
            self._close_shared()
        except Exception as error:
            contain("device clock", error)
        self._watcher.close(seconds)
        for marker in self._markers:
            marker.close()
