"""What does not follow from events and is stored beside the journal: factors of ML productivity, and the objective."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Final, NamedTuple

from otel_goodput._accounting.totals import Totals
from otel_goodput._journal.notes import Notes
from otel_goodput._journal.rundir import RunDirectory
from otel_goodput._journal.sidecars import checked_json, read_json, whole
from otel_goodput._runtime.files import write_privately
from otel_goodput._runtime.guard import report_once
from otel_goodput._settings.config import Config
from otel_goodput._text.durations import NS

FEW: Final = 7  # steps; with fewer, the time of a step says little


class Inputs(NamedTuple):
    """Inputs that do not follow from events; each is None if not known.

    When the run was first submitted, ns since the epoch; floating-point operations of the model in one step; the peak
    FLOP/s of all chips together; the goodput that the run should have, a share.
    """

    submitted_at: int | None = None
    flops_per_step: float | None = None
    peak_flops: float | None = None
    objective: float | None = None

    def over(self, older: Inputs) -> Inputs:
        """Return these inputs, completed from `older`; the earlier of two submissions counts."""
        moments = [moment for moment in (self.submitted_at, older.submitted_at) if moment is not None]
        flops = self.flops_per_step or older.flops_per_step
        peak, objective = self.peak_flops or older.peak_flops, self.objective or older.objective
        return Inputs(min(moments, default=None), flops, peak, objective)

    def complete(self, totals: Totals) -> Totals:
        """Return `totals` with the factors that follow from these inputs.

        * scheduling goodput: elapsed / (elapsed + time from the submission to the first job start);
        * program goodput (MFU): FLOPs of the kept steps per second of productive time / peak FLOP/s of all chips; not
          known if that is above 1, see :meth:`excess`.
        """
        if self.objective is not None:
            totals = replace(totals, objective=self.objective)
        if self.submitted_at is not None and totals.started_at is not None and totals.run.elapsed:
            waited = max(0, totals.started_at - self.submitted_at)
            totals = replace(totals, scheduling=totals.run.elapsed / (totals.run.elapsed + waited))
        share = self._program(totals)
        return totals if share is None or share > 1 else replace(totals, program=share)

    def excess(self, totals: Totals) -> str:
        """Return why there is no program goodput although its factors are known; empty if there is, or they are not."""
        share = self._program(totals)
        if share is None or share <= 1:
            return ""
        return (
            f"No program goodput (MFU): {self.flops_per_step:.3g} FLOPs a step would be {share:.0%} of the peak of "
            f"{self.peak_flops:.3g} FLOP/s. flops_per_step= is for all chips together, and so is peak_flops=; or the "
            "chips compute in fewer bits than the 16 of that peak"
        )

    def _program(self, totals: Totals) -> float | None:
        if not (self.flops_per_step and self.peak_flops and totals.run.productive):
            return None
        return self.flops_per_step * totals.kept / (totals.run.productive / NS) / self.peak_flops


class Productivity:
    """The `inputs` of one run: configured, from earlier attempts, and those that became known later."""

    def __init__(self, config: Config, run: RunDirectory | None) -> None:
        self._ideal_step_time_s = config.ideal_step_time
        self._run = run
        self._kept = read_inputs(run) if run is not None else Inputs()
        given = Inputs(config.submitted_at, config.flops_per_step, config.peak_flops)
        self.inputs = given.over(self._kept)._replace(objective=config.objective)  # an earlier attempt's is given up

    def learn(self, inputs: Inputs) -> None:
        """Add `inputs`, which take precedence over those known so far."""
        self.inputs = inputs.over(self.inputs)

    def keep(self) -> None:
        """Save the inputs if they have changed. An error is reported once; the next call tries again."""
        if self._run is None or self.inputs == self._kept:
            return
        try:
            inputs = self.inputs
            write_privately(self._run.productivity_path, checked_json(inputs._asdict()))
            self._kept = inputs
        except OSError as error:
            report_once("productivity", "cannot save the inputs of ML productivity goodput (will retry): %s", error)

    def complete(self, totals: Totals, notes: Notes) -> Totals:
        """Return `totals` with the figures that derive from the configuration and these inputs.

        If there is no program goodput because it would be above 1, that is added to `notes`.
        """
        if totals.kept >= FEW and (excess := self.inputs.excess(totals)):
            notes.add("program goodput", excess)
        if self._ideal_step_time_s is not None:
            totals = replace(totals, ideal_step_time=self._ideal_step_time_s * NS)
        return self.inputs.complete(totals)


def read_inputs(run: RunDirectory) -> Inputs:
    """Return the saved inputs of a run; empty if there are none or they cannot be read."""
    try:
        saved = read_json(run.productivity_path)
        moment, flops, peak, objective = (saved.get(name) for name in Inputs._fields)
        share = _finite(objective)
        share = share if share is not None and 0 < share < 1 else None
        return Inputs(None if moment is None else whole(moment), _finite(flops), _finite(peak), share)
    except (OSError, ValueError, TypeError, AttributeError):
        return Inputs()


def _finite(value: object) -> float | None:
    """Convert to a float, if it is not None. Raises ValueError if it is not a finite number from 0."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= sys.float_info.max:
        raise ValueError(f"{value!r} is not a finite number >= 0")
    return float(value)
