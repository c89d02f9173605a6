"""What observes a job in addition to its phases: the device clock, integrations, and notices of the platform."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from otel_goodput._accounting.totals import Totals
from otel_goodput._disruption import launchers
from otel_goodput._disruption.watch import Watch
from otel_goodput._integrations import Integrations
from otel_goodput._integrations.device_clock import DeviceClock
from otel_goodput._integrations.usage import UsageSampler
from otel_goodput._journal.usage import UsageSheet
from otel_goodput._metrics.productivity import Inputs, Productivity
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput._settings.config import Config
from otel_goodput._text.redact import redacting_logger

logger = redacting_logger("otel_goodput")

USAGE_S: Final = 0.5  # for a last sample of processor and memory


class Observers:
    """The observers of one recorder.

    `flush` and `finish` export everything so far, and end the recorder, within so many seconds; `before` returns when
    the attempt before began, ns, if that is known.
    """

    def __init__(
        self,
        config: Config,
        tracer: PhaseTracer,
        productivity: Productivity,
        totals: Callable[[], Totals],
        usage: UsageSheet | None,
        flush: Callable[[float], object],
        finish: Callable[[float], object],
        before: Callable[[], int | None],
    ) -> None:
        self._tracer = tracer
        self._productivity = productivity
        self._totals = totals
        self._before = before
        self.device_clock = DeviceClock(tracer, config.device_clock, config.process_count, patience=config.grace_period)
        self._integrations = Integrations(config.integrations, tracer)
        self._integrations.poll()
        self._usage: UsageSampler | None = None
        if usage is not None and config.usage_interval is not None:
            self._usage = UsageSampler(usage, config.usage_interval, tracer.clock)
        self.watch = Watch(config.integrations, tracer, flush, finish, config.grace_period)
        if config.leads and (text := launchers.unseen(tracer.traces.attempt)):
            logger.warning("%s", text)
        tracer.hooks.watch_device(self.device_clock)
        tracer.hooks.at_tick(self.device_clock.poll, self._integrations.poll, self.watch.renew, self._find_peak)
        if config.leads and "kubernetes" in config.integrations:
            self._ask_cluster(tracer.clock(), submitted=config.submitted_at is None)

    def close(self, seconds: float) -> None:
        """Remove all hooks and handlers; waits for callbacks and for steps on the device, `seconds` at most."""
        until = time.monotonic() + seconds
        self.watch.close(seconds / 2)
        self._integrations.remove()
        self._tracer.close_open()
        if self._usage is not None:
            self._usage.close(min(USAGE_S, until - time.monotonic()))
        self.device_clock.close(until - time.monotonic())

    def _ask_cluster(self, began: int, *, submitted: bool) -> None:
        """Ask in the background how this attempt was started, and if `submitted` when the run was submitted.

        `began` is when the program called ``configure()``, ns.
        """
        from otel_goodput._resources import kubernetes  # imported late: most jobs run outside of a cluster

        def submitted_at(answer: kubernetes.Submission) -> None:
            started = self._totals().started_at
            # A pod created after the run's start belongs to a later attempt, and says nothing of the submission.
            if started is None or answer.moment <= started:
                self._productivity.learn(Inputs(submitted_at=answer.moment))

        def ask(cluster: kubernetes.Cluster) -> None:
            self._tracer.hooks.scheduled(kubernetes.waits_of(cluster, began, before=self._before()))

        kubernetes.seek(submitted_at if submitted else None, then=ask)

    def _find_peak(self) -> None:
        """If the FLOPs of a step are known but not the peak, take the peak from jax's devices once there are some."""
        inputs = self._productivity.inputs
        if not inputs.flops_per_step or inputs.peak_flops:
            return
        from otel_goodput._integrations import flops

        if flops.backend_started():
            self._tracer.hooks.not_at_tick(self._find_peak)
            self._productivity.learn(Inputs(peak_flops=flops.peak_of_all()))
