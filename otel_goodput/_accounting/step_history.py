"""The steps of a run: which executions are kept, which are lost, and what interrupted them (rules R4 to R6)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from otel_goodput._accounting import codec, rules
from otel_goodput._accounting.codec import Each, Optional, Pairs, Part, Row, field
from otel_goodput._accounting.device import NEVER
from otel_goodput._accounting.disruption import Disruption, Disruptions
from otel_goodput._accounting.events import NO_STEP
from otel_goodput._accounting.execution import Execution, Life
from otel_goodput._accounting.kept_steps import KeptSteps
from otel_goodput._accounting.overview import FATES
from otel_goodput._accounting.resuming import STRETCHES, WATCHED, Checkpoints, Past, Resume, Stretch, Watch, followed
from otel_goodput._accounting.stalls import HELD, LOOPS, NO_LIMIT, Loop
from otel_goodput._accounting.stats import median
from otel_goodput._accounting.step_summary import Steps
from otel_goodput.semconv import Reason

SAVES: Final = 100  # that may turn durable yet; if there are more, the oldest are given up
COVERS: Final = 4_096  # saves of which it is known what they stand for
RECOVERABLE: Final = 1_000  # executions that may yet be kept; if there are more, the oldest stay lost


def _latest(starts: Iterable[int] = ()) -> deque[int]:
    return deque(starts, rules.CADENCE_SAMPLE + 1)


class StepHistory(KeptSteps):
    """Tracks the executions of steps and decides whether each is kept or lost.

    Attributes:
        running: executions whose fate is not known, by key, in the order of their starts.
        recoverable: executions that will be kept if a pending checkpoint that holds them becomes durable, by key.
        interrupted: the part of `discarded` that was in flight when the last job ended, ns.
        last_step, latest, previous: number and key of the latest started step, number of the one before it.
        saves: by the key of a save, the highest step that its checkpoint will cover once durable.
        restores: labels of the restores in progress, by key.
        resume: the latest restore, while no step has followed it; None if there is none, or if it moves nothing.
        offset, stretches: what is added to the numbers that loops give their steps; where that changed.
        skipped, skipped_wall: batches that loops skipped after a restore, and how long they took on the host, ns.
        watch, doubtful: looks at the first steps after a restore in a run that has no earlier ones; those that look
            like skipped batches.
        job_begin, step_end: when the latest job of this attempt started, and when its latest step completed, ns.
        first_step: from the start of the latest job to the end of its first completed step, ns.
        recent: starts of the latest completed steps since the latest start or rollback, ns, in order of completion.
        finished: net times (ns) of completed steps whose ends are known, until taken; None if nobody collects them.
        loops, loop: the loops of this attempt, and the number of that to which the steps that start now belong.
        limit: of the steps that start now, ns; 0 if it follows from the usual step (rule R10).
    """

    life: Life = field(Part(lambda: Life), make=lambda: Life(0, 0), key="attempt")
    running: dict[int, Execution] = field(Pairs(codec.KEY, Part(lambda: Execution)), make=dict, key="running_steps")
    recoverable: dict[int, Execution] = field(
        Pairs(codec.KEY, Part(lambda: Execution), RECOVERABLE), make=dict, key="recoverable_steps"
    )
    executed: int = field(codec.COUNT, 0)
    interrupted: int = field(codec.COUNT, 0, key="interrupted_time")
    last_step: int | None = field(Optional(codec.NUMBER))
    latest: int | None = field(Optional(codec.KEY), key="latest_key")
    previous: int | None = field(Optional(codec.NUMBER), key="previous_step")
    observed: bool = field(codec.FLAG, False, key="device_observed")
    covers: dict[int, int] | None = None  # the latest step that each save stands for, by key; None: nobody asks
    saves: dict[int, int] = field(Pairs(codec.KEY, codec.NUMBER, SAVES), make=dict, key="pending_saves")
    checkpoints: Checkpoints = field(Part(lambda: Checkpoints), make=Checkpoints)
    restores: dict[int, int] = field(Pairs(codec.KEY, codec.NUMBER), make=dict, key="open_restores")
    resume: Resume | None = field(Optional(Part(lambda: Resume)), key="resumed")
    offset: int = field(codec.NUMBER, 0, key="number_offset")
    stretches: tuple[Stretch, ...] = field(
        Each(Row(*[codec.NUMBER] * 4, make=Stretch._make), STRETCHES, tuple), (), key="numbering"
    )
    skipped: int = field(codec.COUNT, 0, key="skipped_batches")
    skipped_wall: int = field(codec.COUNT, 0, key="skipped_wall_time")
    watch: Watch | None = field(Optional(Part(lambda: Watch)), key="watched")
    doubtful: int = field(codec.COUNT, 0, key="doubtful_steps")
    attempts: int = field(codec.COUNT, 0)
    disruptions: Disruptions = field(Part(lambda: Disruptions), make=Disruptions)
    job_begin: int | None = field(Optional(codec.NUMBER), key="job_started_at")
    first_step: int | None = field(Optional(codec.NUMBER), key="first_step_time")
    step_end: int | None = field(Optional(codec.NUMBER), key="step_ended_at")
    recompiled: Mapping[str, int] = field(
        Pairs(codec.TEXT, codec.COUNT, rules.RECOMPILED_NAMES, replaced=True), {}, key="recompiled_functions"
    )
    recent: deque[int] = field(Each(codec.NUMBER, rules.CADENCE_SAMPLE + 1, _latest), make=_latest, key="recent_starts")
    loops: dict[int, Loop] = field(Pairs(codec.NUMBER, Part(lambda: Loop), LOOPS), make=lambda: {0: Loop()})
    loop: int = field(codec.NUMBER, 0, key="current_loop")
    limit: int = field(codec.COUNT, 0, key="step_limit")
    finished: list[int] | None = None

    def clone(self) -> StepHistory:
        twin = super().clone()
        twin.finished = None
        return twin

    def loaded(self) -> None:
        segments, length = len(self.segments), len(self.progress)
        opened = (*self.running.values(), *self.recoverable.values())
        if (
            any(one.segment >= segments or one.fate not in (None, *FATES) for one in opened)
            or self.life.first_segment > segments
            or any(not one.low <= one.high <= length or (one.first_index or 0) > length for one in self.segments)
            or any(key != one.key for held in (self.running, self.recoverable) for key, one in held.items())
            or (self.summary is not None and len(self.summary) != length)
            or self.loop not in self.loops
            or (self.resume is not None and self.resume.walking and not self.stretches)
        ):
            raise ValueError("the steps contradict each other")
        if self.bins is not None:
            self.bins.prove(spot for segment in self.segments for spot in segment.spots)

    def begin_attempt(self, number: int) -> None:
        """Start a new attempt: a new process began. What was in flight in the old one has been marked as lost."""
        self.job_begin = self.step_end = self.disruptions.awaited = None
        if self.summary is not None:
            self.summary.flush()
        self.life = Life(number, len(self.segments))
        self.resume, self.watch, self.offset = None, None, 0
        self.restores.clear()
        self.saves.clear()
        self.recoverable.clear()
        self.loops, self.loop, self.limit = {0: Loop()}, 0, 0

    def mark_lost(self, time: int, *, pending: bool = True) -> None:
        """Mark the steps in flight as lost, at `time` (ns); without `pending`, only those that are open on the host."""
        for execution in list(self.running.values()):
            if not pending and not execution.on_host:
                continue
            execution.failed, execution.left = True, False
            if not self._settle(execution, time) and not execution.usual:
                self.interrupted += execution.visible
            if execution.on_host and execution.key == self.latest:
                execution.given_up = time

    def begin_life(self, *, first: bool, reason: str, gap: int, time: int) -> None:
        """Start a job at `time` (ns), `gap` ns after the last sign of life: a disruption, unless it is the `first`.

        If an attempt begins again with its number, that is part of the disruption that it began with.
        """
        again = not self.life.begun and self.disruptions.began(self.life.number + 1)
        if self.life.begun:
            self.life.steps_started = False
            for execution in (*self.running.values(), *self.recoverable.values()):
                execution.former = True
        self.life.begun = True
        self.job_begin, self.first_step, self.disruptions.awaited = time, None, None
        if again:
            self.disruptions.restart_again(gap, self.interrupted, time, self.last_step, self.top())
        elif not first:
            attempt, wasted, top = self.life.number + 1, self.interrupted, self.top()
            self.disruptions.begin(
                Disruption(attempt, reason, gap, wasted, self.last_step, None, time, time - gap, top)
            )
        self.interrupted = 0
        self.attempts += not again

    def compiles(self, execution: Execution | None) -> None:
        """A compilation has begun, inside `execution` unless that is None."""
        if not self.life.compiles_seen:
            self.life.compiles_seen = True
            for at in range(self.life.first_segment, len(self.segments)):
                segment = self.own_segment(at)
                segment.compiles_seen = True
                segment.forget()
        if execution is not None:
            execution.compiles = True

    def compile(self, function: str) -> bool:
        """Count a compilation of `function`; returns whether this attempt had compiled it before."""
        again = function in self.life.compiled
        if not again:
            self.life.compiled |= {function}
        elif function in self.recompiled or len(self.recompiled) < rules.RECOMPILED_NAMES:
            self.recompiled = {**self.recompiled, function: self.recompiled.get(function, 0) + 1}
        return again

    def start(self, number: int, key: int, time: int, *, numbered: bool = False) -> Execution:
        """Start a step whose loop numbers it `number`. If it goes back, kept steps from there on are lost (rule R4).

        Right after a restore, that waits until it is known to be a step, unless the user gave the number (`numbered`).
        """
        if self.resume is not None:
            exact = numbered and not self.resume.walking and self.resume.take_number(number)
            if self.resume.usual and self.resume.room > 0 and not exact:
                return self._wait_for_work(self.resume, number, key, time)
            if any(execution.usual for execution in self.running.values()):
                self.take_as_steps()  # more bodies than there are batches to skip
        resume = self.resume
        number = self._numbered(number, time) if resume is None else self._place(resume, number, time)
        self._move_to(number, time, resume)
        execution = self.running[key] = self.begun(number, key, time)
        self.latest, self.previous, self.last_step = key, self.last_step, number
        return execution

    def _move_to(self, number: int, time: int, resume: Resume | None) -> None:
        """Have a step begin at `time` (ns) as `number`, `resume` being the restore that it follows."""
        life = self.life
        top = self.progress.top
        popped = top >= number
        wasted = 0
        first = not life.steps_started
        if popped:
            self.checkpoints.reached = max(self._reached, self.checkpoints.reached)
            # If the first step of an attempt goes back, that is part of the disruption that began the attempt.
            wasted = self.go_back(number, self.disruptions.count + (not first))
            if not first:
                self.disruptions.begin(
                    Disruption(None, Reason.ROLLBACK, 0, wasted, self.last_step, number, time, kept_step=top)
                )
        if first:
            life.steps_started = True
            if self.attempts > 1:
                self.disruptions.first_step(number, wasted)
        if number <= self.safe:
            self.safe = number - 1
        if self.saves:
            self.saves = {save: min(covered, number - 1) for save, covered in self.saves.items()}
        if first or popped:
            self.recent.clear()
        if resume is not None and resume.walking:
            segment = self.own_segment(-1)  # it is empty
            segment.low = segment.high = self.progress.length
        elif first or popped or resume is not None:
            self.begin_segment(self.life)
        if self.running:
            for other in self.running.values():
                other.superseded |= other.number >= number
        if self.recoverable:
            self.recoverable = {key: other for key, other in self.recoverable.items() if other.number < number}

    def begun(self, number: int, key: int, time: int) -> Execution:
        """Return an execution that begins at `time` (ns)."""
        last = len(self.segments) - 1
        execution = Execution(number, key, time, self.life.number, last)
        execution.loop, execution.fixed, execution.limit = self.loop, self.limit, self.limit or rules.STALLED_SLACK
        if self.segments[last].first_net is None:
            execution.pieces = []
        return execution

    @property
    def _reached(self) -> int:
        """The highest step that has started, apart from those before the run went back."""
        return max(self.progress.top, NO_STEP if self.last_step is None else self.last_step)

    def past(self) -> Past:
        """Return what the next attempt needs to know."""
        if not self.progress.length:
            return Past(self.checkpoints.labels, NO_STEP, self.safe, NO_STEP)
        reached = max(self._reached, self.checkpoints.reached)
        return Past(self.checkpoints.labels, reached, self.safe, self.progress.number_at(0))

    def label(self, key: int, label: int) -> None:
        """The checkpoint that the open phase `key` saves or restores turned out to be labeled `label`."""
        if key in self.restores:
            self.restores[key] = label
        elif label >= 0 and self.saves.get(key, NO_STEP) >= 0:
            self.checkpoints.save(label, self.saves[key])

    def end_restore(self, key: int, failed: bool) -> None:
        """End a restore: the next step follows the last one that its checkpoint stands for."""
        label = self.restores.pop(key)
        if failed:
            return
        own = label in self.checkpoints.labels
        kept, before = self.progress.length, self.resume
        if not own and before is not None and before.own:
            return
        at = self.checkpoints.labels.get(label, NO_STEP)
        if not own and kept and label <= max(self._reached, self.checkpoints.reached):
            at = label  # a checkpoint that this run did not save stands for the step of its number, if it got there
        if at < 0 and (before is not None or self.life.steps_started):
            return
        room = self.progress.index_above(at) if at >= 0 else kept
        nets = self.progress.nets(kept - rules.USUAL_SAMPLE, kept)
        self.resume = Resume(at, label, own, median(nets) if nets else 0, room)

    def _numbered(self, number: int, time: int) -> int:
        """Return which step it is that begins at `time` (ns) and that its loop numbers `number`."""
        if number + self.offset < 0:
            self.offset = 0  # the loop has given up the numbers that it had after the restore
            self.stretches = followed(self.stretches, Stretch(self.life.number, time, time, 0))
        return number + self.offset

    def _place(self, resume: Resume, number: int, time: int) -> int:
        """Return which step the first one after `resume` is, which begins at `time` (ns) as `number` of its loop."""
        self.resume = None
        self.watch = None if resume.usual else Watch()
        placed = resume.place(number, self.offset, self.progress.top)
        self.offset = placed - number
        begin = self.stretches[-1].begin if resume.walking else time
        self.stretches = followed(self.stretches, Stretch(self.life.number, begin, time, self.offset))
        return placed

    def _wait_for_work(self, resume: Resume, number: int, key: int, time: int) -> Execution:
        """Start a body of which it is not known yet whether it is a step."""
        if not resume.walking:
            resume.walking = True
            self.stretches = followed(self.stretches, Stretch(self.life.number, time, NEVER, self.offset))
            self.begin_segment(self.life)
        resume.room -= 1
        execution = self.running[key] = self.begun(number, key, time)
        execution.usual = resume.usual
        return execution

    def hold(self, execution: Execution, time: int) -> bool:
        """Whether the next body decides about one that is over at `time` (ns): a busy machine makes batches long."""
        resume = self.resume
        if resume is None or not resume.room or self.held:
            return False
        if execution.failed or execution.blurred or not execution.worked(execution.usual):
            return False
        execution.over = max(1, time)
        return True

    @property
    def held(self) -> list[Execution]:
        """The body that is over and about which the next one decides, if there is one."""
        return [one for one in self.running.values() if one.over]

    def walks_on(self, execution: Execution) -> bool:
        """Whether a body after a restore that is over was a batch that the loop skipped."""
        if self.held:
            return execution.brief(execution.usual)
        return not execution.worked(execution.usual)

    def take_as_steps(self) -> None:
        """A body after a restore turned out to be a step, and so are all whose fate is not known yet."""
        waiting = [one for one in self.running.values() if one.usual]
        resume = self.resume
        if resume is not None:
            self._place(resume, waiting[0].number, waiting[0].start)
        for one in waiting:
            del self.running[one.key]
        for one in waiting:
            one.usual = 0
            one.number = self._numbered(one.number, one.start)
            self._move_to(one.number, one.start, resume)
            resume = None
            one.segment = len(self.segments) - 1
            self.running[one.key] = one
            self.latest, self.previous, self.last_step = one.key, self.last_step, one.number
        for one in waiting:
            if one.over:
                time, one.over = one.over, 0
                self._settle(one, time)

    def settle(self, execution: Execution, time: int) -> bool:
        """End an execution that is over at `time` (ns); returns whether it counts as a step (rule R4)."""
        return self._settle(execution, time) or not (execution.left or execution.usual)

    def _settle(self, execution: Execution, time: int) -> bool:
        """Decide the fate of an execution; returns whether it has completed."""
        if execution.usual:
            if self.walks_on(execution):  # it did no work, and is no step
                for one in (*self.held, execution):
                    del self.running[one.key]
                    self.skipped += 1
                    self.skipped_wall += max(0, one.wall)
                    if self.resume is not None:
                        self.resume.skipped += 1
                    self.discard(one, rules.DATA_LOADING_TIME)
                return False
            self.take_as_steps()
        del self.running[execution.key]
        number = execution.number
        if execution.stall is not None:
            for buckets in self.buckets:
                buckets.mark(execution.stall)
        saved = number <= self.safe and not execution.superseded
        if not execution.failed or saved or (execution.left and self._worked(execution)):
            self._complete(execution, time)
            return True
        if not execution.left:
            self.lost += 1
            self.discard(execution, rules.WASTED_PROGRESS)
        else:
            self.discard(execution, rules.OTHER)
            if execution.key == self.latest:
                self.latest, self.last_step = None, self.previous
        if not execution.superseded and any(covered >= number for covered in self.saves.values()):
            self._hold(execution)
        return False

    def interrupt(self, execution: Execution) -> None:
        """A rank died in a step of the job (rule R11): a checkpoint that holds it may be saved by another one later."""
        if execution.fate == rules.WASTED_PROGRESS and not execution.superseded:
            self._hold(execution)

    def _hold(self, execution: Execution) -> None:
        """Hold an execution that may yet be kept."""
        self.recoverable[execution.key] = execution
        if len(self.recoverable) > RECOVERABLE:
            del self.recoverable[next(iter(self.recoverable))]

    def _worked(self, execution: Execution) -> bool:
        """Whether a step left by a break did a step's work: at least half the usual time, also after the job's end."""
        if execution.idle:
            return False
        length = self.progress.length
        usual = self.progress.nets(length - rules.USUAL_SAMPLE, length)
        return not usual or execution.worked(median(usual))

    def _complete(self, execution: Execution, time: int) -> None:
        segment = self.own_segment(execution.segment)
        self.executed += 1
        self.step_end = time
        if self.watch is not None:
            skipped = self.watch.look(execution.net)
            self.doubtful += skipped
            if skipped or self.watch.count >= WATCHED:
                self.watch = None
        restart: int | None = None
        if self.first_step is None and self.job_begin is not None and not execution.former:
            self.first_step = time - self.job_begin
            self.disruptions.change_restart(first_step=self.first_step)
            restart = self.disruptions.restart()
        if self.finished is not None and not execution.blurred:
            self.finished.append(execution.own)
        first = segment.first_net is None
        if first:
            segment.first_net, segment.first_start = execution.net, execution.start
            segment.pieces = execution.pieces or []
            segment.compiles = execution.compiles and execution.stall is None
            segment.first_ordinal = execution.ordinal
            if restart is not None:
                segment.starts = self.disruptions.count - len(self.disruptions.latest) + 1 + restart
            if self.bins is not None:
                segment.spots = self.bins.spots(execution)
        if execution.superseded:
            self.lost += 1
            self.discard(execution, rules.WASTED_PROGRESS)
            if not first:
                segment.add_lost(execution.net)
        else:
            if execution.segment == len(self.segments) - 1:
                self.recent.append(execution.start)
            self.keep(execution, first)
            if not execution.former:
                self._regain([execution.number], [time])
        if not execution.blurred:
            self._compare(execution)

    def push(self, steps: Steps, ends: list[int]) -> None:
        """Keep usual executions, over at `ends` (ns), on top of the stack: not the first of their segment."""
        numbers, starts, nets, *_ = steps
        segment = self.own_segment(-1)
        self.executed += len(numbers)
        self.step_end = ends[-1]
        if self.finished is not None:
            self.finished += nets
        self.progress.extend(numbers, nets)
        self.recent.extend(starts)
        self.loops[self.loop].extend(nets)
        segment.grow(len(numbers))
        if self.summary is not None:
            self.summary.push(segment.attempt, steps)
        self._regain(numbers, ends)

    def push_columns(
        self, numbers: Sequence[int], starts: Sequence[int], nets: Sequence[int], ends: Sequence[int]
    ) -> None:
        """The same where nobody wants an overview, nor the lengths of steps, as long as they are usual."""
        self.own_segment(-1).grow(len(numbers))
        self.executed += len(numbers)
        self.step_end = ends[-1]
        self.progress.extend(numbers, nets)
        self.recent.extend(starts[-rules.CADENCE_SAMPLE - 1 :])
        self.loops[self.loop].extend(nets[-HELD - 1 :])
        self._regain(numbers, ends)

    def _regain(self, numbers: Sequence[int], ends: Sequence[int]) -> None:
        """Note that steps with rising `numbers` were kept at `ends` (ns), if a disruption waits for one of them."""
        if self.disruptions.awaited is not None and numbers[-1] >= self.disruptions.awaited:
            self.disruptions.regain(numbers, ends)

    def _recover(self, execution: Execution, time: int) -> None:
        """Count the execution as completed after all, at `time` (ns): a checkpoint that holds it is durable."""
        fate = execution.fate
        if fate is None:
            return
        execution.fate = None
        self.discarded[fate] -= execution.net
        for follower in self.followers:
            follower.take_back(execution, fate)
        if execution.stall is not None and fate == rules.WASTED_PROGRESS:
            self.move_stall(execution.stall, rules.STALLED_LOST, rules.STALLED)
        self.lost -= fate == rules.WASTED_PROGRESS
        self._complete(execution, time)

    def enter(self, loop: int) -> None:
        """Let the steps that start from now on belong to this loop."""
        self.loop = loop
        if loop not in self.loops:
            if len(self.loops) >= LOOPS:
                del self.loops[next(iter(self.loops))]
            self.loops[loop] = Loop()

    def ceilings(self) -> dict[int, int]:
        """What a step takes without a profiler, ns, by loop (rule R12)."""
        return {number: usual for number, loop in self.loops.items() if (usual := loop.ceiling) is not None}

    def judge(self, execution: Execution, *, known: bool) -> None:
        """Set the limit of an execution that has reached the least that it can be; `known`: by a known clock."""
        segment = self.segments[execution.segment]
        limit = NO_LIMIT
        if known and (segment.first_net is not None or (segment.compiles_seen and not execution.compiles)):
            limit = self._loop_of(execution).limit(execution.number, execution.fixed)
        execution.judged = True
        execution.limit += limit - (execution.fixed or rules.STALLED_SLACK)

    def _loop_of(self, execution: Execution) -> Loop:
        return self.loops.get(execution.loop) or Loop()  # a new one if it was forgotten

    def _compare(self, execution: Execution) -> None:
        """Compare a completed execution with the others of its loop; give back what is usual after all (rule R10)."""
        loop = self._loop_of(execution)
        if execution.stall is None and execution.net <= rules.STALLED_SLACK:
            loop.extend((execution.visible,))
            return
        stalled = 0 if execution.stall is None else execution.stall.net
        took = execution.visible + stalled
        for number in loop.complete(execution.number, took, stalled=stalled, fixed=execution.fixed):
            index = self.progress.index_above(number) - 1
            stall = self.stalls.get(index)
            if stall is not None and stall.number == number:
                self.give_back(index, self.stalls.pop(index))

    def begin_save(self, key: int, label: int, blocking: bool) -> None:
        """Begin to save a checkpoint, which stands for the steps that are done, whatever its label.

        So is a step that only the device has still to finish, and an open one that has the number of the label, or that
        the save holds up and that has done a step's work.
        """
        covered = self.progress.top
        for one in self.running.values():
            if one.number > covered and not (one.failed or one.usual) and (
                not one.on_host or one.number == label or (blocking and (one.timed or (one.own and self._worked(one))))
            ):  # fmt: skip
                covered = one.number
        self.saves[key] = covered
        if self.covers is not None:
            self.covers[key] = covered
            if len(self.covers) > COVERS:
                del self.covers[next(iter(self.covers))]
        if len(self.saves) > SAVES:
            del self.saves[next(iter(self.saves))]
        if label >= 0 and covered >= 0:
            self.checkpoints.save(label, covered)

    def save(self, covered: int, time: int) -> None:
        """At `time` (ns), the steps up to `covered` are in a durable checkpoint; it may be older than the latest."""
        self.safe = max(self.safe, covered)
        for execution in [one for one in self.recoverable.values() if one.number <= covered]:
            self._recover(self.recoverable.pop(execution.key), time)
