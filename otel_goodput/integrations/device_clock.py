"""When work left the device: dispatch is asynchronous, so the host's clock does not tell.

By itself: where a step ends, or another phase that puts work on the device, the thread that dispatched it sets a mark
behind it (see ``markers``). By hand: the user hands over an output of the step. A thread of ours learns when each is
ready (see ``watcher``).

What a phase dispatched between two of its boundaries is a *segment*. A phase that begins inside another one ends the
outer one's segment; a new one begins when it is over.

Longer than other files: what opens, cuts and marks a segment is one state.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final

from otel_goodput.accounting import events as ev
from otel_goodput.accounting import rules
from otel_goodput.guard import contain, report_once
from otel_goodput.integrations.async_runtimes import AsyncRuntime, AsyncRuntimes
from otel_goodput.integrations.markers import Mark, Marker, Together
from otel_goodput.integrations.marking_order import MarkingOrder
from otel_goodput.integrations.outputs import Outputs
from otel_goodput.integrations.watcher import TOGETHER, Watcher, ready
from otel_goodput.journal.records import signed
from otel_goodput.recording.observation import Observation
from otel_goodput.recording.short_span import ShortSpan
from otel_goodput.recording.tracer import PhaseTracer
from otel_goodput.semconv import FALLBACK_CLOCKS, ClockState, Phase

# Blocking phases whose work on the device is their own.
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
DISPATCHED: Final = 10_000  # ns after the begin of a segment in which nothing can have been dispatched
BACKFILLED: Final = 10_000_000  # ns: a phase that is told so far from its begin is told as a whole, with its times
SHARED: Final = 4_000_000  # ns on the device, and on the host, of steps that share a mark
SHARERS: Final = 64  # steps at most that share one
PREPARING_S: Final = 1.0  # for what marks need, while nothing is training yet
POLLED: Final = 20_000_000  # ns between two looks for a runtime where steps end, after the
POLLS: Final = 100  # first steps, of which each looks
FAILURES: Final = 3  # of a marker, then there is none


class Segment:
    """What the open phase `key` has dispatched since `since` (ns); `cut`: it has had others before."""

    __slots__ = ("cut", "key", "phase", "since")

    def __init__(self, key: int, phase: int, since: int) -> None:
        self.key = key
        self.phase = phase
        self.since = since
        self.cut = False


class DeviceClock:
    """Follows what the phases of one process put on its devices.

    Args:
        tracer: what records the phases.
        mode: ``auto``; ``observe``: without marks; ``host``: the host's clock is right, says the user.
        processes: how many take part in the job. With several, which steps are marked depends on nothing but their
            number, lest they launch different sequences: every one is.
        patience: seconds that a question after the job waits for what is still on the device.

    Attributes:
        awake: something may be on a device. Else nobody has to tell of steps and loads.
    """

    def __init__(
        self, tracer: PhaseTracer, mode: str = "auto", processes: int = 1, patience: float = 10.0
    ) -> None:
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
        self._asleep = True  # nothing here can be asynchronous
        self.awake = False
        self._polls = POLLS
        self._awake_at = 0  # when that was found out, ns
        self._markers: list[Marker] = []
        self._order = MarkingOrder()
        self._failures = 0
        self._segments: list[Segment] = []  # of the open phases, the innermost last
        self._marking_at = 0  # when the latest mark's dispatch began, ns
        self._marked_at = 0  # and when it was over
        self._sharing = 0  # steps since then that have no mark of their own
        self._missed = False  # the latest of them could not be marked
        self._job = 0
        self._compiled = 0  # when the training thread's latest compilation was over, ns
        self._settled_by: float | None = None
        if mode == ClockState.HOST:
            self._tell_fallback(ClockState.HOST, self._found_at)
        self.poll()
        # Later nobody waits: where a runtime is in use already, the first step shall not come too early for a mark.
        self._watcher.finish_tasks(PREPARING_S)

    @property
    def lost(self) -> int:
        """What left the device nobody knows when; it is accounted by another clock."""
        return self._watcher.lost

    @property
    def brief(self) -> bool:
        return bool(self._markers) and self._watcher.usual < TOGETHER

    def compiled(self, moment: int) -> None:
        self._compiled = moment

    # --- which runtimes there are -------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Look for asynchronous runtimes that have come into use."""
        if self._mode == ClockState.HOST or not self._finding.acquire(blocking=False):
            return
        try:
            now = self._tracer.clock()
            found = self._runtimes.found()
            if found and self._fallback != ClockState.UNKNOWN:
                # It came into use after we looked the last time.
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
            report_once(
                f"clock {runtime.name}",
                "%s works asynchronously and cannot be marked: steps that step.observe() is not called for have no "
                "known end; OTEL_GOODPUT_DEVICE_CLOCK=host if each of them waits for its result",
                runtime.name,
            )
            return
        self._markers.append(marker)

    def _prepare_anew(self) -> None:
        """See that marks can be set; what they need may have been cleared meanwhile."""
        if not self._watcher.tasks and not all(marker.prepared for marker in self._markers):
            self._watcher.work(self._prepare)

    def _prepare(self) -> None:
        """Make marks possible, on the watching thread."""
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
            self._watcher.work(lambda: self._watcher.forget(all_of_ours=self._order.wrong))

    # --- phases, on the training thread -------------------------------------------------------------------------------

    def begin(self, key: int, phase: int, start: int) -> None:
        try:
            if phase != rules.STEP:
                self.poll()
            if phase == rules.JOB:
                self._job = key
                self._segments.clear()
            if self._asleep or phase not in OWNERS or not self._tracer.thread.blocks(None):
                return
            if phase != rules.STEP and abs(self._tracer.clock() - start) > BACKFILLED:
                return
            self._watcher.pass_by(start)
            if self._segments:
                self._interrupt(start)
            if phase != rules.STEP and self._sharing:
                self._close_shared()
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
            segment = self._leave(span.key)
            if not self._markers or not begun:
                return observation
            if observation is not None:
                self._sharing = 0
            elif segment is None:
                if span.start_time < self._awake_at and self._tracer.thread.blocks(None):
                    return self._mark_step(span.key, span.start_time, end)
            elif segment.cut:
                self._mark_segment(segment, end)
            else:
                return self._mark_step(span.key, segment.since, end)
        except Exception as error:
            contain("device clock", error)
        return observation

    def load(self, start: int) -> None:
        if not self._tracer.thread.blocks(None):
            return
        self._watcher.pass_by(start)
        if self._segments:
            try:
                self._interrupt(start)
            except Exception as error:
                contain("device clock", error)

    def loaded(self, end: int) -> None:
        if self._segments and self._tracer.thread.blocks(None):
            self._segments[-1].since = end
        self._watcher.pass_by(end)

    def _interrupt(self, now: int) -> None:
        """Another phase begins inside the innermost one."""
        around = self._segments[-1]
        if self._markers and (self._alike or now - around.since > DISPATCHED):
            self._mark_segment(around, now)
        around.cut = True

    def _leave(self, key: int) -> Segment | None:
        """Of the phase `key`, if it is open, the last segment; that of the phase around it begins anew."""
        segments = self._segments
        found = tuple(segments)  # the phases of other threads end here, too, and find nothing
        for at in range(len(found) - 1, -1, -1):
            if found[at].key == key:
                del segments[at:]
                if at:
                    segments[-1].since = self._tracer.clock()
                return found[at]
        return None

    # --- marks --------------------------------------------------------------------------------------------------------

    def _mark_step(self, key: int, since: int, end: int) -> Observation:
        """Mark a step that is one segment; if it is short, the next mark may be its own, too."""
        leaf = None
        if not self._shares():
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

    def _shares(self) -> bool:
        """Whether a step that ends now may share the mark of one that follows."""
        return (
            not self._alike
            and self._sharing < SHARERS
            and 0 < (1 + self._sharing) * self._watcher.usual < SHARED
            and self._tracer.clock() - self._marked_at < SHARED
        )

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

    def _follow(self, key: int, phase: int, since: int, end: int, leaf: Mark | None) -> Observation:
        """Follow what was dispatched between `since` and `end` (ns)."""
        tracer, watcher, markers = self._tracer, self._watcher, self._markers
        waits = len(markers) == 1 and markers[0].waits
        observation = Observation(key, phase, max(since, self._compiled), leaf, ours=waits, told=True)
        if leaf is None:
            self._sharing += 1
            watcher.put(observation)
            return observation
        self._sharing = 0
        if self._order.due() and len(markers) == 1:
            observation.results = markers[0].results()
        self._marked_at = marked_at = tracer.clock()
        # A mark behind nothing takes as long on its way as it took to dispatch, give or take.
        observation.ended, observation.at_once = max(end, observation.start), 2 * marked_at - self._marking_at
        if leaf.is_ready():
            # The device was idle: the work was waited for in the step, or there was none.
            if observation.results:
                self._check(observation)
            if watcher.finish(observation, observation.ended):
                return observation
        watcher.put(observation)
        return observation

    def _close_shared(self) -> None:
        """Steps that share a mark get one now: what follows is not theirs."""
        try:
            last = self._watcher.queue[-1]
        except IndexError:
            return
        self._sharing = 0
        if last.leaf is not None or (leaf := self._mark()) is None:
            return
        if self._missed and leaf.is_ready():
            # They may have been over for long.
            self._watcher.work(lambda: self._watcher.forget(all_of_ours=False))
            return
        last.leaf = leaf
        self._watcher.wake()

    def _check(self, observation: Observation) -> bool:
        """A mark is ready: whether marks can be trusted."""
        results, observation.results = observation.results, ()
        if results and self._markers:
            self._order.check(results, ready, self._markers[0].widen)
            if self._order.wrong:
                self._tell_fallback(ClockState.UNKNOWN, self._tracer.clock())
                for marker in tuple(self._markers):
                    self._drop(marker)
                return False
        return not self._order.wrong

    # --- what users hand over -----------------------------------------------------------------------------------------

    def observe(self, span: ShortSpan, output: Any) -> None:
        """`output` is ready when the step of `span` has left the device."""
        if self._closed or span.observation is not None:
            return
        found = self._outputs.choose(output)
        if found is not None:
            self.awake = True
            span.observation = observation = Observation(span.key, rules.STEP, span.start_time, *found)
            self._watcher.put(observation)

    # --- the end ------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Somebody asks after the job: what it left on the device is waited for, a moment once. Never while it runs."""
        job = self._tracer.traces.job_span
        if job is None or job.is_recording():
            self._settled_by = None
        elif self._watcher.queue:
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
