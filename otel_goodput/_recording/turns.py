"""The short way through an undisturbed loop: one record a turn instead of four, and no new objects for most steps.

The record ends a step, begins and ends the data load of the next one, and begins that. It is written after the load; if
the process is killed meanwhile, the header of the segment says that the step was complete. If one of the two is
exported, or observed on the device, there are two records instead, the first before the load. If nobody has requested
the identity of the load or set anything on its span, that object becomes the span of its step.

A span and its context are used again two turns later, unless somebody still holds them or has touched the span. A task
that was made in a step holds the context of that step, for example. If phases are exported, what their spans need is
copied at their end (:meth:`FastSpan.copied`), and they are used again in turn.

:meth:`Turns.load` and :meth:`Turns.step` look once whether a turn is a quiet one: nothing is exported, due or observed.
All others are left to `_load` and `_step`. Those return None before they have changed anything if the loop cannot take
the short way; it then ends and begins the phases one by one (:meth:`FastSpan.close`, :meth:`FastSpan.open`), with the
same result.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import SpanContext

from otel_goodput._accounting.events import KEYS, ON_DEVICE, STRIDE, preceding
from otel_goodput._accounting.rules import DATA_LOADING, STEP
from otel_goodput._journal.records import EXPORT, LOADING, OUTLIER, STEPPING
from otel_goodput._journal.thinning import pack
from otel_goodput._recording.fast_span import FastSpan
from otel_goodput._recording.finished import UNSET
from otel_goodput._recording.nesting import PHASE, PHASE_KEY, RESERVED, SPAN_KEY, TOUCHED
from otel_goodput._recording.step_line import TIMED, StepLine
from otel_goodput._recording.trace_layout import ROUTINE

# Without the GIL, another thread may take a reference while they are counted: no span is used again.
_COUNTABLE: Final = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
_set: Final = dict.__setitem__
_references: Final[Callable[[object], int]] = sys.getrefcount if _COUNTABLE else lambda _: 0


class Turns:
    """Ends and begins the phases of one loop.

    Args:
        line: records them.

    Attributes:
        latest: the phase that was begun last here; None if the loop does not take the short way.
    """

    __slots__ = (
        "_alone", "_announces", "_append", "_attach", "_choice", "_covered", "_current", "_due", "_every", "_exports",
        "_held", "_hooks", "_inside", "_job", "_jobs", "_leave_step", "_left", "_line", "_newer", "_older", "_outside",
        "_parents", "_policy", "_postpone", "_recent", "_sampler", "_seen", "_short", "_spans", "_spare", "_take",
        "_thin", "_thread", "_turn", "_volume", "_watched", "latest",
    )  # fmt: skip

    def __init__(self, line: StepLine) -> None:
        self._line = line
        self.latest: FastSpan | None = None
        self._inside: Context
        self._covered = False
        self._seen: object = None  # the latest change of what is around that is known here
        # To be used again, if nobody holds them: the context of the step before the latest, and its span, None if that
        # was touched. `_alone` and `_held` are the numbers of references to them if nobody else has one.
        self._spare: FastSpan | None = None
        self._outside: Context
        self._alone = self._held = 0
        # The same for exported phases: span and context of the phase before the one that ended last, and of that one.
        self._older: tuple[FastSpan, Context] | None = None
        self._newer: tuple[FastSpan, Context] | None = None
        self._choice = 0  # number of the next step that may be sampled
        self._due = 0  # number of the next step whose turn is not a quiet one in any case
        self._watched = True  # none is
        # Looked up once.
        self._append: Callable[..., None] = line.account.append
        self._leave_step, self._turn = line.account.journal.leave_step, line.account.journal.turn
        self._postpone = line.emitter.postpone
        self._current, self._attach = line.current, line.attach
        self._spans, self._short, self._jobs, self._thread = line.spans, line.spans.short, line.jobs, line.thread
        self._hooks = line.hooks
        self._policy, self._sampler, self._thin = line.policy, line.policy.sampler, line.thinner.waiting.extend
        self._recent, self._take, self._exports = self._sampler.recent.append, line.policy.take, line.policy.detailed
        self._every = self._sampler.every == 1
        # By phase, while trace and job last: the parent, whether a begin is to be announced, and the id of the trace.
        self._parents: dict[int, tuple[SpanContext | None, bool, int]] = {}
        self._announces = False  # the begin of the span that was sampled last is to be announced
        self._left = True  # the end of the latest step is only in the segment's header, as in a quiet turn
        self._volume = 0  # number of the first step behind the latest trace
        self._job: object = None

    def follow(self, step: FastSpan) -> None:
        """Take the short way from `step` on, which the loop has begun, if nothing is unusual about it."""
        if step.blocks and step.loop is not None and not (step.loop.elsewhere or self._thread.tasks):
            self._inside = inside = self._current()
            self._covered = inside.get(SPAN_KEY) is step
            self._volume, self._choice, self._due, self._seen = 0, 0, 0, None
            self._spare = self._older = self._newer = None
            outside = self._outside = Context()
            self._alone = _references(outside)
            self._held = self._alone + 1 + self._covered
            if inside.get(PHASE_KEY) is step:
                self.latest = step

    def load(self, step: FastSpan, number: int, now: int) -> FastSpan | None:
        """End `step` at `now` (ns) and begin the data load of step `number`; return the load."""
        if number >= self._due:
            return self._load(step, number, now)
        # Bound to names first: CPython 3.11 looks up an attribute faster that is not called at once.
        current, leave_step, attach = self._current, self._leave_step, self._attach
        add, thin = self._recent, self._thin
        began, load, inside = step._start, self._spare, self._outside
        if (
            self._thread.latest_change is not self._seen
            or step.touched
            or now - began > self._sampler.threshold
            or load is None
            or _references(load) != self._held
            or _references(inside) != self._alone
            or current() is not self._inside
            or step.thread != get_ident()
        ):
            del load, inside  # they would count as references
            return self._load(step, number, now)
        key = step._key
        load._phase, load.step, load._start = DATA_LOADING, number, now
        load._key, load._ended = (key + STRIDE) & KEYS, False
        # Registered as open before anything is recorded, so that it will be ended even if an interrupt comes now.
        self.latest = self._short[load._entry] = load
        leave_step(key, number, now)
        self._outside, self._inside = self._inside, inside
        attach(inside)
        if load._outermost:
            PHASE.set(load)
        step._ended, self._spare, self._spans.step = True, step, None
        add(now - began)
        thin(pack(number - 1, began, now))
        if not number & TIMED:
            self._line.sample_overhead(self._line.clock() - now)
        return load

    def step(self, load: FastSpan, number: int) -> FastSpan | None:
        """End `load` now and begin the step `number`; return the step.

        The clock is read just before that is recorded, so that little of this is in the step's own time.
        """
        if number >= self._due:
            return self._step(load, number)
        line, current, turn = self._line, self._current, self._turn
        if self._thread.latest_change is not self._seen or load.touched or current() is not self._inside:
            return self._step(load, number)
        key, clock = load._key, line.clock
        line.latest = self._spans.step = load
        now = clock()
        try:
            turn(key, number, now)
            load._phase, load._key, load._start = STEP, (key + STRIDE) & KEYS, now
        except BaseException:
            self._record_anew(load, number, now)
            raise
        if not number & TIMED:
            line.sample_overhead(clock() - now)
        return load

    def _load(self, step: FastSpan, number: int, now: int) -> FastSpan | None:
        """As :meth:`load`, if something is to be done besides."""
        line, thread, hooks = self._line, self._thread, self._hooks
        if (
            step is not self.latest
            or (thread.latest_change is not self._seen and self._disturbed(step, step, number))
            or self._current() is not self._inside
            or step.thread != get_ident()
            or step._status is not UNSET
            or (hooks.annotate is not None and hooks.profiling())
        ):
            self.latest = None
            return None
        key, began = step._key, step._start
        took, flags = now - began, 0
        sampler = self._sampler
        self._recent(took)
        exported = step._sampled or step._keep
        slow = (took > sampler.threshold or len(sampler.recent) >= sampler.enough) and sampler.judge(took)
        if slow and (exported or self._policy.affords_slow(step)):
            exported, flags = True, OUTLIER
        observation, device = step.observation, hooks.device
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
        load, inside = self._spare, self._outside
        if load is not None and _references(load) == self._held and _references(inside) == self._alone:
            load._phase, load.step, load._key, load._start, load._ended = DATA_LOADING, number, begun, now, False
        else:
            load, inside = self._next(step, DATA_LOADING, number, begun, now)
        if (
            number >= self._choice
            and (self._every or sampler.would_take(number))
            and self._exports
            and self._affords(load, DATA_LOADING, number)
        ):
            load._sampled = True
        # Registered as open before anything is recorded, so that it will be ended even if an interrupt comes now.
        self.latest = self._short[load._entry] = load
        self._left = left = not (exported or load._sampled or flags)
        if not left:
            self._append(LOADING, load._sampled, flags, 0, key, number, now)
        else:
            self._leave_step(key, number, now)
        before, self._inside = self._inside, inside
        self._attach(inside)
        if load._outermost:
            PHASE.set(load)
        step._ended, step._token = True, None
        self._spans.step = None
        if load._sampled and self._announces:
            line.announce(load)
        if exported:
            self._spare = None
            step._end = now
            if flags & OUTLIER:
                step._end_flags = flags
            if observation is not None:
                observation.then(partial(step.export, now, flags))
            elif step.touched == RESERVED:
                self._postpone(step.copied(now))
                self._older, self._newer = self._newer, (step, before)
            else:
                self._postpone(step.finished)
        else:
            self._spare = None if step.touched or step.observation is not None else step
            self._outside = before
            self._thin(pack(number - 1, began, now))
        if not number & TIMED:
            line.sample_overhead(line.clock() - now)
        return load

    def _step(self, load: FastSpan, number: int) -> FastSpan | None:
        """As :meth:`step`, if something is to be done besides."""
        line, thread, hooks = self._line, self._thread, self._hooks
        if (
            load is not self.latest
            or (thread.latest_change is not self._seen and self._disturbed(load, None, number))
            or self._current() is not self._inside
            or load._status is not UNSET
            or (hooks.annotate is not None and hooks.profiling())
        ):
            self.latest = None
            return None
        key, device = load._key, hooks.device
        begun = (key + STRIDE) & KEYS
        exported = load._sampled or load._keep
        due = number >= self._choice
        step, inside = load, self._inside
        if exported or due or load.touched:
            step, inside = self._next(load, STEP, number, begun, load._start)
            if due:
                if self._sampler.take(number) and self._exports and self._affords(step, STEP, number):
                    step._sampled = True
                self._choice = self._sampler.due
        if self._choice > number + 1 and not self._watched:
            sampler = self._sampler
            self._due = min(self._choice, number + sampler.enough - len(sampler.recent))
        line.latest = self._spans.step = self.latest = step
        if step is not load:
            self._short[step._entry] = step
        now = line.clock()
        if device is not None and device.awake:
            if now < device.short_until:
                device.step = step
            else:
                device.loaded(now)
                device.begin(begun, STEP, now)
        try:
            if step is load and self._left:
                self._turn(key, number, now)
            else:
                self._append(STEPPING, step._sampled, EXPORT if exported else 0, 0, key, number, now)
        except BaseException:
            if step is load:
                self._record_anew(load, number, now)
            raise
        self._left, step._start = True, now
        if step is load:
            step._phase, step._key = STEP, begun
        else:
            load._ended = True
            before, self._inside = self._inside, inside
            self._attach(inside)
            if step._outermost:
                PHASE.set(step)
            if step._sampled and self._announces:
                line.announce(step)
            if exported:
                load._end = now
                if load.touched == RESERVED:
                    self._postpone(load.copied(now))
                    self._older, self._newer = self._newer, (load, before)
                else:
                    self._postpone(load.finished)
        if not number & TIMED:
            line.sample_overhead(line.clock() - now)
        return step

    def _record_anew(self, load: FastSpan, number: int, now: int) -> None:
        """Record `load`, which becomes the step `number` at `now` (ns), because recording that was interrupted.

        Whether or not it is recorded: the loop ends the step, and nobody else would the load.
        """
        account, key = self._line.account, load._key
        account.append(LOADING, 0, 0, 0, preceding(key), number, load._start)
        account.end(DATA_LOADING, key, 0, now)
        load._phase, load._key, load._start = STEP, (key + STRIDE) & KEYS, now

    def _disturbed(self, latest: FastSpan, step: FastSpan | None, number: int) -> bool:
        """Return whether the loop cannot go on the short way with step `number`, since something has changed.

        Args:
            latest: the open phase of the loop.
            step: the open step: that phase or, while it is a load, None.
            number: the step that is next.
        """
        line, spans, thread = self._line, self._spans, self._thread
        self._seen = thread.latest_change  # first: what changes from now on is noticed in the next turn
        self._watched = self._hooks.watched
        if self._watched:
            self._due = 0
        return bool(
            spans.step is not step
            or (step is not None and line.latest is not step)
            or number <= line.latest.step
            or len(self._short) != 1
            or latest._ended
            or latest._twins
            or latest._annotation is not None
            or thread.identity != latest.thread
            or thread.tasks
            or line.unsure
            or line.left_out
            or self._jobs.append is not self._append
            or (latest._outermost and PHASE.get() is not latest)
        )

    def _next(self, before: FastSpan, phase: int, number: int, key: int, start: int) -> tuple[FastSpan, Context]:
        """Return a new span that begins where `before` ends, at `start` (ns), and the context inside it."""
        if (older := self._older) is not None:
            self._older = None
            span, inside = older
            if _references(span) == self._held and _references(inside) == self._alone:
                span.renew(phase, number, key, start)
                return span, inside
        span = before.next_in_loop(phase, number, key, start)
        inside = Context(before.within)
        _set(inside, PHASE_KEY, span)  # nobody has this context yet; from then on, it does not change
        if self._covered:
            _set(inside, SPAN_KEY, span)
        return span, inside

    def _affords(self, span: FastSpan, phase: int, number: int) -> bool:
        """Reserve room for a sampled span in its trace; return False if there is none."""
        job = self._line.traces.job_span
        if number >= self._volume or job is not self._job:
            steps = self._line.traces.layout.steps
            self._parents.clear()
            self._volume, self._job = (number // steps + 1) * steps, job
        known = self._parents.get(phase)
        if known is None:
            parent = span.parent
            known = self._parents[phase] = parent, self._line.announces(span), 0 if parent is None else parent.trace_id
        span._parent, self._announces, trace = known
        span.touched = RESERVED if trace else TOUCHED
        return not trace or self._take(trace, ROUTINE)
