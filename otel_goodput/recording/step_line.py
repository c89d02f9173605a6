"""What steps, loads and parts are recorded with: where they go, what decides on them, and which of them are open."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from otel_goodput.accounting.events import NO_STEP
from otel_goodput.guard import contain, report_once
from otel_goodput.journal.account import Account
from otel_goodput.journal.records import INTERRUPTED, PARENT, signed
from otel_goodput.journal.thinning import Thinner
from otel_goodput.recording.admission import Admission
from otel_goodput.recording.attempt_traces import AttemptTraces
from otel_goodput.recording.emitter import SpanEmitter
from otel_goodput.recording.hooks import Hooks
from otel_goodput.recording.ids import PrivateIdGenerator
from otel_goodput.recording.job_spans import JobSpans
from otel_goodput.recording.job_thread import JobThread
from otel_goodput.recording.misuse import Misuse
from otel_goodput.recording.open_spans import OpenSpans
from otel_goodput.recording.short_span import ShortSpan
from otel_goodput.recording.step_policy import StepPolicy

# Of the fast spans those whose random id has none of these bits are timed, to estimate what we take of the thread.
TIMED: Final = 63
SAMPLED_ONE_IN: Final = TIMED + 1
LONGEST_SAMPLE: Final = 100_000  # ns
KEPT_BACK: Final = 16  # loads; more of them before the first step wait for none


class StepLine:
    """What one recorder's short spans share.

    Args:
        account: what is recorded goes there.
        thread: the job's.
        hooks: who is told.
        policy: which of them are exported.
        traces: where they hang.
        admission: which other phases are exported.
        spans: those that are open, of all kinds.
        emitter: takes those that are exported.
        jobs: through it records go to the account.
        misused: is told of wrong use.
        thinner: sums up the steps that are not exported.
        generator: makes span ids.
        find: gives what records by now; None: nothing does.

    Attributes:
        latest: the step begun, or restored, last.
        unsure: no step has begun since what may have gone on elsewhere.
        overhead: what recording took of the training thread, estimated, ns.
        handled: id of the exception that was being handled when the latest loop began.
        closed: nothing is recorded any more.
    """

    latest: ShortSpan

    def __init__(
        self,
        account: Account,
        thread: JobThread,
        hooks: Hooks,
        policy: StepPolicy,
        traces: AttemptTraces,
        admission: Admission,
        spans: OpenSpans,
        emitter: SpanEmitter,
        jobs: JobSpans,
        misused: Misuse,
        thinner: Thinner,
        generator: PrivateIdGenerator,
        find: Callable[[], StepLine | None],
    ) -> None:
        self.account = account
        self.clock = account.clock
        self.thread = thread
        self.blocks = thread.blocks
        self.hooks = hooks
        self.policy = policy
        self.traces = traces
        self.admission = admission
        self.spans = spans
        self.emitter = emitter
        self.jobs = jobs
        self.misused = misused
        self.thinner = thinner
        self.left_out = admission.left_out
        self.new_key = generator.new_span_id
        self.find = find
        self.unsure = traces.attempt > 0
        self.overhead = 0
        self.handled = 0
        self.closed = False
        self._loads: deque[tuple[ShortSpan, Callable[[], None]]] = deque()  # exported once their step is known
        self._restored: ShortSpan | None = None  # stands for the step restored latest

    # --- numbers ------------------------------------------------------------------------------------------------------

    def next_number(self) -> int:
        """The number of the next step where nobody says it: behind the one begun last, or restored since."""
        latest = self.latest
        return latest.step if latest.undone else latest.step + 1

    def load_number(self) -> int:
        """The step that a load is for which begins now: the one that is open, else the next.

        Where none has begun since a restore, its number is that of the step that will.
        """
        step = self.spans.step
        if step is not None:
            return step.step
        return NO_STEP if self.unsure else self.next_number()

    def go_back(self, number: int) -> None:
        """The step `number` begins, and it is none beyond the latest."""
        latest = self.latest
        if latest is not self._restored and not (latest.undone and latest.step == number):
            self.misused.back(number, latest.step)

    def stand_for_restored(self, step: ShortSpan) -> None:
        """The checkpoint of that step, which is not begun here, was restored."""
        self.latest = self._restored = step
        self.unsure = True

    def keep_back(self, load: ShortSpan, emit: Callable[[], None]) -> None:
        """A load is over whose step nobody knows yet: `emit` hands it to the exporters."""
        if len(self._loads) >= KEPT_BACK:
            self.number_loads(NO_STEP)
        self._loads.append((load, emit))

    def number_loads(self, number: int) -> None:
        """The step of the loads that were kept back begins; or none will."""
        self.unsure = self.unsure and number < 0
        while self._loads:
            try:
                load, emit = self._loads.popleft()
            except IndexError:  # another thread was quicker
                return
            load.renumber(number)
            emit()

    # --- begin and end ------------------------------------------------------------------------------------------------

    def announce(self, span: ShortSpan) -> None:
        """A span begins that will be exported: tell the journal its parent, and processors that want to know."""
        parent, traces = span.parent(), self.traces
        # What hangs on the root of its step's trace says so by its number.
        if parent is not None and parent.span_id != traces.job_key and not traces.volumes.is_root(parent, span.step):
            self.jobs.append(PARENT, 0, 0, 0, span.key, signed(parent.span_id), span.start_time)
        self.emitter.announce(span, span.within)

    def check_end(self, start: int, end: int) -> int:
        """The end of a phase (ns) that would end before its start."""
        report_once(
            "end before start", "a phase ends %.6f s before it starts; it counts with no length", (start - end) / 1e9
        )
        return start

    def end_inner(self, *, left: bool) -> None:
        """The job ends: so do the steps, loads and parts that are still open in it; `left`: by no exception."""
        now = self.clock()
        for span in reversed(list(self.spans.short.values())):
            if span.blocks:
                span.abandon(now, left=left and span.in_loop)
        self.number_loads(NO_STEP)

    def close_open(self) -> None:
        """End the spans that are open and mark them as interrupted."""
        for span in reversed(list(self.spans.short.values())):
            try:
                span.abandon(self.clock(), INTERRUPTED)
            except Exception as error:
                contain("closing open spans", error)

    def sample_overhead(self, took: int) -> None:
        """One of the timed entries or exits of fast spans took `took` ns; it stands for those that are not timed."""
        # What the scheduler or the interpreter's lock took meanwhile is not ours.
        self.overhead += min(took, LONGEST_SAMPLE) * SAMPLED_ONE_IN

    def close(self) -> None:
        """Record no more; whoever still holds this calls into nothing."""
        self.closed = True
        self.jobs.close()
        self.traces.close()
        self.hooks.close()
        self.emitter.close()
