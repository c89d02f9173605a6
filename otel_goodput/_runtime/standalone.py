"""Goodput from a user's own tracer provider, with only a span processor."""

from __future__ import annotations

import threading
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING

from opentelemetry import metrics as metrics_api
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span

from otel_goodput._accounting import Totals
from otel_goodput._accounting import events as ev
from otel_goodput._integrations.async_runtimes import AsyncRuntimes
from otel_goodput._live import LiveAccount, call_in_children
from otel_goodput._recording.open_spans import JobThread
from otel_goodput._recording.span_processor import PhaseSpanProcessor
from otel_goodput._runtime import deadline, host
from otel_goodput._settings import config as configuration
from otel_goodput._settings.options import ProcessorOptions, Settings, check_names, taking_options
from otel_goodput._text.redact import redacting_logger
from otel_goodput.reports.report import Report, about
from otel_goodput.semconv import FALLBACK_CLOCKS, ClockState

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = redacting_logger("otel_goodput")


@partial(taking_options, processor=True)
class GoodputSpanProcessor(PhaseSpanProcessor):
    """Derives goodput and badput from spans with the attribute ``goodput.phase``, whichever library creates them.

    ::

        provider.add_span_processor(GoodputSpanProcessor(meter_provider=meter_provider))

    The provider's sampler must not drop phases, because only recorded spans are accounted. There is no device clock: if
    an asynchronous runtime such as jax is in use (``async_runtimes``), the clock of the steps is unknown and figures
    that depend on it are missing, unless ``OTEL_GOODPUT_DEVICE_CLOCK=host`` says that steps wait for their results.

    Without a directory (the argument, or ``OTEL_GOODPUT_DIR``) there is no journal: the account starts again in every
    process. Without `meter_provider`, metrics go to OpenTelemetry's global one.

    Args:
        job_name: name of the job; by default ``OTEL_SERVICE_NAME``, else the script's name.
        {options}

    Raises:
        ConfigurationError: an argument is wrong.
        TypeError: an argument is unknown.
    """

    def __init__(self, *, job_name: str | None = None, **options: Unpack[ProcessorOptions]) -> None:
        check_names("GoodputSpanProcessor", options, processor=True)
        config = configuration.read(job_name, **options)
        self._name = config.job_name
        self._patience_s = config.grace_period
        self._overhead = 0  # ns
        in_memory = host.current.in_memory or config.settings[Settings.directory.variable].source == "default"
        self._live_account = live = LiveAccount(config, in_memory=in_memory, begun=True)
        self.run_id = live.run_id
        self._facts = live.facts
        super().__init__(live.account, JobThread())
        self._runtimes = AsyncRuntimes() if config.device_clock != ClockState.HOST else None
        self._looking = threading.Lock()
        self._looked_at = live.account.clock()  # when asynchronous runtimes were last looked for, ns
        self._look_around()
        if config.leads:
            provider = config.meter_provider or metrics_api.get_meter_provider()
            journal = live.account.journal
            overhead, dropped = (lambda: self._overhead), (lambda: {"journal": journal.dropped})
            live.hear(live.measure(provider, self.totals, overhead, dropped))
        live.keep(self._work).start()
        if not host.current.in_memory:
            deadline.reserve(1)
        call_in_children(self._silence)

    def _silence(self) -> None:
        """In a forked child, stop recording: it must not write to its parent's journal."""
        self._live = False
        self._live_account.orphan()

    def _work(self) -> None:
        self._look_around()
        if text := self._live_account.ask_leader(begun=True):
            self._account.notes.add("launch", text)
            logger.warning("%s", text)
        self.run_id = self._live_account.run_id

    def _look_around(self) -> None:
        """Look for asynchronous runtimes; from the time that one is in use, the clock of the steps is unknown.

        Their work goes on after the end of a step on the host.
        """
        if self._runtimes is None or not self._looking.acquire(blocking=False):
            return
        try:
            now = self._account.clock()
            if self._runtimes.poll():
                unknown = FALLBACK_CLOCKS.index(ClockState.UNKNOWN)
                self._account.append(ev.CLOCK, unknown, 0, 0, 0, ev.NO_STEP, self._looked_at)
                self._runtimes = None
            self._looked_at = now
        finally:
            self._looking.release()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        begin = perf_counter_ns()
        super().on_start(span, parent_context)
        if not self._facts.described:
            self._facts.describe(span.resource)
        self._overhead += perf_counter_ns() - begin

    def on_end(self, span: ReadableSpan) -> None:
        begin = perf_counter_ns()
        super().on_end(span)
        self._overhead += perf_counter_ns() - begin

    def totals(self) -> Totals:
        """Return the account as of now, in integers of ns."""
        self._look_around()
        return self._account.totals()

    def report(self) -> Report:
        """Return the account as of now, as text (``str()``) or JSON (``to_json()``)."""
        notes, facts = self._account.notes.all(), self._facts.all_attempts()
        return Report(self.totals(), about(self.run_id, self._name), notes, facts=facts)

    def shutdown(self) -> None:
        """End open phases, mark them as interrupted, and write the journal.

        Waits for a disk that hangs no longer than the grace period.
        """
        super().shutdown()
        if not self._live_account.close(self._patience_s, release=True):
            text = "the journal was not closed within %.1f s; the recorded data is kept in it"
            logger.warning(text, self._patience_s)
