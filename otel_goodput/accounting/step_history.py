"""The steps of a run: which executions of them are kept, which are lost, and what interrupted them (rules R4 to
R6).
"""

from __future__ import annotations

from collections.abc import Mapping

from otel_goodput.accounting.disruption import Disruption
from otel_goodput.accounting.execution import Execution
from otel_goodput.accounting.progress import Progress
from otel_goodput.accounting.rolling import Rolling
from otel_goodput.accounting.rules import OTHER, RECOMPILED_NAMES, USUAL_SAMPLE, WASTED_PROGRESS
from otel_goodput.accounting.stats import median
from otel_goodput.accounting.step_segments import Life, StepSegment
from otel_goodput.accounting.windows import Window
from otel_goodput.semconv import Reason


class StepHistory:
    """Fates of executions.

    Attributes:
        progress: the kept executions.
        running: executions whose fate is not known, by key, in the order of their starts.
        spared: executions that are not kept, but will be once a checkpoint that holds them is durable, by key.
        executed, lost: completed executions; completed or interrupted ones that are lost.
        forfeited: own time of executions that are not kept by the category that has it, ns.
        interrupted: of that, what was in flight when the last life ended, ns.
        observed: the device end of some step is known.
        last_step: number of the latest started step.
        latest, previous: key of that step; number of the step started before it.
        safe: the highest step that a durable checkpoint covers, -1 where none does.
        saves: the highest step that a checkpoint not durable yet will cover, by the key of its phase.
        attempts: lives so far.
        disruptions, disrupted: how many there were, by reason and in all; latest_disruptions: the last of them.
        recompiled: recompilations by function, of so many functions; replaced, never changed: clones share it.
        finished: net times of completed steps whose ends are known, for whoever takes them, None where nobody does.
        windows, rolling: what sees the same time; told of every fate.
    """

    def __init__(self, windows: list[Window]) -> None:
        self.windows = windows
        self.rolling: Rolling | None = None
        self.progress = Progress()
        self.life = Life(0)
        self.segments: list[StepSegment] = []
        self.running: dict[int, Execution] = {}
        self.spared: dict[int, Execution] = {}
        self.executed = 0
        self.lost = 0
        self.forfeited: dict[int, int] = {}
        self.interrupted = 0
        self.last_step: int | None = None
        self.latest: int | None = None
        self.previous: int | None = None
        self.observed = False
        self.safe = -1
        self.saves: dict[int, int] = {}
        self.attempts = 0
        self.disruptions: dict[str, int] = {}
        self.disrupted = 0
        self.latest_disruptions: list[Disruption] = []
        self.recompiled: Mapping[str, int] = {}
        self.finished: list[int] | None = None

    def clone(self, windows: list[Window], rolling: Rolling | None) -> StepHistory:
        """An independent copy that other windows and rolling windows see."""
        twin = StepHistory.__new__(StepHistory)
        twin.__dict__.update(self.__dict__)
        twin.windows, twin.rolling, twin.finished = windows, rolling, None
        twin.progress = self.progress.clone()
        twin.life = self.life.clone()
        # Segments that nothing runs in are shared: whoever changes one puts a changed copy in its place.
        twin.segments = self.segments.copy()
        mine: dict[int, StepSegment] = {}
        for segment in (*self.segments[-1:], *(execution.step_segment for execution in self._open())):
            if id(segment) not in mine:
                mine[id(segment)] = segment.clone(twin.life if segment.life is self.life else segment.life)
        missing = len(mine)
        for at in range(len(twin.segments) - 1, -1, -1):
            if not missing:
                break
            if own := mine.get(id(twin.segments[at])):
                twin.segments[at] = own
                missing -= 1
        twin.running = {key: one.clone(mine[id(one.step_segment)]) for key, one in self.running.items()}
        twin.spared = {key: one.clone(mine[id(one.step_segment)]) for key, one in self.spared.items()}
        twin.forfeited = self.forfeited.copy()
        twin.saves = self.saves.copy()
        twin.disruptions = self.disruptions.copy()
        latest = self.latest_disruptions
        twin.latest_disruptions = [*latest[:-1], *(disruption.clone() for disruption in latest[-1:])]
        return twin

    def _open(self) -> tuple[Execution, ...]:
        """Executions of which the fate may change yet, other than by going back."""
        return (*self.running.values(), *self.spared.values())

    # --- lives --------------------------------------------------------------------------------------------------------

    def begin_attempt(self, number: int) -> None:
        """The process began anew."""
        self.mark_lost()
        self.life = Life(number)
        self.saves.clear()
        self.spared.clear()

    def mark_lost(self, *, pending: bool = True) -> None:
        """The steps in flight end with the life that ended; not those `pending` that only the device is busy with."""
        for execution in list(self.running.values()):
            if not pending and not execution.on_host:
                continue
            execution.failed, execution.left = True, False
            if not self._settle(execution):
                self.interrupted += execution.visible

    def begin_life(self, *, first: bool, reason: str, gap: int) -> None:
        """A job starts, `gap` ns after the last sign of life; not the `first`: that is a disruption (rule R6)."""
        if self.life.begun:
            self.mark_lost(pending=False)
            self.life.steps_started = False
        self.life.begun = True
        if not first:
            self._disrupt(Disruption(self.life.number + 1, reason, gap, self.interrupted, self.last_step, None))
        self.interrupted = 0
        self.attempts += 1

    def compile(self, function: str) -> bool:
        """`function` was compiled; returns whether that repeats a compilation of the attempt."""
        again = self.life.compile(function)
        if again and (function in self.recompiled or len(self.recompiled) < RECOMPILED_NAMES):
            self.recompiled = {**self.recompiled, function: self.recompiled.get(function, 0) + 1}
        return again

    # --- steps --------------------------------------------------------------------------------------------------------

    def start(self, number: int, key: int, time: int) -> Execution:
        """A step starts; going back to it takes from progress what is numbered as high or higher (rule R4)."""
        life = self.life
        top = self.progress.top
        popped = top >= number
        first = not life.steps_started
        if popped:
            # Going back first thing in an attempt is part of the disruption that began it.
            wasted = self._go_back(number, self.disrupted + (not first))
            if not first:
                self._disrupt(Disruption(None, Reason.ROLLBACK, 0, wasted, self.last_step, number))
            elif self.attempts > 1 and self.latest_disruptions:
                self.latest_disruptions[-1].wasted += wasted
        if first:
            life.steps_started = True
            if self.attempts > 1 and self.latest_disruptions and self.latest_disruptions[-1].to_step is None:
                self.latest_disruptions[-1].to_step = number
        if number <= self.safe:
            self.safe = number - 1
        if self.saves:
            self.saves = {save: min(covered, number - 1) for save, covered in self.saves.items()}
        if first or popped:
            self.segments.append(StepSegment(life, self.progress.length, time))
        if self.running:
            for other in self.running.values():
                other.superseded |= other.number >= number
        if self.spared:
            self.spared = {spared: other for spared, other in self.spared.items() if other.number < number}
        execution = self.running[key] = Execution(number, key, time, self.segments[-1])
        self.latest, self.previous, self.last_step = key, self.last_step, number
        return execution

    def settle(self, execution: Execution) -> bool:
        """The execution is over, on the host and on the device; returns whether it ever began (rule R4)."""
        return self._settle(execution) or not execution.left

    def _settle(self, execution: Execution) -> bool:
        """Returns whether it has completed."""
        del self.running[execution.key]
        number = execution.number
        saved = number <= self.safe and not execution.superseded
        if not execution.failed or saved or (execution.left and self._worked(execution)):
            self._complete(execution)
            return True
        if not execution.left:
            self.lost += 1
            self._forfeit(execution, WASTED_PROGRESS)
        else:
            self._forfeit(execution, OTHER)
            if execution.key == self.latest:
                self.latest, self.last_step = None, self.previous
        if not execution.superseded and any(covered >= number for covered in self.saves.values()):
            self.spared[execution.key] = execution
        return False

    def _worked(self, execution: Execution) -> bool:
        """Whether a step that was left did a step's work: half of the usual, be it after the job's end."""
        if execution.idle:
            return False
        length = self.progress.length
        usual = self.progress.nets(length - USUAL_SAMPLE, length)
        return not usual or 2 * (execution.net + execution.beyond) >= median(usual)

    def _complete(self, execution: Execution) -> None:
        segment = execution.step_segment
        self.executed += 1
        if self.finished is not None and not execution.blurred:
            self.finished.append(execution.net)
        first = segment.first_net is None
        if first:
            segment.first_net, segment.first_start = execution.net, execution.start
            segment.pieces = execution.pieces or []
        if execution.superseded:
            self.lost += 1
            self._forfeit(execution, WASTED_PROGRESS)
            if not first:
                segment.add_lost(execution.net)
        else:
            self._keep(execution, first)

    def _keep(self, execution: Execution, first: bool) -> None:
        progress = self.progress
        segment = execution.step_segment
        index = progress.length
        if progress.top < execution.number and segment is self.segments[-1]:
            progress.push(execution.number, execution.net)
            segment.grow()
        else:
            index = self._insert(execution)
            segment = execution.step_segment
        if first:
            segment.first_index = index
        if execution.shares is not None:
            for window in self.windows:
                window.keep(index, execution.shared(window.bit))
        if self.rolling is not None:
            self.rolling.keep(index, execution)

    def _insert(self, execution: Execution) -> int:
        """Steps overlapped and an earlier one completed later: keep it below those above it."""
        above = self.progress.pop_from(execution.number)
        index = self.progress.length
        self.progress.push(execution.number, execution.net)
        for number, net in above:
            self.progress.push(number, net)
        for window in self.windows:
            window.insert(index)
        if self.rolling:
            self.rolling.insert(index)
        for at in range(len(self.segments) - 1, -1, -1):
            if self.segments[at].high < index:
                break
            own = self.segments[at] is execution.step_segment
            self._own_segment(at).make_room(index, own)
        return index

    def _forfeit(self, execution: Execution, fate: int) -> None:
        execution.fate = fate
        self._credit(fate, execution, 1)
        if self.rolling:
            self.rolling.forfeit(execution, fate)

    def _credit(self, fate: int, execution: Execution, sign: int) -> None:
        """The execution's time goes to the category `fate`, or comes back from there (`sign` -1)."""
        self.forfeited[fate] = self.forfeited.get(fate, 0) + sign * execution.net
        if execution.shares is not None:
            for window in self.windows:
                window.forfeit(fate, sign * execution.shared(window.bit))

    def _spare(self, execution: Execution) -> None:
        """A checkpoint that holds the execution is durable: it has completed after all."""
        fate = execution.fate
        if fate is None:
            return
        execution.fate = None
        self._credit(fate, execution, -1)
        if self.rolling:
            self.rolling.give_back(execution, fate)
        self.lost -= fate == WASTED_PROGRESS
        self._complete(execution)

    def _go_back(self, number: int, disruption: int) -> int:
        """Every kept execution from `number` on is lost to `disruption` (rule R4); returns their time, ns."""
        before = self.progress.length
        popped = [net for _, net in self.progress.pop_from(number)]
        length = before - len(popped)
        self.lost += len(popped)
        self.forfeited[WASTED_PROGRESS] = self.forfeited.get(WASTED_PROGRESS, 0) + sum(popped)
        hidden = self.windows[0].kept
        visible = [net - hidden.get(index, 0) for index, net in enumerate(popped, length)] if hidden else popped
        for window in self.windows:
            window.lose_from(length, before)
        if self.rolling:
            self.rolling.lose_from(length, visible)
        for at in range(len(self.segments) - 1, -1, -1):
            if self.segments[at].high <= length:
                break
            self._own_segment(at).cut_to(length, popped, disruption)
        return sum(visible)

    def _own_segment(self, at: int) -> StepSegment:
        """A segment that may be changed: clones share all but the running ones."""
        shared = self.segments[at]
        own = self.segments[at] = shared.clone(shared.life)
        for execution in self._open():
            if execution.step_segment is shared:
                execution.step_segment = own
        return own

    def _disrupt(self, disruption: Disruption) -> None:
        self.disrupted += 1
        self.disruptions[disruption.reason] = self.disruptions.get(disruption.reason, 0) + 1
        self.latest_disruptions.append(disruption)
        if len(self.latest_disruptions) > Disruption.REMEMBERED:
            del self.latest_disruptions[0]

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def begin_save(self, key: int, step: int) -> None:
        """A checkpoint is being saved: it covers what is kept now; where its `step` is told, no later one, and of the
        steps in progress those up to it.
        """
        covered = self.progress.top
        if step >= 0:
            begun = [execution.number for execution in self.running.values() if execution.number <= step]
            covered = min(step, max((covered, *begun)))
        self.saves[key] = covered

    def end_save(self, key: int, durable: bool) -> None:
        """The checkpoint is stored safely, or was given up."""
        covered = self.saves.pop(key, None)
        if durable and covered is not None:
            # An earlier checkpoint may be stored later.
            self.safe = max(self.safe, covered)
            for execution in [one for one in self.spared.values() if one.number <= covered]:
                self._spare(self.spared.pop(execution.key))
