"""The state that everything shares that records phases of one job, and the policy of which steps are exported."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from opentelemetry.trace import SpanContext

from otel_goodput._accounting.events import LOOP, NO_STEP
from otel_goodput._accounting.resuming import LABELS, Past
from otel_goodput._accounting.rules import STEP
from otel_goodput._journal.account import Account
from otel_goodput._journal.records import INTERRUPTED, PARENT, signed
from otel_goodput._journal.thinning import SUMMARY, Thinner
from otel_goodput._recording import misuse
from otel_goodput._recording.emitter import LONGEST_WAIT_S, SpanEmitter
from otel_goodput._recording.hooks import Hooks
from otel_goodput._recording.misuse import Misuse
from otel_goodput._recording.nesting import Nested, Place, current_span, innermost, leave, runtime_context
from otel_goodput._recording.open_spans import OpenSpans, in_event_loop
from otel_goodput._recording.sampling import Admission, StepSampler
from otel_goodput._recording.short_span import ShortSpan, alive
from otel_goodput._recording.span_processor import JobSpans
from otel_goodput._recording.trace_layout import NOTABLE, ROUTINE, VITAL
from otel_goodput._runtime.guard import contain, report_once
from otel_goodput.semconv import PHASES

# Fast spans whose random id has none of these bits set are timed, to estimate our overhead on the training thread.
TIMED: Final = 63
SAMPLED_ONE_IN: Final = TIMED + 1
LONGEST_SAMPLE: Final = 100_000  # ns
MOST_STEPS: Final = 100_000  # maximum number of steps in a summary
MOST_LOOPS: Final = 1_000  # places in a program that begin loops; further ones are taken for one
KEPT_BACK: Final = 16  # data loads held until their step is known; if there are more, they are exported without it

# A decision is one of the first three, possibly combined with SLOW.
THINNED: Final = 0  # not exported; a step is counted in a summary
SAMPLED: Final = 1  # exported whatever happens in it
KEPT: Final = 2  # exported because of what happened in it
SLOW: Final = 4  # it took far longer than the steps before it
EXPORTED: Final = SAMPLED | KEPT


class StepPolicy:
    """Decides which steps, loads and parts of one recorder are exported.

    Args:
        sampler: decides which steps are sampled.
        admission: limits the loads and parts, and the spans in each trace.
        own_traces: each step has a trace of its own, which always has room for it.

    Attributes:
        detailed: this process exports single steps.
        take: reserves room for one more span in a trace, by its id and the span's worth.
    """

    def __init__(self, sampler: StepSampler, admission: Admission, *, own_traces: bool) -> None:
        self.sampler = sampler
        self._admission = admission
        self.take = admission.budget.take
        self.detailed = admission.budget.detailed or own_traces

    def at_begin(self, span: ShortSpan, step: ShortSpan | None, latest: ShortSpan) -> int:
        """Return ``SAMPLED`` or ``THINNED`` for a span that begins while `step` is open (a step: itself).

        A load or part is sampled if its step is, unless there are too many of them; its `gate` is then set. A load
        without an open step counts as one after the `latest`.
        """
        if step is span:
            sampled = self.sample(span.step)
        elif not (self.would_sample(span.step) if step is None else step.sampled):
            return THINNED
        else:
            span.gate = self._admission.crowds(step or latest, PHASES[span.phase], span.title)
            sampled = span.gate is None
        return SAMPLED if sampled and self.claim(span) else THINNED

    def at_end(self, span: ShortSpan, duration: int, *, failed: bool) -> int:
        """Return the decision on a span that took `duration` ns; for ``KEPT``, room in its trace has been reserved."""
        slow = SLOW if span.phase == STEP and not failed and self.sampler.slow(duration) else 0
        if span.sampled:
            return SAMPLED | slow
        if (failed or slow) and self.claim(span, VITAL if failed else NOTABLE):
            return KEPT | slow
        return slow

    def sample(self, number: int) -> bool:
        """Count a step that begins; return whether it is exported whatever happens in it, if there is room for it."""
        return self.sampler.take(number) and self.detailed

    def would_sample(self, number: int) -> bool:
        """Return whether step `number` would be, if it began now."""
        return self.detailed and self.sampler.would_take(number)

    def claim(self, span: ShortSpan, worth: int = ROUTINE) -> bool:
        """Reserve room for an open span that is exported; return False if its trace has none."""
        return self.affords(span.parent, worth)

    def affords_slow(self, step: ShortSpan) -> bool:
        """Have `step`, which was slow, exported if there is room for it in its trace; return whether there is."""
        if not self.claim(step, NOTABLE):
            return False
        step.keep(paid=True)
        return True

    def affords(self, parent: SpanContext | None, worth: int = ROUTINE) -> bool:
        """Reserve room for a span with this parent; return False if its trace has none. A root always has room."""
        return parent is None or self.take(parent.trace_id, worth)

    def spend(self, span: ShortSpan) -> None:
        """Count a span that is exported after all, because a span inside it is."""
        parent = span.parent
        if parent is not None:
            self._admission.budget.spend(parent.trace_id)


class CheckpointLabels:
    """The labels of the checkpoints that the run has saved; the account follows the same rules (R4).

    `moved`: a checkpoint was restored that says which step is the next.
    """

    def __init__(self, past: Past) -> None:
        self._past = past
        self._done = dict(past.labels)  # label -> last step that was done when the save began
        self._own = False  # the latest restored checkpoint is one of these
        self.moved = False

    def save(self, label: int, done: int) -> None:
        """Note that the checkpoint `label` stands for the steps up to `done`."""
        if done >= 0:
            self._done[label] = done
            if len(self._done) > LABELS:
                del self._done[next(iter(self._done))]

    def restore(self, label: int, latest: int, *, again: bool) -> int | None:
        """Return the last step that the restored checkpoint `label` stands for; None if it moves nothing.

        `latest` is the step that began last in this process. `again`: none has begun since the restore before.
        """
        own = label in self._done
        reached = max(self._past.reached, latest)
        if not own and ((again and self._own) or 0 <= reached < label):
            return None
        self._own = own
        self.moved = True
        return self._done.get(label, label)

    def begins_anew(self, number: int) -> bool:
        """Whether the first step, `number`, repeats the run from its start, although a checkpoint is durable."""
        return not self.moved and number <= self._past.safe and number <= max(0, self._past.first)

    @property
    def durable(self) -> tuple[int, int]:
        """The label of the run's durable checkpoint when this attempt began, and the last step it stands for."""
        safe = self._past.safe
        return next((label for label, done in reversed(self._done.items()) if done == safe), safe), safe


class StepLine:
    """What the steps, loads, parts and compilations of one recorder share, and the tracer that opens them.

    Args:
        account: receives the records.
        hooks: the callbacks.
        policy: decides which steps, loads and parts are exported.
        spans: the open spans of all kinds.
        emitter: exports spans.
        jobs: passes the records to the account, and begins implicit jobs.
        misused: warns of wrong use.
        new_key: returns a new span id.
        find: returns what records now; None if nothing does.
        labels: which steps checkpoints stand for.

    Attributes:
        thread: the job's thread.
        nesting: how phases and the spans of others are nested.
        place: where the latest span was opened.
        current, attach: return OpenTelemetry's context, and set it.
        admission: decides which other phases are exported.
        traces: chooses traces and parents.
        thinner: summarizes the steps that are not exported.
        latest: the step that began, or was restored, last.
        unsure: no step has begun since a restart or a restore, so the next step's number is not known.
        overhead: estimated time that recording took on the training thread, ns.
        slow_passes: number of loops whose iterator took a while to begin.
        handled: id of the exception that was being handled when the latest loop began.
        closed: recording has stopped.
    """

    latest: ShortSpan

    def __init__(
        self,
        account: Account,
        hooks: Hooks,
        policy: StepPolicy,
        spans: OpenSpans,
        emitter: SpanEmitter,
        jobs: JobSpans,
        misused: Misuse,
        new_key: Callable[[], int],
        find: Callable[[], StepLine | None],
        labels: CheckpointLabels,
    ) -> None:
        self.account = account
        self.clock = account.clock
        self.thread = spans.thread
        self.blocks = spans.thread.blocks
        self.hooks = hooks
        hooks.at_change(spans.thread.change)
        self.policy = policy
        self.traces = traces = spans.traces
        self.admission = admission = spans.admission
        self.spans = spans
        self.nesting = spans.nesting
        self.place = Place()
        self.current, self.attach = runtime_context()
        self.emitter = emitter
        self.jobs = jobs
        self.misused = misused
        # As many steps in a summary as the traces have room for.
        steps = admission.layout.steps
        self.thinner = Thinner(max(SUMMARY, min(-(-steps // admission.budget.summaries()), MOST_STEPS)), steps)
        self.left_out = admission.left_out
        self.new_key = new_key
        self.find = find
        self.labels = labels
        self.unsure = traces.attempt > 0
        self.overhead = 0
        self.slow_passes = 0
        self.handled = 0
        self.closed = False
        traces.record_layout(self.thinner.most)
        self._loads: deque[tuple[ShortSpan, Callable[[], None]]] = deque()  # held until their step is known
        self._loops: dict[tuple[str, int], int] = {}  # numbers by place
        self._loop = 0  # number of the latest
        self._restored: ShortSpan | None = None  # represents the latest restored step
        self._begun_before = NO_STEP  # the latest step that has begun here, when that was restored

    def begin(self, first: ShortSpan) -> None:
        """Start recording; `first` stands for the latest step before the first."""
        self.latest = first

    # --- numbers ------------------------------------------------------------------------------------------------------

    def next_number(self) -> int:
        """Return the default number of the next step: one after the latest, or the same if that was not completed."""
        latest = self.latest
        return latest.step if latest.undone else latest.step + 1

    @property
    def open_step(self) -> ShortSpan | None:
        """The open step of the training thread."""
        step = self.spans.step
        return step if step is not None and step.blocks else None

    def load_number(self) -> int:
        """Return the step of a load that begins now: the open step, else the next one.

        Return ``NO_STEP`` if no step has begun since a restart or a restore: the load gets its number with that step.
        """
        step = self.spans.step
        if step is not None:
            return step.step
        return NO_STEP if self.unsure else self.next_number()

    def go_back(self, number: int) -> None:
        """Handle the begin of a step whose `number` is not above the latest: warn unless it is known to be repeated."""
        latest = self.latest
        if latest is not self._restored and not (latest.undone and latest.step == number):
            self.misused.warn(misuse.WENT_BACK, number=number, latest=latest.step)

    @property
    def begun(self) -> int:
        """Number of the step that began last in this process; ``NO_STEP`` before the first."""
        return self._begun_before if self.latest is self._restored else self.latest.step

    def begin_first(self, number: int) -> None:
        """Handle the begin of step `number`, the first one since a restart or a restore."""
        if self.latest.step < 0 and self.labels.begins_anew(number):
            label, done = self.labels.durable
            self.misused.warn(misuse.BEGINS_ANEW, number=number, label=label, done=done, next=done + 1)
        self.number_loads(number)

    def forget_number(self) -> None:
        """Take the next step's number for unknown, because a checkpoint was restored whose step is not known."""
        self.unsure = True
        self.thread.latest_change = object()

    def keep_back(self, load: ShortSpan, emit: Callable[[], None]) -> None:
        """Hold an ended load until its step is known; `emit` then exports it."""
        if len(self._loads) >= KEPT_BACK:
            self.number_loads(NO_STEP)
        self._loads.append((load, emit))

    def number_loads(self, number: int) -> None:
        """Export the held loads as loads of step `number`; with ``NO_STEP``, without a step."""
        self.unsure = self.unsure and number < 0
        while self._loads:
            try:
                load, emit = self._loads.popleft()
            except IndexError:  # another thread was quicker
                return
            load.renumber(number)
            emit()

    # --- begin and end ------------------------------------------------------------------------------------------------

    def announces(self, span: ShortSpan) -> bool:
        """Whether :meth:`announce` does anything for a span like this one."""
        return bool(self.emitter.starters) or self._noted(span)

    def announce(self, span: ShortSpan) -> None:
        """Record the parent of a sampled span that begins, and notify the span processors."""
        self.note_parent(span)
        if self.emitter.starters:
            self.emitter.announce(span, span.within)

    def note_parent(self, span: ShortSpan) -> None:
        """Record the parent of a span that is exported."""
        if self._noted(span) and (parent := span.parent) is not None:
            self.jobs.append(PARENT, 0, 0, 0, span.key, signed(parent.span_id), span.start_time)

    def _noted(self, span: ShortSpan) -> bool:
        """Whether the parent is to be recorded: not the root of a trace, which follows from the step's number."""
        parent, traces = span.parent, self.traces
        return not (parent is None or parent.span_id == traces.job_key or traces.layout.is_root(parent, span.step))

    def check_end(self, start: int, end: int) -> int:
        """Warn of a phase that ends before its start; return the end to use instead, ns: its start."""
        report_once(
            "end before start", "a phase ends %.6f s before it starts; its duration is taken as 0", (start - end) / 1e9
        )
        return start

    def lapse(self) -> None:
        """End the open step if its loop was left, although something still holds the iterator."""
        step = self.open_step
        if step is None or step.loop is None or step.closed:
            return
        now = self.clock()
        left = step.loop.left(step.thread)
        if left:
            step.lapse(now)
        elif left is False:
            step.seen = now

    def leave_lapsed(self) -> None:
        """End the open step if its loop was left, and make sure that what the caller opens now is not inside it."""
        self.lapse()
        span = current_span()
        if isinstance(span, ShortSpan) and span.lapsed and span.closed:
            self.attach(alive(span.within))
            leave(span)

    def sweep(self, now: int) -> None:
        """End at `now` (ns) other spans that are still open on this thread, because a step begins or has ended on it.

        Their begin or end was interrupted, or their loop was left but is still referenced. Spans of other tasks of an
        event loop stay open.
        """
        span = innermost()
        inside: set[Nested] = set()
        while span is not None and span not in inside:
            inside.add(span)
            span = span.outer
        for other in reversed(list(self.spans.short.values())):
            if other in inside or (other.blocking_argument is None and not in_event_loop()):
                other.lapse(now)

    def end_inner(self, *, left: bool) -> None:
        """End the open blocking steps, loads and parts, because the job ends; `left`: not by an exception."""
        self.hooks.give_way(left)
        now = self.clock()
        for span in reversed(list(self.spans.short.values())):
            if span.blocks:
                span.lapse(now, failed=not left)
        self.number_loads(NO_STEP)
        # A processor may itself open phases, which belong to the job. So does the time waited here, hence not for long.
        self.emitter.catch_up(LONGEST_WAIT_S)

    def close_open(self) -> None:
        """End the open steps, loads and parts and mark them as interrupted."""
        for span in reversed(list(self.spans.short.values())):
            try:
                span.abandon(self.clock(), INTERRUPTED)
            except Exception as error:
                contain("closing open spans", error)

    def sample_overhead(self, took: int) -> None:
        """Add a timed begin or end of a fast span, which took `took` ns and represents those that are not timed."""
        # Longer samples include waits for the scheduler or the GIL, which are not our overhead.
        self.overhead += min(took, LONGEST_SAMPLE) * SAMPLED_ONE_IN

    def add_overhead(self, took: int) -> None:
        """Add the `took` ns of a begin or end that was timed for itself alone."""
        self.overhead += took

    def begin_loop(self, handled: BaseException | None, place: tuple[str, int]) -> None:
        """Take note that a loop begins while `handled` is being handled: that exception cannot end it.

        `place` is the file and the line that begins it: a loop that is begun there again is the same.
        """
        if self.blocks(None):
            self.hooks.give_way(True)
        self.handled = id(handled)
        if place not in self._loops and len(self._loops) < MOST_LOOPS:
            self._loops[place] = len(self._loops) + 1
        loop = self._loops.get(place, 0)
        if loop != self._loop and self.blocks(None):
            self._loop = loop
            self.jobs.append(LOOP, 0, 0, 0, 0, loop, self.clock())

    def close(self) -> None:
        """Stop recording; later calls by holders of this object have no effect."""
        self.closed = True
        self.jobs.close()
        self.traces.close()
        self.hooks.close()
        self.emitter.close()
