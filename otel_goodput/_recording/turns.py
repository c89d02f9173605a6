"""The short way through an undisturbed loop: two records a turn instead of four, and one span for a load and its step.

One record ends a step and begins the data load of the next one, the other ends that load and begins its step. They are
two and not one, because a load may hang, or be killed: the journal must have seen the step complete by then. If nobody
has asked for the identity of the load or set anything on its span, that object becomes the span of its step.

Whatever is unusual makes :meth:`Turns.load` and :meth:`Turns.step` return None before they have changed anything. The
loop then ends and begins the phases one by one (:meth:`FastSpan.close`, :meth:`FastSpan.open`), with the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import get_ident

from opentelemetry.context import Context
from opentelemetry.trace import SpanContext

from otel_goodput._accounting.events import ON_DEVICE
from otel_goodput._accounting.rules import DATA_LOADING, STEP
from otel_goodput._journal.records import EXPORT, KEYS, LOADING, OUTLIER, STEPPING, STRIDE
from otel_goodput._recording.fast_span import FastSpan
from otel_goodput._recording.nesting import PHASE, PHASE_KEY, SPAN_KEY, attach, current
from otel_goodput._recording.short_span import UNSET
from otel_goodput._recording.step_line import TIMED, StepLine


class Turns:
    """Ends and begins the phases of one loop.

    Args:
        line: records them.

    Attributes:
        latest: the phase that was begun last here; None if the loop does not take the short way.
    """

    __slots__ = (
        "_announces", "_append", "_covered", "_due", "_inside", "_job", "_jobs", "_line", "_parents", "_policy",
        "_recent", "_sampler", "_short", "_spans", "_thin", "_volume", "latest",
    )  # fmt: skip

    def __init__(self, line: StepLine) -> None:
        self._line = line
        self.latest: FastSpan | None = None
        self._inside: Context
        self._covered = False
        self._due = 0  # number of the next step that may be sampled
        # Looked up once.
        self._append: Callable[..., None] = line.account.append
        self._spans, self._short, self._jobs = line.spans, line.spans.short, line.jobs
        self._policy, self._sampler, self._thin = line.policy, line.policy.sampler, line.thinner.waiting.append
        self._recent = self._sampler.recent.append
        # By phase, for as long as a trace and a job last: the parent, and whether a begin is to be announced.
        self._parents: dict[int, tuple[SpanContext | None, bool]] = {}
        self._announces = False  # the begin of the span that was sampled last is to be announced
        self._volume = -1
        self._job: object = None

    def follow(self, step: FastSpan) -> None:
        """Take the short way from `step` on, which the loop has begun, if nothing is unusual about it."""
        line = self._line
        if step.blocks and step.loop is not None and not (step.loop.elsewhere or line.thread.tasks):
            self._inside = inside = current()
            self._covered = inside.get(SPAN_KEY) is step
            self._volume, self._due = -1, 0
            if inside.get(PHASE_KEY) is step:
                self.latest = step

    def load(self, step: FastSpan, number: int, now: int) -> FastSpan | None:
        """End `step` at `now` (ns) and begin the data load of step `number`; return the load."""
        line, spans, short = self._line, self._spans, self._short
        hooks, thread = line.hooks, line.thread
        device = hooks.device
        if (
            step is not self.latest
            or spans.step is not step
            or line.latest is not step
            or len(short) != 1
            or current() is not self._inside
            or step._ended
            or step._status is not UNSET
            or step._twins
            or step._annotation is not None
            or step.thread != get_ident()
            or thread.identity != step.thread
            or thread.tasks
            or line.unsure
            or line.left_out
            or hooks.profiling()
            or self._jobs.append is not self._append
            or (step._outermost and PHASE.get() is not step)
        ):
            self.latest = None
            return None
        key, began = step._key, step._start
        took, flags = now - began, 0
        sampler = self._sampler
        self._recent(took)
        sampler.until_review = left = sampler.until_review - 1
        exported = step._sampled or step._keep
        slow = (took > sampler.threshold or left <= 0) and sampler.judge(took)
        if slow and (exported or self._policy.affords_slow(step)):
            exported, flags = True, OUTLIER
        observation = step.observation
        if device is not None and device.awake:
            observation = device.join(step, now)
            if observation is None:
                observation = device.end_step(step, now)
                if observation is not step.observation:
                    now = line.clock()
                device.load(now)
        if observation is not None:
            observation.announced = True
            flags |= ON_DEVICE
        if exported:
            flags |= EXPORT
        begun = (key + STRIDE) & KEYS
        load = step.next_in_loop(DATA_LOADING, number, begun, now)
        if number >= self._due and self._policy.would_sample(number) and self._affords(load, DATA_LOADING):
            load._sampled = True
        # Registered as open before anything is recorded, so that it will be ended even if an interrupt comes now.
        self.latest = short[begun] = load
        self._append(LOADING, load._sampled, flags, 0, key, number, now)
        step._ended, step._token = True, None
        del short[key]
        spans.step = None
        if self._covered:
            self._inside = inside = Context({**step._within, PHASE_KEY: load, SPAN_KEY: load})
        else:
            self._inside = inside = Context({**step._within, PHASE_KEY: load})
        attach(inside)
        if load._outermost:
            PHASE.set(load)
        if load._sampled and self._announces:
            line.announce(load)
        if exported:
            step._end = now
            outlier = flags & OUTLIER != 0
            if observation is None:
                step.export(now, False, outlier, False)
            else:
                observation.then(partial(step.export, now, False, outlier, False))
        else:
            self._thin((step.step, began, now))
        if not number & TIMED:
            line.sample_overhead(line.clock() - now)
        return load

    def step(self, load: FastSpan, number: int, now: int) -> FastSpan | None:
        """End `load` at `now` (ns) and begin the step `number`; return the step."""
        line, spans = self._line, self._spans
        hooks = line.hooks
        device = hooks.device
        if (
            load is not self.latest
            or spans.step is not None
            or number <= line.latest.step
            or len(self._short) != 1
            or current() is not self._inside
            or load._ended
            or load._status is not UNSET
            or load.thread != get_ident()
            or line.unsure
            or hooks.profiling()
            or self._jobs.append is not self._append
            or (load._outermost and PHASE.get() is not load)
        ):
            self.latest = None
            return None
        key = load._key
        begun = (key + STRIDE) & KEYS
        exported = load._sampled or load._keep
        due = number >= self._due
        short = self._short
        if exported or due or load.touched:
            step = load.next_in_loop(STEP, number, begun, now)
            if due:
                if self._policy.sample(number) and self._affords(step, STEP):
                    step._sampled = True
                self._due = self._sampler.due_after(number)
        else:
            step = load
        if device is not None and device.awake:
            if now < device.short_until:
                device.step = step
            else:
                device.loaded(now)
                device.begin(begun, STEP, now)
        line.latest = spans.step = self.latest = short[begun] = step
        try:
            self._append(STEPPING, step._sampled, EXPORT if exported else 0, 0, key, number, now)
            if step is load:
                load._phase, load._key, load._start = STEP, begun, now
        except BaseException:
            if step is load:  # whether or not that is recorded: the loop ends the step, and nobody else would the load
                line.account.end(DATA_LOADING, key, 0, now)
                load._phase, load._key, load._start = STEP, begun, now
                short.pop(key, None)
            raise
        if step is not load:
            load._ended = True
            if self._covered:
                self._inside = inside = Context({**load._within, PHASE_KEY: step, SPAN_KEY: step})
            else:
                self._inside = inside = Context({**load._within, PHASE_KEY: step})
            attach(inside)
            if step._outermost:
                PHASE.set(step)
            if step._sampled and self._announces:
                line.announce(step)
            if exported:
                load._end = now
                load.export(now, False, False, False)
        del short[key]
        if not number & TIMED:
            line.sample_overhead(line.clock() - now)
        return step

    def _affords(self, span: FastSpan, phase: int) -> bool:
        """Reserve room for a sampled span in its trace; return False if there is none."""
        line = self._line
        volume, job = line.traces.layout.number(span.step), line.traces.job_span
        if volume != self._volume or job is not self._job:
            self._parents.clear()
            self._volume, self._job = volume, job
        known = self._parents.get(phase)
        if known is None:
            known = self._parents[phase] = span.parent, line.announces(span)
        span._parent, self._announces = known
        return self._policy.affords(known[0])
