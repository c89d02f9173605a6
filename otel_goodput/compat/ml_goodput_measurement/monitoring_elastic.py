"""Uploading the goodput of elastic jobs, as in ``ml_goodput_measurement.monitoring_elastic``."""

from __future__ import annotations

from typing import Any

from otel_goodput.compat.ml_goodput_measurement import goodput_elastic, goodput_utils, monitoring

GCPOptions = goodput_utils.GCPOptions


class ElasticGoodputMonitor(monitoring.GoodputMonitor):
    """A monitor with the elastic types of badput, and with ``include_slice_efficiency`` the shares of slices.

    Its arguments are those of :class:`GoodputMonitor` but for ``pathway_enabled``.
    """

    calculator_class = goodput_elastic.ElasticGoodputCalculator

    def __init__(
        self,
        job_name: str,
        logger_name: str,
        tensorboard_dir: str,
        upload_interval: int,
        monitoring_enabled: bool = False,
        include_badput_breakdown: bool = False,
        include_step_deviation: bool = False,
        include_slice_efficiency: bool = False,
        configured_ideal_step_time: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            job_name,
            logger_name,
            tensorboard_dir,
            upload_interval,
            monitoring_enabled,
            True,
            include_badput_breakdown,
            include_step_deviation,
            configured_ideal_step_time,
            **options,
        )
        self._slices = include_slice_efficiency
