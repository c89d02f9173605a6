"""ML productivity goodput: what a run's runtime goodput is multiplied with, as far as it is known."""

from __future__ import annotations

from dataclasses import replace

from otel_goodput.accounting.totals import NS, Totals
from otel_goodput.config import Config


def complete(totals: Totals, config: Config) -> Totals:
    """`totals` with what only the configuration knows.

    * scheduling goodput: elapsed / (elapsed + time from the submission to the first job start);
    * program goodput (MFU): FLOPs of the kept steps per second of productive time / the peak of all chips together.
    """
    if config.ideal_step_time_s is not None:
        totals = replace(totals, ideal_step_time=config.ideal_step_time_s * NS)
    if config.submitted_at is not None and totals.started_at is not None and totals.run.elapsed:
        waited = max(0, totals.started_at - config.submitted_at)
        totals = replace(totals, scheduling=totals.run.elapsed / (totals.run.elapsed + waited))
    if config.flops_per_step and config.peak_flops and totals.run.productive:
        achieved = config.flops_per_step * totals.kept / (totals.run.productive / NS)
        totals = replace(totals, program=achieved / config.peak_flops)
    return totals
