"""Watch for disruptions of one recorder's job, and act on them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.util import types

from otel_goodput._disruption.launchers import exit_code, exit_reason, launches
from otel_goodput._disruption.metadata import Maintenance, metadata_host
from otel_goodput._disruption.notices import Notices
from otel_goodput._disruption.signals import SIGNALS, Signals
from otel_goodput._recording.tracer import PhaseTracer
from otel_goodput.semconv import GOODPUT_DISRUPTION_REASON, GOODPUT_NOTICE_EVENT, GOODPUT_NOTICE_SOURCE, REASONS

LIMIT_NS: Final = 300 * 10**9  # Slurm's --signal announces the time limit so long before it, or less
_SIGNALS: Final = frozenset(one.name for one in SIGNALS)


class Watch:
    """Watches ``signals``, ``maintenance`` (the metadata server) or both, whichever of them is in `names`.

    The reason of the next disruption goes to the account of the `tracer`, an event to its job span. `flush` and
    `finish` export what there is, and end the recorder; together they may take `grace_s`.
    """

    def __init__(
        self,
        names: Collection[str],
        tracer: PhaseTracer,
        flush: Callable[[float], object],
        finish: Callable[[float], object],
        grace_s: float,
    ) -> None:
        self._tracer = tracer
        self.notices = Notices(self._record, flush, grace_s, self._withdraw)
        self._signals = Signals(self.notices, tracer.clock, grace_s, finish) if "signals" in names else None
        self._maintenance = None
        code = exit_code() if tracer.traces.attempt else None
        if code:
            # Before the job starts: this is why the previous attempt ended, unless that has recorded a reason itself.
            tracer.account.notice(REASONS.index(exit_reason(code)), tracer.clock(), ended_by=f"exit status {code}")
        if self._signals is not None:
            self._signals.install()
        if "maintenance" in names and (host := metadata_host()) is not None:
            self._maintenance = Maintenance(self.notices, tracer.clock, host)
            self._maintenance.start()

    def announce(self, reason: str, seconds: float) -> bool:
        """Take note of `reason`, one of ``semconv.REASONS``; return whether what follows was done within `seconds`."""
        self.notices.announce(reason, self._tracer.clock())
        return self.notices.settled(seconds)

    def renew(self) -> None:
        if self._signals is not None:
            self._signals.renew()

    def close(self, seconds: float) -> None:
        """Restore the previous handlers and stop watching; wait for callbacks under way, `seconds` at most."""
        if self._signals is not None:
            self._signals.remove()
        if self._maintenance is not None:
            self._maintenance.stop()
        self.notices.close(seconds)

    def _record(self, reason: str, moment: int, about: dict[str, types.AttributeValue]) -> None:
        span = self._tracer.traces.job_span
        if _finished(span):
            return  # closing a notebook, or stopping a script in its last lines, disrupts no job
        source = str(about.get(GOODPUT_NOTICE_SOURCE, ""))
        limits = (launch for launch in launches() if launch.ends_at is not None and moment > launch.ends_at - LIMIT_NS)
        limit = next((f" at the time limit of {launch.name}" for launch in limits), "")
        ended_by = f"{source}{limit}" if source in _SIGNALS else ""
        self._tracer.account.notice(REASONS.index(reason), moment, ended_by=ended_by)
        if span is not None and span.is_recording():
            span.add_event(GOODPUT_NOTICE_EVENT, {GOODPUT_DISRUPTION_REASON: reason, **about}, moment)

    def _withdraw(self, left: str | None, moment: int, _: object) -> None:
        self._tracer.account.notice(0, moment, withdrawn=True)
        if left is not None:
            self._tracer.account.notice(REASONS.index(left), moment)


def _finished(job: object) -> bool:
    return isinstance(job, ReadableSpan) and job.end_time is not None and job.status.is_ok
