"""Goodput on a tracer provider of the user's own: a span processor, and nothing else."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter_ns

from opentelemetry import metrics as metrics_api
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span

from otel_goodput import config as configuration
from otel_goodput import deadline, instruments
from otel_goodput.accounting import Ledger, Totals
from otel_goodput.accounting import events as ev
from otel_goodput.clock import anchored
from otel_goodput.envvars import OTEL_GOODPUT_DIR
from otel_goodput.integrations.async_runtimes import AsyncRuntimes
from otel_goodput.journal.account import Account
from otel_goodput.journal.journal import Journal, Segment
from otel_goodput.journal.keeper import Keeper
from otel_goodput.journal.opening import Opened, open_journal
from otel_goodput.journal.span_index import SpanIndex
from otel_goodput.reports.report import Report, about
from otel_goodput.semconv import FALLBACK_CLOCKS, SCOPE_NAME, ClockState
from otel_goodput.spans.job_thread import JobThread
from otel_goodput.spans.processor import PhaseSpanProcessor
from otel_goodput.version import __version__

logger = logging.getLogger("otel_goodput")


class GoodputSpanProcessor(PhaseSpanProcessor):
    """Derives goodput and badput from spans that carry ``goodput.phase``, whoever makes them.

    ::

        provider.add_span_processor(GoodputSpanProcessor(meter_provider=meter_provider))

    The provider must not sample phases away: what is not recorded cannot be accounted. There is no device clock: where
    work is handed to a device (``async_runtimes``), the clock of the steps is unknown, and what rests on them is left
    out, unless ``OTEL_GOODPUT_DEVICE_CLOCK=host`` says that the steps wait for their results.

    Args:
        meter_provider: where the metrics go; by default OpenTelemetry's global one.
        job_name, run_id, windows: as for ``configure()``.
        directory: where the journal lives, so that a restart goes on with the run; without one the account begins anew
            with every process.

    Raises:
        ConfigurationError: an argument is wrong.
    """

    def __init__(
        self,
        *,
        meter_provider: metrics_api.MeterProvider | None = None,
        job_name: str | None = None,
        run_id: str | None = None,
        directory: str | Path | None = None,
        windows: str | Sequence[str] | None = None,
    ) -> None:
        config = configuration.read(job_name, run_id=run_id, directory=directory, windows=windows)
        clock = anchored()
        self._name = config.job_name
        self._patience_s = config.grace_period_s
        self._overhead = 0  # ns
        self._opened: Opened | None = None
        if config.settings[OTEL_GOODPUT_DIR.name].source == "default":
            journal, ledger, run = Journal(0, config.process_index, Segment(None)), Ledger(config.windows), None
            index, prepare = SpanIndex(0), None
            self.run_id = config.run_id
        else:
            opened = open_journal(config, clock)
            journal, ledger, run = opened.journal, opened.restored.ledger, opened.run
            self._opened, self.run_id = opened, opened.run_id
            index, prepare = opened.restored.index.successor(opened.attempt), opened.prepare
        ledger.collect_finished()
        account = Account(journal, ledger, clock)
        if self._opened is not None:
            self._opened.introduce(account)
        super().__init__(account, JobThread())
        account.begin_attempt()
        self._runtimes = AsyncRuntimes() if config.device_clock != ClockState.HOST else None
        self._looking = threading.Lock()
        self._looked_at = clock()  # for asynchronous runtimes
        self._look_around()
        if config.leads:
            provider = meter_provider or metrics_api.get_meter_provider()
            durations = instruments.register(
                provider.get_meter(SCOPE_NAME, __version__),
                self.totals,
                lambda: self._overhead,
                lambda: {"journal": journal.dropped},
            )
            account.on_steps, account.on_phases = durations.steps, durations.phases
        self._keeper = Keeper(account, run, index, self._look_around, prepare)
        self._keeper.start()
        deadline.reserve(1)
        if hasattr(os, "register_at_fork"):
            silence = weakref.WeakMethod(self._silence)  # what is registered stays for ever, we need not
            os.register_at_fork(after_in_child=lambda: (call := silence()) and call())

    def _silence(self) -> None:
        """A forked child must not write into its parent's journal."""
        self._live = False
        opened = self._opened
        self._account.orphan(Ledger if opened is None else opened.recall)
        if opened is not None and opened.lock is not None:
            opened.lock.release()

    def _look_around(self) -> None:
        """From when a runtime is in use that works on after a step's end, nobody knows when the step is done."""
        if self._runtimes is None or not self._looking.acquire(blocking=False):
            return
        try:
            now = self._account.clock()
            if self._runtimes.found():
                unknown = FALLBACK_CLOCKS.index(ClockState.UNKNOWN)
                self._account.append(ev.CLOCK, unknown, 0, 0, 0, ev.NO_STEP, self._looked_at)
                self._runtimes = None
            self._looked_at = now
        finally:
            self._looking.release()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        begin = perf_counter_ns()
        super().on_start(span, parent_context)
        self._overhead += perf_counter_ns() - begin

    def on_end(self, span: ReadableSpan) -> None:
        begin = perf_counter_ns()
        super().on_end(span)
        self._overhead += perf_counter_ns() - begin

    def totals(self) -> Totals:
        """The account now, as integers of ns."""
        self._look_around()
        return self._account.totals()

    def report(self) -> Report:
        """The account now, for a person (``str()``) or as JSON (``to_json()``)."""
        return Report(self.totals(), about(self.run_id, self._name), self._account.notes.all())

    def shutdown(self) -> None:
        """End what is open and mark it, write the journal; a disk that hangs is given up after the grace period."""
        super().shutdown()
        lock = None if self._opened is None else self._opened.lock

        def close(_: int) -> None:
            self._keeper.stop()
            if lock is not None:
                lock.release()

        if deadline.close_all([("journal", close)], self._patience_s):
            self._account.hanging = True
            logger.warning("the journal was not closed within %.1f s; what was recorded is in it", self._patience_s)
