"""The metrics of a job that a deputy publishes in place of the leader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from opentelemetry.metrics import MeterProvider
from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
from opentelemetry.sdk.resources import Resource

from otel_goodput import semconv
from otel_goodput._accounting import Totals
from otel_goodput._accounting.incidents import Incident
from otel_goodput._accounting.own_time import OwnTimes
from otel_goodput._live.ranks import RankExchange
from otel_goodput._metrics import instruments
from otel_goodput._runtime.guard import containing
from otel_goodput._runtime.pipelines import Pipelines
from otel_goodput._settings.config import Config
from otel_goodput.semconv import SCOPE_NAME
from otel_goodput.version import __version__


class Deputy:
    """Publishes the metrics of the job while its process stands in for the leader: exporters are opened only then.

    Args:
        config: the configuration in force.
        ranks: has the account of the job.
        pipelines: opens the exporters.
        resource: of this process.
        provider: the one that the user's own readers read, if there are any.
        figures: returns the account to publish, first.
        incidents: returns what this process has noticed; while it does not stand in, it does not look.
    """

    def __init__(
        self,
        config: Config,
        ranks: RankExchange,
        pipelines: Pipelines,
        resource: Resource,
        provider: MeterProvider,
        figures: Callable[[], tuple[Totals, object]],
        incidents: Callable[[], Sequence[Incident]],
    ) -> None:
        self._incidents = incidents
        self._ranks, self._pipelines, self._figures = ranks, pipelines, figures
        self._resource = resource.merge(Resource({semconv.PUBLISHER: config.process_index}))
        self._given = provider if config.meter_provider is not None or config.metric_readers else None
        self._own: SdkMeterProvider | None = None
        self._sampled = config.usage_interval is not None
        self._stands_in = False

    def __call__(self, stands_in: bool) -> None:
        """Begin or stop to publish."""
        with containing("metrics in place of the leader"):
            if stands_in:
                self._begin()
            else:
                self._end()

    def _begin(self) -> None:
        self._stands_in = True
        if self._given is not None:
            self._register(self._given, lambda: self._figures()[0] if self._stands_in else None)
            self._given = None
        self._own = provider = self._pipelines.further_provider(self._resource)
        last: list[Totals] = []

        def totals() -> Totals | None:
            if self._own is provider:
                last[:] = [self._figures()[0]]
            # What is exported last stays visible for minutes, and must not look like a job that hangs.
            return replace(last[0], since_step=0) if last and self._own is not provider else last[0] if last else None

        self._register(provider, totals)

    def _end(self) -> None:
        self._stands_in = False
        provider, self._own = self._own, None
        if provider is not None:
            self._pipelines.remove(provider)

    def _register(self, provider: MeterProvider, totals: Callable[[], Totals | None]) -> None:
        meter = provider.get_meter(SCOPE_NAME, __version__)
        instruments.register_account(meter, totals)
        instruments.register_incidents(meter, lambda: self._incidents() if self._stands_in else ())
        instruments.register_ranks(meter, lambda: self._ranks.waits() if self._stands_in else None)
        if self._sampled:
            instruments.register_usage(meter, lambda: self._ranks.usages() if self._stands_in else {})
        instruments.register_own_times(meter, lambda: self._ranks.own_times() if self._stands_in else OwnTimes())
