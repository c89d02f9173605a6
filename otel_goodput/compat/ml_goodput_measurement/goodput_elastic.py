"""Elastic jobs, as in ``ml_goodput_measurement.goodput_elastic``."""

from __future__ import annotations

from datetime import datetime
from typing import cast

from otel_goodput._accounting.totals import Partition
from otel_goodput.compat.handles import harmless, moment
from otel_goodput.compat.ml_goodput_measurement import goodput
from otel_goodput.compat.ml_goodput_measurement.goodput_utils import (
    ElasticIntervalWorkloadMetricDetails,
    ElasticWorkloadMetricDetails,
)
from otel_goodput.semconv import SLICE_AVAILABLE, SLICE_STEPPING, Phase

GoodputRecorder = goodput.GoodputRecorder


class ElasticGoodputRecorder(goodput.GoodputRecorder):
    """Records an elastic job."""

    @harmless
    def record_elastic_slice_counts(
        self, active_slices: int, total_slices: int, available_slices: int, timestamp: datetime | None = None
    ) -> None:
        """Since `timestamp` (UTC; None is now) so many slices step, there are, and are available."""
        if self._handle is not None:
            counts = int(active_slices), int(available_slices), int(total_slices)
            self._handle.recorder.slice_counts(*counts, time=moment(timestamp))

    @harmless
    def record_elastic_wait_start_time(self, event_type: str, start_time: datetime | None = None) -> None:
        """Waiting for slices begins; what was open has failed. `event_type`: elastic_slice_down, elastic_scale_up."""
        self._start(Phase.ELASTIC_WAIT, str(event_type), start_time)

    @harmless
    def record_elastic_wait_end_time(self, event_type: str, end_time: datetime | None = None) -> None:
        """Waiting for slices ends."""
        self._end(Phase.ELASTIC_WAIT, str(event_type), end_time)

    @harmless
    def record_elastic_reinit_start_time(self, start_time: datetime | None = None) -> None:
        """Setting up again begins."""
        self._start(Phase.ELASTIC_REINIT, "", start_time)

    @harmless
    def record_elastic_reinit_end_time(self, end_time: datetime | None = None) -> None:
        """Setting up again ends."""
        self._end(Phase.ELASTIC_REINIT, "", end_time)


class ElasticGoodputCalculator(goodput.GoodputCalculator):
    """Answers for an elastic job."""

    elastic = True

    def get_job_goodput_details(self) -> ElasticWorkloadMetricDetails:
        """Return the figures of the run, with the shares of slices if they were counted."""
        found = cast("ElasticWorkloadMetricDetails", super().get_job_goodput_details())
        if found["goodput_time"]:
            _add_slices(found, self.totals().run)
        return found

    def get_interval_metric_details(
        self, interval_start: datetime, interval_end: datetime
    ) -> ElasticIntervalWorkloadMetricDetails:
        """Return the figures of an interval, with the shares of slices if they were counted."""
        told = super().get_interval_metric_details(interval_start, interval_end)
        found = cast("ElasticIntervalWorkloadMetricDetails", told)
        if found["interval_goodput"]:
            _add_slices(found, self.within(interval_start, interval_end))
        return found


def _add_slices(
    found: ElasticWorkloadMetricDetails | ElasticIntervalWorkloadMetricDetails, partition: Partition
) -> None:
    shares = partition.slice_efficiency
    if shares:
        found["stepping_slice_efficiency"] = float(shares[SLICE_STEPPING])
        found["available_slice_efficiency"] = float(shares[SLICE_AVAILABLE])
